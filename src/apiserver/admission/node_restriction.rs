//! A kubelet changes its own node and the pods on it, whatever the authorizers would let nodes do.

use async_trait::async_trait;
use schema::meta;
use serde_json::Value;

use super::{Operation, Plugin, Review};
use crate::attributes::Attributes;
use crate::authz::node::node_of;
use crate::status::Status;

const MIRROR: &str = "kubernetes.io/config.mirror";

/// Upstream's `NodeRestriction`.
pub struct NodeRestriction;

#[async_trait]
impl Plugin for NodeRestriction {
    fn name(&self) -> &'static str {
        "NodeRestriction"
    }

    fn handles(&self, operation: Operation, a: &Attributes) -> bool {
        operation != Operation::Connect && node_of(&a.user).is_some()
    }

    async fn admit(&self, review: &mut Review<'_>) -> Result<(), Status> {
        let a = review.attributes;
        let Some(node) = node_of(&a.user) else { return Ok(()) };
        if node.is_empty() {
            return Err(review.forbidden(&format!("could not determine node from user {:?}", a.user.name)));
        }
        let verdict = match (a.group.as_str(), a.resource.as_str(), a.subresource.as_str()) {
            ("", "pods", "") => pod(review, node),
            ("", "pods", "status") => pod_status(review, node),
            ("", "pods", "eviction") => on_node(review, node, "evict pods"),
            ("", "pods", other) => Err(format!("unexpected pod subresource {other:?}, only 'status' and 'eviction' are allowed")),
            ("", "nodes", _) => own_node(review, node),
            ("", "persistentvolumeclaims", "status") => Ok(()),
            ("", "persistentvolumeclaims", other) => Err(format!("may only update PVC status; unexpected subresource {other:?}")),
            ("", "serviceaccounts", "token") => token(review, node),
            ("coordination.k8s.io", "leases", _) => lease(review, node),
            ("storage.k8s.io", "csinodes", _) => named(review, node, "can only access CSINode with the same name as the requesting node"),
            ("resource.k8s.io", "resourceslices", _) => slice(review, node),
            ("certificates.k8s.io", "certificatesigningrequests", "") if review.operation == Operation::Create => request(review, node),
            _ => Ok(()),
        };
        verdict.map_err(|why| review.forbidden(&why))
    }
}

type Verdict = Result<(), String>;

fn pod(review: &Review<'_>, node: &str) -> Verdict {
    match review.operation {
        Operation::Create => mirror(review, node),
        Operation::Delete => on_node(review, node, "delete pods"),
        _ => Err(format!("unexpected operation \"UPDATE\", node {node:?} can only create and delete mirror pods")),
    }
}

fn mirror(review: &Review<'_>, node: &str) -> Verdict {
    let (object, spec) = (&*review.object, &review.object["spec"]);
    if meta::annotation(object, MIRROR).is_none() {
        return Err(format!("pod does not have {MIRROR:?} annotation, node {node:?} can only create mirror pods"));
    }
    if spec["nodeName"] != node {
        return Err(format!("node {node:?} can only create pods with spec.nodeName set to itself"));
    }
    owners(review, node)?;
    if !spec["serviceAccountName"].as_str().unwrap_or_default().is_empty() {
        return Err(format!("node {node:?} can not create pods that reference a service account"));
    }
    for (field, what) in [
        ("secret", "secrets"),
        ("secretKeyRef", "secrets"),
        ("secretRef", "secrets"),
        ("imagePullSecrets", "secrets"),
        ("configMap", "configmaps"),
        ("configMapKeyRef", "configmaps"),
        ("configMapRef", "configmaps"),
        ("persistentVolumeClaim", "persistentvolumeclaims"),
        ("resourceClaims", "resourceclaims"),
    ] {
        if holds(spec, field) {
            return Err(format!("node {node:?} can not create pods that reference {what}"));
        }
    }
    Ok(())
}

fn owners(review: &Review<'_>, node: &str) -> Verdict {
    let owners = meta::owner_references(review.object);
    let [owner] = owners.as_slice() else {
        return if owners.is_empty() {
            Ok(())
        } else {
            Err(format!("node {node:?} can only create pods with a single owner reference set to itself"))
        };
    };
    if owner.api_version != "v1" || owner.kind != "Node" || owner.name != node {
        return Err(format!("node {node:?} can only create pods with an owner reference set to itself"));
    }
    if !owner.controller {
        return Err(format!("node {node:?} can only create pods with a controller reference set to itself"));
    }
    match review.lookup.get("", "nodes", "", node) {
        Some(stored) if meta::uid(&stored) == owner.uid => Ok(()),
        _ => Err(format!("node {node:?} UID mismatch: expected {:?}", owner.uid)),
    }
}

/// Whether a field of this name holds something anywhere under `value`.
fn holds(value: &Value, field: &str) -> bool {
    match value {
        Value::Array(items) => items.iter().any(|item| holds(item, field)),
        Value::Object(fields) => fields.iter().any(|(key, inside)| {
            let filled = inside.is_object() || inside.as_array().is_some_and(|items| !items.is_empty());
            (key == field && filled) || holds(inside, field)
        }),
        _ => false,
    }
}

fn on_node(review: &Review<'_>, node: &str, what: &str) -> Verdict {
    let a = review.attributes;
    let pod = review.lookup.get("", "pods", &a.namespace, &a.name);
    // A pod that is gone is not ours to judge: the verb will say so.
    match pod {
        Some(pod) if pod["spec"]["nodeName"] != node => Err(format!("node {node:?} can only {what} with spec.nodeName set to itself")),
        _ => Ok(()),
    }
}

fn pod_status(review: &Review<'_>, node: &str) -> Verdict {
    let Some(old) = review.old else { return Ok(()) };
    if old["spec"]["nodeName"] != node {
        return Err(format!("node {node:?} can only update pod status for pods with spec.nodeName set to itself"));
    }
    if meta::labels(old) != meta::labels(review.object) {
        return Err(format!("node {node:?} cannot update labels through pod status"));
    }
    let claims = |pod: &Value| pod["status"]["resourceClaimStatuses"].clone();
    if claims(old) != claims(review.object) {
        return Err(format!("node {node:?} cannot update resource claim statuses"));
    }
    Ok(())
}

fn own_node(review: &Review<'_>, node: &str) -> Verdict {
    if review.attributes.name != node {
        return Err(format!("node {node:?} is not allowed to modify node {:?}", review.attributes.name));
    }
    if review.operation == Operation::Delete {
        return Ok(());
    }
    // The other nodes make routes of these: the controller gives them, one piece of the cluster's range to each.
    let ranges = |object: &Value| ["podCIDR", "podCIDRs"].map(|field| object["spec"][field].clone());
    if ranges(review.object) != review.old.map_or([Value::Null, Value::Null], ranges) {
        return Err(format!("node {node:?} is not allowed to set its pod ranges"));
    }
    let Some(old) = review.old else {
        let restricted: Vec<&str> = labels(review.object).map(|(key, _)| key).filter(|key| is_restricted(key)).collect();
        return if restricted.is_empty() {
            Ok(())
        } else {
            Err(format!("node {node:?} is not allowed to set the following labels: {}", restricted.join(", ")))
        };
    };
    // The kubelet takes the initialization taint off no more than it puts one on: a controller does.
    if old["spec"]["taints"] != review.object["spec"]["taints"] {
        return Err(format!("node {node:?} is not allowed to modify taints"));
    }
    let changed = |key: &&str| meta::label(old, key) != meta::label(review.object, key);
    let mut restricted: Vec<&str> =
        labels(old).chain(labels(review.object)).map(|(key, _)| key).filter(|key| is_restricted(key)).filter(changed).collect();
    restricted.sort_unstable();
    restricted.dedup();
    if restricted.is_empty() { Ok(()) } else { Err(format!("is not allowed to modify labels: {}", restricted.join(", "))) }
}

fn labels(object: &Value) -> impl Iterator<Item = (&str, &Value)> {
    meta::labels(object).into_iter().flatten().map(|(key, value)| (key.as_str(), value))
}

/// Labels in Kubernetes' own domains that a kubelet may set.
const KUBELET_LABELS: [&str; 12] = [
    "kubernetes.io/hostname",
    "kubernetes.io/os",
    "kubernetes.io/arch",
    "beta.kubernetes.io/os",
    "beta.kubernetes.io/arch",
    "beta.kubernetes.io/instance-type",
    "node.kubernetes.io/instance-type",
    "node.kubernetes.io/windows-build",
    "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
];

fn is_restricted(key: &str) -> bool {
    let domain = key.split_once('/').map_or("", |(domain, _)| domain);
    let under = |parent: &str| domain == parent || domain.strip_suffix(parent).is_some_and(|head| head.ends_with('.'));
    if !under("kubernetes.io") && !under("k8s.io") {
        return false;
    }
    if under("node-restriction.kubernetes.io") {
        return true;
    }
    !KUBELET_LABELS.contains(&key) && !under("kubelet.kubernetes.io") && !under("node.kubernetes.io")
}

fn token(review: &Review<'_>, node: &str) -> Verdict {
    let reference = &review.object["spec"]["boundObjectRef"];
    if reference["kind"] != "Pod" || reference["apiVersion"] != "v1" {
        return Err("node requested token not bound to a pod".to_owned());
    }
    if reference["uid"].as_str().unwrap_or_default().is_empty() {
        return Err("node requested token with a pod binding without a uid".to_owned());
    }
    let name = reference["name"].as_str().unwrap_or_default();
    match review.lookup.get("", "pods", &review.attributes.namespace, name) {
        None => Err(format!("pods {name:?} not found")),
        Some(pod) if meta::uid(&pod) != reference["uid"] => Err(format!(
            "the UID in the bound object reference ({}) does not match the UID in record. The object might have been deleted and then recreated",
            reference["uid"].as_str().unwrap_or_default()
        )),
        Some(pod) if pod["spec"]["nodeName"] != node => Err("node requested token bound to a pod scheduled on a different node".to_owned()),
        Some(_) => Ok(()),
    }
}

fn lease(review: &Review<'_>, node: &str) -> Verdict {
    if review.attributes.namespace != "kube-node-lease" {
        return Err("can only access leases in the \"kube-node-lease\" system namespace".to_owned());
    }
    named(review, node, "can only access node lease with the same name as the requesting node")
}

fn named(review: &Review<'_>, node: &str, why: &str) -> Verdict {
    if review.attributes.name == node { Ok(()) } else { Err(why.to_owned()) }
}

fn slice(review: &Review<'_>, node: &str) -> Verdict {
    let slice = review.old.unwrap_or(review.object);
    let ours = |slice: &Value| slice["spec"]["nodeName"] == node;
    if ours(slice) && (review.object.is_null() || ours(review.object)) {
        Ok(())
    } else {
        Err("can only modify ResourceSlice with the same node name as the requesting node".to_owned())
    }
}

fn request(review: &Review<'_>, node: &str) -> Verdict {
    use base64::Engine as _;
    let spec = &review.object["spec"];
    let signer = spec["signerName"].as_str().unwrap_or_default();
    if !matches!(signer, "kubernetes.io/kubelet-serving" | "kubernetes.io/kube-apiserver-client-kubelet") {
        return Ok(());
    }
    let pem = spec["request"].as_str().and_then(|text| base64::engine::general_purpose::STANDARD.decode(text).ok()).unwrap_or_default();
    let parsed = pki::csr::der_from_pem(&pem).and_then(|der| pki::csr::parse(&der)).map_err(|err| format!("unable to parse csr: {err}"))?;
    if parsed.common_name == format!("system:node:{node}") {
        Ok(())
    } else {
        Err("can only create a node CSR with CN=system:node:".to_owned() + node)
    }
}
