//! This room runs pods: it takes those bound to its node and those of the manifest folder, makes containerd run them, and reports
//! what became of them.
//!
//! In: pods from the API server and from files, events from containerd, results of probes. Out: CRI calls, mounts, pod and node
//! status, and for the server on 10250 a [`Handle`]. It never knows how the API server stores, or how the network reaches a service.

pub mod config;
pub mod error;

pub mod sources;

mod manager;

mod worker;

mod sandbox;

mod container;

mod images;

pub mod runtime;

pub mod volumes;

mod probes;

mod cgroups;

mod hosts;

mod resolv;

mod status;

mod events;

mod register;

mod stats;

pub mod logs;

pub mod handle;

pub mod server;

mod node;

use std::sync::Arc;

use base::task::Group;

use crate::config::Config;
use crate::error::Error;
use crate::handle::Handle;
use crate::node::Node;

/// Starts the kubelet: containerd first, then the node object, then pods. Returns when pods are being taken.
///
/// Containers are left running when `group` stops, and adopted at the next start.
/// Errors: no containerd or runc on the machine, no cgroup controllers, a folder that cannot be made.
pub async fn run(config: Config, client: kube::Client, group: &Group) -> Result<Handle, Error> {
    let group = group.child("kubelet");
    config.prepare_dirs()?;
    let runtime = runtime::start(&config, &group).await?;
    let cgroups = cgroups::Cgroups::prepare(runtime.cgroup_driver)?;
    let node = Arc::new(Node::new(config, client, runtime, cgroups, &group));
    let pods = manager::start(Arc::clone(&node), &group).await;
    register::start(Arc::clone(&node), pods.clone(), &group);
    images::start_gc(Arc::clone(&node), &group);
    Ok(Handle::new(node, pods))
}
