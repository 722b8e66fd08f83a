//! The context that all parts of the kubelet share.

use base::sync::Mutex;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use base::rng::Rng;
use base::task::Group;
use base::time::{Clock, Stopwatch};
use client::informer::{Informer, Informers};
use k8s_openapi::api::core::v1::Node as ApiNode;
use tokio::sync::mpsc;

use crate::cgroups::Cgroups;
use crate::config::Config;
use crate::container::fields::Surroundings;
use crate::csi::Csi;
use crate::devices::registry::Devices;
use crate::disk::{Disk, Measures};
use crate::events::Recorder;
use crate::images::pulls::Pulls;
use crate::known::Known;
use crate::logs;
use crate::machine::Machine;
use crate::pods::admission::Host;
use crate::preload::ready::Ready;
use crate::probes::counts::ProbeCounts;
use crate::registries::Registries;
use crate::runtime::Runtime;
use crate::stats::rates::Rates;
use crate::tokens::Tokens;
use crate::volumes::refs::{Ref, Refs};

/// The shared context; one value for the process.
pub(crate) struct Node {
    pub(crate) config: Config,
    pub(crate) client: kube::Client,
    pub(crate) informers: Informers,
    /// The Node object as the API has it: labels and taints that people set count.
    pub(crate) own: Informer<ApiNode>,
    pub(crate) runtime: Runtime,
    pub(crate) cgroups: Cgroups,
    pub(crate) clock: Clock,
    pub(crate) rng: Rng,
    pub(crate) events: Recorder,
    pub(crate) refs: Refs,
    pub(crate) ref_changes: Mutex<Option<mpsc::Receiver<Ref>>>,
    pub(crate) tokens: Tokens,
    /// What the API server said last of the objects that containers are made of.
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
    /// Of the Node object when it was registered last.
    pub(crate) registered: Mutex<Option<String>>,
    pub(crate) rates: Rates,
    pub(crate) probe_counts: ProbeCounts,
    /// Conditions of pressure that hold now.
    pub(crate) pressure: Mutex<Vec<String>>,
    /// When the runtime answered last.
    pub(crate) runtime_heard: Mutex<Option<Stopwatch>>,
    /// Where the runtime keeps images, once it has told.
    pub(crate) image_dir: OnceLock<PathBuf>,
    /// What volumes hold.
    pub(crate) measures: Measures,
    /// Logs that somebody follows.
    pub(crate) log_watches: logs::watch::Watches,
}

/// No machine keeps more from its pods unless it is told to.
const SYSTEM_BYTES_MAX: i64 = 256 << 20;
/// Pods leave an eighth of the machine's processes to the system, and no more than this: without one nobody can end a
/// fork bomb.
const PIDS_KEPT_MAX: i64 = 1024;

impl Node {
    pub(crate) fn new(config: Config, client: kube::Client, runtime: Runtime, cgroups: Cgroups, group: &Group) -> Node {
        let clock = Clock::system();
        let (refs, changes) = Refs::new(client.clone(), group);
        let informers = Informers::new(client.clone(), group);
        Node {
            events: Recorder::start(client.clone(), &config.node_name, group),
            own: informers.selected(&format!("metadata.name={}", config.node_name)),
            machine: Machine::look(&config),
            refs,
            ref_changes: Mutex::new(Some(changes)),
            tokens: Tokens::default(),
            known: Known::new(client.clone()),
            csi: Csi::new(&config.root_dir),
            devices: Devices::new(&config.root_dir),
            pulls: Pulls::new(&config.root_dir, config.settings.parallel_pulls, &Rng::from_os()),
            registries: Registries::default(),
            preload: Ready::default(),
            rng: Rng::from_os(),
            group: group.clone(),
            registered: Mutex::default(),
            rates: Rates::default(),
            probe_counts: ProbeCounts::default(),
            pressure: Mutex::default(),
            runtime_heard: Mutex::default(),
            image_dir: OnceLock::new(),
            measures: Measures::default(),
            log_watches: logs::watch::Watches::start(group),
            informers,
            config,
            client,
            runtime,
            cgroups,
            clock,
        }
    }

    /// What the downward API says of the node and of a pod's addresses.
    pub(crate) fn surroundings(&self, pod_ips: Vec<String>) -> Surroundings {
        let allocatable = self.allocatable();
        let of = |name: &str| allocatable.get(name).copied().unwrap_or(0);
        Surroundings {
            host_ips: self.config.internal_ips(),
            pod_ips,
            cpu_allocatable_milli: of("cpu"),
            memory_allocatable: of("memory"),
            storage_allocatable: of("ephemeral-storage"),
        }
    }

    /// The Node object, when it was seen.
    pub(crate) fn object(&self) -> Option<Arc<ApiNode>> {
        self.own.get("", &self.config.node_name)
    }

    /// The uid of the Node object: a Node that was deleted and made anew has another.
    pub(crate) fn uid(&self) -> Option<String> {
        newest_uid(self.object().as_deref(), self.registered.lock().as_deref())
    }

    /// What the machine has: CPU in milli-units, the rest in bytes or pieces.
    pub(crate) fn capacity(&self) -> BTreeMap<String, i64> {
        let machine = &self.machine;
        let mut all: BTreeMap<String, i64> = [
            ("cpu", machine.cpus * 1000),
            ("memory", machine.memory),
            ("ephemeral-storage", machine.storage),
            ("pods", i64::from(self.config.settings.pods_max(machine.cpus))),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into();
        all.extend(machine.huge.clone());
        all.extend(self.devices.amounts().into_iter().map(|(name, (all, _))| (name, all)));
        all
    }

    /// What pods may use of it: less what is set aside for the system and what eviction keeps free. Resources that
    /// somebody else advertises on the Node object pass as they are.
    pub(crate) fn allocatable(&self) -> BTreeMap<String, i64> {
        let settings = &self.config.settings;
        let kept = |signal: &str, capacity: i64| {
            let threshold =
                settings.eviction_hard.get(signal).map_or(0, |t| t.of(u64::try_from(capacity).unwrap_or(0)));
            i64::try_from(threshold).unwrap_or(i64::MAX)
        };
        let mut all = self.capacity();
        let huge: i64 = self.machine.huge.values().sum();
        for (name, value) in &mut all {
            let aside = match name.as_str() {
                "memory" => kept("memory.available", *value) + huge,
                "ephemeral-storage" => kept("nodefs.available", *value),
                _ => 0,
            };
            *value = value.saturating_sub(aside).saturating_sub(settings.reserved_of(name)).max(0);
        }
        all.extend(self.extended());
        all.extend(self.devices.amounts().into_iter().map(|(name, (_, healthy))| (name, healthy)));
        all
    }

    /// Holds all pods together to what is not set aside for the system.
    pub(crate) fn enforce_allocatable(&self) {
        let pids_max = crate::machine::processes_max().and_then(|max| i64::try_from(max).ok());
        let pids = pids_max.map(|max| self.left_of("pid", max.saturating_sub((max / 8).min(PIDS_KEPT_MAX))));
        self.cgroups.enforce(self.left_of("cpu", self.machine.cpus * 1000), self.memory_of_pods(), pids);
    }

    /// The limit of all pods together, in bytes. The Node's allocatable memory, by which pods are placed, is
    /// upstream's: only what is set aside in so many words lowers it.
    pub(crate) fn memory_of_pods(&self) -> i64 {
        let (settings, machine) = (&self.config.settings, self.machine.memory);
        if settings.enforce_allocatable && settings.reserved_of("memory") == 0 {
            return machine.saturating_sub(system_needs(machine));
        }
        self.left_of("memory", machine)
    }

    fn left_of(&self, name: &str, all: i64) -> i64 {
        let settings = &self.config.settings;
        if settings.enforce_allocatable { all.saturating_sub(settings.reserved_of(name)).max(0) } else { all }
    }

    /// Resources with a domain of their own in the Node's capacity, e.g. `example.com/dongle`, that no plugin here has.
    pub(crate) fn extended(&self) -> BTreeMap<String, i64> {
        let object = self.object();
        let capacity = object.iter().flat_map(|n| n.status.iter()).flat_map(|s| s.capacity.iter().flatten());
        let ours = self.devices.amounts();
        let foreign = capacity
            .filter(|(name, _)| name.split_once('/').is_some_and(|(domain, _)| !domain.ends_with("kubernetes.io")))
            .filter(|(name, _)| !ours.contains_key(*name));
        foreign.map(|(name, quantity)| (name.clone(), crate::cgroups::parse(quantity).value())).collect()
    }

    /// What a pod that wants to run here meets.
    pub(crate) fn host(&self) -> Host<'_> {
        let object = self.object();
        let labels = object
            .as_ref()
            .and_then(|n| n.metadata.labels.clone())
            .unwrap_or_else(|| crate::node_labels::labels(&self.config));
        let taints = object.as_ref().and_then(|n| n.spec.as_ref()?.taints.clone()).unwrap_or_default();
        Host {
            name: &self.config.node_name,
            labels,
            taints,
            allocatable: self.allocatable(),
            settings: &self.config.settings,
            pressure: self.pressure.lock().clone(),
            has_apparmor: self.machine.has_apparmor,
            strict_groups: self.runtime.features.supplemental_groups_policy,
        }
    }

    /// The file system of pods' volumes and logs.
    pub(crate) fn disk(&self) -> Option<Disk> {
        Disk::of(&self.config.root_dir)
    }

    /// The file system of images.
    pub(crate) fn image_disk(&self) -> Option<Disk> {
        Disk::of(self.image_dir.get().unwrap_or(&self.config.root_dir))
    }
}

/// The uid that the Node has now. While none is shown it is the one of the last registration: the list may be behind.
fn newest_uid(shown: Option<&ApiNode>, registered: Option<&str>) -> Option<String> {
    shown.and_then(|object| object.metadata.uid.as_deref()).or(registered).map(str::to_owned)
}

/// Bytes that no pod gets where nobody has set any aside: what is kept for kedge and containerd (`shelter.rs`), and
/// something for the kernel and its services. Where pods may take all memory the kernel finds some cache to drop again
/// and again, kills nobody, and the machine stands still.
fn system_needs(machine: i64) -> i64 {
    (machine / 16).saturating_mul(5).min(SYSTEM_BYTES_MAX)
}

#[cfg(test)]
mod tests {
    use crate::runtime::driver::CgroupDriver;
    use std::path::Path;

    use nix::mount::{MsFlags, mount};

    use super::*;
    use crate::config::RuntimeChoice;
    use crate::runtime::cri::Cri;
    use crate::settings::Settings;

    #[test]
    fn pods_together_never_get_all_memory() {
        let mib = |n: i64| n << 20;
        assert_eq!(
            (system_needs(mib(480)), system_needs(mib(1024)), system_needs(mib(65_536))),
            (mib(150), mib(256), mib(256))
        );
    }

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
        Node::new(config, kube::Client::new(silent, "default"), runtime, Cgroups::of_tests(), group)
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

    // review node.md L1: mirror pods and the lease named the owner that was there at the start, and went with it
    #[test]
    fn a_node_that_was_made_anew_has_another_uid() {
        let node: ApiNode =
            serde_json::from_value(serde_json::json!({"metadata": {"name": "n", "uid": "second"}})).unwrap();
        assert_eq!(newest_uid(Some(&node), Some("first")).as_deref(), Some("second"));
        assert_eq!(newest_uid(None, Some("third")).as_deref(), Some("third"));
        assert_eq!(newest_uid(None, None), None);
    }
}
