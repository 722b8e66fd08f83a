//! Resources that a pod as a whole was promised and has, as its status tells. Pure.
//!
//! Spec: KEP-5419; upstream v1.36.2: `PodRequests` and `PodLimits` in component-helpers/resource/helpers.go,
//! `convertToAPIPodLevelResourcesStatus` in pkg/kubelet/kubelet_pods.go.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Pod, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use model::quantity::{Notation, Quantity};

use crate::cgroups::limits::{self, Limits};
use crate::container::{self, Role};

type Amounts = BTreeMap<String, Quantity>;
type Told = BTreeMap<String, ApiQuantity>;

/// A pod's request of CPU that is no more than this, in thousandths, is not read back from the kernel's shares: they
/// have no smaller one.
const LEAST_MILLI: i64 = 2;
/// The same of a limit: the kernel's quota has no smaller one.
const LEAST_LIMIT_MILLI: i64 = 10;

/// The requests of the pod in all, overhead included.
pub(crate) fn requests(pod: &Pod) -> Told {
    let mut all = sum(pod, |own| own.requests.as_ref());
    for (name, more) in overhead(pod) {
        add(&mut all, name, more);
    }
    tell(all)
}

/// The limits of the pod in all, by those of its containers that have one; overhead is added to what is limited.
fn limits(pod: &Pod) -> Told {
    let mut all = sum(pod, |own| own.limits.as_ref());
    for (name, more) in overhead(pod) {
        if all.get(name).is_some_and(|limit| !limit.is_zero()) {
            add(&mut all, name, more);
        }
    }
    tell(all)
}

/// Whether a pod's control group holds its containers now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Run {
    /// The pod is in the phase Running.
    Running,
    /// It is in an earlier or a later one.
    Resting,
}

impl Run {
    pub(crate) const BOTH: [Run; 2] = [Run::Running, Run::Resting];

    /// By the pod's phase.
    pub(crate) fn of_phase(phase: &str) -> Run {
        if phase == "Running" { Run::Running } else { Run::Resting }
    }
}

/// The resources of the pod as a whole: before and after it runs those that it was granted, while it runs those to
/// which its control group holds it. `own` is what of the pod's own words is in force, `held` the group's limits.
pub(crate) fn of_pod(pod: &Pod, own: Option<&ResourceRequirements>, held: Limits, run: Run) -> ResourceRequirements {
    let own = own.cloned().unwrap_or_default();
    if run == Run::Resting {
        return ResourceRequirements { requests: some(requests(pod)), limits: some(limits(pod)), ..own };
    }
    let (mut asked, mut limited) = (own.requests.unwrap_or_default(), own.limits.unwrap_or_default());
    let milli = |of: &Told| of.get("cpu").map_or(0, |q| limits::parse(q).milli_value());
    let shares = limits::milli_of_shares(held.shares);
    if shares.max(milli(&asked)) > LEAST_MILLI {
        asked.insert("cpu".to_owned(), ApiQuantity(Quantity::from_milli(shares).to_string()));
    }
    if let (false, Some(memory)) = (asked.contains_key("memory"), requests(pod).remove("memory")) {
        asked.insert("memory".to_owned(), memory);
    }
    if let Some(quota) =
        held.quota.map(limits::milli_of_quota).filter(|quota| (*quota).max(milli(&limited)) > LEAST_LIMIT_MILLI)
    {
        limited.insert("cpu".to_owned(), ApiQuantity(Quantity::from_milli(quota).to_string()));
    }
    if let Some(bytes) = held.memory {
        limited.insert("memory".to_owned(), ApiQuantity(Quantity::from_units(bytes, Notation::BinarySi).to_string()));
    }
    ResourceRequirements { claims: own.claims, requests: some(asked), limits: some(limited) }
}

/// The greater of a pod's steady state and of each moment of its start; what the pod itself says goes before what its
/// containers say.
fn sum(pod: &Pod, part: fn(&ResourceRequirements) -> Option<&Told>) -> Amounts {
    let of = |own: Option<&ResourceRequirements>| -> Amounts {
        own.and_then(part).into_iter().flatten().map(|(name, amount)| (name.clone(), limits::parse(amount))).collect()
    };
    let (mut steady, mut sidecars, mut starting) = (Amounts::new(), Amounts::new(), Amounts::new());
    for (container, role) in container::all(pod) {
        let own = of(container.resources.as_ref());
        let mut moment = sidecars.clone();
        own.iter().for_each(|(name, amount)| add(&mut moment, name, *amount));
        if role != Role::Init {
            own.iter().for_each(|(name, amount)| add(&mut steady, name, *amount));
        }
        if role == Role::Sidecar {
            sidecars.clone_from(&moment);
        }
        if role != Role::Main {
            for (name, amount) in moment {
                let most = starting.entry(name).or_insert(amount);
                *most = (*most).max(amount);
            }
        }
    }
    for (name, amount) in starting {
        let most = steady.entry(name).or_insert(amount);
        *most = (*most).max(amount);
    }
    let whole = of(pod.spec.as_ref().and_then(|spec| spec.resources.as_ref()));
    steady.extend(
        whole
            .into_iter()
            .filter(|(name, _)| matches!(name.as_str(), "cpu" | "memory") || name.starts_with("hugepages-")),
    );
    steady
}

fn overhead(pod: &Pod) -> impl Iterator<Item = (&str, Quantity)> {
    let all = pod.spec.iter().flat_map(|spec| spec.overhead.iter().flatten());
    all.map(|(name, amount)| (name.as_str(), limits::parse(amount)))
}

fn add(into: &mut Amounts, name: &str, more: Quantity) {
    let so_far = into.get(name).copied().unwrap_or(Quantity::from_milli(0));
    into.insert(name.to_owned(), so_far.add(more));
}

fn tell(amounts: Amounts) -> Told {
    amounts.into_iter().map(|(name, amount)| (name, ApiQuantity(amount.to_string()))).collect()
}

fn some(amounts: Told) -> Option<Told> {
    Some(amounts).filter(|amounts| !amounts.is_empty())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(spec: Value) -> Pod {
        serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": spec})).unwrap()
    }

    fn status(pod: &Pod, run: Run) -> Value {
        let own = pod.spec.as_ref().and_then(|spec| spec.resources.as_ref());
        serde_json::to_value(of_pod(pod, own, Limits::of(pod), run)).unwrap()
    }

    // upstream's spec "pod-level resize with requests and limits add" found no allocatedResources
    #[test]
    fn a_pod_that_says_nothing_as_a_whole_tells_what_its_containers_come_to() {
        let one = pod(
            json!({"containers": [{"name": "c", "resources": {"requests": {"cpu": "2m"}, "limits": {"cpu": "10m"}}}]}),
        );
        assert_eq!(serde_json::to_value(requests(&one)).unwrap(), json!({"cpu": "2m"}));
        let own =
            |cpu: &str, memory: &str| json!({"requests": {"cpu": cpu, "memory": memory}, "limits": {"memory": memory}});
        let several = pod(json!({"overhead": {"memory": "1Mi"},
            "containers": [{"name": "a", "resources": own("100m", "64Mi")},
                {"name": "b", "resources": {"requests": {"cpu": "1"}}}],
            "initContainers": [{"name": "s", "restartPolicy": "Always", "resources": own("50m", "8Mi")},
                {"name": "i", "resources": own("1m", "1Gi")}]}));
        assert_eq!(serde_json::to_value(requests(&several)).unwrap(), json!({"cpu": "1150m", "memory": "1033Mi"}));
        assert_eq!(
            status(&several, Run::Resting),
            json!({"requests": {"cpu": "1150m", "memory": "1033Mi"}, "limits": {"memory": "1033Mi"}})
        );
        // One container has no limit, so the group has none.
        assert_eq!(status(&several, Run::Running), json!({"requests": {"cpu": "1150m", "memory": "1033Mi"}}));
        let nothing = pod(json!({"containers": [{"name": "c"}]}));
        assert_eq!((status(&nothing, Run::Resting), status(&nothing, Run::Running)), (json!({}), json!({})));
        assert!(requests(&nothing).is_empty());
    }

    #[test]
    fn a_pods_own_words_go_before_its_containers_and_its_group_before_both() {
        let whole =
            pod(json!({"resources": {"requests": {"cpu": "4m", "memory": "35Mi"}, "limits": {"memory": "35Mi"}},
            "containers": [{"name": "c", "resources": {"requests": {"cpu": "2m"}, "limits": {"cpu": "10m"}}}]}));
        assert_eq!(serde_json::to_value(requests(&whole)).unwrap(), json!({"cpu": "4m", "memory": "35Mi"}));
        let lower = Limits { memory: Some(30 << 20), quota: Some(2000), ..Limits::of(&whole) };
        let own = whole.spec.as_ref().unwrap().resources.as_ref();
        let told = serde_json::to_value(of_pod(&whole, own, lower, Run::Running)).unwrap();
        assert_eq!(
            told,
            json!({"requests": {"cpu": "4m", "memory": "35Mi"}, "limits": {"cpu": "20m", "memory": "30Mi"}})
        );
    }
}
