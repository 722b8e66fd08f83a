//! All devices of the node: which there are, and which pods have them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use base::chain::Chain;
use base::sync::Mutex;
use base::time::Stopwatch;
use proto::plugins as pb;
use tokio::sync::watch;
use tracing::warn;

use super::checkpoint;
use crate::devices::allocations::{Allocations, PodContainer};
use crate::plugins::link::Link;

/// A plugin that ended is waited for so long before its resource is told to be none.
pub(super) const STOP_GRACE: Duration = Duration::from_secs(5 * 60);

/// One resource, e.g. `nvidia.com/gpu`.
#[derive(Default)]
pub(super) struct Resource {
    /// The plugin, while it is there.
    pub(super) link: Option<Link>,
    pub(super) options: pb::DevicePluginOptions,
    pub(super) devices: BTreeMap<String, Seen>,
    /// Since when its plugin is away.
    pub(super) stopped: Option<Stopwatch>,
    /// Which plugin is the one that counts: a newer one of the same resource takes the place of an older.
    pub(super) generation: u64,
}

/// A device as its plugin tells it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) healthy: bool,
    pub(super) numa: BTreeSet<i64>,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) resources: BTreeMap<String, Resource>,
    pub(super) allocations: Allocations,
}

/// All devices of the node.
pub(crate) struct Devices {
    pub(super) dir: PathBuf,
    pub(super) state: Mutex<State>,
    pub(super) changed: watch::Sender<u64>,
    /// One admission at a time: two must not be promised the same device.
    pub(super) turn: tokio::sync::Mutex<()>,
}

impl Devices {
    /// With what an earlier kubelet gave. Its resources count as stopped until their plugins come back.
    pub(crate) fn new(root: &Path) -> Devices {
        let dir = root.join("device-plugins");
        let kept = checkpoint::read(&dir).unwrap_or_else(|err| {
            warn!(
                path = %dir.display(),
                err = %Chain(&err),
                "cannot read which devices were given: pods that have some keep them unnoticed"
            );
            checkpoint::Kept::default()
        });
        let stopped = |(name, _)| (name, Resource { stopped: Some(Stopwatch::start()), ..Resource::default() });
        let state =
            State { resources: kept.registered.into_iter().map(stopped).collect(), allocations: kept.allocations };
        Devices { dir, state: Mutex::new(state), changed: watch::Sender::new(0), turn: tokio::sync::Mutex::default() }
    }

    pub(super) fn with<T>(&self, look: impl FnOnce(&mut State) -> T) -> T {
        look(&mut self.state.lock())
    }

    /// Hears when amounts change.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    pub(super) fn tell(&self) {
        self.changed.send_modify(|n| *n += 1);
    }

    /// How many devices there are, and how many of them are well, by resource.
    pub(crate) fn amounts(&self) -> BTreeMap<String, (i64, i64)> {
        let count = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        self.with(|state| {
            let one = |r: &Resource| {
                if r.stopped.is_some_and(|since| since.elapsed() >= STOP_GRACE) {
                    return (0, 0);
                }
                let healthy = r.devices.values().filter(|d| d.healthy).count();
                (count(r.devices.len()), if r.stopped.is_some() { 0 } else { count(healthy) })
            };
            state.resources.iter().map(|(name, r)| (name.clone(), one(r))).collect()
        })
    }

    /// A plugin is gone: its devices cannot be given for now.
    pub(crate) fn stop(&self, resource: &str) {
        self.with(|state| {
            if let Some(resource) = state.resources.get_mut(resource) {
                resource.link = None;
                resource.stopped.get_or_insert_with(Stopwatch::start);
                resource.devices.values_mut().for_each(|device| device.healthy = false);
            }
        });
        self.tell();
    }

    /// The needs of a container that uses its devices.
    pub(crate) fn of_container(&self, container: PodContainer<'_>) -> Vec<pb::ContainerAllocation> {
        self.with(|state| container.given(&state.allocations).map(|(_, given)| given.needs.clone()).collect())
    }

    /// The pod has nothing any more.
    pub(crate) fn release(&self, uid: &str) {
        if self.with(|state| state.allocations.remove(uid).is_some()) {
            self.keep();
        }
    }

    /// Writes down who has what. A failure is told: after a restart, devices could be given twice.
    pub(super) fn keep(&self) -> bool {
        let kept = self.with(|state| checkpoint::Kept {
            allocations: state.allocations.clone(),
            registered: state
                .resources
                .iter()
                .map(|(name, r)| (name.clone(), r.devices.keys().cloned().collect()))
                .collect(),
        });
        let written = checkpoint::write(&self.dir, &kept);
        if let Err(err) = &written {
            warn!(path = %self.dir.display(), err = %Chain(err), "cannot write down which devices were given");
        }
        written.is_ok()
    }
}
