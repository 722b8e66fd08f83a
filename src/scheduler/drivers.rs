//! The objects of drivers of volumes, followed from the first volume or class of a driver on: most clusters have none.

use std::sync::Arc;

use base::task::Group;
use client::informer::{Informer, Informers, Kind};
use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode, CSIStorageCapacity, StorageClass};
use kube::ResourceExt as _;
use tokio::sync::Notify;

use crate::snapshot::Drivers;

/// Provisioners that have no driver.
const WITHOUT: [&str; 2] = ["kubernetes.io/no-provisioner", "rancher.io/local-path"];

/// The informers that are followed.
pub(crate) struct Followed {
    nodes: Informer<CSINode>,
    drivers: Informer<CSIDriver>,
    capacities: Informer<CSIStorageCapacity>,
}

/// Whether there is a volume that a driver has, or will have.
pub(crate) fn any(volumes: &Informer<PersistentVolume>, classes: &Informer<StorageClass>) -> bool {
    volumes.list().iter().any(|v| v.spec.as_ref().is_some_and(|s| s.csi.is_some()))
        || classes.list().iter().any(|class| !WITHOUT.contains(&class.provisioner.as_str()))
}

impl Followed {
    /// Begins to follow; `changed` is told of each change.
    pub(crate) async fn start(informers: &Informers, changed: &Arc<Notify>, group: &Group) -> Followed {
        let followed = Followed { nodes: informers.get(), drivers: informers.get(), capacities: informers.get() };
        tell(&followed.nodes, changed, group);
        tell(&followed.drivers, changed, group);
        tell(&followed.capacities, changed, group);
        followed.nodes.synced().await;
        followed.drivers.synced().await;
        followed.capacities.synced().await;
        followed
    }

    /// As they are now.
    pub(crate) fn look(&self) -> Drivers {
        Drivers {
            nodes: self.nodes.list().into_iter().map(|node| (node.name_any(), node)).collect(),
            drivers: self.drivers.list().into_iter().map(|driver| (driver.name_any(), driver)).collect(),
            capacities: self.capacities.list(),
        }
    }
}

fn tell<K: Kind>(informer: &Informer<K>, changed: &Arc<Notify>, group: &Group) {
    let (mut changes, changed) = (informer.changes(), Arc::clone(changed));
    group.spawn("driver-changes", async move {
        loop {
            changes.next().await;
            changed.notify_one();
        }
    });
}
