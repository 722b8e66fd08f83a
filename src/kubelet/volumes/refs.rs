//! Watches on exactly those ConfigMaps and Secrets that pods of this node mount: one per object, however many pods use
//! it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use base::sync::Mutex;
use base::task::Group;
use client::informer::Informers;
use k8s_openapi::api::core::v1::{Pod, Volume};
use tokio::sync::mpsc;

/// Changes that wait for the manager; when full the watch waits.
const BACKLOG_CHANGES: usize = 256;

/// One watched object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Ref {
    ConfigMap { ns: String, name: String },
    Secret { ns: String, name: String },
}

/// References of pods to objects.
#[derive(Clone)]
pub(crate) struct Refs {
    client: kube::Client,
    group: Group,
    state: Arc<Mutex<State>>,
    changed: mpsc::Sender<Ref>,
}

#[derive(Default)]
struct State {
    by_pod: BTreeMap<String, BTreeSet<Ref>>,
    watches: HashMap<Ref, Group>,
}

impl Refs {
    /// The receiver hears of each change after the first sight of an object.
    pub(crate) fn new(client: kube::Client, group: &Group) -> (Refs, mpsc::Receiver<Ref>) {
        let (changed, rx) = mpsc::channel(BACKLOG_CHANGES);
        (Refs { client, group: group.child("refs"), state: Arc::default(), changed }, rx)
    }

    /// Watches what the pod's volumes show.
    pub(crate) fn hold(&self, pod: &Pod) {
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        let wanted = of(pod);
        let mut state = self.state.lock();
        for object in &wanted {
            if !state.watches.contains_key(object) {
                state.watches.insert(object.clone(), self.watch(object));
            }
        }
        state.by_pod.insert(uid, wanted);
    }

    /// Forgets a pod, and ends watches that nobody needs.
    pub(crate) fn release(&self, uid: &str) {
        let mut state = self.state.lock();
        let Some(held) = state.by_pod.remove(uid) else { return };
        for object in held {
            if !state.by_pod.values().any(|set| set.contains(&object))
                && let Some(group) = state.watches.remove(&object)
            {
                group.token().cancel();
            }
        }
    }

    /// Pods that show an object.
    pub(crate) fn users(&self, object: &Ref) -> Vec<String> {
        let state = self.state.lock();
        state.by_pod.iter().filter(|(_, set)| set.contains(object)).map(|(uid, _)| uid.clone()).collect()
    }

    fn watch(&self, object: &Ref) -> Group {
        let group = self.group.child("ref");
        let (ns, name, plural) = match object {
            Ref::ConfigMap { ns, name } => (ns, name, "configmaps"),
            Ref::Secret { ns, name } => (ns, name, "secrets"),
        };
        let informer = Informers::one(&self.client, &format!("/api/v1/namespaces/{ns}/{plural}"), name, &group);
        let (tx, key) = (self.changed.clone(), object.clone());
        group.spawn_short("tell", async move {
            let mut changes = informer.changes();
            // What is there at first is no change: whoever holds the object has just read it.
            informer.synced().await;
            changes.drain();
            loop {
                changes.next().await;
                if tx.send(key.clone()).await.is_err() {
                    return;
                }
            }
        });
        group
    }
}

fn of(pod: &Pod) -> BTreeSet<Ref> {
    let ns = pod.metadata.namespace.clone().unwrap_or_default();
    let map = |name: &str| Ref::ConfigMap { ns: ns.clone(), name: name.to_owned() };
    let secret = |name: &str| Ref::Secret { ns: ns.clone(), name: name.to_owned() };
    let mut refs = BTreeSet::new();
    let volumes: &[Volume] = pod.spec.as_ref().and_then(|s| s.volumes.as_deref()).unwrap_or_default();
    for volume in volumes {
        refs.extend(volume.config_map.iter().map(|s| map(&s.name)));
        refs.extend(volume.secret.iter().filter_map(|s| s.secret_name.as_deref()).map(secret));
        for part in volume.projected.iter().flat_map(|p| p.sources.iter().flatten()) {
            refs.extend(part.config_map.iter().map(|s| map(&s.name)));
            refs.extend(part.secret.iter().map(|s| secret(&s.name)));
        }
    }
    refs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_refers_to_each_object_that_its_volumes_show_once() {
        let pod = serde_json::from_value(serde_json::json!({"metadata": {"namespace": "d"},
            "spec": {"containers": [], "volumes": [
                {"name": "a", "configMap": {"name": "m"}},
                {"name": "b", "secret": {"secretName": "s"}},
                {"name": "c", "projected": {"sources": [{"configMap": {"name": "m"}}, {"configMap": {"name": "n"}},
                    {"secret": {"name": "t"}}, {"serviceAccountToken": {"path": "token"}}]}},
                {"name": "e", "emptyDir": {}}]}}))
        .unwrap();
        let map = |name: &str| Ref::ConfigMap { ns: "d".to_owned(), name: name.to_owned() };
        let secret = |name: &str| Ref::Secret { ns: "d".to_owned(), name: name.to_owned() };
        assert_eq!(of(&pod), BTreeSet::from([map("m"), map("n"), secret("s"), secret("t")]));
        assert!(of(&Pod::default()).is_empty());
    }
}
