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
    /// The caller's PATH: containerd and runc are looked up there.
    pub search_path: OsString,
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
        let s = &self.settings;
        let hard: serde_json::Map<String, Value> =
            s.eviction_hard.iter().map(|(name, at)| (name.clone(), json!(at.to_string()))).collect();
        let secs = |d: std::time::Duration| format!("{}s", d.as_secs());
        json!({"kubeletconfig": {
            "kind": "KubeletConfiguration",
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "staticPodPath": self.manifest_dir,
            "port": self.port,
            "clusterDomain": self.cluster_domain,
            "clusterDNS": self.cluster_dns,
            "cgroupDriver": if driver == CgroupDriver::Systemd { "systemd" } else { "cgroupfs" },
            "cgroupsPerQOS": true,
            "maxPods": s.max_pods,
            "podsPerCore": s.pods_per_core,
            "podPidsLimit": s.pod_max_pids.unwrap_or(-1),
            "resolvConf": self.resolv_conf,
            "imageGCHighThresholdPercent": s.image_gc_high_percent,
            "imageGCLowThresholdPercent": s.image_gc_low_percent,
            "serializeImagePulls": s.parallel_pulls == 1,
            "maxParallelImagePulls": s.parallel_pulls,
            "imageMinimumGCAge": secs(s.image_age_min),
            "evictionHard": hard,
            "kernelMemcgNotification": s.memory_alarm,
            "enforceNodeAllocatable": if s.enforce_allocatable { ["pods"] } else { ["none"] },
            "evictionPressureTransitionPeriod": secs(s.pressure_transition),
            "containerLogMaxSize": s.log_bytes_max.to_string(),
            "containerLogMaxFiles": s.log_files_max,
            "allowedUnsafeSysctls": s.unsafe_sysctls,
            "authentication": {"x509": {}, "webhook": {"enabled": true}, "anonymous": {"enabled": false}},
            "authorization": {"mode": "Webhook"},
        }})
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
