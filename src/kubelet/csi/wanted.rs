//! One volume of a driver as a pod wants it: what its spec, its claim and its persistent volume say.

use std::collections::{BTreeMap, HashMap};

use k8s_openapi::api::core::v1::{
    CSIVolumeSource, PersistentVolume, PersistentVolumeClaim, Pod, SecretReference, Volume,
};
use k8s_openapi::api::storage::v1::CSIDriver;
use proto::csi as pb;

use super::Driver;
use super::data::{self, VolumeId};
use super::error::CsiError;
use crate::plugins::link::CallError;

/// A volume that a driver is to give.
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
    /// A persistent volume behind a claim, to be written to; `None` if no driver has it.
    pub(crate) fn persistent(volume: &PersistentVolume, claim: PersistentVolumeClaim) -> Option<Wanted> {
        let spec = volume.spec.as_ref()?;
        let csi = spec.csi.clone()?;
        Some(Wanted {
            spec: volume.metadata.name.clone().unwrap_or_default(),
            driver: csi.driver,
            handle: csi.volume_handle,
            fs_type: csi.fs_type.unwrap_or_default(),
            attributes: csi.volume_attributes.unwrap_or_default(),
            read_only: false,
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

    pub(super) fn id(&self) -> VolumeId<'_> {
        VolumeId { driver: &self.driver, handle: &self.handle }
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
    pub(super) fn check_mode(&self, driver: Option<&CSIDriver>) -> Result<(), CsiError> {
        let mode = self.mode();
        let Some(driver) = driver else {
            return match self.is_ephemeral {
                true => Err(CsiError::NoObject { mode, driver: self.driver.clone() }),
                false => Ok(()),
            };
        };
        let allowed = driver.spec.volume_lifecycle_modes.clone().unwrap_or_else(|| vec!["Persistent".to_owned()]);
        match allowed.iter().any(|m| m == mode) {
            true => Ok(()),
            false => Err(CsiError::Mode { mode, driver: self.driver.clone(), allowed }),
        }
    }

    /// The form in which drivers are told; `group` only if the driver gives volumes to groups by itself.
    pub(super) fn capability(&self, granularity: Granularity, group: Option<u32>) -> pb::VolumeCapability {
        let mode = self.access_modes.first().map_or("ReadWriteOnce", String::as_str);
        let mount = pb::MountVolume {
            fs_type: self.fs_type.clone(),
            mount_flags: self.mount_options.clone(),
            volume_mount_group: group.map(|g| g.to_string()).unwrap_or_default(),
        };
        pb::VolumeCapability {
            block: self.is_block.then_some(pb::Empty {}),
            mount: (!self.is_block).then_some(mount),
            access_mode: Some(pb::AccessMode { mode: access_mode(mode, granularity) }),
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

/// How finely a driver tells access modes of one node apart: whether several pods of it may write, or one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Granularity {
    Coarse,
    Fine,
}

impl Granularity {
    pub(super) async fn of(driver: &Driver) -> Result<Granularity, CallError> {
        let knows = driver.can(pb::SINGLE_NODE_MULTI_WRITER).await?;
        Ok(if knows { Granularity::Fine } else { Granularity::Coarse })
    }
}

fn access_mode(mode: &str, granularity: Granularity) -> i32 {
    match (mode, granularity) {
        ("ReadOnlyMany", _) => pb::access::MULTI_NODE_READER_ONLY,
        ("ReadWriteMany", _) => pb::access::MULTI_NODE_MULTI_WRITER,
        ("ReadWriteOncePod", Granularity::Fine) => pb::access::SINGLE_NODE_SINGLE_WRITER,
        (_, Granularity::Fine) => pb::access::SINGLE_NODE_MULTI_WRITER,
        (_, Granularity::Coarse) => pb::access::SINGLE_NODE_WRITER,
    }
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
        for (mode, coarse, fine) in [
            ("ReadWriteOnce", pb::access::SINGLE_NODE_WRITER, pb::access::SINGLE_NODE_MULTI_WRITER),
            ("ReadWriteOncePod", pb::access::SINGLE_NODE_WRITER, pb::access::SINGLE_NODE_SINGLE_WRITER),
            ("ReadWriteMany", pb::access::MULTI_NODE_MULTI_WRITER, pb::access::MULTI_NODE_MULTI_WRITER),
            ("ReadOnlyMany", pb::access::MULTI_NODE_READER_ONLY, pb::access::MULTI_NODE_READER_ONLY),
        ] {
            let told = [Granularity::Coarse, Granularity::Fine].map(|granularity| access_mode(mode, granularity));
            assert_eq!(told, [coarse, fine], "{mode}");
        }
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
            inline.check_mode(None).unwrap_err().to_string(),
            "volume mode \"Ephemeral\" not supported by driver d (no CSIDriver object)"
        );
        let why = inline.check_mode(Some(&driver(json!({})))).unwrap_err().to_string();
        assert_eq!(why, "volume mode \"Ephemeral\" not supported by driver d (only supports [\"Persistent\"])");
        assert!(inline.check_mode(Some(&driver(json!({"volumeLifecycleModes": ["Ephemeral"]})))).is_ok());
    }
}
