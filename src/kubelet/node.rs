//! The context that all parts of the kubelet share.

use base::rng::Rng;
use base::task::Group;
use base::time::Clock;
use client::informer::Informers;
use tokio::sync::mpsc;

use crate::capacity::Capacity;
use crate::cgroups::Cgroups;
use crate::config::Config;
use crate::container::fields::Surroundings;
use crate::csi::Csi;
use crate::devices::registry::Devices;
use crate::disk::Disks;
use crate::events::Recorder;
use crate::images::pulls::Pulls;
use crate::known::Known;
use crate::machine::Machine;
use crate::node_object::NodeObject;
use crate::pace::Pace;
use crate::pods::admission::Host;
use crate::preload::ready::Ready;
use crate::probes::counts::ProbeCounts;
use crate::registries::Registries;
use crate::runtime::Runtime;
use crate::signals::Signals;
use crate::stats::rates::Rates;
use crate::tokens::Tokens;
use crate::volumes::refs::{Ref, Refs};

/// The shared context; one value for the process.
pub(crate) struct Node {
    pub(crate) config: Config,
    pub(crate) client: kube::Client,
    pub(crate) own: NodeObject,
    pub(crate) runtime: Runtime,
    pub(crate) cgroups: Cgroups,
    pub(crate) clock: Clock,
    pub(crate) rng: Rng,
    pub(crate) events: Recorder,
    pub(crate) refs: Refs,
    pub(crate) tokens: Tokens,
    /// The API server's last answers about objects that containers are made of.
    pub(crate) known: Known,
    /// Drivers of volumes, and volumes in use.
    pub(crate) csi: Csi,
    /// Devices of plugins.
    pub(crate) devices: Devices,
    pub(crate) pulls: Pulls,
    pub(crate) registries: Registries,
    /// Whether the images of the folder are in.
    pub(crate) preload: Ready,
    pub(crate) machine: Machine,
    pub(crate) group: Group,
    pub(crate) stats: Counters,
    pub(crate) signals: Signals,
    pub(crate) disks: Disks,
}

/// Counters of the process, for whoever reads its statistics.
#[derive(Default)]
pub(crate) struct Counters {
    /// CPU time that was seen last.
    pub(crate) rates: Rates,
    /// Tries of probes.
    pub(crate) probes: ProbeCounts,
}

/// Receivers of the event loop of pods.
pub(crate) struct Inputs {
    pub(crate) informers: Informers,
    /// Objects that pods use and that have changed.
    pub(crate) ref_changes: mpsc::Receiver<Ref>,
}

impl Node {
    pub(crate) fn new(
        config: Config,
        client: kube::Client,
        runtime: Runtime,
        cgroups: Cgroups,
        group: &Group,
    ) -> (Node, Inputs) {
        let (clock, rng) = (group.clock().clone(), group.rng().clone());
        let (refs, changes) = Refs::new(client.clone(), group);
        let informers = Informers::new(client.clone(), group);
        let node = Node {
            events: Recorder::start(
                client.clone(),
                &config.node_name,
                Pace::new(config.settings.event_qps, config.settings.event_burst),
                group,
            ),
            own: NodeObject::new(&informers, &config.node_name),
            machine: Machine::look(&config),
            refs,
            tokens: Tokens::default(),
            known: Known::new(client.clone()),
            csi: Csi::new(&config.root_dir),
            devices: Devices::new(&config.root_dir),
            pulls: Pulls::new(
                &config.root_dir,
                config.settings.parallel_pulls(),
                Pace::new(config.settings.pull_qps, config.settings.pull_burst),
                &rng,
            ),
            registries: Registries::default(),
            preload: Ready::default(),
            rng,
            group: group.clone(),
            stats: Counters::default(),
            signals: Signals::default(),
            disks: Disks::new(&config.root_dir),
            config,
            client,
            runtime,
            cgroups,
            clock,
        };
        (node, Inputs { informers, ref_changes: changes })
    }

    /// The node and a pod's addresses, as the downward API tells of them.
    pub(crate) fn surroundings(&self, pod_ips: Vec<String>) -> Surroundings {
        let allocatable = self.capacity().allocatable();
        let of = |name: &str| allocatable.get(name).copied().unwrap_or(0);
        Surroundings {
            host_ips: self.config.internal_ips(),
            pod_ips,
            cpu_allocatable_milli: of("cpu"),
            memory_allocatable: of("memory"),
            storage_allocatable: of("ephemeral-storage"),
        }
    }

    /// Resources of the machine.
    pub(crate) fn capacity(&self) -> Capacity<'_> {
        Capacity { settings: &self.config.settings, machine: &self.machine, devices: &self.devices, own: &self.own }
    }

    /// Holds all pods together to what is not set aside for the system.
    pub(crate) fn enforce_allocatable(&self) {
        let (milli, bytes, pids) = self.capacity().of_pods();
        self.cgroups.enforce(milli, bytes, pids);
    }

    /// The node as a pod meets it that wants to run here.
    pub(crate) fn host(&self) -> Host<'_> {
        let object = self.own.object();
        let labels = object
            .as_ref()
            .and_then(|n| n.metadata.labels.clone())
            .unwrap_or_else(|| crate::node_labels::labels(&self.config));
        let taints = object.as_ref().and_then(|n| n.spec.as_ref()?.taints.clone()).unwrap_or_default();
        Host {
            name: &self.config.node_name,
            labels,
            taints,
            allocatable: self.capacity().allocatable(),
            settings: &self.config.settings,
            pressure: self.signals.pressure(),
            has_apparmor: self.machine.has_apparmor,
            strict_groups: self.runtime.features.supplemental_groups_policy,
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::runtime::driver::CgroupDriver;
    use std::collections::BTreeMap;
    use std::path::Path;

    use nix::mount::{MsFlags, mount};

    use super::*;
    use crate::config::RuntimeChoice;
    use crate::runtime::cri::Cri;
    use crate::settings::Settings;

    type Answer = Result<http::Response<kube::client::Body>, std::io::Error>;

    /// A node whose API never answers, and whose runtime is never asked.
    fn quiet(dir: &Path, settings: Settings, group: &Group) -> Node {
        let config = Config {
            node_name: "n".to_owned(),
            hostname: "n".to_owned(),
            node_ips: tokio::sync::watch::channel(Vec::new()).1,
            node_external_ips: Vec::new(),
            node_dns: Default::default(),
            port: 10250,
            root_dir: dir.join("kubelet"),
            log_dir: dir.join("logs"),
            manifest_dir: None,
            runtime: RuntimeChoice::Endpoint(String::new()),
            search_path: Default::default(),
            runtime_from: String::new(),
            pause_image: String::new(),
            cni_bin_dir: dir.join("bin"),
            cni_conf_dir: dir.join("net.d"),
            registries: None,
            images_dir: None,
            cluster_dns: Vec::new(),
            cluster_domain: "cluster.local".to_owned(),
            resolv_conf: None,
            labels: BTreeMap::new(),
            taints: Vec::new(),
            settings,
        };
        let runtime = Runtime {
            cri: Cri::connect(&dir.join("sock")),
            socket: dir.join("sock"),
            cgroup_driver: CgroupDriver::Cgroupfs,
            name: String::new(),
            version: String::new(),
            features: Default::default(),
            handlers: Vec::new(),
            snapshotter: String::new(),
            restrict_oom_score_adj: false,
        };
        let silent = tower::service_fn(|_: http::Request<kube::client::Body>| std::future::pending::<Answer>());
        Node::new(config, kube::Client::new(silent, "default"), runtime, Cgroups::of_tests(), group).0
    }

    // A fork bomb in each of many pods, and nobody could start the process that ends them.
    #[tokio::test]
    async fn pods_together_leave_an_eighth_of_the_processes_to_the_machine() {
        // In a mount namespace of its own, where the hierarchy is a folder.
        let test = "node::tests::pods_together_leave_an_eighth_of_the_processes_to_the_machine";
        if !base::unshared::in_own_namespace(test, &[]).unwrap() {
            return;
        }
        let hierarchy = Path::new("/sys/fs/cgroup");
        mount(Some("none"), hierarchy, Some("tmpfs"), MsFlags::empty(), None::<&str>).unwrap();
        std::fs::create_dir(hierarchy.join("kubepods")).unwrap();
        let (dir, (group, _fatal)) = (tempfile::tempdir().unwrap(), Group::root("test"));
        let held = |words: &[&str]| {
            let settings = Settings::parse(words.iter().copied()).unwrap();
            quiet(dir.path(), settings, &group).enforce_allocatable();
            std::fs::read_to_string(hierarchy.join("kubepods/pids.max")).unwrap().trim().parse::<i64>().unwrap()
        };
        let all = i64::try_from(crate::machine::processes_max().unwrap()).unwrap();
        let left = all - (all / 8).min(1024);
        assert!(left < all);
        assert_eq!(held(&[]), left);
        assert_eq!(
            held(&["enforce-node-allocatable=none"]),
            left,
            "whatever is asked for, somebody must be able to end them"
        );
        assert_eq!(held(&["kube-reserved=pid=100"]), left - 100);
        group.shutdown().await;
    }
}
