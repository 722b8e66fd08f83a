//! A kubelet changes its own node and the pods on it, whatever the authorizers would let nodes do.

use std::net::IpAddr;
use std::sync::Arc;

use async_trait::async_trait;
use authz::node::own_claim;
use authz::{Authorizer, Decision};
use model::meta;
use model::reference::{GroupResource, NamespacedName};
use registry::attributes::Attributes;
use registry::status::Status;
use registry::trusted::MIRROR;
use serde_json::Value;

use super::{Operation, Plugin, Review, references};

/// Upstream's `NodeRestriction`. The authorizer says which audiences nodes may ask for beyond those of their pods.
pub struct NodeRestriction(pub Arc<dyn Authorizer>);

#[async_trait]
impl Plugin for NodeRestriction {
    fn name(&self) -> &'static str {
        "NodeRestriction"
    }

    fn handles(&self, operation: Operation, a: &Attributes) -> bool {
        operation != Operation::Connect && a.user.node().is_some()
    }

    async fn admit(&self, review: &mut Review<'_>) -> Result<(), Status> {
        let a = review.attributes;
        let Some(node) = a.user.node() else { return Ok(()) };
        if node.is_empty() {
            return Err(review.forbidden(&format!("could not determine node from user {:?}", a.user.name)));
        }
        let evicts = a.is_subresource(GroupResource::core("pods"), "eviction");
        if evicts && review.lookup.sure(GroupResource::core("pods"), a.namespaced_name()).await.is_none() {
            return Err(Status::not_found(GroupResource::core("pods"), &a.name));
        }
        let verdict = match (a.group.as_str(), a.resource.as_str(), a.subresource.as_str()) {
            ("", "pods", "") => pod(review, node).await,
            ("", "pods", "status") => pod_status(review, node),
            ("", "pods", "eviction") => on_node(review, node, Removal::Evict).await,
            ("", "pods", other) => {
                Err(format!("unexpected pod subresource {other:?}, only 'status' and 'eviction' are allowed"))
            }
            ("", "nodes", _) => own_node(review, node),
            ("", "persistentvolumeclaims", "status") => claim_status(review, node),
            ("", "persistentvolumeclaims", other) => {
                Err(format!("may only update PVC status; unexpected subresource {other:?}"))
            }
            ("", "serviceaccounts", "token") => match token(review, node).await {
                Ok(()) => self.audience(review, node).await,
                refused => refused,
            },
            ("coordination.k8s.io", "leases", _) => lease(review, node),
            ("storage.k8s.io", "csinodes", _) if a.name != node => {
                Err("can only access CSINode with the same name as the requesting node".to_owned())
            }
            ("resource.k8s.io", "resourceslices", _) => slice(review, node),
            ("certificates.k8s.io", "certificatesigningrequests", "") if review.operation == Operation::Create => {
                request(review, node)
            }
            _ => Ok(()),
        };
        verdict.map_err(|why| review.forbidden(&why))
    }
}

type Verdict = Result<(), String>;

async fn pod(review: &Review<'_>, node: &str) -> Verdict {
    match review.operation {
        Operation::Create => mirror(review, node).await,
        Operation::Delete => on_node(review, node, Removal::Delete).await,
        _ => Err(format!("unexpected operation \"UPDATE\", node {node:?} can only create and delete mirror pods")),
    }
}

async fn mirror(review: &Review<'_>, node: &str) -> Verdict {
    let (object, spec) = (&*review.object, &review.object["spec"]);
    if meta::annotation(object, MIRROR).is_none() {
        return Err(format!("pod does not have {MIRROR:?} annotation, node {node:?} can only create mirror pods"));
    }
    if spec["nodeName"] != node {
        return Err(format!("node {node:?} can only create pods with spec.nodeName set to itself"));
    }
    owners(review, node).await?;
    match references::of_pod(spec) {
        Some(what) => Err(format!("node {node:?} can not create pods that reference {what}")),
        None => Ok(()),
    }
}

async fn owners(review: &Review<'_>, node: &str) -> Verdict {
    let owners = meta::owner_references(review.object);
    let [owner] = owners.as_slice() else {
        let which = if owners.is_empty() { "an owner" } else { "a single owner" };
        return Err(format!("node {node:?} can only create pods with {which} reference set to itself"));
    };
    if owner.api_version != "v1" || owner.kind != "Node" || owner.name != node {
        return Err(format!("node {node:?} can only create pods with an owner reference set to itself"));
    }
    if !owner.controller {
        return Err(format!("node {node:?} can only create pods with a controller owner reference set to itself"));
    }
    if review.object["metadata"]["ownerReferences"][0]["blockOwnerDeletion"] == true {
        return Err(format!("node {node:?} must not set blockOwnerDeletion on an owner reference"));
    }
    match review.lookup.sure(GroupResource::core("nodes"), NamespacedName::cluster(node)).await {
        Some(stored) if meta::uid(&stored) == owner.uid => Ok(()),
        _ => Err(format!("node {node:?} UID mismatch: expected {:?}", owner.uid)),
    }
}

/// A way for a pod to go.
#[derive(Clone, Copy, Debug)]
enum Removal {
    Evict,
    Delete,
}

async fn on_node(review: &Review<'_>, node: &str, removal: Removal) -> Verdict {
    let a = review.attributes;
    // What goes is the stored object that the verb has read; only an eviction has none, and that asks for the pod.
    let pod = match review.old {
        Some(old) => Some(old.clone()),
        None => review.lookup.sure(GroupResource::core("pods"), a.namespaced_name()).await.map(|pod| (*pod).clone()),
    };
    match pod {
        Some(pod) if pod["spec"]["nodeName"] == node => Ok(()),
        Some(_) => {
            let what = match removal {
                Removal::Evict => "evict pods",
                Removal::Delete => "delete pods",
            };
            Err(format!("node {node:?} can only {what} with spec.nodeName set to itself"))
        }
        None => Err(format!("pods {:?} not found", a.name)),
    }
}

/// Of a claim a node writes what it measured, and nothing else: metadata least of all.
fn claim_status(review: &Review<'_>, node: &str) -> Verdict {
    let Some(old) = review.old else { return Err(format!("unexpected operation {:?}", review.operation)) };
    let bare = |claim: &Value| {
        let mut bare = claim.clone();
        for (parent, fields) in [
            ("metadata", &["resourceVersion", "managedFields"][..]),
            ("status", &["capacity", "conditions", "allocatedResources", "allocatedResourceStatuses"]),
        ] {
            if let Some(map) = bare.get_mut(parent).and_then(Value::as_object_mut) {
                fields.iter().for_each(|field| drop(map.remove(*field)));
            }
        }
        bare
    };
    if bare(old) == bare(review.object) {
        return Ok(());
    }
    Err(format!("node {node:?} is not allowed to update fields other than status.quantity and status.conditions"))
}

fn pod_status(review: &Review<'_>, node: &str) -> Verdict {
    let Some(old) = review.old else { return Ok(()) };
    if old["spec"]["nodeName"] != node {
        return Err(format!("node {node:?} can only update pod status for pods with spec.nodeName set to itself"));
    }
    if meta::labels(old) != meta::labels(review.object) {
        return Err(format!("node {node:?} cannot update labels through pod status"));
    }
    for (field, what) in [
        ("resourceClaimStatuses", "resource claim statues"),
        ("extendedResourceClaimStatus", "extended resource claim status"),
    ] {
        if old["status"][field] != review.object["status"][field] {
            return Err(format!("node {node:?} cannot update {what}"));
        }
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
    own_addresses(review, node)?;
    let Some(old) = review.old else {
        let restricted: Vec<&str> =
            labels(review.object).map(|(key, _)| key).filter(|key| is_restricted(key)).collect();
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
    // With an owner that is gone the garbage collector would delete the node, and the kubelet register it without
    // taints (CVE-2025-5187).
    if old["metadata"]["ownerReferences"] != review.object["metadata"]["ownerReferences"] {
        return Err(format!("node {node:?} is not allowed to modify ownerReferences"));
    }
    let changed = |key: &&str| meta::label(old, key) != meta::label(review.object, key);
    let mut restricted: Vec<&str> = labels(old)
        .chain(labels(review.object))
        .map(|(key, _)| key)
        .filter(|key| is_restricted(key))
        .filter(changed)
        .collect();
    restricted.sort_unstable();
    restricted.dedup();
    if restricted.is_empty() {
        Ok(())
    } else {
        Err(format!("is not allowed to modify labels: {}", restricted.join(", ")))
    }
}

/// Addresses of one node; `client::node` reads as many.
const ADDRESSES_MAX: usize = 32;
/// The longest name of DNS.
const HOST_BYTES_MAX: usize = 253;

/// Others make names, rules and connections of a node's addresses, so each is an address or a word. What is there
/// already is let be: a cloud's controller writes it, too.
fn own_addresses(review: &Review<'_>, node: &str) -> Verdict {
    let list = |object: &Value| object["status"]["addresses"].as_array().cloned().unwrap_or_default();
    let (new, old) = (list(review.object), review.old.map(list).unwrap_or_default());
    if new.len() > ADDRESSES_MAX.max(old.len()) {
        return Err(format!("node {node:?} is not allowed to have more than {ADDRESSES_MAX} addresses"));
    }
    let good = |address: &Value| {
        let text = address["address"].as_str().unwrap_or_default();
        match address["type"].as_str() {
            Some("InternalIP" | "ExternalIP") => text.parse::<IpAddr>().is_ok(),
            _ => text.len() <= HOST_BYTES_MAX && text.bytes().all(|b| b.is_ascii_graphic() && b != b'#'),
        }
    };
    match new.iter().find(|address| !good(address) && !old.contains(address)) {
        None => Ok(()),
        Some(bad) => Err(format!("node {node:?} is not allowed to have the address {}, which is none", bad["address"])),
    }
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

async fn token(review: &Review<'_>, node: &str) -> Verdict {
    let reference = &review.object["spec"]["boundObjectRef"];
    if reference["kind"] != "Pod" || reference["apiVersion"] != "v1" {
        return Err("node requested token not bound to a pod".to_owned());
    }
    if reference["uid"].as_str().unwrap_or_default().is_empty() {
        return Err("node requested token with a pod binding without a uid".to_owned());
    }
    let name = reference["name"].as_str().unwrap_or_default();
    match review
        .lookup
        .sure(GroupResource::core("pods"), NamespacedName { namespace: &review.attributes.namespace, name })
        .await
    {
        None => Err(format!("pods {name:?} not found")),
        Some(pod) if meta::uid(&pod) != reference["uid"] => Err(format!(
            "the UID in the bound object reference ({}) does not match the UID in record. The object might have been \
             deleted and then recreated",
            reference["uid"].as_str().unwrap_or_default()
        )),
        Some(pod) if pod["spec"]["nodeName"] != node => {
            Err("node requested token bound to a pod scheduled on a different node".to_owned())
        }
        Some(_) => Ok(()),
    }
}

impl NodeRestriction {
    /// A token is for an audience that a volume of the pod names, or that nodes are let ask for.
    ///
    /// Spec: `validateNodeServiceAccountAudience` of upstream's plugin/pkg/admission/noderestriction (v1.36.2).
    async fn audience(&self, review: &Review<'_>, node: &str) -> Verdict {
        let spec = &review.object["spec"];
        let audience = match spec["audiences"].as_array().map(Vec::as_slice).unwrap_or_default() {
            [] => "",
            [one] => one.as_str().unwrap_or_default(),
            _ => return Err("node may only request 0 or 1 audiences".to_owned()),
        };
        let a = review.attributes;
        for (group, resource) in
            [("", "persistentvolumeclaims"), ("", "persistentvolumes"), ("storage.k8s.io", "csidrivers")]
        {
            review.lookup.load(GroupResource { group, resource }).await;
        }
        let name = spec["boundObjectRef"]["name"].as_str().unwrap_or_default();
        let pod = review
            .lookup
            .get(GroupResource::core("pods"), NamespacedName { namespace: &a.namespace, name })
            .ok_or_else(|| format!("pods {name:?} not found"))?;
        if names_audience(review, &pod, audience) {
            return Ok(());
        }
        let asked = Attributes {
            user: Arc::clone(&a.user),
            verb: "request-serviceaccounts-token-audience".to_owned(),
            version: "v1".to_owned(),
            resource: audience.to_owned(),
            namespace: a.namespace.clone(),
            name: a.name.clone(),
            is_resource: true,
            ..Attributes::default()
        };
        match self.0.authorize(&asked).await {
            Decision::Allow { .. } => Ok(()),
            _ => Err(format!(
                "audience {audience:?} not found in pod spec volume, system:node:{node} is not authorized to request \
                 tokens for this audience"
            )),
        }
    }
}

/// Whether a volume of the pod is told a token for this audience: a projected one, or one whose driver asks for such
/// tokens.
fn names_audience(review: &Review<'_>, pod: &Value, audience: &str) -> bool {
    let said = |token: &Value| token["audience"].as_str().unwrap_or_default() == audience;
    let driver_wants = |driver: &str| {
        let driver = review
            .lookup
            .get(GroupResource { group: "storage.k8s.io", resource: "csidrivers" }, NamespacedName::cluster(driver));
        driver.is_some_and(|driver| driver["spec"]["tokenRequests"].as_array().into_iter().flatten().any(said))
    };
    let claimed = |claim: &str| {
        let claim = review.lookup.get(
            GroupResource::core("persistentvolumeclaims"),
            NamespacedName { namespace: meta::namespace(pod), name: claim },
        )?;
        let volume = review.lookup.get(
            GroupResource::core("persistentvolumes"),
            NamespacedName::cluster(claim["spec"]["volumeName"].as_str()?),
        )?;
        volume["spec"]["csi"]["driver"].as_str().map(str::to_owned)
    };
    pod["spec"]["volumes"].as_array().into_iter().flatten().any(|volume| {
        let sources = volume["projected"]["sources"].as_array().into_iter().flatten();
        let projected =
            sources.map(|source| &source["serviceAccountToken"]).any(|token| token.is_object() && said(token));
        let driver = volume["csi"]["driver"].as_str().map(str::to_owned);
        let driver = driver.or_else(|| own_claim(pod, volume).and_then(|claim| claimed(&claim)));
        projected || driver.is_some_and(|driver| driver_wants(&driver))
    })
}

fn lease(review: &Review<'_>, node: &str) -> Verdict {
    if review.attributes.namespace != "kube-node-lease" {
        return Err("can only access leases in the \"kube-node-lease\" system namespace".to_owned());
    }
    if review.attributes.name != node {
        return Err("can only access node lease with the same name as the requesting node".to_owned());
    }
    Ok(())
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
    let pem = spec["request"]
        .as_str()
        .and_then(|text| base64::engine::general_purpose::STANDARD.decode(text).ok())
        .unwrap_or_default();
    let parsed = pki::csr::der_from_pem(&pem)
        .and_then(|der| pki::csr::parse(&der))
        .map_err(|err| format!("unable to parse csr: {err}"))?;
    if parsed.common_name == format!("system:node:{node}") {
        Ok(())
    } else {
        Err("can only create a node CSR with CN=system:node:".to_owned() + node)
    }
}
