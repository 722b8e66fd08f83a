//! Packaged components: applied at start, the way a person would with `kubectl apply --server-side`.

use std::collections::BTreeMap;
use std::net::IpAddr;

use base::chain::Chain;
use base::task::Group;
use client::informer::Informers;
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use kube::ResourceExt as _;
use kube::api::{Api, ApiResource, DynamicObject, Patch, PatchParams};
use kube::core::GroupVersionKind;
use serde_json::json;
use tracing::{info, warn};

/// Our name in managedFields.
const MANAGER: &str = "kedge-addons";
const COREDNS: &str = include_str!("../manifests/coredns.yaml");
const LOCAL_STORAGE: &str = include_str!("../manifests/local-storage.yaml");

/// Values of the variables in manifests, named as k3s names them.
pub(crate) struct Variables {
    /// Address of the DNS service.
    pub(crate) cluster_dns: IpAddr,
    /// Domain of the cluster.
    pub(crate) cluster_domain: String,
    /// The DNS server's image.
    pub(crate) dns_image: String,
}

/// Why a packaged component could not be applied.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AddonError {
    #[error("packaged manifest {name} is broken: {reason}")]
    Manifest { name: &'static str, reason: String },
    #[error("cannot apply {kind} {object} of {name}")]
    Apply { name: &'static str, kind: String, object: String, source: kube::Error },
}

impl Variables {
    fn expand(&self, manifest: &str) -> String {
        manifest
            .replace("%{CLUSTER_DNS}%", &self.cluster_dns.to_string())
            .replace("%{CLUSTER_DNS_LIST}%", &format!("[\"{}\"]", self.cluster_dns))
            .replace("%{CLUSTER_DNS_IPFAMILYPOLICY}%", "SingleStack")
            .replace("%{CLUSTER_DOMAIN}%", &self.cluster_domain)
            .replace("%{DNS_IMAGE}%", &self.dns_image)
    }
}

/// Applies the DNS server's manifest.
pub(crate) async fn deploy_dns(client: &kube::Client, variables: &Variables) -> Result<(), AddonError> {
    deploy(client, "coredns", &variables.expand(COREDNS)).await
}

/// Applies the class `local-path`; its provisioner is one of the controllers.
pub(crate) async fn deploy_local_storage(client: &kube::Client) -> Result<(), AddonError> {
    deploy(client, "local-storage", LOCAL_STORAGE).await
}

async fn deploy(client: &kube::Client, name: &'static str, text: &str) -> Result<(), AddonError> {
    let objects: Vec<DynamicObject> =
        serde_saphyr::from_multiple(text).map_err(|err| AddonError::Manifest { name, reason: err.to_string() })?;
    for object in objects {
        apply(client, name, object).await?;
    }
    info!(addon = name, "add-on applied");
    Ok(())
}

async fn apply(client: &kube::Client, name: &'static str, object: DynamicObject) -> Result<(), AddonError> {
    let types = object.types.clone().unwrap_or_default();
    let broken = |reason: String| AddonError::Manifest { name, reason };
    let gvk = GroupVersionKind::try_from(&types).map_err(|err| broken(err.to_string()))?;
    let row = schema::catalog::Catalog::builtin()
        .by_kind(&gvk.group, &gvk.version, &gvk.kind)
        .ok_or_else(|| broken(format!("no kind {} {}", types.api_version, types.kind)))?;
    let resource = ApiResource::from_gvk_with_plural(&gvk, &row.plural);
    let api: Api<DynamicObject> = match object.namespace() {
        Some(namespace) => Api::namespaced_with(client.clone(), &namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    };
    let params = PatchParams::apply(MANAGER).force();
    let failed = |source| AddonError::Apply { name, kind: types.kind.clone(), object: object.name_any(), source };
    api.patch(&object.name_any(), &params, &Patch::Apply(&object)).await.map(drop).map_err(failed)
}

/// Marks this machine's node as one that carries the control plane: a label that nodes may not give themselves.
pub(crate) fn mark_control_plane(client: kube::Client, node_name: String, informers: &Informers, group: &Group) {
    const LABEL: &str = "node-role.kubernetes.io/control-plane";
    let nodes = informers.get::<Node>();
    group.spawn("mark-control-plane", async move {
        let mut changes = nodes.changes();
        nodes.synced().await;
        loop {
            if nodes.get("", &node_name).is_some_and(|node| !node.labels().contains_key(LABEL)) {
                let patch = json!({"metadata": {"labels": {(LABEL): "true"}}});
                let api: Api<Node> = Api::all(client.clone());
                let written = api.patch(&node_name, &PatchParams::default(), &Patch::Merge(patch)).await;
                // A lost race is no failure: the winner's write is the next change.
                if let Some(err) = written.err().filter(|err| !matches!(err, kube::Error::Api(status) if status.code == 409)) {
                    warn!(node = %node_name, err = %Chain(&err), "cannot mark the control plane's node");
                }
            }
            changes.next().await;
        }
    });
}

/// Keeps the key NodeHosts of the DNS server's ConfigMap: node names and their addresses, one node a line.
pub(crate) fn keep_node_hosts(client: kube::Client, informers: &Informers, group: &Group) {
    let nodes = informers.get::<Node>();
    group.spawn("node-hosts", async move {
        let mut changes = nodes.changes();
        nodes.synced().await;
        let mut written = None;
        loop {
            let lines = node_hosts(&nodes.list());
            if written.as_ref() != Some(&lines) {
                let api: Api<ConfigMap> = Api::namespaced(client.clone(), "kube-system");
                let patch = json!({"data": {"NodeHosts": lines}});
                match api.patch("coredns", &PatchParams::default(), &Patch::Merge(patch)).await {
                    Ok(_) => written = Some(lines),
                    Err(err) => warn!(err = %Chain(&err), "cannot write node names for DNS"),
                }
            }
            changes.next().await;
        }
    });
}

fn node_hosts(nodes: &[std::sync::Arc<Node>]) -> String {
    let mut lines = BTreeMap::new();
    for node in nodes {
        let addresses = node.status.iter().flat_map(|s| s.addresses.iter().flatten());
        for address in addresses.filter(|a| a.type_ == "InternalIP") {
            lines.insert((node.name_any(), address.address.clone()), format!("{} {}\n", address.address, node.name_any()));
        }
    }
    lines.into_values().collect()
}
