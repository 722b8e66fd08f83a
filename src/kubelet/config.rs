//! Arguments of the kubelet at its start. Only `cli.rs` of the root package reads flags; this is their result.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::IpAddr;
use std::path::PathBuf;

use base::files::create_private_dir;
use k8s_openapi::api::core::v1::Taint;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::error::Error;
use crate::runtime::driver::CgroupDriver;
use crate::settings::Settings;

/// Which container runtime to use.
#[derive(Clone, Debug)]
pub enum RuntimeChoice {
    /// containerd found on the search path, started and supervised by us.
    Managed {
        /// Images and containers, e.g. `<data-dir>/agent/containerd`.
        root: PathBuf,
        /// Socket and running state, e.g. `/run/kedge/<id>/containerd`; must be on a tmpfs.
        state: PathBuf,
        /// How images' files are kept; `None` is overlayfs where that works, else native.
        snapshotter: Option<String>,
        /// Handler of pods without a RuntimeClass.
        default_runtime: String,
        /// Devices belong to the user that a pod runs as, not to root.
        nonroot_devices: bool,
        /// Additions to containerd's configuration lie in folders of this one.
        drop_ins: PathBuf,
        /// Folders that containers write: no file there is configuration.
        of_pods: Vec<PathBuf>,
    },
    /// A CRI socket that somebody else serves, `unix:///…` or a path.
    Endpoint(String),
}

/// DNS names of a node, told in its status as addresses of the types `InternalDNS` and `ExternalDNS`.
#[derive(Clone, Debug, Default)]
pub struct NodeDns {
    /// Inside of the cluster's network.
    pub internal: Vec<String>,
    /// Outside of it.
    pub external: Vec<String>,
}

/// Everything the kubelet needs to know.
#[derive(Clone, Debug)]
pub struct Config {
    /// Name of the Node object.
    pub node_name: String,
    /// Host name shown as address and label `kubernetes.io/hostname`.
    pub hostname: String,
    /// Internal addresses as they are now, the first is the primary.
    pub node_ips: watch::Receiver<Vec<IpAddr>>,
    /// External addresses.
    pub node_external_ips: Vec<IpAddr>,
    /// Names to tell as addresses.
    pub node_dns: NodeDns,
    /// Port of the kubelet's HTTPS server, told in the Node's status.
    pub port: u16,
    /// Pods' volumes and plugins, as `/var/lib/kubelet` upstream.
    pub root_dir: PathBuf,
    /// Container logs, `/var/log/pods` upstream.
    pub log_dir: PathBuf,
    /// Folder of static pod manifests.
    pub manifest_dir: Option<PathBuf>,
    /// The runtime of containers.
    pub runtime: RuntimeChoice,
    /// Where containerd, runc and what they call are looked up.
    pub search_path: OsString,
    /// The place that the runtime comes from, for people.
    pub runtime_from: String,
    /// Image of the sandbox's first process.
    pub pause_image: String,
    /// CNI plugins.
    pub cni_bin_dir: PathBuf,
    /// CNI network lists.
    pub cni_conf_dir: PathBuf,
    /// Where registries are described; `None` where somebody else runs the runtime.
    pub registries: Option<crate::registries::places::Places>,
    /// Folder of images to bring in; `None` where somebody else runs the runtime.
    pub images_dir: Option<PathBuf>,
    /// Addresses of the cluster's DNS service.
    pub cluster_dns: Vec<IpAddr>,
    /// e.g. `cluster.local`.
    pub cluster_domain: String,
    /// The resolv.conf that pods inherit from; `None` is `/etc/resolv.conf`.
    pub resolv_conf: Option<PathBuf>,
    /// Labels at registration.
    pub labels: BTreeMap<String, String>,
    /// Taints at registration.
    pub taints: Vec<Taint>,
    /// Settings that an operator may tune.
    pub settings: Settings,
}

impl Config {
    /// The internal addresses as the API spells them.
    pub(crate) fn internal_ips(&self) -> Vec<String> {
        self.node_ips.borrow().iter().map(ToString::to_string).collect()
    }

    /// The settings in force, in the words of upstream's KubeletConfiguration.
    pub(crate) fn configz(&self, driver: CgroupDriver) -> Value {
        let mut shown = self.settings.in_force();
        shown.extend([
            ("kind".to_owned(), json!("KubeletConfiguration")),
            ("apiVersion".to_owned(), json!("kubelet.config.k8s.io/v1beta1")),
            ("staticPodPath".to_owned(), json!(self.manifest_dir)),
            ("podLogsDir".to_owned(), json!(self.log_dir)),
            ("port".to_owned(), json!(self.port)),
            ("clusterDomain".to_owned(), json!(self.cluster_domain)),
            ("clusterDNS".to_owned(), json!(self.cluster_dns)),
            ("resolvConf".to_owned(), json!(self.resolv_conf)),
            ("cgroupDriver".to_owned(), json!(if driver == CgroupDriver::Systemd { "systemd" } else { "cgroupfs" })),
        ]);
        json!({"kubeletconfig": shown})
    }

    pub(crate) fn prepare_dirs(&self) -> Result<(), Error> {
        create_private_dir(&self.root_dir)?;
        for dir in ["pods", "plugins", "plugins_registry", "device-plugins", "pod-resources"] {
            create_private_dir(&self.root_dir.join(dir))?;
        }
        std::fs::create_dir_all(&self.log_dir)
            .map_err(base::files::FileError::at("cannot create directory", &self.log_dir))?;
        Ok(())
    }
}
