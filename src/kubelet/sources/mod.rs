//! Where pods come from: the API server (those bound to this node) and the folder of manifests.

pub(crate) mod annotations;
pub(crate) mod change;
pub(crate) mod manifests;

pub(crate) mod mirror;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use base::task::Group;
use client::informer::{Change as Changed, Informers, Key};
use k8s_openapi::api::core::v1::Pod;
use tokio::sync::mpsc;

use crate::node_object::NodeObject;
use crate::sources::annotations::{API, MIRROR, SOURCE, annotation};
use crate::sources::change::Change;
use crate::sources::manifests::Folder;

/// Starts both sources. Files come first: `Synced` follows when the API has told of all pods and of the node itself.
pub(crate) fn start(
    manifests: Option<Folder>,
    own: NodeObject,
    informers: Informers,
    tx: mpsc::Sender<Change>,
    group: &Group,
) {
    if let Some(folder) = manifests {
        manifests::start(folder, tx.clone(), group);
    }
    group.spawn("api-pods", async move {
        let pods = informers.selected::<Pod>(&format!("spec.nodeName={}", own.name()));
        let mut changes = pods.changes();
        own.synced().await;
        pods.synced().await;
        changes.drain();
        let mut seen = Seen::default();
        let mut told = seen.compare(&pods.list());
        told.push(Change::Synced);
        loop {
            for change in told {
                if tx.send(change).await.is_err() {
                    return;
                }
            }
            told = match changes.next().await {
                Changed::Added(pod) | Changed::Modified { new: pod, .. } => seen.set(&pod),
                Changed::Deleted(pod) => seen.gone(&pod).into_iter().collect(),
            };
        }
    });
}

/// The pods that the API has told of so far, by namespace and name, to find those that vanished unseen.
#[derive(Default)]
struct Seen(BTreeMap<Key, Arc<Pod>>);

impl Seen {
    /// A pod of the same name with another uid is another pod. What a pod is to us it stays: its first sight decides.
    fn set(&mut self, pod: &Arc<Pod>) -> Vec<Change> {
        let pod = &of_api(pod);
        let before = self.0.get(&Key::of(&**pod)).cloned();
        let same = before.as_ref().is_some_and(|old| old.metadata.uid == pod.metadata.uid);
        if same && before.as_ref().is_some_and(|old| !is_mirror(old)) && is_mirror(pod) {
            return vec![Change::Disowned(Arc::clone(pod))];
        }
        self.0.insert(Key::of(&**pod), Arc::clone(pod));
        let replaced = before.filter(|_| !same).map(|old| over(&old));
        // A mirror that no longer says so is no pod to run: it is gone, and its static pod makes another.
        let now = if is_mirror(pod) { Change::Mirror(Arc::clone(pod)) } else { Change::Set(Arc::clone(pod)) };
        replaced.into_iter().chain([now]).collect()
    }

    fn gone(&mut self, pod: &Pod) -> Option<Change> {
        self.0.remove(&Key::of(pod)).map(|known| over(&known))
    }

    fn compare(&mut self, now: &[Arc<Pod>]) -> Vec<Change> {
        let names: BTreeSet<Key> = now.iter().map(|pod| Key::of(&**pod)).collect();
        let lost: Vec<Arc<Pod>> =
            self.0.iter().filter(|(key, _)| !names.contains(key)).map(|(_, pod)| Arc::clone(pod)).collect();
        let mut changes: Vec<Change> = lost.iter().filter_map(|pod| self.gone(pod)).collect();
        changes.extend(now.iter().flat_map(|pod| self.set(pod)));
        changes
    }
}

fn over(pod: &Arc<Pod>) -> Change {
    if is_mirror(pod) {
        Change::MirrorGone(Arc::clone(pod))
    } else {
        Change::Gone(pod.metadata.uid.clone().unwrap_or_default())
    }
}

fn is_mirror(pod: &Pod) -> bool {
    annotation(pod, MIRROR).is_some()
}

/// A pod of the API is one, whatever its annotation says: only files make static pods.
fn of_api(pod: &Arc<Pod>) -> Arc<Pod> {
    if annotation(pod, SOURCE).is_none_or(|source| source == API) || is_mirror(pod) {
        return Arc::clone(pod);
    }
    let mut own = Pod::clone(pod);
    own.metadata.annotations.get_or_insert_default().insert(SOURCE.to_owned(), API.to_owned());
    Arc::new(own)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sources::annotations::is_static;

    fn pod(name: &str, uid: &str) -> Arc<Pod> {
        serde_json::from_value(serde_json::json!({"metadata": {"name": name, "uid": uid}})).map(Arc::new).unwrap()
    }

    #[test]
    fn a_pod_that_vanished_while_the_watch_was_broken_is_gone() {
        let mut seen = Seen::default();
        assert!(matches!(seen.compare(&[pod("a", "1")]).as_slice(), [Change::Set(_)]));
        assert!(matches!(seen.compare(&[]).as_slice(), [Change::Gone(uid)] if uid == "1"));
    }

    fn noted(uid: &str, note: &str, value: &str) -> Arc<Pod> {
        let notes = serde_json::json!({note: value});
        let pod = serde_json::json!({"metadata": {"name": "a", "uid": uid, "annotations": notes}});
        serde_json::from_value(pod).map(Arc::new).unwrap()
    }

    // review security-2.md F2
    #[test]
    fn a_running_pod_that_calls_itself_a_mirror_is_ended_and_not_forgotten() {
        let mut seen = Seen::default();
        seen.set(&pod("a", "1"));
        let mirror = noted("1", MIRROR, "x");
        for _ in 0..2 {
            let told = seen.set(&mirror);
            let [Change::Disowned(pod)] = told.as_slice() else { panic!("{} changes", told.len()) };
            assert_eq!(pod.metadata.uid.as_deref(), Some("1"));
        }
        assert!(matches!(seen.gone(&mirror), Some(Change::Gone(uid)) if uid == "1"), "its own task hears of its end");
        assert!(matches!(seen.set(&noted("2", MIRROR, "x")).as_slice(), [Change::Mirror(_)]));
    }

    // review security-2.md F2
    #[test]
    fn no_pod_of_the_api_is_a_static_one() {
        let told = Seen::default().set(&noted("1", SOURCE, "file"));
        assert!(matches!(told.as_slice(), [Change::Set(pod)] if !is_static(pod)));
    }

    #[test]
    fn a_new_pod_of_an_old_name_ends_the_old_one_first() {
        let mut seen = Seen::default();
        seen.set(&pod("a", "1"));
        assert!(matches!(seen.set(&pod("a", "2")).as_slice(), [Change::Gone(uid), Change::Set(_)] if uid == "1"));
    }

    #[test]
    fn a_mirror_that_says_so_no_more_is_gone_and_no_pod_to_run() {
        let mut seen = Seen::default();
        let mirror = noted("1", MIRROR, "x");
        assert!(matches!(seen.set(&mirror).as_slice(), [Change::Mirror(_)]));
        assert!(matches!(seen.gone(&mirror), Some(Change::MirrorGone(_))));
        assert!(seen.gone(&mirror).is_none(), "it is told once");
        seen.set(&mirror);
        let pod = noted("2", SOURCE, API);
        assert!(matches!(seen.set(&pod).as_slice(), [Change::MirrorGone(_), Change::Set(_)]), "a pod took its name");
    }
}
