//! What a pod asks for and what a node has, in one unit per resource: milli-CPU, bytes, counts.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use model::pod::{Container, Pod, PodStatus, Quantities};
use model::quantity::Quantity;

/// Amounts by resource name: `cpu` in thousandths, everything else in whole units.
pub type Amounts = BTreeMap<String, i64>;

/// A pod without requests still counts as this much when nodes are compared (upstream's `DefaultMilliCPURequest`).
const SCORE_CPU_MILLI: i64 = 100;
/// Likewise `DefaultMemoryRequest`, 200 MiB.
const SCORE_MEMORY_BYTES: i64 = 200 * 1024 * 1024;

fn amounts<'q>(list: impl Iterator<Item = (&'q str, &'q ApiQuantity)>) -> Amounts {
    let parse = |(name, quantity): (&str, &ApiQuantity)| {
        // A quantity that does not parse was refused by the API server; one from elsewhere counts as nothing.
        let quantity: Quantity = quantity.0.parse().ok()?;
        Some((name.to_owned(), if name == "cpu" { quantity.milli_value() } else { quantity.value() }))
    };
    list.filter_map(parse).collect()
}

fn add(into: &mut Amounts, more: &Amounts) {
    for (name, amount) in more {
        let slot = into.entry(name.clone()).or_default();
        *slot = slot.saturating_add(*amount);
    }
}

fn subtract(from: &mut Amounts, part: &Amounts) {
    for (name, amount) in from {
        *amount = amount.saturating_sub(part.get(name).copied().unwrap_or(0)).max(0);
    }
}

fn raise(into: &mut Amounts, to: &Amounts) {
    for (name, amount) in to {
        let slot = into.entry(name.clone()).or_default();
        *slot = (*slot).max(*amount);
    }
}

fn requests(container: &Container) -> Amounts {
    amounts(container.resources.iter().flat_map(|r| &r.requests).flat_map(Quantities::iter))
}

/// What a running container takes: in the middle of a resize the most of what it asks for, what its node has promised,
/// and what it has; if the resize is never to come, of the last two. Spec: upstream's `determineEffectiveRequests`
/// (1.36.2).
fn taken(container: &Container, status: Option<&PodStatus>) -> Amounts {
    let wanted = requests(container);
    let Some(pod) = status else { return wanted };
    let all = pod.container_statuses.iter().flatten().chain(pod.init_container_statuses.iter().flatten());
    let told = all.into_iter().find(|status| status.name == container.name);
    let Some(told) = told.filter(|told| told.resources.is_some()) else { return wanted };
    let mut taken = amounts(told.resources.iter().flat_map(|r| &r.requests).flat_map(Quantities::iter));
    raise(&mut taken, &amounts(told.allocated_resources.iter().flat_map(Quantities::iter)));
    if !is_given_up(pod) {
        raise(&mut taken, &wanted);
    }
    taken
}

/// Whether a pod's resize is never to come.
pub fn is_given_up(status: &PodStatus) -> bool {
    let pending = status.conditions.iter().flatten().find(|c| c.type_ == "PodResizePending");
    pending.is_some_and(|c| c.reason.as_deref() == Some("Infeasible"))
}

/// What a running pod takes of the resources that it asks for as a whole, likewise. Overhead is not counted: a node's
/// promise holds it, and so does what the pod has, but for memory while the pod runs: that is its own word, and CPU is
/// read off its control group.
///
/// Spec: upstream's `PodRequests` (1.36.2), which counts overhead twice, and the kubelet's
/// `convertToAPIPodLevelResourcesStatus`.
fn taken_as_a_whole(wanted: Amounts, overhead: &Amounts, status: Option<&PodStatus>) -> Amounts {
    let Some((status, has)) = status.and_then(|status| Some((status, status.resources.as_ref()?))) else {
        return wanted;
    };
    let told = |list: Option<&Quantities>| amounts(list.into_iter().flat_map(Quantities::iter));
    let mut in_it = overhead.clone();
    let mut taken = told(status.allocated_resources.as_ref());
    subtract(&mut taken, &in_it);
    if status.phase.as_deref() == Some("Running") {
        in_it.retain(|name, _| name == "cpu");
    }
    let mut has = told(has.requests.as_ref());
    subtract(&mut has, &in_it);
    raise(&mut taken, &has);
    if !is_given_up(status) {
        raise(&mut taken, &wanted);
    }
    taken
}

/// What a pod needs at its greediest moment: the sum of its containers and sidecars, or an init container beside the
/// sidecars started before it, whichever is more; plus overhead. Spec: KEP-753, "Resources calculation".
pub fn of_pod(pod: &Pod) -> Amounts {
    let Some(spec) = &pod.spec else { return Amounts::new() };
    let status = pod.status.as_ref();
    let mut running = Amounts::new();
    for container in &spec.containers {
        add(&mut running, &taken(container, status));
    }
    let (mut sidecars, mut starting) = (Amounts::new(), Amounts::new());
    for container in spec.init_containers.iter().flatten() {
        let is_sidecar = container.restart_policy.as_deref() == Some("Always");
        let own = if is_sidecar { taken(container, status) } else { requests(container) };
        let mut moment = sidecars.clone();
        add(&mut moment, &own);
        if is_sidecar {
            add(&mut sidecars, &own);
        }
        raise(&mut starting, &moment);
    }
    add(&mut running, &sidecars);
    raise(&mut running, &starting);
    let overhead = amounts(spec.overhead.iter().flat_map(Quantities::iter));
    if let Some(pod_level) = spec.resources.as_ref().and_then(|r| r.requests.as_ref()) {
        running.extend(taken_as_a_whole(amounts(pod_level.iter()), &overhead, status));
    }
    add(&mut running, &overhead);
    running
}

/// The same, with upstream's stand-ins for pods that name no CPU or memory, so that they do not all pile up on one
/// node.
pub fn of_pod_for_score(pod: &Pod) -> Amounts {
    let mut need = of_pod(pod);
    need.entry("cpu".to_owned()).or_insert(SCORE_CPU_MILLI);
    need.entry("memory".to_owned()).or_insert(SCORE_MEMORY_BYTES);
    need
}

/// What pods on this node may use together.
pub fn allocatable(node: &Node) -> Amounts {
    amounts(
        node.status.iter().flat_map(|s| s.allocatable.iter().flatten()).map(|(name, amount)| (name.as_str(), amount)),
    )
}

/// Adds what `pod` needs to `total`.
pub fn add_pod(total: &mut Amounts, pod: &Pod) {
    add(total, &of_pod(pod));
}

/// Adds what `pod` counts for in comparisons to `total`.
pub fn add_pod_for_score(total: &mut Amounts, pod: &Pod) {
    add(total, &of_pod_for_score(pod));
}
