//! The pods of this node, each with the wishes for it and what its worker saw last.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use base::sync::Mutex;
use client::informer::Key;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use model::reference::NamespacedName;
use tokio::sync::watch;
use tracing::info;

use super::admission;
use super::observed::{Observed, State};
use super::share::{self, Share};
use super::spec::requests;
use crate::cgroups::limits;
use crate::events::Kind;
use crate::events::Recorder;
use crate::node_object::NodeObject;
use crate::pods::admission::Host;
use crate::pods::desired::{Cause, Desired, Notice, Ousting};
use crate::pods::resizing::Grant;
use crate::pods::snapshot::Snapshot;
use crate::sources::annotations::is_static;
use crate::sources::mirror;

/// The pods of this node; clones are the same map.
#[derive(Clone, Default)]
pub(crate) struct Pods(Arc<Shared>);

#[derive(Default)]
struct Shared {
    map: Mutex<BTreeMap<String, Entry>>,
    /// Container or sandbox id → pod uid.
    ids: Mutex<HashMap<String, String>>,
    /// Static pods that wait for the end of an older one of their name.
    held: Mutex<BTreeMap<Key, Arc<Pod>>>,
    /// Mirror pods.
    mirrors: Mutex<BTreeMap<Key, Arc<Pod>>>,
    /// Held while one pod is admitted: what it is given counts for the next.
    door: Mutex<()>,
}

struct Entry {
    tx: watch::Sender<Desired>,
    shared: Arc<Mutex<Snapshot>>,
}

impl Entry {
    fn look(&self) -> (Arc<Pod>, Snapshot) {
        let snapshot = self.shared.lock().clone();
        (Arc::clone(&self.tx.borrow().pod), snapshot)
    }
}

/// The tasks of pods: which there are, and what each is told.
impl Pods {
    /// A pod gets a task: `tx` tells it what it should be, and in `shared` it writes down what it sees.
    pub(crate) fn begin(&self, tx: watch::Sender<Desired>, shared: Arc<Mutex<Snapshot>>) {
        let uid = tx.borrow().pod.metadata.uid.clone().unwrap_or_default();
        self.0.map.lock().insert(uid, Entry { tx, shared });
    }

    /// The task of a pod has ended. Returns what the pod should have been last.
    pub(crate) fn end(&self, uid: &str) -> Option<Desired> {
        self.0.map.lock().remove(uid).map(|entry| entry.tx.borrow().clone())
    }

    /// Whether a pod has a task.
    pub(crate) fn has(&self, uid: &str) -> bool {
        self.0.map.lock().contains_key(uid)
    }

    /// The uids of all pods that have a task.
    pub(crate) fn uids(&self) -> BTreeSet<String> {
        self.0.map.lock().keys().cloned().collect()
    }

    /// Changes what a pod should be, which wakes its task. Returns whether it has one.
    pub(crate) fn modify(&self, uid: &str, change: impl FnOnce(&mut Desired)) -> bool {
        let map = self.0.map.lock();
        map.get(uid).map(|entry| entry.tx.send_modify(change)).is_some()
    }

    /// Changes what every pod should be, and wakes them all.
    pub(crate) fn modify_all(&self, change: impl Fn(&mut Desired)) {
        let map = self.0.map.lock();
        map.values().for_each(|entry| entry.tx.send_modify(&change));
    }

    /// Wakes the tasks of the pods of which `has_changed`, by uid and by what the task saw last.
    pub(crate) fn wake_changed(&self, has_changed: impl Fn(&str, &Observed) -> bool) {
        let map = self.0.map.lock();
        for (uid, entry) in map.iter() {
            if has_changed(uid, &entry.shared.lock().observed) {
                entry.tx.send_modify(|_| {});
            }
        }
    }

    /// Remembers containers and sandboxes of a pod, by their ids.
    pub(crate) fn index<'a>(&self, uid: &str, ids: impl IntoIterator<Item = &'a String>) {
        let mut index = self.0.ids.lock();
        for id in ids {
            if !index.contains_key(id) {
                index.insert(id.clone(), uid.to_owned());
            }
        }
    }

    /// Forgets a container or sandbox.
    pub(crate) fn unindex(&self, id: &str) {
        self.0.ids.lock().remove(id);
    }

    /// The uid of the pod that has a container or sandbox.
    pub(crate) fn owner(&self, id: &str) -> Option<String> {
        self.0.ids.lock().get(id).cloned()
    }
}

/// Static pods and their mirrors.
impl Pods {
    /// Whether a static pod of the same name has a task.
    pub(crate) fn is_name_taken(&self, pod: &Pod) -> bool {
        let map = self.0.map.lock();
        map.values().any(|entry| {
            let other = entry.tx.borrow();
            other.is_static && Key::of(&*other.pod) == Key::of(pod)
        })
    }

    /// Has a static pod wait until the one that has its name ends.
    pub(crate) fn hold_back(&self, pod: Arc<Pod>) {
        self.0.held.lock().insert(Key::of(&*pod), pod);
    }

    /// The static pod that waited for the end of this one.
    pub(crate) fn take_held(&self, ended: &Pod) -> Option<Arc<Pod>> {
        self.0.held.lock().remove(&Key::of(ended))
    }

    /// A static pod that waits is not wanted any more.
    pub(crate) fn drop_held(&self, uid: &str) {
        self.0.held.lock().retain(|_, pod| pod.metadata.uid.as_deref() != Some(uid));
    }

    /// Remembers a mirror as the API has it.
    pub(crate) fn note_mirror(&self, mirror: Arc<Pod>) {
        self.0.mirrors.lock().insert(Key::of(&*mirror), mirror);
    }

    /// The API has the mirror no more.
    pub(crate) fn drop_mirror(&self, mirror: &Pod) {
        self.0.mirrors.lock().remove(&Key::of(mirror));
    }

    /// The mirror that has the name of a static pod.
    pub(crate) fn mirror(&self, pod: &Pod) -> Option<Arc<Pod>> {
        self.0.mirrors.lock().get(&Key::of(pod)).cloned()
    }

    /// The API object that shows the pod: itself, or a static pod's mirror once there is one.
    pub(crate) fn api_pod(&self, own: &NodeObject, pod: &Pod) -> Option<Pod> {
        if !is_static(pod) {
            return Some(pod.clone());
        }
        self.mirror(pod).filter(|mirror| mirror::is_of(own, mirror, pod)).map(Arc::unwrap_or_clone)
    }
}

/// Shares that pods have of the node.
impl Pods {
    /// Whether the node can take the pod, beside those it has; if so it holds its share from now on. Those that are
    /// ended for its sake are told of in `events`. The error has upstream's reason and text.
    pub(crate) fn admit(&self, host: &Host<'_>, events: &Recorder, pod: &Pod) -> Result<(), Refusal> {
        let _alone = self.0.door.lock();
        let others = self.holders_beside(pod);
        if let Err(refusal) = admission::admit(host, pod, &others) {
            // The scheduler counts no pod of which the API knows no more.
            let staying = self.staying_beside(pod);
            if staying.len() < others.len() && admission::admit(host, pod, &staying).is_ok() {
                return Err(Refusal::NotYet);
            }
            let victims = admission::victims(host, pod, &others);
            if victims.is_empty() {
                return Err(Refusal::Final(refusal));
            }
            for victim in victims {
                self.preempt(events, &victim);
            }
            return Err(Refusal::NotYet);
        }
        let map = self.0.map.lock();
        if let Some(entry) = map.get(pod.metadata.uid.as_deref().unwrap_or_default()) {
            entry.shared.lock().holds = true;
        }
        Ok(())
    }

    /// The other pods that hold something of the node: those that were admitted and have not ended, whatever the API
    /// says of them.
    pub(crate) fn holders_beside(&self, pod: &Pod) -> Vec<Arc<Pod>> {
        self.shares()
            .into_iter()
            .filter(|share| share.wanted.metadata.uid != pod.metadata.uid)
            .map(|share| share.granted)
            .collect()
    }

    /// Those of them that are not on their way out for good: their objects, or files, are there.
    pub(crate) fn staying_beside(&self, pod: &Pod) -> Vec<Arc<Pod>> {
        let map = self.0.map.lock();
        let gone: BTreeSet<String> =
            map.iter().filter(|(_, entry)| entry.tx.borrow().gone).map(|(uid, _)| uid.clone()).collect();
        drop(map);
        let stays = |other: &Arc<Pod>| !gone.contains(other.metadata.uid.as_deref().unwrap_or_default());
        self.holders_beside(pod).into_iter().filter(stays).collect()
    }

    fn shares(&self) -> Vec<Share> {
        let all = self.all().into_iter().filter(|(_, snapshot)| snapshot.holds);
        all.map(|(wanted, snapshot)| Share {
            granted: snapshot.granted.unwrap_or_else(|| Arc::clone(&wanted)),
            wanted,
            deferred: snapshot.deferred,
        })
        .collect()
    }

    /// Whether the node gives a pod the other resources that it asks for, each in its turn. What is granted is its
    /// share from now on.
    pub(crate) fn resize(&self, host: &Host<'_>, wanted: &Arc<Pod>, now: Timestamp) -> Grant {
        let _alone = self.0.door.lock();
        let verdict = share::grant_in_turn(host, wanted, &self.shares());
        let map = self.0.map.lock();
        if let Some(entry) = map.get(wanted.metadata.uid.as_deref().unwrap_or_default()) {
            let mut shared = entry.shared.lock();
            shared.deferred = matches!(verdict, Grant::Deferred(_)).then(|| shared.deferred.unwrap_or(now));
            if verdict == Grant::Granted {
                shared.granted = Some(Arc::clone(wanted));
            }
        }
        verdict
    }

    /// Every pod that has a task, with what its task last saw.
    pub(crate) fn all(&self) -> Vec<(Arc<Pod>, Snapshot)> {
        let map = self.0.map.lock();
        map.values().map(Entry::look).collect()
    }

    /// A pod by name.
    pub(crate) fn find(&self, name: NamespacedName<'_>) -> Option<(Arc<Pod>, Snapshot)> {
        let map = self.0.map.lock();
        map.values().find(|entry| NamespacedName::of(&entry.tx.borrow().pod.metadata) == name).map(Entry::look)
    }

    /// Whether a container may still write, as its pod's task saw it last.
    pub(crate) fn may_write(&self, id: &str) -> bool {
        let Some(uid) = self.owner(id) else { return false };
        let map = self.0.map.lock();
        let Some(entry) = map.get(&uid) else { return false };
        let shared = entry.shared.lock();
        shared.observed.containers.iter().any(|seen| seen.id == id && seen.state != State::Exited)
    }

    /// Tells a pod's task to end it as evicted.
    pub(crate) fn evict(&self, pod: &Pod, message: String, notice: Notice) {
        self.oust(pod, Ousting::Evicted(message, notice));
    }

    /// Ends a pod for the sake of a critical one.
    fn preempt(&self, events: &Recorder, victim: &Pod) {
        let why = Ousting::Preempted;
        if self.oust(victim, why.clone()) {
            info!(
                ns = ?victim.metadata.namespace,
                name = ?victim.metadata.name,
                "ending a pod, a critical one needs its room"
            );
            events.pod(victim, None, Kind::Warning, why.reason(), why.message());
        }
    }

    /// Returns whether the pod was not being ended yet.
    fn oust(&self, pod: &Pod, why: Ousting) -> bool {
        let mut is_new = false;
        self.modify(pod.metadata.uid.as_deref().unwrap_or_default(), |d| {
            is_new = d.ousted.is_none();
            d.ousted.get_or_insert(why);
        });
        is_new
    }

    /// The CPU that the burstable pods that were admitted ask for together, in thousandths.
    pub(crate) fn burstable_milli(&self) -> i64 {
        let all = self
            .shares()
            .into_iter()
            .map(|share| share.granted)
            .filter(|pod| limits::qos(pod) == limits::Qos::Burstable);
        all.map(|pod| requests(&pod, "cpu")).fold(0, i64::saturating_add)
    }
}

/// Why a pod is not admitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// For good.
    Final(Cause),
    /// Others are being ended: it is to ask again.
    NotYet,
}
