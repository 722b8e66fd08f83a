//! Numbers that any part of the process keeps, in one place that renders them in Prometheus' text form.
//!
//! Labels are few and their values bounded by what the process itself is made of: nothing that a stranger sends becomes
//! a label.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use crate::exposition::{Histogram, Kind, Labels, Metric, Page};
use crate::sync::{Mutex, MutexGuard};

/// Bounds in seconds for what takes from a tenth of a millisecond to a minute.
pub const SECONDS: [f64; 13] = [0.0001, 0.0005, 0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0];

enum Number {
    Counter(u64),
    Gauge(f64),
    Histogram(Histogram),
}

struct Family {
    help: &'static str,
    series: BTreeMap<Labels, Number>,
}

type Families = BTreeMap<&'static str, Family>;

fn families() -> MutexGuard<'static, Families> {
    static FAMILIES: OnceLock<Mutex<Families>> = OnceLock::new();
    FAMILIES.get_or_init(Mutex::default).lock()
}

fn with(metric: Metric, labels: &[(&str, &str)], new: impl FnOnce() -> Number, change: impl FnOnce(&mut Number)) {
    let mut families = families();
    let family = families.entry(metric.name).or_insert_with(|| Family { help: metric.help, series: BTreeMap::new() });
    change(family.series.entry(Labels::of(labels)).or_insert_with(new));
}

/// Adds to a counter.
pub fn count(metric: Metric, labels: &[(&str, &str)], n: u64) {
    with(
        metric,
        labels,
        || Number::Counter(0),
        |number| {
            if let Number::Counter(all) = number {
                *all += n;
            }
        },
    );
}

/// Sets a gauge.
pub fn set(metric: Metric, labels: &[(&str, &str)], value: f64) {
    with(
        metric,
        labels,
        || Number::Gauge(0.0),
        |number| {
            if let Number::Gauge(now) = number {
                *now = value;
            }
        },
    );
}

/// Notes how long something took.
pub fn observe(metric: Metric, labels: &[(&str, &str)], took: std::time::Duration) {
    observe_among(metric, labels, took.as_secs_f64(), &SECONDS);
}

/// Notes a value in a histogram with these upper bounds, the same at every call.
pub fn observe_among(metric: Metric, labels: &[(&str, &str)], value: f64, bounds: &'static [f64]) {
    with(
        metric,
        labels,
        || Number::Histogram(Histogram::new(bounds)),
        |number| {
            if let Number::Histogram(histogram) = number {
                histogram.observe(value);
            }
        },
    );
}

/// All of them, in Prometheus' text form.
pub fn render() -> String {
    render_those("")
}

/// Those whose names begin so.
pub fn render_those(prefix: &str) -> String {
    let mut page = Page::default();
    for (name, family) in families().iter().filter(|(name, _)| name.starts_with(prefix)) {
        let kind = match family.series.values().next() {
            Some(Number::Counter(_)) => Kind::Counter,
            Some(Number::Gauge(_)) => Kind::Gauge,
            Some(Number::Histogram(_)) => Kind::Histogram,
            None => continue,
        };
        let mut written = page.family(kind, Metric { name, help: family.help });
        for (labels, number) in &family.series {
            match number {
                Number::Counter(n) => written.series(labels, n),
                Number::Gauge(n) => written.series(labels, n),
                Number::Histogram(histogram) => written.histogram(labels, histogram),
            }
        }
    }
    page.into_text()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn numbers_are_written_as_prometheus_reads_them() {
        count(Metric { name: "test_things_total", help: "Things." }, &[("name", "a\"b")], 2);
        set(Metric { name: "test_depth", help: "Depth." }, &[], 3.0);
        observe(Metric { name: "test_took_seconds", help: "Took." }, &[("x", "y")], Duration::from_millis(2));
        let text = render_those("test_");
        assert!(!render_those("test_d").contains("test_things_total"));
        assert!(text.contains("# TYPE test_things_total counter\ntest_things_total{name=\"a\\\"b\"} 2\n"), "{text}");
        assert!(text.contains("test_depth 3\n"));
        assert!(text.contains("test_took_seconds_bucket{x=\"y\",le=\"0.001\"} 0\n"));
        assert!(text.contains("test_took_seconds_bucket{x=\"y\",le=\"+Inf\"} 1\n"));
        assert!(text.contains("test_took_seconds_count{x=\"y\"} 1\n"));
    }

    #[test]
    fn a_family_is_the_same_to_the_letter() {
        count(Metric { name: "golden_things_total", help: "Things." }, &[("b", "x\ny"), ("a", "\\")], 2);
        set(Metric { name: "golden_depth", help: "Depth." }, &[], 3.5);
        let took = Metric { name: "golden_took", help: "Took." };
        observe_among(took, &[], 1.0, &[0.5, 1.0]);
        observe_among(took, &[("x", "y")], 2.0, &[0.5, 1.0]);
        let expected = [
            "# HELP golden_depth Depth.",
            "# TYPE golden_depth gauge",
            "golden_depth 3.5",
            "# HELP golden_things_total Things.",
            "# TYPE golden_things_total counter",
            r#"golden_things_total{b="x\ny",a="\\"} 2"#,
            "# HELP golden_took Took.",
            "# TYPE golden_took histogram",
            r#"golden_took_bucket{le="0.5"} 0"#,
            r#"golden_took_bucket{le="1"} 1"#,
            r#"golden_took_bucket{le="+Inf"} 1"#,
            "golden_took_sum 1",
            "golden_took_count 1",
            r#"golden_took_bucket{x="y",le="0.5"} 0"#,
            r#"golden_took_bucket{x="y",le="1"} 0"#,
            r#"golden_took_bucket{x="y",le="+Inf"} 1"#,
            r#"golden_took_sum{x="y"} 2"#,
            r#"golden_took_count{x="y"} 1"#,
        ];
        assert_eq!(render_those("golden_").lines().collect::<Vec<_>>(), expected);
    }
}
