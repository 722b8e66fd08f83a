//! Where pods come from: the API server (those bound to this node) and the folder of manifests.

pub(crate) mod manifests;

pub(crate) mod mirror;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use base::backoff::Backoff;
use base::chain::Chain;
use base::task::Group;
use futures_util::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::runtime::watcher::{self, Event};
use tokio::sync::mpsc;
use tracing::warn;

use crate::node::Node;

const SOURCE: &str = "kubernetes.io/config.source";
const MIRROR: &str = "kubernetes.io/config.mirror";
const HASH: &str = "kubernetes.io/config.hash";

/// What a source says.
pub(crate) enum Change {
    /// A pod that should run here, new or changed.
    Set(Arc<Pod>),
    /// By uid: its object or file is gone.
    Gone(String),
    /// The API's picture of a static pod.
    Mirror(Arc<Pod>),
    /// That picture was deleted.
    MirrorGone(Arc<Pod>),
    /// All that existed at the start was told.
    Synced,
}

/// Whether a pod comes from a file.
pub(crate) fn is_static(pod: &Pod) -> bool {
    annotation(pod, SOURCE).is_some_and(|source| source != "api") && annotation(pod, MIRROR).is_none()
}

pub(crate) fn annotation<'a>(pod: &'a Pod, name: &str) -> Option<&'a str> {
    pod.metadata.annotations.as_ref()?.get(name).map(String::as_str)
}

/// Starts both sources. Files come first: `Synced` follows when the API has spoken too.
pub(crate) fn start(node: &Arc<Node>, tx: mpsc::Sender<Change>, group: &Group) {
    manifests::start(node, tx.clone(), group);
    let node = Arc::clone(node);
    group.spawn("api-pods", async move {
        let api: Api<Pod> = Api::all(node.client.clone());
        let config = watcher::Config::default().fields(&format!("spec.nodeName={}", node.config.node_name));
        let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(5));
        let mut seen = Seen { known: HashMap::new(), listed: HashSet::new(), synced: false };
        // The stream never ends by itself; after an error it lists again when polled, so the pause is ours.
        let mut stream = watcher::watcher(api, config).boxed();
        loop {
            match stream.try_next().await {
                Ok(Some(event)) => {
                    backoff.reset();
                    for change in seen.read(event) {
                        if tx.send(change).await.is_err() {
                            return;
                        }
                    }
                }
                Ok(None) => return,
                Err(err) => {
                    warn!(err = %Chain(&err), "cannot watch this node's pods");
                    tokio::time::sleep(backoff.next(&node.rng)).await;
                }
            }
        }
    });
}

/// What the watch has told so far, to find what vanished while it was broken.
struct Seen {
    known: HashMap<String, Arc<Pod>>,
    listed: HashSet<String>,
    synced: bool,
}

impl Seen {
    fn read(&mut self, event: Event<Pod>) -> Vec<Change> {
        match event {
            Event::Apply(pod) => vec![self.set(pod)],
            Event::Delete(pod) => self.gone(&pod.metadata.uid.clone().unwrap_or_default()).into_iter().collect(),
            Event::Init => {
                self.listed.clear();
                Vec::new()
            }
            Event::InitApply(pod) => {
                self.listed.insert(pod.metadata.uid.clone().unwrap_or_default());
                vec![self.set(pod)]
            }
            Event::InitDone => {
                let lost: Vec<String> = self.known.keys().filter(|uid| !self.listed.contains(*uid)).cloned().collect();
                let mut changes: Vec<Change> = lost.iter().filter_map(|uid| self.gone(uid)).collect();
                if !std::mem::replace(&mut self.synced, true) {
                    changes.push(Change::Synced);
                }
                changes
            }
        }
    }

    fn set(&mut self, mut pod: Pod) -> Change {
        // Nobody here reads them, and they are most of an object's size.
        pod.metadata.managed_fields = None;
        let pod = Arc::new(pod);
        self.known.insert(pod.metadata.uid.clone().unwrap_or_default(), Arc::clone(&pod));
        if annotation(&pod, MIRROR).is_some() { Change::Mirror(pod) } else { Change::Set(pod) }
    }

    fn gone(&mut self, uid: &str) -> Option<Change> {
        let pod = self.known.remove(uid)?;
        Some(if annotation(&pod, MIRROR).is_some() { Change::MirrorGone(pod) } else { Change::Gone(uid.to_owned()) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(uid: &str) -> Pod {
        serde_json::from_value(serde_json::json!({"metadata": {"name": uid, "uid": uid}})).unwrap()
    }

    #[test]
    fn a_pod_that_vanished_while_the_watch_was_broken_is_gone() {
        let mut seen = Seen { known: HashMap::new(), listed: HashSet::new(), synced: false };
        seen.read(Event::Init);
        seen.read(Event::InitApply(pod("a")));
        assert!(matches!(seen.read(Event::InitDone).as_slice(), [Change::Synced]));
        seen.read(Event::Init);
        assert!(matches!(seen.read(Event::InitDone).as_slice(), [Change::Gone(uid)] if uid == "a"));
    }
}
