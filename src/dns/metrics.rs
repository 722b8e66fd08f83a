//! Counters under CoreDNS's names, in Prometheus' text form.

use std::collections::BTreeMap;
use std::time::Duration;

use base::exposition::{Histogram, Kind, Labels, Metric, Page};
use base::sync::Mutex;
use hickory_proto::op::ResponseCode;
use hickory_proto::rr::{Name, RecordType};

use crate::args::code_name;
use crate::question::Transport;

/// Upper bounds of CoreDNS's request durations in seconds.
const DURATION_BOUNDS: [f64; 16] =
    [0.00025, 0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096, 8.192];
/// Upper bounds of message sizes in bytes.
const SIZE_BOUNDS: [f64; 14] = [0., 100., 200., 300., 400., 511., 1023., 2047., 4095., 8291., 16e3, 32e3, 48e3, 64e3];

/// All numbers of the process, by name and labels. Label values come from small fixed sets, so the maps stay small.
#[derive(Default)]
pub(crate) struct Metrics {
    counters: Mutex<BTreeMap<&'static str, BTreeMap<Labels, u64>>>,
    histograms: Mutex<BTreeMap<&'static str, BTreeMap<Labels, Histogram>>>,
}

/// A number that is read when somebody asks.
pub(crate) struct Gauge {
    pub(crate) name: &'static str,
    pub(crate) labels: Labels,
    pub(crate) value: f64,
}

/// One question, as it is counted.
pub(crate) struct Served<'a> {
    pub(crate) server: &'a str,
    /// `None`: of no server block.
    pub(crate) zone: Option<&'a Name>,
    pub(crate) transport: Transport,
    pub(crate) is_v4: bool,
    pub(crate) kind: RecordType,
    pub(crate) code: ResponseCode,
    pub(crate) plugin: &'static str,
    pub(crate) request_bytes: usize,
    pub(crate) response_bytes: usize,
    pub(crate) took: Duration,
}

/// The type as it is counted: the rare ones, which strangers choose, are one.
pub(crate) fn kind_name(kind: RecordType) -> &'static str {
    match kind {
        RecordType::A => "A",
        RecordType::AAAA => "AAAA",
        RecordType::SRV => "SRV",
        RecordType::PTR => "PTR",
        RecordType::TXT => "TXT",
        RecordType::MX => "MX",
        RecordType::NS => "NS",
        RecordType::SOA => "SOA",
        RecordType::CNAME => "CNAME",
        RecordType::HTTPS => "HTTPS",
        _ => "other",
    }
}

/// CoreDNS's metrics; here they are told without `HELP`.
fn metric(name: &'static str) -> Metric {
    Metric { name, help: "" }
}

impl Metrics {
    pub(crate) fn count(&self, name: &'static str, labels: Labels) {
        *self.counters.lock().entry(name).or_default().entry(labels).or_default() += 1;
    }

    fn observe(&self, name: &'static str, labels: Labels, bounds: &'static [f64], value: f64) {
        let mut histograms = self.histograms.lock();
        let series = histograms.entry(name).or_default();
        series.entry(labels).or_insert_with(|| Histogram::new(bounds)).observe(value);
    }

    /// One more question to the cache, or an answer of it.
    pub(crate) fn count_cache(&self, name: &'static str, server: &str, shelf: Option<&'static str>) {
        let labels = Labels::of(&[("server", server), ("zones", "."), ("view", "")]);
        self.count(name, shelf.map_or_else(|| labels.clone(), |shelf| labels.and(&[("type", shelf)])));
    }

    pub(crate) fn served(&self, s: &Served<'_>) {
        let zone = s.zone.map_or_else(|| "dropped".to_owned(), Name::to_ascii);
        let place = Labels::of(&[("server", s.server), ("zone", &zone), ("view", "")]);
        let proto = if s.transport == Transport::Udp { "udp" } else { "tcp" };
        let family = if s.is_v4 { "1" } else { "2" };
        let asked = [("proto", proto), ("family", family), ("type", kind_name(s.kind))];
        self.count("coredns_dns_requests_total", place.and(&asked));
        let answered = [("rcode", code_name(s.code)), ("plugin", s.plugin)];
        self.count("coredns_dns_responses_total", place.and(&answered));
        let sized = place.and(&[("proto", proto)]);
        self.observe("coredns_dns_request_duration_seconds", place, &DURATION_BOUNDS, s.took.as_secs_f64());
        #[allow(clippy::cast_precision_loss, reason = "a DNS message has at most 64 KiB")]
        let (asked, answered) = (s.request_bytes as f64, s.response_bytes as f64);
        self.observe("coredns_dns_request_size_bytes", sized.clone(), &SIZE_BOUNDS, asked);
        self.observe("coredns_dns_response_size_bytes", sized, &SIZE_BOUNDS, answered);
    }

    /// One answer of a resolver.
    pub(crate) fn forwarded(&self, to: &str, code: ResponseCode, took: Duration) {
        let labels = Labels::of(&[("proxy_name", "forward"), ("to", to), ("rcode", code_name(code))]);
        self.observe("coredns_proxy_request_duration_seconds", labels, &DURATION_BOUNDS, took.as_secs_f64());
    }

    /// The text, with `gauges` that are read at this moment; those of one name stand together.
    pub(crate) fn render(&self, gauges: &[Gauge]) -> String {
        let mut page = Page::default();
        for (name, series) in self.counters.lock().iter() {
            let mut family = page.family(Kind::Counter, metric(name));
            for (labels, n) in series {
                family.series(labels, n);
            }
        }
        for (name, series) in self.histograms.lock().iter() {
            let mut family = page.family(Kind::Histogram, metric(name));
            for (labels, histogram) in series {
                family.histogram(labels, histogram);
            }
        }
        for gauges in gauges.chunk_by(|one, next| one.name == next.name) {
            let mut family = page.family(Kind::Gauge, metric(gauges[0].name));
            for gauge in gauges {
                family.series(&gauge.labels, gauge.value);
            }
        }
        page.into_text()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_the_same_to_the_letter() {
        let metrics = Metrics::default();
        let hit = |kind: &str| Labels::of(&[("server", "dns://:53"), ("zones", "."), ("view", ""), ("type", kind)]);
        for kind in ["success", "denial", "success"] {
            metrics.count("coredns_cache_hits_total", hit(kind));
        }
        metrics.served(&Served {
            server: "dns://:53",
            zone: Some(&Name::root()),
            transport: Transport::Udp,
            is_v4: true,
            kind: RecordType::A,
            code: ResponseCode::NoError,
            plugin: "kubernetes",
            request_bytes: 40,
            response_bytes: 100,
            took: Duration::from_millis(3),
        });
        let entries = |kind: &str, value: f64| Gauge {
            name: "coredns_cache_entries",
            labels: Labels::of(&[("server", "dns://:53"), ("type", kind), ("zones", "."), ("view", "")]),
            value,
        };
        let build = Gauge { name: "coredns_build_info", labels: Labels::of(&[("version", "kedge-1")]), value: 1.0 };
        let text = metrics.render(&[build, entries("success", 3.0), entries("denial", 0.0)]);
        assert_eq!(text, include_str!("metrics_golden.txt"));
    }
}
