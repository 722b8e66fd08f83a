//! Persistent volumes that lie on this machine: `local` and `hostPath` sources behind a bound claim.

use std::path::PathBuf;

use k8s_openapi::api::core::v1::{HostPathVolumeSource, PersistentVolume, PersistentVolumeClaim, Pod};
use kube::Api;

use super::host_path;
use crate::node::Node;

pub(super) struct Local {
    pub(super) path: PathBuf,
    pub(super) read_only: bool,
    /// Whether fsGroup may change the owner: yes for local volumes, never for hostPath.
    pub(super) takes_group: bool,
}

/// Follows the claim to its volume.
pub(super) async fn resolve(node: &Node, pod: &Pod, claim: &str) -> Result<Local, String> {
    let ns = pod.metadata.namespace.as_deref().unwrap_or_default();
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(node.client.clone(), ns);
    let found = claims.get_opt(claim).await.map_err(|err| err.to_string())?;
    let found = found.ok_or_else(|| format!("persistentvolumeclaim \"{claim}\" not found"))?;
    let bound = found.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Bound");
    let name = found.spec.and_then(|s| s.volume_name).filter(|_| bound);
    let name = name.ok_or_else(|| format!("PVC {ns}/{claim} is not bound"))?;
    let volumes: Api<PersistentVolume> = Api::all(node.client.clone());
    let volume = volumes.get_opt(&name).await.map_err(|err| err.to_string())?;
    let spec = volume.and_then(|v| v.spec).ok_or_else(|| format!("persistentvolume \"{name}\" not found"))?;
    let read_only = spec.access_modes.as_deref() == Some(&["ReadOnlyMany".to_owned()]);
    if let Some(local) = spec.local {
        let source = HostPathVolumeSource { path: local.path, type_: Some("Directory".to_owned()) };
        return Ok(Local { path: host_path::prepare(&source)?, read_only, takes_group: true });
    }
    if let Some(source) = spec.host_path {
        return Ok(Local { path: host_path::prepare(&source)?, read_only, takes_group: false });
    }
    let kind = if spec.csi.is_some() { "csi" } else { "its type" };
    Err(format!("persistentvolume \"{name}\": volumes of {kind} are not supported on this node"))
}
