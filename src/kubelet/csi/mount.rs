//! A volume of a driver is made ready for a pod: attached, staged for the node, published for the pod, given to its
//! group.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use base::task::Group;
use base::time::Clock;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Pod, SecretReference};
use k8s_openapi::api::storage::v1::CSIDriver;
use kube::Api;
use proto::csi as pb;

use super::attach::{self, NotYet};
use super::data::{self, Block, Data};
use super::secrets::secrets;
use super::wanted::{self, Wanted};
use super::{Driver, PLUGIN, expand, pod_info};
use crate::node::Node;
use crate::volumes::error::VolumeError;
use crate::volumes::group;

/// Volumes are looked at again after this: a claim may have grown, a driver may want to be asked again.
const LOOK_SECS: i64 = 60;

/// A volume that is ready.
pub(crate) struct Ready {
    pub(crate) path: PathBuf,
    /// When to do all this again.
    pub(crate) again_at: Timestamp,
}

/// All that is known while one volume is made ready.
struct Work<'a> {
    node: &'a Node,
    pod: &'a Pod,
    uid: &'a str,
    wanted: &'a Wanted,
    object: Option<CSIDriver>,
}

/// When a volume that may have grown is looked at again.
pub(crate) fn next_look(clock: &Clock) -> Timestamp {
    let now = clock.now();
    now.checked_add(SignedDuration::from_secs(LOOK_SECS)).unwrap_or(now)
}

/// Makes a volume ready. `known` is whether this pod has it already: then only what changed is done.
pub(crate) async fn set_up(node: &Node, pod: &Pod, wanted: &Wanted, known: bool) -> Result<Ready, VolumeError> {
    let objects: Api<CSIDriver> = Api::all(node.client.clone());
    let failed = |phase: &'static str, why: String| VolumeError::new(phase, &wanted.spec, why);
    let object = objects.get_opt(&wanted.driver).await.map_err(|err| failed("MountVolume.SetUp", err.to_string()))?;
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    let work = Work { node, pod, uid, wanted, object };
    wanted.check_mode(work.object.as_ref()).map_err(|why| failed("MountVolume.NewMounter initialization", why))?;
    // Another volume of the pod may have failed after this one was done.
    let known = known || node.csi.is_ready(uid, &wanted.spec);
    let republish = work.object.as_ref().and_then(|o| o.spec.requires_republish) == Some(true);
    let mut publish_context = HashMap::new();
    // A volume that the pod has is attached, whatever the Node says of it now.
    if wanted.is_attached_first(work.object.as_ref()) && (!known || republish) {
        node.csi.hold(&wanted.unique_name(), uid);
        publish_context = match attach::attached(node, wanted).await {
            Ok(context) => context,
            Err(NotYet::Waiting) => return Err(VolumeError::waiting(&wanted.spec)),
            Err(NotYet::Failed(why)) => return Err(failed("MountVolume.WaitForAttach", why)),
        };
    }
    let lock = node.csi.lock(&wanted.driver, &wanted.handle);
    let _one_at_a_time = lock.lock().await;
    let place = work.place();
    let mut again_at = next_look(&node.clock);
    let driver = match work.driver() {
        Ok(driver) => driver,
        // A driver that is being replaced is no harm to what is mounted.
        Err(_) if known && !republish => return Ok(Ready { path: place.target, again_at }),
        Err(why) => return Err(why),
    };
    if !known || republish {
        if !known {
            work.remember()?;
            work.stage(&driver, &place, &publish_context).await?;
        }
        let renew = work.publish(&driver, &place, publish_context, known).await?;
        again_at = renew.map_or(again_at, |at| at.min(again_at));
    }
    if !known && !wanted.is_block {
        work.give_to_group(&driver, &place.target).await?;
    }
    node.csi.note_ready(uid, &wanted.spec);
    expand::grow(node, pod, wanted, &driver, &place.target, &place.staging).await;
    Ok(Ready { path: place.target, again_at })
}

/// Where a volume is staged and published.
struct Place {
    staging: PathBuf,
    target: PathBuf,
}

impl Work<'_> {
    fn root(&self) -> &Path {
        &self.node.config.root_dir
    }

    fn failed(&self, phase: &'static str, why: impl ToString) -> VolumeError {
        VolumeError::new(phase, &self.wanted.spec, why.to_string())
    }

    fn place(&self) -> Place {
        if self.wanted.is_block {
            let block = Block::new(self.root(), &self.wanted.spec);
            return Place { target: block.device(self.uid), staging: block.staging };
        }
        let dir = data::pod_volume_dir(self.root(), self.uid, &self.wanted.spec);
        let staging = if self.wanted.is_ephemeral {
            PathBuf::new()
        } else {
            data::staging_dir(self.root(), &self.wanted.driver, &self.wanted.handle)
        };
        Place { staging, target: dir.join("mount") }
    }

    fn driver(&self) -> Result<std::sync::Arc<Driver>, VolumeError> {
        let (phase, doing) = match (self.wanted.is_block, self.wanted.is_ephemeral) {
            (true, _) => ("MapVolume.SetUpDevice", "blockMapper.SetUpDevice failed to get CSI client"),
            (_, true) => ("MountVolume.SetUp", "mounter.SetUpAt failed to get CSI client"),
            _ => ("MountVolume.MountDevice", "attacher.MountDevice failed to create newCsiDriverClient"),
        };
        self.node.csi.driver(&self.wanted.driver).map_err(|why| self.failed(phase, format!("{PLUGIN}: {doing}: {why}")))
    }

    /// Writes down what is about to be mounted, so that whoever comes next can undo it.
    fn remember(&self) -> Result<(), VolumeError> {
        let wanted = self.wanted;
        let attachment = attach::attachment_name(&wanted.driver, &wanted.handle, &self.node.config.node_name);
        let data = Data {
            attachment: if wanted.is_ephemeral { String::new() } else { attachment },
            node: self.node.config.node_name.clone(),
            spec: wanted.spec.clone(),
            mode: if wanted.is_block { String::new() } else { wanted.mode().to_owned() },
            ..Data::staged(&wanted.driver, &wanted.handle)
        };
        let written = if wanted.is_block {
            let block = Block::new(self.root(), &wanted.spec);
            block.make().and_then(|()| data.write(&block.data_dir())).and_then(|()| self.link(&block))
        } else {
            data.write(&data::pod_volume_dir(self.root(), self.uid, &wanted.spec))
        };
        written.map_err(|err| self.failed("MountVolume.NewMounter initialization", err))
    }

    /// The link in the pod's folder that leads to its device.
    fn link(&self, block: &Block) -> std::io::Result<()> {
        let dir = data::pod_devices(self.root(), self.uid);
        fs::create_dir_all(&dir)?;
        let link = dir.join(&self.wanted.spec);
        data::gone_is_fine(fs::remove_file(&link))?;
        std::os::unix::fs::symlink(block.device(self.uid), link)
    }

    /// Mounts the volume once for the node.
    async fn stage(
        &self,
        driver: &Driver,
        place: &Place,
        context: &HashMap<String, String>,
    ) -> Result<(), VolumeError> {
        let wanted = self.wanted;
        if wanted.is_ephemeral || self.node.csi.is_staged(&wanted.driver, &wanted.handle) {
            return Ok(());
        }
        let phase = if wanted.is_block { "MapVolume.SetUpDevice" } else { "MountVolume.MountDevice" };
        let failed = |why: String| self.failed(phase, why);
        fs::create_dir_all(&place.staging).map_err(|err| failed(err.to_string()))?;
        if let Some(dir) = place.staging.parent().filter(|_| !wanted.is_block) {
            Data::staged(&wanted.driver, &wanted.handle).write(dir).map_err(|err| failed(err.to_string()))?;
        }
        if driver.can(pb::STAGE_UNSTAGE_VOLUME).await.map_err(|err| failed(err.to_string()))? {
            let request = pb::StageRequest {
                volume_id: wanted.handle.clone(),
                publish_context: context.clone(),
                staging_target_path: place.staging.display().to_string(),
                volume_capability: Some(self.capability(driver).await.map_err(failed)?),
                secrets: self.secrets(wanted.stage_secret.as_ref(), "NodeStageSecretRef").await.map_err(failed)?,
                volume_context: wanted.context(),
            };
            let staged: Result<pb::Empty, _> = driver.call(pb::NODE_STAGE_VOLUME, request).await;
            staged.map_err(|err| failed(err.to_string()))?;
        }
        self.node.csi.note_staged(&wanted.driver, &wanted.handle);
        Ok(())
    }

    /// Mounts the volume for the pod. Gives when it must be told again.
    async fn publish(
        &self,
        driver: &Driver,
        place: &Place,
        publish_context: HashMap<String, String>,
        known: bool,
    ) -> Result<Option<Timestamp>, VolumeError> {
        let wanted = self.wanted;
        let phase = if wanted.is_block { "MapVolume.MapPodDevice" } else { "MountVolume.SetUp" };
        let failed = |why: String| self.failed(phase, why);
        let parent = place.target.parent().map_or(Ok(()), fs::create_dir_all);
        parent.map_err(|err| failed(err.to_string()))?;
        let tokens = pod_info::tokens(self.node, self.pod, self.object.as_ref(), wanted).await.map_err(failed)?;
        let mut volume_context = wanted.context();
        volume_context.extend(pod_info::names(self.pod, self.object.as_ref(), wanted));
        volume_context.extend(tokens.context);
        let mut secrets = self.secrets(wanted.publish_secret.as_ref(), "NodePublishSecretRef").await.map_err(failed)?;
        secrets.extend(tokens.secrets);
        let stages = !wanted.is_ephemeral
            && driver.can(pb::STAGE_UNSTAGE_VOLUME).await.map_err(|err| failed(err.to_string()))?;
        let request = pb::PublishRequest {
            volume_id: wanted.handle.clone(),
            publish_context,
            staging_target_path: if stages { place.staging.display().to_string() } else { String::new() },
            target_path: place.target.display().to_string(),
            volume_capability: Some(self.capability(driver).await.map_err(failed)?),
            readonly: wanted.read_only,
            secrets,
            volume_context,
        };
        let published: Result<pb::Empty, _> = driver.call(pb::NODE_PUBLISH_VOLUME, request).await;
        match published {
            Ok(_) => Ok(tokens.refresh_at),
            Err(err) => {
                // What never was mounted needs no driver to be undone.
                if err.is_final() && !known && wanted.is_ephemeral {
                    let dir = data::pod_volume_dir(self.root(), self.uid, &wanted.spec);
                    if fs::symlink_metadata(&place.target).is_err() {
                        Data::remove(&dir).map_err(|err| failed(err.to_string()))?;
                    }
                }
                Err(failed(err.to_string()))
            }
        }
    }

    async fn capability(&self, driver: &Driver) -> Result<pb::VolumeCapability, String> {
        let fine = driver.can(pb::SINGLE_NODE_MULTI_WRITER).await.map_err(|err| err.to_string())?;
        let group =
            if driver.can(pb::VOLUME_MOUNT_GROUP).await.map_err(|err| err.to_string())? { self.group() } else { None };
        Ok(self.wanted.capability(fine, group))
    }

    fn group(&self) -> Option<u32> {
        wanted::fs_group(self.pod.spec.as_ref().and_then(|s| s.security_context.as_ref()))
    }

    async fn secrets(
        &self,
        reference: Option<&SecretReference>,
        field: &str,
    ) -> Result<HashMap<String, String>, String> {
        let Some(reference) = reference else { return Ok(HashMap::new()) };
        let (ns, name) =
            (reference.namespace.as_deref().unwrap_or_default(), reference.name.as_deref().unwrap_or_default());
        secrets(&self.node.client, ns, name).await.map_err(|why| format!("fetching {field} {ns}/{name} failed: {why}"))
    }

    async fn give_to_group(&self, driver: &Driver, target: &Path) -> Result<(), VolumeError> {
        let failed = |why: String| {
            self.failed("MountVolume.SetUp", format!("applyFSGroup failed for vol {}: {why}", self.wanted.handle))
        };
        let Some(group) = self.group().filter(|_| self.wanted.takes_group(self.object.as_ref())) else { return Ok(()) };
        if driver.can(pb::VOLUME_MOUNT_GROUP).await.map_err(|err| failed(err.to_string()))? {
            return Ok(());
        }
        let context = self.pod.spec.as_ref().and_then(|s| s.security_context.as_ref());
        let mismatch_only = context.is_some_and(|c| c.fs_group_change_policy.as_deref() == Some("OnRootMismatch"));
        let root = target.to_owned();
        let owned = Group::blocking(move || group::give(&root, group, mismatch_only))
            .await
            .map_err(|err| failed(err.to_string()))?;
        owned.map_err(|err| failed(err.to_string()))
    }
}
