//! Events: what a component tells the user about an object. The same event again raises a count instead of making a new
//! object.

use std::collections::BTreeMap;
use std::time::Duration;

use base::chain::Chain;
use base::rng::Rng;
use base::task::Group;
use base::time::Clock;
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::{Resource, ResourceExt as _};
use serde_json::json;
use tokio::sync::mpsc;
use tracing::{debug, warn};

/// Events that wait to be written; more are dropped, because an event is never worth stopping for.
const BACKLOG: usize = 256;
/// Different events that are remembered so that a repetition raises their count.
const REMEMBERED: usize = 4096;
/// A repetition within this time raises the count; later it is a new event.
const REPEAT_WINDOW: Duration = Duration::from_secs(600);

/// Events about one object: so many at once, and then one in so many seconds; what is more is dropped. As upstream's
/// `EventSourceObjectSpamFilter` (client-go/tools/record/events_cache.go v1.36).
const BURST: f64 = 25.0;
const REFILL_SECS: f64 = 300.0;
/// Objects of which that is counted.
const COUNTED: usize = 4096;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// As planned.
    Normal,
    /// A user may have to act.
    Warning,
}

impl Severity {
    fn as_str(self) -> &'static str {
        match self {
            Severity::Normal => "Normal",
            Severity::Warning => "Warning",
        }
    }
}

struct Report {
    about: ObjectReference,
    severity: Severity,
    reason: String,
    message: String,
}

/// Records events as one component. Clones share the queue.
#[derive(Clone)]
pub struct Recorder {
    queue: mpsc::Sender<Report>,
}

impl Recorder {
    /// `component` is `default-scheduler`, `kubelet`, …; `host` the node's name or empty.
    pub fn new(client: kube::Client, component: &str, host: &str, group: &Group) -> Recorder {
        let (queue, reports) = mpsc::channel(BACKLOG);
        let source = EventSource {
            component: Some(component.to_owned()),
            host: Some(host.to_owned()).filter(|h| !h.is_empty()),
        };
        let writer = Writer {
            client,
            source,
            known: BTreeMap::new(),
            budget: Budget::default(),
            clock: group.clock().clone(),
            rng: group.rng().clone(),
        };
        group.spawn(&format!("events-{component}"), writer.run(reports));
        Recorder { queue }
    }

    /// Reports about an object of the API.
    pub fn report<K: Resource<DynamicType = ()>>(
        &self,
        object: &K,
        severity: Severity,
        reason: &str,
        message: impl Into<String>,
    ) {
        self.report_ref(object.object_ref(&()), severity, reason, message);
    }

    /// Reports about whatever the reference names; its `fieldPath` may point to a container.
    pub fn report_ref(&self, about: ObjectReference, severity: Severity, reason: &str, message: impl Into<String>) {
        let report = Report { about, severity, reason: reason.to_owned(), message: message.into() };
        if self.queue.try_send(report).is_err() {
            debug!(reason, "event dropped: too many wait");
        }
    }
}

struct Known {
    name: String,
    count: i32,
    last: jiff::Timestamp,
}

/// Whether the API refused new content in a namespace that is being deleted: nothing to worry about.
pub fn is_namespace_ending(err: &kube::Error) -> bool {
    let kube::Error::Api(status) = err else { return false };
    let causes = status.details.as_ref().map(|details| details.causes.as_slice()).unwrap_or_default();
    status.code == 403 && causes.iter().any(|cause| cause.reason == "NamespaceTerminating")
}

/// How many events each object has left.
#[derive(Default)]
struct Budget(BTreeMap<String, (f64, jiff::Timestamp)>);

impl Budget {
    /// Whether one more event about an object is written.
    fn takes(&mut self, about: &ObjectReference, now: jiff::Timestamp) -> bool {
        let part = |text: &Option<String>| text.clone().unwrap_or_default();
        let key = [&about.kind, &about.namespace, &about.name, &about.uid].map(part).join("\0");
        if self.0.len() >= COUNTED && !self.0.contains_key(&key) {
            // Those whose budget is whole again tell nothing; if none is, the one that is nearest to it makes room.
            self.0.retain(|_, (left, at)| refilled(*left, *at, now) < BURST);
            let fullest =
                self.0.iter().max_by(|a, b| refilled(a.1.0, a.1.1, now).total_cmp(&refilled(b.1.0, b.1.1, now)));
            if let Some(name) = fullest.map(|(name, _)| name.clone()).filter(|_| self.0.len() >= COUNTED) {
                self.0.remove(&name);
            }
        }
        let (left, at) = self.0.get(&key).copied().unwrap_or((BURST, now));
        let left = refilled(left, at, now);
        let takes = left >= 1.0;
        self.0.insert(key, (if takes { left - 1.0 } else { left }, now));
        takes
    }
}

fn refilled(left: f64, at: jiff::Timestamp, now: jiff::Timestamp) -> f64 {
    (left + now.duration_since(at).as_secs_f64().max(0.0) / REFILL_SECS).min(BURST)
}

struct Writer {
    client: kube::Client,
    source: EventSource,
    known: BTreeMap<String, Known>,
    budget: Budget,
    clock: Clock,
    rng: Rng,
}

impl Writer {
    async fn run(mut self, mut reports: mpsc::Receiver<Report>) {
        while let Some(report) = reports.recv().await {
            if !self.budget.takes(&report.about, self.clock.now()) {
                debug!(reason = report.reason, "event dropped: too many about one object");
                continue;
            }
            match self.write(report).await {
                Ok(()) => {}
                Err(err) if is_namespace_ending(&err) => {}
                // What admission's EventRateLimit is there for; upstream's recorder gives such events up, too.
                Err(kube::Error::Api(status)) if status.code == 429 => {
                    debug!(why = %status.message, "event dropped: the API takes no more")
                }
                Err(err) => warn!(err = %Chain(&err), "cannot write an event"),
            }
        }
        // All recorders are gone: the component has ended.
        std::future::pending::<()>().await;
    }

    async fn write(&mut self, report: Report) -> Result<(), kube::Error> {
        let namespace = report.about.namespace.clone().unwrap_or_else(|| "default".to_owned());
        let api: Api<Event> = Api::namespaced(self.client.clone(), &namespace);
        let now = self.clock.now();
        let key = self.key(&report, &namespace);
        if let Some(known) =
            self.known.get_mut(&key).filter(|k| now.duration_since(k.last).unsigned_abs() < REPEAT_WINDOW)
        {
            known.count = known.count.saturating_add(1);
            known.last = now;
            let patch = json!({"count": known.count, "lastTimestamp": base::time::rfc3339_secs(now)});
            match api.patch(&known.name, &PatchParams::default(), &Patch::Merge(&patch)).await {
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                other => return other.map(drop),
            }
        }
        let event = self.event(report, &namespace, now);
        let name = event.name_any();
        api.create(&PostParams::default(), &event).await?;
        if self.known.len() >= REMEMBERED {
            self.known.retain(|_, known| now.duration_since(known.last).unsigned_abs() < REPEAT_WINDOW);
        }
        if self.known.len() < REMEMBERED {
            self.known.insert(key, Known { name, count: 1, last: now });
        }
        Ok(())
    }

    fn key(&self, report: &Report, namespace: &str) -> String {
        let about = &report.about;
        let part = |text: &Option<String>| text.clone().unwrap_or_default();
        [
            namespace,
            &part(&about.kind),
            &part(&about.name),
            &part(&about.uid),
            &part(&about.field_path),
            &report.reason,
            &report.message,
        ]
        .join("\0")
    }

    fn event(&self, report: Report, namespace: &str, now: jiff::Timestamp) -> Event {
        let mut event = Event {
            involved_object: report.about,
            type_: Some(report.severity.as_str().to_owned()),
            reason: Some(report.reason),
            message: Some(report.message),
            source: Some(self.source.clone()),
            reporting_component: self.source.component.clone(),
            reporting_instance: Some(self.source.host.clone().unwrap_or_default()),
            first_timestamp: Some(Time(now)),
            last_timestamp: Some(Time(now)),
            count: Some(1),
            ..Event::default()
        };
        // Upstream's names: the object's name and the time in hexadecimal nanoseconds.
        let unique = now.as_nanosecond().unsigned_abs() as u64 ^ self.rng.below(1 << 12);
        event.metadata.name = Some(format!("{}.{unique:x}", event.involved_object.name.clone().unwrap_or_default()));
        event.metadata.namespace = Some(namespace.to_owned());
        event
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // review node.md E2
    #[test]
    fn one_object_cannot_fill_the_disk_with_events() {
        let at = |secs: i64| jiff::Timestamp::from_second(secs).unwrap();
        let about = |name: &str| ObjectReference { name: Some(name.to_owned()), ..Default::default() };
        let mut budget = Budget::default();
        let taken = (0..100).filter(|_| budget.takes(&about("a"), at(0))).count();
        assert_eq!(taken, 25);
        assert!(budget.takes(&about("b"), at(0)), "others have their own");
        assert!(!budget.takes(&about("a"), at(299)));
        assert!(budget.takes(&about("a"), at(301)));
        for n in 0..2 * COUNTED {
            budget.takes(&about(&n.to_string()), at(302));
        }
        assert!(budget.0.len() <= COUNTED);
        assert!(!budget.takes(&about("a"), at(302)), "nor do many others make it forgotten");
    }
}
