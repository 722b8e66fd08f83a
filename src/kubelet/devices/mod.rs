//! Devices that plugins advertise (`v1beta1`): how many there are, who has which, and what their containers need to use
//! them.
//!
//! What was given is on the disk before a container starts, so a pod keeps its devices when the kubelet restarts.
//! Without plugins there is a socket, and nothing runs.

pub(crate) mod allocate;

mod checkpoint;

pub(crate) mod follow;

mod pick;

mod pod_resources;

mod serve;

use base::sync::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base::task::Group;
use base::time::Stopwatch;
use proto::plugins as pb;
use tokio::sync::watch;
use tracing::warn;

use crate::manager::Pods;
use crate::node::Node;
use crate::plugins::link::Link;

/// A plugin that ended is waited for so long before its resource is told to be none.
const STOP_GRACE: Duration = Duration::from_secs(5 * 60);

/// One resource, e.g. `nvidia.com/gpu`.
#[derive(Default)]
struct Resource {
    /// The plugin, while it is there.
    link: Option<Link>,
    options: pb::DevicePluginOptions,
    devices: BTreeMap<String, Seen>,
    /// Since when its plugin is away.
    stopped: Option<Stopwatch>,
    /// Which plugin is the one that counts: a newer one of the same resource takes the place of an older.
    generation: u64,
}

/// A device as its plugin tells it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Seen {
    healthy: bool,
    numa: BTreeSet<i64>,
}

/// What one container has of one resource.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Given {
    pub(crate) ids: BTreeSet<String>,
    pub(crate) needs: pb::ContainerAllocation,
}

/// By pod, container and resource.
type Gifts = BTreeMap<String, BTreeMap<String, BTreeMap<String, Given>>>;

#[derive(Default)]
struct State {
    resources: BTreeMap<String, Resource>,
    gifts: Gifts,
}

/// All devices of the node.
pub(crate) struct Devices {
    dir: PathBuf,
    state: Mutex<State>,
    changed: watch::Sender<u64>,
    /// One admission at a time: two must not be promised the same device.
    turn: tokio::sync::Mutex<()>,
}

impl Devices {
    /// With what an earlier kubelet gave. Its resources count as stopped until their plugins come back.
    pub(crate) fn new(root: &Path) -> Devices {
        let dir = root.join("device-plugins");
        let kept = checkpoint::read(&dir).unwrap_or_else(|err| {
            warn!(path = %dir.display(), err = %err, "cannot read which devices were given: pods that have some keep them unnoticed");
            checkpoint::Kept::default()
        });
        let stopped = |(name, _)| (name, Resource { stopped: Some(Stopwatch::start()), ..Resource::default() });
        let state = State { resources: kept.registered.into_iter().map(stopped).collect(), gifts: kept.gifts };
        Devices { dir, state: Mutex::new(state), changed: watch::Sender::new(0), turn: tokio::sync::Mutex::default() }
    }

    fn with<T>(&self, look: impl FnOnce(&mut State) -> T) -> T {
        look(&mut self.state.lock())
    }

    /// Hears when amounts change.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    fn tell(&self) {
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

    /// What a container needs to use its devices.
    pub(crate) fn of_container(&self, uid: &str, container: &str) -> Vec<pb::ContainerAllocation> {
        self.with(|state| {
            let given = state.gifts.get(uid).and_then(|pod| pod.get(container));
            given.into_iter().flatten().map(|(_, given)| given.needs.clone()).collect()
        })
    }

    /// The pod has nothing any more.
    pub(crate) fn release(&self, uid: &str) {
        if self.with(|state| state.gifts.remove(uid).is_some()) {
            self.keep();
        }
    }

    /// Writes down who has what. A failure is told: after a restart, devices could be given twice.
    fn keep(&self) -> bool {
        let kept = self.with(|state| checkpoint::Kept {
            gifts: state.gifts.clone(),
            registered: state
                .resources
                .iter()
                .map(|(name, r)| (name.clone(), r.devices.keys().cloned().collect()))
                .collect(),
        });
        let written = checkpoint::write(&self.dir, &kept);
        if let Err(err) = &written {
            warn!(path = %self.dir.display(), err = %err, "cannot write down which devices were given");
        }
        written.is_ok()
    }
}

/// Starts the sockets on which plugins register and others ask who has which devices.
pub(crate) fn start(node: &Arc<Node>, pods: &Pods, group: &Group) {
    // Upstream removes all sockets, too: plugins watch for that, and register anew.
    for entry in std::fs::read_dir(&node.devices.dir).into_iter().flatten().flatten() {
        if entry.file_name() != checkpoint::FILE && entry.metadata().is_ok_and(|meta| !meta.is_dir()) {
            let _gone_already = std::fs::remove_file(entry.path());
        }
    }
    let places = [
        (node.devices.dir.join("kubelet.sock"), serve::registration(node, group)),
        (node.config.root_dir.join("pod-resources/kubelet.sock"), serve::pod_resources(node, pods)),
    ];
    for (path, handler) in places {
        match wire::serve::UnixServer::bind(&path, handler) {
            Ok(server) => server.start(group),
            Err(err) => {
                warn!(path = %path.display(), err = %base::chain::Chain(&err), "cannot serve plugins of devices")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resource_whose_plugin_stopped_has_devices_but_none_to_give() {
        let dir = tempfile::tempdir().unwrap();
        let devices = Devices::new(dir.path());
        devices.with(|state| {
            let resource = state.resources.entry("x.io/d".to_owned()).or_default();
            resource.devices.insert("a".to_owned(), Seen { healthy: true, numa: BTreeSet::new() });
            resource.devices.insert("b".to_owned(), Seen::default());
        });
        assert_eq!(devices.amounts()["x.io/d"], (2, 1));
        devices.stop("x.io/d");
        assert_eq!(devices.amounts()["x.io/d"], (2, 0));
    }

    #[test]
    fn what_was_given_is_known_after_a_restart_and_gone_after_its_pod() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("device-plugins")).unwrap();
        let given = Given {
            ids: ["a".to_owned()].into(),
            needs: pb::ContainerAllocation { envs: [("E".to_owned(), "1".to_owned())].into(), ..Default::default() },
        };
        let devices = Devices::new(dir.path());
        devices.with(|state| {
            state
                .gifts
                .insert("u".to_owned(), [("c".to_owned(), [("x.io/d".to_owned(), given.clone())].into())].into());
        });
        assert!(devices.keep());
        let later = Devices::new(dir.path());
        assert_eq!(later.of_container("u", "c"), [given.needs]);
        later.release("u");
        assert!(Devices::new(dir.path()).of_container("u", "c").is_empty());
    }
}
