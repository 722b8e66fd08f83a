//! Prometheus' text exposition format (0.0.4), written in one place: `HELP` and `TYPE`, labels and their escapes, and
//! the samples of a histogram.

use std::fmt::{Display, Write as _};

/// A metric: its name and what it says.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// As Prometheus knows it.
    pub name: &'static str,
    /// One sentence; empty: the page has no `HELP` line.
    pub help: &'static str,
}

/// The type of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Counter,
    Gauge,
    Histogram,
}

impl Kind {
    fn text(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        }
    }
}

/// Labels of a series in the order in which they were given, as they stand between the braces.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Labels(String);

impl Labels {
    /// Labels from pairs of name and value.
    pub fn of(pairs: &[(&str, &str)]) -> Labels {
        Labels::default().and(pairs)
    }

    /// These labels, and more behind them.
    #[must_use]
    pub fn and(&self, more: &[(&str, &str)]) -> Labels {
        let mut text = self.0.clone();
        for (name, value) in more {
            if !text.is_empty() {
                text.push(',');
            }
            text.push_str(name);
            text.push_str("=\"");
            push_escaped(&mut text, value);
            text.push('"');
        }
        Labels(text)
    }
}

/// DNS writes labels for every question: what needs no escape is copied as it is.
fn push_escaped(text: &mut String, value: &str) {
    for part in value.split_inclusive(['\\', '"', '\n']) {
        let plain = part.trim_end_matches(['\\', '"', '\n']);
        text.push_str(plain);
        text.push_str(match &part[plain.len()..] {
            "\\" => "\\\\",
            "\"" => "\\\"",
            "\n" => "\\n",
            _ => "",
        });
    }
}

/// Values that were seen, counted by upper bounds.
#[derive(Clone, Debug)]
pub struct Histogram {
    bounds: &'static [f64],
    /// Values up to each bound: a value counts under every bound that is not below it.
    counts: Box<[u64]>,
    total: u64,
    sum: f64,
}

impl Histogram {
    /// An empty histogram with these upper bounds, smallest first.
    pub fn new(bounds: &'static [f64]) -> Histogram {
        Histogram { bounds, counts: vec![0; bounds.len()].into(), total: 0, sum: 0.0 }
    }

    /// Counts a value.
    pub fn observe(&mut self, value: f64) {
        for (count, bound) in self.counts.iter_mut().zip(self.bounds) {
            *count += u64::from(value <= *bound);
        }
        self.total += 1;
        self.sum += value;
    }
}

/// A page of metrics.
#[derive(Debug, Default)]
pub struct Page(String);

impl Page {
    /// Begins a family; its series follow.
    pub fn family(&mut self, kind: Kind, metric: Metric) -> Family<'_> {
        let Metric { name, help } = metric;
        if !help.is_empty() {
            let _ok = writeln!(self.0, "# HELP {name} {help}");
        }
        let _ok = writeln!(self.0, "# TYPE {name} {}", kind.text());
        Family { page: &mut self.0, name }
    }

    /// A family of one sample, which has no labels.
    pub fn single(&mut self, kind: Kind, metric: Metric, value: impl Display) {
        self.family(kind, metric).sample(&[], value);
    }

    /// Appends a page that was written elsewhere.
    pub fn append(&mut self, page: &str) {
        self.0.push_str(page);
    }

    /// The text of the page.
    pub fn into_text(self) -> String {
        self.0
    }
}

/// A metric whose series are being written.
pub struct Family<'a> {
    page: &'a mut String,
    name: &'static str,
}

impl Family<'_> {
    /// One sample of a counter or gauge.
    pub fn sample(&mut self, labels: &[(&str, &str)], value: impl Display) {
        self.series(&Labels::of(labels), value);
    }

    /// One sample of a counter or gauge whose labels are at hand.
    pub fn series(&mut self, labels: &Labels, value: impl Display) {
        self.line("", labels, value);
    }

    /// All samples of one histogram.
    pub fn histogram(&mut self, labels: &Labels, histogram: &Histogram) {
        for (bound, count) in histogram.bounds.iter().zip(&histogram.counts) {
            self.bucket(labels, bound, *count);
        }
        self.bucket(labels, "+Inf", histogram.total);
        self.line("_sum", labels, histogram.sum);
        self.line("_count", labels, histogram.total);
    }

    /// A page has thousands of these, and requests wait for its writer: nothing is copied.
    fn bucket(&mut self, Labels(labels): &Labels, bound: impl Display, count: u64) {
        let (name, comma) = (self.name, if labels.is_empty() { "" } else { "," });
        let _ok = writeln!(self.page, "{name}_bucket{{{labels}{comma}le=\"{bound}\"}} {count}");
    }

    fn line(&mut self, suffix: &'static str, labels: &Labels, value: impl Display) {
        let name = self.name;
        let _ok = match labels.0.as_str() {
            "" => writeln!(self.page, "{name}{suffix} {value}"),
            labels => writeln!(self.page, "{name}{suffix}{{{labels}}} {value}"),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_keep_their_order_and_escape_what_would_end_them() {
        for (pairs, expected) in [
            (&[][..], ""),
            (&[("b", "1"), ("a", "")][..], r#"b="1",a="""#),
            (&[("path", r"C:\x"), ("said", "\"no\"\nmore")][..], r#"path="C:\\x",said="\"no\"\nmore""#),
        ] {
            assert_eq!(Labels::of(pairs).0, expected);
        }
        let place = Labels::of(&[("server", "s")]);
        assert_eq!(place.and(&[("zone", "z")]), Labels::of(&[("server", "s"), ("zone", "z")]));
        assert_eq!(place.and(&[]), place);
    }

    #[test]
    fn a_value_counts_under_every_bound_that_is_not_below_it() {
        let mut seen = Histogram::new(&[1.0, 2.5]);
        for value in [0.5, 1.0, 2.0, 9.0] {
            seen.observe(value);
        }
        let mut page = Page::default();
        let metric = Metric { name: "h", help: "Seen." };
        page.family(Kind::Histogram, metric).histogram(&Labels::of(&[("a", "b")]), &seen);
        let expected = [
            "# HELP h Seen.",
            "# TYPE h histogram",
            r#"h_bucket{a="b",le="1"} 2"#,
            r#"h_bucket{a="b",le="2.5"} 3"#,
            r#"h_bucket{a="b",le="+Inf"} 4"#,
            r#"h_sum{a="b"} 12.5"#,
            r#"h_count{a="b"} 4"#,
        ];
        assert_eq!(page.into_text().lines().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_family_without_help_has_its_type_alone_and_no_labels_are_no_braces() {
        let mut page = Page::default();
        page.single(Kind::Gauge, Metric { name: "up", help: "" }, 1.5);
        page.append("# EOF\n");
        page.family(Kind::Counter, Metric { name: "n_total", help: "N." });
        assert_eq!(page.into_text(), "# TYPE up gauge\nup 1.5\n# EOF\n# HELP n_total N.\n# TYPE n_total counter\n");
    }
}
