//! Views: the parts of an object that a reader is shown in the place of the whole, where Kubernetes has no right that
//! is narrow enough.
//!
//! The network's part of every node enforces NetworkPolicies, so it needs labels, addresses and named ports of all
//! pods. It needs no environment, no command and no volume of them, and these hold what tenants hide from each other.

use registry::user::UserInfo;
use schema::table::Resource;
use serde_json::{Map, Value};

/// Makes the view of an object.
pub(crate) type View = fn(Value) -> Value;

/// The user of the network's part of a node, on servers and agents alike.
const NETWORK: &str = "system:kube-proxy";

/// The parts of an object that are kept; `[]` in a path means each item of a list.
const POD: &[&str] = &[
    "kind",
    "apiVersion",
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "metadata.resourceVersion",
    "metadata.generation",
    "metadata.creationTimestamp",
    "metadata.deletionTimestamp",
    "metadata.labels",
    "metadata.ownerReferences",
    "metadata.annotations.kubernetes~1io/config~1hash",
    "metadata.annotations.kubernetes~1io/config~1mirror",
    "spec.nodeName",
    "spec.hostNetwork",
    "spec.containers[].name",
    "spec.containers[].ports",
    "spec.initContainers[].name",
    "spec.initContainers[].ports",
    "spec.initContainers[].restartPolicy",
    "status.phase",
    "status.podIP",
    "status.podIPs",
    "status.hostIP",
    "status.hostIPs",
];

/// How `user` is shown objects of `resource`; `None`: as they are.
pub(crate) fn of(user: &UserInfo, resource: &Resource) -> Option<View> {
    let pods = resource.group.is_empty() && resource.plural == "pods";
    (pods && user.name == NETWORK).then_some(pod as View)
}

fn pod(whole: Value) -> Value {
    let mut view = Value::Object(Map::new());
    for path in POD {
        keep(&whole, &mut view, path);
    }
    view
}

/// Copies what lies at `path` from one object into another. A dot of a key is written `~1`.
fn keep(from: &Value, into: &mut Value, path: &str) {
    let (first, rest) = path.split_once('.').map_or((path, None), |(first, rest)| (first, Some(rest)));
    let (key, each) = first.strip_suffix("[]").map_or((first, false), |key| (key, true));
    let key = key.replace("~1", ".");
    let Some(found) = from.get(&key) else { return };
    let Value::Object(into) = into else { return };
    let Some(rest) = rest else {
        into.insert(key, found.clone());
        return;
    };
    if !each {
        return keep(found, into.entry(key).or_insert_with(|| Value::Object(Map::new())), rest);
    }
    let Value::Array(items) = found else { return };
    let slots = into.entry(key).or_insert_with(|| Value::Array(vec![Value::Object(Map::new()); items.len()]));
    let Value::Array(slots) = slots else { return };
    for (item, slot) in items.iter().zip(slots) {
        keep(item, slot, rest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use schema::catalog::Catalog;
    use serde_json::json;

    #[test]
    fn the_network_sees_labels_and_addresses_of_a_pod_and_nothing_that_tenants_hide() {
        let whole = json!({
            "kind": "Pod", "apiVersion": "v1",
            "metadata": {
                "name": "p", "namespace": "a", "uid": "u", "labels": {"app": "web"},
                "annotations": {"kubernetes.io/config.mirror": "h", "example.com/secret": "x"}, "managedFields": [{}],
            },
            "spec": {
                "nodeName": "n1", "serviceAccountName": "sa",
                "containers": [
                    {"name": "c", "env": [{"name": "PASSWORD", "value": "hunter2"}], "ports": [{"name": "http",
                        "containerPort": 80}]},
                    {"name": "d", "command": ["run", "--token=hunter2"]},
                ],
                "volumes": [{"name": "v", "secret": {"secretName": "s"}}],
            },
            "status": {"phase": "Running", "podIPs": [{"ip": "10.42.0.2"}], "message": "hunter2"},
        });
        let user = |name: &str| UserInfo::new(name, &[]);
        let catalog = Catalog::builtin();
        let pods = catalog.resource(schema::table::GroupVersion::CORE, "pods").unwrap();
        let view = of(&user("system:kube-proxy"), pods).unwrap();
        let expected = json!({
            "kind": "Pod", "apiVersion": "v1",
            "metadata": {
                "name": "p", "namespace": "a", "uid": "u", "labels": {"app": "web"},
                "annotations": {"kubernetes.io/config.mirror": "h"},
            },
            "spec": {
                "nodeName": "n1",
                "containers": [{"name": "c", "ports": [{"name": "http", "containerPort": 80}]}, {"name": "d"}],
            },
            "status": {"phase": "Running", "podIPs": [{"ip": "10.42.0.2"}]},
        });
        assert_eq!(view(whole), expected);
        assert!(of(&user("system:kube-scheduler"), pods).is_none());
        assert!(
            of(&user("system:kube-proxy"), catalog.resource(schema::table::GroupVersion::CORE, "services").unwrap())
                .is_none()
        );
    }
}
