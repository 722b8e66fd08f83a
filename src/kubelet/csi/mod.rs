//! Volumes of drivers that speak the Container Storage Interface: which drivers are there, and which volumes are in
//! use.
//!
//! Each mount is described in a file beside it (`vol_data.json`, as upstream), so a kubelet that starts anew
//! knows what to undo.

mod attach;

pub(crate) mod data;

pub(crate) mod error;

pub(crate) mod expand;

pub(crate) mod mount;

pub(crate) mod node;

mod pod_info;

mod secrets;

pub(crate) mod stats;

pub(crate) mod unmount;

pub(crate) mod wanted;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base::sync::Mutex;
use proto::csi as pb;
use tokio::sync::{OnceCell, watch};

use self::data::{PodVolume, VolumeId};
use crate::plugins::link::{CallError, Link};

/// A driver has this long for a call, as upstream.
const TIMEOUT: Duration = Duration::from_secs(120);
/// The holder of volumes that were found on the disk at the start.
const FOUND: &str = "found at the start";

/// No driver of that name has registered.
#[derive(Debug, thiserror::Error)]
#[error("driver name {name} not found in the list of registered CSI drivers")]
pub(crate) struct UnknownDriver {
    name: String,
}

/// A driver that runs on this node.
pub(crate) struct Driver {
    link: Link,
    can: OnceCell<BTreeSet<i32>>,
}

impl Driver {
    fn new(socket: &Path) -> Driver {
        Driver { link: Link::new(socket), can: OnceCell::new() }
    }

    async fn call<Q, A>(&self, path: &'static str, message: Q) -> Result<A, CallError>
    where
        Q: prost::Message + Send + Sync + 'static,
        A: prost::Message + Default + Send + Sync + 'static,
    {
        self.link.call(path, message, TIMEOUT).await
    }

    /// Whether its node service can do this; asked once.
    async fn can(&self, what: i32) -> Result<bool, CallError> {
        let all = self.can.get_or_try_init(|| async {
            let answer: pb::NodeCapabilities = self.call(pb::NODE_GET_CAPABILITIES, pb::Empty {}).await?;
            Ok::<BTreeSet<i32>, CallError>(
                answer.capabilities.into_iter().filter_map(|c| c.rpc).map(|rpc| rpc.kind).collect::<BTreeSet<i32>>(),
            )
        });
        Ok(all.await?.contains(&what))
    }
}

/// All drivers, and what is held of volumes.
pub(crate) struct Csi {
    drivers: Mutex<BTreeMap<String, Arc<Driver>>>,
    /// By upstream's unique name: the pods that have the volume, or are about to.
    in_use: watch::Sender<BTreeMap<String, BTreeSet<String>>>,
    /// Volumes staged since the start, by upstream's unique name.
    staged: Mutex<BTreeSet<String>>,
    /// Volumes that pods have since the start: the pod's uid and the volume's name.
    ready: Mutex<BTreeSet<(String, String)>>,
    /// One at a time for each volume, by upstream's unique name.
    locks: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
}

impl Csi {
    /// With the volumes that an earlier kubelet left staged.
    pub(crate) fn new(root: &Path) -> Csi {
        let found = data::staged(root).into_iter();
        let in_use = found.map(|volume| (volume.id().unique_name(), BTreeSet::from([FOUND.to_owned()]))).collect();
        Csi {
            drivers: Mutex::default(),
            in_use: watch::Sender::new(in_use),
            staged: Mutex::default(),
            ready: Mutex::default(),
            locks: Mutex::default(),
        }
    }

    fn driver(&self, name: &str) -> Result<Arc<Driver>, UnknownDriver> {
        self.drivers.lock().get(name).cloned().ok_or_else(|| UnknownDriver { name: name.to_owned() })
    }

    /// Upstream's names of the volumes that pods of this node use or wait for.
    pub(crate) fn volumes_in_use(&self) -> Vec<String> {
        self.in_use.borrow().keys().cloned().collect()
    }

    /// Hears of each change of the volumes in use.
    pub(crate) fn uses(&self) -> watch::Receiver<BTreeMap<String, BTreeSet<String>>> {
        self.in_use.subscribe()
    }

    /// A pod has the volume, or waits for it.
    fn hold(&self, id: VolumeId<'_>, uid: &str) {
        self.in_use.send_if_modified(|all| {
            let unique = id.unique_name();
            let fresh = !all.contains_key(&unique);
            all.entry(unique).or_default().insert(uid.to_owned());
            fresh
        });
    }

    fn is_ready(&self, volume: PodVolume<'_>) -> bool {
        self.ready.lock().contains(&(volume.uid.to_owned(), volume.spec.to_owned()))
    }

    fn note_ready(&self, volume: PodVolume<'_>) {
        self.ready.lock().insert((volume.uid.to_owned(), volume.spec.to_owned()));
    }

    /// A pod has nothing any more.
    fn let_go(&self, uid: &str) {
        self.ready.lock().retain(|(of, _)| of != uid);
        self.in_use.send_if_modified(|all| {
            let before = all.len();
            all.retain(|_, holders| !holders.remove(uid) || !holders.is_empty());
            all.len() != before
        });
    }

    /// A volume is unstaged: what was found at the start is undone.
    fn undone(&self, id: VolumeId<'_>) {
        self.note_unstaged(id);
        let unique = id.unique_name();
        self.in_use.send_if_modified(|all| {
            let Some(holders) = all.get_mut(&unique) else { return false };
            holders.remove(FOUND);
            holders.is_empty() && all.remove(&unique).is_some()
        });
    }

    fn is_staged(&self, id: VolumeId<'_>) -> bool {
        self.staged.lock().contains(&id.unique_name())
    }

    fn note_staged(&self, id: VolumeId<'_>) {
        self.staged.lock().insert(id.unique_name());
    }

    fn note_unstaged(&self, id: VolumeId<'_>) {
        self.staged.lock().remove(&id.unique_name());
    }

    /// The lock of one volume.
    pub(crate) fn lock(&self, id: VolumeId<'_>) -> Arc<tokio::sync::Mutex<()>> {
        let mut locks = self.locks.lock();
        // Those that nobody holds or waits for are only names.
        locks.retain(|_, lock| Arc::strong_count(lock) > 1);
        Arc::clone(locks.entry(id.unique_name()).or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: VolumeId<'_> = VolumeId { driver: "d.io", handle: "v" };

    #[test]
    fn a_volume_is_in_use_until_its_last_pod_has_let_go() {
        let dir = tempfile::tempdir().unwrap();
        let csi = Csi::new(dir.path());
        csi.hold(ID, "a");
        csi.hold(ID, "b");
        csi.let_go("a");
        assert_eq!(csi.volumes_in_use(), ["kubernetes.io/csi/d.io^v"]);
        csi.let_go("b");
        assert!(csi.volumes_in_use().is_empty());
    }

    #[test]
    fn what_lies_staged_at_the_start_is_in_use_until_it_is_unstaged() {
        let dir = tempfile::tempdir().unwrap();
        let staging = data::staging_dir(dir.path(), ID);
        std::fs::create_dir_all(&staging).unwrap();
        data::Data::staged(ID).write(staging.parent().unwrap()).unwrap();
        let csi = Csi::new(dir.path());
        assert_eq!(csi.volumes_in_use().len(), 1);
        csi.undone(ID);
        assert!(csi.volumes_in_use().is_empty());
    }

    #[test]
    fn a_pod_that_ends_is_ready_no_more_and_others_are() {
        let dir = tempfile::tempdir().unwrap();
        let csi = Csi::new(dir.path());
        let [a, b] = ["a", "b"].map(|uid| PodVolume { uid, spec: "pv" });
        csi.note_ready(a);
        csi.note_ready(b);
        csi.let_go("a");
        assert!(!csi.is_ready(a) && csi.is_ready(b));
        assert!(!csi.is_ready(PodVolume { spec: "other", ..b }));
    }

    #[tokio::test]
    async fn a_volume_has_one_lock_and_another_has_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let csi = Csi::new(dir.path());
        let held = csi.lock(ID).lock_owned().await;
        assert!(csi.lock(ID).try_lock().is_err());
        assert!(csi.lock(VolumeId { handle: "w", ..ID }).try_lock().is_ok());
        drop(held);
        assert!(csi.lock(ID).try_lock().is_ok());
    }

    #[test]
    fn a_driver_that_has_not_registered_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let why = Csi::new(dir.path()).driver("d.io").map(drop).unwrap_err().to_string();
        assert_eq!(why, "driver name d.io not found in the list of registered CSI drivers");
    }
}
