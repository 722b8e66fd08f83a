//! Counters under CoreDNS's names, in Prometheus' text form.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use base::exposition::{Histogram, Kind, Labels, Metric, Page};
use base::sync::Mutex;
use hickory_proto::op::ResponseCode;
use hickory_proto::rr::RecordType;

use crate::args::code_name;
use crate::question::Transport;

/// Upper bounds of CoreDNS's request durations in seconds.
const DURATION_BOUNDS: [f64; 16] =
    [0.00025, 0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096, 8.192];
/// Upper bounds of message sizes in bytes.
const SIZE_BOUNDS: [f64; 14] = [0., 100., 200., 300., 400., 511., 1023., 2047., 4095., 8291., 16e3, 32e3, 48e3, 64e3];

/// All numbers of the process, by name and labels. Label values come from small fixed sets, so the maps stay small.
///
/// Counts of questions are kept by keys that cost little, and becomes labels when somebody asks for the page.
#[derive(Default)]
pub(crate) struct Metrics {
    counters: Mutex<Counters>,
    cache: Mutex<BTreeMap<CacheKey, u64>>,
    served: Mutex<BTreeMap<ServedKey, u64>>,
    sizes: Mutex<BTreeMap<SizesKey, Sizes>>,
    durations: Mutex<BTreeMap<PlaceKey, Histogram>>,
    forwarded: Mutex<BTreeMap<(String, &'static str), Histogram>>,
}

type Counters = BTreeMap<&'static str, BTreeMap<Labels, u64>>;
/// Name of the counter, server, and shelf.
type CacheKey = (&'static str, Arc<str>, Option<&'static str>);
/// Server and zone.
type PlaceKey = (Arc<str>, Arc<str>);
/// Place and protocol.
type SizesKey = (PlaceKey, &'static str);
/// Place; protocol, family and type of the question; code and plugin of the answer.
type ServedKey = (PlaceKey, [&'static str; 5]);

/// Sizes of questions and of answers.
struct Sizes {
    asked: Histogram,
    answered: Histogram,
}

/// A number that is read when somebody asks.
pub(crate) struct Gauge {
    pub(crate) name: &'static str,
    pub(crate) labels: Labels,
    pub(crate) value: f64,
}

/// One question, as it is counted.
pub(crate) struct Served<'a> {
    pub(crate) server: &'a Arc<str>,
    pub(crate) zone: &'a Arc<str>,
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

    /// One more question to the cache, or an answer of it.
    pub(crate) fn count_cache(&self, name: &'static str, server: &Arc<str>, shelf: Option<&'static str>) {
        *self.cache.lock().entry((name, Arc::clone(server), shelf)).or_default() += 1;
    }

    pub(crate) fn served(&self, s: &Served<'_>) {
        let place = (Arc::clone(s.server), Arc::clone(s.zone));
        let proto = if s.transport == Transport::Udp { "udp" } else { "tcp" };
        let family = if s.is_v4 { "1" } else { "2" };
        let told = [proto, family, kind_name(s.kind), code_name(s.code), s.plugin];
        *self.served.lock().entry((place.clone(), told)).or_default() += 1;
        self.durations
            .lock()
            .entry(place.clone())
            .or_insert_with(|| Histogram::new(&DURATION_BOUNDS))
            .observe(s.took.as_secs_f64());
        #[allow(clippy::cast_precision_loss, reason = "a DNS message has at most 64 KiB")]
        let (asked, answered) = (s.request_bytes as f64, s.response_bytes as f64);
        let mut sizes = self.sizes.lock();
        let sizes = sizes
            .entry((place, proto))
            .or_insert_with(|| Sizes { asked: Histogram::new(&SIZE_BOUNDS), answered: Histogram::new(&SIZE_BOUNDS) });
        sizes.asked.observe(asked);
        sizes.answered.observe(answered);
    }

    /// One answer of a resolver.
    pub(crate) fn forwarded(&self, to: &str, code: ResponseCode, took: Duration) {
        let mut forwarded = self.forwarded.lock();
        let histogram = forwarded.entry((to.to_owned(), code_name(code)));
        histogram.or_insert_with(|| Histogram::new(&DURATION_BOUNDS)).observe(took.as_secs_f64());
    }

    /// All counters, under their labels.
    fn all_counters(&self) -> Counters {
        let mut all = self.counters.lock().clone();
        let mut add = |name, labels, n: u64| {
            *all.entry(name).or_default().entry(labels).or_default() += n;
        };
        for ((name, server, shelf), n) in self.cache.lock().iter() {
            let labels = Labels::of(&[("server", server), ("zones", "."), ("view", "")]);
            add(*name, shelf.map_or_else(|| labels.clone(), |shelf| labels.and(&[("type", shelf)])), *n);
        }
        for ((place, [proto, family, kind, code, plugin]), n) in self.served.lock().iter() {
            let place = place_labels(place);
            let asked = [("proto", *proto), ("family", *family), ("type", *kind)];
            add("coredns_dns_requests_total", place.and(&asked), *n);
            add("coredns_dns_responses_total", place.and(&[("rcode", *code), ("plugin", *plugin)]), *n);
        }
        all
    }

    /// All histograms, under their labels.
    fn all_histograms(&self) -> BTreeMap<&'static str, Vec<(Labels, Histogram)>> {
        let mut all: BTreeMap<&'static str, Vec<(Labels, Histogram)>> = BTreeMap::new();
        let mut add =
            |name, labels, histogram: &Histogram| all.entry(name).or_default().push((labels, histogram.clone()));
        for (place, histogram) in self.durations.lock().iter() {
            add("coredns_dns_request_duration_seconds", place_labels(place), histogram);
        }
        for ((place, proto), sizes) in self.sizes.lock().iter() {
            let labels = place_labels(place).and(&[("proto", *proto)]);
            add("coredns_dns_request_size_bytes", labels.clone(), &sizes.asked);
            add("coredns_dns_response_size_bytes", labels, &sizes.answered);
        }
        for ((to, code), histogram) in self.forwarded.lock().iter() {
            let labels = Labels::of(&[("proxy_name", "forward"), ("to", to), ("rcode", code)]);
            add("coredns_proxy_request_duration_seconds", labels, histogram);
        }
        all
    }

    /// The text, with `gauges` that are read at this moment; those of one name stand together.
    pub(crate) fn render(&self, gauges: &[Gauge]) -> String {
        let mut page = Page::default();
        for (name, series) in &self.all_counters() {
            let mut family = page.family(Kind::Counter, metric(name));
            for (labels, n) in series {
                family.series(labels, n);
            }
        }
        for (name, series) in &self.all_histograms() {
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

fn place_labels((server, zone): &PlaceKey) -> Labels {
    Labels::of(&[("server", server), ("zone", zone), ("view", "")])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_the_same_to_the_letter() {
        let metrics = Metrics::default();
        let (server, zone): (Arc<str>, Arc<str>) = ("dns://:53".into(), ".".into());
        for kind in ["success", "denial", "success"] {
            metrics.count_cache("coredns_cache_hits_total", &server, Some(kind));
        }
        metrics.served(&Served {
            server: &server,
            zone: &zone,
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
