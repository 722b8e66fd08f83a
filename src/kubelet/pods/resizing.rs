//! Resources that a pod wants, was granted and has. Pure. Spec: KEP-1287.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Container, Pod, PodStatus, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;

use super::spec::requests;
use crate::cgroups::limits::{self, Limits};
use crate::container;
use crate::pods::admission::Host;
use crate::pods::observed::{Observed, State};
use crate::sources::annotations::is_static;
use crate::status::resources::{self, Run};

/// Stands for the pod as a whole among its containers: nobody else has this name.
const WHOLE: &str = "";

/// A pod's resources as its task remembers them: granted, applied, and on their way.
#[derive(Clone, Debug, Default)]
pub(crate) struct Resizing {
    /// The resources that the node granted, by container; nothing until the pod was admitted.
    allocated: Option<BTreeMap<String, ResourceRequirements>>,
    /// The resources in force, by the ids of running containers, and of the pod as a whole.
    applied: BTreeMap<String, ResourceRequirements>,
    /// The resources that the pod as a whole had when a container was made or changed last, by the container's id:
    /// limits that it lacks are its pod's.
    under: BTreeMap<String, Option<ResourceRequirements>>,
    /// The limits that the pod's group took in a resize: else it has those that were granted.
    group: Option<Limits>,
    /// The node's answer to the spec's wish, unless it was granted.
    pending: Option<Grant>,
    progress: Progress,
    /// Containers that must be made again to change.
    restart: BTreeSet<String>,
}

/// How far a granted resize is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Progress {
    /// All that was granted is in force.
    #[default]
    Done,
    /// Containers are not there yet.
    Going,
    /// Nor are they there yet after the last try, and this is why.
    Failing(String),
}

/// Steps that bring a pod to what was granted.
pub(crate) struct Steps {
    /// The resources in force, by container, and of the pod as a whole.
    pub(crate) before: BTreeMap<String, ResourceRequirements>,
    /// Containers that change while they run, by their ids.
    pub(crate) updates: Vec<(String, Container)>,
    /// Whether the pod as a whole changes.
    pub(crate) is_of_whole: bool,
}

/// The node's answer to a wish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Grant {
    Granted,
    /// Not now; the text says what is missing.
    Deferred(String),
    /// Never on this node; the text says why.
    Infeasible(String),
}

impl Grant {
    /// Why the wish is not granted: reason and text.
    pub(crate) fn refusal(&self) -> Option<(&'static str, &str)> {
        match self {
            Grant::Granted => None,
            Grant::Deferred(why) => Some(("Deferred", why)),
            Grant::Infeasible(why) => Some(("Infeasible", why)),
        }
    }
}

fn resizable(pod: &Pod) -> impl Iterator<Item = &Container> {
    container::all(pod).into_iter().map(|(c, _)| c)
}

/// The resources that a pod asks for as a whole, whatever its containers do.
pub(crate) fn whole(pod: &Pod) -> Option<&ResourceRequirements> {
    pod.spec.as_ref()?.resources.as_ref()
}

fn wishes(pod: &Pod) -> BTreeMap<String, ResourceRequirements> {
    let own = whole(pod).map(|resources| (WHOLE.to_owned(), resources.clone()));
    resizable(pod).map(|c| (c.name.clone(), c.resources.clone().unwrap_or_default())).chain(own).collect()
}

/// Requests and limits as numbers, so that `1000m` and `1` are the same.
fn amounts(resources: &ResourceRequirements) -> BTreeMap<(bool, &str), i64> {
    let of = |is_limit: bool, map: &'_ Option<BTreeMap<String, _>>| -> Vec<((bool, String), i64)> {
        let value = |name: &str, q| {
            if name == "cpu" { limits::parse(q).milli_value() } else { limits::parse(q).value() }
        };
        map.iter().flatten().map(|(name, q)| ((is_limit, name.clone()), value(name, q))).collect()
    };
    let names: Vec<(bool, &str)> = [(false, &resources.requests), (true, &resources.limits)]
        .into_iter()
        .flat_map(|(is_limit, map)| map.iter().flatten().map(move |(name, _)| (is_limit, name.as_str())))
        .collect();
    let values: BTreeMap<(bool, String), i64> =
        of(false, &resources.requests).into_iter().chain(of(true, &resources.limits)).collect();
    names.into_iter().map(|(l, n)| ((l, n), values.get(&(l, n.to_owned())).copied().unwrap_or(0))).collect()
}

fn same(a: &ResourceRequirements, b: &ResourceRequirements) -> bool {
    amounts(a) == amounts(b)
}

/// Resources that differ between two.
fn changed<'a>(a: &'a ResourceRequirements, b: &'a ResourceRequirements) -> BTreeSet<&'a str> {
    let (a, b) = (amounts(a), amounts(b));
    let differs = |key: &(bool, &'a str)| a.get(key) != b.get(key);
    a.keys().chain(b.keys()).filter(|key| differs(key)).map(|(_, name)| *name).collect()
}

pub(crate) fn with(pod: &Pod, resources: &BTreeMap<String, ResourceRequirements>) -> Pod {
    let mut pod = pod.clone();
    if let Some(spec) = &mut pod.spec {
        spec.resources = resources.get(WHOLE).cloned();
        for container in spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten()) {
            if let Some(own) = resources.get(&container.name) {
                container.resources = Some(own.clone());
            }
        }
    }
    pod
}

/// Whether the node can give a pod what it asks for now. Pure.
pub(crate) fn grant(host: &Host<'_>, pod: &Pod, others: &[Arc<Pod>]) -> Grant {
    if is_static(pod) {
        return Grant::Infeasible("In-place resize of static-pods is not supported".to_owned());
    }
    for name in ["cpu", "memory"] {
        let (asked, capacity) = (requests(pod, name), host.allocatable.get(name).copied().unwrap_or(0));
        if asked > capacity {
            return Grant::Infeasible(format!(
                "Node didn't have enough capacity: {name}, requested: {asked}, capacity: {capacity}"
            ));
        }
        let used = others.iter().map(|p| requests(p, name)).fold(0, i64::saturating_add);
        if used.saturating_add(asked) > capacity {
            return Grant::Deferred(format!(
                "Node didn't have enough resource: {name}, requested: {asked}, used: {used}, capacity: {capacity}"
            ));
        }
    }
    Grant::Granted
}

/// A pod of an earlier kubelet, with what that one granted it by its status.
pub(crate) fn granted_before(pod: &Arc<Pod>) -> Arc<Pod> {
    let Some(told) = &pod.status else { return Arc::clone(pod) };
    let mut resizing = Resizing::default();
    resizing.admit(pod, told);
    resizing.effective(pod)
}

impl Resizing {
    /// The pod with what was granted in place of what was asked for.
    pub(crate) fn effective(&self, pod: &Arc<Pod>) -> Arc<Pod> {
        match &self.allocated {
            Some(allocated) if *allocated != wishes(pod) => Arc::new(with(pod, allocated)),
            _ => Arc::clone(pod),
        }
    }

    /// At admission: what an earlier kubelet granted, or all that is asked for.
    pub(crate) fn admit(&mut self, pod: &Pod, told: &PodStatus) {
        let mut allocated = wishes(pod);
        let lists = [&told.init_container_statuses, &told.container_statuses];
        for status in lists.into_iter().flat_map(|l| l.iter().flatten()) {
            let (Some(own), Some(resources)) = (allocated.get_mut(&status.name), &status.resources) else { continue };
            *own = ResourceRequirements { claims: own.claims.clone(), ..resources.clone() };
            if let Some((_, id)) = status.container_id.as_deref().and_then(|id| id.split_once("://")) {
                self.applied.insert(id.to_owned(), resources.clone());
            }
        }
        let unchanged =
            |resources: &ResourceRequirements| Run::BOTH.iter().any(|run| same(&self.of_pod(pod, *run), resources));
        if let (Some(own), Some(resources)) =
            (allocated.get_mut(WHOLE), told.resources.as_ref().filter(|told| !unchanged(told)))
        {
            keep_to(&mut own.requests, resources.requests.as_ref());
            keep_to(&mut own.limits, resources.limits.as_ref());
        }
        if let Some(own) = allocated.get(WHOLE) {
            self.applied.insert(WHOLE.to_owned(), own.clone());
        }
        self.allocated = Some(allocated);
    }

    /// A container of `pod` was made with these resources, or changed to them.
    pub(crate) fn made(&mut self, id: &str, pod: &Pod, resources: Option<&ResourceRequirements>) {
        self.applied.insert(id.to_owned(), resources.cloned().unwrap_or_default());
        self.under.insert(id.to_owned(), whole(pod).cloned());
    }

    /// The pod's group was made by what is granted.
    pub(crate) fn made_group(&mut self) {
        self.group = None;
    }

    /// The resources that a running container has for its own part and that of its pod.
    fn held(&self, id: &str, own: &ResourceRequirements) -> ResourceRequirements {
        let under = self.under.get(id).map_or_else(|| self.applied.get(WHOLE), Option::as_ref);
        held(under, own)
    }

    /// The limits of the pod's group. `pod` is the pod as it was granted.
    pub(crate) fn in_force(&self, pod: &Pod) -> Limits {
        self.group.unwrap_or_else(|| Limits::of(pod))
    }

    /// The resources of the pod as a whole, as its status tells them. `pod` is the pod as it was granted.
    pub(crate) fn of_pod(&self, pod: &Pod, run: Run) -> ResourceRequirements {
        let own = self.applied.get(WHOLE).or(whole(pod));
        resources::of_pod(pod, own, self.in_force(pod), run)
    }

    /// The resources in force in a running container.
    pub(crate) fn applied(&self, id: &str) -> Option<&ResourceRequirements> {
        self.applied.get(id)
    }

    /// Why the spec's wish is not granted: reason and text.
    pub(crate) fn pending(&self) -> Option<(&'static str, &str)> {
        self.pending.as_ref().and_then(Grant::refusal)
    }

    /// How far the granted resize is.
    pub(crate) fn progress(&self) -> &Progress {
        &self.progress
    }

    /// Containers that must be made again to change.
    pub(crate) fn restart(&self) -> &BTreeSet<String> {
        &self.restart
    }
}

/// The way of a wish: granted or refused, then carried out.
impl Resizing {
    /// Whether the spec asks for other amounts than those that were granted; nothing before the pod was admitted.
    pub(crate) fn is_new_wish(&self, wanted: &Pod) -> Option<bool> {
        let (allocated, wish) = (self.allocated.as_ref()?, wishes(wanted));
        let is_granted = |(name, asked)| allocated.get(name).is_some_and(|have| same(have, asked));
        Some(wish.len() != allocated.len() || !wish.iter().all(is_granted))
    }

    /// The spec asks for what was granted, perhaps in other words.
    pub(crate) fn keep(&mut self, wanted: &Pod) {
        self.pending = None;
        self.allocated = Some(wishes(wanted));
    }

    /// The node does not grant the wish. Returns whether this is news.
    pub(crate) fn refuse(&mut self, answer: Grant) -> bool {
        let is_news = self.pending.as_ref() != Some(&answer);
        self.pending = Some(answer);
        is_news
    }

    /// The node grants the wish. `had` is the pod as it was granted until now.
    pub(crate) fn grant(&mut self, had: &Pod, wanted: &Pod) {
        self.group.get_or_insert(Limits::of(had));
        self.progress = Progress::Going;
        self.keep(wanted);
    }

    /// Decides which containers change while they run and which are made again. `pod` is the pod as it was granted.
    pub(crate) fn steps(&mut self, pod: &Pod, observed: &Observed) -> Steps {
        self.restart.clear();
        let ids: BTreeSet<&String> = observed.containers.iter().map(|c| &c.id).collect();
        self.applied.retain(|id, _| id == WHOLE || ids.contains(id));
        self.under.retain(|id, _| ids.contains(id));
        let mut before = wishes(pod);
        let mut updates: Vec<(String, Container)> = Vec::new();
        let goal = whole(pod);
        let have = self.applied.get(WHOLE).filter(|have| goal.is_none_or(|goal| !same(have, goal))).cloned();
        let is_of_whole = have.is_some() || goal.is_some() != self.applied.contains_key(WHOLE);
        match have {
            Some(have) => drop(before.insert(WHOLE.to_owned(), have)),
            None if is_of_whole => drop(before.remove(WHOLE)),
            None => {}
        }
        for spec in resizable(pod) {
            let Some(seen) = observed.latest(&spec.name).filter(|s| s.state == State::Running) else { continue };
            let goal = spec.resources.clone().unwrap_or_default();
            let have = self.applied.entry(seen.id.clone()).or_insert_with(|| goal.clone()).clone();
            let is_same = same(&have, &goal);
            if is_same {
                self.applied.insert(seen.id.clone(), goal.clone());
            } else {
                before.insert(spec.name.clone(), have.clone());
            }
            if must_restart(spec, &self.held(&seen.id, &have), &held(whole(pod), &goal)) {
                self.restart.insert(spec.name.clone());
            } else if !is_same || is_of_whole && inherits(spec) {
                updates.push((seen.id.clone(), spec.clone()));
            }
        }
        Steps { before, updates, is_of_whole }
    }

    /// No container is made again for now.
    pub(crate) fn spare(&mut self) {
        self.restart.clear();
    }

    /// The last try brought the pod nearer to what was granted, or at least met no error.
    pub(crate) fn proceed(&mut self) {
        self.progress = Progress::Going;
    }

    /// The last try met an error. Returns whether that is the first in a row.
    pub(crate) fn fail(&mut self, why: String) -> bool {
        let is_first = !matches!(self.progress, Progress::Failing(_));
        self.progress = Progress::Failing(why);
        is_first
    }

    /// The pod's group has these limits now.
    pub(crate) fn group_took(&mut self, limits: Limits) {
        self.group = Some(limits);
    }

    /// Whether the pod's group took these limits in this resize.
    pub(crate) fn has_taken(&self, limits: Limits) -> bool {
        self.group == Some(limits)
    }

    /// All containers are there: the resources of the pod as a whole are in force.
    pub(crate) fn settle_whole(&mut self, pod: &Pod) {
        match whole(pod) {
            Some(own) => drop(self.applied.insert(WHOLE.to_owned(), own.clone())),
            None => drop(self.applied.remove(WHOLE)),
        }
    }

    /// All that was granted is in force.
    pub(crate) fn complete(&mut self) {
        self.progress = Progress::Done;
    }
}

/// Whether what changes in a container does so by another start alone, as its policy has it. Spec:
/// `computePodResizeAction` in pkg/kubelet/kuberuntime/kuberuntime_manager.go v1.36.2.
fn must_restart(container: &Container, have: &ResourceRequirements, goal: &ResourceRequirements) -> bool {
    let policies =
        || container.resize_policy.iter().flatten().filter(|policy| policy.restart_policy == "RestartContainer");
    changed(have, goal).into_iter().any(|name| policies().any(|policy| policy.resource_name == name))
}

/// Whether a container has limits of its pod's for want of its own.
fn inherits(container: &Container) -> bool {
    ["cpu", "memory"].iter().any(|name| limits::limit(container.resources.as_ref(), name).is_none())
}

/// Of what an earlier kubelet granted, the amounts of what the pod itself speaks of: its status tells its containers'
/// as well.
fn keep_to(own: &mut Option<BTreeMap<String, ApiQuantity>>, granted: Option<&BTreeMap<String, ApiQuantity>>) {
    let Some(own) = own else { return };
    own.retain(|name, amount| {
        granted.and_then(|granted| granted.get(name)).is_some_and(|had| {
            amount.clone_from(had);
            true
        })
    });
}

/// The resources of a container together with its pod's: limits of CPU and memory that it lacks are those of its pod.
///
/// Spec: `GetLimits` in pkg/kubelet/util/util.go v1.36.2.
fn held(pod: Option<&ResourceRequirements>, own: &ResourceRequirements) -> ResourceRequirements {
    let mut held = own.clone();
    for name in ["cpu", "memory"].into_iter().filter(|name| limits::limit(Some(own), name).is_none()) {
        if let Some(limit) =
            pod.filter(|pod| limits::limit(Some(pod), name).is_some()).and_then(|pod| pod.limits.as_ref()?.get(name))
        {
            held.limits.get_or_insert_default().insert(name.to_owned(), limit.clone());
        }
    }
    held
}

#[cfg(test)]
mod tests;
