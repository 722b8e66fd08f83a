//! Image volumes: an image's files, read-only, as a view that containerd's snapshotter gives. Works on every
//! containerd, also on those whose CRI knows no such mounts.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::Path;
use std::time::Duration;

use base::chain::Chain;
use base::task::Group;
use base::time::Clock;
use containerd_client::services::v1::snapshots::snapshots_client::SnapshotsClient;
use containerd_client::services::v1::snapshots::{
    ListSnapshotsRequest, MountsRequest, RemoveSnapshotRequest, ViewSnapshotRequest,
};
use containerd_client::types::Mount;
use nix::mount::{MsFlags, mount};
use tonic::metadata::MetadataValue;
use tonic::{Code, Request, Status};
use tracing::warn;

use crate::mount_points::is_mount_point;
use crate::runtime::Runtime;
use crate::runtime::cri::channel;
use crate::volumes::faults::ImageVolumeError;

const TIMEOUT: Duration = Duration::from_secs(60);
/// Keeps a snapshot from containerd's garbage collector until we remove it.
const ROOT_LABEL: &str = "containerd.io/gc.root";

fn request<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("containerd-namespace", MetadataValue::from_static("k8s.io"));
    request.set_timeout(TIMEOUT);
    request
}

const KEY_PREFIX: &str = "kedge-image-";

/// A volume of a pod, which shows an image.
#[derive(Clone, Copy)]
pub(crate) struct ImageVolume<'a> {
    /// The pod's.
    pub(crate) uid: &'a str,
    pub(crate) name: &'a str,
}

impl ImageVolume<'_> {
    /// The snapshot's name.
    fn key(self) -> String {
        format!("{KEY_PREFIX}{}-{}", self.uid, self.name)
    }
}

/// The snapshots of images that volumes of pods are views of: those images are in use.
pub(crate) async fn parents(runtime: &Runtime) -> Result<HashSet<String>, Status> {
    let filters = vec![format!("name~=\"^{KEY_PREFIX}\"")];
    let wanted = ListSnapshotsRequest { snapshotter: runtime.snapshotter.clone(), filters };
    let mut answers = SnapshotsClient::new(channel(&runtime.socket)).list(request(wanted)).await?.into_inner();
    let mut parents = HashSet::new();
    while let Some(part) = answers.message().await? {
        parents.extend(part.info.into_iter().filter(|view| view.name.starts_with(KEY_PREFIX)).map(|view| view.parent));
    }
    Ok(parents)
}

/// Mounts the files of an image that is here at `target`.
pub(crate) async fn mount_image(
    clock: &Clock,
    runtime: &Runtime,
    volume: ImageVolume<'_>,
    image: &str,
    target: &Path,
) -> Result<(), ImageVolumeError> {
    if is_mount_point(target)? {
        return Ok(());
    }
    let chain = runtime.cri.chain_id(image).await?;
    let chain = chain.ok_or_else(|| ImageVolumeError::NoSnapshot { image: image.to_owned() })?;
    let mut client = SnapshotsClient::new(channel(&runtime.socket));
    let (snapshotter, key) = (runtime.snapshotter.clone(), volume.key());
    let labels = HashMap::from([(ROOT_LABEL.to_owned(), base::time::rfc3339_secs(clock.now()))]);
    let view = ViewSnapshotRequest { snapshotter: snapshotter.clone(), key: key.clone(), parent: chain, labels };
    let mounts = match client.view(request(view)).await {
        Ok(answer) => answer.into_inner().mounts,
        Err(status) if status.code() == Code::AlreadyExists => {
            let again = MountsRequest { snapshotter, key };
            client.mounts(request(again)).await.map_err(no_view)?.into_inner().mounts
        }
        Err(status) => return Err(no_view(status)),
    };
    let target = target.to_owned();
    let work = move || -> Result<(), ImageVolumeError> {
        fs::create_dir_all(&target)?;
        mounts.iter().try_for_each(|m| one(m, &target))
    };
    Group::blocking(work).await?
}

fn no_view(status: Status) -> ImageVolumeError {
    ImageVolumeError::NoView { message: status.message().to_owned() }
}

/// The kernel's flags and data of a mount that the snapshotter wants. The files are never written to.
fn options(wanted: &Mount) -> (MsFlags, String) {
    let (mut flags, mut data) = (MsFlags::MS_RDONLY, Vec::new());
    for option in &wanted.options {
        match option.as_str() {
            "ro" | "rw" => {}
            "bind" => flags |= MsFlags::MS_BIND,
            "rbind" => flags |= MsFlags::MS_BIND | MsFlags::MS_REC,
            other => data.push(other),
        }
    }
    (flags, data.join(","))
}

fn one(wanted: &Mount, target: &Path) -> Result<(), ImageVolumeError> {
    let (flags, data) = options(wanted);
    let failed = |source: nix::Error| ImageVolumeError::Mount { target: target.to_owned(), source };
    let data = Some(data.as_str()).filter(|d| !d.is_empty());
    let kind = Some(wanted.r#type.as_str()).filter(|t| *t != "bind");
    mount(Some(wanted.source.as_str()), target, kind, flags, data).map_err(failed)?;
    if flags.contains(MsFlags::MS_BIND) {
        // The kernel ignores read-only in the call that binds.
        mount(
            None::<&str>,
            target,
            None::<&str>,
            MsFlags::MS_REMOUNT | MsFlags::MS_BIND | MsFlags::MS_RDONLY,
            None::<&str>,
        )
        .map_err(failed)?;
    }
    Ok(())
}

/// Gives the views of a pod back, after they were unmounted.
pub(crate) async fn release(runtime: &Runtime, pod: &k8s_openapi::api::core::v1::Pod) {
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    for volume in pod.spec.iter().flat_map(|s| s.volumes.iter().flatten()).filter(|v| v.image.is_some()) {
        let key = ImageVolume { uid, name: &volume.name }.key();
        let gone = RemoveSnapshotRequest { snapshotter: runtime.snapshotter.clone(), key };
        match SnapshotsClient::new(channel(&runtime.socket)).remove(request(gone)).await {
            Err(status) if status.code() != Code::NotFound => {
                warn!(volume = %volume.name, err = %Chain(&status), "cannot give back the view of an image");
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_of_an_image_are_read_only_whatever_the_snapshotter_wants() {
        let of = |words: &[&str]| {
            let options_of = words.iter().map(|&word| word.to_owned()).collect();
            options(&Mount { options: options_of, ..Mount::default() })
        };
        let (ro, bind) = (MsFlags::MS_RDONLY, MsFlags::MS_BIND);
        assert_eq!(of(&["rw", "bind"]), (ro | bind, String::new()));
        assert_eq!(of(&["rbind", "ro"]), (ro | bind | MsFlags::MS_REC, String::new()));
        assert_eq!(of(&["lowerdir=/a:/b", "index=off"]), (ro, "lowerdir=/a:/b,index=off".to_owned()));
    }

    #[test]
    fn each_volume_of_a_pod_has_a_snapshot_of_its_own() {
        assert_eq!(ImageVolume { uid: "u", name: "v" }.key(), "kedge-image-u-v");
    }

    #[test]
    fn an_image_that_cannot_be_shown_says_why() {
        let status = Status::new(Code::NotFound, "parent snapshot does not exist");
        assert_eq!(
            no_view(status).to_string(),
            "the runtime gives no view of the image: parent snapshot does not exist"
        );
        let err = ImageVolumeError::Mount { target: "/t".into(), source: nix::Error::EACCES };
        assert_eq!(Chain(&err).to_string(), "cannot mount an image at /t: EACCES: Permission denied");
    }
}
