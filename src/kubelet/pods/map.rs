//! The pods of this node, each with the wishes for it and what its worker saw last.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use base::sync::Mutex;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use tokio::sync::watch;
use tracing::info;

use super::admission;
use super::observed::State;
use super::share::{self, Share};
use super::spec::requests;
use crate::cgroups::limits;
use crate::config::Config;
use crate::events::Kind;
use crate::events::Recorder;
use crate::node::Node;
use crate::node_object::NodeObject;
use crate::pods::admission::Host;
use crate::pods::desired::Desired;
use crate::pods::resizing::Grant;
use crate::pods::snapshot::Snapshot;
use crate::sources::annotations::is_static;
use crate::sources::mirror;

/// The pods of this node; clones are the same map.
#[derive(Clone, Default)]
pub(crate) struct Pods(pub(crate) Arc<Shared>);

#[derive(Default)]
pub(crate) struct Shared {
    pub(crate) map: Mutex<BTreeMap<String, Entry>>,
    /// Container or sandbox id → pod uid.
    pub(crate) ids: Mutex<HashMap<String, String>>,
    /// Static pods that wait for the end of an older one of their name.
    pub(crate) held: Mutex<BTreeMap<(String, String), Arc<Pod>>>,
    /// Mirror pods by namespace and name.
    pub(crate) mirrors: Mutex<BTreeMap<(String, String), Arc<Pod>>>,
    /// Held while one pod is admitted: what it is given counts for the next.
    door: Mutex<()>,
}

pub(crate) struct Entry {
    pub(crate) tx: watch::Sender<Desired>,
    pub(crate) shared: Arc<Mutex<Snapshot>>,
}

impl Entry {
    pub(crate) fn look(&self) -> (Arc<Pod>, Snapshot) {
        let snapshot = self.shared.lock().clone();
        (Arc::clone(&self.tx.borrow().pod), snapshot)
    }
}

impl Pods {
    pub(crate) fn index(&self, id: &str, uid: &str) {
        let mut ids = self.0.ids.lock();
        if !ids.contains_key(id) {
            ids.insert(id.to_owned(), uid.to_owned());
        }
    }

    pub(crate) fn unindex(&self, id: &str) {
        self.0.ids.lock().remove(id);
    }

    /// Whether the node can take the pod, beside those it has; if so it holds its share from now on. The error is
    /// upstream's reason and text.
    pub(crate) fn admit(&self, node: &Node, pod: &Pod) -> Result<(), Refusal> {
        let _alone = self.0.door.lock();
        let (host, others) = (node.host(), self.holders_beside(pod));
        if let Err(refusal) = admission::admit(&host, pod, &others) {
            // The scheduler counts no pod of which the API knows no more.
            let staying = self.staying_beside(pod);
            if staying.len() < others.len() && admission::admit(&host, pod, &staying).is_ok() {
                return Err(Refusal::NotYet);
            }
            let victims = admission::victims(&host, pod, &others);
            if victims.is_empty() {
                return Err(Refusal::Final(refusal));
            }
            for victim in victims {
                self.preempt(&node.events, &victim);
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

    /// The API object that shows the pod: itself, or a static pod's mirror once there is one.
    pub(crate) fn api_pod(&self, config: &Config, own: &NodeObject, pod: &Pod) -> Option<Pod> {
        if !is_static(pod) {
            return Some(pod.clone());
        }
        let mirrors = self.0.mirrors.lock();
        mirrors.get(&key(pod)).filter(|mirror| mirror::is_of(config, own, mirror, pod)).map(|p| Pod::clone(p))
    }

    /// Every pod that has a task, with what its task last saw.
    pub(crate) fn all(&self) -> Vec<(Arc<Pod>, Snapshot)> {
        let map = self.0.map.lock();
        map.values().map(Entry::look).collect()
    }

    /// A pod by name.
    pub(crate) fn find(&self, ns: &str, name: &str) -> Option<(Arc<Pod>, Snapshot)> {
        let map = self.0.map.lock();
        let is_it = |p: &Pod| p.metadata.namespace.as_deref() == Some(ns) && p.metadata.name.as_deref() == Some(name);
        map.values().find(|entry| is_it(&entry.tx.borrow().pod)).map(Entry::look)
    }

    /// Whether a container may still write, as its pod's task saw it last.
    pub(crate) fn may_write(&self, uid: &str, id: &str) -> bool {
        let map = self.0.map.lock();
        let Some(entry) = map.get(uid) else { return false };
        let shared = entry.shared.lock();
        shared.observed.containers.iter().any(|seen| seen.id == id && seen.state != State::Exited)
    }

    /// Tells a pod's task to end it as evicted.
    pub(crate) fn evict(&self, pod: &Pod, message: &str) {
        self.oust(pod, "Evicted", message);
    }

    /// Ends a pod for the sake of a critical one.
    pub(crate) fn preempt(&self, events: &Recorder, victim: &Pod) {
        let text = "Preempted in order to admit critical pod";
        if self.oust(victim, "Preempting", text) {
            info!(ns = ?victim.metadata.namespace, name = ?victim.metadata.name, "ending a pod, a critical one needs its room");
            events.pod(victim, None, Kind::Warning, "Preempting", text);
        }
    }

    /// Returns whether the pod was not being ended yet.
    pub(crate) fn oust(&self, pod: &Pod, reason: &'static str, message: &str) -> bool {
        let mut is_new = false;
        self.modify(pod.metadata.uid.as_deref().unwrap_or_default(), |d| {
            is_new = d.evicted.is_none();
            d.evicted.get_or_insert((reason, message.to_owned()));
        });
        is_new
    }

    /// What the burstable pods that were admitted ask for together, in thousandths of a CPU.
    pub(crate) fn burstable_milli(&self) -> i64 {
        let all = self
            .shares()
            .into_iter()
            .map(|share| share.granted)
            .filter(|pod| limits::qos(pod) == limits::Qos::Burstable);
        all.map(|pod| requests(&pod, "cpu")).fold(0, i64::saturating_add)
    }

    pub(crate) fn modify(&self, uid: &str, change: impl FnOnce(&mut Desired)) -> bool {
        let map = self.0.map.lock();
        map.get(uid).map(|entry| entry.tx.send_modify(change)).is_some()
    }
}

/// Why a pod is not admitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// For good: reason and text.
    Final((String, String)),
    /// Others are being ended: it is to ask again.
    NotYet,
}

pub(crate) fn key(pod: &Pod) -> (String, String) {
    (pod.metadata.namespace.clone().unwrap_or_default(), pod.metadata.name.clone().unwrap_or_default())
}
