//! Resizing a pod in place: whether the node grants what the spec asks for now, and bringing the running containers
//! there. Spec: KEP-1287.

use std::collections::BTreeMap;
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
use crate::pods::resizing::{Grant, Progress, Steps, whole, with};

impl Worker {
    /// Says what the pod has of the node: what it was granted, with no wish that waits.
    fn share_out(&self) {
        let mut shared = self.shared.lock();
        shared.granted = Some(Arc::clone(&self.pod));
        shared.deferred = None;
    }

    /// Takes up a new wish of the spec, if there is one.
    pub(super) fn consider_resize(&mut self, wanted: &Arc<Pod>) {
        let Some(is_new) = self.resizing.is_new_wish(wanted) else { return };
        if !is_new {
            self.resizing.keep(wanted);
            self.pod = Arc::clone(wanted);
            self.share_out();
            return;
        }
        let answer = self.pods.resize(&self.node.host(), wanted, self.node.clock.now());
        if let Some((reason, why)) = answer.refusal() {
            let text = format!("Pod resize {reason}: {}", self.resize_text(wanted, Some(why)));
            if matches!(answer, Grant::Deferred(_)) {
                // Room is made by other pods' ends, of which nobody tells this one.
                self.wake(self.node.clock.now().checked_add(super::RESIZE_RETRY).ok());
            }
            if self.resizing.refuse(answer.clone()) {
                self.node.events.pod(wanted, None, Kind::Warning, &format!("Resize{reason}"), text);
            }
            return;
        }
        info!(pod = %self.name(), "resizing a pod");
        self.resizing.grant(&self.pod, wanted);
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
        let pod = Arc::clone(&self.pod);
        let Steps { before, updates, is_of_whole } = self.resizing.steps(&pod, &self.observed);
        if let Some(why) = self.below_usage(&pod, &before, &updates).await {
            self.resizing.spare();
            self.fail_resize(&pod, why);
            return true;
        }
        if updates.is_empty() && self.resizing.restart().is_empty() {
            if is_of_whole {
                self.hold_to(Limits::of(&pod), &pod).await;
            }
            return self.complete_resize(&pod).await;
        }
        let (old, new) = (Limits::of(&with(&pod, &before)), Limits::of(&pod));
        self.hold_to(old.widest(new), &pod).await;
        let error = self.carry_out(&pod, updates).await;
        if self.resizing.restart().is_empty() && error.is_none() {
            self.hold_to(new, &pod).await;
            return self.complete_resize(&pod).await;
        }
        match error {
            Some(why) => self.fail_resize(&pod, why),
            None => self.resizing.proceed(),
        }
        true
    }

    /// It goes on, and is said once.
    fn fail_resize(&mut self, pod: &Arc<Pod>, why: String) {
        if self.resizing.fail(why.clone()) {
            let text = format!("Pod resize error: {}", self.resize_text(pod, Some(&why)));
            self.node.events.pod(pod, None, Kind::Warning, "ResizeError", text);
        }
    }

    /// Tells the runtime the new limits of containers. Returns why one was refused.
    async fn carry_out(&mut self, pod: &Pod, updates: Vec<(String, Container)>) -> Option<String> {
        let mut error = None;
        for (id, spec) in updates {
            let host =
                HostFacts::of(&self.node.machine, &self.node.runtime, &self.node.cgroups, &self.node.config.settings);
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
            Ok(now) => self.resizing.group_took(now),
            Err(err) => warn!(pod = %self.name(), err = %Chain(&err), "cannot set a pod's limits"),
        }
    }

    /// The last step: the limits of the pod as a whole. Returns whether something is left to do, as the kernel did not
    /// take them.
    async fn complete_resize(&mut self, pod: &Arc<Pod>) -> bool {
        self.resizing.settle_whole(pod);
        if *self.resizing.progress() != Progress::Done {
            let limits = Limits::of(pod);
            if !self.resizing.has_taken(limits) {
                self.hold_to(limits, pod).await;
            }
            if !self.resizing.has_taken(limits) {
                self.fail_resize(pod, "the pod's control group did not take its new limits".to_owned());
                return true;
            }
            self.resizing.complete();
            let text = format!("Pod resize completed: {}", self.resize_text(pod, None));
            self.node.events.pod(pod, None, Kind::Normal, "ResizeCompleted", text);
        }
        false
    }
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
