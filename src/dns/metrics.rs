//! Counters under CoreDNS's names, in Prometheus' text form.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use base::sync::Mutex;

/// Upper bounds of CoreDNS's request durations in seconds.
const DURATION_BOUNDS: [f64; 16] =
    [0.00025, 0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096, 8.192];
/// Upper bounds of message sizes in bytes.
const SIZE_BOUNDS: [f64; 14] = [0., 100., 200., 300., 400., 511., 1023., 2047., 4095., 8291., 16e3, 32e3, 48e3, 64e3];

/// All numbers of the process. Label values come from small fixed sets, so the maps stay small.
#[derive(Default)]
pub(crate) struct Metrics {
    counters: Mutex<BTreeMap<(&'static str, String), u64>>,
    histograms: Mutex<BTreeMap<(&'static str, String), Histogram>>,
}

struct Histogram {
    bounds: &'static [f64],
    counts: Vec<u64>,
    sum: f64,
    n: u64,
}

/// One question, as it is counted.
pub(crate) struct Served<'a> {
    pub(crate) server: &'a str,
    pub(crate) zone: &'a str,
    pub(crate) proto: &'static str,
    pub(crate) family: &'static str,
    pub(crate) kind: &'a str,
    pub(crate) rcode: &'a str,
    pub(crate) plugin: &'static str,
    pub(crate) request_bytes: usize,
    pub(crate) response_bytes: usize,
    pub(crate) took: Duration,
}

impl Metrics {
    pub(crate) fn count(&self, name: &'static str, labels: String) {
        *self.counters.lock().entry((name, labels)).or_default() += 1;
    }

    fn observe(&self, name: &'static str, labels: String, bounds: &'static [f64], value: f64) {
        let mut histograms = self.histograms.lock();
        let histogram = histograms.entry((name, labels)).or_insert_with(|| Histogram {
            bounds,
            counts: vec![0; bounds.len()],
            sum: 0.0,
            n: 0,
        });
        if let Some(at) = bounds.iter().position(|bound| value <= *bound) {
            histogram.counts[at] += 1;
        }
        histogram.sum += value;
        histogram.n += 1;
    }

    pub(crate) fn served(&self, s: &Served<'_>) {
        let place = format!("server=\"{}\",zone=\"{}\",view=\"\"", s.server, s.zone);
        self.count(
            "coredns_dns_requests_total",
            format!("{place},proto=\"{}\",family=\"{}\",type=\"{}\"", s.proto, s.family, s.kind),
        );
        self.count("coredns_dns_responses_total", format!("{place},rcode=\"{}\",plugin=\"{}\"", s.rcode, s.plugin));
        self.observe("coredns_dns_request_duration_seconds", place.clone(), &DURATION_BOUNDS, s.took.as_secs_f64());
        let sized = format!("{place},proto=\"{}\"", s.proto);
        #[allow(clippy::cast_precision_loss, reason = "a DNS message has at most 64 KiB")]
        let (asked, answered) = (s.request_bytes as f64, s.response_bytes as f64);
        self.observe("coredns_dns_request_size_bytes", sized.clone(), &SIZE_BOUNDS, asked);
        self.observe("coredns_dns_response_size_bytes", sized, &SIZE_BOUNDS, answered);
    }

    /// The text, with `gauges` that are read at this moment.
    pub(crate) fn render(&self, gauges: &[(&'static str, String, f64)]) -> String {
        let mut out = String::new();
        let mut last = "";
        for ((name, labels), value) in self.counters.lock().iter() {
            head(&mut out, &mut last, name, "counter");
            let _infallible = writeln!(out, "{name}{{{labels}}} {value}");
        }
        for ((name, labels), histogram) in self.histograms.lock().iter() {
            head(&mut out, &mut last, name, "histogram");
            let mut below = 0;
            for (bound, count) in histogram.bounds.iter().zip(&histogram.counts) {
                below += count;
                let _infallible = writeln!(out, "{name}_bucket{{{labels},le=\"{bound}\"}} {below}");
            }
            let Histogram { sum, n, .. } = histogram;
            let _infallible = writeln!(
                out,
                "{name}_bucket{{{labels},le=\"+Inf\"}} {n}\n{name}_sum{{{labels}}} {sum}\n{name}_count{{{labels}}} {n}"
            );
        }
        for (name, labels, value) in gauges {
            head(&mut out, &mut last, name, "gauge");
            let _infallible = writeln!(out, "{name}{{{labels}}} {value}");
        }
        out
    }
}

fn head(out: &mut String, last: &mut &str, name: &'static str, kind: &str) {
    if *last != name {
        let _infallible = writeln!(out, "# TYPE {name} {kind}");
        *last = name;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_the_same_to_the_letter() {
        let metrics = Metrics::default();
        let hit = |kind: &str| format!("server=\"dns://:53\",zones=\".\",view=\"\",type=\"{kind}\"");
        for kind in ["success", "denial", "success"] {
            metrics.count("coredns_cache_hits_total", hit(kind));
        }
        metrics.served(&Served {
            server: "dns://:53",
            zone: ".",
            proto: "udp",
            family: "1",
            kind: "A",
            rcode: "NOERROR",
            plugin: "kubernetes",
            request_bytes: 40,
            response_bytes: 100,
            took: Duration::from_millis(3),
        });
        let entries = |kind: &str| format!("server=\"dns://:53\",type=\"{kind}\",zones=\".\",view=\"\"");
        let text = metrics.render(&[
            ("coredns_build_info", "version=\"kedge-1\"".to_owned(), 1.0),
            ("coredns_cache_entries", entries("success"), 3.0),
            ("coredns_cache_entries", entries("denial"), 0.0),
        ]);
        assert_eq!(text, include_str!("metrics_golden.txt"));
    }

    #[test]
    fn buckets_count_everything_below_them() {
        let metrics = Metrics::default();
        metrics.observe("h", "a=\"b\"".to_owned(), &[1.0, 2.0], 0.5);
        metrics.observe("h", "a=\"b\"".to_owned(), &[1.0, 2.0], 1.5);
        let text = metrics.render(&[]);
        assert!(text.contains("h_bucket{a=\"b\",le=\"1\"} 1\nh_bucket{a=\"b\",le=\"2\"} 2\n"), "{text}");
    }
}
