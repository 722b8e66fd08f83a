//! Resizing a pod in place: whether the node grants what the spec asks for now, and bringing the running containers
//! there. Spec: KEP-1287.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use base::chain::Chain;
use base::task::Group;
use k8s_openapi::api::core::v1::{Container, Pod, PodStatus, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use serde_json::json;
use tracing::{info, warn};

use super::Worker;
use super::observe::State;
use crate::cgroups::{self, Limits};
use crate::container::{self, Role};
use crate::events::Kind;
use crate::manager::{Host, requests};
use crate::sources;
use crate::status::resources;

/// Stands for the pod as a whole among its containers: nobody else has this name.
const WHOLE: &str = "";

/// What of a resize a pod's task remembers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Resizing {
    /// What the node granted, by container; nothing until the pod was admitted.
    allocated: Option<BTreeMap<String, ResourceRequirements>>,
    /// What holds in each running container, by its id, and for the pod as a whole.
    applied: BTreeMap<String, ResourceRequirements>,
    /// What the pod as a whole had when a container was made or changed last, by its id: limits that it lacks are its
    /// pod's.
    under: BTreeMap<String, Option<ResourceRequirements>>,
    /// What the pod's group took in a resize: else it has what was granted.
    group: Option<Limits>,
    /// Why the spec's wish is not granted: reason and text.
    pub(crate) pending: Option<(&'static str, String)>,
    /// Set while containers are not there yet, with the last error.
    pub(crate) progress: Option<Option<String>>,
    /// Containers that must be made again to change.
    pub(crate) restart: BTreeSet<String>,
}

/// The node's answer to a wish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Grant {
    Granted,
    Deferred(String),
    Infeasible(String),
}

fn resizable(pod: &Pod) -> impl Iterator<Item = &Container> {
    container::all(pod).into_iter().map(|(c, _)| c)
}

/// What a pod asks for as a whole, whatever its containers do.
fn whole(pod: &Pod) -> Option<&ResourceRequirements> {
    pod.spec.as_ref()?.resources.as_ref()
}

fn wishes(pod: &Pod) -> BTreeMap<String, ResourceRequirements> {
    let own = whole(pod).map(|resources| (WHOLE.to_owned(), resources.clone()));
    resizable(pod).map(|c| (c.name.clone(), c.resources.clone().unwrap_or_default())).chain(own).collect()
}

/// Requests and limits as numbers, so that `1000m` and `1` are the same.
fn amounts(resources: &ResourceRequirements) -> BTreeMap<(bool, &str), i64> {
    let of = |is_limit: bool, map: &'_ Option<BTreeMap<String, _>>| -> Vec<((bool, String), i64)> {
        let value =
            |name: &str, q| if name == "cpu" { cgroups::parse(q).milli_value() } else { cgroups::parse(q).value() };
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

fn with(pod: &Pod, resources: &BTreeMap<String, ResourceRequirements>) -> Pod {
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
    if sources::is_static(pod) {
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
            |resources: &ResourceRequirements| [true, false].iter().any(|run| same(&self.of_pod(pod, *run), resources));
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

    /// What a running container has for its own part and that of its pod.
    fn held(&self, id: &str, own: &ResourceRequirements) -> ResourceRequirements {
        let under = self.under.get(id).map_or_else(|| self.applied.get(WHOLE), Option::as_ref);
        held(under, own)
    }

    /// What the group of a pod has, which is the pod as it was granted.
    fn in_force(&self, pod: &Pod) -> Limits {
        self.group.unwrap_or_else(|| Limits::of(pod))
    }

    /// What the pod as a whole has, as its status tells. `pod` is the pod as it was granted.
    pub(crate) fn of_pod(&self, pod: &Pod, is_running: bool) -> ResourceRequirements {
        let own = self.applied.get(WHOLE).or(whole(pod));
        resources::of_pod(pod, own, self.in_force(pod), is_running)
    }

    /// What holds in a running container.
    pub(crate) fn applied(&self, id: &str) -> Option<&ResourceRequirements> {
        self.applied.get(id)
    }
}

impl Worker {
    /// Says what the pod has of the node: what it was granted, with no wish that waits.
    fn share_out(&self) {
        let mut shared = self.shared.lock();
        shared.granted = Some(Arc::clone(&self.pod));
        shared.deferred = None;
    }

    /// Takes up a new wish of the spec, if there is one.
    pub(super) fn consider_resize(&mut self, wanted: &Arc<Pod>) {
        let Some(allocated) = &self.resizing.allocated else { return };
        let wish = wishes(wanted);
        let equal = wish.len() == allocated.len()
            && wish.iter().all(|(name, r)| allocated.get(name).is_some_and(|have| same(have, r)));
        if equal {
            self.resizing.pending = None;
            self.resizing.allocated = Some(wish);
            self.pod = Arc::clone(wanted);
            self.share_out();
            return;
        }
        let refused = match self.pods.resize(&self.node.host(), wanted, self.node.clock.now()) {
            Grant::Granted => None,
            Grant::Deferred(why) => Some(("Deferred", why)),
            Grant::Infeasible(why) => Some(("Infeasible", why)),
        };
        if let Some((reason, why)) = refused {
            if self.resizing.pending.as_ref() != Some(&(reason, why.clone())) {
                let text = format!("Pod resize {reason}: {}", self.resize_text(wanted, Some(&why)));
                self.node.events.pod(wanted, None, Kind::Warning, &format!("Resize{reason}"), text);
            }
            self.resizing.pending = Some((reason, why));
            if reason == "Deferred" {
                // Room is made by other pods' ends, of which nobody tells this one.
                self.wake(self.node.clock.now().checked_add(super::RESIZE_RETRY).ok());
            }
            return;
        }
        info!(pod = %self.name(), "resizing a pod");
        self.resizing.group.get_or_insert(Limits::of(&self.pod));
        self.resizing.pending = None;
        self.resizing.progress = Some(None);
        self.resizing.allocated = Some(wish);
        self.pod = Arc::clone(wanted);
        let text = format!("Pod resize started: {}", self.resize_text(wanted, None));
        self.node.events.pod(wanted, None, Kind::Normal, "ResizeStarted", text);
    }

    fn resize_text(&self, pod: &Pod, error: Option<&str>) -> String {
        let of = |is_main: bool| -> Vec<_> {
            let all = container::all(pod).into_iter().filter(|(_, role)| (*role == Role::Main) == is_main);
            all.map(|(c, _)| json!({"name": c.name, "resources": c.resources})).collect()
        };
        let mut text = json!({"containers": of(true), "generation": pod.metadata.generation});
        let init = of(false);
        if !init.is_empty() {
            text["initContainers"] = init.into();
        }
        if let Some(own) = whole(pod) {
            text["resources"] = json!(own);
        }
        if let Some(error) = error {
            text["error"] = json!(error);
        }
        text.to_string()
    }

    /// Brings the running containers to what was granted. Returns whether something is left to do.
    pub(super) async fn apply_resize(&mut self) -> bool {
        self.resizing.restart.clear();
        let ids: BTreeSet<String> = self.observed.containers.iter().map(|c| c.id.clone()).collect();
        self.resizing.applied.retain(|id, _| id == WHOLE || ids.contains(id));
        self.resizing.under.retain(|id, _| ids.contains(id));
        let pod = Arc::clone(&self.pod);
        let mut before = wishes(&pod);
        let mut updates: Vec<(String, Container)> = Vec::new();
        let goal = whole(&pod).cloned();
        let have =
            self.resizing.applied.get(WHOLE).filter(|have| goal.as_ref().is_none_or(|goal| !same(have, goal))).cloned();
        let of_whole = have.is_some() || goal.is_some() != self.resizing.applied.contains_key(WHOLE);
        match have {
            Some(have) => drop(before.insert(WHOLE.to_owned(), have)),
            None if of_whole => drop(before.remove(WHOLE)),
            None => {}
        }
        for spec in resizable(&pod) {
            let Some(seen) = self.observed.latest(&spec.name).filter(|s| s.state == State::Running).cloned() else {
                continue;
            };
            let goal = spec.resources.clone().unwrap_or_default();
            let have = self.resizing.applied.entry(seen.id.clone()).or_insert_with(|| goal.clone()).clone();
            let is_same = same(&have, &goal);
            if is_same {
                self.resizing.applied.insert(seen.id.clone(), goal.clone());
            } else {
                before.insert(spec.name.clone(), have.clone());
            }
            if must_restart(spec, &self.resizing.held(&seen.id, &have), &held(whole(&pod), &goal)) {
                self.resizing.restart.insert(spec.name.clone());
            } else if !is_same || of_whole && inherits(spec) {
                updates.push((seen.id, spec.clone()));
            }
        }
        if let Some(why) = self.below_usage(&pod, &before, &updates).await {
            self.resizing.restart.clear();
            self.fail_resize(&pod, why);
            return true;
        }
        if updates.is_empty() && self.resizing.restart.is_empty() {
            if of_whole {
                self.hold_to(Limits::of(&pod), &pod).await;
            }
            return self.complete_resize(&pod).await;
        }
        let (old, new) = (Limits::of(&with(&pod, &before)), Limits::of(&pod));
        self.hold_to(old.widest(new), &pod).await;
        let error = self.carry_out(&pod, updates).await;
        if self.resizing.restart.is_empty() && error.is_none() {
            self.hold_to(new, &pod).await;
            return self.complete_resize(&pod).await;
        }
        match error {
            Some(why) => self.fail_resize(&pod, why),
            None => self.resizing.progress = Some(None),
        }
        true
    }

    /// It goes on, and is said once.
    fn fail_resize(&mut self, pod: &Arc<Pod>, why: String) {
        if !matches!(self.resizing.progress, Some(Some(_))) {
            let text = format!("Pod resize error: {}", self.resize_text(pod, Some(&why)));
            self.node.events.pod(pod, None, Kind::Warning, "ResizeError", text);
        }
        self.resizing.progress = Some(Some(why));
    }

    /// Tells the runtime the new limits of containers. Returns why one was refused.
    async fn carry_out(&mut self, pod: &Pod, updates: Vec<(String, Container)>) -> Option<String> {
        let mut error = None;
        for (id, spec) in updates {
            let (memory, restrict) = (self.node.machine.memory, self.node.runtime.restrict_oom_score_adj);
            let mut limits = container::resources(pod, &spec, memory, restrict, self.node.cgroups.is_unified());
            lift(&mut limits);
            match self.node.runtime.cri.update_resources(&id, limits).await {
                Ok(()) => self.resizing.made(&id, pod, spec.resources.as_ref()),
                Err(err) => error = Some(err.to_string()),
            }
        }
        error
    }

    /// Why memory limits cannot be lowered to what is asked for: more is in use, and the kernel would kill for it.
    /// Spec: `validateMemoryResizeAction` in pkg/kubelet/kuberuntime/kuberuntime_manager.go v1.36.
    async fn below_usage(
        &self,
        pod: &Pod,
        before: &BTreeMap<String, ResourceRequirements>,
        updates: &[(String, Container)],
    ) -> Option<String> {
        let limit = |resources: Option<&ResourceRequirements>| cgroups::limit(resources, "memory").map(|q| q.value());
        let whole = lowered(Limits::of(&with(pod, before)).memory, Limits::of(pod).memory);
        let lower = |c: &Container| lowered(limit(before.get(&c.name)), limit(c.resources.as_ref()));
        let containers: Vec<_> = updates.iter().filter_map(|(id, c)| Some((id, c, lower(c)?))).collect();
        if whole.is_none() && containers.is_empty() {
            return None;
        }
        let mut why = Vec::new();
        if let Some(limit) = whole {
            why.extend(refusal("pod memory limit", limit, self.node.cgroups.memory_in_use(pod)));
        }
        let stats = if containers.is_empty() {
            Vec::new()
        } else {
            self.node.runtime.cri.container_stats().await.unwrap_or_default()
        };
        for (id, container, limit) in containers {
            let own = stats.iter().find(|s| s.attributes.as_ref().is_some_and(|a| a.id == *id));
            let used = own.and_then(|s| s.memory.as_ref()?.usage_bytes.as_ref()).map(|bytes| bytes.value);
            why.extend(refusal(&format!("container \"{}\" memory limit", container.name), limit, used));
        }
        (!why.is_empty()).then(|| format!("cannot decrease memory limits: {}", why.join(", ")))
    }

    /// Sets the limits of the pod as a whole, and remembers those that its group took.
    async fn hold_to(&mut self, limits: Limits, pod: &Arc<Pod>) {
        let (cgroups, before, pids_max) =
            (self.node.cgroups.clone(), self.resizing.in_force(pod), self.node.config.settings.pod_max_pids);
        let pod = Arc::clone(pod);
        match Group::blocking(move || cgroups.limit(limits, before, &pod, pids_max)).await {
            Ok(now) => self.resizing.group = Some(now),
            Err(err) => warn!(pod = %self.name(), err = %Chain(&err), "cannot set a pod's limits"),
        }
    }

    /// The last step: the limits of the pod as a whole. Returns whether something is left to do, as the kernel did not
    /// take them.
    async fn complete_resize(&mut self, pod: &Arc<Pod>) -> bool {
        match whole(pod) {
            Some(own) => drop(self.resizing.applied.insert(WHOLE.to_owned(), own.clone())),
            None => drop(self.resizing.applied.remove(WHOLE)),
        }
        if self.resizing.progress.is_some() {
            let limits = Limits::of(pod);
            if self.resizing.group != Some(limits) {
                self.hold_to(limits, pod).await;
            }
            if self.resizing.group != Some(limits) {
                self.fail_resize(pod, "the pod's control group did not take its new limits".to_owned());
                return true;
            }
            self.resizing.progress = None;
            let text = format!("Pod resize completed: {}", self.resize_text(pod, None));
            self.node.events.pod(pod, None, Kind::Normal, "ResizeCompleted", text);
        }
        false
    }
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

/// What holds in a container: limits of CPU and memory that it lacks are those of its pod.
///
/// Spec: `GetLimits` in pkg/kubelet/util/util.go v1.36.2.
fn held(pod: Option<&ResourceRequirements>, own: &ResourceRequirements) -> ResourceRequirements {
    let mut held = own.clone();
    for name in ["cpu", "memory"].into_iter().filter(|name| cgroups::limit(Some(own), name).is_none()) {
        if let Some(limit) =
            pod.filter(|pod| cgroups::limit(Some(pod), name).is_some()).and_then(|pod| pod.limits.as_ref()?.get(name))
        {
            held.limits.get_or_insert_default().insert(name.to_owned(), limit.clone());
        }
    }
    held
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
    ["cpu", "memory"].iter().any(|name| cgroups::limit(container.resources.as_ref(), name).is_none())
}

/// The new limit, if it is one where there was none, or a lower one.
fn lowered(old: Option<i64>, new: Option<i64>) -> Option<i64> {
    new.filter(|new| old.is_none_or(|old| *new < old))
}

fn refusal(what: &str, limit: i64, used: Option<u64>) -> Option<String> {
    match used {
        None => Some(format!("missing usage for {what}")),
        Some(used) if used >= u64::try_from(limit).unwrap_or(0) => {
            Some(format!("attempting to set {what} ({limit}) below current usage ({used})"))
        }
        Some(_) => None,
    }
}

/// In an update, 0 means "as it was": a limit that was taken away must be said.
fn lift(limits: &mut k8s_cri::v1::LinuxContainerResources) {
    if limits.cpu_quota == 0 {
        limits.cpu_quota = -1;
        limits.cpu_period = cgroups::PERIOD_USEC;
    }
    if limits.memory_limit_in_bytes == 0 {
        limits.memory_limit_in_bytes = -1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Settings;

    fn pod(cpu: &str) -> Pod {
        serde_json::from_value(
            serde_json::json!({"metadata": {"uid": "u"}, "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]}}),
        )
        .unwrap()
    }

    #[test]
    fn a_wish_is_granted_deferred_or_infeasible() {
        let settings = Settings::default();
        let host = Host::with(&[("cpu", 2000), ("memory", 1 << 30)], &settings);
        let others = [Arc::new(pod("1"))];
        assert_eq!(grant(&host, &pod("1"), &others), Grant::Granted);
        assert!(
            matches!(grant(&host, &pod("1500m"), &others), Grant::Deferred(why) if why == "Node didn't have enough resource: cpu, requested: 1500, used: 1000, capacity: 2000")
        );
        assert!(
            matches!(grant(&host, &pod("3"), &others), Grant::Infeasible(why) if why == "Node didn't have enough capacity: cpu, requested: 3000, capacity: 2000")
        );
    }

    // a resize of the pod as a whole changed the limits of such containers under their feet
    #[test]
    fn a_container_with_its_pods_limit_starts_again_where_its_policy_says_so_and_only_once() {
        let pod = |memory: &str, cpu: &str| -> Pod {
            let policy = json!([{"resourceName": "memory", "restartPolicy": "RestartContainer"}]);
            serde_json::from_value(
                json!({"spec": {"resources": {"limits": {"memory": memory, "cpu": cpu}}, "containers": [
                {"name": "taker", "resizePolicy": policy},
                {"name": "own", "resizePolicy": policy, "resources": {"limits": {"memory": "1Gi"}}}]}}),
            )
            .unwrap()
        };
        let (old, new) = (pod("2Gi", "1"), pod("3Gi", "1"));
        let restarts = |resizing: &Resizing, pod: &Pod| -> Vec<String> {
            let must = |c: &&Container| {
                let own = c.resources.clone().unwrap_or_default();
                must_restart(c, &resizing.held(&c.name, &own), &held(whole(pod), &own))
            };
            pod.spec.as_ref().unwrap().containers.iter().filter(must).map(|c| c.name.clone()).collect()
        };
        let mut resizing = Resizing::default();
        resizing.admit(&old, &PodStatus::default());
        assert!(restarts(&resizing, &old).is_empty(), "an earlier kubelet's containers have what it granted");
        assert_eq!(restarts(&resizing, &new), ["taker"], "what has its own limit is not concerned");
        assert!(restarts(&resizing, &pod("2Gi", "2")).is_empty(), "the policy is about memory");
        resizing.made("taker", &new, None);
        assert!(restarts(&resizing, &new).is_empty(), "the pod's group may be changed later");
    }

    #[test]
    fn limits_that_a_pods_group_does_not_take_are_not_told() {
        let pod: Pod = serde_json::from_value(json!({"metadata": {"uid": "without-a-group"}, "spec": {"containers": [
            {"name": "c", "resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "1", "memory": "64Mi"}}}]}}))
        .unwrap();
        let mut resizing = Resizing::default();
        resizing.admit(&pod, &PodStatus::default());
        let (had, before) = (resizing.of_pod(&pod, true), resizing.in_force(&pod));
        let more = Limits { shares: 4096, quota: Some(400_000), memory: Some(1 << 30) };
        resizing.group = Some(cgroups::Cgroups::of_tests().limit(more, before, &pod, Some(64)));
        assert_eq!(resizing.of_pod(&pod, true), had, "the pod has no group on this machine");
        resizing.group = Some(more);
        assert_ne!(resizing.of_pod(&pod, true), had);
    }

    // review node.md M12
    #[test]
    fn memory_limits_do_not_fall_below_what_is_in_use() {
        assert_eq!((lowered(Some(8), Some(4)), lowered(None, Some(4))), (Some(4), Some(4)));
        assert_eq!((lowered(Some(4), Some(8)), lowered(Some(4), Some(4)), lowered(Some(4), None)), (None, None, None));
        let why = refusal("container \"c\" memory limit", 4, Some(5)).unwrap();
        assert_eq!(why, "attempting to set container \"c\" memory limit (4) below current usage (5)");
        assert_eq!(refusal("pod memory limit", 4, Some(3)), None);
        assert!(refusal("pod memory limit", 4, None).is_some(), "what nobody knows is no leave");
    }

    #[test]
    fn what_was_granted_stands_in_for_the_wish_and_equal_amounts_are_no_change() {
        let mut resizing = Resizing::default();
        resizing.admit(&pod("1"), &PodStatus::default());
        let asked = Arc::new(pod("2"));
        assert_eq!(requests(&resizing.effective(&asked), "cpu"), 1000);
        let whole = |cpu: &str| {
            let mut pod = pod("1");
            let own = json!({"requests": {"cpu": cpu}});
            pod.spec.as_mut().unwrap().resources = Some(serde_json::from_value(own).unwrap());
            Arc::new(pod)
        };
        let mut resizing = Resizing::default();
        resizing.admit(&whole("2"), &PodStatus::default());
        assert_eq!(
            requests(&resizing.effective(&whole("3")), "cpu"),
            2000,
            "a wish of the pod as a whole waits for its grant, too"
        );
        let with_init = |cpu: &str| {
            let init = json!([{"name": "i", "resources": {"requests": {"cpu": cpu}}}]);
            let mut pod = pod("1");
            pod.spec.as_mut().unwrap().init_containers = Some(serde_json::from_value(init).unwrap());
            Arc::new(pod)
        };
        let mut resizing = Resizing::default();
        resizing.admit(&with_init("2"), &PodStatus::default());
        assert_eq!(
            requests(&resizing.effective(&with_init("3")), "cpu"),
            2000,
            "so does one of a container that goes before"
        );
        let of = |cpu: &str| wishes(&pod(cpu)).remove("c").unwrap();
        assert!(same(&of("1"), &of("1000m")));
        assert_eq!(changed(&of("1"), &of("2")), ["cpu"].into());
    }
}
