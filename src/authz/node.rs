//! The Node authorizer: a kubelet reads what its pods need, writes itself, and no more.

use std::sync::Arc;

use async_trait::async_trait;
use model::reference::{GroupResource, NamespacedName};
use registry::attributes::Attributes;
use registry::lookup::Lookup;
use registry::trusted::MIRROR;
use serde_json::Value;

use super::bootstrap;
use super::rule::{Rule, field_asked, rules_of};
use super::{Authorizer, Decision};

/// Decides about requests of nodes; has no opinion on others.
pub struct Node {
    lookup: Arc<dyn Lookup>,
    /// Rules of the role `system:node`: every node's rights that depend on no object.
    rules: Vec<Rule>,
}

type Verdict = Result<(), String>;

fn refuse(why: &str) -> Verdict {
    Err(why.to_owned())
}

impl Node {
    /// Follows pods, claims and volumes through `lookup`.
    pub fn new(lookup: Arc<dyn Lookup>) -> Node {
        Node { lookup, rules: rules_of(&bootstrap::role("system:node")) }
    }

    fn decide(&self, node: &str, a: &Attributes) -> Verdict {
        match (a.group.as_str(), a.resource.as_str()) {
            ("", "secrets" | "configmaps") => self.read_related(node, a),
            ("", "persistentvolumeclaims") if a.subresource == "status" => {
                if !matches!(a.verb.as_str(), "update" | "patch") {
                    return refuse("can only get/update/patch this type");
                }
                self.related(node, a)
            }
            ("", "persistentvolumeclaims" | "persistentvolumes")
            | ("resource.k8s.io", "resourceclaims")
            | ("storage.k8s.io", "volumeattachments") => self.get_related(node, a),
            ("", "serviceaccounts") if a.subresource == "token" || a.verb == "create" => self.create_token(node, a),
            ("", "serviceaccounts") => self.get_related(node, a),
            ("resource.k8s.io", "resourceslices") => self.slices(node, a),
            ("coordination.k8s.io", "leases") => lease(node, a),
            ("storage.k8s.io", "csinodes") => csi_node(node, a),
            ("", "nodes") => own_node(node, a),
            ("", "pods") => self.pods(node, a),
            _ if self.rules.iter().any(|rule| rule.allows(a)) => Ok(()),
            _ => refuse(""),
        }
    }

    fn get_related(&self, node: &str, a: &Attributes) -> Verdict {
        match (a.verb.as_str(), a.subresource.as_str()) {
            ("get", "") => self.related(node, a),
            ("get", _) => refuse("cannot get subresource"),
            _ => refuse("can only get individual resources of this type"),
        }
    }

    fn read_related(&self, node: &str, a: &Attributes) -> Verdict {
        if !a.is_read_only() {
            return refuse("can only read resources of this type");
        }
        if !a.subresource.is_empty() {
            return refuse("cannot read subresource");
        }
        if a.namespace.is_empty() {
            return refuse("can only read namespaced object of this type");
        }
        self.related(node, a)
    }

    fn create_token(&self, node: &str, a: &Attributes) -> Verdict {
        if a.verb != "create" || a.name.is_empty() {
            return refuse("can only create tokens for individual service accounts");
        }
        if a.subresource != "token" {
            return refuse("can only create token subresource of serviceaccount");
        }
        self.related(node, a)
    }

    fn pods(&self, node: &str, a: &Attributes) -> Verdict {
        match (a.subresource.as_str(), a.verb.as_str()) {
            ("", "get") => self.related(node, a),
            ("", "list" | "watch") if field_asked(a, "spec.nodeName").as_deref() == Some(node) => Ok(()),
            ("", "list" | "watch") if !a.name.is_empty() => self.related(node, a),
            ("", "list" | "watch") => refuse("can only list/watch pods with spec.nodeName field selector"),
            ("", "create" | "delete") | ("status", "update" | "patch") | ("eviction", "create") => Ok(()),
            _ => refuse(""),
        }
    }

    fn slices(&self, node: &str, a: &Attributes) -> Verdict {
        match (a.subresource.as_str(), a.verb.as_str()) {
            ("", "create") => Ok(()),
            ("", "get" | "update" | "patch" | "delete") => self.related(node, a),
            ("", "list" | "watch" | "deletecollection") if field_asked(a, "spec.nodeName").as_deref() == Some(node) => {
                Ok(())
            }
            ("", "list" | "watch" | "deletecollection") => {
                refuse("can only list/watch/deletecollection resourceslices with nodeName field selector")
            }
            ("", _) => refuse(
                "only the following verbs are allowed for a ResourceSlice: get, watch, list, create, update, patch, \
                 delete, deletecollection",
            ),
            _ => refuse("cannot authorize ResourceSlice subresources"),
        }
    }

    fn related(&self, node: &str, a: &Attributes) -> Verdict {
        let name = a.name.as_str();
        if name.is_empty() {
            return refuse("No Object name found");
        }
        if self.path_exists(node, a, name) {
            Ok(())
        } else {
            Err(format!("no relationship found between node '{node}' and this object"))
        }
    }

    /// Whether a pod of the node leads to the object.
    fn path_exists(&self, node: &str, a: &Attributes, name: &str) -> bool {
        let pods = || {
            self.lookup
                .list(GroupResource::core("pods"), Some(&a.namespace))
                .into_iter()
                .filter(|pod| on_node(pod, node))
        };
        match a.resource.as_str() {
            // Its mirror pods, too: they lead nowhere else.
            "pods" => self
                .lookup
                .get(GroupResource::core("pods"), NamespacedName { namespace: &a.namespace, name })
                .is_some_and(|pod| pod["spec"]["nodeName"] == node),
            "secrets" => {
                pods().any(|pod| mentions(&pod["spec"], &SECRET_NAMES, name))
                    || self.volume_secret(node, &a.namespace, name)
            }
            "configmaps" => pods().any(|pod| mentions(&pod["spec"], &CONFIG_MAP_NAMES, name)),
            "serviceaccounts" => pods().any(|pod| pod["spec"]["serviceAccountName"] == name),
            "persistentvolumeclaims" => pods().any(|pod| claims(&pod).any(|claim| claim == name)),
            "resourceclaims" => pods().any(|pod| resource_claims(&pod).any(|claim| claim == name)),
            "persistentvolumes" => self
                .lookup
                .get(GroupResource::core("persistentvolumes"), NamespacedName::cluster(name))
                .is_some_and(|volume| self.volume_in_use(node, &volume)),
            "volumeattachments" => self
                .lookup
                .get(
                    GroupResource { group: "storage.k8s.io", resource: "volumeattachments" },
                    NamespacedName::cluster(name),
                )
                .is_some_and(|attachment| attachment["spec"]["nodeName"] == node),
            "resourceslices" => self
                .lookup
                .get(
                    GroupResource { group: "resource.k8s.io", resource: "resourceslices" },
                    NamespacedName::cluster(name),
                )
                .is_some_and(|slice| slice["spec"]["nodeName"] == node),
            _ => false,
        }
    }

    fn volume_in_use(&self, node: &str, volume: &Value) -> bool {
        let claim = &volume["spec"]["claimRef"];
        let (Some(namespace), Some(name)) = (claim["namespace"].as_str(), claim["name"].as_str()) else { return false };
        let pods = self.lookup.list(GroupResource::core("pods"), Some(namespace));
        pods.iter().filter(|pod| on_node(pod, node)).any(|pod| claims(pod).any(|claim| claim == name))
    }

    /// Secrets that a volume's driver needs on the node.
    fn volume_secret(&self, node: &str, namespace: &str, name: &str) -> bool {
        self.lookup
            .list(GroupResource::core("persistentvolumes"), None)
            .iter()
            .any(|volume| secret_refs(&volume["spec"]).contains(&(namespace, name)) && self.volume_in_use(node, volume))
    }
}

#[async_trait]
impl Authorizer for Node {
    async fn authorize(&self, a: &Attributes) -> Decision {
        let Some(node) = a.user.node() else { return Decision::NoOpinion { reason: String::new() } };
        if node.is_empty() {
            return Decision::NoOpinion { reason: format!("unknown node for user {:?}", a.user.name) };
        }
        for resource in ["persistentvolumes", "persistentvolumeclaims"] {
            if a.resource == resource || a.resource == "secrets" {
                self.lookup.load(GroupResource::core(resource)).await;
            }
        }
        if matches!(a.resource.as_str(), "volumeattachments" | "resourceslices") {
            self.lookup.load(a.group_resource()).await;
        }
        match self.decide(node, a) {
            Ok(()) => Decision::Allow { reason: String::new() },
            Err(reason) => Decision::NoOpinion { reason },
        }
    }
}

fn lease(node: &str, a: &Attributes) -> Verdict {
    if !matches!(a.verb.as_str(), "get" | "create" | "update" | "patch" | "delete") {
        return refuse("can only get, create, update, patch, or delete a node lease");
    }
    if a.namespace != "kube-node-lease" {
        return refuse("can only access leases in the \"kube-node-lease\" system namespace");
    }
    if a.verb != "create" && a.name != node {
        return refuse("can only access node lease with the same name as the requesting node");
    }
    Ok(())
}

fn csi_node(node: &str, a: &Attributes) -> Verdict {
    if !matches!(a.verb.as_str(), "get" | "create" | "update" | "patch" | "delete") {
        return refuse("can only get, create, update, patch, or delete a CSINode");
    }
    if !a.subresource.is_empty() {
        return refuse("cannot authorize CSINode subresources");
    }
    if a.verb != "create" && a.name != node {
        return refuse("can only access CSINode with the same name as the requesting node");
    }
    Ok(())
}

fn own_node(node: &str, a: &Attributes) -> Verdict {
    match (a.subresource.as_str(), a.verb.as_str()) {
        // NodeRestriction sees to it that the node is its own.
        ("", "create" | "update" | "patch") | ("status", "update" | "patch") => Ok(()),
        ("", "get" | "list" | "watch") => match a.name.as_str() {
            name if name == node => Ok(()),
            "" => Err(format!("node '{node}' cannot read all nodes, only its own Node object")),
            other => Err(format!("node '{node}' cannot read '{other}', only its own Node object")),
        },
        _ => refuse(""),
    }
}

/// Mirror pods lead nowhere: a node could write one that names any secret.
fn on_node(pod: &Value, node: &str) -> bool {
    pod["spec"]["nodeName"] == node && model::meta::annotation(pod, MIRROR).is_none()
}

/// Fields of a pod's spec that name a secret: the object that holds the field, and the field.
const SECRET_NAMES: [(&str, &str); 7] = [
    ("secret", "secretName"),
    ("secret", "name"),
    ("secretRef", "name"),
    ("secretKeyRef", "name"),
    ("nodePublishSecretRef", "name"),
    ("imagePullSecrets", "name"),
    ("azureFile", "secretName"),
];
const CONFIG_MAP_NAMES: [(&str, &str); 3] =
    [("configMap", "name"), ("configMapRef", "name"), ("configMapKeyRef", "name")];

/// Whether somewhere under `value` one of `places` holds `name`.
fn mentions(value: &Value, places: &[(&str, &str)], name: &str) -> bool {
    match value {
        Value::Array(items) => items.iter().any(|item| mentions(item, places, name)),
        Value::Object(fields) => fields.iter().any(|(key, inside)| {
            let here = |object: &Value| places.iter().any(|(holder, field)| key == holder && object[*field] == name);
            here(inside)
                || inside.as_array().is_some_and(|items| items.iter().any(here))
                || mentions(inside, places, name)
        }),
        _ => false,
    }
}

/// Names of the claims of a pod.
fn claims(pod: &Value) -> impl Iterator<Item = String> + '_ {
    pod["spec"]["volumes"].as_array().into_iter().flatten().filter_map(|volume| own_claim(pod, volume))
}

/// The claim of one of a pod's volumes; a volume of its own makes one named after pod and volume.
pub fn own_claim(pod: &Value, volume: &Value) -> Option<String> {
    match volume["persistentVolumeClaim"]["claimName"].as_str() {
        Some(name) => Some(name.to_owned()),
        None if volume["ephemeral"].is_object() => {
            Some(format!("{}-{}", pod["metadata"]["name"].as_str()?, volume["name"].as_str()?))
        }
        None => None,
    }
}

fn resource_claims(pod: &Value) -> impl Iterator<Item = &str> {
    let named = pod["spec"]["resourceClaims"].as_array().into_iter().flatten();
    let made = pod["status"]["resourceClaimStatuses"].as_array().into_iter().flatten();
    let extended = std::iter::once(&pod["status"]["extendedResourceClaimStatus"]);
    named.chain(made).chain(extended).filter_map(|claim| claim["resourceClaimName"].as_str())
}

/// Secret references of a PersistentVolume's source that a kubelet reads. Those that only a driver's controller reads
/// (`controllerPublishSecretRef`, `controllerExpandSecretRef`) are the storage's keys, and no node's.
const VOLUME_SECRETS: [(&str, &str); 10] = [
    ("cephfs", "secretRef"),
    ("cinder", "secretRef"),
    ("flexVolume", "secretRef"),
    ("rbd", "secretRef"),
    ("scaleIO", "secretRef"),
    ("iscsi", "secretRef"),
    ("storageos", "secretRef"),
    ("csi", "nodePublishSecretRef"),
    ("csi", "nodeStageSecretRef"),
    ("csi", "nodeExpandSecretRef"),
];

/// `(namespace, name)` of every secret that a node needs for a volume; one without a namespace is in the claim's.
///
/// Spec: `VisitPVSecretNames` of upstream's pkg/api/v1/persistentvolume/util.go (v1.36.2), those that are kubelet
/// visible.
fn secret_refs(spec: &Value) -> Vec<(&str, &str)> {
    let claimed = &spec["claimRef"]["namespace"];
    let given = |namespace: &Value| namespace.as_str().is_some_and(|ns| !ns.is_empty());
    let azure = &spec["azureFile"];
    let mut places: Vec<(&Value, &Value)> = VOLUME_SECRETS
        .iter()
        .map(|(source, field)| &spec[*source][*field])
        .map(|secret| (if given(&secret["namespace"]) { &secret["namespace"] } else { claimed }, &secret["name"]))
        .collect();
    places.push((
        if given(&azure["secretNamespace"]) { &azure["secretNamespace"] } else { claimed },
        &azure["secretName"],
    ));
    places.into_iter().filter_map(|(namespace, name)| Some((namespace.as_str()?, name.as_str()?))).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use registry::memory::Objects;
    use registry::user::{GROUP_NODES, UserInfo};

    fn asks(verb: &str, resource: &str, name: &str) -> Attributes {
        let user = UserInfo::new("system:node:n1", &[GROUP_NODES]).into();
        let (verb, resource, name, namespace) = (verb.into(), resource.into(), name.into(), "default".into());
        Attributes { user, verb, resource, name, namespace, is_resource: true, ..Attributes::default() }
    }

    fn node() -> Node {
        let pod = json!({"metadata": {"name": "p", "namespace": "default"},
            "spec": {"nodeName": "n1", "serviceAccountName": "sa",
            "imagePullSecrets": [{"name": "pull"}],
            "containers": [{"env": [{"valueFrom": {"secretKeyRef": {"name": "env"}}}],
            "envFrom": [{"configMapRef": {"name": "cm"}}]}],
            "volumes": [{"name": "v", "projected": {"sources": [{"secret": {"name": "proj"}}]}},
            {"name": "e", "ephemeral": {}},
                        {"name": "s", "secret": {"secretName": "vol"}}]}});
        let mut other = pod.clone();
        other["metadata"]["name"] = json!("q");
        other["spec"]["nodeName"] = json!("n2");
        other["spec"]["imagePullSecrets"][0]["name"] = json!("foreign");
        Node::new(Arc::new(Objects::of([("", "pods", pod), ("", "pods", other)])))
    }

    #[tokio::test]
    async fn a_node_reads_what_its_pods_name_and_nothing_else() {
        let node = node();
        for secret in ["pull", "env", "proj", "vol"] {
            assert!(
                matches!(node.authorize(&asks("get", "secrets", secret)).await, Decision::Allow { .. }),
                "{secret}"
            );
        }
        let reason = "no relationship found between node 'n1' and this object".to_owned();
        assert_eq!(node.authorize(&asks("get", "secrets", "foreign")).await, Decision::NoOpinion { reason });
        let reason = "No Object name found".to_owned();
        assert_eq!(node.authorize(&asks("list", "secrets", "")).await, Decision::NoOpinion { reason });
        assert!(matches!(node.authorize(&asks("get", "configmaps", "cm")).await, Decision::Allow { .. }));
        assert!(matches!(node.authorize(&asks("get", "configmaps", "proj")).await, Decision::NoOpinion { .. }));
        assert!(matches!(node.authorize(&asks("get", "persistentvolumeclaims", "p-e")).await, Decision::Allow { .. }));
    }

    #[tokio::test]
    async fn tokens_are_for_the_accounts_of_its_pods() {
        let node = node();
        let mut a = asks("create", "serviceaccounts", "sa");
        a.subresource = "token".into();
        assert!(matches!(node.authorize(&a).await, Decision::Allow { .. }));
        a.name = "default".into();
        assert!(matches!(node.authorize(&a).await, Decision::NoOpinion { .. }));
    }

    #[tokio::test]
    async fn a_node_lists_its_own_pods_and_itself() {
        let node = node();
        let mut a = asks("list", "pods", "");
        assert!(matches!(node.authorize(&a).await, Decision::NoOpinion { .. }));
        a.field_selector = "spec.nodeName=n1".into();
        a.namespace.clear();
        assert!(matches!(node.authorize(&a).await, Decision::Allow { .. }));
        a.resource = "nodes".into();
        // info.rs has read the name off the selector.
        a.name = "n1".into();
        assert!(matches!(node.authorize(&a).await, Decision::Allow { .. }));
        a.name = "n2".into();
        assert!(matches!(node.authorize(&a).await, Decision::NoOpinion { .. }));
        a.user = UserInfo::new("bob", &[]).into();
        assert!(matches!(node.authorize(&a).await, Decision::NoOpinion { .. }));
    }
}
