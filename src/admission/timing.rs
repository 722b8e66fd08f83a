//! How long admission takes, plugin by plugin and as a whole: the two metrics of upstream's that say which plugin is
//! slow.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::Operation;

/// Upper bounds in seconds, upstream's.
const BOUNDS: [f64; 6] = [0.005, 0.025, 0.1, 0.5, 1.0, 2.5];
const OPERATIONS: [(Operation, &str); 4] = [
    (Operation::Create, "CREATE"),
    (Operation::Update, "UPDATE"),
    (Operation::Delete, "DELETE"),
    (Operation::Connect, "CONNECT"),
];

/// One of the metrics.
struct Histogram {
    name: &'static str,
    help: &'static str,
}

const CONTROLLER: Histogram = Histogram {
    name: "apiserver_admission_controller_admission_duration_seconds",
    help: "Admission controller latency histogram in seconds, identified by name and broken out for each operation \
           and API resource and type (validate or admit).",
};
const STEP: Histogram = Histogram {
    name: "apiserver_admission_step_admission_duration_seconds",
    help: "Admission sub-step latency histogram in seconds, broken out for each operation and API resource and step \
           type (validate or admit).",
};

/// One of the two rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Round {
    /// Changing.
    Admit,
    /// Judging.
    Validate,
}

/// How a round ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The request goes on.
    Admitted,
    /// It is refused.
    Rejected,
}

impl Outcome {
    /// Of a round's result.
    pub fn of<T, E>(result: &Result<T, E>) -> Outcome {
        if result.is_ok() { Outcome::Admitted } else { Outcome::Rejected }
    }
}

const ROUNDS: [(Round, &str); 2] = [(Round::Admit, "admit"), (Round::Validate, "validate")];

#[derive(Default)]
struct Cell {
    counts: [AtomicU64; BOUNDS.len()],
    total: AtomicU64,
    nanos: AtomicU64,
}

/// By round, operation, and whether it was a refusal.
type Cells = [[[Cell; 2]; OPERATIONS.len()]; ROUNDS.len()];

/// The times of one server's plugins; nothing is allocated and no lock is taken where one is noted.
#[derive(Default)]
pub struct Times {
    plugins: Vec<(&'static str, Cells)>,
    steps: Cells,
}

impl Times {
    /// Of these plugins.
    pub fn of(names: impl Iterator<Item = &'static str>) -> Times {
        Times { plugins: names.map(|name| (name, Cells::default())).collect(), steps: Cells::default() }
    }

    /// A plugin has spoken.
    pub fn plugin(&self, name: &str, round: Round, operation: Operation, outcome: Outcome, took: Duration) {
        if let Some((_, cells)) = self.plugins.iter().find(|(n, _)| *n == name) {
            note(cells, round, operation, outcome, took);
        }
    }

    /// All plugins have.
    pub fn step(&self, round: Round, operation: Operation, outcome: Outcome, took: Duration) {
        note(&self.steps, round, operation, outcome, took);
    }

    /// In Prometheus' text form.
    pub fn render(&self, out: &mut String) {
        head(out, &CONTROLLER);
        for (plugin, cells) in &self.plugins {
            render(out, &CONTROLLER, &format!("name=\"{plugin}\","), cells);
        }
        head(out, &STEP);
        render(out, &STEP, "", &self.steps);
    }
}

fn note(cells: &Cells, round: Round, operation: Operation, outcome: Outcome, took: Duration) {
    let of = OPERATIONS.iter().position(|(o, _)| *o == operation).unwrap_or(0);
    let cell = &cells[usize::from(round == Round::Validate)][of][usize::from(outcome == Outcome::Rejected)];
    let seconds = took.as_secs_f64();
    for (count, _) in cell.counts.iter().zip(BOUNDS).filter(|(_, bound)| seconds <= *bound) {
        count.fetch_add(1, Ordering::Relaxed);
    }
    cell.total.fetch_add(1, Ordering::Relaxed);
    cell.nanos.fetch_add(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
}

fn head(out: &mut String, Histogram { name, help }: &Histogram) {
    // Writing to a String cannot fail.
    let _ok = writeln!(out, "# HELP {name} [STABLE] {help}\n# TYPE {name} histogram");
}

/// The lines of one histogram; `first` begins their labels.
fn render(out: &mut String, Histogram { name, .. }: &Histogram, first: &str, cells: &Cells) {
    for ((_, round), by_operation) in ROUNDS.iter().zip(cells) {
        for ((_, operation), by_outcome) in OPERATIONS.iter().zip(by_operation) {
            for (rejected, cell) in [false, true].into_iter().zip(by_outcome) {
                let total = cell.total.load(Ordering::Relaxed);
                if total == 0 {
                    continue;
                }
                let labels = format!("{first}operation=\"{operation}\",rejected=\"{rejected}\",type=\"{round}\"");
                for (count, bound) in cell.counts.iter().zip(BOUNDS) {
                    let _ok =
                        writeln!(out, "{name}_bucket{{{labels},le=\"{bound}\"}} {}", count.load(Ordering::Relaxed));
                }
                let seconds = Duration::from_nanos(cell.nanos.load(Ordering::Relaxed)).as_secs_f64();
                let _ok = writeln!(
                    out,
                    "{name}_bucket{{{labels},le=\"+Inf\"}} {total}\n{name}_sum{{{labels}}} {seconds}\n\
                     {name}_count{{{labels}}} {total}"
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_counted_apart_under_upstreams_labels() {
        let times = Times::of(["LimitRanger"].into_iter());
        times.plugin("LimitRanger", Round::Admit, Operation::Create, Outcome::Admitted, Duration::from_millis(30));
        times.plugin("LimitRanger", Round::Validate, Operation::Create, Outcome::Rejected, Duration::from_millis(1));
        times.step(Round::Validate, Operation::Create, Outcome::Rejected, Duration::from_secs(9));
        let mut text = String::new();
        times.render(&mut text);
        let line = |wanted: &str| assert!(text.lines().any(|line| line == wanted), "{wanted} is not in\n{text}");
        let name = "apiserver_admission_controller_admission_duration_seconds";
        line(&format!(
            "{name}_bucket{{name=\"LimitRanger\",operation=\"CREATE\",rejected=\"false\",type=\"admit\",le=\"0.025\"}} \
             0"
        ));
        line(&format!(
            "{name}_bucket{{name=\"LimitRanger\",operation=\"CREATE\",rejected=\"false\",type=\"admit\",le=\"0.1\"}} 1"
        ));
        line(&format!(
            "{name}_count{{name=\"LimitRanger\",operation=\"CREATE\",rejected=\"true\",type=\"validate\"}} 1"
        ));
        line(
            "apiserver_admission_step_admission_duration_seconds_sum\
             {operation=\"CREATE\",rejected=\"true\",type=\"validate\"} 9",
        );
    }
}
