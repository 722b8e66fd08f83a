//! Which nodes get a pod, which pods go, and which are renewed next. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{DaemonSet, DaemonSetStatus};
use k8s_openapi::api::core::v1::{
    Node, NodeSelectorRequirement, NodeSelectorTerm, Pod as WholePod, PodSpec, Toleration,
};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::ResourceExt as _;
use model::pod::Pod;
use model::selectors;
use model::taints::tolerates;

use model::{owners, phase};

pub(super) const HASH_LABEL: &str = "controller-revision-hash";

/// How a daemon pod came to its end; it should have none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// The next one on its node waits.
    Failed {
        node: String,
        text: String,
    },
    Succeeded {
        text: String,
    },
}

/// The time, and what is left of the wait before a failed pod of a node may go.
pub(super) type Times<'a> = (Timestamp, &'a dyn Fn(&str) -> Option<Duration>);

/// The next step of a DaemonSet.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// Nodes that get a pod.
    pub(super) create: Vec<String>,
    /// Pods that go, and how they ended if they did.
    pub(super) delete: Vec<(Arc<Pod>, Option<Ended>)>,
    pub(super) status: DaemonSetStatus,
    pub(super) look_again_secs: Option<u64>,
}

/// A pod to make.
#[derive(Clone, Copy)]
pub(super) struct Fresh<'a> {
    pub(super) node: &'a str,
    /// The revision of the template.
    pub(super) hash: &'a str,
}

/// A pod of the set for one node: the scheduler binds it there and nowhere else.
pub(super) fn pod(set: &DaemonSet, Fresh { node, hash }: Fresh<'_>) -> WholePod {
    let template = set.spec.as_ref().map(|s| s.template.clone()).unwrap_or_default();
    let mut pod = phase::from_template(
        &template,
        &set.name_any(),
        &set.namespace().unwrap_or_default(),
        owners::reference_to(set),
    );
    let labels = pod.metadata.labels.get_or_insert_default();
    labels.insert(HASH_LABEL.to_owned(), hash.to_owned());
    labels.insert("pod-template-generation".to_owned(), set.metadata.generation.unwrap_or(1).to_string());
    let Some(spec) = pod.spec.as_mut() else { return pod };
    *spec.tolerations.get_or_insert_default() = tolerations(spec);
    let by_name = NodeSelectorRequirement {
        key: "metadata.name".to_owned(),
        operator: "In".to_owned(),
        values: Some(vec![node.to_owned()]),
    };
    let affinity = spec.affinity.get_or_insert_default().node_affinity.get_or_insert_default();
    let terms =
        &mut affinity.required_during_scheduling_ignored_during_execution.get_or_insert_default().node_selector_terms;
    if terms.is_empty() {
        terms.push(NodeSelectorTerm::default());
    }
    terms.iter_mut().for_each(|term| term.match_fields = Some(vec![by_name.clone()]));
    pod
}

/// The template's tolerations and those that every daemon has. Spec: upstream's `AddOrUpdateDaemonPodTolerations`.
fn tolerations(spec: &PodSpec) -> Vec<Toleration> {
    let mut all = spec.tolerations.clone().unwrap_or_default();
    let network = spec.host_network == Some(true);
    for (key, effect) in [
        ("not-ready", "NoExecute"),
        ("unreachable", "NoExecute"),
        ("disk-pressure", "NoSchedule"),
        ("memory-pressure", "NoSchedule"),
        ("pid-pressure", "NoSchedule"),
        ("unschedulable", "NoSchedule"),
        ("network-unavailable", "NoSchedule"),
    ] {
        if key == "network-unavailable" && !network {
            continue;
        }
        let toleration = Toleration {
            key: Some(format!("node.kubernetes.io/{key}")),
            operator: Some("Exists".to_owned()),
            effect: Some(effect.to_owned()),
            ..Toleration::default()
        };
        if !all.contains(&toleration) {
            all.push(toleration);
        }
    }
    all
}

/// Whether the node should get a pod, and whether a pod that runs there may stay.
fn suits(spec: &PodSpec, node: &Node) -> (bool, bool) {
    let name = node.name_any();
    let labels = node.labels();
    let fits = spec.node_name.as_deref().is_none_or(|wanted| wanted.is_empty() || wanted == name)
        && spec.node_selector.as_ref().is_none_or(|wanted| selectors::includes(wanted, Some(labels)))
        && selectors::affinity_allows(spec.affinity.as_ref(), &name, labels);
    let tolerations = tolerations(spec);
    let refused = |effects: &[&str]| {
        let taints = node.spec.iter().flat_map(|s| s.taints.iter().flatten());
        taints
            .filter(|t| effects.contains(&t.effect.as_str()))
            .any(|taint| !tolerations.iter().any(|t| tolerates(t, taint)))
    };
    (fits && !refused(&["NoSchedule", "NoExecute"]), fits && !refused(&["NoExecute"]))
}

/// The node a pod runs on, or is bound to by its affinity before the scheduler has seen it.
fn node_of(pod: &Pod) -> Option<String> {
    let spec = pod.spec.as_ref()?;
    if let Some(name) = spec.node_name.clone().filter(|name| !name.is_empty()) {
        return Some(name);
    }
    let required =
        spec.affinity.as_ref()?.node_affinity.as_ref()?.required_during_scheduling_ignored_during_execution.as_ref()?;
    let fields = required.node_selector_terms.first()?.match_fields.as_ref()?;
    fields.iter().find(|f| f.key == "metadata.name")?.values.as_ref()?.first().cloned()
}

/// Decides the next step.
pub(super) fn plan(set: &DaemonSet, nodes: &[Arc<Node>], owned: &[Arc<Pod>], hash: &str, times: Times<'_>) -> Plan {
    let (now, _) = times;
    let Some(spec) = &set.spec else { return Plan::default() };
    let template = spec.template.spec.clone().unwrap_or_default();
    let min_ready = spec.min_ready_seconds.unwrap_or(0);
    let mut on_node: BTreeMap<String, Vec<Arc<Pod>>> = BTreeMap::new();
    for pod in owned {
        on_node.entry(node_of(pod).unwrap_or_default()).or_default().push(Arc::clone(pod));
    }
    let mut plan = Plan::default();
    let (mut desired, mut misscheduled) = (0, 0);
    let mut placed: Vec<Option<Arc<Pod>>> = Vec::new();
    let mut slots: Vec<(String, Vec<Arc<Pod>>)> = Vec::new();
    for node in nodes {
        let (run, stay) = suits(&template, node);
        let mut here = on_node.remove(&node.name_any()).unwrap_or_default();
        here.sort_by_key(|pod| (pod.metadata.creation_timestamp.clone(), pod.name_any()));
        misscheduled += i32::from(!run && here.iter().any(|p| phase::is_active(p)));
        desired += i32::from(run);
        if run {
            placed.push(here.iter().find(|p| p.metadata.deletion_timestamp.is_none()).cloned());
        }
        on_one_node(set, &node.name_any(), (run, stay), &here, (hash, times), &mut plan);
        if run {
            slots.push((node.name_any(), here));
        }
    }
    let surge = bound(set, Bound::Surge, desired);
    if surge > 0 {
        surge_renew(set, surge, &slots, hash, now, &mut plan);
    } else {
        renew(set, desired, &placed, hash, now, &mut plan);
    }
    let count = |test: &dyn Fn(&Pod) -> bool| {
        i32::try_from(placed.iter().flatten().filter(|pod| test(pod)).count()).unwrap_or(i32::MAX)
    };
    let available = count(&|pod| phase::is_available(pod, min_ready, now));
    let old = set.status.clone().unwrap_or_default();
    plan.status = DaemonSetStatus {
        current_number_scheduled: count(&|_| true),
        desired_number_scheduled: desired,
        number_misscheduled: misscheduled,
        number_ready: count(&phase::is_ready),
        number_available: Some(available).filter(|n| *n > 0),
        number_unavailable: Some(desired - available).filter(|n| *n > 0),
        updated_number_scheduled: Some(count(&|pod| is_updated(pod, hash))).filter(|n| *n > 0),
        observed_generation: set.metadata.generation,
        ..old
    };
    let waits = min_ready > 0 && count(&phase::is_ready) > available;
    if waits {
        look_again(&mut plan, u64::try_from(min_ready).unwrap_or(1));
    }
    plan
}

fn look_again(plan: &mut Plan, secs: u64) {
    plan.look_again_secs = Some(plan.look_again_secs.map_or(secs, |other| other.min(secs)));
}

fn is_updated(pod: &Pod, hash: &str) -> bool {
    pod.labels().get(HASH_LABEL).is_some_and(|label| label == hash)
}

fn on_one_node(
    set: &DaemonSet,
    node: &str,
    (run, stay): (bool, bool),
    here: &[Arc<Pod>],
    (hash, times): (&str, Times<'_>),
    plan: &mut Plan,
) {
    let (now, left) = times;
    let live: Vec<&Arc<Pod>> = here.iter().filter(|pod| pod.metadata.deletion_timestamp.is_none()).collect();
    if !stay {
        plan.delete.extend(live.into_iter().map(|pod| (Arc::clone(pod), None)));
        return;
    }
    // With a surge, nobody waits for the end of one that was deleted.
    let surges = bound(set, Bound::Surge, 1) > 0;
    let is_free = if surges { live.is_empty() } else { here.is_empty() };
    if run && is_free {
        plan.create.push(node.to_owned());
    }
    for pod in live.iter().filter(|pod| phase::has_ended(pod)) {
        let key = format!("{}/{}", set.namespace().unwrap_or_default(), pod.name_any());
        let why = if phase::phase(pod) == "Succeeded" {
            Ended::Succeeded { text: format!("Found succeeded daemon pod {key} on node {node}, will try to delete it") }
        } else if let Some(left) = left(node) {
            look_again(plan, left.as_secs() + 1);
            continue;
        } else {
            Ended::Failed {
                node: node.to_owned(),
                text: format!("Found failed daemon pod {key} on node {node}, will try to kill it"),
            }
        };
        plan.delete.push((Arc::clone(pod), Some(why)));
    }
    if surges {
        let min_ready = set.spec.as_ref().and_then(|s| s.min_ready_seconds).unwrap_or(0);
        let (new, old): (Vec<&Arc<Pod>>, Vec<_>) =
            live.iter().copied().filter(|pod| !phase::has_ended(pod)).partition(|pod| is_updated(pod, hash));
        // One old and one new, as long as the old one serves and the new one does not yet.
        let surplus = new.iter().skip(1).chain(old.iter().skip(1));
        plan.delete.extend(surplus.map(|pod| (Arc::clone(pod), None)));
        if let (Some(new), Some(old)) = (new.first(), old.first())
            && (!phase::is_ready(old) || phase::is_available(new, min_ready, now))
        {
            plan.delete.push((Arc::clone(old), None));
        }
        return;
    }
    // Two on one node: the older one stays.
    let running = live.iter().filter(|pod| !phase::has_ended(pod)).skip(1);
    plan.delete.extend(running.map(|pod| (Arc::clone(pod), None)));
}

enum Bound {
    Surge,
    Unavailable,
}

/// A bound of the rolling update in pods; percentages round up.
fn bound(set: &DaemonSet, which: Bound, desired: i32) -> i32 {
    let rolling = set.spec.as_ref().and_then(|s| s.update_strategy.as_ref()).and_then(|s| s.rolling_update.as_ref());
    let (value, default) = match which {
        Bound::Surge => (rolling.and_then(|r| r.max_surge.clone()), 0),
        Bound::Unavailable => (rolling.and_then(|r| r.max_unavailable.clone()), 1),
    };
    match value {
        Some(IntOrString::Int(n)) => n,
        Some(IntOrString::String(text)) => {
            (desired * text.trim_end_matches('%').parse::<i32>().unwrap_or(0) + 99) / 100
        }
        None => default,
    }
}

/// With a surge, new pods start beside the old ones on at most `surge` nodes at once; the old one goes when the new one
/// serves.
fn surge_renew(
    set: &DaemonSet,
    surge: i32,
    slots: &[(String, Vec<Arc<Pod>>)],
    hash: &str,
    now: Timestamp,
    plan: &mut Plan,
) {
    if set.spec.as_ref().and_then(|s| s.update_strategy.as_ref()).and_then(|s| s.type_.as_deref()) == Some("OnDelete") {
        return;
    }
    let min_ready = set.spec.as_ref().and_then(|s| s.min_ready_seconds).unwrap_or(0);
    let (mut surging, mut free, mut candidates) = (0, Vec::new(), Vec::new());
    for (node, here) in slots {
        let (new, old): (Vec<&Arc<Pod>>, Vec<_>) =
            here.iter().filter(|pod| phase::is_active(pod)).partition(|pod| is_updated(pod, hash));
        match (new.first(), old.first()) {
            (_, None) => {}
            // Unavailable, so nothing is lost by a second one.
            (None, Some(old)) if !phase::is_available(old, min_ready, now) => free.push(node.clone()),
            (None, Some(_)) => candidates.push(node.clone()),
            // The old one goes in `on_one_node` once the new one is available.
            (Some(new), Some(_)) => surging += i32::from(!phase::is_available(new, min_ready, now)),
        }
    }
    let room = usize::try_from(surge - surging).unwrap_or(0);
    plan.create.extend(free.into_iter().chain(candidates.into_iter().take(room)));
}

/// A rolling update takes old pods away, at most `maxUnavailable` nodes being without an available pod; new ones follow
/// by themselves.
fn renew(set: &DaemonSet, desired: i32, placed: &[Option<Arc<Pod>>], hash: &str, now: Timestamp, plan: &mut Plan) {
    let strategy = set.spec.as_ref().and_then(|s| s.update_strategy.as_ref());
    if strategy.and_then(|s| s.type_.as_deref()) == Some("OnDelete") {
        return;
    }
    let min_ready = set.spec.as_ref().and_then(|s| s.min_ready_seconds).unwrap_or(0);
    let max_unavailable = bound(set, Bound::Unavailable, desired).max(1);
    let available = |pod: &Pod| phase::is_available(pod, min_ready, now);
    let going = |pod: &Arc<Pod>| plan.delete.iter().any(|(other, _)| Arc::ptr_eq(other, pod));
    let unavailable = placed.iter().filter(|slot| slot.as_ref().is_none_or(|pod| !available(pod))).count();
    let mut budget = max_unavailable - i32::try_from(unavailable).unwrap_or(i32::MAX);
    let old: Vec<Arc<Pod>> =
        placed.iter().flatten().filter(|pod| !is_updated(pod, hash) && !going(pod)).cloned().collect();
    for pod in old {
        // An old pod that serves nobody costs nothing.
        if !available(&pod) {
            plan.delete.push((pod, None));
        } else if budget > 0 {
            budget -= 1;
            plan.delete.push((pod, None));
        }
    }
}
