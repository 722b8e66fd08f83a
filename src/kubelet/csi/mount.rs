//! A volume of a driver is made ready for a pod: attached, staged for the node, published for the pod, given to its
//! group.

use std::collections::HashMap;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fs, io};

use base::task::Group;
use base::time::Clock;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::storage::v1::CSIDriver;
use kube::Api;
use proto::csi as pb;

use super::attach;
use super::data::{self, Block, Data, PodVolume};
use super::error::{AttachError, CsiError};
use super::secrets::secrets;
use super::wanted::{Granularity, Wanted};
use super::{Driver, expand, pod_info};
use crate::api_error::ApiError;
use crate::node::Node;
use crate::volumes::error::{Phase, VolumeError};
use crate::volumes::group::{self, FsGroup};

/// Volumes are looked at again after this: a claim may have grown, a driver may want to be asked again.
const LOOK_SECS: i64 = 60;

/// The pass of a pod over one of its volumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pass {
    /// The pod does not have the volume.
    First,
    /// The pod has it: only what changed is done.
    Again,
}

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

/// Makes a volume ready.
pub(crate) async fn set_up(node: &Node, pod: &Pod, wanted: &Wanted, pass: Pass) -> Result<Ready, VolumeError> {
    let objects: Api<CSIDriver> = Api::all(node.client.clone());
    let found = objects.get_opt(&wanted.driver).await.map_err(ApiError);
    let object = found.map_err(failed(wanted, Phase::SetUp))?;
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    let work = Work { node, pod, uid, wanted, object };
    let object = work.object.as_ref();
    wanted.check_mode(object).map_err(work.failed(Phase::NewMounter))?;
    // Another volume of the pod may have failed after this one was done.
    let pass = if node.csi.is_ready(work.volume()) { Pass::Again } else { pass };
    let republish = object.and_then(|o| o.spec.requires_republish) == Some(true);
    let publishes = pass == Pass::First || republish;
    let mut publish_context = HashMap::new();
    // A volume that the pod has is attached, whatever the Node says of it now.
    if wanted.is_attached_first(object) && publishes {
        node.csi.hold(wanted.id(), uid);
        publish_context = match attach::attached(node, wanted).await {
            Ok(context) => context,
            Err(AttachError::Waiting) => return Err(VolumeError::waiting(&wanted.spec)),
            Err(err) => return Err(work.failed(Phase::WaitForAttach)(err)),
        };
    }
    let lock = node.csi.lock(wanted.id());
    let _one_at_a_time = lock.lock().await;
    let paths = work.paths();
    let mut again_at = next_look(&node.clock);
    let driver = match work.driver() {
        Ok(driver) => driver,
        // A driver that is being replaced is no harm to what is mounted.
        Err(_) if !publishes => return Ok(Ready { path: paths.target, again_at }),
        Err(err) => return Err(err),
    };
    if pass == Pass::First {
        work.remember().map_err(work.failed(Phase::NewMounter))?;
        let phase = if wanted.is_block { Phase::SetUpDevice } else { Phase::MountDevice };
        work.stage(&driver, &paths, &publish_context).await.map_err(work.failed(phase))?;
    }
    if publishes {
        let phase = if wanted.is_block { Phase::MapPodDevice } else { Phase::SetUp };
        let renew = work.publish(&driver, &paths, publish_context, pass).await.map_err(work.failed(phase))?;
        again_at = renew.map_or(again_at, |at| at.min(again_at));
    }
    if pass == Pass::First && !wanted.is_block {
        let given = work.give_to_group(&driver, &paths.target).await;
        let named = |err| CsiError::Group { handle: wanted.handle.clone(), source: Box::new(err) };
        given.map_err(named).map_err(work.failed(Phase::SetUp))?;
    }
    node.csi.note_ready(work.volume());
    expand::grow(node, pod, wanted, &driver, &paths.target, &paths.staging).await;
    Ok(Ready { path: paths.target, again_at })
}

/// For `map_err`: adds the phase and the volume.
fn failed<E: Into<Box<dyn Error + Send + Sync>>>(wanted: &Wanted, phase: Phase) -> impl Fn(E) -> VolumeError {
    move |source| VolumeError::new(phase, &wanted.spec, source)
}

/// Where a volume is staged and published.
struct MountPaths {
    staging: PathBuf,
    target: PathBuf,
}

impl<'a> Work<'a> {
    fn root(&self) -> &Path {
        &self.node.config.root_dir
    }

    fn volume(&self) -> PodVolume<'a> {
        PodVolume { uid: self.uid, spec: &self.wanted.spec }
    }

    fn failed<E: Into<Box<dyn Error + Send + Sync>>>(&self, phase: Phase) -> impl Fn(E) -> VolumeError {
        failed(self.wanted, phase)
    }

    fn paths(&self) -> MountPaths {
        if self.wanted.is_block {
            let block = Block::new(self.root(), &self.wanted.spec);
            return MountPaths { target: block.device(self.uid), staging: block.staging };
        }
        let staging =
            if self.wanted.is_ephemeral { PathBuf::new() } else { data::staging_dir(self.root(), self.wanted.id()) };
        MountPaths { staging, target: self.volume().dir(self.root()).join("mount") }
    }

    fn driver(&self) -> Result<Arc<Driver>, VolumeError> {
        let (phase, doing) = match (self.wanted.is_block, self.wanted.is_ephemeral) {
            (true, _) => (Phase::SetUpDevice, "blockMapper.SetUpDevice failed to get CSI client"),
            (_, true) => (Phase::SetUp, "mounter.SetUpAt failed to get CSI client"),
            _ => (Phase::MountDevice, "attacher.MountDevice failed to create newCsiDriverClient"),
        };
        let found = self.node.csi.driver(&self.wanted.driver);
        found.map_err(|source| CsiError::NoClient { doing, source }).map_err(self.failed(phase))
    }

    /// Writes down what is about to be mounted, so that whoever comes next can undo it.
    fn remember(&self) -> io::Result<()> {
        let wanted = self.wanted;
        let attachment = attach::attachment_name(wanted.id(), &self.node.config.node_name);
        let data = Data {
            attachment: if wanted.is_ephemeral { String::new() } else { attachment },
            node: self.node.config.node_name.clone(),
            spec: wanted.spec.clone(),
            mode: if wanted.is_block { String::new() } else { wanted.mode().to_owned() },
            ..Data::staged(wanted.id())
        };
        if !wanted.is_block {
            return data.write(&self.volume().dir(self.root()));
        }
        let block = Block::new(self.root(), &wanted.spec);
        block.make()?;
        data.write(&block.data_dir())?;
        self.link(&block)
    }

    /// The link in the pod's folder that leads to its device.
    fn link(&self, block: &Block) -> io::Result<()> {
        fs::create_dir_all(data::pod_devices(self.root(), self.uid))?;
        let link = self.volume().link(self.root());
        data::gone_is_fine(fs::remove_file(&link))?;
        std::os::unix::fs::symlink(block.device(self.uid), link)
    }

    /// Mounts the volume once for the node.
    async fn stage(
        &self,
        driver: &Driver,
        paths: &MountPaths,
        context: &HashMap<String, String>,
    ) -> Result<(), CsiError> {
        let wanted = self.wanted;
        if wanted.is_ephemeral || self.node.csi.is_staged(wanted.id()) {
            return Ok(());
        }
        fs::create_dir_all(&paths.staging)?;
        if let Some(dir) = paths.staging.parent().filter(|_| !wanted.is_block) {
            Data::staged(wanted.id()).write(dir)?;
        }
        if driver.can(pb::STAGE_UNSTAGE_VOLUME).await? {
            let secret = wanted.stage_secret.as_ref();
            let request = pb::StageRequest {
                volume_id: wanted.handle.clone(),
                publish_context: context.clone(),
                staging_target_path: paths.staging.display().to_string(),
                volume_capability: Some(self.capability(driver).await?),
                secrets: secrets(&self.node.client, secret, "NodeStageSecretRef").await?,
                volume_context: wanted.context(),
            };
            let _empty: pb::Empty = driver.call(pb::NODE_STAGE_VOLUME, request).await?;
        }
        self.node.csi.note_staged(wanted.id());
        Ok(())
    }

    /// Mounts the volume for the pod. Gives when it must be told again.
    async fn publish(
        &self,
        driver: &Driver,
        paths: &MountPaths,
        publish_context: HashMap<String, String>,
        pass: Pass,
    ) -> Result<Option<Timestamp>, CsiError> {
        let wanted = self.wanted;
        paths.target.parent().map_or(Ok(()), fs::create_dir_all)?;
        let tokens = pod_info::tokens(self.node, self.pod, self.object.as_ref(), wanted).await?;
        let mut volume_context = wanted.context();
        volume_context.extend(pod_info::names(self.pod, self.object.as_ref(), wanted));
        volume_context.extend(tokens.context);
        let secret = wanted.publish_secret.as_ref();
        let mut secrets = secrets(&self.node.client, secret, "NodePublishSecretRef").await?;
        secrets.extend(tokens.secrets);
        let stages = !wanted.is_ephemeral && driver.can(pb::STAGE_UNSTAGE_VOLUME).await?;
        let request = pb::PublishRequest {
            volume_id: wanted.handle.clone(),
            publish_context,
            staging_target_path: if stages { paths.staging.display().to_string() } else { String::new() },
            target_path: paths.target.display().to_string(),
            volume_capability: Some(self.capability(driver).await?),
            readonly: wanted.read_only,
            secrets,
            volume_context,
        };
        let published: Result<pb::Empty, _> = driver.call(pb::NODE_PUBLISH_VOLUME, request).await;
        if let Err(err) = published {
            // What never was mounted needs no driver to be undone.
            let undoes = err.is_final() && pass == Pass::First && wanted.is_ephemeral;
            if undoes && fs::symlink_metadata(&paths.target).is_err() {
                Data::remove(&self.volume().dir(self.root()))?;
            }
            return Err(err.into());
        }
        Ok(tokens.refresh_at)
    }

    async fn capability(&self, driver: &Driver) -> Result<pb::VolumeCapability, CsiError> {
        let granularity = Granularity::of(driver).await?;
        let group = if driver.can(pb::VOLUME_MOUNT_GROUP).await? { self.group() } else { None };
        Ok(self.wanted.capability(granularity, group.map(|group| group.id)))
    }

    fn group(&self) -> Option<FsGroup> {
        FsGroup::of(self.pod.spec.as_ref().and_then(|s| s.security_context.as_ref()))
    }

    async fn give_to_group(&self, driver: &Driver, target: &Path) -> Result<(), CsiError> {
        let takes = self.wanted.takes_group(self.object.as_ref());
        let Some(group) = self.group().filter(|_| takes) else { return Ok(()) };
        if driver.can(pb::VOLUME_MOUNT_GROUP).await? {
            return Ok(());
        }
        let root = target.to_owned();
        Ok(Group::blocking(move || group::give(&root, group)).await??)
    }
}
