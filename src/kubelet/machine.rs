//! The machine: its size, and how much of it is free, as the kernel tells.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::config::Config;
use crate::disk::Disk;

/// The size of the machine.
#[derive(Clone, Debug)]
pub(crate) struct Machine {
    pub(crate) cpus: i64,
    pub(crate) memory: i64,
    pub(crate) storage: i64,
    /// Bytes in huge pages by resource name, e.g. `hugepages-2Mi`.
    pub(crate) huge: BTreeMap<String, i64>,
    pub(crate) has_apparmor: bool,
}

impl Machine {
    pub(crate) fn look(config: &Config) -> Machine {
        let storage = Disk::of(&config.root_dir).map_or(0, |d| d.capacity);
        Machine {
            cpus: std::thread::available_parallelism().map_or(1, |n| i64::try_from(n.get()).unwrap_or(1)),
            memory: crate::machine::memory_of_machine(),
            storage: i64::try_from(storage).unwrap_or(i64::MAX),
            huge: huge_pages(),
            has_apparmor: crate::machine::has_apparmor(),
        }
    }
}

/// `/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages`.
fn huge_pages() -> BTreeMap<String, i64> {
    let mut found = BTreeMap::new();
    for dir in std::fs::read_dir("/sys/kernel/mm/hugepages").into_iter().flatten().flatten() {
        let name = dir.file_name().to_string_lossy().into_owned();
        let Some(kib) = name.strip_prefix("hugepages-").and_then(|n| n.strip_suffix("kB")?.parse::<i64>().ok()) else {
            continue;
        };
        let pages =
            std::fs::read_to_string(dir.path().join("nr_hugepages")).ok().and_then(|n| n.trim().parse::<i64>().ok());
        let size = if kib % (1 << 20) == 0 {
            format!("{}Gi", kib >> 20)
        } else if kib % 1024 == 0 {
            format!("{}Mi", kib >> 10)
        } else {
            format!("{kib}Ki")
        };
        found.insert(format!("hugepages-{size}"), pages.unwrap_or(0) * kib * 1024);
    }
    found
}

/// `MemAvailable` of the machine in bytes.
pub(crate) fn memory_available() -> i64 {
    meminfo("MemAvailable:")
}

/// `MemTotal` of the machine in bytes, 0 where the kernel does not say.
pub(crate) fn memory_of_machine() -> i64 {
    Some(meminfo("MemTotal:")).filter(|bytes| *bytes < i64::MAX).unwrap_or(0)
}

/// `SwapTotal` of the machine in bytes.
pub(crate) fn swap_of_machine() -> i64 {
    Some(meminfo("SwapTotal:")).filter(|bytes| *bytes < i64::MAX).unwrap_or(0)
}

/// How many processes and threads the machine can have: the less of two settings, on a small machine that of threads,
/// which goes by its memory. Upstream's `pidlimit` (pkg/kubelet/stats/pidlimit/pidlimit_linux.go v1.36).
pub(crate) fn processes_max() -> Option<u64> {
    let of = |file: &str| fs::read_to_string(Path::new("/proc/sys/kernel").join(file)).ok()?.trim().parse().ok();
    ["pid_max", "threads-max"].into_iter().filter_map(of).min()
}

/// How many it has.
pub(crate) fn processes_running() -> Option<u64> {
    fs::read_to_string("/proc/loadavg").ok()?.split(' ').nth(3)?.split_once('/')?.1.parse().ok()
}

pub(crate) fn meminfo(field: &str) -> i64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(field));
    line.and_then(|l| l.split_whitespace().next())
        .and_then(|n| n.parse::<i64>().ok())
        .map_or(i64::MAX, |kib| kib.saturating_mul(1024))
}

pub(crate) fn has_apparmor() -> bool {
    let enabled = fs::read_to_string("/sys/module/apparmor/parameters/enabled").is_ok_and(|text| text.starts_with('Y'));
    enabled && Path::new("/sys/kernel/security/apparmor").exists() && Path::new("/sbin/apparmor_parser").exists()
}
