//! Events about pods and their node: the client room's recorder with the kubelet's way to name what an event is about.

use std::sync::Arc;

use base::task::Group;
use client::events::{Recorder as Events, Severity};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ObjectReference, Pod};
use tracing::debug;

use crate::pace::Pace;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Normal,
    Warning,
}

/// Takes events without ever waiting.
#[derive(Clone)]
pub(crate) struct Recorder {
    events: Events,
    pace: Arc<Pace>,
}

impl Recorder {
    /// Starts the writer. Events beyond the pace are dropped, as upstream.
    pub(crate) fn start(client: kube::Client, node: &str, pace: Pace, group: &Group) -> Recorder {
        Recorder { events: Events::new(client, "kubelet", node, group), pace: Arc::new(pace) }
    }

    /// About a pod, or with `field` (`spec.containers{c}`) about one of its containers.
    pub(crate) fn pod(&self, pod: &Pod, field: Option<String>, kind: Kind, reason: &str, message: impl Into<String>) {
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
    pub(crate) fn node(&self, name: &str, kind: Kind, reason: &str, message: impl Into<String>) {
        let about = ObjectReference {
            kind: Some("Node".to_owned()),
            name: Some(name.to_owned()),
            uid: Some(name.to_owned()),
            ..Default::default()
        };
        self.send(about, kind, reason, message.into());
    }

    fn send(&self, about: ObjectReference, kind: Kind, reason: &str, message: String) {
        if self.pace.take().is_err() {
            debug!(reason, "event dropped: eventRecordQPS allows no more now");
            return;
        }
        let severity = if kind == Kind::Normal { Severity::Normal } else { Severity::Warning };
        self.events.report_ref(about, severity, reason, message);
    }
}

/// Kubernetes' `Time` has whole seconds.
pub(crate) fn whole_secs(at: Timestamp) -> Timestamp {
    Timestamp::from_second(at.as_second()).unwrap_or(at)
}
