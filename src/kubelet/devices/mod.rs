//! Devices that plugins advertise (`v1beta1`): how many there are, who has which, and what their containers need to use
//! them.
//!
//! An allocation is on the disk before a container starts, so a pod keeps its devices when the kubelet restarts.
//! Without plugins there is a socket, and nothing runs.

pub(crate) mod allocate;

pub(crate) mod allocations;

mod checkpoint;

pub(crate) mod registry;

pub(crate) mod follow;

mod pick;

mod pod_resources;

mod serve;

use std::sync::Arc;

use base::task::Group;
use tracing::warn;

use crate::node::Node;
use crate::pods::map::Pods;

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
    use proto::plugins as pb;
    use std::collections::BTreeSet;

    use super::allocations::{Given, PodContainer};
    use super::registry::{Devices, Seen};

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
                .allocations
                .insert("u".to_owned(), [("c".to_owned(), [("x.io/d".to_owned(), given.clone())].into())].into());
        });
        assert!(devices.keep());
        let container = PodContainer { uid: "u", name: "c" };
        let later = Devices::new(dir.path());
        assert_eq!(later.of_container(container), [given.needs]);
        later.release("u");
        assert!(Devices::new(dir.path()).of_container(container).is_empty());
    }
}
