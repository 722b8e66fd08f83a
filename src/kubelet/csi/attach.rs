//! A volume that must be attached: the kubelet says that it will use it, waits until the controller has attached it,
//! and reads what attaching gave.

use std::collections::HashMap;
use std::time::Duration;

use client::informer::Change;
use k8s_openapi::api::core::v1::NodeStatus;
use k8s_openapi::api::storage::v1::{VolumeAttachment, VolumeAttachmentStatus};
use kube::Api;

use super::data::{self, VolumeId};
use super::error::AttachError;
use super::wanted::Wanted;
use crate::api_error::ApiError;
use crate::node::Node;

/// So long a pod's task waits at a time; then it looks whether the pod is still wanted.
const WAIT: Duration = Duration::from_secs(2);

/// The name of the VolumeAttachment, as upstream's.
pub(super) fn attachment_name(id: VolumeId<'_>, node: &str) -> String {
    format!("csi-{}", data::sha256(&format!("{}{}{node}", id.handle, id.driver)))
}

/// Metadata that attaching the volume gave. The volume must be among those in use.
pub(super) async fn attached(node: &Node, wanted: &Wanted) -> Result<HashMap<String, String>, AttachError> {
    let unique = wanted.id().unique_name();
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
        return Err(AttachError::Waiting);
    }
    let name = attachment_name(wanted.id(), &node.config.node_name);
    let api: Api<VolumeAttachment> = Api::all(node.client.clone());
    let found = api.get_opt(&name).await.map_err(ApiError)?;
    let attachment = found.ok_or_else(|| AttachError::NotFound { name, handle: wanted.handle.clone() })?;
    outcome(attachment.status.unwrap_or_default())
}

/// Metadata that attaching gave, as the driver has written it down.
fn outcome(status: VolumeAttachmentStatus) -> Result<HashMap<String, String>, AttachError> {
    if let Some(message) = status.attach_error.and_then(|err| err.message) {
        return Err(AttachError::Failed { message });
    }
    match status.attached {
        true => Ok(status.attachment_metadata.into_iter().flatten().collect()),
        false => Err(AttachError::Waiting),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attachment_is_named_as_upstream_names_it() {
        let name = attachment_name(VolumeId { driver: "d.io", handle: "h" }, "n");
        assert_eq!(name, format!("csi-{}", data::sha256("hd.ion")));
    }

    #[test]
    fn an_attachment_gives_its_metadata_or_waits_or_fails_in_the_drivers_words() {
        let of = |status: serde_json::Value| outcome(serde_json::from_value(status).unwrap());
        let given = of(serde_json::json!({"attached": true, "attachmentMetadata": {"device": "/dev/x"}})).unwrap();
        assert_eq!(given["device"], "/dev/x");
        assert!(matches!(of(serde_json::json!({"attached": false})), Err(AttachError::Waiting)));
        let failed = of(serde_json::json!({"attached": false, "attachError": {"message": "no such disk"}}));
        assert_eq!(failed.unwrap_err().to_string(), "no such disk");
    }
}
