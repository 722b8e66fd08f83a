//! Cgroups of pods: the parents' names for both drivers, and the limits on v1 and v2.

mod knob;
pub(crate) mod limits;
mod slices;

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use base::files::FileError;
use k8s_openapi::api::core::v1::Pod;
use tracing::warn;

use self::knob::Knob;
use self::limits::{Limits, Qos, SHARES_MIN, qos, shares};
use crate::error::Error;
use crate::runtime::driver::CgroupDriver;

const ROOT: &str = "/sys/fs/cgroup";
/// A group of no known pod that has not changed for so long is left over: no sandbox is made that slowly.
const SWEEP_AGE: Duration = Duration::from_secs(120);

/// The version of the machine's cgroups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hierarchy {
    /// v1: a hierarchy for each controller.
    Legacy,
    /// v2: one for all.
    Unified,
}

/// The machine's hierarchy, as the kubelet uses it.
#[derive(Clone, Debug)]
pub(crate) struct Cgroups {
    driver: CgroupDriver,
    hierarchy: Hierarchy,
    quotas: Quotas,
}

/// Whether limits of CPU are quotas: `cpuCFSQuota`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Quotas {
    Set,
    Unset,
}

impl Cgroups {
    /// Checks the controllers and makes the folders of the classes.
    pub(crate) fn prepare(driver: CgroupDriver, quotas: Quotas) -> Result<Cgroups, Error> {
        let is_unified = Path::new(ROOT).join("cgroup.controllers").exists();
        let hierarchy = if is_unified { Hierarchy::Unified } else { Hierarchy::Legacy };
        let cgroups = Cgroups { driver, hierarchy, quotas };
        let available = |controller: &str| match hierarchy {
            Hierarchy::Unified => fs::read_to_string(Path::new(ROOT).join("cgroup.controllers"))
                .is_ok_and(|text| text.split_whitespace().any(|have| have == controller)),
            Hierarchy::Legacy => Path::new(ROOT).join(controller).is_dir(),
        };
        for controller in ["cpu", "memory", "pids"] {
            if !available(controller) {
                return Err(Error::CgroupMissing { controller });
            }
        }
        if driver == CgroupDriver::Cgroupfs {
            for class in ["kubepods", "kubepods/burstable", "kubepods/besteffort"] {
                let failed = FileError {
                    doing: "cannot create cgroup",
                    path: Path::new(ROOT).join(class),
                    source: io::ErrorKind::Other.into(),
                };
                cgroups.make(class).map_err(|source| FileError { source, ..failed })?;
            }
            cgroups.set("kubepods/besteffort", &[Knob::Shares(SHARES_MIN)]);
        }
        Ok(cgroups)
    }

    /// Of no machine.
    #[cfg(test)]
    pub(crate) fn of_tests() -> Cgroups {
        Cgroups { driver: CgroupDriver::Cgroupfs, hierarchy: Hierarchy::Unified, quotas: Quotas::Set }
    }

    /// Sets what all pods together may use: the machine less what is set aside for the system (upstream's
    /// `enforceNodeAllocatableCgroups`, pkg/kubelet/cm/node_container_manager_linux.go v1.36). CPU in milli-units,
    /// memory in bytes.
    pub(crate) fn enforce(&self, cpu_milli: i64, memory: i64, pids: Option<i64>) {
        let path = self.root();
        if !self.exists(path) {
            return;
        }
        let always = [Knob::Shares(shares(cpu_milli)), Knob::Memory(Some(memory))];
        self.set(path, &always.into_iter().chain(pids.map(Knob::Pids)).collect::<Vec<_>>());
    }

    /// The weight of the burstable pods together is what they ask for together; that of the best-effort ones is the
    /// least.
    pub(crate) fn weigh(&self, burstable_milli: i64) {
        let (burstable, besteffort) = match self.driver {
            CgroupDriver::Cgroupfs => ("kubepods/burstable", "kubepods/besteffort"),
            CgroupDriver::Systemd => {
                ("kubepods.slice/kubepods-burstable.slice", "kubepods.slice/kubepods-besteffort.slice")
            }
        };
        // systemd makes a class's slice with the first pod in it.
        for (path, shares) in [(burstable, shares(burstable_milli)), (besteffort, SHARES_MIN)] {
            if self.exists(path) {
                self.set(path, &[Knob::Shares(shares)]);
            }
        }
    }

    fn root(&self) -> &'static str {
        if self.driver == CgroupDriver::Systemd { "kubepods.slice" } else { "kubepods" }
    }

    fn exists(&self, path: &str) -> bool {
        Path::new(ROOT).join(if self.is_unified() { "" } else { "cpu" }).join(path).is_dir()
    }

    /// The cgroup that holds a pod's containers, in the form the runtime wants.
    pub(crate) fn parent_of(&self, pod: &Pod) -> String {
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        match self.driver {
            CgroupDriver::Cgroupfs => format!("/{}", cgroupfs_path(qos(pod), uid)),
            CgroupDriver::Systemd => systemd_path(qos(pod), uid),
        }
    }

    /// Makes the pod's cgroup with its limits. Containers join it through the runtime.
    pub(crate) fn create(&self, pod: &Pod, pids_max: Option<i64>) -> io::Result<()> {
        if self.driver == CgroupDriver::Systemd {
            // systemd makes the slices when runc asks for the first scope in them.
            return Ok(());
        }
        self.make(&self.path_of(pod))?;
        self.hold(Limits::of(pod), pod, pids_max);
        Ok(())
    }

    /// After the sandbox began: under systemd the pod's slices exist only now. Blocks while systemd answers.
    pub(crate) fn settle(&self, pod: &Pod, pids_max: Option<i64>) {
        if self.driver == CgroupDriver::Cgroupfs {
            return;
        }
        self.hold(Limits::of(pod), pod, pids_max);
    }

    /// Sets the pod's own limits, of a group that had those of `before`. Returns what holds then: a limit that was not
    /// taken is as it was. Blocks while systemd answers.
    pub(crate) fn limit(&self, limits: Limits, before: Limits, pod: &Pod, pids_max: Option<i64>) -> Limits {
        let mut now = before;
        for taken in self.hold(limits, pod, pids_max) {
            match taken {
                Knob::Shares(shares) => now.shares = shares,
                Knob::Quota(quota) => now.quota = quota,
                Knob::Memory(memory) => now.memory = memory,
                Knob::Pids(_) => {}
            }
        }
        now
    }

    /// Sets the pod's own limits. Returns what was taken.
    fn hold(&self, limits: Limits, pod: &Pod, pids_max: Option<i64>) -> Vec<Knob> {
        let quota = limits.quota.filter(|_| self.quotas == Quotas::Set);
        let always = [Knob::Shares(limits.shares), Knob::Quota(quota), Knob::Memory(limits.memory)];
        let taken =
            self.set(&self.path_of(pod), &always.into_iter().chain(pids_max.map(Knob::Pids)).collect::<Vec<_>>());
        // A quota that is not wanted counts as the one that was asked for: a resize is done.
        let asked = |knob| if matches!(knob, Knob::Quota(_)) { Knob::Quota(limits.quota) } else { knob };
        taken.into_iter().map(asked).collect()
    }

    /// Whether the kernel bounds the swap of a group (v2, with swap accounting).
    pub(crate) fn bounds_swap(&self) -> bool {
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let own = own.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default().to_owned();
        let has = |group: &str| Path::new(ROOT).join(group).join("memory.swap.max").exists();
        self.is_unified() && (has(&own) || has(self.root()))
    }

    /// Turns knobs of a group, and returns those that were taken. On v1 they are written under systemd, too: it knows
    /// other ones there.
    fn set(&self, path: &str, knobs: &[Knob]) -> Vec<Knob> {
        if self.driver == CgroupDriver::Systemd && self.is_unified() {
            let holds = |knob: &Knob| {
                let (file, value) = knob.unified();
                fs::read_to_string(Path::new(ROOT).join(path).join(file)).is_ok_and(|now| now.trim() == value)
            };
            let wanted: Vec<String> = knobs.iter().filter(|knob| !holds(knob)).map(|knob| knob.property()).collect();
            let unit = slices::unit_of(path);
            match if wanted.is_empty() { Ok(()) } else { slices::set(unit, &wanted) } {
                Ok(()) => return knobs.to_vec(),
                Err(err) => {
                    warn!(
                        unit,
                        err = %err,
                        "systemd does not take a slice's limits: they hold until it reads its units again"
                    )
                }
            }
        }
        let turn = |knob: &Knob| {
            if self.is_unified() {
                let (file, value) = knob.unified();
                return write(&Path::new(ROOT).join(path).join(file), &value);
            }
            knob.legacy().into_iter().fold(true, |taken, (controller, file, value)| {
                write(&Path::new(ROOT).join(controller).join(path).join(file), &value) && taken
            })
        };
        knobs.iter().copied().filter(turn).collect()
    }

    /// The version of the hierarchy.
    pub(crate) fn hierarchy(&self) -> Hierarchy {
        self.hierarchy
    }

    /// Whether this is the unified hierarchy (v2).
    pub(crate) fn is_unified(&self) -> bool {
        self.hierarchy == Hierarchy::Unified
    }

    /// The pod's group under a controller's root.
    fn path_of(&self, pod: &Pod) -> String {
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        match self.driver {
            CgroupDriver::Cgroupfs => cgroupfs_path(qos(pod), uid),
            CgroupDriver::Systemd => systemd_path(qos(pod), uid).trim_start_matches('/').to_owned(),
        }
    }

    /// A pod's folder, of the named controller on v1.
    pub(crate) fn dir_of(&self, pod: &Pod, controller: &str) -> PathBuf {
        Path::new(ROOT).join(if self.is_unified() { "" } else { controller }).join(self.path_of(pod))
    }

    /// Bytes of memory that a pod uses, where the kernel tells.
    pub(crate) fn memory_in_use(&self, pod: &Pod) -> Option<u64> {
        let file = if self.is_unified() { "memory.current" } else { "memory.usage_in_bytes" };
        fs::read_to_string(self.dir_of(pod, "memory").join(file)).ok()?.trim().parse().ok()
    }

    /// The folder of all pods, of the named controller on v1.
    pub(crate) fn all_pods_dir(&self, controller: &str) -> PathBuf {
        Path::new(ROOT).join(if self.is_unified() { "" } else { controller }).join(self.root())
    }

    /// The folder of the whole machine, of the named controller on v1.
    pub(crate) fn machine_dir(&self, controller: &str) -> PathBuf {
        Path::new(ROOT).join(if self.is_unified() { "" } else { controller })
    }

    /// Removes the pod's cgroup, when its processes are gone. Blocks while systemd answers.
    pub(crate) fn remove(&self, pod: &Pod) {
        let path = self.path_of(pod);
        if self.driver == CgroupDriver::Systemd {
            return slices::stop(slices::unit_of(&path));
        }
        for root in self.hierarchies() {
            remove_tree(&root.join(&path));
        }
    }

    /// Removes what is left of pods that are not among `known`: a sandbox that is still being made when its pod goes
    /// makes the pod's cgroup anew, and a process that is just dying keeps it. Nothing is touched in which a process
    /// is, or which changed a short while ago: it may be another kubelet's. Blocks for as long as the kernel takes to
    /// list them.
    pub(crate) fn sweep(&self, known: &BTreeSet<String>) {
        let classes = match self.driver {
            CgroupDriver::Cgroupfs => ["", "burstable", "besteffort"],
            CgroupDriver::Systemd => ["", "kubepods-burstable.slice", "kubepods-besteffort.slice"],
        };
        let mut units = BTreeSet::new();
        for root in self.hierarchies() {
            for class in classes {
                let left = left_over(&root.join(self.root()).join(class), known, SWEEP_AGE);
                match self.driver {
                    CgroupDriver::Cgroupfs => left.iter().for_each(|dir| remove_tree(dir)),
                    CgroupDriver::Systemd => {
                        units.extend(left.iter().filter_map(|dir| Some(dir.file_name()?.to_str()?.to_owned())))
                    }
                }
            }
        }
        units.iter().for_each(|unit| slices::stop(unit));
    }

    /// The mounts of all controllers.
    fn hierarchies(&self) -> Vec<PathBuf> {
        if self.is_unified() {
            return vec![PathBuf::from(ROOT)];
        }
        fs::read_dir(ROOT).map(|dirs| dirs.flatten().map(|dir| dir.path()).collect()).unwrap_or_default()
    }

    fn make(&self, path: &str) -> io::Result<()> {
        if self.is_unified() {
            let mut at = PathBuf::from(ROOT);
            for part in Path::new(path).components() {
                for controller in ["cpu", "cpuset", "memory", "pids", "io"] {
                    // Some are missing on some kernels; those that are needed were checked at start.
                    let _optional = fs::write(at.join("cgroup.subtree_control"), format!("+{controller}"));
                }
                at.push(part);
                fs::create_dir_all(&at)?;
            }
            return Ok(());
        }
        ["cpu", "memory", "pids"]
            .iter()
            .try_for_each(|controller| fs::create_dir_all(Path::new(ROOT).join(controller).join(path)))
    }
}

/// Returns whether the kernel took it.
fn write(file: &Path, value: &str) -> bool {
    match fs::write(file, value) {
        Ok(()) => true,
        Err(err) => {
            warn!(path = %file.display(), value, err = %err, "cannot set a cgroup limit");
            false
        }
    }
}

/// The cgroups of pods in a class that nobody knows and that have been idle for so long.
fn left_over(class: &Path, known: &BTreeSet<String>, age: Duration) -> Vec<PathBuf> {
    let unknown = |dir: &PathBuf| {
        let Some(name) = dir.file_name().and_then(|name| name.to_str()) else { return false };
        match slices::uid_of(name) {
            Some(uid) => !known.iter().any(|known| known.replace('-', "_") == uid),
            None => name.strip_prefix("pod").is_some_and(|uid| !known.contains(uid)),
        }
    };
    let dirs = fs::read_dir(class).into_iter().flatten().flatten().map(|entry| entry.path());
    dirs.filter(|dir| unknown(dir) && is_idle(dir, age)).collect()
}

/// Whether no process is in it or below, and nothing came or went there for so long.
fn is_idle(dir: &Path, age: Duration) -> bool {
    let changed = dir.metadata().and_then(|meta| meta.modified());
    let is_old = changed.is_ok_and(|changed| changed.elapsed().is_ok_and(|since| since >= age));
    if !is_old || !fs::read_to_string(dir.join("cgroup.procs")).is_ok_and(|procs| procs.trim().is_empty()) {
        return false;
    }
    fs::read_dir(dir).is_ok_and(|entries| {
        entries
            .flatten()
            .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
            .all(|entry| is_idle(&entry.path(), age))
    })
}

fn remove_tree(dir: &Path) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    for entry in entries.flatten().filter(|e| e.file_type().is_ok_and(|t| t.is_dir())) {
        remove_tree(&entry.path());
    }
    // Busy means that a process is just dying; the next sweep takes it.
    let _retried_later = fs::remove_dir(dir);
}

fn cgroupfs_path(qos: Qos, uid: &str) -> String {
    match qos {
        Qos::Guaranteed => format!("kubepods/pod{uid}"),
        Qos::Burstable => format!("kubepods/burstable/pod{uid}"),
        Qos::BestEffort => format!("kubepods/besteffort/pod{uid}"),
    }
}

/// A dash separates levels in a slice's name, so those of the uid become underscores.
fn systemd_path(qos: Qos, uid: &str) -> String {
    let uid = uid.replace('-', "_");
    match qos {
        Qos::Guaranteed => format!("/kubepods.slice/kubepods-pod{uid}.slice"),
        Qos::Burstable => format!("/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{uid}.slice"),
        Qos::BestEffort => format!("/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{uid}.slice"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // issue 12: an agent that was killed while it made sandboxes left five cgroups behind
    #[test]
    fn what_pods_left_is_swept_and_nothing_that_is_in_use() {
        let top = tempfile::tempdir().unwrap();
        for (pod, procs) in [
            ("podgone", ""),
            ("podgone/c1", ""),
            ("podlive", ""),
            ("podlive/c1", "17\n"),
            ("podknown", ""),
            ("other", ""),
        ] {
            fs::create_dir(top.path().join(pod)).unwrap();
            fs::write(top.path().join(pod).join("cgroup.procs"), procs).unwrap();
        }
        for slice in ["kubepods-podgone_1.slice", "kubepods-podknown_1.slice"] {
            fs::create_dir(top.path().join(slice)).unwrap();
            fs::write(top.path().join(slice).join("cgroup.procs"), "").unwrap();
        }
        let known = BTreeSet::from(["known".to_owned(), "known-1".to_owned()]);
        let young = left_over(top.path(), &known, Duration::from_secs(60));
        assert!(young.is_empty(), "what has just changed may be another kubelet's: {young:?}");
        let gone = top.path().join("podgone");
        let mut idle = left_over(top.path(), &known, Duration::ZERO);
        idle.sort();
        let slice = top.path().join("kubepods-podgone_1.slice");
        assert_eq!(idle, [slice, gone.clone()], "a container of podlive runs, and others are not ours");
        // The kernel's files go with their folder; those of this test do not.
        for dir in [gone.join("c1"), gone.clone()] {
            fs::remove_file(dir.join("cgroup.procs")).unwrap();
        }
        remove_tree(&gone);
        assert!(!gone.exists());
    }

    #[test]
    fn names_of_slices_hold_no_dash_of_the_uid() {
        assert_eq!(
            systemd_path(Qos::Burstable, "a-b"),
            "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-poda_b.slice"
        );
    }
}
