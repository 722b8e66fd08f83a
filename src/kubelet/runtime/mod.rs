//! The way to containerd: finding and supervising it, calling it, and hearing from it.

pub mod containerd;

mod cni_results;

mod drop_ins;

mod version;

pub mod attachments;

mod leftovers;

mod settle;

pub mod cri;

pub mod driver;

pub mod events;

pub(crate) mod tasks;

pub(crate) mod catalog;

pub(crate) mod labels;

use std::collections::BTreeSet;
use std::path::PathBuf;

use base::task::Group;
use cri::{Cri, CriError};

use crate::config::{Config, RuntimeChoice};
use crate::error::Error;
use crate::runtime::driver::CgroupDriver;
use crate::shelter;

/// A running runtime.
#[derive(Clone)]
pub struct Runtime {
    /// The calls.
    pub cri: Cri,
    /// Its socket.
    pub socket: PathBuf,
    /// The maker of cgroups; the kubelet's parents must be named in its way.
    pub cgroup_driver: CgroupDriver,
    /// e.g. `containerd`.
    pub name: String,
    /// e.g. `1.6.20`.
    pub version: String,
    /// Features of the runtime beyond the common.
    pub features: k8s_cri::v1::RuntimeFeatures,
    /// Its handlers, the default one under the empty name; none where it does not say.
    pub handlers: Vec<k8s_cri::v1::RuntimeHandler>,
    /// The keeper of images' files, e.g. `overlayfs`.
    pub snapshotter: String,
    /// Whether lowering oom_score_adj is forbidden here (no CAP_SYS_RESOURCE).
    pub restrict_oom_score_adj: bool,
}

impl Runtime {
    /// Features of a handler.
    pub(crate) fn handler(&self, name: &str) -> k8s_cri::v1::RuntimeHandlerFeatures {
        self.handlers.iter().find(|h| h.name == name).and_then(|h| h.features).unwrap_or_default()
    }
}

impl Runtime {
    /// Names of all images that containerd has.
    ///
    /// Errors: containerd does not answer, or is none.
    pub async fn image_names(&self) -> Result<BTreeSet<String>, Error> {
        let listed = catalog::list(&self.socket)
            .await
            .map_err(|status| CriError { call: "list images", status: Box::new(status) })?;
        Ok(listed.into_keys().collect())
    }

    /// Keeps an image from being collected.
    ///
    /// Errors: there is no such image.
    pub async fn pin_image(&self, name: &str) -> Result<(), Error> {
        let pinned = catalog::pin(&self.socket, name).await;
        pinned.map_err(|status| CriError { call: "pin an image", status: Box::new(status) }.into())
    }
}

/// Starts or joins the runtime and waits until it answers.
pub async fn start(config: &Config, group: &Group) -> Result<Runtime, Error> {
    let socket = match &config.runtime {
        RuntimeChoice::Managed { root, state, snapshotter, default_runtime, nonroot_devices, drop_ins, of_pods } => {
            let places = containerd::Managed {
                root,
                state,
                snapshotter: snapshotter.as_deref(),
                default_runtime,
                nonroot_devices: *nonroot_devices,
                drop_ins,
                of_pods,
            };
            containerd::start(config, &places, group).await?
        }
        RuntimeChoice::Endpoint(endpoint) => PathBuf::from(endpoint.strip_prefix("unix://").unwrap_or(endpoint)),
    };
    let cri = Cri::connect(&socket);
    let version = cri.version().await?;
    let cgroup_driver = match cri.cgroup_driver().await? {
        Some(driver) => driver,
        None => containerd::cgroup_driver(),
    };
    let (features, handlers) = cri.features().await?;
    let snapshotter = cri.snapshotter().await?.unwrap_or_else(|| "overlayfs".to_owned());
    Ok(Runtime {
        snapshotter,
        features,
        handlers,
        cri,
        socket,
        cgroup_driver,
        name: version.runtime_name,
        version: version.runtime_version,
        restrict_oom_score_adj: !shelter::may_lower_oom_score(),
    })
}
