//! Whether this node takes a pod: upstream's last check, after the scheduler. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Pod, PodSpec, Taint};
use model::requests::{self, Amounts};
use model::selectors;
use model::sysctls;
use model::taints::tolerates;

use crate::cgroups::limits;
use crate::container;
use crate::pods::desired::Cause;
use crate::settings::Settings;
use crate::sources::annotations::is_static;

/// A node as a pod meets it that wants to run there.
pub(crate) struct Host<'a> {
    pub(crate) name: &'a str,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) taints: Vec<Taint>,
    /// Resources that pods may use in all: CPU in milli-units, the rest in units. Extended resources too.
    pub(crate) allocatable: BTreeMap<String, i64>,
    pub(crate) settings: &'a Settings,
    /// Conditions under which the node takes less: `MemoryPressure`, `DiskPressure`, `PIDPressure`.
    pub(crate) pressure: Vec<String>,
    pub(crate) has_apparmor: bool,
    /// Whether the runtime knows `supplementalGroupsPolicy: Strict`.
    pub(crate) strict_groups: bool,
}

#[cfg(test)]
impl<'a> Host<'a> {
    /// A bare node with these amounts, for tests: no labels, taints or pressures.
    pub(crate) fn with(amounts: &[(&str, i64)], settings: &'a Settings) -> Host<'a> {
        Host {
            name: "n",
            labels: BTreeMap::new(),
            taints: Vec::new(),
            allocatable: amounts.iter().map(|(name, amount)| ((*name).to_owned(), *amount)).collect(),
            settings,
            pressure: Vec::new(),
            has_apparmor: false,
            strict_groups: false,
        }
    }
}

/// The error says why the pod fails.
type Verdict = Result<(), Cause>;

fn refuse(reason: &str, message: impl Into<String>) -> Verdict {
    Err(Cause::new(reason, message))
}

/// `others` are the pods that hold something of the node. The error is why the pod fails.
pub(super) fn admit(host: &Host<'_>, pod: &Pod, others: &[Arc<Pod>]) -> Verdict {
    let spec = pod.spec.clone().unwrap_or_default();
    under_pressure(host, pod)?;
    sysctls(host.settings, &spec)?;
    if let Some(os) = spec.os.as_ref().filter(|os| os.name != "linux") {
        return refuse(
            "PodOSNotSupported",
            format!("Failed to admit pod as the OS field doesn't match node OS: {}", os.name),
        );
    }
    let live: Vec<&Pod> = others.iter().map(Arc::as_ref).collect();
    resources(host, pod, &live)?;
    if !selected(host, &spec) {
        return refuse(
            "NodeAffinity",
            "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector",
        );
    }
    let taken: Vec<(i32, String, String)> = live.iter().flat_map(|p| host_ports(p)).collect();
    if host_ports(pod).iter().any(|port| taken.iter().any(|other| collide(port, other))) {
        return refuse(
            "NodePorts",
            "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports",
        );
    }
    let tolerations = spec.tolerations.as_deref().unwrap_or_default();
    let untolerated =
        host.taints.iter().any(|t| t.effect == "NoExecute" && !tolerations.iter().any(|o| tolerates(o, t)));
    if untolerated && !is_static(pod) {
        return refuse(
            "TaintToleration",
            "Predicate TaintToleration failed: node(s) had taints that the pod didn't tolerate",
        );
    }
    if spec.security_context.as_ref().is_some_and(|c| c.supplemental_groups_policy.as_deref() == Some("Strict"))
        && !host.strict_groups
    {
        return refuse(
            "SupplementalGroupsPolicyNotSupported",
            "SupplementalGroupsPolicy=Strict is not supported in this node",
        );
    }
    claims(pod, &spec)?;
    apparmor(host, pod, &spec)
}

/// Static pods, and those of the system's priorities.
fn is_critical(pod: &Pod) -> bool {
    pod.spec.as_ref().and_then(|s| s.priority).is_some_and(|p| p >= 2_000_000_000) || is_static(pod)
}

/// The pods to end so that a critical one that lacks nothing but room is admitted: of the least class first, and no
/// more than it needs. None if it is not critical, or that would not do. Spec: pkg/kubelet/preemption/preemption.go
/// v1.36.
pub(super) fn victims(host: &Host<'_>, pod: &Pod, others: &[Arc<Pod>]) -> Vec<Arc<Pod>> {
    let priority = |pod: &Pod| pod.spec.as_ref().and_then(|s| s.priority).unwrap_or(0);
    let preemptable = |other: &Pod| !is_critical(other) || priority(other) < priority(pod);
    let (mut victims, mut left): (Vec<_>, Vec<_>) = others.iter().cloned().partition(|other| preemptable(other));
    if !is_critical(pod) || admit(host, pod, &left).is_err() {
        return Vec::new();
    }
    // The ones to spare first: the highest class, the highest priority.
    let class = |pod: &Pod| match limits::qos(pod) {
        limits::Qos::Guaranteed => 2,
        limits::Qos::Burstable => 1,
        limits::Qos::BestEffort => 0,
    };
    victims.sort_by_key(|other| std::cmp::Reverse((class(other), priority(other))));
    victims.retain(|spared| {
        left.push(Arc::clone(spared));
        let fits = admit(host, pod, &left).is_ok();
        if !fits {
            left.pop();
        }
        !fits
    });
    victims
}

/// No driver of devices (DRA) is asked on this node: a pod bound here by hand must not run without what it claims. A
/// claim that its template turned out not to need has a status without a name.
fn claims(pod: &Pod, spec: &PodSpec) -> Verdict {
    let not_needed = |name: &str| {
        let mut statuses = pod.status.iter().flat_map(|s| s.resource_claim_statuses.iter().flatten());
        statuses.any(|status| status.name == name && status.resource_claim_name.is_none())
    };
    match spec.resource_claims.iter().flatten().find(|c| c.resource_claim_name.is_some() || !not_needed(&c.name)) {
        Some(claim) => refuse(
            "ResourceClaimsNotSupported",
            format!("This node prepares no ResourceClaim, and the pod needs {:?}", claim.name),
        ),
        None => Ok(()),
    }
}

/// A critical or static pod always enters; under memory pressure alone, pods that asked for memory do too.
fn under_pressure(host: &Host<'_>, pod: &Pod) -> Verdict {
    if host.pressure.is_empty() || is_critical(pod) {
        return Ok(());
    }
    let memory_only = host.pressure.iter().all(|p| p == "MemoryPressure");
    let tolerates_memory = pod.spec.iter().flat_map(|s| s.tolerations.iter().flatten()).any(|t| {
        tolerates(
            t,
            &Taint {
                key: "node.kubernetes.io/memory-pressure".to_owned(),
                effect: "NoSchedule".to_owned(),
                ..Default::default()
            },
        )
    });
    if memory_only && (limits::qos(pod) != limits::Qos::BestEffort || tolerates_memory) {
        return Ok(());
    }
    refuse("Evicted", format!("The node had condition: [{}]. ", host.pressure.join(" ")))
}

fn sysctls(settings: &Settings, spec: &PodSpec) -> Verdict {
    let wanted = spec.security_context.iter().flat_map(|c| c.sysctls.iter().flatten());
    for sysctl in wanted {
        let name = sysctl.name.replace('/', ".");
        let forbid = |why: &str| refuse("SysctlForbidden", format!("forbidden sysctl: {:?} {why}", sysctl.name));
        if name.starts_with("net.") && spec.host_network == Some(true) {
            return forbid("not allowed with host net enabled");
        }
        let ipc =
            ["kernel.shm", "kernel.msg", "kernel.sem", "fs.mqueue."].iter().any(|prefix| name.starts_with(prefix));
        if ipc && spec.host_ipc == Some(true) {
            return forbid("not allowed with host ipc enabled");
        }
        let allowed = |pattern: &String| match pattern.strip_suffix('*') {
            Some(prefix) => name.starts_with(prefix),
            None => *pattern == name,
        };
        if !sysctls::SAFE.contains(&name.as_str()) && !settings.unsafe_sysctls.iter().any(allowed) {
            return forbid("not allowlisted");
        }
    }
    Ok(())
}

fn resources(host: &Host<'_>, pod: &Pod, live: &[&Pod]) -> Verdict {
    let lacks = |name: &str, requested: i64, used: i64, capacity: i64| {
        let text = format!(
            "Node didn't have enough resource: {name}, requested: {requested}, used: {used}, capacity: {capacity}"
        );
        refuse(&format!("OutOf{name}"), text)
    };
    let pods_max = host.allocatable.get("pods").copied().unwrap_or(i64::MAX);
    let n_live = i64::try_from(live.len()).unwrap_or(i64::MAX);
    if n_live >= pods_max {
        return lacks("pods", 1, n_live, pods_max);
    }
    let asked = pod.spec.as_ref().map(requests::of_spec).unwrap_or_default();
    let mut in_use = Amounts::new();
    live.iter().filter_map(|p| p.spec.as_ref()).for_each(|spec| requests::add(&mut in_use, &requests::of_spec(spec)));
    for (name, requested) in asked {
        // A resource that this node does not have is a matter of its plugin, not of room: upstream lets it pass to the
        // plugin's check.
        let capacity = host.allocatable.get(&name).copied().unwrap_or(0);
        let used = in_use.get(&name).copied().unwrap_or(0);
        if requested > 0 && used.saturating_add(requested) > capacity {
            return lacks(&name, requested, used, capacity);
        }
    }
    Ok(())
}

fn selected(host: &Host<'_>, spec: &PodSpec) -> bool {
    spec.node_selector.as_ref().is_none_or(|wanted| selectors::includes(wanted, Some(&host.labels)))
        && selectors::affinity_allows(spec.affinity.as_ref(), host.name, &host.labels)
}

/// Port, protocol and address of each port that is published on the host.
fn host_ports(pod: &Pod) -> Vec<(i32, String, String)> {
    let ports = container::all(pod).into_iter().flat_map(|(c, _)| c.ports.iter().flatten());
    let used = ports.filter_map(|p| {
        let port = p.host_port.filter(|h| *h > 0)?;
        let ip = p.host_ip.clone().filter(|ip| !ip.is_empty()).unwrap_or_else(|| "0.0.0.0".to_owned());
        Some((port, p.protocol.clone().unwrap_or_else(|| "TCP".to_owned()), ip))
    });
    used.collect()
}

fn collide(a: &(i32, String, String), b: &(i32, String, String)) -> bool {
    let any = |ip: &str| ip == "0.0.0.0" || ip == "::";
    a.0 == b.0 && a.1 == b.1 && (a.2 == b.2 || any(&a.2) || any(&b.2))
}

fn apparmor(host: &Host<'_>, pod: &Pod, spec: &PodSpec) -> Verdict {
    let of_pod = spec.security_context.as_ref().and_then(|c| c.app_armor_profile.as_ref());
    let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let of_container = |c: &k8s_openapi::api::core::v1::Container| {
        let own = c.security_context.as_ref().and_then(|s| s.app_armor_profile.as_ref());
        own.or(of_pod).is_some_and(|p| p.type_ != "Unconfined")
    };
    let noted = pod
        .metadata
        .annotations
        .iter()
        .flatten()
        .any(|(key, value)| key.starts_with(container::security::APPARMOR_NOTE) && value != "unconfined");
    if !host.has_apparmor && (containers.into_iter().any(of_container) || noted) {
        return refuse("AppArmor", "Cannot enforce AppArmor: AppArmor is not enabled on the host");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(value: serde_json::Value) -> Pod {
        serde_json::from_value(value).unwrap()
    }

    fn check(spec: serde_json::Value) -> String {
        let settings = Settings::default();
        let labels = [("disk".to_owned(), "ssd".to_owned()), ("size".to_owned(), "5".to_owned())].into();
        let amounts = [("cpu", 2000), ("memory", 1 << 30), ("pods", 3), ("x.y/z", 1)];
        let host = Host { name: "n1", labels, ..Host::with(&amounts, &settings) };
        let ports = serde_json::json!([{"containerPort": 1, "hostPort": 80, "hostIP": "10.0.0.1"}]);
        let resources = serde_json::json!({"requests": {"cpu": "1500m"}});
        let other =
            pod(serde_json::json!({"spec": {"containers": [{"name": "o", "ports": ports, "resources": resources}]}}));
        let all = pod(serde_json::json!({"spec": spec}));
        admit(&host, &all, &[Arc::new(other)]).err().map_or("ok".to_owned(), |refusal| refusal.reason)
    }

    #[test]
    fn a_pod_is_refused_with_upstreams_reason() {
        let main = |extra: serde_json::Value| serde_json::json!([extra]);
        let of = |c: serde_json::Value| check(serde_json::json!({"containers": main(c)}));
        assert_eq!(of(serde_json::json!({"name": "c"})), "ok");
        assert_eq!(of(serde_json::json!({"name": "c", "resources": {"requests": {"cpu": "600m"}}})), "OutOfcpu");
        assert_eq!(of(serde_json::json!({"name": "c", "resources": {"limits": {"x.y/z": "2"}}})), "OutOfx.y/z");
        assert_eq!(of(serde_json::json!({"name": "c", "ports": [{"containerPort": 1, "hostPort": 80}]})), "NodePorts");
        assert_eq!(
            of(serde_json::json!({"name": "c", "ports": [{"containerPort": 1, "hostPort": 80, "hostIP": "10.0.0.2"}]})),
            "ok"
        );
        assert_eq!(
            of(serde_json::json!({"name": "c", "securityContext": {"appArmorProfile": {"type": "RuntimeDefault"}}})),
            "AppArmor"
        );
        assert_eq!(check(serde_json::json!({"containers": [], "nodeSelector": {"disk": "hdd"}})), "NodeAffinity");
        let claim = serde_json::json!([{"name": "gpu", "resourceClaimName": "mine"}]);
        assert_eq!(check(serde_json::json!({"containers": [], "resourceClaims": claim})), "ResourceClaimsNotSupported");
        let security = serde_json::json!({"sysctls": [{"name": "kernel.msgmax", "value": "1"}]});
        assert_eq!(check(serde_json::json!({"containers": [], "securityContext": security})), "SysctlForbidden");
    }

    #[test]
    fn required_affinity_is_any_of_its_terms() {
        let with = |terms: serde_json::Value| {
            check(serde_json::json!({"containers": [], "affinity": {"nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}}))
        };
        let gt = serde_json::json!({"matchExpressions": [{"key": "size", "operator": "Gt", "values": ["4"]}]});
        let other = serde_json::json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n2"]}]});
        assert_eq!(with(serde_json::json!([other, gt])), "ok");
        assert_eq!(with(serde_json::json!([other])), "NodeAffinity");
        assert_eq!(with(serde_json::json!([{}])), "NodeAffinity");
    }

    // review node.md M9
    #[test]
    fn a_critical_pod_takes_the_room_of_the_least_others() {
        let settings = Settings::default();
        let host = Host::with(&[("cpu", 2000), ("pods", 10)], &settings);
        let of = |name: &str, cpu: &str, priority: i64| {
            let container = serde_json::json!({"name": "c", "resources": {"requests": {"cpu": cpu}}});
            let spec = serde_json::json!({"priority": priority, "containers": [container]});
            Arc::new(pod(serde_json::json!({"metadata": {"name": name}, "spec": spec})))
        };
        let others = [of("low", "500m", 0), of("high", "500m", 9), of("critical", "1", 2_000_001_000)];
        let names = |pod: &Pod| {
            victims(&host, pod, &others).iter().map(|p| p.metadata.name.clone().unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(names(&of("p", "300m", 2_000_000_000)), ["low"]);
        assert_eq!(names(&of("p", "1", 2_000_000_000)), ["high", "low"]);
        assert!(names(&of("p", "1100m", 2_000_000_000)).is_empty(), "no room in any case");
        assert!(names(&of("p", "300m", 9)).is_empty(), "it is not critical");
    }

    // review node.md N15: a sum that wraps would let everything in
    #[test]
    fn requests_beyond_all_numbers_are_refused() {
        let huge = serde_json::json!({"requests": {"cpu": "9223372036854775807", "memory": "9223372036854775807"}});
        let of = |name: &str| serde_json::json!({"name": name, "resources": huge});
        assert_eq!(check(serde_json::json!({"containers": [of("a"), of("b")]})), "OutOfcpu");
        assert!(limits::Limits::of(&pod(serde_json::json!({"spec": {"containers": [of("a"), of("b")]}}))).shares > 0);
    }

    #[test]
    fn sidecars_count_beside_each_init_container_after_them() {
        let pod = pod(serde_json::json!({"spec": {"overhead": {"cpu": "10m"},
            "containers": [{"name": "m", "resources": {"requests": {"cpu": "100m"}}}],
            "initContainers": [{"name": "s", "restartPolicy": "Always", "resources": {"requests": {"cpu": "50m"}}},
                               {"name": "i", "resources": {"requests": {"cpu": "200m"}}}]}}));
        assert_eq!(super::super::spec::requests(&pod, "cpu"), 260);
    }
}
