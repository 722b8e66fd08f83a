//! `kedge uninstall`: what install.sh made (it wrote a record), and kedge's own folders. Volumes and the
//! administrator's own configuration stay unless asked for; what cannot be removed is said, and a second run goes on
//! where the first one stopped.

use std::fs;
use std::path::{Path, PathBuf};

use base::confined::tree;
use base::layout::{CONFIG_DIR, INSTALLED, Layout, VOLUMES};
use base::owner::Owner;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::commands::cleanup::UninstallArgs;
use crate::commands::cleanup::error::{CleanupError, StepError};
use crate::commands::cleanup::owned::{self, KubeletPart};
use crate::commands::cleanup::{self, Cleaner, succeeds};

/// Made for pods, but not in folders of our own.
const SHARED: [&str; 5] = ["/var/lib/cni", "/var/log/containers", "/var/log/pods", "/run/containerd", "/run/netns"];

/// One line of the record.
#[derive(Debug, PartialEq)]
pub(super) struct Installed {
    pub(super) kind: String,
    pub(super) name: String,
    pub(super) path: PathBuf,
}

/// Reads the record; without one nothing was installed. Services that run kedge in another data folder are left out.
pub(super) fn installed(record: &str, layout: &Layout) -> Vec<Installed> {
    let mut all = parse(&fs::read_to_string(record).unwrap_or_default());
    let is_service = |item: &Installed| ["systemd", "openrc", "sysv"].contains(&item.kind.as_str());
    all.retain(|item| {
        !is_service(item) || owned::serves(&owned::settings_of(&item.name, &item.path), layout.data_dir())
    });
    all
}

fn parse(text: &str) -> Vec<Installed> {
    let line = |line: &str| {
        let mut words = line.splitn(3, ' ');
        let (kind, name, path) = (words.next()?, words.next()?, words.next()?);
        path.starts_with('/').then(|| Installed { kind: kind.to_owned(), name: name.to_owned(), path: path.into() })
    };
    text.lines().filter_map(line).collect()
}

/// Does everything in order, the program itself last: until then this can be run again.
pub(super) fn run(args: &UninstallArgs, mut cleaner: Cleaner) -> Result<(), CleanupError> {
    cleaner.stop_all()?;
    let pods = pod_uids(&args.state.layout);
    remove_logs(&mut cleaner, &pods);
    remove_cgroups(&mut cleaner, &pods);
    let keep: &[&str] = if args.delete_volumes { &[] } else { &[VOLUMES] };
    let layout = cleaner.layout.clone();
    let data_dir = layout.data_dir();
    remove_folder(&mut cleaner, layout.run().path(), &[]);
    remove_folder(&mut cleaner, &layout.helm_run(), &[]);
    match owned::kubelet_part(&layout) {
        KubeletPart::Whole(dir) => remove_folder(&mut cleaner, &dir, &[]),
        KubeletPart::Pods(pods) => {
            pods.iter().for_each(|pod| remove_tree(&mut cleaner, pod));
            let dir = layout.kubelet_in_use();
            if dir.exists() {
                println!("keep {} (others have files in it)", dir.display());
            }
        }
    }
    let whose = owned::whose(&layout).map_err(|source| CleanupError::Look { what: "data folder", source })?;
    match whose {
        Some(Owner::Shared) => {
            owned::parts(&layout, keep).iter().for_each(|part| remove_folder(&mut cleaner, part, &[]));
            if cleaner.failed == 0 {
                remove_tree(&mut cleaner, &data_dir.join(base::owner::MARK));
            }
            println!("keep {} (others have files in it)", data_dir.display());
        }
        // Where volumes stay, the mark does: a later run may remove them.
        Some(Owner::Ours) if layout.volumes().exists() && keep.contains(&VOLUMES) => {
            remove_folder(&mut cleaner, data_dir, &[VOLUMES, base::owner::MARK]);
        }
        Some(Owner::Ours) => remove_folder(&mut cleaner, data_dir, &[]),
        None => {}
    }
    remove_empty_folders(&mut cleaner);
    if keep.contains(&VOLUMES) && layout.volumes().exists() {
        println!("keep {} (volumes; --delete-volumes removes them)", layout.volumes().display());
    }
    let made = installed(INSTALLED, &layout);
    let late = |item: &&Installed| item.kind == "binary" || item.kind == "script";
    for item in made.iter().filter(|item| !late(item)) {
        remove_item(&mut cleaner, item);
    }
    if made.iter().any(|item| item.kind == "systemd") {
        cleaner.step("let systemd read its units again", || cleanup::run("systemctl", &["daemon-reload"]));
    }
    if cleaner.failed > 0 {
        // The program and its record stay for a second run.
        println!("keep the program: mend what failed and run this again");
        return cleaner.outcome();
    }
    match args.delete_config {
        true => remove_folder(&mut cleaner, Path::new(CONFIG_DIR), &[]),
        false => remove_own_config(&mut cleaner),
    }
    for item in made.iter().filter(late) {
        remove_item(&mut cleaner, item);
    }
    cleaner.outcome()
}

/// Removes one thing with all that is in it; a mount stays, and is a failure.
fn remove_tree(cleaner: &mut Cleaner, path: &Path) {
    removal(cleaner, path, || tree::remove(path));
}

/// Removes a folder of ours, for which the administrator may have mounted a disk: that is emptied.
fn remove_folder(cleaner: &mut Cleaner, path: &Path, keep: &[&str]) {
    removal(cleaner, path, || tree::remove_or_empty_mount(path, keep));
}

fn removal(cleaner: &mut Cleaner, path: &Path, remove: impl FnOnce() -> tree::Left) {
    if fs::symlink_metadata(path).is_err() {
        return;
    }
    cleaner.step(&format!("remove {}", path.display()), || {
        let left = remove().0;
        if left.is_empty() { Ok(()) } else { Err(StepError::Left(left)) }
    });
}

fn remove_item(cleaner: &mut Cleaner, item: &Installed) {
    let Installed { kind, name, path } = item;
    let Ok(meta) = fs::symlink_metadata(path) else { return };
    match kind.as_str() {
        "systemd" if succeeds("systemctl", &["is-enabled", "--quiet", name]) => {
            cleaner
                .step(&format!("disable service {name}"), || cleanup::run("systemctl", &["disable", "--quiet", name]));
        }
        "slice" if succeeds("systemctl", &["is-active", "--quiet", name]) => {
            cleaner.step(&format!("stop {name}"), || cleanup::run("systemctl", &["stop", name]));
        }
        "openrc" => cleaner.step(&format!("disable service {name}"), || cleanup::run("rc-update", &["del", name])),
        // A command that somebody else has put there since is not ours.
        "link" if !meta.is_symlink() => return println!("keep {} (not the link that was installed)", path.display()),
        _ => {}
    }
    cleaner.step(&format!("remove {}", path.display()), || Ok(fs::remove_file(path)?));
}

/// The kubeconfig and the record are ours; the rest was written by the administrator.
fn remove_own_config(cleaner: &mut Cleaner) {
    let dir = Path::new(CONFIG_DIR);
    let names = |dir: &Path| -> Vec<String> {
        fs::read_dir(dir)
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect()
    };
    for name in ["kedge.yaml", "installed"] {
        remove_tree(cleaner, &dir.join(name));
    }
    let kept: Vec<String> = names(dir).into_iter().filter(|name| name != "kedge.yaml" && name != "installed").collect();
    if !kept.is_empty() {
        println!("keep {CONFIG_DIR} with {} (--delete-config removes it)", kept.join(", "));
    } else if dir.exists() {
        cleaner.step(&format!("remove {CONFIG_DIR}"), || Ok(fs::remove_dir(dir)?));
    }
}

/// Pods that kedge's kubelet had on this machine.
fn pod_uids(layout: &Layout) -> Vec<String> {
    let names =
        owned::our_pods(layout).into_iter().filter_map(|dir| Some(dir.file_name()?.to_string_lossy().into_owned()));
    names.filter(|uid| uid.len() >= 32).collect()
}

/// Logs of those pods in the folders that all kubelets of a machine share.
fn remove_logs(cleaner: &mut Cleaner, pods: &[String]) {
    let mut gone = Vec::new();
    for entry in fs::read_dir("/var/log/pods").into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if pods.iter().any(|uid| name.ends_with(&format!("_{uid}"))) {
            remove_tree(cleaner, &entry.path());
            gone.push(entry.path());
        }
    }
    for entry in fs::read_dir("/var/log/containers").into_iter().flatten().flatten() {
        if fs::read_link(entry.path()).is_ok_and(|target| gone.iter().any(|dir| target.starts_with(dir))) {
            remove_tree(cleaner, &entry.path());
        }
    }
}

/// Control groups of those pods with all that is in them, then the groups above if nobody else has pods there.
fn remove_cgroups(cleaner: &mut Cleaner, pods: &[String]) {
    let mut roots = vec![PathBuf::from("/sys/fs/cgroup")];
    roots.extend(
        fs::read_dir("/sys/fs/cgroup")
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path())
            .filter(|path| path.is_dir()),
    );
    let tops: Vec<PathBuf> = roots
        .iter()
        .flat_map(|root| ["kubepods", "kubepods.slice"].map(|top| root.join(top)))
        .filter(|top| top.is_dir())
        .collect();
    // The server's own, where no systemd made one: another server may be in it.
    let own = PathBuf::from("/sys/fs/cgroup/kedge");
    if own.is_dir() {
        cleaner.step(&format!("remove control group {} if it is empty", own.display()), || {
            remove_empty_cgroup(&own);
            Ok(())
        });
    }
    for top in tops {
        cleaner.step(&format!("remove control groups of pods in {}", top.display()), || {
            sweep_cgroups(&top, pods)?;
            remove_empty_cgroup(&top);
            Ok(())
        });
    }
}

fn sweep_cgroups(dir: &Path, pods: &[String]) -> Result<(), StepError> {
    for (name, path) in cgroups_in(dir) {
        if pods.iter().any(|uid| name.contains(uid.as_str()) || name.contains(&uid.replace('-', "_"))) {
            end_cgroup(&path)?;
        } else if ["besteffort", "burstable"].iter().any(|class| name.contains(class)) && !name.contains("-pod") {
            sweep_cgroups(&path, pods)?;
            remove_empty_cgroup(&path);
        }
    }
    Ok(())
}

fn cgroups_in(dir: &Path) -> Vec<(String, PathBuf)> {
    let entries =
        fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()).filter(|path| path.is_dir());
    entries.map(|path| (path.file_name().unwrap_or_default().to_string_lossy().into_owned(), path)).collect()
}

/// Ends what still runs in a pod's group, a container that was being made when its kubelet stopped, and removes it with
/// the groups in it.
fn end_cgroup(path: &Path) -> Result<(), StepError> {
    for (_, inner) in cgroups_in(path) {
        end_cgroup(&inner)?;
    }
    for pid in
        fs::read_to_string(path.join("cgroup.procs")).unwrap_or_default().lines().filter_map(|line| line.parse().ok())
    {
        // It may have ended with another one.
        let _gone = kill(Pid::from_raw(pid), Signal::SIGKILL);
        cleanup::wait_gone(pid);
    }
    stop_slice(path);
    match fs::remove_dir(path) {
        Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
            Err(StepError::ControlGroup { path: path.to_owned(), source })
        }
        _ => Ok(()),
    }
}

/// A group without another one in it; one that has is of another kubelet's pods.
fn remove_empty_cgroup(path: &Path) {
    if cgroups_in(path).is_empty() {
        stop_slice(path);
        // systemd has removed its own.
        let _removed_already = fs::remove_dir(path);
    }
}

/// Groups that systemd made are its units, and stay with it until they are stopped.
fn stop_slice(path: &Path) {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    if name.ends_with(".slice") && succeeds("systemctl", &["is-active", "--quiet", &name]) {
        // What it does not remove, rmdir does, or says why not.
        let _judged_by_rmdir = cleanup::run("systemctl", &["stop", &name]);
    }
    if name.starts_with("kubepods") && name.ends_with(".slice") {
        // The limits that the kubelet had systemd hold it to. They end with the machine's run, and harm nobody until
        // then.
        let _absent = fs::remove_dir_all(Path::new(base::traces::SYSTEMD_NOTES).join(format!("{name}.d")));
    }
}

/// Folders that kubelets, CNI plugins and runtimes of a machine share: they go if nothing is in them.
fn remove_empty_folders(cleaner: &mut Cleaner) {
    for dir in SHARED.map(Path::new).into_iter().filter(|dir| dir.is_dir()) {
        cleaner.step(&format!("remove {} if it is empty", dir.display()), || {
            // Somebody else's things are in it, or it is a mount.
            let _in_use = tree::remove_folders(dir);
            Ok(())
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_record_is_read_line_by_line() {
        let items = parse(
            "systemd kedge /etc/systemd/system/kedge.service\nlink kubectl /usr/local/bin/kubectl\n\nodd line\nlink x \
             relative\n",
        );
        assert_eq!(items.len(), 2);
        assert_eq!(
            items[0],
            Installed {
                kind: "systemd".into(),
                name: "kedge".into(),
                path: "/etc/systemd/system/kedge.service".into()
            }
        );
    }
}
