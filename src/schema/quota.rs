//! The use that one object makes of a ResourceQuota: one count for the admission that refuses and for the controller
//! that tells.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use model::quantity::{Notation, Quantity};
use model::reference::GroupResource;
use model::{meta, phase, qos};

/// Amounts by quota name, e.g. `requests.cpu`, `count/secrets`.
pub type Usage = BTreeMap<String, Quantity>;

/// Resources of the core group that a quota counts under their own name.
const PLAIN: [&str; 6] =
    ["services", "secrets", "configmaps", "replicationcontrollers", "resourcequotas", "persistentvolumeclaims"];
/// Resources of nodes that a quota may name without `requests.`.
const BARE: [&str; 3] = ["cpu", "memory", "ephemeral-storage"];
const PODS: GroupResource<'static> = GroupResource::core("pods");
const OF_CLASS: &str = ".storageclass.storage.k8s.io/";
const DEVICES: &str = ".deviceclass.resource.k8s.io/devices";
/// Devices that a request for all of them counts: as many as one claim may be given.
const DEVICES_MAX: i64 = 32;

/// Group and plural of the objects that use what a quota calls `name`; `None` for a name that nothing uses.
pub fn source_of(name: &str) -> Option<GroupResource<'_>> {
    if let Some(counted) = name.strip_prefix("count/") {
        let (resource, group) = counted.split_once('.').unwrap_or((counted, ""));
        return Some(GroupResource { group, resource });
    }
    if name.starts_with("services.") {
        return Some(GroupResource::core("services"));
    }
    if name == "requests.storage" || name.contains(OF_CLASS) {
        return Some(GroupResource::core("persistentvolumeclaims"));
    }
    if name.ends_with(DEVICES) {
        return Some(GroupResource { group: "resource.k8s.io", resource: "resourceclaims" });
    }
    if let Some(plain) = PLAIN.into_iter().find(|plain| *plain == name) {
        return Some(GroupResource::core(plain));
    }
    let of_pods = name == "pods"
        || BARE.contains(&name)
        || ["requests.", "limits.", "hugepages-"].iter().any(|start| name.starts_with(start));
    of_pods.then_some(PODS)
}

/// Adds one usage to another.
pub fn add(total: &mut Usage, more: Usage) {
    for (name, amount) in more {
        let sum = total.get(&name).map_or(amount, |have| have.add(amount));
        total.insert(name, sum);
    }
}

/// Usages that are added and taken off again. What comes out is the same as if only those that are left had been added:
/// no sum is held at a bound in between.
#[derive(Clone, Debug, Default)]
pub struct Sums(BTreeMap<String, Sum>);

#[derive(Clone, Copy, Debug)]
struct Sum {
    nanos: i128,
    notation: Notation,
    n_parts: usize,
}

impl Sums {
    /// Adds a usage.
    pub fn add(&mut self, usage: &Usage) {
        for (name, amount) in usage {
            let sum = self.0.entry(name.clone()).or_insert(Sum { nanos: 0, notation: amount.notation(), n_parts: 0 });
            if sum.nanos == 0 {
                sum.notation = amount.notation();
            }
            sum.nanos += amount.nanos();
            sum.n_parts += 1;
        }
    }

    /// Takes a usage off that was added before.
    pub fn take(&mut self, usage: &Usage) {
        for (name, amount) in usage {
            let Some(sum) = self.0.get_mut(name) else { continue };
            sum.nanos -= amount.nanos();
            sum.n_parts -= 1;
            if sum.n_parts == 0 {
                self.0.remove(name);
            }
        }
    }

    /// The amount that is left of one name.
    pub fn get(&self, name: &str) -> Option<Quantity> {
        self.0.get(name).map(|sum| Quantity::from_nanos(sum.nanos, sum.notation))
    }

    /// All that is left.
    pub fn total(&self) -> Usage {
        self.0.iter().map(|(name, sum)| (name.clone(), Quantity::from_nanos(sum.nanos, sum.notation))).collect()
    }
}

fn units(n: usize) -> Quantity {
    Quantity::from_units(i64::try_from(n).unwrap_or(i64::MAX), Notation::DecimalSi)
}

/// The use of one object at `now`.
pub fn usage_of(resource: GroupResource<'_>, object: &Value, now: Timestamp) -> Usage {
    let one = units(1);
    let mut usage = Usage::from([(format!("count/{resource}"), one)]);
    if resource.group.is_empty() && PLAIN.contains(&resource.resource) {
        usage.insert(resource.resource.to_owned(), one);
    }
    match (resource.group, resource.resource) {
        ("", "pods") if !finished(object) && !overdue(object, now) => pod_usage(object, &mut usage),
        ("", "services") => service_usage(object, &mut usage),
        ("", "persistentvolumeclaims") => {
            let class = object["spec"]["storageClassName"].as_str().filter(|class| !class.is_empty());
            if let Some(class) = class {
                usage.insert(format!("{class}{OF_CLASS}persistentvolumeclaims"), one);
            }
            let allocated = Quantity::from_value(&object["status"]["allocatedResources"]["storage"]).ok();
            if let Ok(asked) = Quantity::from_value(&object["spec"]["resources"]["requests"]["storage"]) {
                let size = allocated.filter(|allocated| *allocated > asked).unwrap_or(asked);
                usage.insert("requests.storage".to_owned(), size);
                if let Some(class) = class {
                    usage.insert(format!("{class}{OF_CLASS}requests.storage"), size);
                }
            }
        }
        ("resource.k8s.io", "resourceclaims") => device_usage(object, &mut usage),
        _ => {}
    }
    usage
}

/// Devices of each class that a claim may be given at most: of a request's alternatives, the one that asks for most of
/// the class.
///
/// Spec: upstream v1.36 `claimEvaluator.Usage`.
fn device_usage(claim: &Value, usage: &mut Usage) {
    for request in claim["spec"]["devices"]["requests"].as_array().into_iter().flatten() {
        let mut most: BTreeMap<&str, i64> = BTreeMap::new();
        let alternatives = request["firstAvailable"].as_array().filter(|list| !list.is_empty());
        for asked in alternatives.map_or(std::slice::from_ref(&request["exactly"]), Vec::as_slice) {
            let Some(class) = asked["deviceClassName"].as_str() else { continue };
            let devices = match asked["allocationMode"].as_str() {
                None | Some("ExactCount") => asked["count"].as_i64().unwrap_or(1),
                Some("All") => DEVICES_MAX,
                Some(_) => 0,
            };
            let so_far = most.entry(class).or_default();
            *so_far = devices.max(*so_far);
        }
        let of_request = most
            .into_iter()
            .map(|(class, n)| (format!("{class}{DEVICES}"), Quantity::from_units(n, Notation::DecimalSi)));
        add(usage, of_request.collect());
    }
}

fn service_usage(service: &Value, usage: &mut Usage) {
    let spec = &service["spec"];
    let ports = spec["ports"].as_array().map(Vec::as_slice).unwrap_or_default();
    let nodeports = match spec["type"].as_str() {
        Some("NodePort") => ports.len(),
        // Only those that were asked for by number, if none are given out.
        Some("LoadBalancer") if spec["allocateLoadBalancerNodePorts"] == false => {
            ports.iter().filter(|port| port["nodePort"].as_i64().unwrap_or(0) != 0).count()
        }
        Some("LoadBalancer") => ports.len(),
        _ => 0,
    };
    if nodeports > 0 {
        usage.insert("services.nodeports".to_owned(), units(nodeports));
    }
    if spec["type"] == "LoadBalancer" {
        usage.insert("services.loadbalancers".to_owned(), units(1));
    }
}

/// A pod that has ended holds nothing but its place in the count of objects.
fn finished(pod: &Value) -> bool {
    pod["status"]["phase"].as_str().is_some_and(phase::is_terminal)
}

/// A pod that should be gone by now is stuck, its node lost perhaps: nobody pays for it, or it could not be replaced.
///
/// Spec: upstream v1.36 `QuotaV1Pod`, which counts the grace once more from the end that the deletion was given.
fn overdue(pod: &Value, now: Timestamp) -> bool {
    paid_until(PODS, pod).is_some_and(|last| now > last)
}

/// The moment after which an object uses less without having changed, if there is one.
pub fn paid_until(resource: GroupResource<'_>, object: &Value) -> Option<Timestamp> {
    if resource != PODS {
        return None;
    }
    let end = meta::deletion_timestamp(object)?.parse::<Timestamp>().ok()?;
    let grace = meta::deletion_grace_period_seconds(object)?;
    end.checked_add(SignedDuration::from_secs(grace)).ok()
}

fn pod_usage(pod: &Value, usage: &mut Usage) {
    usage.insert("pods".to_owned(), units(1));
    for field in ["requests", "limits"] {
        for (resource, amount) in sums(pod, field, |container| held(pod, container, field)) {
            if field == "requests" && (BARE.contains(&resource.as_str()) || resource.starts_with("hugepages-")) {
                usage.insert(resource.clone(), amount);
            }
            usage.insert(format!("{field}.{resource}"), amount);
        }
    }
}

fn amounts(resources: &Value, field: &str) -> Usage {
    let list = resources[field].as_object().into_iter().flatten();
    list.filter_map(|(name, value)| Some((name.clone(), Quantity::from_value(value).ok()?))).collect()
}

fn most(total: &mut Usage, other: Usage) {
    for (name, amount) in other {
        let most = total.get(&name).copied().filter(|have| *have >= amount).unwrap_or(amount);
        total.insert(name, most);
    }
}

/// `requests` or `limits` of a pod: containers and sidecars together, or the greatest moment of the init containers;
/// what the pod itself asks for; plus overhead.
///
/// Spec: upstream v1.36 `PodRequests`, `PodLimits` (component-helpers/resource).
pub fn pod_amounts(pod: &Value, field: &str) -> Usage {
    sums(pod, field, |container| amounts(&container["resources"], field))
}

/// The amounts that a container holds of its quota: the most of what it asks for, of what its node granted and of what
/// is in force. A wish for less is no less until the node has carried it out; one that the node cannot fulfil is no
/// more.
///
/// Spec: upstream v1.36 `determineEffectiveRequests`, `determineEffectiveLimits` (component-helpers/resource), as
/// pkg/quota calls them.
fn held(pod: &Value, container: &Value, field: &str) -> Usage {
    let asked = amounts(&container["resources"], field);
    let told = ["containerStatuses", "initContainerStatuses"]
        .into_iter()
        .flat_map(|list| pod["status"][list].as_array().into_iter().flatten());
    let Some(told) = told.filter(|told| told["name"] == container["name"]).find(|told| told["resources"].is_object())
    else {
        return asked;
    };
    let mut held = amounts(&told["resources"], field);
    if field == "requests" {
        most(&mut held, amounts(told, "allocatedResources"));
    }
    let conditions = pod["status"]["conditions"].as_array();
    let is_given_up = conditions
        .into_iter()
        .flatten()
        .find(|c| c["type"] == "PodResizePending")
        .is_some_and(|c| c["reason"] == "Infeasible");
    if !is_given_up {
        most(&mut held, asked);
    }
    held
}

fn sums(pod: &Value, field: &str, of: impl Fn(&Value) -> Usage) -> Usage {
    let list = |name: &str| pod["spec"][name].as_array().into_iter().flatten();
    let (mut total, mut sidecars, mut init) = (Usage::new(), Usage::new(), Usage::new());
    for container in list("initContainers") {
        let is_sidecar = container["restartPolicy"] == "Always";
        let own = if is_sidecar { of(container) } else { amounts(&container["resources"], field) };
        let mut moment = sidecars.clone();
        add(&mut moment, own.clone());
        most(&mut init, moment);
        if is_sidecar {
            add(&mut sidecars, own);
        }
    }
    for container in list("containers") {
        add(&mut total, of(container));
    }
    add(&mut total, sidecars);
    most(&mut total, init);
    total.extend(amounts(&pod["spec"]["resources"], field));
    let mut overhead = amounts(&pod["spec"], "overhead");
    if field == "limits" {
        // A resource without a limit stays without one.
        overhead.retain(|name, _| total.get(name).is_some_and(|limit| limit.sign() != 0));
    }
    add(&mut total, overhead);
    total
}

/// Under a quota on compute every container must say what it asks for: `requests.cpu for: a,b`.
pub fn unspecified(pod: &Value, watched: &[&String]) -> Vec<String> {
    let mut lacking = Vec::new();
    for name in watched {
        let (field, resource) = match name.as_str() {
            "cpu" | "memory" => ("requests", name.as_str()),
            other => match other.split_once('.') {
                Some((field @ ("requests" | "limits"), resource @ ("cpu" | "memory"))) => (field, resource),
                _ => continue,
            },
        };
        if !pod["spec"]["resources"][field][resource].is_null() {
            continue;
        }
        let containers = ["initContainers", "containers"]
            .into_iter()
            .flat_map(|list| pod["spec"][list].as_array().into_iter().flatten());
        let without: Vec<&str> = containers
            .filter(|container| container["resources"][field][resource].is_null())
            .filter_map(|container| container["name"].as_str())
            .collect();
        if !without.is_empty() {
            lacking.push(format!("{name} for: {}", without.join(",")));
        }
    }
    lacking
}

/// Whether a quota with scopes looks at an object. Scopes speak of pods, one of them of claims.
pub fn in_scope(quota: &Value, resource: &str, object: &Value) -> bool {
    let mut scopes = quota["spec"]["scopes"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let mut expressions = quota["spec"]["scopeSelector"]["matchExpressions"].as_array().into_iter().flatten();
    let claim = resource == "persistentvolumeclaims";
    let fits = |scope: &str| resource == "pods" || claim && scope == "VolumeAttributesClass";
    scopes.all(|scope| fits(scope) && has(object, scope))
        && expressions.all(|e| fits(e["scopeName"].as_str().unwrap_or_default()) && matches(object, e))
}

fn has(object: &Value, scope: &str) -> bool {
    let best_effort = || qos::qos_class(object) == "BestEffort";
    let terminating = || object["spec"]["activeDeadlineSeconds"].is_i64();
    match scope {
        "Terminating" => terminating(),
        "NotTerminating" => !terminating(),
        "BestEffort" => best_effort(),
        "NotBestEffort" => !best_effort(),
        "PriorityClass" | "VolumeAttributesClass" => !classes(object, scope).is_empty(),
        "CrossNamespacePodAffinity" => cross_namespace(&object["spec"]["affinity"]),
        _ => false,
    }
}

/// The classes of an object: a claim on its way from one to another has both.
fn classes<'a>(object: &'a Value, scope: &str) -> Vec<&'a str> {
    let paths: &[&str] = if scope == "PriorityClass" {
        &["/spec/priorityClassName"]
    } else {
        &[
            "/spec/volumeAttributesClassName",
            "/status/currentVolumeAttributesClassName",
            "/status/modifyVolumeStatus/targetVolumeAttributesClassName",
        ]
    };
    paths.iter().filter_map(|path| object.pointer(path)?.as_str()).filter(|name| !name.is_empty()).collect()
}

fn cross_namespace(affinity: &Value) -> bool {
    match affinity {
        Value::Object(fields) => fields.iter().any(|(key, inside)| {
            let named = key == "namespaces" && inside.as_array().is_some_and(|list| !list.is_empty());
            named || (key == "namespaceSelector" && inside.is_object()) || cross_namespace(inside)
        }),
        Value::Array(items) => items.iter().any(cross_namespace),
        _ => false,
    }
}

fn matches(object: &Value, expression: &Value) -> bool {
    let scope = expression["scopeName"].as_str().unwrap_or_default();
    if !matches!(scope, "PriorityClass" | "VolumeAttributesClass") {
        return has(object, scope);
    }
    let classes = classes(object, scope);
    let listed = |class: &&str| expression["values"].as_array().into_iter().flatten().any(|value| value == class);
    match expression["operator"].as_str() {
        Some("In") => classes.iter().any(listed),
        Some("NotIn") => classes.is_empty() || !classes.iter().all(listed),
        Some("DoesNotExist") => classes.is_empty(),
        _ => !classes.is_empty(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(usage: &Usage, name: &str) -> String {
        usage.get(name).map_or("-".to_owned(), Quantity::to_string)
    }

    #[test]
    fn a_pod_uses_the_most_it_ever_needs_at_once() {
        let cpu = |n: &str| json!({"requests": {"cpu": n}});
        let pod = json!({"spec": {
            "initContainers": [{"name": "s", "restartPolicy": "Always", "resources": cpu("1")},
                {"name": "i", "resources": cpu("3")}],
            "containers": [{"name": "a", "resources": cpu("1")}, {"name": "b", "resources": cpu("500m")}],
            "overhead": {"cpu": "100m"}}});
        let usage = usage_of(PODS, &pod, Timestamp::UNIX_EPOCH);
        assert_eq!(
            (of(&usage, "requests.cpu"), of(&usage, "cpu"), of(&usage, "pods")),
            ("4100m".into(), "4100m".into(), "1".into())
        );
        let ended = usage_of(PODS, &json!({"status": {"phase": "Succeeded"}}), Timestamp::UNIX_EPOCH);
        assert_eq!((of(&ended, "count/pods"), of(&ended, "pods")), ("1".into(), "-".into()));
    }

    /// Spec: upstream v1.36 `PodRequests` adds overhead to requests that are there and to those that are not,
    /// `PodLimits` only to limits that are not zero.
    #[test]
    fn overhead_is_a_request_of_its_own_and_no_limit() {
        let resources = json!({"requests": {"cpu": "1"}, "limits": {"cpu": "2", "memory": "0"}});
        let pod = json!({"spec": {
            "containers": [{"name": "a", "resources": resources}],
            "overhead": {"cpu": "250m", "memory": "100Mi"}}});
        let usage = usage_of(PODS, &pod, Timestamp::UNIX_EPOCH);
        for (name, amount) in [
            ("requests.cpu", "1250m"),
            ("cpu", "1250m"),
            ("requests.memory", "100Mi"),
            ("memory", "100Mi"),
            ("limits.cpu", "2250m"),
            ("limits.memory", "0"),
        ] {
            assert_eq!(of(&usage, name), amount, "{name}");
        }
        let bare = usage_of(PODS, &json!({"spec": {"overhead": {"cpu": "1"}}}), Timestamp::UNIX_EPOCH);
        assert_eq!((of(&bare, "requests.cpu"), of(&bare, "limits.cpu")), ("1".into(), "-".into()));
    }

    #[test]
    fn a_pods_own_wish_stands_for_those_of_its_containers() {
        let pod = json!({"spec": {
            "resources": {"requests": {"cpu": "3"}},
            "containers": [{"name": "a", "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}],
            "overhead": {"cpu": "1"}}});
        let usage = usage_of(PODS, &pod, Timestamp::UNIX_EPOCH);
        assert_eq!((of(&usage, "requests.cpu"), of(&usage, "requests.memory")), ("4".into(), "1Gi".into()));
    }

    // A pod that asks for less and is refused would free its quota and keep its memory.
    #[test]
    fn a_resized_pod_uses_what_it_holds_until_it_is_resized() {
        let memory = |request: &str, limit: &str| json!({"requests": {"memory": request}, "limits": {"memory": limit}});
        let pod = |reason: &str| {
            json!({"spec": {"containers": [{"name": "a", "resources": memory("1Mi", "9Gi")}]}, "status": {
                "conditions": [{"type": "PodResizePending", "reason": reason}],
                "containerStatuses": [{"name": "a", "resources": memory("2Gi", "4Gi"),
                    "allocatedResources": {"memory": "3Gi"}}]}})
        };
        let used = |pod: &Value| {
            let usage = usage_of(PODS, pod, Timestamp::UNIX_EPOCH);
            (of(&usage, "requests.memory"), of(&usage, "limits.memory"))
        };
        assert_eq!(used(&pod("Deferred")), ("3Gi".into(), "9Gi".into()));
        assert_eq!(used(&pod("Infeasible")), ("3Gi".into(), "4Gi".into()));
        let begun = json!({"spec": {"containers": [{"name": "a", "resources": memory("1Mi", "2Mi")}]},
            "status": {"containerStatuses": [{"name": "a"}]}});
        assert_eq!(used(&begun), ("1Mi".into(), "2Mi".into()));
    }

    #[test]
    fn services_use_node_ports_and_claims_their_class() {
        let ports = json!([{"port": 1}, {"port": 2, "nodePort": 30000}]);
        let balancer = usage_of(
            GroupResource::core("services"),
            &json!({"spec": {"type": "LoadBalancer", "ports": ports, "allocateLoadBalancerNodePorts": false}}),
            Timestamp::UNIX_EPOCH,
        );
        assert_eq!(
            (of(&balancer, "services.nodeports"), of(&balancer, "services.loadbalancers"), of(&balancer, "services")),
            ("1".into(), "1".into(), "1".into())
        );
        let claim = usage_of(
            GroupResource::core("persistentvolumeclaims"),
            &json!({"spec": {"storageClassName": "gold", "resources": {"requests": {"storage": "1Gi"}}}}),
            Timestamp::UNIX_EPOCH,
        );
        assert_eq!(of(&claim, "gold.storageclass.storage.k8s.io/requests.storage"), "1Gi");
    }

    #[test]
    fn a_pod_that_should_be_gone_is_nobodys_to_pay() {
        let pod = json!({"metadata": {"deletionTimestamp": "1970-01-01T00:00:30Z", "deletionGracePeriodSeconds": 30},
            "spec": {}});
        let at = |second: i64| usage_of(PODS, &pod, Timestamp::from_second(second).unwrap());
        assert_eq!(
            (of(&at(60), "pods"), of(&at(61), "pods"), of(&at(61), "count/pods")),
            ("1".into(), "-".into(), "1".into())
        );
    }

    #[test]
    fn a_claim_of_devices_uses_each_class_as_often_as_it_may_be_given_one() {
        let exactly =
            |class: &str, n: i64| json!({"deviceClassName": class, "allocationMode": "ExactCount", "count": n});
        let claim = json!({"spec": {"devices": {"requests": [
            {"name": "a", "exactly": {"deviceClassName": "gold"}},
            {"name": "b", "exactly": exactly("gold", 3)},
            {"name": "c", "firstAvailable": [exactly("tin", 2), exactly("tin", 5),
                {"deviceClassName": "lead", "allocationMode": "All"}]},
        ]}}});
        let claims = GroupResource { group: "resource.k8s.io", resource: "resourceclaims" };
        let usage = usage_of(claims, &claim, Timestamp::UNIX_EPOCH);
        let devices = |class: &str| of(&usage, &format!("{class}{DEVICES}"));
        assert_eq!((devices("gold"), devices("tin"), devices("lead")), ("4".into(), "5".into(), "32".into()));
        assert_eq!(of(&usage, "count/resourceclaims.resource.k8s.io"), "1");
        assert_eq!(source_of("gold.deviceclass.resource.k8s.io/devices"), Some(claims));
    }

    /// Spec: upstream v1.36 `pvcMatchesSelector`.
    #[test]
    fn a_claim_between_two_classes_is_in_the_scope_of_both() {
        let claim = json!({"spec": {"volumeAttributesClassName": "gold"},
            "status": {"currentVolumeAttributesClassName": "silver"}});
        let of = |operator: &str, values: &[&str]| {
            let expression = json!({"scopeName": "VolumeAttributesClass", "operator": operator, "values": values});
            in_scope(
                &json!({"spec": {"scopeSelector": {"matchExpressions": [expression]}}}),
                "persistentvolumeclaims",
                &claim,
            )
        };
        assert!(of("In", &["gold"]) && of("In", &["silver"]) && of("NotIn", &["gold"]));
        assert!(!of("In", &["iron"]) && !of("NotIn", &["gold", "silver"]));
    }

    #[test]
    fn every_name_of_a_quota_knows_whose_it_is() {
        for (name, source) in [
            ("count/deployments.apps", "deployments.apps"),
            ("count/secrets", "secrets"),
            ("count/widgets.a.example.com", "widgets.a.example.com"),
            ("requests.nvidia.com/gpu", "pods"),
            ("hugepages-2Mi", "pods"),
            ("memory", "pods"),
            ("limits.ephemeral-storage", "pods"),
            ("requests.storage", "persistentvolumeclaims"),
            ("gold.storageclass.storage.k8s.io/persistentvolumeclaims", "persistentvolumeclaims"),
            ("services.nodeports", "services"),
            ("resourcequotas", "resourcequotas"),
        ] {
            assert_eq!(source_of(name).map(|source| source.to_string()).as_deref(), Some(source), "{name}");
        }
        assert_eq!(source_of("bananas"), None);
    }

    /// Spec: upstream v1.36 `isBestEffort`, which asks `GetPodQOS`: an amount of zero is none.
    #[test]
    fn a_pod_that_asks_for_zero_is_of_best_effort() {
        let scope = |scope: &str, pod: &Value| in_scope(&json!({"spec": {"scopes": [scope]}}), "pods", pod);
        let asks = |list: &str, amount: &str| {
            let container = json!({"name": "c", "resources": {list: {"cpu": amount}}});
            json!({"spec": {"containers": [container]}})
        };
        for (pod, is_best_effort) in [
            (asks("requests", "0"), true),
            (asks("limits", "0"), true),
            (asks("requests", "1m"), false),
            (asks("limits", "1"), false),
            (json!({"spec": {"containers": [{"name": "c"}], "resources": {"requests": {"memory": "1Gi"}}}}), false),
            (json!({"spec": {"containers": [], "initContainers": [{"resources": {"limits": {"cpu": 1}}}]}}), false),
        ] {
            assert_eq!(scope("BestEffort", &pod), is_best_effort, "{pod}");
            assert_eq!(scope("NotBestEffort", &pod), !is_best_effort, "{pod}");
        }
    }

    /// Spec: upstream v1.36 `usesCrossNamespacePodAffinity`.
    #[test]
    fn affinity_to_other_namespaces_is_a_scope() {
        let quota = json!({"spec": {"scopes": ["CrossNamespacePodAffinity"]}});
        let required = |kind: &str, term: Value| {
            let terms = json!({"requiredDuringSchedulingIgnoredDuringExecution": [term]});
            json!({"spec": {"affinity": {kind: terms}}})
        };
        let preferred = json!({"spec": {"affinity": {"podAntiAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [{"podAffinityTerm": {"namespaces": ["b"]}}]}}}});
        for (pod, crosses) in [
            (required("podAffinity", json!({"namespaces": ["b"]})), true),
            (required("podAntiAffinity", json!({"namespaceSelector": {}})), true),
            (preferred, true),
            (required("podAffinity", json!({"namespaces": [], "topologyKey": "zone"})), false),
            (json!({"spec": {}}), false),
        ] {
            assert_eq!(in_scope(&quota, "pods", &pod), crosses, "{pod}");
        }
    }

    #[test]
    fn a_quota_on_compute_wants_every_container_to_say_its_part() {
        let names = ["requests.cpu", "memory", "limits.cpu", "pods", "requests.storage"].map(str::to_owned);
        let watched: Vec<&String> = names.iter().collect();
        let pod = json!({"spec": {
            "initContainers": [{"name": "i", "resources": {"requests": {"memory": "1"}}}],
            "containers": [{"name": "a", "resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "1"}}}]}});
        let lacking = unspecified(&pod, &watched);
        assert_eq!(lacking, ["requests.cpu for: i", "memory for: a", "limits.cpu for: i"]);
        let whole = json!({"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "1"}});
        let told = json!({"spec": {"resources": whole, "containers": [{"name": "a"}]}});
        assert!(unspecified(&told, &watched).is_empty());
    }

    #[test]
    fn scopes_pick_pods() {
        let quota = |spec: Value| json!({"spec": spec});
        let best_effort =
            json!({"spec": {"containers": [{"name": "c", "resources": {"requests": {"ephemeral-storage": "1Gi"}}}]}});
        assert!(in_scope(&quota(json!({"scopes": ["BestEffort", "NotTerminating"]})), "pods", &best_effort));
        assert!(!in_scope(&quota(json!({"scopes": ["BestEffort"]})), "services", &best_effort));
        let high = json!({"scopeSelector": {"matchExpressions": [{"scopeName": "PriorityClass", "operator": "In",
            "values": ["high"]}]}});
        assert!(!in_scope(&quota(high.clone()), "pods", &best_effort));
        assert!(in_scope(&quota(high), "pods", &json!({"spec": {"priorityClassName": "high"}})));
    }
}
