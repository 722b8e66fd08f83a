//! This room runs pods: it takes those bound to its node and those of the manifest folder, makes containerd run them,
//! and reports what became of them.
//!
//! In: pods from the API server and from files, events from containerd, results of probes. Out: CRI calls, mounts, pod
//! and node status, and for the server on 10250 a [`Handle`]. It never knows how the API server stores, or how the
//! network reaches a service.

mod admin_file;
mod alarm;
mod api_error;
mod backoffs;
mod capacity;
mod cgroups;
mod conditions;
pub mod config;
mod container;
mod csi;
mod devices;
mod disk;
pub mod error;
mod events;
mod evict;
pub mod handle;
mod hosts;
mod images;
mod kernel;
mod known;
pub mod logs;
mod machine;
mod manager;
mod mount_points;
mod node;
mod node_labels;
mod node_object;
mod pace;
mod plugins;
mod pods;
mod preload;
mod probes;
pub mod providers;
mod register;
pub mod registries;
mod resolv;
mod rotate;
pub mod runtime;
mod sandbox;
pub mod server;
pub mod settings;
mod shelter;
mod signals;
pub mod sources;
mod stats;
mod status;
mod tokens;
pub mod volumes;
mod worker;

#[cfg(test)]
mod fuzz_tests;

use std::path::Path;
use std::sync::Arc;

use base::task::Group;

use crate::cgroups::Quotas;
use crate::config::Config;
use crate::error::Error;
use crate::handle::Handle;
use crate::node::Node;

/// Starts the container runtime, or finds the one that runs: the first half of the kubelet, so that images can be
/// imported before the first pod needs them.
///
/// Containers are left running when `group` stops, and adopted at the next start.
/// Errors: no containerd or runc on the machine, a folder that cannot be made.
pub async fn start_runtime(config: &Config, group: &Group) -> Result<runtime::Runtime, Error> {
    if config.settings.protect_kernel_defaults {
        kernel::check(Path::new("/proc/sys"))?;
    }
    kernel::fits(&config.settings)?;
    config.prepare_dirs()?;
    shelter::take();
    if let Some(places) = &config.registries {
        registries::prepare(places)?;
    }
    if let Some(dir) = &config.images_dir {
        preload::prepare(dir)?;
    }
    let started = runtime::start(config, group).await?;
    match config.settings.cgroup_driver.filter(|asked| *asked != started.cgroup_driver) {
        Some(_) => Err(Error::CgroupDriver { is: started.cgroup_driver }),
        None => Ok(started),
    }
}

/// Starts the kubelet on a runtime: the node object, then pods. Returns when pods are being taken.
///
/// Errors: no cgroup controllers.
pub async fn run(
    config: Config,
    runtime: runtime::Runtime,
    client: kube::Client,
    group: &Group,
) -> Result<Handle, Error> {
    let group = group.child("kubelet");
    let quotas = if config.settings.cpu_quota { Quotas::Set } else { Quotas::Unset };
    let cgroups = cgroups::Cgroups::prepare(runtime.cgroup_driver, quotas)?;
    let (node, inputs) = Node::new(config, client, runtime, cgroups, &group);
    let node = Arc::new(node);
    preload::start(Arc::clone(&node), &group);
    registries::follow::follow(Arc::clone(&node), &group);
    let pods = manager::start(Arc::clone(&node), inputs, &group).await;
    register::start(Arc::clone(&node), &group);
    plugins::start(Arc::clone(&node), &group);
    devices::start(&node, &pods, &group);
    images::gc::start(Arc::clone(&node), &group);
    evict::start(Arc::clone(&node), pods.clone(), &group);
    rotate::start(Arc::clone(&node), pods.clone(), &group);
    let log_watches = logs::watch::Watches::start(&group);
    Ok(Handle::new(node, pods, log_watches))
}
