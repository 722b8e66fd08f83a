//! Mirror pods: how static pods show themselves in the API. Deleting one does not end its pod.

use base::chain::Chain;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use tracing::{debug, warn};

use super::{HASH, MIRROR, annotation};
use crate::node::Node;

/// Makes the mirror of a static pod, or replaces one that shows an older manifest.
pub(crate) async fn keep(node: &Node, pod: &Pod, have: Option<&Pod>) {
    if let Some(have) = have {
        if annotation(have, MIRROR) == annotation(pod, HASH) && have.metadata.deletion_timestamp.is_none() {
            return;
        }
        remove(node, have).await;
    }
    let mut mirror = pod.clone();
    mirror.metadata.uid = None;
    mirror.status = None;
    let hash = annotation(pod, HASH).unwrap_or_default().to_owned();
    mirror.metadata.annotations.get_or_insert_default().insert(MIRROR.to_owned(), hash);
    if let Some(uid) = node.node_uid.get() {
        mirror.metadata.owner_references = Some(vec![OwnerReference {
            api_version: "v1".to_owned(),
            kind: "Node".to_owned(),
            name: node.config.node_name.clone(),
            uid: uid.clone(),
            controller: Some(true),
            block_owner_deletion: None,
        }]);
    }
    let api: Api<Pod> = Api::namespaced(node.client.clone(), pod.metadata.namespace.as_deref().unwrap_or_default());
    match api.create(&PostParams::default(), &mirror).await {
        Ok(_) => {}
        Err(kube::Error::Api(status)) if status.code == 409 => debug!("mirror pod exists already"),
        Err(err) => warn!(pod = ?pod.metadata.name, err = %Chain(&err), "cannot make a mirror pod"),
    }
}

/// Removes a mirror whose file is gone.
pub(crate) async fn remove(node: &Node, mirror: &Pod) {
    let api: Api<Pod> = Api::namespaced(node.client.clone(), mirror.metadata.namespace.as_deref().unwrap_or_default());
    let now = DeleteParams { grace_period_seconds: Some(0), ..Default::default() };
    match api.delete(mirror.metadata.name.as_deref().unwrap_or_default(), &now).await {
        Ok(_) => {}
        Err(kube::Error::Api(status)) if status.code == 404 => {}
        Err(err) => warn!(pod = ?mirror.metadata.name, err = %Chain(&err), "cannot remove a mirror pod"),
    }
}
