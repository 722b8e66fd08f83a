//! A volume that must be attached: the kubelet says that it will use it, waits until the controller has attached it,
//! and reads what attaching gave.

use std::collections::HashMap;
use std::time::Duration;

use client::informer::Change;
use k8s_openapi::api::core::v1::NodeStatus;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::Api;

use super::data;
use super::wanted::Wanted;
use crate::node::Node;

/// So long a pod's task waits at a time; then it looks whether the pod is still wanted.
const WAIT: Duration = Duration::from_secs(2);

/// Why there is nothing to mount yet.
pub(super) enum NotYet {
    /// The volume is on its way: no reason for an event.
    Waiting,
    Failed(String),
}

/// The name of the VolumeAttachment, as upstream's.
pub(super) fn attachment_name(driver: &str, handle: &str, node: &str) -> String {
    format!("csi-{}", data::sha256(&format!("{handle}{driver}{node}")))
}

/// What attaching the volume gave. The volume must be among those in use.
pub(super) async fn attached(node: &Node, wanted: &Wanted) -> Result<HashMap<String, String>, NotYet> {
    let unique = wanted.unique_name();
    let ready = |status: &NodeStatus| {
        let in_use = status.volumes_in_use.iter().flatten().any(|name| *name == unique);
        in_use && status.volumes_attached.iter().flatten().any(|volume| volume.name == unique)
    };
    let mut changes = node.own.changes();
    let wait = async {
        while !node.own.object().is_some_and(|object| object.status.as_ref().is_some_and(ready)) {
            let _look_again: Change<_> = changes.next().await;
        }
    };
    if tokio::time::timeout(WAIT, wait).await.is_err() {
        return Err(NotYet::Waiting);
    }
    let name = attachment_name(&wanted.driver, &wanted.handle, &node.config.node_name);
    let api: Api<VolumeAttachment> = Api::all(node.client.clone());
    let found = api.get_opt(&name).await.map_err(|err| NotYet::Failed(err.to_string()))?;
    let Some(attachment) = found else {
        return Err(NotYet::Failed(format!("volume attachment with ID {name} of volume {} not found", wanted.handle)));
    };
    let status = attachment.status.unwrap_or_default();
    if let Some(message) = status.attach_error.and_then(|err| err.message) {
        return Err(NotYet::Failed(message));
    }
    match status.attached {
        true => Ok(status.attachment_metadata.into_iter().flatten().collect()),
        false => Err(NotYet::Waiting),
    }
}
