//! Slices of systemd. Under its driver it owns the cgroups of pods: it is told their limits, for what is written behind
//! its back is lost when it reads its units again, and told to stop them, for it never does by itself.

use std::fs;
use std::io;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use base::program;
use base::traces::SYSTEMD_NOTES;
use tracing::warn;

/// For systemd to answer; upstream's patience.
const LIMIT: Duration = Duration::from_secs(30);

/// The unit of a slice's path: its last part.
pub(crate) fn unit_of(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// The uid in the name of a pod's slice, with underscores where it has dashes: `kubepods-burstable-poda_b.slice` has
/// `a_b`.
pub(crate) fn uid_of(unit: &str) -> Option<&str> {
    let name = unit.strip_prefix("kubepods-")?.strip_suffix(".slice")?;
    let pod = name.strip_prefix("burstable-").or_else(|| name.strip_prefix("besteffort-")).unwrap_or(name);
    pod.strip_prefix("pod").filter(|uid| !uid.is_empty())
}

/// Has systemd hold a unit to these properties, such as `TasksMax=64`, until the machine's end. Blocks.
///
/// Errors: there is no systemctl, it does not answer, or it refuses.
pub(crate) fn set(unit: &str, properties: &[String]) -> io::Result<()> {
    run(&["set-property", "--runtime", "--", unit], properties)
}

/// Stops the slice of a pod that is gone, with what is in it, and forgets what systemd was told of it. One that is not
/// there is stopped. Blocks.
pub(crate) fn stop(unit: &str) {
    if let Err(err) = run(&["stop", "--", unit], &[]) {
        warn!(
            unit,
            err = %err,
            "cannot stop the slice of a pod that is gone; the next look at what is left tries again"
        );
        return;
    }
    // A unit's name has no slash, and nobody but root writes there.
    match fs::remove_dir_all(Path::new(SYSTEMD_NOTES).join(format!("{unit}.d"))) {
        Err(err) if err.kind() != io::ErrorKind::NotFound => {
            warn!(unit, err = %err, "systemd's notes of a slice that is gone stay")
        }
        _ => {}
    }
}

fn run(args: &[&str], more: &[String]) -> io::Result<()> {
    let said = program::output(Command::new("systemctl").args(args).args(more), b"", LIMIT)?;
    if said.status.success() {
        return Ok(());
    }
    Err(io::Error::other(format!("systemctl {}: {}", args[0], String::from_utf8_lossy(&said.stderr).trim())))
}

#[cfg(test)]
mod tests {
    use crate::runtime::driver::CgroupDriver;
    use std::os::unix::fs::PermissionsExt as _;

    use nix::mount::{MsFlags, mount};

    use super::super::{Cgroups, ROOT};
    use super::*;

    #[test]
    fn a_pods_slice_names_its_uid_and_no_other_slice_does() {
        for (unit, uid) in [
            ("kubepods-burstable-poda_b.slice", Some("a_b")),
            ("kubepods-besteffort-podx.slice", Some("x")),
            ("kubepods-poda_b.slice", Some("a_b")),
            ("kubepods-burstable.slice", None),
            ("kubepods.slice", None),
            ("kubepods-pod.slice", None),
            ("kubepods-poda.scope", None),
            ("user-podx.slice", None),
        ] {
            assert_eq!(uid_of(unit), uid, "{unit}");
        }
        assert_eq!(unit_of("kubepods.slice/kubepods-poda.slice"), "kubepods-poda.slice");
    }

    // node.md L12
    #[test]
    fn a_class_of_pods_is_weighed_once_systemd_has_its_slice() {
        // In a mount namespace of its own, where the hierarchy is an empty folder and a script stands for systemctl.
        let outer = tempfile::tempdir().unwrap();
        let script = outer.path().join("systemctl");
        fs::write(&script, format!("#!/bin/sh\necho \"$@\" >>{}/called\n", outer.path().display())).unwrap();
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(outer.path().join("called"), "").unwrap();
        let path = format!("{}:/usr/bin:/bin", outer.path().display());
        let vars = [("PATH", path.as_ref()), ("KEDGE_TEST_SYSTEMCTL", outer.path().as_os_str())];
        let test = "cgroups::slices::tests::a_class_of_pods_is_weighed_once_systemd_has_its_slice";
        if !base::unshared::in_own_namespace(test, &vars).unwrap() {
            return;
        }
        let dir = std::env::var_os("KEDGE_TEST_SYSTEMCTL").unwrap();
        mount(Some("none"), ROOT, Some("tmpfs"), MsFlags::empty(), None::<&str>).unwrap();
        let called = || fs::read_to_string(Path::new(&dir).join("called")).unwrap();
        let cgroups = Cgroups {
            driver: CgroupDriver::Systemd,
            hierarchy: crate::cgroups::Hierarchy::Unified,
            quotas: crate::cgroups::Quotas::Set,
        };
        cgroups.weigh(500);
        assert_eq!(called(), "", "systemd was told of slices that are not there");
        fs::create_dir_all(Path::new(ROOT).join("kubepods.slice/kubepods-besteffort.slice")).unwrap();
        cgroups.weigh(500);
        assert_eq!(called(), "set-property --runtime -- kubepods-besteffort.slice CPUWeight=1\n");
    }
}
