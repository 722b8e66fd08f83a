//! Volumes of drivers that speak the Container Storage Interface: which drivers are there, and which volumes are in
//! use.
//!
//! What is mounted where is written beside each mount (`vol_data.json`, as upstream), so a kubelet that starts anew
//! knows what to undo.

mod attach;

mod data;

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

use crate::plugins::link::{CallError, Link};

/// A driver has this long for a call, as upstream.
const TIMEOUT: Duration = Duration::from_secs(120);
/// What texts about volumes begin with.
pub(crate) const PLUGIN: &str = "kubernetes.io/csi";
/// Who has a volume in use that was found on the disk at the start.
const FOUND: &str = "found at the start";

/// A driver that runs on this node.
pub(crate) struct Driver {
    pub(crate) name: String,
    link: Link,
    can: OnceCell<BTreeSet<i32>>,
}

impl Driver {
    fn new(name: &str, socket: &Path) -> Driver {
        Driver { name: name.to_owned(), link: Link::new(socket), can: OnceCell::new() }
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
    /// Volumes staged since the start, by driver and handle.
    staged: Mutex<BTreeSet<(String, String)>>,
    /// Volumes that pods have since the start: the pod's uid and the volume's name.
    ready: Mutex<BTreeSet<(String, String)>>,
    /// One at a time for each volume.
    locks: Mutex<HashMap<(String, String), Arc<tokio::sync::Mutex<()>>>>,
}

impl Csi {
    /// With the volumes that an earlier kubelet left staged.
    pub(crate) fn new(root: &Path) -> Csi {
        let found = data::staged(root).into_iter();
        let in_use = found
            .map(|volume| (unique_name(&volume.driver, &volume.handle), BTreeSet::from([FOUND.to_owned()])))
            .collect();
        Csi {
            drivers: Mutex::default(),
            in_use: watch::Sender::new(in_use),
            staged: Mutex::default(),
            ready: Mutex::default(),
            locks: Mutex::default(),
        }
    }

    fn driver(&self, name: &str) -> Result<Arc<Driver>, String> {
        let drivers = self.drivers.lock();
        drivers
            .get(name)
            .cloned()
            .ok_or_else(|| format!("driver name {name} not found in the list of registered CSI drivers"))
    }

    /// Upstream's names of the volumes that pods of this node use or wait for.
    pub(crate) fn volumes_in_use(&self) -> Vec<String> {
        self.in_use.borrow().keys().cloned().collect()
    }

    /// Hears of each change of the volumes in use.
    pub(crate) fn uses(&self) -> watch::Receiver<BTreeMap<String, BTreeSet<String>>> {
        self.in_use.subscribe()
    }

    fn hold(&self, unique: &str, uid: &str) {
        self.in_use.send_if_modified(|all| {
            let fresh = !all.contains_key(unique);
            all.entry(unique.to_owned()).or_default().insert(uid.to_owned());
            fresh
        });
    }

    fn is_ready(&self, uid: &str, spec: &str) -> bool {
        self.ready.lock().contains(&(uid.to_owned(), spec.to_owned()))
    }

    fn note_ready(&self, uid: &str, spec: &str) {
        self.ready.lock().insert((uid.to_owned(), spec.to_owned()));
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
    fn undone(&self, driver: &str, handle: &str) {
        self.staged.lock().remove(&(driver.to_owned(), handle.to_owned()));
        let unique = unique_name(driver, handle);
        self.in_use.send_if_modified(|all| {
            let Some(holders) = all.get_mut(&unique) else { return false };
            holders.remove(FOUND);
            holders.is_empty() && all.remove(&unique).is_some()
        });
    }

    fn is_staged(&self, driver: &str, handle: &str) -> bool {
        self.staged.lock().contains(&(driver.to_owned(), handle.to_owned()))
    }

    fn note_staged(&self, driver: &str, handle: &str) {
        self.staged.lock().insert((driver.to_owned(), handle.to_owned()));
    }

    pub(crate) fn lock(&self, driver: &str, handle: &str) -> Arc<tokio::sync::Mutex<()>> {
        let mut locks = self.locks.lock();
        // Those that nobody holds or waits for are only names.
        locks.retain(|_, lock| Arc::strong_count(lock) > 1);
        Arc::clone(locks.entry((driver.to_owned(), handle.to_owned())).or_default())
    }
}

/// As volumes are called in a node's `volumesInUse` and `volumesAttached`.
pub(crate) fn unique_name(driver: &str, handle: &str) -> String {
    format!("{PLUGIN}/{driver}^{handle}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_is_in_use_until_its_last_pod_has_let_go() {
        let dir = tempfile::tempdir().unwrap();
        let csi = Csi::new(dir.path());
        let name = unique_name("d.io", "v");
        csi.hold(&name, "a");
        csi.hold(&name, "b");
        csi.let_go("a");
        assert_eq!(csi.volumes_in_use(), ["kubernetes.io/csi/d.io^v"]);
        csi.let_go("b");
        assert!(csi.volumes_in_use().is_empty());
    }

    #[test]
    fn what_lies_staged_at_the_start_is_in_use_until_it_is_unstaged() {
        let dir = tempfile::tempdir().unwrap();
        let staging = data::staging_dir(dir.path(), "d.io", "v");
        std::fs::create_dir_all(&staging).unwrap();
        data::Data::staged("d.io", "v").write(staging.parent().unwrap()).unwrap();
        let csi = Csi::new(dir.path());
        assert_eq!(csi.volumes_in_use().len(), 1);
        csi.undone("d.io", "v");
        assert!(csi.volumes_in_use().is_empty());
    }
}
