//! What all parts of the kubelet share.

use std::collections::HashMap;
use std::sync::{Mutex, OnceLock, PoisonError};

use base::rng::Rng;
use base::task::Group;
use base::time::Clock;
use jiff::Timestamp;
use tokio::sync::mpsc;

use crate::cgroups::Cgroups;
use crate::config::Config;
use crate::container::fields::Surroundings;
use crate::events::Recorder;
use crate::images::Pulls;
use crate::runtime::Runtime;
use crate::volumes::refs::{Ref, Refs};

/// The shared context; one value for the process.
pub(crate) struct Node {
    pub(crate) config: Config,
    pub(crate) client: kube::Client,
    pub(crate) runtime: Runtime,
    pub(crate) cgroups: Cgroups,
    pub(crate) clock: Clock,
    pub(crate) rng: Rng,
    pub(crate) events: Recorder,
    pub(crate) refs: Refs,
    pub(crate) ref_changes: Mutex<Option<mpsc::Receiver<Ref>>>,
    pub(crate) tokens: Tokens,
    pub(crate) pulls: Pulls,
    pub(crate) machine: Machine,
    pub(crate) group: Group,
    /// Set with the node object: events about the node carry its uid.
    pub(crate) node_uid: OnceLock<String>,
}

/// What the machine has.
#[derive(Clone, Debug)]
pub(crate) struct Machine {
    pub(crate) cpus: i64,
    pub(crate) memory: i64,
    pub(crate) storage: i64,
}

impl Node {
    pub(crate) fn new(config: Config, client: kube::Client, runtime: Runtime, cgroups: Cgroups, group: &Group) -> Node {
        let clock = Clock::system();
        let (refs, changes) = Refs::new(client.clone(), group);
        Node {
            events: Recorder::start(client.clone(), clock.clone(), &config.node_name, group),
            machine: Machine::look(&config),
            refs,
            ref_changes: Mutex::new(Some(changes)),
            tokens: Tokens::default(),
            pulls: Pulls::default(),
            rng: Rng::from_os(),
            group: group.clone(),
            node_uid: OnceLock::new(),
            config,
            client,
            runtime,
            cgroups,
            clock,
        }
    }

    /// What the downward API says of the node and of a pod's addresses.
    pub(crate) fn surroundings(&self, pod_ips: Vec<String>) -> Surroundings {
        Surroundings {
            host_ips: self.config.node_ips.iter().map(ToString::to_string).collect(),
            pod_ips,
            cpu_allocatable_milli: self.machine.cpus * 1000,
            memory_allocatable: self.machine.memory,
            storage_allocatable: self.machine.storage,
        }
    }
}

impl Machine {
    fn look(config: &Config) -> Machine {
        let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let total = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"));
        let kib: i64 = total.and_then(|l| l.split_whitespace().next()).and_then(|n| n.parse().ok()).unwrap_or(0);
        let storage = rustix::fs::statvfs(&config.root_dir).map_or(0, |s| s.f_blocks.saturating_mul(s.f_frsize));
        Machine {
            cpus: std::thread::available_parallelism().map_or(1, |n| i64::try_from(n.get()).unwrap_or(1)),
            memory: kib * 1024,
            storage: i64::try_from(storage).unwrap_or(i64::MAX),
        }
    }
}

/// Tokens of projected volumes, kept until they must be renewed.
#[derive(Default)]
pub(crate) struct Tokens(Mutex<HashMap<String, (String, Timestamp)>>);

impl Tokens {
    /// The token of a volume's file, unless its time has come.
    pub(crate) fn get(&self, key: &str, now: Timestamp) -> Option<(String, Timestamp)> {
        let map = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        map.get(key).filter(|(_, refresh_at)| now < *refresh_at).cloned()
    }

    pub(crate) fn keep(&self, key: String, token: String, refresh_at: Timestamp) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(key, (token, refresh_at));
    }

    /// Forgets the tokens of a pod.
    pub(crate) fn forget(&self, pod_dir: &std::path::Path) {
        let prefix = pod_dir.display().to_string();
        self.0.lock().unwrap_or_else(PoisonError::into_inner).retain(|key, _| !key.starts_with(&prefix));
    }
}
