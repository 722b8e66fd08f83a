//! Resources of pods and containers as the kernel takes them: QoS classes, weights, quotas, bytes, OOM scores.

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use model::quantity::Quantity;

/// Smallest weight the kernel takes.
pub(super) const SHARES_MIN: i64 = 2;
pub(super) const SHARES_MAX: i64 = 262_144;
/// Length of a CPU quota's period in microseconds, as upstream's default.
pub(crate) const PERIOD_USEC: i64 = 100_000;
const QUOTA_MIN_USEC: i64 = 1000;

/// Upstream's quality-of-service classes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Qos {
    Guaranteed,
    Burstable,
    BestEffort,
}

impl Qos {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Qos::Guaranteed => "Guaranteed",
            Qos::Burstable => "Burstable",
            Qos::BestEffort => "BestEffort",
        }
    }
}

/// A quantity's value, 0 for one that does not parse (the API server refuses those).
pub(crate) fn parse(quantity: &ApiQuantity) -> Quantity {
    quantity.0.parse().unwrap_or_else(|_| Quantity::from_milli(0))
}

/// A request: the limit stands in where only that is given, as the API server's defaulting does.
pub(crate) fn request(resources: Option<&ResourceRequirements>, name: &str) -> Option<Quantity> {
    let resources = resources?;
    resources.requests.as_ref().and_then(|r| r.get(name)).map(parse).or_else(|| limit(Some(resources), name))
}

/// A limit.
pub(crate) fn limit(resources: Option<&ResourceRequirements>, name: &str) -> Option<Quantity> {
    resources?.limits.as_ref()?.get(name).map(parse).filter(|q| !q.is_zero())
}

/// A limit of a container of CPU or memory, or else that of its pod as a whole: programs size themselves by what their
/// own group says.
///
/// Spec: upstream v1.36 `getCPULimit`, `getMemoryLimit` (pkg/kubelet/kuberuntime), `defaultPodLimitsForDownwardAPI`.
pub(crate) fn limit_within(pod: &Pod, resources: Option<&ResourceRequirements>, name: &str) -> Option<Quantity> {
    limit(resources, name)
        .or_else(|| limit(pod.spec.as_ref()?.resources.as_ref(), name).filter(|_| matches!(name, "cpu" | "memory")))
}

/// A limit of the pod as a whole without its overhead: its own, or those of its containers together if each has one.
pub(crate) fn limit_of_pod(spec: &PodSpec, name: &str) -> Option<Quantity> {
    limit(spec.resources.as_ref(), name).or_else(|| {
        let all: Option<Vec<Quantity>> = spec.containers.iter().map(|c| limit(c.resources.as_ref(), name)).collect();
        all?.into_iter().reduce(|sum, one| sum.add(one))
    })
}

/// The class of a pod, by the requests and limits of all its containers.
pub(crate) fn qos(pod: &Pod) -> Qos {
    let Some(spec) = &pod.spec else { return Qos::BestEffort };
    let all = || spec.containers.iter().chain(spec.init_containers.iter().flatten()).map(|c| c.resources.as_ref());
    let pod_level = spec.resources.as_ref();
    let units: Vec<_> = if pod_level.is_some() { vec![pod_level] } else { all().collect() };
    let any =
        units.iter().any(|r| ["cpu", "memory"].iter().any(|name| request(*r, name).is_some_and(|q| !q.is_zero())));
    if !any {
        return Qos::BestEffort;
    }
    let guaranteed = units.iter().all(|r| {
        ["cpu", "memory"]
            .iter()
            .all(|name| limit(*r, name).is_some_and(|limit| request(*r, name).is_some_and(|request| request == limit)))
    });
    if guaranteed { Qos::Guaranteed } else { Qos::Burstable }
}

/// The limits of a pod as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    pub(crate) shares: i64,
    pub(crate) quota: Option<i64>,
    pub(crate) memory: Option<i64>,
}

impl Limits {
    /// By the pod's own word, or by those of its containers; overhead is added.
    pub(crate) fn of(pod: &Pod) -> Limits {
        pod_limits(pod)
    }

    /// The looser of two in every respect: what holds while containers change from one to the other.
    pub(crate) fn widest(self, other: Limits) -> Limits {
        let most = |a: Option<i64>, b: Option<i64>| a.zip(b).map(|(a, b)| a.max(b));
        Limits {
            shares: self.shares.max(other.shares),
            quota: most(self.quota, other.quota),
            memory: most(self.memory, other.memory),
        }
    }
}

fn pod_limits(pod: &Pod) -> Limits {
    let spec = pod.spec.clone().unwrap_or_default();
    let sidecar = |c: &&k8s_openapi::api::core::v1::Container| c.restart_policy.as_deref() == Some("Always");
    let long: Vec<_> = spec.containers.iter().chain(spec.init_containers.iter().flatten().filter(sidecar)).collect();
    let short: Vec<_> = spec.init_containers.iter().flatten().filter(|c| !sidecar(c)).collect();
    // What the pod needs is the larger of its steady state and of each init container before it.
    let total = |of: &dyn Fn(&k8s_openapi::api::core::v1::Container) -> Option<i64>| -> Option<i64> {
        let steady = long.iter().try_fold(0i64, |sum, c| Some(sum.saturating_add(of(c)?)))?;
        let init = short.iter().map(|c| of(c)).collect::<Option<Vec<i64>>>()?.into_iter().max().unwrap_or(0);
        Some(steady.max(init))
    };
    let own = spec.resources.as_ref();
    let cpu_request = request(own, "cpu").map(|q| q.milli_value());
    let cpu_request =
        cpu_request.or_else(|| total(&|c| Some(request(c.resources.as_ref(), "cpu").map_or(0, |q| q.milli_value()))));
    let cpu_limit = limit(own, "cpu").map(|q| q.milli_value());
    let cpu_limit = cpu_limit.or_else(|| total(&|c| limit(c.resources.as_ref(), "cpu").map(|q| q.milli_value())));
    let memory = limit(own, "memory").map(|q| q.value());
    let memory = memory.or_else(|| total(&|c| limit(c.resources.as_ref(), "memory").map(|q| q.value())));
    let overhead = |name: &str| spec.overhead.as_ref().and_then(|o| o.get(name)).map(parse);
    let (cpu_extra, memory_extra) =
        (overhead("cpu").map_or(0, |q| q.milli_value()), overhead("memory").map_or(0, |q| q.value()));
    Limits {
        shares: shares(cpu_request.unwrap_or(0).saturating_add(cpu_extra)),
        quota: cpu_limit.map(|milli| quota(milli.saturating_add(cpu_extra))),
        memory: memory.map(|bytes| bytes.saturating_add(memory_extra)),
    }
}

/// Milli-CPUs as v1 shares.
pub(crate) fn shares(milli: i64) -> i64 {
    (milli.saturating_mul(1024) / 1000).clamp(SHARES_MIN, SHARES_MAX)
}

/// v1 shares as milli-CPUs, the way back.
pub(crate) fn milli_of_shares(shares: i64) -> i64 {
    shares.saturating_mul(1000).saturating_add(1023) / 1024
}

/// Microseconds in each period as milli-CPUs.
pub(crate) fn milli_of_quota(quota: i64) -> i64 {
    quota.saturating_mul(1000) / PERIOD_USEC
}

/// Milli-CPUs as microseconds in each period.
pub(crate) fn quota(milli: i64) -> i64 {
    (milli.saturating_mul(PERIOD_USEC) / 1000).max(QUOTA_MIN_USEC)
}

/// How ready the kernel should be to kill a container, as upstream's `GetContainerOOMScoreAdjust`
/// (pkg/kubelet/qos/policy.go v1.36).
pub(crate) fn oom_score_adj(pod: &Pod, container: &Container, memory_capacity: i64) -> i64 {
    let spec = pod.spec.clone().unwrap_or_default();
    let critical = spec.priority.is_some_and(|p| p >= 2_000_000_000) || crate::sources::annotations::is_static(pod);
    if critical && spec.priority_class_name.as_deref() == Some("system-node-critical") {
        return -997;
    }
    match qos(pod) {
        Qos::Guaranteed => -997,
        Qos::BestEffort => 1000,
        Qos::Burstable => {
            let of = |c: &Container| request(c.resources.as_ref(), "memory").map_or(0, |q| q.value());
            let is_sidecar = |c: &Container| c.restart_policy.as_deref() == Some("Always");
            let sidecars = || spec.init_containers.iter().flatten().filter(|c| is_sidecar(c));
            // What the pod as a whole asks for beyond its containers is shared among them.
            let long: Vec<i64> = spec.containers.iter().chain(sidecars()).map(&of).collect();
            let whole = request(spec.resources.as_ref(), "memory").map_or(0, |q| q.value());
            let rest = whole.saturating_sub(long.iter().copied().fold(0, i64::saturating_add)).max(0);
            let share = rest / i64::try_from(long.len()).unwrap_or(1).max(1);
            // A sidecar is as safe as the main container that asks for the least.
            let least = spec.containers.iter().map(&of).min().filter(|_| sidecars().any(|c| c.name == container.name));
            let memory_request = of(container).max(least.unwrap_or(0)).saturating_add(share);
            let adjust = 1000i64.saturating_sub(memory_request.saturating_mul(1000) / memory_capacity.max(1));
            if adjust < 1000 - 997 { 3 } else { adjust.min(999) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(resources: serde_json::Value) -> Pod {
        let container = serde_json::json!({"name": "c", "resources": resources});
        serde_json::from_value(serde_json::json!({"metadata": {"uid": "a-b"}, "spec": {"containers": [container]}}))
            .unwrap()
    }

    #[test]
    fn a_container_without_a_limit_is_held_to_its_pods() {
        let pod: Pod = serde_json::from_value(serde_json::json!({"spec": {
            "resources": {"limits": {"memory": "128Mi", "cpu": "1", "hugepages-2Mi": "4Mi"}},
            "containers": [{"name": "free"}, {"name": "own", "resources": {"limits": {"memory": "64Mi"}}}]}}))
        .unwrap();
        let containers = &pod.spec.as_ref().unwrap().containers;
        let limit =
            |n: usize, name: &str| limit_within(&pod, containers[n].resources.as_ref(), name).map(|q| q.milli_value());
        assert_eq!((limit(0, "cpu"), limit(1, "cpu")), (Some(1000), Some(1000)));
        assert_eq!((limit(0, "memory"), limit(1, "memory")), (Some((128 << 20) * 1000), Some((64 << 20) * 1000)));
        assert_eq!(limit(0, "hugepages-2Mi"), None);
    }

    #[test]
    fn limits_alone_make_a_guaranteed_pod_and_one_of_two_does_not() {
        assert_eq!(qos(&pod(serde_json::json!({"limits": {"cpu": "1", "memory": "1Gi"}}))), Qos::Guaranteed);
        assert_eq!(qos(&pod(serde_json::json!({"limits": {"cpu": "1"}}))), Qos::Burstable);
        assert_eq!(qos(&pod(serde_json::json!({}))), Qos::BestEffort);
    }

    // review node.md M22
    #[test]
    fn a_sidecar_is_killed_no_sooner_than_what_it_serves_and_a_pods_own_request_counts() {
        let of = |name: &str, memory: &str| {
            let resources = serde_json::json!({"requests": {"memory": memory}});
            serde_json::json!({"name": name, "restartPolicy": "Always", "resources": resources})
        };
        let score = |spec: serde_json::Value, at: usize| {
            let pod: Pod = serde_json::from_value(serde_json::json!({"spec": spec})).unwrap();
            let spec = pod.spec.clone().unwrap();
            let all: Vec<Container> = spec.init_containers.into_iter().flatten().chain(spec.containers).collect();
            oom_score_adj(&pod, &all[at], 1000)
        };
        let two = serde_json::json!({"initContainers": [of("s", "100")], "containers": [of("m", "500")]});
        assert_eq!((score(two.clone(), 0), score(two.clone(), 1)), (500, 500));
        let mut whole = two.clone();
        whole["resources"] = serde_json::json!({"requests": {"memory": "800"}});
        assert_eq!((score(whole.clone(), 0), score(whole, 1)), (400, 400));
        let mut class = two;
        (class["priority"], class["priorityClassName"]) =
            (serde_json::json!(2_000_000_000), serde_json::json!("system-cluster-critical"));
        assert_eq!(score(class.clone(), 1), 500, "critical for the cluster, not for the node");
        (class["priority"], class["priorityClassName"]) =
            (serde_json::json!(2_000_001_000), serde_json::json!("system-node-critical"));
        assert_eq!(score(class, 1), -997);
    }

    #[test]
    fn cpu_becomes_shares_and_quotas_and_comes_back() {
        for (milli, expected_shares, expected_quota) in
            [(0, 2, 1000), (1, 2, 1000), (2, 2, 1000), (10, 10, 1000), (500, 512, 50_000), (1000, 1024, 100_000)]
        {
            assert_eq!((shares(milli), quota(milli)), (expected_shares, expected_quota), "{milli}m");
        }
        assert_eq!((shares(i64::MAX), shares(-1)), (SHARES_MAX, SHARES_MIN));
        for milli in [10, 100, 333, 1000, 64_000] {
            assert_eq!((milli_of_shares(shares(milli)), milli_of_quota(quota(milli))), (milli, milli), "{milli}m");
        }
    }

    #[test]
    fn while_containers_change_the_looser_limit_holds() {
        let tight = Limits { shares: 10, quota: Some(2000), memory: Some(1 << 20) };
        let loose = Limits { shares: 20, quota: None, memory: Some(1 << 10) };
        let both = Limits { shares: 20, quota: None, memory: Some(1 << 20) };
        assert_eq!((tight.widest(loose), loose.widest(tight)), (both, both));
    }

    #[test]
    fn a_pod_needs_the_most_of_its_steady_state_and_its_start() {
        let of = |spec: serde_json::Value| -> (i64, Option<i64>, Option<i64>) {
            let pod: Pod = serde_json::from_value(serde_json::json!({"spec": spec})).unwrap();
            let limits = Limits::of(&pod);
            (milli_of_shares(limits.shares), limits.quota.map(milli_of_quota), limits.memory)
        };
        let c = |name: &str, cpu: &str, memory: &str| {
            let own = serde_json::json!({"cpu": cpu, "memory": memory});
            serde_json::json!({"name": name, "resources": {"requests": own, "limits": own}})
        };
        let init = of(serde_json::json!({"initContainers": [c("i", "2", "1Ki")], "containers": [c("a", "1", "4Ki")]}));
        assert_eq!(init, (2000, Some(2000), Some(4096)));
        let two = of(serde_json::json!({"containers": [c("a", "1", "4Ki"), c("b", "1", "4Ki")],
                "overhead": {"cpu": "100m", "memory": "1Ki"}}));
        assert_eq!(two, (2100, Some(2100), Some(9216)));
        let free = of(serde_json::json!({"containers": [c("a", "1", "4Ki"), {"name": "free"}]}));
        assert_eq!(free, (1000, None, None), "one container without a limit takes the pod's away");
    }
}
