//! Objects of a fresh cluster before its first user: bootstrap roles and bindings, priority classes.
//!
//! [`plan`] says what is missing; it is asked at every start, so that an upgrade adds what is new and a person's own
//! additions stay.

mod bindings;
mod cluster_roles;
mod controllers;
mod notation;

use model::meta;
use model::reference::{GroupResource, NamespacedName};
use registry::lookup::Lookup;
use serde_json::{Value, json};

/// One write that brings the cluster closer to what it should hold.
#[derive(Clone, Debug, PartialEq)]
pub struct Write {
    /// API group.
    pub group: &'static str,
    /// Plural.
    pub resource: &'static str,
    /// The whole object; with `metadata.resourceVersion` when it replaces a stored one.
    pub object: Value,
    /// Whether the object exists and is to be updated.
    pub exists: bool,
}

const RBAC: &str = "rbac.authorization.k8s.io";

/// Everything that must be there, in the order of creation. The namespaces it lives in are there already.
pub fn objects() -> Vec<(&'static str, &'static str, Value)> {
    let mut out: Vec<(&'static str, &'static str, Value)> = Vec::new();
    out.extend(cluster_roles::CLUSTER_ROLES.iter().map(|role| (RBAC, "clusterroles", role.object(""))));
    out.extend(
        controllers::CONTROLLER_ROLES.iter().map(|role| (RBAC, "clusterroles", role.object("system:controller:"))),
    );
    for (name, role, subjects) in bindings::CLUSTER_BINDINGS {
        out.push((RBAC, "clusterrolebindings", notation::binding("", name, ("ClusterRole", role), subjects)));
    }
    for role in controllers::CONTROLLER_ROLES {
        let (name, subject) = (format!("system:controller:{}", role.name), format!("sa kube-system/{}", role.name));
        out.push((RBAC, "clusterrolebindings", notation::binding("", &name, ("ClusterRole", &name), &[&subject])));
    }
    for (namespace, name, rules) in bindings::ROLES {
        let mut role = notation::object("Role", namespace, name);
        role["rules"] = notation::rules(rules);
        out.push((RBAC, "roles", role));
    }
    for (namespace, name, role, subjects) in bindings::BINDINGS {
        out.push((RBAC, "rolebindings", notation::binding(namespace, name, ("Role", role), subjects)));
    }
    for (name, value, description) in [
        (
            "system-node-critical",
            2_000_001_000,
            "Used for system critical pods that must not be moved from their current node.",
        ),
        (
            "system-cluster-critical",
            2_000_000_000,
            "Used for system critical pods that must run in the cluster, but can be moved to another node if \
             necessary.",
        ),
    ] {
        let class = json!({
            "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name},
            "value": value, "globalDefault": false, "preemptionPolicy": "PreemptLowerPriority",
            "description": description,
        });
        out.push(("scheduling.k8s.io", "priorityclasses", class));
    }
    out
}

/// The cluster role of a component, e.g. `system:node`; `Null` for a name that is none.
pub fn role(name: &str) -> Value {
    cluster_roles::CLUSTER_ROLES.iter().find(|role| role.name == name).map_or(Value::Null, |role| role.object(""))
}

/// The writes after which everything of [`objects`] is there, given what is stored.
///
/// A role keeps rules that people added and gets those it lacks; a binding keeps subjects and gets those it lacks.
/// An object with the annotation `rbac.authorization.kubernetes.io/autoupdate: "false"` is left alone. A binding to
/// another role is replaced (its role cannot be changed): the write is an update, which the caller does as delete and
/// create.
pub fn plan(lookup: &dyn Lookup) -> Vec<Write> {
    let mut writes = Vec::new();
    for (group, resource, want) in objects() {
        let stored = lookup.get(
            GroupResource { group, resource },
            NamespacedName { namespace: meta::namespace(&want), name: meta::name(&want) },
        );
        match stored {
            None => writes.push(Write { group, resource, object: want, exists: false }),
            Some(have) if group == RBAC => {
                writes.extend(completed(&have, &want).map(|object| Write { group, resource, object, exists: true }))
            }
            Some(_) => {}
        }
    }
    writes
}

/// `have` with what it lacks of `want`, or nothing if it lacks nothing.
fn completed(have: &Value, want: &Value) -> Option<Value> {
    if meta::annotation(have, "rbac.authorization.kubernetes.io/autoupdate") == Some("false") {
        return None;
    }
    let mut object = have.clone();
    if want["aggregationRule"].is_object() {
        // Its rules are gathered from other roles; only the selectors are ours.
        object["aggregationRule"] = want["aggregationRule"].clone();
    } else {
        add_missing(&mut object, want, "rules");
    }
    add_missing(&mut object, want, "subjects");
    if want["roleRef"].is_object() {
        object["roleRef"] = want["roleRef"].clone();
    }
    for (key, value) in meta::labels(want).into_iter().flatten() {
        meta::set_label(&mut object, key, value.as_str().unwrap_or_default());
    }
    (object != *have).then_some(object)
}

fn add_missing(object: &mut Value, want: &Value, field: &str) {
    let Some(want) = want[field].as_array() else { return };
    let mut have = object[field].as_array().cloned().unwrap_or_default();
    let missing: Vec<Value> = want.iter().filter(|entry| !have.contains(entry)).cloned().collect();
    if !missing.is_empty() {
        have.extend(missing);
        object[field] = Value::Array(have);
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
