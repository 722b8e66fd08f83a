//! Counters of the API server in Prometheus' text form.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use base::sync::{Mutex, MutexGuard};

/// Upper bounds in seconds of `apiserver_request_duration_seconds`: upstream's, so that quantiles of both can be put
/// side by side.
const BUCKETS: [f64; 23] = [
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0, 20.0, 30.0,
    45.0, 60.0,
];
/// Upper bounds in bytes of `apiserver_response_sizes`.
const SIZES: [u32; 7] = [1_000, 10_000, 100_000, 1_000_000, 10_000_000, 100_000_000, 1_000_000_000];

const CERTIFICATE_LIFE: base::metrics::Metric = base::metrics::Metric {
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

const STORED: base::metrics::Metric =
    base::metrics::Metric { name: "etcd_request_duration_seconds", help: "How long the store took, by operation." };
const STORED_TOTAL: base::metrics::Metric =
    base::metrics::Metric { name: "etcd_requests_total", help: "Requests to the store, by operation." };

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
struct Durations {
    counts: [u64; BUCKETS.len()],
    total: u64,
    sum: f64,
}

#[derive(Default)]
struct Numbers {
    requests: BTreeMap<(Series, u16), u64>,
    durations: BTreeMap<Series, Durations>,
    sizes: BTreeMap<Series, Sizes>,
    watches: BTreeMap<Series, u64>,
}

#[derive(Default)]
struct Sizes {
    counts: [u64; SIZES.len()],
    total: u64,
    sum: u64,
}

/// What somebody's credentials, or their question whether they may, came to.
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
            let sizes = numbers.sizes.entry(series.clone()).or_default();
            for (count, bound) in sizes.counts.iter_mut().zip(SIZES) {
                *count += u64::from(bytes <= u64::from(bound));
            }
            sizes.total += 1;
            sizes.sum += bytes;
        }
        let seconds = took.as_secs_f64();
        let durations = numbers.durations.entry(series.clone()).or_default();
        for (count, bound) in durations.counts.iter_mut().zip(BUCKETS) {
            *count += u64::from(seconds <= bound);
        }
        durations.total += 1;
        durations.sum += seconds;
        *numbers.requests.entry((series, code)).or_default() += 1;
    }

    /// Lets go of what was counted of a resource that nobody serves any more: definitions come and go, and each has
    /// dozens of series.
    pub fn forget(&self, group: &str, resource: &str) {
        let mut numbers = self.numbers();
        let stays = |series: &Series| series.group != group || series.resource != resource;
        numbers.requests.retain(|(series, _), _| stays(series));
        numbers.durations.retain(|series, _| stays(series));
        numbers.sizes.retain(|series, _| stays(series));
    }

    /// The text for `/metrics`.
    pub fn render(&self, objects: &[(String, usize)]) -> String {
        let mut out = String::new();
        self.render_requests(&mut out);
        let mut one = |name: &str, kind: &str, help: &str, value: String| {
            // Writing to a String cannot fail.
            let _ok = write!(out, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}\n");
        };
        one(
            "apiserver_dropped_requests_total",
            "counter",
            "Requests refused with 429.",
            self.rejected.load(Ordering::Relaxed).to_string(),
        );
        one(
            "apiserver_panics_total",
            "counter",
            "Handlers that panicked.",
            self.panics.load(Ordering::Relaxed).to_string(),
        );
        let bytes = self.watch_bytes.load(Ordering::Relaxed);
        one("apiserver_watch_events_bytes_total", "counter", "Bytes of watch events.", bytes.to_string());
        for (name, kind, help, value) in process() {
            one(name, kind, help, value);
        }
        out.push_str(
            "# HELP apiserver_current_inflight_requests Requests being answered.\n# TYPE apiserver_current_inflight_requests gauge\n",
        );
        for (kind, gauge) in [("mutating", &self.mutating), ("readOnly", &self.reading)] {
            let _ok = writeln!(
                out,
                "apiserver_current_inflight_requests{{request_kind=\"{kind}\"}} {}",
                gauge.load(Ordering::Relaxed)
            );
        }
        self.render_verdicts(&mut out);
        out.push_str(
            "# HELP apiserver_storage_objects Objects in the watch cache.\n# TYPE apiserver_storage_objects gauge\n",
        );
        for (resource, count) in objects {
            let _ok = writeln!(out, "apiserver_storage_objects{{resource=\"{resource}\"}} {count}");
        }
        out.push_str(
            "# HELP apiserver_resource_objects Objects in the watch cache.\n# TYPE apiserver_resource_objects gauge\n",
        );
        for (resource, count) in objects {
            let (resource, group) = resource.split_once('.').unwrap_or((resource.as_str(), ""));
            let _ok = writeln!(out, "apiserver_resource_objects{{group=\"{group}\",resource=\"{resource}\"}} {count}");
        }
        let version = crate::version::GIT_VERSION;
        let _ok = writeln!(
            out,
            "# HELP kubernetes_build_info What runs here.\n# TYPE kubernetes_build_info gauge\nkubernetes_build_info{{git_version=\"{version}\",major=\"1\",minor=\"36\"}} 1"
        );
        out.push_str(&base::metrics::render());
        out
    }

    fn render_verdicts(&self, out: &mut String) {
        let n = |verdict: Verdict| self.verdicts[verdict as usize].load(Ordering::Relaxed);
        let families = [
            ("authentication_attempts", [("success", Verdict::KnownUser), ("failure", Verdict::UnknownUser)]),
            ("authorization_attempts_total", [("allowed", Verdict::Allowed), ("denied", Verdict::Denied)]),
        ];
        for (name, results) in families {
            let _ok = writeln!(out, "# HELP {name} By result.\n# TYPE {name} counter");
            for (result, verdict) in results {
                let _ok = writeln!(out, "{name}{{result=\"{result}\"}} {}", n(verdict));
            }
        }
    }

    fn render_requests(&self, out: &mut String) {
        let numbers = self.numbers();
        out.push_str("# HELP apiserver_request_total Requests by verb, resource and code.\n# TYPE apiserver_request_total counter\n");
        for ((series, code), count) in &numbers.requests {
            let labels = series.labels();
            let _ok = writeln!(
                out,
                "apiserver_request_total{{code=\"{code}\",dry_run=\"{}\",{labels}}} {count}",
                series.dry_run
            );
        }
        out.push_str(
            "# HELP apiserver_longrunning_requests Open watches.\n# TYPE apiserver_longrunning_requests gauge\n",
        );
        for (series, n) in &numbers.watches {
            let _ok = writeln!(out, "apiserver_longrunning_requests{{{}}} {n}", series.labels());
        }
        sizes(out, &numbers);
        // The second is what service levels are measured by; no webhook's time is taken off it here.
        for name in ["apiserver_request_duration_seconds", "apiserver_request_sli_duration_seconds"] {
            durations(out, name, &numbers);
        }
    }
}

fn durations(out: &mut String, name: &str, numbers: &Numbers) {
    let _ok = writeln!(out, "# HELP {name} Time to answer.\n# TYPE {name} histogram");
    for (series, d) in numbers.durations.iter().filter(|(s, _)| !name.contains("sli") || s.verb != "WATCH") {
        let labels = format!("dry_run=\"{}\",{}", series.dry_run, series.labels());
        for (count, bound) in d.counts.iter().zip(BUCKETS) {
            let _ok = writeln!(out, "{name}_bucket{{{labels},le=\"{bound}\"}} {count}");
        }
        let _ok = writeln!(out, "{name}_bucket{{{labels},le=\"+Inf\"}} {}", d.total);
        let _ok = writeln!(out, "{name}_sum{{{labels}}} {}", d.sum);
        let _ok = writeln!(out, "{name}_count{{{labels}}} {}", d.total);
    }
}

fn sizes(out: &mut String, numbers: &Numbers) {
    let name = "apiserver_response_sizes";
    let _ok = writeln!(out, "# HELP {name} Bytes of an answer.\n# TYPE {name} histogram");
    for (series, sizes) in &numbers.sizes {
        let labels = series.labels();
        for (count, bound) in sizes.counts.iter().zip(SIZES) {
            let _ok = writeln!(out, "{name}_bucket{{{labels},le=\"{bound}\"}} {count}");
        }
        let _ok = writeln!(out, "{name}_bucket{{{labels},le=\"+Inf\"}} {}", sizes.total);
        let _ok = writeln!(out, "{name}_sum{{{labels}}} {}\n{name}_count{{{labels}}} {}", sizes.sum, sizes.total);
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

/// How upstream names a verb of ours where it counts requests.
pub fn verb_label(verb: &str, subresource: &str, applies: bool) -> &'static str {
    if matches!(subresource, "exec" | "attach" | "portforward" | "proxy") {
        return "CONNECT";
    }
    match verb {
        "get" => "GET",
        "list" => "LIST",
        "watch" => "WATCH",
        "create" | "post" => "POST",
        "update" | "put" => "PUT",
        "patch" if applies => "APPLY",
        "patch" => "PATCH",
        "delete" => "DELETE",
        "deletecollection" => "DELETECOLLECTION",
        "head" => "HEAD",
        "proxy" => "CONNECT",
        _ => "other",
    }
}

impl Series {
    fn labels(&self) -> String {
        format!(
            "component=\"apiserver\",group=\"{}\",resource=\"{}\",scope=\"{}\",subresource=\"{}\",verb=\"{}\",version=\"{}\"",
            self.group, self.resource, self.scope, self.subresource, self.verb, self.version
        )
    }
}

/// `process_*`, from /proc; what cannot be read is left out.
fn process() -> Vec<(&'static str, &'static str, &'static str, String)> {
    let mut out = Vec::new();
    if let Ok(statm) = std::fs::read_to_string("/proc/self/statm") {
        let pages: Vec<u64> = statm.split_whitespace().filter_map(|n| n.parse().ok()).collect();
        if let [virt, resident, ..] = pages.as_slice() {
            out.push(("process_virtual_memory_bytes", "gauge", "Virtual memory.", (virt * 4096).to_string()));
            out.push(("process_resident_memory_bytes", "gauge", "Resident memory.", (resident * 4096).to_string()));
        }
    }
    if let Ok(stat) = std::fs::read_to_string("/proc/self/stat") {
        // Fields after the name in parentheses: user time is the 12th, system time the 13th, in hundredths of a second.
        let rest = stat.rsplit_once(')').map(|(_, rest)| rest).unwrap_or_default();
        let numbers: Vec<f64> = rest.split_whitespace().map(|n| n.parse().unwrap_or(0.0)).collect();
        if let (Some(user), Some(system)) = (numbers.get(11), numbers.get(12)) {
            out.push(("process_cpu_seconds_total", "counter", "CPU time.", format!("{}", (user + system) / 100.0)));
        }
        // The 20th: when it started, in hundredths of a second after the machine did.
        let machine = std::fs::read_to_string("/proc/stat").unwrap_or_default();
        let boot = machine
            .lines()
            .find_map(|line| line.strip_prefix("btime "))
            .and_then(|secs| secs.trim().parse::<f64>().ok());
        if let (Some(boot), Some(after)) = (boot, numbers.get(19)) {
            out.push(("process_start_time_seconds", "gauge", "When it started.", format!("{}", boot + after / 100.0)));
        }
    }
    if let Ok(fds) = std::fs::read_dir("/proc/self/fd") {
        out.push(("process_open_fds", "gauge", "Open files.", fds.count().to_string()));
    }
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    if let Some(most) = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max open files")?.split_whitespace().next().map(str::to_owned))
    {
        out.push(("process_max_fds", "gauge", "Files that may be open.", most));
    }
    out
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
                "apiserver_request_duration_seconds_bucket{{dry_run=\"\",{labels}verb=\"LIST\",version=\"v1\",le=\"0.05\"}} 1"
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
        metrics.forget("x.org", "foos");
        let text = metrics.render(&[]);
        assert!(!text.contains("foos") && text.contains("pods"), "{text}");
    }

    #[test]
    fn verbs_are_named_as_dashboards_ask_for_them() {
        let named = [
            ("create", ""),
            ("update", "status"),
            ("patch", ""),
            ("create", "exec"),
            ("deletecollection", ""),
            ("odd", ""),
        ];
        let labels = named.map(|(verb, subresource)| verb_label(verb, subresource, false));
        assert_eq!(labels, ["POST", "PUT", "PATCH", "CONNECT", "DELETECOLLECTION", "other"]);
        assert_eq!(verb_label("patch", "", true), "APPLY");
    }
}
