//! Plugins that say who they are by a socket in `plugins_registry`: drivers of volumes (CSI), and plugins of devices.
//!
//! The folder is watched; without plugins nothing runs. A socket that is gone takes its plugin out, one made anew is
//! asked again.

pub(crate) mod link;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base::backoff::Backoff;
use base::chain::Chain;
use base::folder::FolderWatch;
use base::task::Group;
use proto::plugins as pb;
use tokio::time::Instant;
use tracing::{info, warn};

use self::link::{CallError, Link};
use crate::csi;
use crate::csi::error::RegistrationError;
use crate::devices;
use crate::devices::follow::DevicePluginError;
use crate::node::Node;

/// A plugin answers by then who it is.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Between two tries with a plugin that fails: the first and the longest pause.
const RETRY: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(60));
/// Folders in folders are looked through this deep.
const DEPTH_MAX: usize = 4;

/// A plugin that cannot be taken in, in upstream's words.
#[derive(Debug, thiserror::Error)]
enum PluginError {
    #[error("failed to get plugin info using RPC GetInfo at socket {socket}, err", socket = socket.display())]
    Info { socket: PathBuf, source: CallError },
    #[error("no handler registered for plugin type: {kind} at socket {socket}", socket = socket.display())]
    NoHandler { kind: String, socket: PathBuf },
    #[error(transparent)]
    Csi(#[from] RegistrationError),
    #[error(transparent)]
    Devices(#[from] DevicePluginError),
}

/// A plugin by its kind and its name.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    Csi(String),
    Devices(String),
}

/// One socket.
struct Known {
    /// Tells a socket from a later one of its name.
    stamp: (u64, i64, i64),
    plugin: Option<Kind>,
    /// When to ask again.
    retry: Option<Instant>,
    backoff: Backoff,
}

/// Starts to follow the folder.
pub(crate) fn start(node: Arc<Node>, group: &Group) {
    let own = group.clone();
    group.spawn("plugins", async move {
        let registry = node.config.root_dir.join("plugins_registry");
        csi::node::ensure(&node).await;
        let watch = match FolderWatch::new(&registry) {
            Ok(watch) => watch,
            Err(err) => {
                warn!(path = %registry.display(), err = %Chain(&err), "cannot watch for plugins: none is taken in");
                return std::future::pending().await;
            }
        };
        let mut known: BTreeMap<PathBuf, Known> = BTreeMap::new();
        loop {
            if let Err(err) = watch.renew() {
                let path = registry.display();
                warn!(%path, err = %Chain(&err), "cannot watch for plugins in folders that came since");
            }
            look(&node, &own, &registry, &mut known).await;
            let retry = known.values().filter_map(|k| k.retry).min();
            tokio::select! {
                () = watch.changed() => {}
                () = async { match retry {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }} => {}
            }
        }
    });
}

/// Compares the folder with what is known.
async fn look(node: &Arc<Node>, group: &Group, registry: &Path, known: &mut BTreeMap<PathBuf, Known>) {
    let mut found = BTreeMap::new();
    if let Err(err) = sockets(registry, 0, &mut found) {
        warn!(path = %registry.display(), err = %Chain(&err), "cannot look for plugins");
        return;
    }
    let gone: Vec<PathBuf> =
        known.iter().filter(|(path, k)| found.get(*path) != Some(&k.stamp)).map(|(path, _)| path.clone()).collect();
    for path in gone {
        let Some(plugin) = known.remove(&path).and_then(|k| k.plugin) else { continue };
        // A plugin that was started anew has its next socket there already: it is asked, and replaces what is known of
        // it.
        if !found.contains_key(&path) {
            take_out(node, &plugin).await;
        }
    }
    for (path, stamp) in found {
        let entry = known.entry(path.clone()).or_insert_with(|| Known {
            stamp,
            plugin: None,
            retry: Some(Instant::now()),
            backoff: Backoff::new(RETRY.0, RETRY.1),
        });
        if entry.retry.is_none_or(|at| at > Instant::now()) {
            continue;
        }
        match take_in(node, group, &path).await {
            Ok(plugin) => {
                info!(plugin = ?plugin, path = %path.display(), "plugin registered");
                (entry.plugin, entry.retry) = (Some(plugin), None);
            }
            Err(err) => {
                warn!(path = %path.display(), err = %Chain(&err), "cannot register a plugin");
                entry.retry = Some(Instant::now() + entry.backoff.next(&node.rng));
            }
        }
    }
}

fn sockets(dir: &Path, depth: usize, found: &mut BTreeMap<PathBuf, (u64, i64, i64)>) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        let Ok(meta) = entry.metadata() else { continue };
        if name.to_string_lossy().starts_with('.') {
            continue;
        }
        if meta.file_type().is_socket() {
            found.insert(entry.path(), (meta.ino(), meta.ctime(), meta.ctime_nsec()));
        } else if meta.is_dir() && depth < DEPTH_MAX {
            // Gone since it was listed, if anything.
            let _gone = sockets(&entry.path(), depth + 1, found);
        }
    }
    Ok(())
}

async fn take_in(node: &Arc<Node>, group: &Group, socket: &Path) -> Result<Kind, PluginError> {
    let link = Link::new(socket);
    let answer = link.call(pb::GET_INFO, pb::Empty {}, TIMEOUT).await;
    let info = answer.map_err(|source| PluginError::Info { socket: socket.to_owned(), source })?;
    let taken = register(node, group, socket, info).await;
    let status = status(taken.as_ref().err());
    let told: Result<pb::Empty, _> = link.call(pb::NOTIFY_REGISTRATION_STATUS, status, TIMEOUT).await;
    if let Err(err) = told {
        warn!(path = %socket.display(), err = %err, "cannot tell a plugin what became of its registration");
    }
    taken
}

async fn register(node: &Arc<Node>, group: &Group, socket: &Path, info: pb::PluginInfo) -> Result<Kind, PluginError> {
    let endpoint = if info.endpoint.is_empty() { socket.to_owned() } else { PathBuf::from(&info.endpoint) };
    let (name, versions) = (info.name, info.supported_versions);
    match info.kind.as_str() {
        "CSIPlugin" => {
            csi::node::register(node, &name, &endpoint, &versions).await?;
            Ok(Kind::Csi(name))
        }
        "DevicePlugin" => {
            devices::follow::by_registry(node, group, &name, &endpoint, &versions).await?;
            Ok(Kind::Devices(name))
        }
        _ => Err(PluginError::NoHandler { kind: info.kind, socket: socket.to_owned() }),
    }
}

/// The answer to a plugin: it was taken in, or why not.
fn status(fault: Option<&PluginError>) -> pb::RegistrationStatus {
    let text =
        |err: &PluginError| format!("RegisterPlugin error -- plugin registration failed with err: {}", Chain(err));
    pb::RegistrationStatus { plugin_registered: fault.is_none(), error: fault.map(text).unwrap_or_default() }
}

async fn take_out(node: &Arc<Node>, plugin: &Kind) {
    info!(plugin = ?plugin, "plugin is gone");
    match plugin {
        Kind::Csi(name) => csi::node::deregister(node, name).await,
        Kind::Devices(resource) => node.devices.stop(resource),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_are_found_in_folders_too_and_hidden_ones_are_not() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("sub")).unwrap();
        let bind = |name: &str| std::os::unix::net::UnixListener::bind(dir.path().join(name)).unwrap();
        let _open = [bind("a.sock"), bind(".hidden.sock"), bind("sub/b.sock")];
        fs::write(dir.path().join("file"), "").unwrap();
        let mut found = BTreeMap::new();
        sockets(dir.path(), 0, &mut found).unwrap();
        let names: Vec<String> =
            found.keys().map(|path| path.strip_prefix(dir.path()).unwrap().to_string_lossy().into_owned()).collect();
        assert_eq!(names, ["a.sock", "sub/b.sock"]);
    }

    #[test]
    fn a_plugin_is_told_why_it_was_not_taken_in() {
        let taken = status(None);
        assert!(taken.plugin_registered && taken.error.is_empty());
        let kind = PluginError::NoHandler { kind: "DRAPlugin".to_owned(), socket: "/s".into() };
        let refused = status(Some(&kind));
        assert!(!refused.plugin_registered);
        assert_eq!(
            refused.error,
            "RegisterPlugin error -- plugin registration failed with err: \
             no handler registered for plugin type: DRAPlugin at socket /s"
        );
        let source = CallError { code: tonic::Code::Unavailable, message: "away".to_owned() };
        let silent = status(Some(&PluginError::Info { socket: "/s".into(), source }));
        let text = "failed to get plugin info using RPC GetInfo at socket /s, err: \
            rpc error: code = Unavailable desc = away";
        assert!(silent.error.ends_with(text), "{}", silent.error);
    }
}
