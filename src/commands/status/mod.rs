//! `kedge status`: how this machine and its cluster are on one screen, what is wrong and what to do about it.

mod look;

use base::layout::Layout;
use clap::{Args, ValueEnum};
use serde_json::Value;

use crate::flags::shared::{AdminArgs, StateArgs};
use crate::process::life::{self, LifeError};

/// Flags of `kedge status`.
#[derive(Clone, Debug, Args)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    state: StateArgs,
    #[command(flatten)]
    admin: AdminArgs,
    /// How to print.
    #[arg(short, long, default_value = "text")]
    output: Form,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Form {
    Text,
    Json,
}

/// Why `kedge status` does not end well.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StatusError {
    #[error("{0} problem(s)")]
    Problems(usize),
    #[error(transparent)]
    Life(#[from] LifeError),
}

/// Something that is wrong, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    what: String,
    remedy: String,
}

impl Problem {
    fn new(what: impl Into<String>, remedy: impl Into<String>) -> Problem {
        Problem { what: what.into(), remedy: remedy.into() }
    }
}

/// The process number of the kedge that runs with this data folder, server or agent.
pub(crate) fn running(layout: &Layout) -> Option<u32> {
    look::running(layout)
}

/// Looks, prints; fails if something is wrong, so that scripts can ask.
pub(crate) fn main(args: &StatusArgs) -> Result<(), StatusError> {
    let report = life::ask(look::report(&args.state.layout, &args.admin.kubeconfig))?;
    match args.output {
        Form::Json => println!("{}", report.to_json()),
        Form::Text => print!("{}", report.to_text()),
    }
    match report.problems.len() {
        0 => Ok(()),
        n => Err(StatusError::Problems(n)),
    }
}

/// The report, section by section: the heading, its lines for people, its value for programs.
#[derive(Default)]
pub(crate) struct Report {
    sections: Vec<(&'static str, Vec<String>, Value)>,
    problems: Vec<Problem>,
}

impl Report {
    fn add(&mut self, name: &'static str, lines: Vec<String>, value: Value) {
        self.sections.push((name, lines, value));
    }

    fn to_json(&self) -> Value {
        let mut out = serde_json::Map::new();
        for (name, _, value) in &self.sections {
            out.insert(name.replace('-', ""), value.clone());
        }
        let problems =
            self.problems.iter().map(|p| serde_json::json!({ "problem": p.what, "remedy": p.remedy })).collect();
        out.insert("problems".to_owned(), Value::Array(problems));
        Value::Object(out)
    }

    fn to_text(&self) -> String {
        let mut out = String::new();
        for (name, lines, _) in &self.sections {
            for (idx, line) in lines.iter().enumerate() {
                let head = if idx == 0 { *name } else { "" };
                out += format!("{head:<14}{line}").trim_end();
                out.push('\n');
            }
        }
        if self.problems.is_empty() {
            out += "\nNothing is wrong.\n";
        }
        for problem in &self.problems {
            out += &format!("\nPROBLEM  {}\n  do     {}\n", problem.what, problem.remedy);
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::columns::columns;

    #[test]
    fn a_report_ends_with_what_to_do() {
        let mut report = Report::default();
        report.add("store", vec!["sqlite".to_owned(), "9 MB".to_owned()], serde_json::json!({ "kind": "sqlite" }));
        assert_eq!(report.to_text(), "store         sqlite\n              9 MB\n\nNothing is wrong.\n");
        report.problems.push(Problem::new("the disk is full", "make room"));
        assert!(report.to_text().ends_with("PROBLEM  the disk is full\n  do     make room\n"));
        assert_eq!(report.to_json()["problems"][0]["remedy"], "make room");
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [["A", "B"], ["long", "x"]].map(|row| row.map(str::to_owned));
        assert_eq!(columns(rows), "A     B\nlong  x\n");
    }
}
