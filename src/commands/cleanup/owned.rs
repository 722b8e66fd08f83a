//! Things of this machine that are kedge's, and those that are somebody else's: judged by marks and by what
//! processes hold, never by a name alone.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use base::layout::{self, KUBELET_PARTS, Layout, is_of_kubelet};
use base::owner::{self, Owner};

use super::CleanupError;
use crate::process::work_dir;

/// Folders of the system, in which much else lies whatever a mark in them says.
const SYSTEM: [&str; 22] = [
    "/", "/bin", "/boot", "/dev", "/etc", "/home", "/lib", "/lib64", "/media", "/mnt", "/opt", "/proc", "/root",
    "/run", "/sbin", "/srv", "/sys", "/tmp", "/usr", "/var", "/var/lib", "/var/log",
];

/// Whether a data folder may be cleaned: it is not there, or it is marked, or an earlier version, which made no marks,
/// has made it.
pub(super) fn may_clean(layout: &Layout) -> Result<bool, CleanupError> {
    let data_dir = layout.data_dir();
    let looked = |source| CleanupError::Look { what: "data folder", source };
    let homes = fs::read_to_string("/etc/passwd").unwrap_or_default();
    if is_of_system(data_dir, &homes) || fs::canonicalize(data_dir).is_ok_and(|path| is_of_system(&path, &homes)) {
        return Ok(false);
    }
    if !data_dir.exists() {
        return Ok(true);
    }
    Ok(whose(layout).map_err(looked)?.is_some())
}

/// `homes` is the text of passwd(5).
fn is_of_system(path: &Path, homes: &str) -> bool {
    let mut homes = homes.lines().filter_map(|line| line.split(':').nth(5)).filter(|home| !home.is_empty());
    SYSTEM.iter().any(|dir| path == Path::new(dir)) || homes.any(|home| path == Path::new(home))
}

/// Whose a data folder is; `None` if it is nobody's of kedge.
pub(super) fn whose(layout: &Layout) -> std::io::Result<Option<Owner>> {
    let data_dir = layout.data_dir();
    if let Some(owner) = owner::of(data_dir)? {
        return Ok(Some(owner));
    }
    if fs::read_dir(data_dir)?.next().is_none() {
        return Ok(Some(Owner::Ours));
    }
    Ok(if layout.was_used() { Some(owner::judge(data_dir, Layout::is_part)?) } else { None })
}

/// The part of a kubelet's folder that goes: all of it, or, where another kubelet has its own in it, the pods that
/// are marked as ours.
pub(super) enum KubeletPart {
    Whole(PathBuf),
    Pods(Vec<PathBuf>),
}

/// The part of the kubelet's folder that goes.
pub(super) fn kubelet_part(layout: &Layout) -> KubeletPart {
    let dir = layout.kubelet_in_use();
    // Earlier versions made no marks, and wrote down that they used it.
    let unmarked = || owner::judge(&dir, |name| is_of_kubelet(&dir, name, true));
    let owner = owner::of(&dir).and_then(|found| found.map_or_else(unmarked, Ok));
    match owner {
        Ok(Owner::Ours) => KubeletPart::Whole(dir),
        _ => KubeletPart::Pods(
            pods(&dir).into_iter().filter(|pod| owner::of(pod).is_ok_and(|mark| mark.is_some())).collect(),
        ),
    }
}

fn pods(kubelet: &Path) -> Vec<PathBuf> {
    fs::read_dir(kubelet.join("pods")).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

/// Folders of pods that kedge's kubelet had on this machine.
pub(super) fn our_pods(layout: &Layout) -> Vec<PathBuf> {
    match kubelet_part(layout) {
        KubeletPart::Whole(dir) => pods(&dir),
        KubeletPart::Pods(pods) => pods,
    }
}

/// Folders in which all mounts are kedge's or its pods'. A disk that the administrator mounted beside them is not among
/// them.
pub(super) fn folders_of_mounts(layout: &Layout) -> Vec<PathBuf> {
    let mut all = vec![layout.run().path().to_owned(), layout.agent().containerd()];
    match kubelet_part(layout) {
        KubeletPart::Whole(dir) => all.extend(KUBELET_PARTS.iter().map(|part| dir.join(part))),
        KubeletPart::Pods(pods) => all.extend(pods),
    }
    // The kernel's table knows no links.
    all.into_iter().map(|dir| fs::canonicalize(&dir).unwrap_or(dir)).collect()
}

/// Mount points below the folders, in a text of mountinfo: the deepest first, stacked ones as often as they are
/// mounted, the last first.
pub(super) fn mounts(mountinfo: &str, folders: &[PathBuf]) -> Vec<PathBuf> {
    let points = base::mounts::points(mountinfo).into_iter();
    let mut found: Vec<PathBuf> =
        points.filter(|point| folders.iter().any(|dir| point.starts_with(dir) && point != dir)).collect();
    found.reverse();
    found.sort_by_key(|point| std::cmp::Reverse(point.components().count()));
    found
}

/// Sources from which a service of install.sh's has its data folder, in the order in which it counts: its own file,
/// the variables it reads, the file of settings.
pub(super) fn settings_of(name: &str, file: &Path) -> String {
    let beside = [layout::CONFIG_DIR, "/etc/default", "/etc/sysconfig"].map(|dir| Path::new(dir).join(name));
    let variables = [beside[0].with_extension("env"), beside[1].clone(), beside[2].clone()];
    let all = std::iter::once(file.to_owned()).chain(variables).chain([PathBuf::from(layout::CONFIG_FILE)]);
    all.filter_map(|path| fs::read_to_string(path).ok()).collect::<Vec<_>>().join("\n")
}

/// Whether a service runs kedge in this data folder, by its settings.
pub(super) fn serves(settings: &str, data_dir: &Path) -> bool {
    let bare = |word: &str| word.trim_matches(['"', '\'']).to_owned();
    let words: Vec<String> = settings.split_whitespace().map(bare).collect();
    let setting = || words.iter().skip_while(|word| *word != "data-dir:").nth(1).cloned();
    let named = work_dir::named(&words).or_else(|| work_dir::variable(&words).map(|dir| bare(&dir))).or_else(setting);
    named.map_or(data_dir == Path::new(layout::DEFAULT), |named| Path::new(&named) == data_dir)
}

/// The entries of a data folder that go, but for what `keep` names; of one that others use, too, only ours.
pub(super) fn parts(layout: &Layout, keep: &[&str]) -> Vec<PathBuf> {
    let data_dir = layout.data_dir();
    let entries = fs::read_dir(data_dir).into_iter().flatten().flatten().map(|entry| entry.file_name());
    let goes = |name: &OsStr| Layout::is_part(name) && !keep.iter().any(|kept| name == *kept);
    entries.filter(|name| goes(name)).map(|name| data_dir.join(name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    // security.md H4.
    #[test]
    fn a_folder_that_is_not_kedges_is_never_cleaned() {
        let dir = tempfile::tempdir().unwrap();
        for path in ["/", "/var", "/var/lib", "/root", "/home"] {
            assert!(!may_clean(&Layout::new(path)).unwrap(), "{path}");
        }
        assert!(is_of_system(Path::new("/data/ann"), "ann:x:1:1::/data/ann:/bin/sh\n"));
        fs::create_dir(dir.path().join("photos")).unwrap();
        assert!(!may_clean(&Layout::new(dir.path())).unwrap(), "no mark");
        std::os::unix::fs::symlink("/var", dir.path().join("link")).unwrap();
        assert!(!may_clean(&Layout::new(dir.path().join("link"))).unwrap());
        assert!(may_clean(&Layout::new(dir.path().join("nothing"))).unwrap());
        // Kedge was started in it: what is kedge's goes, the photos stay.
        fs::create_dir_all(dir.path().join("server/db")).unwrap();
        fs::create_dir(dir.path().join("storage")).unwrap();
        assert!(may_clean(&Layout::new(dir.path())).unwrap());
        assert_eq!(whose(&Layout::new(dir.path())).unwrap(), Some(Owner::Shared));
        assert_eq!(parts(&Layout::new(dir.path()), &["storage"]), [dir.path().join("server")]);
    }

    #[test]
    fn of_a_shared_kubelet_folder_only_marked_pods_go() {
        let dir = tempfile::tempdir().unwrap();
        let kubelet = dir.path().join("agent/kubelet");
        for pod in ["own", "foreign"] {
            fs::create_dir_all(kubelet.join("pods").join(pod)).unwrap();
        }
        owner::mark(&kubelet.join("pods/own"), |_| true).unwrap();
        assert!(
            matches!(kubelet_part(&Layout::new(dir.path())), KubeletPart::Whole(_)),
            "nothing but a kubelet's, and kedge used it"
        );
        fs::write(kubelet.join("config.yaml"), "").unwrap();
        let kubelet = fs::canonicalize(kubelet).unwrap();
        assert_eq!(our_pods(&Layout::new(dir.path())), [kubelet.join("pods/own")]);
        let folders = folders_of_mounts(&Layout::new(dir.path()));
        assert!(folders.contains(&kubelet.join("pods/own")) && !folders.contains(&kubelet));
    }

    // security.md L14: the lower one of two stacked mounts stayed.
    #[test]
    fn stacked_mounts_are_all_found_and_foreign_ones_are_not() {
        let line = |point: &str| format!("36 35 98:0 / {point} rw,noatime master:1 - tmpfs tmpfs rw\n");
        let text = ["/k/pods/a", "/k/pods/a", "/k/pods/a/b\\040c", "/k/disk", "/k", "/k/podsx"].map(line).concat();
        let found = mounts(&text, &[PathBuf::from("/k/pods")]);
        assert_eq!(found, ["/k/pods/a/b c", "/k/pods/a", "/k/pods/a"].map(PathBuf::from));
    }

    #[test]
    fn a_service_is_told_by_its_data_folder() {
        let default = Path::new(layout::DEFAULT);
        assert!(
            serves("ExecStart=/k server\nKEDGE_DATA_DIR=\"/d\"", Path::new("/d"))
                && serves("data-dir: '/d'", Path::new("/d"))
        );
        assert!(!serves("ExecStart=/k server\nKEDGE_DATA_DIR=\"/d\"", default) && !serves("data-dir: /d", default));
        assert!(
            serves("ExecStart=/usr/local/bin/kedge server\n", default)
                && !serves("ExecStart=/x/kedge server \"--data-dir\" /d", default)
        );
    }
}
