//! Measures, what each was taken beside, and whether the budget is met: one line each, and a table at the end.

use std::time::Duration;

/// One budget.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    name: String,
    ours: String,
    /// The peer's or the limit's figure from the same run.
    beside: String,
    ratio: Option<f64>,
    budget: String,
    met: Option<bool>,
}

impl Row {
    /// A figure of ours. What it stands beside and what is asked of it follow.
    pub(crate) fn of(name: impl Into<String>, ours: impl Into<String>) -> Row {
        Row { name: name.into(), ours: ours.into(), beside: "–".into(), ratio: None, budget: "–".into(), met: None }
    }

    /// Measures that could not be taken, and why.
    pub(crate) fn missing(name: impl Into<String>, why: &str) -> Row {
        Row::of(name, format!("not measured: {}", why.replace('\n', " ")))
    }

    /// The figure it stands beside, and ours divided by it.
    pub(crate) fn beside(mut self, what: impl Into<String>, ratio: f64) -> Row {
        self.beside = what.into();
        self.ratio = ratio.is_finite().then_some(ratio);
        self
    }

    /// The budget of the design.
    pub(crate) fn budget(mut self, text: impl Into<String>, met: bool) -> Row {
        self.budget = text.into();
        self.met = Some(met);
        self
    }

    /// The wish in words, where no figure can judge.
    pub(crate) fn aim(mut self, text: impl Into<String>) -> Row {
        self.budget = text.into();
        self
    }

    fn cells(&self) -> [String; 6] {
        let ratio = self.ratio.map_or_else(|| "–".to_owned(), |ratio| format!("{ratio:.2}"));
        let met = match self.met {
            Some(true) => "yes",
            Some(false) => "**no**",
            None => "–",
        };
        [self.name.clone(), self.ours.clone(), self.beside.clone(), ratio, self.budget.clone(), met.to_owned()]
    }
}

/// All rows so far.
#[derive(Debug, Default)]
pub(crate) struct Report {
    rows: Vec<Row>,
}

impl Report {
    /// Prints the row at once and keeps it for the table.
    pub(crate) fn add(&mut self, row: Row) {
        println!("{}", row.cells().join(" | "));
        self.rows.push(row);
    }

    /// The table in markdown.
    pub(crate) fn table(&self) -> String {
        let mut text =
            "| what | kedge | beside it, same run | ratio | budget | met |\n|---|---|---|---|---|---|\n".to_owned();
        for row in &self.rows {
            text.push_str(&format!("| {} |\n", row.cells().join(" | ")));
        }
        text
    }

    /// How many budgets were judged and how many of them are met.
    pub(crate) fn n_met(&self) -> (usize, usize) {
        let judged = self.rows.iter().filter_map(|row| row.met);
        (judged.clone().filter(|met| *met).count(), judged.count())
    }
}

/// The value that half of the samples do not exceed; zero without samples.
pub(crate) fn p50(samples: &[Duration]) -> Duration {
    percentile(samples, 50)
}

/// The value that `percent` of the samples do not exceed; zero without samples.
pub(crate) fn percentile(samples: &[Duration], percent: usize) -> Duration {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable();
    let at = (sorted.len() * percent).div_ceil(100).max(1) - 1;
    sorted.get(at).copied().unwrap_or_default()
}

/// Milliseconds with two digits.
pub(crate) fn ms(time: Duration) -> String {
    format!("{:.2} ms", time.as_secs_f64() * 1e3)
}

/// Bytes in MiB.
pub(crate) fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_samples_and_never_between_them() {
        let samples: Vec<Duration> = [5, 1, 3, 2, 4].map(Duration::from_millis).into();
        assert_eq!(p50(&samples), Duration::from_millis(3));
        assert_eq!(percentile(&samples, 99), Duration::from_millis(5));
        assert_eq!(p50(&samples[..1]), Duration::from_millis(5));
        assert_eq!(p50(&[]), Duration::ZERO);
    }

    #[test]
    fn what_was_not_measured_is_neither_met_nor_missed() {
        let mut report = Report::default();
        report.add(Row::missing("a", "no etcd"));
        report.add(Row::of("b", "1").beside("2", 0.5).budget("≤ 1", true));
        assert_eq!(report.n_met(), (1, 1));
        assert!(
            report.table().contains("| a | not measured: no etcd | – | – | – | – |\n| b | 1 | 2 | 0.50 | ≤ 1 | yes |")
        );
    }
}
