//! Counters of the API server in Prometheus' text form.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use base::exposition::{Histogram, Kind, Labels, Metric, Page};
use base::sync::{Mutex, MutexGuard};
use model::reference::GroupResource;

use crate::attributes::Attributes;
use crate::process;

/// Upper bounds in seconds of `apiserver_request_duration_seconds`: upstream's, so that quantiles of both can be put
/// side by side.
const BUCKETS: [f64; 23] = [
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0, 20.0, 30.0,
    45.0, 60.0,
];
/// Upper bounds in bytes of `apiserver_response_sizes`.
const SIZES: [f64; 7] = [1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9];

const CERTIFICATE_LIFE: Metric = Metric {
    name: "apiserver_client_certificate_expiration_seconds",
    help: "[ALPHA] Distribution of the remaining lifetime on the certificate used to authenticate a request.",
};
const CERTIFICATE_LIFE_SECS: [f64; 15] = [
    0.0,
    1800.0,
    3600.0,
    7200.0,
    21600.0,
    43200.0,
    86400.0,
    172_800.0,
    345_600.0,
    604_800.0,
    2_592_000.0,
    7_776_000.0,
    15_552_000.0,
    31_104_000.0,
    62_208_000.0,
];

/// A request came with a client certificate that is good for so long.
pub fn certificate_seen(left_secs: f64) {
    base::metrics::observe_among(CERTIFICATE_LIFE, &[], left_secs, &CERTIFICATE_LIFE_SECS);
}

const STORED: Metric = Metric { name: "etcd_request_duration_seconds", help: "How long the store took, by operation." };
const STORED_TOTAL: Metric = Metric { name: "etcd_requests_total", help: "Requests to the store, by operation." };

/// The store answered.
pub fn stored(operation: &str, took: Duration) {
    let labels = [("operation", operation)];
    base::metrics::observe(STORED, &labels, took);
    base::metrics::count(STORED_TOTAL, &labels, 1);
}

/// Series under which a request is counted.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Series {
    /// As upstream labels it: `POST` for a create, `LIST` for a list.
    pub verb: &'static str,
    /// `All` where nothing was to be stored.
    pub dry_run: &'static str,
    /// Group.
    pub group: String,
    /// Version.
    pub version: String,
    /// Resource.
    pub resource: String,
    /// Subresource.
    pub subresource: String,
    /// `cluster`, `namespace`, `resource` or empty.
    pub scope: &'static str,
}

#[derive(Default)]
struct Numbers {
    requests: BTreeMap<(Series, u16), u64>,
    durations: BTreeMap<Series, Histogram>,
    sizes: BTreeMap<Series, Histogram>,
    watches: BTreeMap<Series, u64>,
}

/// The outcome of somebody's credentials, or of their question whether they may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Credentials that are good, or none.
    KnownUser,
    /// Credentials that are not.
    UnknownUser,
    /// They may.
    Allowed,
    /// They may not.
    Denied,
}

/// All counters.
#[derive(Default)]
pub struct Metrics {
    numbers: Mutex<Numbers>,
    reading: AtomicI64,
    mutating: AtomicI64,
    rejected: AtomicU64,
    verdicts: [AtomicU64; 4],
    panics: AtomicU64,
    /// Bytes sent in watch frames.
    pub watch_bytes: AtomicU64,
}

/// Counts one thing that goes on while it lives.
pub struct Gauge {
    metrics: Arc<Metrics>,
    which: fn(&Metrics) -> &AtomicI64,
}

impl Drop for Gauge {
    fn drop(&mut self) {
        (self.which)(&self.metrics).fetch_sub(1, Ordering::Relaxed);
    }
}

impl Metrics {
    fn gauge(self: &Arc<Self>, which: fn(&Metrics) -> &AtomicI64) -> Gauge {
        which(self).fetch_add(1, Ordering::Relaxed);
        Gauge { metrics: Arc::clone(self), which }
    }

    /// A short request is being answered; `None` when `limit` others of its kind are already (0: no limit).
    pub fn request(self: &Arc<Self>, mutating: bool, limit: usize) -> Option<Gauge> {
        let gauge = if mutating { self.gauge(|m| &m.mutating) } else { self.gauge(|m| &m.reading) };
        let now = (gauge.which)(self).load(Ordering::Relaxed);
        if limit > 0 && now > i64::try_from(limit).unwrap_or(i64::MAX) {
            self.rejected.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        Some(gauge)
    }

    /// A watch is open, as long as what is given back lives.
    pub fn watch(self: &Arc<Self>, series: Series) -> Watching {
        *self.numbers().watches.entry(series.clone()).or_default() += 1;
        Watching { metrics: Arc::clone(self), series }
    }

    /// Somebody was recognised, or asked whether they may.
    pub fn judged(&self, verdict: Verdict) {
        self.verdicts[verdict as usize].fetch_add(1, Ordering::Relaxed);
    }

    fn numbers(&self) -> MutexGuard<'_, Numbers> {
        self.numbers.lock()
    }

    /// A handler panicked.
    pub fn panicked(&self) {
        self.panics.fetch_add(1, Ordering::Relaxed);
    }

    /// A request was answered, with so many bytes where that is known.
    pub fn answered(&self, series: Series, code: u16, took: Duration, bytes: Option<u64>) {
        let mut numbers = self.numbers();
        if let Some(bytes) = bytes.filter(|_| matches!(series.verb, "GET" | "LIST")) {
            #[allow(clippy::cast_precision_loss, reason = "an answer has less than 2^53 bytes")]
            let bytes = bytes as f64;
            numbers.sizes.entry(series.clone()).or_insert_with(|| Histogram::new(&SIZES)).observe(bytes);
        }
        let durations = numbers.durations.entry(series.clone()).or_insert_with(|| Histogram::new(&BUCKETS));
        durations.observe(took.as_secs_f64());
        *numbers.requests.entry((series, code)).or_default() += 1;
    }

    /// Lets go of what was counted of a resource that nobody serves any more: definitions come and go, and each has
    /// dozens of series.
    pub fn forget(&self, of: GroupResource<'_>) {
        let mut numbers = self.numbers();
        let stays = |series: &Series| series.group != of.group || series.resource != of.resource;
        numbers.requests.retain(|(series, _), _| stays(series));
        numbers.durations.retain(|series, _| stays(series));
        numbers.sizes.retain(|series, _| stays(series));
    }

    /// The text for `/metrics`.
    pub fn render(&self, objects: &[(String, usize)]) -> String {
        let mut page = Page::default();
        self.render_requests(&mut page);
        let counters = [
            ("apiserver_dropped_requests_total", "Requests refused with 429.", &self.rejected),
            ("apiserver_panics_total", "Handlers that panicked.", &self.panics),
            ("apiserver_watch_events_bytes_total", "Bytes of watch events.", &self.watch_bytes),
        ];
        for (name, help, n) in counters {
            page.single(Kind::Counter, Metric { name, help }, n.load(Ordering::Relaxed));
        }
        process::render(&mut page);
        let inflight = Metric { name: "apiserver_current_inflight_requests", help: "Requests being answered." };
        let mut family = page.family(Kind::Gauge, inflight);
        for (kind, gauge) in [("mutating", &self.mutating), ("readOnly", &self.reading)] {
            family.sample(&[("request_kind", kind)], gauge.load(Ordering::Relaxed));
        }
        self.render_verdicts(&mut page);
        render_objects(&mut page, objects);
        let build = Metric { name: "kubernetes_build_info", help: "What runs here." };
        let version = [("git_version", crate::version::GIT_VERSION), ("major", "1"), ("minor", "36")];
        page.family(Kind::Gauge, build).sample(&version, 1);
        page.append(&base::metrics::render());
        page.into_text()
    }

    fn render_verdicts(&self, page: &mut Page) {
        let families = [
            ("authentication_attempts", [("success", Verdict::KnownUser), ("failure", Verdict::UnknownUser)]),
            ("authorization_attempts_total", [("allowed", Verdict::Allowed), ("denied", Verdict::Denied)]),
        ];
        for (name, results) in families {
            let mut family = page.family(Kind::Counter, Metric { name, help: "By result." });
            for (result, verdict) in results {
                family.sample(&[("result", result)], self.verdicts[verdict as usize].load(Ordering::Relaxed));
            }
        }
    }

    fn render_requests(&self, page: &mut Page) {
        let numbers = self.numbers();
        let total = Metric { name: "apiserver_request_total", help: "Requests by verb, resource and code." };
        let mut family = page.family(Kind::Counter, total);
        for ((series, code), count) in &numbers.requests {
            let first = Labels::of(&[("code", &code.to_string()), ("dry_run", series.dry_run)]);
            family.series(&series.labels_behind(&first), count);
        }
        let open = Metric { name: "apiserver_longrunning_requests", help: "Open watches." };
        let mut family = page.family(Kind::Gauge, open);
        for (series, n) in &numbers.watches {
            family.series(&series.labels(), n);
        }
        let sizes = Metric { name: "apiserver_response_sizes", help: "Bytes of an answer." };
        let mut family = page.family(Kind::Histogram, sizes);
        for (series, histogram) in &numbers.sizes {
            family.histogram(&series.labels(), histogram);
        }
        // The second is what service levels are measured by; no webhook's time is taken off it here.
        for (name, counts_watches) in
            [("apiserver_request_duration_seconds", true), ("apiserver_request_sli_duration_seconds", false)]
        {
            let mut family = page.family(Kind::Histogram, Metric { name, help: "Time to answer." });
            for (series, histogram) in numbers.durations.iter().filter(|(s, _)| counts_watches || s.verb != "WATCH") {
                family.histogram(&series.labels_behind(&Labels::of(&[("dry_run", series.dry_run)])), histogram);
            }
        }
    }
}

/// How many objects of each resource there are: as upstream named it first, and as it names it now.
fn render_objects(page: &mut Page, objects: &[(String, usize)]) {
    let help = "Objects in the watch cache.";
    let mut family = page.family(Kind::Gauge, Metric { name: "apiserver_storage_objects", help });
    for (resource, count) in objects {
        family.sample(&[("resource", resource)], count);
    }
    let mut family = page.family(Kind::Gauge, Metric { name: "apiserver_resource_objects", help });
    for (resource, count) in objects {
        let (resource, group) = resource.split_once('.').unwrap_or((resource.as_str(), ""));
        family.sample(&[("group", group), ("resource", resource)], count);
    }
}

/// One open watch.
pub struct Watching {
    metrics: Arc<Metrics>,
    series: Series,
}

impl Drop for Watching {
    fn drop(&mut self) {
        if let Some(n) = self.metrics.numbers().watches.get_mut(&self.series) {
            *n -= 1;
        }
    }
}

/// How upstream names a request's verb where it counts requests; `media_type` is that of the body.
pub fn verb_label(a: &Attributes, media_type: &str) -> &'static str {
    if matches!(a.subresource.as_str(), "exec" | "attach" | "portforward" | "proxy") {
        return "CONNECT";
    }
    match a.verb.as_str() {
        "get" => "GET",
        "list" => "LIST",
        "watch" => "WATCH",
        "create" | "post" => "POST",
        "update" | "put" => "PUT",
        "patch" if media_type.starts_with("application/apply-patch") => "APPLY",
        "patch" => "PATCH",
        "delete" => "DELETE",
        "deletecollection" => "DELETECOLLECTION",
        "head" => "HEAD",
        "proxy" => "CONNECT",
        _ => "other",
    }
}

impl Series {
    fn labels(&self) -> Labels {
        self.labels_behind(&Labels::default())
    }

    fn labels_behind(&self, first: &Labels) -> Labels {
        first.and(&[
            ("component", "apiserver"),
            ("group", &self.group),
            ("resource", &self.resource),
            ("scope", self.scope),
            ("subresource", &self.subresource),
            ("verb", self.verb),
            ("version", &self.version),
        ])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(verb: &'static str) -> Series {
        let of = |text: &str| text.to_owned();
        Series {
            verb,
            dry_run: "",
            group: String::new(),
            version: of("v1"),
            resource: of("pods"),
            subresource: String::new(),
            scope: "cluster",
        }
    }

    #[test]
    fn requests_are_counted_under_upstreams_names_and_labels() {
        let metrics = Arc::new(Metrics::default());
        metrics.answered(series("LIST"), 200, Duration::from_millis(30), Some(5_000));
        let watching = metrics.watch(series("WATCH"));
        let labels = r#"component="apiserver",group="",resource="pods",scope="cluster",subresource="","#;
        let text = metrics.render(&[("pods".to_owned(), 2), ("deployments.apps".to_owned(), 1)]);
        for line in [
            format!("apiserver_request_total{{code=\"200\",dry_run=\"\",{labels}verb=\"LIST\",version=\"v1\"}} 1"),
            format!(
                "apiserver_request_duration_seconds_bucket{{dry_run=\"\",{labels}verb=\"LIST\",\
                 version=\"v1\",le=\"0.05\"}} 1"
            ),
            format!("apiserver_response_sizes_bucket{{{labels}verb=\"LIST\",version=\"v1\",le=\"1000\"}} 0"),
            format!("apiserver_longrunning_requests{{{labels}verb=\"WATCH\",version=\"v1\"}} 1"),
            r#"apiserver_storage_objects{resource="deployments.apps"} 1"#.to_owned(),
            r#"apiserver_resource_objects{group="apps",resource="deployments"} 1"#.to_owned(),
        ] {
            assert!(text.contains(&line), "{line}\n{text}");
        }
        drop(watching);
        assert!(metrics.render(&[]).contains("verb=\"WATCH\",version=\"v1\"} 0"));
    }

    /// The page without `process_*`, which the machine decides, and without what other parts of the process count.
    #[test]
    fn the_page_is_the_same_to_the_letter() {
        let metrics = Arc::new(Metrics::default());
        metrics.answered(series("LIST"), 200, Duration::from_millis(30), Some(5_000));
        let scale = Series {
            dry_run: "All",
            group: "apps".to_owned(),
            resource: "deployments".to_owned(),
            subresource: "scale".to_owned(),
            scope: "resource",
            ..series("PATCH")
        };
        metrics.answered(scale, 409, Duration::from_secs(2), Some(9));
        let _open = (metrics.watch(series("WATCH")), metrics.request(true, 0));
        metrics.judged(Verdict::KnownUser);
        metrics.judged(Verdict::Denied);
        metrics.panicked();
        metrics.watch_bytes.fetch_add(7, Ordering::Relaxed);
        let text = metrics.render(&[("pods".to_owned(), 2), ("deployments.apps".to_owned(), 1)]);
        let version = format!("git_version=\"{}\",major=\"1\",minor=\"36\"}} 1\n", crate::version::GIT_VERSION);
        let (own, _of_others) = text.split_once(&version).unwrap();
        let own = format!("{own}git_version=\"VERSION\",major=\"1\",minor=\"36\"}} 1\n");
        let lines: Vec<&str> = own.lines().filter(|line| !line.contains("process_")).collect();
        assert_eq!(lines, include_str!("metrics_golden.txt").lines().collect::<Vec<_>>());
    }

    #[test]
    fn what_nobody_serves_any_more_is_forgotten() {
        let metrics = Metrics::default();
        let foos = Series { group: "x.org".to_owned(), resource: "foos".to_owned(), ..series("LIST") };
        for series in [foos, series("LIST")] {
            metrics.answered(series, 200, Duration::from_millis(30), Some(5_000));
        }
        metrics.forget(GroupResource { group: "x.org", resource: "foos" });
        let text = metrics.render(&[]);
        assert!(!text.contains("foos") && text.contains("pods"), "{text}");
    }

    #[test]
    fn verbs_are_named_as_dashboards_ask_for_them() {
        for (verb, subresource, media_type, label) in [
            ("get", "", "", "GET"),
            ("list", "", "", "LIST"),
            ("watch", "", "", "WATCH"),
            ("create", "", "", "POST"),
            ("update", "status", "", "PUT"),
            ("patch", "", "application/merge-patch+json", "PATCH"),
            ("patch", "", "application/apply-patch+yaml", "APPLY"),
            ("patch", "", "application/apply-patch+cbor", "APPLY"),
            ("create", "exec", "", "CONNECT"),
            ("get", "proxy", "", "CONNECT"),
            ("delete", "", "", "DELETE"),
            ("deletecollection", "", "", "DELETECOLLECTION"),
            ("head", "", "", "HEAD"),
            ("odd", "", "", "other"),
        ] {
            let a = Attributes { verb: verb.to_owned(), subresource: subresource.to_owned(), ..Attributes::default() };
            assert_eq!(verb_label(&a, media_type), label, "{verb} {subresource} {media_type}");
        }
    }
}
