//! The graph of dependents, over all kinds. Pure: fed by changes, asked what is to be done about one object.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

/// Finalizers that say what becomes of an object's dependents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Finalizer {
    /// They go first.
    Foreground,
    /// They stay, and forget it.
    Orphan,
}

impl Finalizer {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Finalizer::Foreground => "foregroundDeletion",
            Finalizer::Orphan => "orphan",
        }
    }
}

/// Type of an object; all objects of a kind share it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Type {
    pub(super) api_version: String,
    pub(super) kind: String,
}

impl Type {
    pub(super) fn of_owner(reference: &OwnerReference) -> Type {
        Type { api_version: reference.api_version.clone(), kind: reference.kind.clone() }
    }
}

/// `kind Pod of v1`, as errors name a type.
impl fmt::Display for Type {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "kind {} of {}", self.kind, self.api_version)
    }
}

/// The way from an owner to a dependent, by their uids.
#[derive(Clone, Copy)]
struct Edge<'a> {
    owner: &'a str,
    dependent: &'a str,
}

/// Where an object is found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ObjectKey {
    pub(super) of: Arc<Type>,
    pub(super) ns: Box<str>,
    pub(super) name: Box<str>,
}

/// One object as the collector sees it. There is one for every object of the cluster.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) key: ObjectKey,
    pub(super) owners: Box<[OwnerReference]>,
    pub(super) finalizers: Box<[String]>,
    pub(super) deleting: bool,
    pub(super) resource_version: Option<Box<str>>,
}

impl Node {
    pub(super) fn has(&self, finalizer: Finalizer) -> bool {
        self.finalizers.iter().any(|f| f == finalizer.as_str())
    }

    /// Whether the object is being deleted and waits in this way for its dependents.
    pub(super) fn waits(&self, finalizer: Finalizer) -> bool {
        self.deleting && self.has(finalizer)
    }
}

/// All known objects by uid, and the way back from owners to dependents.
#[derive(Debug, Default)]
pub(super) struct Graph {
    nodes: BTreeMap<Box<str>, Node>,
    dependents: BTreeMap<String, BTreeSet<String>>,
}

/// Verdict on one object.
#[derive(Debug, PartialEq)]
pub(super) enum Verdict {
    /// Nothing.
    Keep,
    /// It waits for dependents: these must be looked at (foreground deletion).
    AwaitDependents(Vec<String>),
    /// Its dependents are gone, or free: take this finalizer off.
    RemoveFinalizer(Finalizer),
    /// These dependents must forget it, and then its `orphan` finalizer goes.
    OrphanDependents(Vec<String>),
    /// It has owners: these are known to live, wait for their dependents, or are not in the graph and must be asked
    /// for.
    JudgeOwners { alive: Vec<String>, waiting: Vec<String>, unknown: Vec<OwnerReference> },
}

impl Graph {
    pub(super) fn node(&self, uid: &str) -> Option<&Node> {
        self.nodes.get(uid)
    }

    /// The uids of all objects of one kind.
    pub(super) fn uids_of(&self, of: &Type) -> impl Iterator<Item = &str> {
        self.nodes.iter().filter(move |(_, node)| *node.key.of == *of).map(|(uid, _)| &**uid)
    }

    pub(super) fn has_dependents(&self, uid: &str) -> bool {
        self.dependents.contains_key(uid)
    }

    /// Whether the object blocks owners while one of its own dependents waits for dependents too. Should it wait as
    /// well, a circle would wait for itself for ever.
    pub(super) fn may_close_a_circle(&self, uid: &str) -> bool {
        let blocks =
            self.nodes.get(uid).is_some_and(|node| node.owners.iter().any(|o| o.block_owner_deletion == Some(true)));
        let waits = |dependent: &String| {
            self.nodes.get(dependent.as_str()).is_some_and(|node| node.waits(Finalizer::Foreground))
        };
        blocks && self.dependents.get(uid).into_iter().flatten().any(waits)
    }

    /// Takes the newest version of an object in; returns the uids that must be looked at.
    pub(super) fn put(&mut self, uid: &str, node: Node) -> Vec<String> {
        let mut look = Vec::new();
        if !node.owners.is_empty() || node.waits(Finalizer::Foreground) || node.waits(Finalizer::Orphan) {
            look.push(uid.to_owned());
        }
        let old = self.nodes.insert(uid.into(), node.clone());
        let old_owners = old.as_ref().map(|old| &old.owners[..]).unwrap_or_default();
        let owners: HashSet<&str> = node.owners.iter().map(|owner| owner.uid.as_str()).collect();
        for owner in old_owners.iter().filter(|owner| !owners.contains(owner.uid.as_str())) {
            self.unlink(Edge { owner: &owner.uid, dependent: uid });
            look.push(owner.uid.clone());
        }
        for owner in &node.owners {
            self.dependents.entry(owner.uid.clone()).or_default().insert(uid.to_owned());
            // blockOwnerDeletion may have changed: an owner that waits must count again.
            if self.nodes.get(owner.uid.as_str()).is_some_and(|owner| owner.deleting) {
                look.push(owner.uid.clone());
            }
        }
        look
    }

    /// An object is gone; returns the uids that must be looked at: its dependents, and owners that may wait for it.
    pub(super) fn remove(&mut self, uid: &str) -> Vec<String> {
        let mut look: Vec<String> = self.dependents.get(uid).into_iter().flatten().cloned().collect();
        if let Some(node) = self.nodes.remove(uid) {
            for owner in node.owners {
                self.unlink(Edge { owner: &owner.uid, dependent: uid });
                look.push(owner.uid);
            }
        }
        look
    }

    fn unlink(&mut self, Edge { owner, dependent }: Edge<'_>) {
        if let Some(dependents) = self.dependents.get_mut(owner) {
            dependents.remove(dependent);
            if dependents.is_empty() {
                self.dependents.remove(owner);
            }
        }
    }

    /// The verdict on `uid`.
    pub(super) fn judge(&self, uid: &str) -> Verdict {
        let Some(node) = self.nodes.get(uid) else { return Verdict::Keep };
        let dependents = || self.dependents.get(uid).into_iter().flatten();
        if node.waits(Finalizer::Orphan) {
            return Verdict::OrphanDependents(dependents().cloned().collect());
        }
        if node.waits(Finalizer::Foreground) {
            let blocks = |dependent: &&String| {
                let owners = self.nodes.get(dependent.as_str()).map(|d| &d.owners[..]).unwrap_or_default();
                owners.iter().any(|o| o.uid == uid && o.block_owner_deletion == Some(true))
            };
            if !dependents().any(|dependent| blocks(&dependent)) {
                return Verdict::RemoveFinalizer(Finalizer::Foreground);
            }
            return Verdict::AwaitDependents(
                dependents().filter(|d| self.nodes.get(d.as_str()).is_some_and(|d| !d.deleting)).cloned().collect(),
            );
        }
        if node.deleting || node.owners.is_empty() {
            return Verdict::Keep;
        }
        let (mut alive, mut waiting, mut unknown) = (Vec::new(), Vec::new(), Vec::new());
        for reference in &node.owners {
            match self.nodes.get(reference.uid.as_str()).filter(|owner| fits(owner, reference, node)) {
                Some(owner) if owner.waits(Finalizer::Foreground) => waiting.push(reference.uid.clone()),
                Some(_) => alive.push(reference.uid.clone()),
                None => unknown.push(reference.clone()),
            }
        }
        Verdict::JudgeOwners { alive, waiting, unknown }
    }
}

/// An owner lives in the namespace of its dependent or in none; a reference across namespaces points to nothing.
fn fits(owner: &Node, reference: &OwnerReference, dependent: &Node) -> bool {
    (owner.key.ns.is_empty() || owner.key.ns == dependent.key.ns)
        && *owner.key.name == *reference.name
        && owner.key.of.kind == reference.kind
}

/// Fate of an object once all its owners are judged.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// It has all the owners it names.
    Keep,
    /// It lives, but these references (uids) point to nobody or to one that is going.
    DropOwners(Vec<String>),
    /// Delete it, dependents first.
    DeleteForeground,
    /// Delete it with what its finalizers say.
    Delete,
}

/// The owners of an object after they were judged (uids), and whether it is one itself.
#[derive(Debug, Default)]
pub(super) struct Family {
    pub(super) alive: Vec<String>,
    /// Those that are being deleted once their dependents are gone.
    pub(super) waiting: Vec<String>,
    /// Those that are not there.
    pub(super) dangling: Vec<String>,
    pub(super) has_dependents: bool,
}

impl Family {
    /// Spec: upstream's `attemptToDeleteItem`.
    pub(super) fn fate(&self) -> Fate {
        match (self.alive.is_empty(), self.waiting.is_empty(), self.dangling.is_empty()) {
            (false, true, true) => Fate::Keep,
            (false, ..) => Fate::DropOwners(self.waiting.iter().chain(&self.dangling).cloned().collect()),
            (true, false, _) if self.has_dependents => Fate::DeleteForeground,
            (true, true, true) => Fate::Keep,
            (true, ..) => Fate::Delete,
        }
    }
}
