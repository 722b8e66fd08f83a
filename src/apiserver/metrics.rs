//! Counters of the API server in Prometheus' text form.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Upper bounds in seconds of `apiserver_request_duration_seconds`.
const BUCKETS: [f64; 14] = [0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.5, 2.0, 5.0, 10.0, 30.0];

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

/// What a request is counted under.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Series {
    /// Upper-case verb, as upstream labels it.
    pub verb: String,
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
}

/// All counters.
#[derive(Default)]
pub struct Metrics {
    numbers: Mutex<Numbers>,
    reading: AtomicI64,
    mutating: AtomicI64,
    rejected: AtomicU64,
    watches: AtomicI64,
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

    /// A watch is open.
    pub fn watch(self: &Arc<Self>) -> Gauge {
        self.gauge(|m| &m.watches)
    }

    /// A handler panicked.
    pub fn panicked(&self) {
        self.panics.fetch_add(1, Ordering::Relaxed);
    }

    /// A request was answered.
    pub fn answered(&self, series: Series, code: u16, took: Duration) {
        let mut numbers = self.numbers.lock().unwrap_or_else(PoisonError::into_inner);
        let seconds = took.as_secs_f64();
        let durations = numbers.durations.entry(series.clone()).or_default();
        for (count, bound) in durations.counts.iter_mut().zip(BUCKETS) {
            *count += u64::from(seconds <= bound);
        }
        durations.total += 1;
        durations.sum += seconds;
        *numbers.requests.entry((series, code)).or_default() += 1;
    }

    /// The text for `/metrics`.
    pub fn render(&self, objects: &[(String, usize)]) -> String {
        let mut out = String::new();
        self.render_requests(&mut out);
        let mut one = |name: &str, kind: &str, help: &str, value: String| {
            // Writing to a String cannot fail.
            let _ok = write!(out, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}\n");
        };
        one("apiserver_dropped_requests_total", "counter", "Requests refused with 429.", self.rejected.load(Ordering::Relaxed).to_string());
        one("apiserver_longrunning_requests", "gauge", "Open watches.", self.watches.load(Ordering::Relaxed).to_string());
        one("apiserver_panics_total", "counter", "Handlers that panicked.", self.panics.load(Ordering::Relaxed).to_string());
        let bytes = self.watch_bytes.load(Ordering::Relaxed);
        one("apiserver_watch_events_bytes_total", "counter", "Bytes of watch events.", bytes.to_string());
        for (name, kind, help, value) in process() {
            one(name, kind, help, value);
        }
        out.push_str(
            "# HELP apiserver_current_inflight_requests Requests being answered.\n# TYPE apiserver_current_inflight_requests gauge\n",
        );
        for (kind, gauge) in [("mutating", &self.mutating), ("readOnly", &self.reading)] {
            let _ok = writeln!(out, "apiserver_current_inflight_requests{{request_kind=\"{kind}\"}} {}", gauge.load(Ordering::Relaxed));
        }
        out.push_str("# HELP apiserver_storage_objects Objects in the watch cache.\n# TYPE apiserver_storage_objects gauge\n");
        for (resource, count) in objects {
            let _ok = writeln!(out, "apiserver_storage_objects{{resource=\"{resource}\"}} {count}");
        }
        let version = crate::paths::GIT_VERSION;
        let _ok = writeln!(
            out,
            "# HELP kubernetes_build_info What runs here.\n# TYPE kubernetes_build_info gauge\nkubernetes_build_info{{git_version=\"{version}\",major=\"1\",minor=\"36\"}} 1"
        );
        out.push_str(&base::metrics::render());
        out
    }

    fn render_requests(&self, out: &mut String) {
        let numbers = self.numbers.lock().unwrap_or_else(PoisonError::into_inner);
        out.push_str("# HELP apiserver_request_total Requests by verb, resource and code.\n# TYPE apiserver_request_total counter\n");
        for ((series, code), count) in &numbers.requests {
            let _ok = writeln!(out, "apiserver_request_total{{code=\"{code}\",{}}} {count}", series.labels());
        }
        // The second is what service levels are measured by; no webhook's time is taken off it here.
        for name in ["apiserver_request_duration_seconds", "apiserver_request_sli_duration_seconds"] {
            durations(out, name, &numbers);
        }
    }
}

fn durations(out: &mut String, name: &str, numbers: &Numbers) {
    let _ok = writeln!(out, "# HELP {name} Time to answer.\n# TYPE {name} histogram");
    for (series, d) in numbers.durations.iter().filter(|(s, _)| !name.contains("sli") || s.verb != "WATCH") {
        let labels = series.labels();
        for (count, bound) in d.counts.iter().zip(BUCKETS) {
            let _ok = writeln!(out, "{name}_bucket{{{labels},le=\"{bound}\"}} {count}");
        }
        let _ok = writeln!(out, "{name}_bucket{{{labels},le=\"+Inf\"}} {}", d.total);
        let _ok = writeln!(out, "{name}_sum{{{labels}}} {}", d.sum);
        let _ok = writeln!(out, "{name}_count{{{labels}}} {}", d.total);
    }
}

impl Series {
    fn labels(&self) -> String {
        format!(
            "group=\"{}\",resource=\"{}\",scope=\"{}\",subresource=\"{}\",verb=\"{}\",version=\"{}\"",
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
    }
    if let Ok(fds) = std::fs::read_dir("/proc/self/fd") {
        out.push(("process_open_fds", "gauge", "Open files.", fds.count().to_string()));
    }
    out
}
