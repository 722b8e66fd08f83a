//! One volume of a driver as a pod wants it: what its spec, its claim and its persistent volume say.

use std::collections::{BTreeMap, HashMap};

use k8s_openapi::api::core::v1::{
    CSIVolumeSource, PersistentVolume, PersistentVolumeClaim, Pod, PodSecurityContext, SecretReference, Volume,
};
use k8s_openapi::api::storage::v1::CSIDriver;
use proto::csi as pb;

use super::data;

/// What the driver is to give.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wanted {
    /// The persistent volume's name, or an inline volume's.
    pub(crate) spec: String,
    pub(super) driver: String,
    pub(super) handle: String,
    pub(super) fs_type: String,
    pub(super) attributes: BTreeMap<String, String>,
    pub(crate) read_only: bool,
    pub(super) access_modes: Vec<String>,
    pub(super) mount_options: Vec<String>,
    pub(super) stage_secret: Option<SecretReference>,
    pub(super) publish_secret: Option<SecretReference>,
    pub(super) expand_secret: Option<SecretReference>,
    pub(super) is_ephemeral: bool,
    pub(super) is_block: bool,
    /// The claim, of volumes that are not inline.
    pub(super) claim: Option<Box<PersistentVolumeClaim>>,
    /// How large the persistent volume is.
    pub(super) capacity: Option<k8s_openapi::apimachinery::pkg::api::resource::Quantity>,
}

impl Wanted {
    /// A persistent volume behind a claim; `None` if no driver has it.
    pub(crate) fn persistent(
        volume: &PersistentVolume,
        claim: PersistentVolumeClaim,
        read_only: bool,
    ) -> Option<Wanted> {
        let spec = volume.spec.as_ref()?;
        let csi = spec.csi.clone()?;
        Some(Wanted {
            spec: volume.metadata.name.clone().unwrap_or_default(),
            driver: csi.driver,
            handle: csi.volume_handle,
            fs_type: csi.fs_type.unwrap_or_default(),
            attributes: csi.volume_attributes.unwrap_or_default(),
            read_only,
            access_modes: spec.access_modes.clone().unwrap_or_default(),
            mount_options: spec.mount_options.clone().unwrap_or_default(),
            stage_secret: csi.node_stage_secret_ref,
            publish_secret: csi.node_publish_secret_ref,
            expand_secret: csi.node_expand_secret_ref,
            is_ephemeral: false,
            is_block: spec.volume_mode.as_deref() == Some("Block"),
            claim: Some(Box::new(claim)),
            capacity: spec.capacity.as_ref().and_then(|c| c.get("storage").cloned()),
        })
    }

    /// A volume written into the pod, which lives as long as it.
    pub(crate) fn inline(pod: &Pod, volume: &Volume, source: &CSIVolumeSource) -> Wanted {
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let secret = |name: String| SecretReference { name: Some(name), namespace: pod.metadata.namespace.clone() };
        Wanted {
            spec: volume.name.clone(),
            driver: source.driver.clone(),
            handle: format!("csi-{}", data::sha256(&format!("{uid}{}", volume.name))),
            fs_type: source.fs_type.clone().unwrap_or_default(),
            attributes: source.volume_attributes.clone().unwrap_or_default(),
            read_only: source.read_only.unwrap_or(false),
            publish_secret: source.node_publish_secret_ref.clone().map(|r| secret(r.name)),
            is_ephemeral: true,
            ..Wanted::default()
        }
    }

    pub(super) fn unique_name(&self) -> String {
        super::unique_name(&self.driver, &self.handle)
    }

    /// `Ephemeral` or `Persistent`.
    pub(super) fn mode(&self) -> &'static str {
        if self.is_ephemeral { "Ephemeral" } else { "Persistent" }
    }

    /// Whether somebody must attach the volume to the node first.
    pub(super) fn is_attached_first(&self, driver: Option<&CSIDriver>) -> bool {
        !self.is_ephemeral && driver.and_then(|d| d.spec.attach_required).unwrap_or(true)
    }

    /// Refuses a use that the driver's object does not allow. Without an object only persistent volumes are.
    pub(super) fn check_mode(&self, driver: Option<&CSIDriver>) -> Result<(), String> {
        let mode = self.mode();
        let Some(driver) = driver else {
            return match self.is_ephemeral {
                true => {
                    Err(format!("volume mode {mode:?} not supported by driver {} (no CSIDriver object)", self.driver))
                }
                false => Ok(()),
            };
        };
        let allowed = driver.spec.volume_lifecycle_modes.clone().unwrap_or_else(|| vec!["Persistent".to_owned()]);
        match allowed.iter().any(|m| m == mode) {
            true => Ok(()),
            false => {
                Err(format!("volume mode {mode:?} not supported by driver {} (only supports {allowed:?})", self.driver))
            }
        }
    }

    /// The form in which drivers are told; `group` only if the driver gives volumes to groups by itself.
    pub(super) fn capability(&self, knows_single_node: bool, group: Option<u32>) -> pb::VolumeCapability {
        let mode = self.access_modes.first().map_or("ReadWriteOnce", String::as_str);
        let mount = pb::MountVolume {
            fs_type: self.fs_type.clone(),
            mount_flags: self.mount_options.clone(),
            volume_mount_group: group.map(|g| g.to_string()).unwrap_or_default(),
        };
        pb::VolumeCapability {
            block: self.is_block.then_some(pb::Empty {}),
            mount: (!self.is_block).then_some(mount),
            access_mode: Some(pb::AccessMode { mode: access_mode(mode, knows_single_node) }),
        }
    }

    /// Whether the kubelet gives the files to the pod's group, as the driver's `fsGroupPolicy` says.
    pub(super) fn takes_group(&self, driver: Option<&CSIDriver>) -> bool {
        match driver.and_then(|d| d.spec.fs_group_policy.as_deref()) {
            _ if self.read_only || self.is_block => false,
            Some("None") => false,
            Some("File") => true,
            _ if self.fs_type.is_empty() => false,
            _ => self.is_ephemeral || self.access_modes.iter().any(|m| m == "ReadWriteOnce" || m == "ReadWriteOncePod"),
        }
    }

    pub(super) fn context(&self) -> HashMap<String, String> {
        self.attributes.clone().into_iter().collect()
    }
}

fn access_mode(mode: &str, knows_single_node: bool) -> i32 {
    match mode {
        "ReadOnlyMany" => pb::access::MULTI_NODE_READER_ONLY,
        "ReadWriteMany" => pb::access::MULTI_NODE_MULTI_WRITER,
        "ReadWriteOncePod" if knows_single_node => pb::access::SINGLE_NODE_SINGLE_WRITER,
        _ if knows_single_node => pb::access::SINGLE_NODE_MULTI_WRITER,
        _ => pb::access::SINGLE_NODE_WRITER,
    }
}

/// The pod's group for volumes.
pub(super) fn fs_group(context: Option<&PodSecurityContext>) -> Option<u32> {
    context.and_then(|c| c.fs_group).and_then(|g| u32::try_from(g).ok())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn driver(spec: serde_json::Value) -> CSIDriver {
        serde_json::from_value(json!({"metadata": {"name": "d"}, "spec": spec})).unwrap()
    }

    #[test]
    fn access_modes_are_told_as_finely_as_the_driver_knows_them() {
        assert_eq!(access_mode("ReadWriteOnce", false), pb::access::SINGLE_NODE_WRITER);
        assert_eq!(access_mode("ReadWriteOnce", true), pb::access::SINGLE_NODE_MULTI_WRITER);
        assert_eq!(access_mode("ReadWriteOncePod", true), pb::access::SINGLE_NODE_SINGLE_WRITER);
        assert_eq!(access_mode("ReadWriteMany", true), pb::access::MULTI_NODE_MULTI_WRITER);
    }

    #[test]
    fn the_group_is_set_as_the_driver_wants_it() {
        let once =
            Wanted { fs_type: "ext4".to_owned(), access_modes: vec!["ReadWriteOnce".to_owned()], ..Wanted::default() };
        assert!(once.takes_group(None));
        assert!(!once.takes_group(Some(&driver(json!({"fsGroupPolicy": "None"})))));
        let many = Wanted { access_modes: vec!["ReadWriteMany".to_owned()], ..Wanted::default() };
        assert!(!many.takes_group(None));
        assert!(many.takes_group(Some(&driver(json!({"fsGroupPolicy": "File"})))));
    }

    #[test]
    fn an_inline_volume_needs_a_driver_that_allows_it() {
        let inline = Wanted { driver: "d".to_owned(), is_ephemeral: true, ..Wanted::default() };
        assert_eq!(
            inline.check_mode(None).unwrap_err(),
            "volume mode \"Ephemeral\" not supported by driver d (no CSIDriver object)"
        );
        let why = inline.check_mode(Some(&driver(json!({})))).unwrap_err();
        assert_eq!(why, "volume mode \"Ephemeral\" not supported by driver d (only supports [\"Persistent\"])");
        assert!(inline.check_mode(Some(&driver(json!({"volumeLifecycleModes": ["Ephemeral"]})))).is_ok());
    }
}
