//! Persistent volumes behind a bound claim: those that lie on this machine (`local`, `hostPath`), NFS shares, and those
//! of drivers.

use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::{
    HostPathVolumeSource, NFSVolumeSource, PersistentVolume, PersistentVolumeClaim, Pod, Volume,
};
use kube::Api;

use super::faults::ClaimError;
use super::{host_path, local, nfs, uses};
use crate::api_error::ApiError;
use crate::config::Config;
use crate::csi::Csi;
use crate::csi::expand;
use crate::csi::wanted::Wanted;
use crate::node::Node;

/// The volume behind a claim.
pub(super) enum Found {
    /// A folder that is there.
    Local(Local),
    /// A volume that its driver has yet to give.
    Driver(Box<Wanted>),
}

pub(super) struct Local {
    pub(super) path: PathBuf,
    pub(super) read_only: bool,
    /// Where fsGroup may change the owner; the same for all pods that have the volume. Only local volumes have it,
    /// hostPath never.
    pub(super) group_at: Option<PathBuf>,
    /// Whether what is behind it may grow while the pod runs, so that it is looked at again.
    pub(super) may_grow: bool,
}

/// Where what must be mounted first is mounted, below the pod's folder.
pub(super) struct Targets {
    pub(super) nfs: PathBuf,
    pub(super) local: PathBuf,
}

/// Follows the claim to its volume; what must be mounted first is mounted at one of `targets`.
pub(super) async fn resolve(
    node: &Node,
    pod: &Pod,
    volume: &Volume,
    claim: &str,
    targets: &Targets,
) -> Result<Found, ClaimError> {
    let in_pod = volume.name.as_str();
    let pod_read_only = volume.persistent_volume_claim.as_ref().and_then(|c| c.read_only) == Some(true);
    let is_ephemeral = volume.ephemeral.is_some();
    let ns = pod.metadata.namespace.as_deref().unwrap_or_default();
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(node.client.clone(), ns);
    let found = claims.get_opt(claim).await.map_err(ApiError)?;
    let found = found.ok_or_else(|| ClaimError::NoClaim { name: claim.to_owned() })?;
    if is_ephemeral {
        is_of_pod(&found, pod)?;
    }
    if is_leaving(&found) {
        return Err(ClaimError::Leaving { ns: ns.to_owned(), name: claim.to_owned() });
    }
    let bound = found.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Bound");
    let name = found.spec.as_ref().and_then(|s| s.volume_name.clone()).filter(|_| bound);
    let name = name.ok_or_else(|| ClaimError::Unbound { ns: ns.to_owned(), name: claim.to_owned() })?;
    let volumes: Api<PersistentVolume> = Api::all(node.client.clone());
    let volume = volumes.get_opt(&name).await.map_err(ApiError)?;
    let volume = volume.ok_or_else(|| ClaimError::NoVolume { name: name.clone() })?;
    is_of_claim(&volume, found.metadata.uid.as_deref())?;
    fits_use(&volume, pod, in_pod)?;
    if let Some(mut wanted) = Wanted::persistent(&volume, found.clone()) {
        wanted.read_only = pod_read_only;
        return Ok(Found::Driver(Box::new(wanted)));
    }
    let spec = volume.spec.unwrap_or_default();
    let read_only = spec.access_modes.as_deref() == Some(&["ReadOnlyMany".to_owned()]);
    if let Some(source) = spec.local.as_ref() {
        let (path, fs_type, options) =
            (source.path.clone(), source.fs_type.clone(), spec.mount_options.clone().unwrap_or_default());
        let device = local::Device { volume: name.clone(), path, fs_type, options, read_only };
        let form = match spec.volume_mode.as_deref() {
            Some("Block") => LocalForm::RawDevice,
            _ if host_path::is_block_device(&source.path).await? => LocalForm::Filesystem,
            _ => LocalForm::Folder,
        };
        let local = of_machine(&node.config, &node.csi, &device, form, &targets.local).await?;
        let size = spec.capacity.as_ref().and_then(|capacity| capacity.get("storage"));
        if let Some(size) = size.filter(|size| !read_only && expand::wanted_bytes(&found, size).is_some()) {
            // A folder and a raw device are as large as they are.
            let outcome = match form {
                LocalForm::Filesystem => local::grow(&node.config, &node.csi, &device).await,
                LocalForm::Folder | LocalForm::RawDevice => Ok(()),
            };
            expand::tell(node, pod, &name, &found, size, outcome.map_err(Into::into)).await;
        }
        return Ok(Found::Local(local));
    }
    if let Some(source) = spec.host_path {
        return Ok(Found::Local(Local {
            path: host_path::prepare(&source).await?,
            read_only,
            group_at: None,
            may_grow: false,
        }));
    }
    if let Some(share) = spec.nfs {
        let source = NFSVolumeSource { path: share.path, server: share.server, read_only: share.read_only };
        nfs::attach(&source, spec.mount_options.as_deref().unwrap_or_default(), &targets.nfs).await?;
        return Ok(Found::Local(Local { path: targets.nfs.clone(), read_only, group_at: None, may_grow: false }));
    }
    Err(ClaimError::NoPlugin { name })
}

/// The forms of a `local` volume.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LocalForm {
    Folder,
    RawDevice,
    /// A device whose filesystem is mounted first.
    Filesystem,
}

async fn of_machine(
    config: &Config,
    csi: &Csi,
    device: &local::Device,
    form: LocalForm,
    target: &Path,
) -> Result<Local, ClaimError> {
    let read_only = device.read_only;
    let of_type = |kind: &str| HostPathVolumeSource { path: device.path.clone(), type_: Some(kind.to_owned()) };
    let (path, group_at) = match form {
        LocalForm::Filesystem => {
            let place = local::attach(config, csi, device, target).await?;
            (target.to_owned(), Some(place))
        }
        LocalForm::RawDevice => (host_path::prepare(&of_type("BlockDevice")).await?, None),
        LocalForm::Folder => {
            let path = host_path::prepare(&of_type("Directory")).await?;
            (path.clone(), Some(path))
        }
    };
    Ok(Local { path, read_only, group_at, may_grow: true })
}

/// A volume belongs to one claim, not to all that ever have its name.
fn is_of_claim(volume: &PersistentVolume, claim_uid: Option<&str>) -> Result<(), ClaimError> {
    let name = volume.metadata.name.clone().unwrap_or_default();
    let Some(reference) = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref()) else {
        return Err(ClaimError::NoReference { name });
    };
    let (own, claim) = (reference.uid.as_deref().unwrap_or_default(), claim_uid.unwrap_or_default());
    if own != claim {
        return Err(ClaimError::OtherClaim { name, own: own.to_owned(), claim: claim.to_owned() });
    }
    Ok(())
}

/// A raw device is no folder, nor the other way round.
fn fits_use(volume: &PersistentVolume, pod: &Pod, in_pod: &str) -> Result<(), ClaimError> {
    let mode = volume.spec.as_ref().and_then(|spec| spec.volume_mode.as_deref()).unwrap_or("Filesystem");
    let Some(spec) = &pod.spec else { return Ok(()) };
    for (mounts, devices) in uses(spec) {
        let field = match mode {
            "Filesystem" if devices.iter().any(|device| device.name == in_pod) => "volumeDevices",
            "Block" if mounts.iter().any(|mount| mount.name == in_pod) => "volumeMounts",
            _ => continue,
        };
        return Err(ClaimError::OtherMode { volume: in_pod.to_owned(), mode: mode.to_owned(), field });
    }
    Ok(())
}

/// The claim of an ephemeral volume must have been made for this very pod.
fn is_of_pod(claim: &PersistentVolumeClaim, pod: &Pod) -> Result<(), ClaimError> {
    let owners = claim.metadata.owner_references.iter().flatten();
    let (mut owners, uid) = (owners.filter(|owner| owner.controller == Some(true)), pod.metadata.uid.as_deref());
    if owners.any(|owner| Some(owner.uid.as_str()) == uid) {
        return Ok(());
    }
    let text = |name: &Option<String>| name.clone().unwrap_or_default();
    Err(ClaimError::NotOwned {
        ns: text(&claim.metadata.namespace),
        name: text(&claim.metadata.name),
        pod_ns: text(&pod.metadata.namespace),
        pod: text(&pod.metadata.name),
    })
}

/// A claim that is deleted and that no pod holds any more. While one does, it is protected, and pods that run may start
/// containers again (upstream's `getPVCExtractPV`, pkg/kubelet/volumemanager/populator v1.36).
fn is_leaving(claim: &PersistentVolumeClaim) -> bool {
    let is_protected =
        claim.metadata.finalizers.iter().flatten().any(|finalizer| finalizer == "kubernetes.io/pvc-protection");
    claim.metadata.deletion_timestamp.is_some() && !is_protected
}

#[cfg(test)]
mod tests {
    use super::*;

    // security.md L5: a claim made anew under the same name took the old one's volume.
    #[test]
    fn a_volume_of_an_earlier_claim_of_that_name_is_refused() {
        let volume = |reference: serde_json::Value| {
            serde_json::from_value(serde_json::json!({"metadata": {"name": "pv"}, "spec": {"claimRef": reference}}))
                .unwrap()
        };
        assert!(is_of_claim(&volume(serde_json::json!({"name": "c", "uid": "a"})), Some("a")).is_ok());
        let why = |reference: serde_json::Value| is_of_claim(&volume(reference), Some("b")).unwrap_err().to_string();
        assert_eq!(
            why(serde_json::json!({"name": "c", "uid": "a"})),
            "found PV object \"pv\" but its pvc.Spec.ClaimRef.UID \"a\" does not point to claim.UID \"b\""
        );
        assert_eq!(
            why(serde_json::Value::Null),
            "found PV object \"pv\" but it has a nil pvc.Spec.ClaimRef indicating it is not yet bound to the claim"
        );
    }

    // Seen with upstream's "should fail to use a volume in a pod with mismatched mode": the pod ran, with the device's
    // node as a folder.
    #[test]
    fn a_raw_device_is_no_folder() {
        let pod = |container: serde_json::Value| -> Pod {
            serde_json::from_value(serde_json::json!({"spec": {"containers": [], "initContainers": [container]}}))
                .unwrap()
        };
        let mounts = pod(serde_json::json!({"name": "c", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}));
        let devices = pod(serde_json::json!({"name": "c", "volumeDevices": [{"name": "v", "devicePath": "/dev/v"}]}));
        let volume = |mode: &str| serde_json::from_value(serde_json::json!({"spec": {"volumeMode": mode}})).unwrap();
        assert!(
            fits_use(&volume("Filesystem"), &mounts, "v").is_ok() && fits_use(&volume("Block"), &devices, "v").is_ok()
        );
        let text = fits_use(&volume("Block"), &mounts, "v").unwrap_err();
        assert_eq!(text.to_string(), "volume v has volumeMode Block, but is specified in volumeMounts");
        assert!(fits_use(&volume("Filesystem"), &devices, "v").is_err());
        assert!(fits_use(&volume("Block"), &mounts, "w").is_ok());
    }

    // node.md L3.
    #[test]
    fn a_claim_that_only_has_the_right_name_is_not_the_pods() {
        let pod = serde_json::from_value(serde_json::json!({"metadata": {"name": "p", "namespace": "d", "uid": "u"}}))
            .unwrap();
        let claim = |uid: &str| {
            let owner =
                serde_json::json!([{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": uid, "controller": true}]);
            serde_json::from_value(
                serde_json::json!({"metadata": {"name": "p-v", "namespace": "d", "ownerReferences": owner}}),
            )
            .unwrap()
        };
        assert!(is_of_pod(&claim("u"), &pod).is_ok());
        assert_eq!(
            is_of_pod(&claim("x"), &pod).unwrap_err().to_string(),
            "PVC d/p-v was not created for pod d/p (pod is not owner)"
        );
    }

    // node.md L3, the other half.
    #[test]
    fn a_claim_under_deletion_starts_no_pod_unless_one_holds_it() {
        let claim = |deleted: serde_json::Value, finalizer: &str| {
            serde_json::from_value(
                serde_json::json!({"metadata": {"deletionTimestamp": deleted, "finalizers": [finalizer]}}),
            )
            .unwrap()
        };
        let now = serde_json::json!("2026-01-01T00:00:00Z");
        assert!(is_leaving(&claim(now.clone(), "example.com/backup")));
        assert!(!is_leaving(&claim(now, "kubernetes.io/pvc-protection")));
        assert!(!is_leaving(&claim(serde_json::Value::Null, "example.com/backup")));
    }
}
