//! A volume that has grown: its file system is made to fill it, and the claim says so.

use std::error::Error;
use std::path::Path;

use base::chain::Chain;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::Api;
use kube::api::{Patch, PatchParams};
use proto::csi as pb;
use serde_json::{Value, json};
use tracing::warn;

use super::Driver;
use super::error::CsiError;
use super::secrets::secrets;
use super::wanted::{Granularity, Wanted};
use crate::cgroups::limits;
use crate::events::Kind;
use crate::node::Node;
use crate::volumes::error::{Phase, VolumeError};

/// The bytes that a claim's volume has now, if they are more than the claim says.
pub(crate) fn wanted_bytes(claim: &PersistentVolumeClaim, size: &Quantity) -> Option<i64> {
    let shown = claim.status.as_ref().and_then(|s| s.capacity.as_ref()?.get("storage"))?;
    let (bytes, shown) = (limits::parse(size).value(), limits::parse(shown).value());
    (bytes > shown).then_some(bytes)
}

/// Grows a file system whose volume is larger than the claim says. What fails is told and tried again with the next
/// look.
pub(super) async fn grow(node: &Node, pod: &Pod, wanted: &Wanted, driver: &Driver, target: &Path, staging: &Path) {
    let (Some(claim), Some(size)) = (&wanted.claim, &wanted.capacity) else { return };
    let Some(bytes) = wanted_bytes(claim, size).filter(|_| !wanted.read_only) else { return };
    match driver.can(pb::EXPAND_VOLUME).await {
        Ok(true) => {}
        Ok(false) => return,
        Err(err) => return warn!(volume = %wanted.spec, err = %err, "cannot ask a driver what it can do"),
    }
    let outcome = ask(&node.client, wanted, driver, (target, staging), bytes).await;
    tell(node, pod, &wanted.spec, claim, size, outcome.map_err(Into::into)).await;
}

/// Says how the growing of a volume's file system ended: an event of the pod, and the claim's status.
pub(crate) async fn tell(
    node: &Node,
    pod: &Pod,
    volume: &str,
    claim: &PersistentVolumeClaim,
    size: &Quantity,
    outcome: Result<(), Box<dyn Error + Send + Sync>>,
) {
    let event = |kind: Kind, reason: &str, text: String| node.events.pod(pod, None, kind, reason, text);
    if let Err(source) = outcome {
        let err = VolumeError::new(Phase::NodeExpand, volume, source);
        return event(Kind::Warning, "FileSystemResizeFailed", Chain(&err).to_string());
    }
    let api: Api<PersistentVolumeClaim> =
        Api::namespaced(node.client.clone(), claim.metadata.namespace.as_deref().unwrap_or_default());
    let name = claim.metadata.name.as_deref().unwrap_or_default();
    match api.patch_status(name, &PatchParams::default(), &Patch::Merge(grown(claim, &size.0))).await {
        Ok(_) => {
            let text =
                format!("MountVolume.NodeExpandVolume succeeded for volume {volume:?} {}", node.config.node_name);
            event(Kind::Normal, "FileSystemResizeSuccessful", text);
        }
        Err(err) => warn!(volume, err = %Chain(&err), "cannot write that a claim has grown"),
    }
}

async fn ask(
    client: &kube::Client,
    wanted: &Wanted,
    driver: &Driver,
    (target, staging): (&Path, &Path),
    bytes: i64,
) -> Result<(), CsiError> {
    let granularity = Granularity::of(driver).await?;
    let secrets = secrets(client, wanted.expand_secret.as_ref(), "NodeExpandSecretRef").await?;
    let request = pb::ExpandRequest {
        volume_id: wanted.handle.clone(),
        volume_path: target.display().to_string(),
        capacity_range: Some(pb::CapacityRange { required_bytes: bytes, limit_bytes: 0 }),
        staging_target_path: staging.display().to_string(),
        volume_capability: Some(wanted.capability(granularity, None)),
        secrets,
    };
    let grown: Result<pb::ExpandResponse, _> = driver.call(pb::NODE_EXPAND_VOLUME, request).await;
    Ok(grown.map(drop)?)
}

/// The change of the claim's status when all is done.
fn grown(claim: &PersistentVolumeClaim, size: &str) -> Value {
    let over = ["Resizing", "FileSystemResizePending", "ControllerResizeError", "NodeResizeError"];
    let conditions = claim.status.as_ref().and_then(|s| s.conditions.clone()).unwrap_or_default();
    let left: Vec<_> = conditions.into_iter().filter(|c| !over.contains(&c.type_.as_str())).collect();
    let capacity = json!({"storage": size});
    json!({"status": {"capacity": capacity, "conditions": left, "allocatedResourceStatuses": {"storage": null}}})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_has_grown_if_it_is_larger_than_its_claim_says() {
        let bytes = |shown: Value, size: &str| {
            let claim = serde_json::from_value(json!({"metadata": {}, "status": {"capacity": shown}})).unwrap();
            wanted_bytes(&claim, &Quantity(size.to_owned()))
        };
        assert_eq!(bytes(json!({"storage": "1Gi"}), "2Gi"), Some(2 << 30));
        assert_eq!(bytes(json!({"storage": "2Gi"}), "2048Mi"), None);
        assert_eq!(bytes(json!({"storage": "3Gi"}), "2Gi"), None, "a claim may say more than there is");
        assert_eq!(bytes(json!({}), "2Gi"), None, "a claim that says nothing is not bound yet");
    }

    #[test]
    fn a_claim_that_has_grown_waits_for_nothing() {
        let claim = json!({"metadata": {"name": "c"}, "status": {"conditions": [
            {"type": "FileSystemResizePending", "status": "True"}, {"type": "ModifyVolumeError", "status": "True"}]}});
        let change = grown(&serde_json::from_value(claim).unwrap(), "2Gi");
        assert_eq!(change["status"]["capacity"]["storage"], "2Gi");
        assert_eq!(change["status"]["conditions"].as_array().unwrap().len(), 1);
        assert!(change["status"]["allocatedResourceStatuses"]["storage"].is_null());
    }
}
