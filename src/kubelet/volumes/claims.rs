//! Persistent volumes behind a bound claim: those that lie on this machine (`local`, `hostPath`), NFS shares, and those of drivers.

use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::{HostPathVolumeSource, NFSVolumeSource, PersistentVolume, PersistentVolumeClaim, Pod};
use kube::Api;

use super::{host_path, nfs};
use crate::csi::wanted::Wanted;
use crate::node::Node;

/// What is behind a claim.
pub(super) enum Found {
    /// A folder that is there.
    Local(Local),
    /// What a driver has yet to give.
    Driver(Box<Wanted>),
}

pub(super) struct Local {
    pub(super) path: PathBuf,
    pub(super) read_only: bool,
    /// Whether fsGroup may change the owner: yes for local volumes, never for hostPath.
    pub(super) takes_group: bool,
}

/// Follows the claim to its volume; what must be mounted first is mounted at `target`.
pub(super) async fn resolve(node: &Node, pod: &Pod, claim: &str, target: &Path, pod_read_only: bool) -> Result<Found, String> {
    let ns = pod.metadata.namespace.as_deref().unwrap_or_default();
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(node.client.clone(), ns);
    let found = claims.get_opt(claim).await.map_err(|err| err.to_string())?;
    let found = found.ok_or_else(|| format!("persistentvolumeclaim \"{claim}\" not found"))?;
    let bound = found.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Bound");
    let name = found.spec.as_ref().and_then(|s| s.volume_name.clone()).filter(|_| bound);
    let name = name.ok_or_else(|| format!("PVC {ns}/{claim} is not bound"))?;
    let volumes: Api<PersistentVolume> = Api::all(node.client.clone());
    let volume = volumes.get_opt(&name).await.map_err(|err| err.to_string())?;
    let volume = volume.ok_or_else(|| format!("persistentvolume \"{name}\" not found"))?;
    if let Some(wanted) = Wanted::persistent(&volume, found, pod_read_only) {
        return Ok(Found::Driver(Box::new(wanted)));
    }
    let spec = volume.spec.unwrap_or_default();
    let read_only = spec.access_modes.as_deref() == Some(&["ReadOnlyMany".to_owned()]);
    let block = spec.volume_mode.as_deref() == Some("Block");
    if let Some(local) = spec.local {
        let kind = if block { "BlockDevice" } else { "Directory" };
        let source = HostPathVolumeSource { path: local.path, type_: Some(kind.to_owned()) };
        return Ok(Found::Local(Local { path: host_path::prepare(&source).await?, read_only, takes_group: !block }));
    }
    if let Some(source) = spec.host_path {
        return Ok(Found::Local(Local { path: host_path::prepare(&source).await?, read_only, takes_group: false }));
    }
    if let Some(share) = spec.nfs {
        let source = NFSVolumeSource { path: share.path, server: share.server, read_only: share.read_only };
        nfs::attach(&source, spec.mount_options.as_deref().unwrap_or_default(), target).await?;
        return Ok(Found::Local(Local { path: target.to_owned(), read_only, takes_group: false }));
    }
    Err(format!("persistentvolume \"{name}\": no volume plugin matched"))
}
