//! Figures of a cgroup and of a network namespace as the kernel tells them: v1 and v2 in one form.

use std::fs;
use std::path::Path;

use crate::cgroups::{Cgroups, Hierarchy};

/// The use of one cgroup. What the kernel does not tell is absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) cpu_nanos: Option<u64>,
    pub(crate) memory: Option<u64>,
    pub(crate) working_set: Option<u64>,
    pub(crate) rss: Option<u64>,
    pub(crate) page_faults: Option<u64>,
    pub(crate) major_page_faults: Option<u64>,
    pub(crate) pids: Option<u64>,
    pub(crate) throttled_periods: Option<u64>,
    pub(crate) periods: Option<u64>,
}

fn number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// A file of `key value` lines.
struct Keyed(String);

impl Keyed {
    /// Empty if there is none.
    fn read(path: &Path) -> Keyed {
        Keyed(fs::read_to_string(path).unwrap_or_default())
    }

    fn get(&self, key: &str) -> Option<u64> {
        self.0.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')?.trim().parse().ok())
    }
}

/// Reads a group of a hierarchy; `dir` gives a controller's folder.
pub(crate) fn group(hierarchy: Hierarchy, dir: impl Fn(&str) -> std::path::PathBuf) -> Usage {
    let memory_dir = dir("memory");
    let stat = Keyed::read(&memory_dir.join("memory.stat"));
    let cpu_stat = Keyed::read(&dir("cpu").join("cpu.stat"));
    let (memory, inactive, rss, faults, major) = match hierarchy {
        Hierarchy::Unified => ("memory.current", "inactive_file", "anon", "pgfault", "pgmajfault"),
        Hierarchy::Legacy => {
            ("memory.usage_in_bytes", "total_inactive_file", "total_rss", "total_pgfault", "total_pgmajfault")
        }
    };
    let memory = number(&memory_dir.join(memory));
    Usage {
        cpu_nanos: match hierarchy {
            Hierarchy::Unified => cpu_stat.get("usage_usec").map(|usec| usec.saturating_mul(1000)),
            Hierarchy::Legacy => number(&dir("cpuacct").join("cpuacct.usage")),
        },
        memory,
        // What could be dropped at once does not count as used.
        working_set: memory.map(|bytes| bytes.saturating_sub(stat.get(inactive).unwrap_or(0))),
        rss: stat.get(rss),
        page_faults: stat.get(faults),
        major_page_faults: stat.get(major),
        pids: number(&dir("pids").join("pids.current")),
        throttled_periods: cpu_stat.get("nr_throttled"),
        periods: cpu_stat.get("nr_periods"),
    }
}

/// Any process of a group and the groups under it: the way into a pod's namespaces.
pub(crate) fn any_pid(dir: &Path) -> Option<u32> {
    let text = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
    if let Some(pid) = text.lines().next().and_then(|line| line.parse().ok()) {
        return Some(pid);
    }
    let dirs = fs::read_dir(dir).ok()?.flatten().filter(|e| e.file_type().is_ok_and(|t| t.is_dir()));
    dirs.into_iter().find_map(|e| any_pid(&e.path()))
}

/// One network interface's counters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Interface {
    pub(crate) name: String,
    pub(crate) rx_bytes: u64,
    pub(crate) rx_errors: u64,
    pub(crate) tx_bytes: u64,
    pub(crate) tx_errors: u64,
}

/// The interfaces of a process's network, without loopback.
pub(crate) fn interfaces(pid: Option<u32>) -> Vec<Interface> {
    let path = pid.map_or("/proc/net/dev".to_owned(), |pid| format!("/proc/{pid}/net/dev"));
    parse_dev(&fs::read_to_string(path).unwrap_or_default())
}

pub(crate) fn parse_dev(text: &str) -> Vec<Interface> {
    let parse = |line: &str| {
        let (name, rest) = line.split_once(':')?;
        let fields: Vec<u64> = rest.split_whitespace().filter_map(|n| n.parse().ok()).collect();
        let [rx_bytes, _, rx_errors, _, _, _, _, _, tx_bytes, _, tx_errors, ..] = fields[..] else { return None };
        let name = name.trim().to_owned();
        (name != "lo").then_some(Interface { name, rx_bytes, rx_errors, tx_bytes, tx_errors })
    };
    text.lines().filter_map(parse).collect()
}

/// A pod's own group.
pub(crate) fn pod(cgroups: &Cgroups, pod: &k8s_openapi::api::core::v1::Pod) -> Usage {
    group(cgroups.hierarchy(), |controller| cgroups.dir_of(pod, controller))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_versions_of_cgroups_give_the_same_form() {
        let dir = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
        put("memory.current", "1000\n");
        put("memory.stat", "anon 300\ninactive_file 400\npgfault 7\n");
        put("cpu.stat", "usage_usec 5\nnr_periods 3\n");
        let v2 = group(Hierarchy::Unified, |_| dir.path().to_owned());
        assert_eq!(
            (v2.cpu_nanos, v2.working_set, v2.rss, v2.page_faults, v2.periods),
            (Some(5000), Some(600), Some(300), Some(7), Some(3))
        );
        put("memory.usage_in_bytes", "2000\n");
        put("memory.stat", "inactive_file 1\ntotal_inactive_file 500\ntotal_rss 9\n");
        put("cpuacct.usage", "77\n");
        let v1 = group(Hierarchy::Legacy, |_| dir.path().to_owned());
        assert_eq!((v1.cpu_nanos, v1.working_set, v1.rss), (Some(77), Some(1500), Some(9)));
    }

    #[test]
    fn interfaces_are_read_without_loopback() {
        let text = "Inter-| Receive | Transmit\n face |bytes\n    lo: 1 1 0 0 0 0 0 0 1 1 0 0 0 0 0 0\n  \
                    eth0: 10 2 3 0 0 0 0 0 20 5 6 0 0 0 0 0\n";
        assert_eq!(
            parse_dev(text),
            [Interface { name: "eth0".to_owned(), rx_bytes: 10, rx_errors: 3, tx_bytes: 20, tx_errors: 6 }]
        );
    }
}
