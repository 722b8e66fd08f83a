//! Resizing a pod in place: whether the node grants what the spec asks for now, and bringing the running containers
//! there. Spec: KEP-1287.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use base::chain::Chain;
use base::task::Group;
use k8s_openapi::api::core::v1::{Container, Pod, ResourceRequirements};
use serde_json::json;
use tracing::{info, warn};

use super::Worker;
use crate::cgroups;
use crate::cgroups::limits::Limits;
use crate::container::making::HostFacts;
use crate::container::{self, Role};
use crate::events::Kind;
use crate::pods::observed::State;
use crate::pods::resizing::{Grant, WHOLE, changed, held, resizable, same, whole, wishes, with};

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
            let host = HostFacts::of(&self.node.machine, &self.node.runtime, &self.node.cgroups);
            let mut limits = container::resources(pod, &spec, host);
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
        let limit =
            |resources: Option<&ResourceRequirements>| cgroups::limits::limit(resources, "memory").map(|q| q.value());
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

/// Whether what changes in a container does so by another start alone, as its policy has it. Spec:
/// `computePodResizeAction` in pkg/kubelet/kuberuntime/kuberuntime_manager.go v1.36.2.
fn must_restart(container: &Container, have: &ResourceRequirements, goal: &ResourceRequirements) -> bool {
    let policies =
        || container.resize_policy.iter().flatten().filter(|policy| policy.restart_policy == "RestartContainer");
    changed(have, goal).into_iter().any(|name| policies().any(|policy| policy.resource_name == name))
}

/// Whether a container has limits of its pod's for want of its own.
fn inherits(container: &Container) -> bool {
    ["cpu", "memory"].iter().any(|name| cgroups::limits::limit(container.resources.as_ref(), name).is_none())
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
        limits.cpu_period = cgroups::limits::PERIOD_USEC;
    }
    if limits.memory_limit_in_bytes == 0 {
        limits.memory_limit_in_bytes = -1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pods::resizing::Resizing;
    use k8s_openapi::api::core::v1::PodStatus;

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
}
