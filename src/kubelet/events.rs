//! Events about pods and the node, as upstream's recorder writes them: repeated ones are counted, floods are dropped.

use std::collections::HashMap;
use std::time::Duration;

use base::chain::Chain;
use base::task::Group;
use base::time::Clock;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Api;
use kube::api::{ObjectMeta, Patch, PatchParams, PostParams};
use tokio::sync::mpsc;
use tracing::debug;

/// Events that wait to be written; more are dropped, as upstream's broadcaster does.
const BACKLOG_EVENTS: usize = 1000;
/// Remembered events; all are forgotten when there are more, and counts begin anew.
const REMEMBERED_MAX: usize = 4096;
/// An event that was last seen longer ago is a new one, as upstream's aggregation interval.
const COUNTED_FOR_SECS: i64 = 600;
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Normal,
    Warning,
}

struct Note {
    about: ObjectReference,
    kind: Kind,
    reason: &'static str,
    message: String,
    at: Timestamp,
}

/// Takes events without ever waiting.
#[derive(Clone)]
pub(crate) struct Recorder {
    tx: mpsc::Sender<Note>,
    clock: Clock,
}

impl Recorder {
    /// Starts the writer.
    pub(crate) fn start(client: kube::Client, clock: Clock, node: &str, group: &Group) -> Recorder {
        let (tx, rx) = mpsc::channel(BACKLOG_EVENTS);
        group.spawn("events", write_all(client, node.to_owned(), rx));
        Recorder { tx, clock }
    }

    /// About a pod, or with `field` (`spec.containers{c}`) about one of its containers.
    pub(crate) fn pod(&self, pod: &Pod, field: Option<String>, kind: Kind, reason: &'static str, message: impl Into<String>) {
        let about = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            name: pod.metadata.name.clone(),
            namespace: pod.metadata.namespace.clone(),
            uid: pod.metadata.uid.clone(),
            resource_version: pod.metadata.resource_version.clone(),
            field_path: field,
        };
        self.send(about, kind, reason, message.into());
    }

    /// About the node; upstream puts the node's name where the uid belongs.
    pub(crate) fn node(&self, name: &str, kind: Kind, reason: &'static str, message: impl Into<String>) {
        let about = ObjectReference {
            kind: Some("Node".to_owned()),
            name: Some(name.to_owned()),
            uid: Some(name.to_owned()),
            ..Default::default()
        };
        self.send(about, kind, reason, message.into());
    }

    fn send(&self, about: ObjectReference, kind: Kind, reason: &'static str, message: String) {
        let note = Note { about, kind, reason, message, at: self.clock.now() };
        if self.tx.try_send(note).is_err() {
            debug!(reason, "event dropped, too many wait");
        }
    }
}

type Key = (Option<String>, Option<String>, &'static str, String);

async fn write_all(client: kube::Client, node: String, mut rx: mpsc::Receiver<Note>) {
    let mut known: HashMap<Key, (String, i32, Timestamp)> = HashMap::new();
    // The sender lives in the node's context as long as this task's group.
    while let Some(note) = rx.recv().await {
        if known.len() > REMEMBERED_MAX {
            known.clear();
        }
        let ns = note.about.namespace.clone().unwrap_or_else(|| "default".to_owned());
        let api: Api<Event> = Api::namespaced(client.clone(), &ns);
        let key = (note.about.uid.clone(), note.about.field_path.clone(), note.reason, note.message.clone());
        let recent = known.get(&key).filter(|(.., last)| note.at.duration_since(*last).as_secs() < COUNTED_FOR_SECS).cloned();
        let written = match recent {
            Some((name, count, _)) => {
                let change = serde_json::json!({"count": count + 1, "lastTimestamp": base::time::rfc3339_secs(note.at)});
                let patched = within(api.patch(&name, &PatchParams::default(), &Patch::Merge(change))).await;
                patched.map(|_| (name, count + 1))
            }
            None => create(&api, &node, &note).await.map(|name| (name, 1)),
        };
        match written {
            Ok((name, count)) => drop(known.insert(key, (name, count, note.at))),
            Err(err) => {
                // It may be gone after its hour; the next one is new.
                known.remove(&key);
                debug!(reason = note.reason, err, "event not written");
            }
        }
    }
    std::future::pending::<()>().await;
}

async fn within<T>(call: impl Future<Output = Result<T, kube::Error>>) -> Result<T, String> {
    match tokio::time::timeout(WRITE_TIMEOUT, call).await {
        Ok(answer) => answer.map_err(|err| Chain(&err).to_string()),
        Err(_) => Err("timed out".to_owned()),
    }
}

async fn create(api: &Api<Event>, node: &str, note: &Note) -> Result<String, String> {
    // Upstream's names: the object's, and the nanoseconds in hex.
    let name = format!("{}.{:x}", note.about.name.clone().unwrap_or_default(), note.at.as_nanosecond());
    let time = Time(whole_secs(note.at));
    let event = Event {
        metadata: ObjectMeta {
            name: Some(name.clone()),
            namespace: Some(note.about.namespace.clone().unwrap_or_else(|| "default".to_owned())),
            ..Default::default()
        },
        involved_object: note.about.clone(),
        reason: Some(note.reason.to_owned()),
        message: Some(note.message.clone()),
        type_: Some(if note.kind == Kind::Normal { "Normal" } else { "Warning" }.to_owned()),
        source: Some(EventSource { component: Some("kubelet".to_owned()), host: Some(node.to_owned()) }),
        reporting_component: Some("kubelet".to_owned()),
        reporting_instance: Some(node.to_owned()),
        first_timestamp: Some(time.clone()),
        last_timestamp: Some(time),
        count: Some(1),
        ..Default::default()
    };
    within(api.create(&PostParams::default(), &event)).await.map(|_| name)
}

/// Kubernetes' `Time` has whole seconds.
pub(crate) fn whole_secs(at: Timestamp) -> Timestamp {
    Timestamp::from_second(at.as_second()).unwrap_or(at)
}
