//! Which pods of a StatefulSet are made, renewed and given up next, and in which order. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{ControllerRevision, StatefulSet, StatefulSetStatus};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod as WholePod, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::ResourceExt as _;
use model::phase;
use model::pod::Pod;

use super::identity::{self, Ordinals, Owners, REVISION_LABEL};
use crate::history;

/// One request, or a few that belong together.
#[derive(Debug)]
pub(super) enum Action {
    /// Make the claims that are missing, then the pod.
    Create { pod: Box<WholePod>, claims: Vec<PersistentVolumeClaim> },
    /// A pod that waits for claims which somebody deleted.
    MakeClaims { pod: Arc<Pod>, claims: Vec<PersistentVolumeClaim> },
    /// Write the pod's identity again.
    Relabel { pod: Arc<Pod>, labels: BTreeMap<String, String> },
    /// Owner with which the claim goes, by the retention policy.
    OwnClaim { claim: Arc<PersistentVolumeClaim>, owners: Vec<OwnerReference> },
    /// The retention policy cannot be followed for this claim.
    Conflict { claim: Arc<PersistentVolumeClaim> },
    /// A pod that has ended; it comes again.
    Recreate(Arc<Pod>),
    /// An old pod, or one too many.
    Delete(Arc<Pod>),
}

/// The next steps and what is so far.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) actions: Vec<Action>,
    pub(super) status: StatefulSetStatus,
    pub(super) look_again_secs: Option<u64>,
}

/// Facts that the plan looks at.
pub(super) struct View<'a> {
    pub(super) set: &'a StatefulSet,
    pub(super) current: &'a ControllerRevision,
    pub(super) update: &'a ControllerRevision,
    pub(super) collisions: i32,
    /// The set's own pods.
    pub(super) pods: &'a [Arc<Pod>],
    /// A claim of the set's namespace by name.
    pub(super) claim: &'a dyn Fn(&str) -> Option<Arc<PersistentVolumeClaim>>,
    pub(super) now: Timestamp,
}

/// Whether work on further pods may go on.
#[derive(PartialEq)]
enum Go {
    On,
    Stop,
}

fn is_running_and_ready(pod: &Pod) -> bool {
    phase::phase(pod) == "Running" && phase::is_ready(pod)
}

fn is_terminating(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

fn revision_of(pod: &Pod) -> &str {
    pod.metadata.labels.as_ref().and_then(|labels| labels.get(REVISION_LABEL)).map_or("", String::as_str)
}

impl View<'_> {
    fn min_ready_secs(&self) -> i32 {
        self.set.spec.as_ref().and_then(|s| s.min_ready_seconds).unwrap_or(0)
    }

    fn is_available(&self, pod: &Pod) -> bool {
        is_running_and_ready(pod) && phase::is_available(pod, self.min_ready_secs(), self.now)
    }

    fn is_parallel(&self) -> bool {
        self.set.spec.as_ref().and_then(|s| s.pod_management_policy.as_deref()) == Some("Parallel")
    }

    fn is_on_delete(&self) -> bool {
        self.set.spec.as_ref().and_then(|s| s.update_strategy.as_ref()).and_then(|s| s.type_.as_deref())
            == Some("OnDelete")
    }

    /// Pods with an index below this stay as they are in a rolling update.
    fn partition(&self) -> i32 {
        let strategy = self.set.spec.as_ref().and_then(|s| s.update_strategy.as_ref());
        strategy.and_then(|s| s.rolling_update.as_ref()).and_then(|r| r.partition).unwrap_or(0)
    }

    fn max_unavailable(&self) -> i32 {
        let strategy = self.set.spec.as_ref().and_then(|s| s.update_strategy.as_ref());
        let bound = strategy.and_then(|s| s.rolling_update.as_ref()).and_then(|r| r.max_unavailable.clone());
        let n = match bound {
            Some(IntOrString::Int(n)) => n,
            Some(IntOrString::String(text)) => {
                Ordinals::of(self.set).n * text.trim_end_matches('%').parse::<i32>().unwrap_or(0) / 100
            }
            None => 1,
        };
        n.max(1)
    }

    /// The pod to make at an ordinal: of the current revision below the partition, of the newest one from there on.
    fn fresh(&self, ordinal: i32) -> WholePod {
        let kept = !self.is_on_delete() && ordinal < Ordinals::of(self.set).first + self.partition();
        let revision = if kept { self.current } else { self.update };
        let own: PodTemplateSpec = self.set.spec.as_ref().map(|s| s.template.clone()).unwrap_or_default();
        let template = history::template_of(revision).unwrap_or(own);
        identity::pod(self.set, &template, &revision.name_any(), ordinal)
    }
}

/// Decides the next steps. Spec: upstream's `defaultStatefulSetControl.updateStatefulSet`.
pub(super) fn plan(view: &View<'_>) -> Plan {
    let mut plan = Plan { status: status(view), ..Plan::default() };
    let waiting = view.pods.iter().any(|pod| is_running_and_ready(pod) && !view.is_available(pod));
    plan.look_again_secs = waiting.then(|| u64::try_from(view.min_ready_secs()).unwrap_or(1).max(1));
    let ordinals = Ordinals::of(view.set);
    let mut by_ordinal: BTreeMap<i32, Arc<Pod>> = BTreeMap::new();
    for pod in view.pods {
        if let Some(ordinal) = identity::ordinal(view.set, pod) {
            by_ordinal.insert(ordinal, Arc::clone(pod));
        }
    }
    for ordinal in ordinals.all() {
        if replica(view, ordinal, by_ordinal.get(&ordinal), &mut plan) == Go::Stop {
            return plan;
        }
    }
    let condemned: Vec<Arc<Pod>> =
        by_ordinal.iter().rev().filter(|(n, _)| !ordinals.contains(**n)).map(|(_, pod)| Arc::clone(pod)).collect();
    if give_up(view, &condemned, &by_ordinal, &mut plan) == Go::Stop || view.is_on_delete() {
        return plan;
    }
    renew(view, &by_ordinal, &mut plan);
    plan
}

/// One pod that should be there. In order, the next one waits until this one is available.
fn replica(view: &View<'_>, ordinal: i32, pod: Option<&Arc<Pod>>, plan: &mut Plan) -> Go {
    let wait = if view.is_parallel() { Go::On } else { Go::Stop };
    let missing = || -> Vec<PersistentVolumeClaim> {
        let claims = identity::claims(view.set, ordinal).into_iter().map(|(_, claim)| claim);
        claims.filter(|claim| (view.claim)(&claim.name_any()).is_none()).collect()
    };
    let Some(pod) = pod else {
        let pod = view.fresh(ordinal);
        let name = pod.name_any();
        let claims = identity::claims(view.set, ordinal);
        let stale = claims
            .iter()
            .filter_map(|(_, claim)| (view.claim)(&claim.name_any()))
            .any(|claim| identity::is_stale(&claim, &name, None));
        if stale {
            // The claim goes with the pod that had this name; a new one can be made after that.
            plan.look_again_secs = Some(plan.look_again_secs.unwrap_or(1).min(1));
            return wait;
        }
        plan.actions.push(Action::Create { pod: Box::new(pod), claims: missing() });
        return wait;
    };
    if phase::has_ended(pod) {
        if !is_terminating(pod) {
            plan.actions.push(Action::Recreate(Arc::clone(pod)));
        }
        return wait;
    }
    if phase::phase(pod) == "Pending" && !is_terminating(pod) {
        let claims = missing();
        if !claims.is_empty() {
            plan.actions.push(Action::MakeClaims { pod: Arc::clone(pod), claims });
        }
    }
    if !view.is_parallel() && (is_terminating(pod) || !view.is_available(pod)) {
        return Go::Stop;
    }
    if !is_terminating(pod) {
        if let Some(labels) = identity::missing_labels(view.set, pod, ordinal) {
            plan.actions.push(Action::Relabel { pod: Arc::clone(pod), labels });
        }
        own_claims(view, pod, ordinal, plan);
    }
    Go::On
}

fn own_claims(view: &View<'_>, pod: &Arc<Pod>, ordinal: i32, plan: &mut Plan) {
    for (_, claim) in identity::claims(view.set, ordinal) {
        let Some(claim) = (view.claim)(&claim.name_any()) else { continue };
        match identity::claim_owners(view.set, pod, &claim) {
            Owners::Right => {}
            Owners::Become(owners) => plan.actions.push(Action::OwnClaim { claim, owners }),
            Owners::Conflict => plan.actions.push(Action::Conflict { claim }),
        }
    }
}

/// Pods beyond the wanted number go, the highest ordinal first; in order, one at a time and only while the others are
/// well.
fn give_up(view: &View<'_>, condemned: &[Arc<Pod>], all: &BTreeMap<i32, Arc<Pod>>, plan: &mut Plan) -> Go {
    for pod in condemned {
        if let Some(ordinal) = identity::ordinal(view.set, pod) {
            own_claims(view, pod, ordinal, plan);
        }
    }
    let ill = |pod: &&Arc<Pod>| !is_running_and_ready(pod) || is_terminating(pod);
    let ordinals = Ordinals::of(view.set);
    let (wanted, rest): (Vec<_>, Vec<_>) = all.iter().partition(|(n, _)| ordinals.contains(**n));
    let first_ill = wanted.into_iter().chain(rest).map(|(_, pod)| pod).find(ill);
    for pod in condemned {
        if view.is_parallel() {
            if !is_terminating(pod) {
                plan.actions.push(Action::Delete(Arc::clone(pod)));
            }
            continue;
        }
        let is_first_ill = first_ill.is_some_and(|first| Arc::ptr_eq(first, pod));
        if !is_terminating(pod) && (view.is_available(pod) || is_first_ill) {
            plan.actions.push(Action::Delete(Arc::clone(pod)));
        }
        return Go::Stop;
    }
    Go::On
}

/// A rolling update: from the highest ordinal down to the partition, never more than `maxUnavailable` without an
/// available pod. One that serves nobody counts as well: it may be all that still has its data, and its renewal is not
/// the only one that waits.
fn renew(view: &View<'_>, by_ordinal: &BTreeMap<i32, Arc<Pod>>, plan: &mut Plan) {
    let ordinals = Ordinals::of(view.set);
    let update = view.update.name_any();
    let replicas: Vec<(i32, Option<&Arc<Pod>>)> = ordinals.all().map(|n| (n, by_ordinal.get(&n))).collect();
    let serves = |pod: &Pod| view.is_available(pod) && !is_terminating(pod);
    let unavailable = replicas.iter().filter(|(_, pod)| pod.is_none_or(|pod| !serves(pod))).count();
    let budget = usize::try_from(view.max_unavailable()).unwrap_or(0).saturating_sub(unavailable);
    let old = replicas.into_iter().rev().take_while(|(ordinal, _)| *ordinal >= ordinals.first + view.partition());
    let old = old
        .filter_map(|(_, pod)| pod)
        .filter(|pod| revision_of(pod) != update && !is_terminating(pod) && !phase::has_ended(pod));
    plan.actions.extend(old.take(budget).map(|pod| Action::Delete(Arc::clone(pod))));
}

fn status(view: &View<'_>) -> StatefulSetStatus {
    let count = |test: &dyn Fn(&Pod) -> bool| {
        i32::try_from(view.pods.iter().filter(|pod| test(pod)).count()).unwrap_or(i32::MAX)
    };
    let positive = |n: i32| (n > 0).then_some(n);
    let created = |pod: &Pod| !phase::phase(pod).is_empty();
    let of = |name: String| count(&|pod| created(pod) && !is_terminating(pod) && revision_of(pod) == name);
    let (current, update) = (view.current.name_any(), view.update.name_any());
    let old = view.set.status.clone().unwrap_or_default();
    let mut status = StatefulSetStatus {
        observed_generation: view.set.metadata.generation,
        replicas: count(&created),
        ready_replicas: positive(count(&is_running_and_ready)),
        available_replicas: Some(count(&|pod| view.is_available(pod))),
        current_replicas: positive(of(current.clone())),
        updated_replicas: positive(of(update.clone())),
        current_revision: Some(current),
        update_revision: Some(update),
        collision_count: Some(view.collisions),
        conditions: old.conditions,
    };
    let wanted = positive(Ordinals::of(view.set).n);
    // A rolling update ends when every pod is new and ready.
    if !view.is_on_delete()
        && status.updated_replicas == wanted
        && status.ready_replicas == wanted
        && status.replicas == wanted.unwrap_or(0)
    {
        status.current_replicas = status.updated_replicas;
        status.current_revision = status.update_revision.clone();
    }
    status
}
