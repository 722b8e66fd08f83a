//! Protection of this process and containerd while pods eat all memory: a control group of their own, of whose
//! memory the kernel takes nothing back (`memory.min`, v2), and an OOM score that lets pods go first.

use std::fs;
use std::path::{Path, PathBuf};

use base::files::FileError;
use tracing::{info, warn};

const ROOT: &str = "/sys/fs/cgroup";
/// The group's name where no service manager has made one.
const GROUP: &str = "kedge";
/// Kept for it is a quarter of the machine's memory, and no more than this.
const KEPT_BYTES_MAX: u64 = 256 << 20;
/// The kernel ends pods before containerd and the kubelet, for nobody else could start them again. Upstream's
/// `KubeletOOMScoreAdj` (pkg/kubelet/qos/policy.go v1.36). Children begin with it; runc gives containers their own.
const OOM_SCORE_ADJ: &str = "-999";

/// Puts this process, and so what it starts, out of the way of a machine's lack of memory. Where that is not possible
/// it says why, once.
pub(crate) fn take() {
    spare("self");
    if !Path::new(ROOT).join("cgroup.controllers").exists() {
        info!("no memory is kept for kedge and containerd: cgroup v1 has no memory.min");
        return;
    }
    let own = own_group(&fs::read_to_string("/proc/self/cgroup").unwrap_or_default());
    let is_managed = Path::new("/run/systemd/system").exists();
    if !is_managed && own.as_deref().is_some_and(is_nobodys) {
        let bytes = kept_of(u64::try_from(crate::machine::memory_of_machine()).unwrap_or(0));
        match make(Path::new(ROOT), bytes, std::process::id()) {
            Ok(()) => info!(group = GROUP, bytes, "memory is kept for kedge and containerd"),
            Err(err) => info!(err = %base::chain::Chain(&err), "no memory is kept for kedge and containerd"),
        }
        return;
    }
    let own = own.unwrap_or_default();
    match kept_along(Path::new(ROOT), &own) {
        0 => info!(
            group = own,
            "no memory is kept for kedge and containerd: neither their unit nor its slices set MemoryMin="
        ),
        bytes => info!(group = own, bytes, "memory is kept for kedge and containerd"),
    }
}

/// Gives a process that an earlier kedge has started the same protection.
pub(crate) fn bring_in(pid: u32) {
    spare(&pid.to_string());
    let group = |who: &str| own_group(&fs::read_to_string(format!("/proc/{who}/cgroup")).unwrap_or_default());
    let Some(own) = group("self").filter(|own| own != "/") else { return };
    // It has ended meanwhile, or is where it belongs.
    let Some(theirs) = group(&pid.to_string()).filter(|theirs| *theirs != own) else { return };
    if let Err(err) = fs::write(below(Path::new(ROOT), &own).join("cgroup.procs"), pid.to_string()) {
        warn!(pid, group = theirs, err = %err, "no memory is kept for a process of containerd's");
    }
}

/// Bytes of page cache that the kernel calls available, but keeps for this process's group.
pub(crate) fn held_back() -> u64 {
    let Some(own) = own_group(&fs::read_to_string("/proc/self/cgroup").unwrap_or_default()).filter(|own| own != "/")
    else {
        return 0;
    };
    held_back_in(Path::new(ROOT), &own)
}

fn held_back_in(root: &Path, own: &str) -> u64 {
    let dir = below(root, own);
    let stat = fs::read_to_string(dir.join("memory.stat")).unwrap_or_default();
    let of = |key: &str| {
        stat.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')?.parse::<u64>().ok()).unwrap_or(0)
    };
    let cache = of("inactive_file") + of("active_file");
    // What the group has beyond its minimum is taken from its cache first.
    cache
        .saturating_sub(number(&dir.join("memory.current")).saturating_sub(kept_along(root, own)))
        .min(kept_along(root, own))
}

/// Has the kernel spare a process, `self` or a pid, when memory is gone.
fn spare(process: &str) {
    if !may_lower_oom_score() {
        return;
    }
    if let Err(err) = fs::write(format!("/proc/{process}/oom_score_adj"), OOM_SCORE_ADJ) {
        warn!(process, err = %err, "the kernel may end this process when memory is gone");
    }
}

/// CAP_SYS_RESOURCE is bit 24 of the effective capabilities.
pub(crate) fn may_lower_oom_score() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    effective.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).is_some_and(|caps| caps & (1 << 24) != 0)
}

/// A process's group of the unified hierarchy, as `/proc/PID/cgroup` has it: `/system.slice/kedge.service`.
fn own_group(text: &str) -> Option<String> {
    text.lines().find_map(|line| line.strip_prefix("0::")).map(str::to_owned)
}

/// Whether nobody has chosen the group: it is the root, or the one of an earlier start.
fn is_nobodys(own: &str) -> bool {
    own == "/" || own.trim_start_matches('/') == GROUP
}

fn kept_of(machine: u64) -> u64 {
    (machine / 4).min(KEPT_BYTES_MAX)
}

/// Makes the group below `root` and moves a process into it.
fn make(root: &Path, bytes: u64, pid: u32) -> Result<(), FileError> {
    let dir = root.join(GROUP);
    let write = |path: PathBuf, value: &str| fs::write(&path, value).map_err(FileError::at("cannot write", &path));
    fs::create_dir_all(&dir).map_err(FileError::at("cannot create cgroup", &dir))?;
    // In a container's group with processes of others in it the kernel refuses.
    write(root.join("cgroup.subtree_control"), "+memory")?;
    write(dir.join("memory.min"), &bytes.to_string())?;
    write(dir.join("cgroup.procs"), &pid.to_string())
}

/// The least that a group and those above it are promised: no group's promise goes beyond its parent's.
fn kept_along(root: &Path, own: &str) -> u64 {
    let groups = below(root, own);
    groups.ancestors().take_while(|dir| *dir != root).map(|dir| number(&dir.join("memory.min"))).min().unwrap_or(0)
}

fn below(root: &Path, own: &str) -> PathBuf {
    root.join(own.trim_start_matches('/'))
}

/// A file's number; `max` is all there is, and a file that is not there is nothing.
fn number(path: &Path) -> u64 {
    let text = fs::read_to_string(path).unwrap_or_default();
    if text.trim() == "max" { u64::MAX } else { text.trim().parse().unwrap_or(0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_promised_no_more_than_those_above_it() {
        let root = tempfile::tempdir().unwrap();
        let unit = root.path().join("kedge.slice/kedge.service");
        fs::create_dir_all(&unit).unwrap();
        let min = |dir: &Path, bytes: &str| fs::write(dir.join("memory.min"), bytes).unwrap();
        min(&unit, "100000\n");
        assert_eq!(kept_along(root.path(), "/kedge.slice/kedge.service"), 0, "the slice promises nothing");
        min(unit.parent().unwrap(), "max\n");
        assert_eq!(kept_along(root.path(), "/kedge.slice/kedge.service"), 100_000);
        assert_eq!(kept_along(root.path(), "/"), 0);
    }

    #[test]
    fn cache_that_is_kept_for_us_is_available_to_nobody_else() {
        let root = tempfile::tempdir().unwrap();
        let group = root.path().join("kedge");
        fs::create_dir(&group).unwrap();
        let put = |name: &str, text: &str| fs::write(group.join(name), text).unwrap();
        put("memory.stat", "anon 500\ninactive_file 200\nactive_file 100\n");
        put("memory.current", "800\n");
        put("memory.min", "0\n");
        assert_eq!(held_back_in(root.path(), "/kedge"), 0);
        put("memory.min", "700\n");
        assert_eq!(held_back_in(root.path(), "/kedge"), 200, "100 of the cache are beyond the minimum");
        put("memory.min", "max\n");
        assert_eq!(held_back_in(root.path(), "/kedge"), 300);
    }

    #[test]
    fn only_a_group_that_nobody_chose_is_left() {
        assert!(is_nobodys("/") && is_nobodys("/kedge"));
        assert!(!is_nobodys("/docker/abc") && !is_nobodys("/kedge.slice/kedge.service"));
        assert_eq!(own_group("12:memory:/x\n0::/kedge.slice/kedge.service\n").unwrap(), "/kedge.slice/kedge.service");
    }

    #[test]
    fn a_small_machine_keeps_a_quarter_and_a_large_one_a_bounded_amount() {
        assert_eq!((kept_of(512 << 20), kept_of(64 << 30)), (128 << 20, KEPT_BYTES_MAX));
    }
}
