//! Requests: what a pod asks for, in one unit per resource: milli-CPU, bytes, counts.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{self, Node};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;

use crate::pod::{Container, Pod, PodStatus, Quantities};
use crate::quantity::Quantity;

/// Amounts by resource name: `cpu` in thousandths, everything else in whole units.
pub type Amounts = BTreeMap<String, i64>;

fn amounts<'q>(list: impl Iterator<Item = (&'q str, &'q ApiQuantity)>) -> Amounts {
    let parse = |(name, quantity): (&str, &ApiQuantity)| {
        // A quantity that does not parse was refused by the API server; one from elsewhere counts as nothing.
        let quantity: Quantity = quantity.0.parse().ok()?;
        Some((name.to_owned(), if name == "cpu" { quantity.milli_value() } else { quantity.value() }))
    };
    list.filter_map(parse).collect()
}

/// Adds `more` to `into`.
pub fn add(into: &mut Amounts, more: &Amounts) {
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

/// Amounts that a running container takes: in the middle of a resize the most of what it asks for, what its node has
/// promised, and what it has; if the resize is never to come, of the last two. Spec: upstream's
/// `determineEffectiveRequests` (1.36.2).
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

/// Amounts that a running pod takes of the resources that it asks for as a whole, likewise. Overhead is not counted: a
/// node's promise holds it, and so does what the pod has, but for memory while the pod runs: that is its own word, and
/// CPU is read off its control group.
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

/// One container's part in what its pod needs, in the order in which they start.
enum Part {
    /// It runs beside all others.
    Main(Amounts),
    /// It starts before the init containers that follow, and stays.
    Sidecar(Amounts),
    /// It ends before the next one starts.
    Init(Amounts),
}

/// The sum of the containers and sidecars, or an init container beside the sidecars started before it, whichever is
/// more. Spec: KEP-753, "Resources calculation".
fn greediest(parts: impl Iterator<Item = Part>) -> Amounts {
    let (mut running, mut sidecars, mut starting) = (Amounts::new(), Amounts::new(), Amounts::new());
    for part in parts {
        match part {
            Part::Main(own) => add(&mut running, &own),
            Part::Sidecar(own) => {
                add(&mut sidecars, &own);
                raise(&mut starting, &sidecars);
            }
            Part::Init(own) => {
                let mut moment = sidecars.clone();
                add(&mut moment, &own);
                raise(&mut starting, &moment);
            }
        }
    }
    add(&mut running, &sidecars);
    raise(&mut running, &starting);
    running
}

fn is_sidecar(restart_policy: Option<&String>) -> bool {
    restart_policy.is_some_and(|policy| policy == "Always")
}

/// Amounts that a pod needs at its greediest moment, plus overhead; of a running pod, what it takes in the midst of a
/// resize.
pub fn of_pod(pod: &Pod) -> Amounts {
    let Some(spec) = &pod.spec else { return Amounts::new() };
    let status = pod.status.as_ref();
    let starting = spec.init_containers.iter().flatten().map(|container| {
        if is_sidecar(container.restart_policy.as_ref()) {
            Part::Sidecar(taken(container, status))
        } else {
            Part::Init(requests(container))
        }
    });
    let mains = spec.containers.iter().map(|container| Part::Main(taken(container, status)));
    let mut need = greediest(starting.chain(mains));
    let overhead = amounts(spec.overhead.iter().flat_map(Quantities::iter));
    if let Some(pod_level) = spec.resources.as_ref().and_then(|r| r.requests.as_ref()) {
        need.extend(taken_as_a_whole(amounts(pod_level.iter()), &overhead, status));
    }
    add(&mut need, &overhead);
    need
}

fn listed(list: Option<&BTreeMap<String, ApiQuantity>>) -> Amounts {
    amounts(list.into_iter().flatten().map(|(name, quantity)| (name.as_str(), quantity)))
}

/// Requests of the spec; a limit stands in where only that is given, as the API server's defaulting does (a static pod
/// has not been through it).
fn with_limits(resources: Option<&v1::ResourceRequirements>) -> Amounts {
    let Some(resources) = resources else { return Amounts::new() };
    let mut all = listed(resources.limits.as_ref());
    all.retain(|_, amount| *amount != 0);
    all.extend(listed(resources.requests.as_ref()));
    all
}

/// Amounts that a spec asks for at its pod's greediest moment, plus overhead; without a look at what the pod has.
pub fn of_spec(spec: &v1::PodSpec) -> Amounts {
    let starting = spec.init_containers.iter().flatten().map(|container| {
        let own = with_limits(container.resources.as_ref());
        if is_sidecar(container.restart_policy.as_ref()) { Part::Sidecar(own) } else { Part::Init(own) }
    });
    let mains = spec.containers.iter().map(|container| Part::Main(with_limits(container.resources.as_ref())));
    let mut need = greediest(starting.chain(mains));
    need.extend(with_limits(spec.resources.as_ref()));
    add(&mut need, &listed(spec.overhead.as_ref()));
    need
}

/// Amounts that pods on this node may use together.
pub fn allocatable(node: &Node) -> Amounts {
    amounts(
        node.status.iter().flat_map(|s| s.allocatable.iter().flatten()).map(|(name, amount)| (name.as_str(), amount)),
    )
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn cpu(amount: &str) -> Value {
        json!({"name": "c", "resources": {"requests": {"cpu": amount}}})
    }

    fn sidecar(amount: &str) -> Value {
        let mut container = cpu(amount);
        container["restartPolicy"] = json!("Always");
        container
    }

    /// Cases of upstream's `TestPodRequests` (component-helpers/resource/helpers_test.go), over both types of a pod.
    #[test]
    fn a_pod_asks_for_its_greediest_moment() {
        let cases: [(&str, Value, i64); 8] = [
            ("containers add up", json!({"containers": [cpu("1"), cpu("2")]}), 3000),
            ("an init container runs alone", json!({"initContainers": [cpu("4")], "containers": [cpu("1")]}), 4000),
            ("sidecars stay", json!({"initContainers": [sidecar("1"), sidecar("2")], "containers": [cpu("1")]}), 4000),
            (
                "an init container runs beside the sidecars before it",
                json!({"initContainers": [sidecar("1"), cpu("5"), sidecar("2")], "containers": [cpu("1")]}),
                6000,
            ),
            (
                "a sidecar that starts later does not count for it",
                json!({"initContainers": [cpu("5"), sidecar("2")], "containers": [cpu("1")]}),
                5000,
            ),
            ("overhead is added", json!({"containers": [cpu("1")], "overhead": {"cpu": "250m"}}), 1250),
            (
                "the pod's own wish stands for its containers'",
                json!({"containers": [cpu("1")], "resources": {"requests": {"cpu": "3"}}}),
                3000,
            ),
            (
                "overhead is added to the pod's own wish",
                json!({"containers": [cpu("1")], "resources": {"requests": {"cpu": "3"}}, "overhead": {"cpu": "1"}}),
                4000,
            ),
        ];
        for (case, spec, want) in cases {
            let pod: Pod = serde_json::from_value(json!({"spec": spec})).unwrap();
            assert_eq!(of_pod(&pod).get("cpu"), Some(&want), "{case}");
            assert_eq!(of_spec(&serde_json::from_value(spec).unwrap()).get("cpu"), Some(&want), "{case}");
        }
    }

    #[test]
    fn a_limit_stands_in_for_a_request_that_is_not_made() {
        let spec = json!({"containers": [{"name": "c", "resources": {"limits": {"cpu": "2", "memory": "0"}}}]});
        let asked = of_spec(&serde_json::from_value(spec).unwrap());
        assert_eq!(asked, Amounts::from([("cpu".to_owned(), 2000)]));
    }
}
