//! The kernel's settings that upstream's kubelet wants. Kedge changes none of them; with `--protect-kernel-defaults` it
//! insists on them.

use std::fs;
use std::path::Path;

use crate::cgroups::Hierarchy;
use crate::error::Error;
use crate::settings::{Settings, SwapBehavior};

/// File below `/proc/sys` and the value, as upstream's container manager has them.
const WANTED: [(&str, i64); 6] = [
    ("vm/overcommit_memory", 1),
    ("vm/panic_on_oom", 0),
    ("kernel/panic", 10),
    ("kernel/panic_on_oops", 1),
    ("kernel/keys/root_maxkeys", 1_000_000),
    ("kernel/keys/root_maxbytes", 25_000_000),
];

/// Refuses a kernel that is set up otherwise, naming every setting. `sys` is `/proc/sys`.
pub(crate) fn check(sys: &Path) -> Result<(), Error> {
    let wrong = |(name, wanted): (&str, i64)| {
        let found = fs::read_to_string(sys.join(name)).map(|text| text.trim().to_owned());
        match found {
            Ok(found) if found == wanted.to_string() => None,
            Ok(found) => Some(format!("invalid kernel flag: {name}, expected value: {wanted}, actual value: {found}")),
            Err(err) => Some(format!("invalid kernel flag: {name}, expected value: {wanted}, cannot be read: {err}")),
        }
    };
    let flags: Vec<String> = WANTED.into_iter().filter_map(wrong).collect();
    if flags.is_empty() { Ok(()) } else { Err(Error::KernelFlags { flags: flags.join(", ") }) }
}

/// Refuses a machine that the settings do not want.
pub(crate) fn fits(settings: &Settings) -> Result<(), Error> {
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    let is_unified = Path::new("/sys/fs/cgroup/cgroup.controllers").exists();
    judge(settings, &swaps, if is_unified { Hierarchy::Unified } else { Hierarchy::Legacy })
}

/// `swaps` is `/proc/swaps`, which has a headline.
fn judge(settings: &Settings, swaps: &str, hierarchy: Hierarchy) -> Result<(), Error> {
    let is_legacy = hierarchy == Hierarchy::Legacy;
    match () {
        () if settings.fail_swap_on && swaps.lines().skip(1).any(|line| !line.trim().is_empty()) => Err(Error::SwapOn),
        () if settings.fail_cgroup_v1 && is_legacy => Err(Error::CgroupV1),
        () if settings.swap == SwapBehavior::Limited && is_legacy => Err(Error::NoSharedSwap),
        () => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_that_the_settings_do_not_want_is_refused_by_name() {
        let swaps = "Filename Type Size Used Priority\n/dev/sda2 partition 8388604 0 -2\n";
        let settings = |words: &[&str]| Settings::parse(words.iter().copied()).unwrap();
        let why = |words: &[&str], swaps: &str, at| judge(&settings(words), swaps, at).map_err(|err| err.to_string());
        assert_eq!(why(&[], swaps, Hierarchy::Legacy), Ok(()), "as k3s");
        let (on, v1) = (["fail-swap-on=true"], ["fail-cgroupv1=true"]);
        assert!(why(&on, swaps, Hierarchy::Unified).unwrap_err().contains("swapoff -a"));
        assert_eq!(why(&on, "Filename Type Size Used Priority\n", Hierarchy::Unified), Ok(()));
        assert!(why(&v1, swaps, Hierarchy::Legacy).unwrap_err().contains("version 1"));
        assert_eq!(why(&v1, swaps, Hierarchy::Unified), Ok(()));
    }

    #[test]
    fn every_setting_that_differs_is_named_with_both_values() {
        let dir = tempfile::tempdir().unwrap();
        for (name, wanted) in WANTED {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{wanted}\n")).unwrap();
        }
        check(dir.path()).unwrap();
        fs::write(dir.path().join("kernel/panic"), "0\n").unwrap();
        fs::remove_file(dir.path().join("vm/overcommit_memory")).unwrap();
        let said = check(dir.path()).unwrap_err().to_string();
        assert!(said.contains("invalid kernel flag: kernel/panic, expected value: 10, actual value: 0"), "{said}");
        assert!(said.contains("vm/overcommit_memory") && !said.contains("panic_on_oops"), "{said}");
    }
}
