//! Upstream's defaulting: what the table says for each field, then a small function for kinds that need more.

use serde_json::{Map, Value, json};

use crate::catalog::Catalog;
use crate::table::{Resource, Shape, TypeDef};

mod cluster;
mod core;
mod pod;
#[cfg(test)]
mod tests;
mod workload;

type Object = Map<String, Value>;

/// Applies all defaults of a resource to an object that was decoded for it.
pub fn apply(_catalog: &Catalog, r: &Resource, object: &mut Value) {
    if let Some(definition) = &r.definition {
        return definition.default(object);
    }
    let Value::Object(map) = object else { return };
    declared(map, r.type_def());
    if let Some(apply) = hook(&r.group, &r.kind) {
        apply(map);
    }
}

/// Applies the defaults of a pod template, for whoever builds pods without a workload object.
pub fn pod_spec(spec: &mut Map<String, Value>) {
    pod::spec(spec);
}

/// Applies only what the fields of a type declare, which is all for custom resources.
pub fn declared(map: &mut Object, t: &TypeDef) {
    for field in &t.fields {
        let name = field.name.as_ref();
        if let Some(default) = &field.default
            && map.get(name).is_none_or(|v| v.is_null() && !field.nullable)
        {
            map.insert(name.to_owned(), default.clone());
        }
        if let Some(value) = map.get_mut(name) {
            declared_in(value, &field.shape);
        }
    }
}

fn declared_in(value: &mut Value, shape: &Shape) {
    match (shape, value) {
        (Shape::Struct(t), Value::Object(map)) => declared(map, t.get()),
        (Shape::List(item), Value::Array(values)) => values.iter_mut().for_each(|v| declared_in(v, item)),
        (Shape::Map(entry), Value::Object(map)) => map.values_mut().for_each(|v| declared_in(v, entry)),
        _ => {}
    }
}

fn hook(group: &str, kind: &str) -> Option<fn(&mut Object)> {
    Some(match (group, kind) {
        ("", "Pod") => pod::pod,
        ("", "PodTemplate") => pod::pod_template,
        ("", "ReplicationController") => workload::replication_controller,
        ("", "Service") => core::service,
        ("", "Secret") => core::secret,
        ("", "PersistentVolume") => core::persistent_volume,
        ("", "PersistentVolumeClaim") => core::persistent_volume_claim,
        ("", "Endpoints") => core::endpoints,
        ("", "Namespace") => core::namespace,
        ("", "Node") => core::node,
        ("", "LimitRange") => core::limit_range,
        ("authentication.k8s.io", "TokenRequest") => core::token_request,
        ("discovery.k8s.io", "EndpointSlice") => core::endpoint_slice,
        ("apps", "Deployment") => workload::deployment,
        ("apps", "ReplicaSet") => workload::replica_set,
        ("apps", "DaemonSet") => workload::daemon_set,
        ("apps", "StatefulSet") => workload::stateful_set,
        ("batch", "Job") => workload::job,
        ("batch", "CronJob") => workload::cron_job,
        ("autoscaling", "HorizontalPodAutoscaler") => workload::autoscaler,
        ("networking.k8s.io", "NetworkPolicy") => cluster::network_policy,
        ("networking.k8s.io", "IngressClass") => cluster::ingress_class,
        ("rbac.authorization.k8s.io", "RoleBinding" | "ClusterRoleBinding") => cluster::role_binding,
        ("storage.k8s.io", "StorageClass") => cluster::storage_class,
        ("storage.k8s.io", "CSIDriver") => cluster::csi_driver,
        ("scheduling.k8s.io", "PriorityClass") => cluster::priority_class,
        ("admissionregistration.k8s.io", "ValidatingWebhookConfiguration") => cluster::validating_webhooks,
        ("admissionregistration.k8s.io", "MutatingWebhookConfiguration") => cluster::mutating_webhooks,
        ("admissionregistration.k8s.io", "ValidatingAdmissionPolicy" | "MutatingAdmissionPolicy") => {
            cluster::admission_policy
        }
        ("admissionregistration.k8s.io", "ValidatingAdmissionPolicyBinding" | "MutatingAdmissionPolicyBinding") => {
            cluster::admission_binding
        }
        ("apiextensions.k8s.io", "CustomResourceDefinition") => cluster::definition,
        ("apiregistration.k8s.io", "APIService") => cluster::api_service,
        ("flowcontrol.apiserver.k8s.io", "FlowSchema") => cluster::flow_schema,
        ("flowcontrol.apiserver.k8s.io", "PriorityLevelConfiguration") => cluster::priority_level,
        ("resource.k8s.io", "ResourceClaim" | "ResourceClaimTemplate") => cluster::resource_claim,
        _ => return None,
    })
}

/// Sets what is absent.
fn put(map: &mut Object, key: &str, value: impl Into<Value>) {
    let slot = map.entry(key).or_insert(Value::Null);
    if slot.is_null() {
        *slot = value.into();
    }
}

/// Sets what is absent or Go's zero value: fields without a pointer.
fn put_zero(map: &mut Object, key: &str, value: impl Into<Value>) {
    let zero = match map.get(key) {
        None | Some(Value::Null) => true,
        Some(Value::String(s)) => s.is_empty(),
        Some(Value::Number(n)) => n.as_i64() == Some(0),
        Some(_) => false,
    };
    if zero {
        map.insert(key.to_owned(), value.into());
    }
}

/// The struct at `key`, made if absent.
fn make<'a>(map: &'a mut Object, key: &str) -> &'a mut Object {
    let slot = map.entry(key).or_insert_with(|| json!({}));
    if !slot.is_object() {
        *slot = json!({});
    }
    match slot {
        Value::Object(map) => map,
        // The lines above have just made it one.
        _ => unreachable!("an object was put here"),
    }
}

/// The struct at `key`, if it is there.
fn at<'a>(map: &'a mut Object, key: &str) -> Option<&'a mut Object> {
    map.get_mut(key).and_then(Value::as_object_mut)
}

/// The structs of the list at `key`.
fn each<'a>(map: &'a mut Object, key: &str) -> impl Iterator<Item = &'a mut Object> {
    map.get_mut(key).and_then(Value::as_array_mut).into_iter().flatten().filter_map(Value::as_object_mut)
}

fn text<'a>(map: &'a Object, key: &str) -> &'a str {
    map.get(key).and_then(Value::as_str).unwrap_or_default()
}

fn has(map: &Object, key: &str) -> bool {
    map.get(key).is_some_and(|v| !v.is_null())
}

fn is_empty(map: &Object, key: &str) -> bool {
    match map.get(key) {
        None | Some(Value::Null) => true,
        Some(Value::Array(a)) => a.is_empty(),
        Some(Value::Object(o)) => o.is_empty(),
        Some(_) => false,
    }
}
