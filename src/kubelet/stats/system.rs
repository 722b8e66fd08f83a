//! Resources that the kubelet and the runtime use themselves: `systemContainers` of `/stats/summary`.
//!
//! Upstream tells the numbers of the groups that the two lie in (pkg/kubelet/server/stats/summary_sys_containers.go
//! v1.36). That is true where each has a group of its own, as with a runtime that the machine's service manager runs.
//! Our containerd lies in the group of the process that started it, and one started by hand may lie in the root: a
//! group that both share, or that the rest of the machine shares, says nothing of either. Then the numbers are those of
//! the process alone, without what it started: shims are not counted, and a counter of CPU time never goes back as it
//! would when one of them ends.

use std::fs;
use std::path::{Path, PathBuf};

use jiff::{SignedDuration, Timestamp};
use tokio::net::UnixStream;

use super::read::{self, Usage};
use crate::cgroups::Hierarchy;

/// Where the hierarchies of cgroups are.
const CGROUPS: &str = "/sys/fs/cgroup";
/// Of `/proc/PID/stat`: the kernel counts hundredths of a second there, on all processors.
const TICK_NANOS: u64 = 10_000_000;
/// Controllers whose numbers are told; v1 has a hierarchy for each.
const CONTROLLERS: [&str; 3] = ["memory", "cpuacct", "pids"];

/// One of the two.
pub(super) struct Program {
    pub(super) name: &'static str,
    pub(super) started: Option<Timestamp>,
    pub(super) usage: Usage,
}

/// The process that listens on the runtime's socket; none where it does not answer, or runs where we see no processes.
pub(super) async fn runtime_pid(socket: &Path) -> Option<i32> {
    let stream = UnixStream::connect(socket).await.ok()?;
    stream.peer_cred().ok()?.pid().filter(|pid| *pid > 0)
}

/// The use of this process as `kubelet`, and that of the process `runtime` as `runtime`.
pub(super) fn programs(hierarchy: Hierarchy, booted: Option<Timestamp>, runtime: Option<i32>) -> Vec<Program> {
    let group = |pid: i32| Groups(fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default());
    let own = i32::try_from(std::process::id()).ok();
    let pids = [own.map(|pid| ("kubelet", pid)), runtime.map(|pid| ("runtime", pid))];
    let known: Vec<(&'static str, i32, Groups)> =
        pids.into_iter().flatten().map(|(name, pid)| (name, pid, group(pid))).collect();
    let told = |(name, pid, groups): &(&'static str, i32, Groups)| {
        let process = Process::read(Path::new("/proc"), *pid)?;
        let others: Vec<&Groups> = known.iter().filter(|other| other.1 != *pid).map(|other| &other.2).collect();
        let usage = if groups.are_own(&others) {
            read::group(hierarchy, |controller| groups.dir(controller))
        } else {
            process.usage
        };
        let started = booted
            .and_then(|at| at.checked_add(SignedDuration::from_millis(process.started_ticks.saturating_mul(10))).ok());
        Some(Program { name, started, usage })
    };
    known.iter().filter_map(told).collect()
}

/// The groups of a process: the text of `/proc/PID/cgroup`.
struct Groups(String);

impl Groups {
    /// Whether they are neither the root nor one of the others'.
    fn are_own(&self, others: &[&Groups]) -> bool {
        CONTROLLERS.iter().all(|controller| {
            // A path that begins above is of a hierarchy of which we see a part only.
            let path = self.path(controller).filter(|path| *path != "/" && !path.starts_with("/.."));
            path.is_some_and(|path| others.iter().all(|other| other.path(controller) != Some(path)))
        })
    }

    /// The path of a controller's group: of its own hierarchy on v1, of the only one on v2.
    fn path(&self, controller: &str) -> Option<&str> {
        let lines = || self.0.lines().filter_map(|line| line.split_once(':')?.1.split_once(':'));
        let own = lines().find(|(controllers, _)| controllers.split(',').any(|name| name == controller));
        own.or_else(|| lines().find(|(controllers, _)| controllers.is_empty())).map(|(_, path)| path)
    }

    /// The folder of a controller's group.
    fn dir(&self, controller: &str) -> PathBuf {
        let has = |line: &str| line.split(':').nth(1).is_some_and(|all| all.split(',').any(|name| name == controller));
        let is_v1 = self.0.lines().any(has);
        let root = if is_v1 { Path::new(CGROUPS).join(controller) } else { PathBuf::from(CGROUPS) };
        root.join(self.path(controller).unwrap_or_default().trim_start_matches('/'))
    }
}

/// One process as the kernel tells of it.
struct Process {
    /// Since the machine's start.
    started_ticks: i64,
    usage: Usage,
}

impl Process {
    /// `None` if it has ended.
    fn read(proc: &Path, pid: i32) -> Option<Process> {
        let dir = proc.join(pid.to_string());
        let stat = fs::read_to_string(dir.join("stat")).ok()?;
        // The name before it may hold anything, also brackets. Fields count from 3, the state, here (proc(5)).
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        let status = fs::read_to_string(dir.join("status")).ok()?;
        let bytes = |key: &str| {
            let value = status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
            value.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib.saturating_mul(1024))
        };
        let resident = bytes("VmRSS");
        Some(Process {
            started_ticks: field(22).and_then(|ticks| i64::try_from(ticks).ok())?,
            usage: Usage {
                cpu_nanos: field(14)
                    .zip(field(15))
                    .map(|(user, system)| user.saturating_add(system).saturating_mul(TICK_NANOS)),
                memory: resident,
                // Pages of its program are mapped while it works: it cannot go on without them.
                working_set: resident,
                rss: bytes("RssAnon"),
                page_faults: field(10),
                major_page_faults: field(12),
                pids: Some(1),
                ..Usage::default()
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_that_is_shared_says_nothing_of_one_process() {
        let has_own = |groups: &str, others: &[&str]| {
            let others: Vec<Groups> = others.iter().map(|text| Groups((*text).to_owned())).collect();
            Groups(groups.to_owned()).are_own(&others.iter().collect::<Vec<_>>())
        };
        let unit = "0::/system.slice/containerd.service\n";
        assert!(has_own(unit, &["0::/kedge.slice/kedge.service\n"]));
        assert!(!has_own(unit, &[unit]), "shared with the other");
        assert!(
            !has_own("0::/\n", &[unit]) && !has_own("0::/../x\n", &[unit]) && !has_own("", &[]),
            "shared with the machine, or unknown"
        );
        let v1 =
            |path: &str| format!("9:pids:{path}\n4:cpu,cpuacct:{path}\n3:memory:{path}\n1:name=systemd:/x\n0::/x\n");
        assert!(has_own(&v1("/a"), &[&v1("/b")]) && !has_own(&v1("/a"), &[&v1("/a")]) && !has_own(&v1("/"), &[]));
        assert_eq!(Groups(v1("/a/b")).dir("cpuacct"), Path::new("/sys/fs/cgroup/cpuacct/a/b"));
        let unit = Groups(unit.to_owned());
        assert_eq!(unit.dir("memory"), Path::new("/sys/fs/cgroup/system.slice/containerd.service"));
    }

    #[test]
    fn a_process_is_read_whatever_its_name() {
        let proc = tempfile::tempdir().unwrap();
        let dir = proc.path().join("7");
        fs::create_dir(&dir).unwrap();
        let stat = "7 (a) R (b) S 1 7 7 0 -1 4194560 500 9 3 1 120 30 40 50 20 0 8 0 4242 1000 200 0";
        fs::write(dir.join("stat"), stat).unwrap();
        fs::write(dir.join("status"), "Name:\ta\nVmRSS:\t    2048 kB\nRssAnon:\t    1024 kB\n").unwrap();
        let process = Process::read(proc.path(), 7).unwrap();
        let usage = process.usage;
        assert_eq!((process.started_ticks, usage.cpu_nanos), (4242, Some(1_500_000_000)));
        assert_eq!((usage.memory, usage.working_set, usage.rss), (Some(2 << 20), Some(2 << 20), Some(1 << 20)));
        assert_eq!((usage.page_faults, usage.major_page_faults), (Some(500), Some(3)));
        assert!(Process::read(proc.path(), 8).is_none());
    }

    #[test]
    fn this_process_and_the_one_behind_a_socket_are_told() {
        let runtime = i32::try_from(std::os::unix::process::parent_id()).unwrap();
        let told = programs(Hierarchy::Unified, Timestamp::from_second(0).ok(), Some(runtime));
        let names: Vec<&str> = told.iter().map(|program| program.name).collect();
        assert_eq!(names, ["kubelet", "runtime"]);
        for program in told {
            let usage = program.usage;
            assert!(
                usage.cpu_nanos.is_some()
                    && usage.memory > Some(0)
                    && usage.working_set > Some(0)
                    && usage.rss.is_some(),
                "{}",
                program.name
            );
        }
    }
}
