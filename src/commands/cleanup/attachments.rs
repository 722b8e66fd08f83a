//! Networks of pods that containerd did not live to end, as it does not show a sandbox before all of it runs: their
//! attachments, their namespaces, their cables, and what shims and runc that were killed leave in folders of all
//! runtimes of the machine.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::chain::Chain;
use base::confined::tree;
use base::traces;
use kubelet::runtime::attachments::{self, Places};
use network::leftovers::{Link, Machine};
use tokio::runtime::Runtime;

use super::error::StepError;
use super::{Cleaner, Mode, owned};

/// Where containerd names the network namespaces of sandboxes.
const NAMESPACES: &str = "/run/netns";
/// Sockets of shims, whoever's they are.
const SOCKETS: &str = "/run/containerd/s";
/// State of runc about the containers of CRI runtimes, whoever's they are.
const CONTAINERS: &str = "/run/containerd/runc/k8s.io";

impl Cleaner {
    /// Ends what containerd, which has ended, has left.
    pub(super) fn end_attachments(&mut self) {
        if self.mode == Mode::Print {
            // By then it will not be what it is now: containerd ends most of it.
            println!("end what containerd leaves of pods: networks, links, sockets");
            return;
        }
        let places = Places {
            records: attachments::RECORDS.into(),
            conf_dir: self.layout.agent().cni_conf(),
            plugin_dir: self.layout.cni_plugins(),
        };
        let pods: BTreeSet<String> = owned::our_pods(&self.layout)
            .iter()
            .filter_map(|dir| Some(dir.file_name()?.to_str()?.to_owned()))
            .collect();
        for attachment in attachments::recorded(&places, &|uid| pods.contains(uid)) {
            self.step(&format!("end the network of sandbox {}", attachment.sandbox), || {
                let ended = attachment.end(&places).or_else(|err| {
                    eprintln!("  {}: only what is recorded is removed", Chain(&err));
                    attachment.forget()
                });
                Ok(ended?)
            });
        }
        for path in empty_namespaces(Path::new(attachments::RECORDS), &Arc::clone(&self.runtime)) {
            self.step(&format!("remove network namespace {}", path.display()), || {
                Ok(attachments::remove_netns(&path)?)
            });
        }
    }

    /// Removes cables that plugins made last: a bridge that goes leaves those that were plugged into it.
    pub(super) fn remove_cables(&mut self) {
        if self.mode == Mode::Print {
            return;
        }
        let links = self.runtime.block_on(async { Machine::here()?.links().await });
        // What the kernel does not tell is said when the bridge itself is looked for.
        for link in cables(&links.unwrap_or_default()) {
            self.remove_link(&link);
        }
    }

    /// Removes what killed shims and a killed runc leave.
    pub(super) fn remove_runtime_rests(&mut self) {
        if self.mode == Mode::Print {
            return;
        }
        for path in dead_sockets(Path::new(SOCKETS)) {
            self.step(&format!("remove socket {}, on which nobody listens", path.display()), || {
                gone(fs::remove_file(&path))
            });
        }
        let state = self.layout.run().containerd();
        for path in containers_of(Path::new(CONTAINERS), &state) {
            self.step(&format!("remove {}", path.display()), || gone(tree::remove(&path).as_error()));
        }
    }
}

fn gone(removed: io::Result<()>) -> Result<(), StepError> {
    match removed {
        Err(err) if err.kind() != io::ErrorKind::NotFound => Err(err.into()),
        _ => Ok(()),
    }
}

/// Cables in our bridge, those that our plugin gives their names: `veth` and eleven digits, where upstream's has eight.
fn cables(links: &[Link]) -> Vec<Link> {
    let Some(bridge) = links.iter().find(|link| link.name == traces::BRIDGE) else { return Vec::new() };
    let is_ours = |name: &str| {
        name.strip_prefix("veth")
            .is_some_and(|hash| hash.len() == 11 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()))
    };
    let in_bridge = links.iter().filter(|link| link.is_veth && link.bridge == Some(bridge.index));
    in_bridge.filter(|link| is_ours(&link.name)).cloned().collect()
}

/// Namespaces of sandboxes that had come no further: no process is in them, no record of any network names them, and
/// they have no link but their loopback. Whoever made one, it is of use to nobody.
fn empty_namespaces(records: &Path, runtime: &Runtime) -> Vec<PathBuf> {
    let recorded: Vec<String> = fs::read_dir(records)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| fs::read_to_string(entry.path()).ok())
        .collect();
    let numbers: BTreeSet<u64> = fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| entry.file_name().to_str().is_some_and(|name| name.parse::<u32>().is_ok()))
        .filter_map(|entry| fs::metadata(entry.path().join("ns/net")).ok().map(|meta| meta.ino()))
        .collect();
    let is_empty = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let ours = name.starts_with("cni-") && !recorded.iter().any(|text| text.contains(name.as_ref()));
        ours && fs::metadata(path).is_ok_and(|meta| !numbers.contains(&meta.ino())) && has_only_loopback(path, runtime)
    };
    fs::read_dir(NAMESPACES).into_iter().flatten().flatten().map(|entry| entry.path()).filter(is_empty).collect()
}

fn has_only_loopback(path: &Path, runtime: &Runtime) -> bool {
    let device = |path: &Path| fs::metadata(path).map(|meta| meta.dev()).ok();
    if device(path) == device(Path::new(NAMESPACES)) {
        // A file on which nothing is mounted any more.
        return true;
    }
    runtime.block_on(async { Machine::inside(path)?.links().await }).is_ok_and(|links| only_loopback(&links))
}

/// Devices that the kernel puts into each new namespace for its modules of tunnels are not links of anybody's: they are
/// down.
fn only_loopback(links: &[Link]) -> bool {
    links.iter().all(|link| link.name == "lo" || link.is_idle)
}

/// Sockets in a folder that refuse to be connected to.
fn dead_sockets(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let sockets =
        entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_socket())).map(|entry| entry.path());
    sockets
        .filter(|path| UnixStream::connect(path).is_err_and(|err| err.kind() == io::ErrorKind::ConnectionRefused))
        .collect()
}

/// Folders of runc's in `dir` whose container has, or had, its bundle in our containerd's state folder.
fn containers_of(dir: &Path, state: &Path) -> Vec<PathBuf> {
    let bundles = state.join("io.containerd.runtime.v2.task/k8s.io");
    let is_ours = |path: &PathBuf| {
        let told = fs::read_to_string(path.join("state.json")).unwrap_or_default();
        let bundle = bundles.join(path.file_name().unwrap_or_default());
        bundle.exists() || told.contains(&format!("bundle={}", bundle.display()))
    };
    fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()).filter(is_ours).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    fn link(name: &str, bridge: Option<u32>) -> Link {
        Link { name: name.to_owned(), index: 7, bridge, is_veth: name.starts_with("veth"), is_idle: false }
    }

    #[test]
    fn cables_of_other_plugins_stay() {
        let own = link("veth0e0ff19102c", Some(7));
        let links = [
            link(traces::BRIDGE, None),
            own.clone(),
            link("veth0a1b2c3d", Some(7)),
            link("vethpeer", Some(7)),
            link("veth0e0ff19102d", Some(8)),
            Link { is_veth: false, ..link("veth0e0ff19102e", Some(7)) },
        ];
        assert_eq!(cables(&links), [own]);
        assert_eq!(cables(&links[1..]), [], "without our bridge none is ours");
    }

    #[test]
    fn only_a_namespace_without_links_is_empty() {
        let idle = Link { is_idle: true, ..link("tunl0", None) };
        assert!(only_loopback(&[]) && only_loopback(&[link("lo", None), idle]));
        assert!(!only_loopback(&[link("lo", None), link("eth0", None)]));
    }

    #[test]
    fn rests_are_told_from_what_lives_and_from_what_is_others() {
        let dir = tempfile::tempdir().unwrap();
        let (live, dead) = (dir.path().join("live"), dir.path().join("dead"));
        let _listens = UnixListener::bind(&live).unwrap();
        drop(UnixListener::bind(&dead).unwrap());
        assert_eq!(dead_sockets(dir.path()), [dead]);
        let (runc, state) = (dir.path().join("runc"), dir.path().join("state"));
        let bundles = state.join("io.containerd.runtime.v2.task/k8s.io");
        for name in ["begun", "run", "foreign"] {
            fs::create_dir_all(runc.join(name)).unwrap();
        }
        fs::create_dir_all(bundles.join("begun")).unwrap();
        let told =
            |name: &str, of: &Path| format!("{{\"config\":{{\"labels\":[\"bundle={}\"]}}}}", of.join(name).display());
        fs::write(runc.join("run/state.json"), told("run", &bundles)).unwrap();
        fs::write(runc.join("foreign/state.json"), told("foreign", Path::new("/run/other"))).unwrap();
        let mut found = containers_of(&runc, &state);
        found.sort();
        assert_eq!(found, [runc.join("begun"), runc.join("run")]);
    }
}
