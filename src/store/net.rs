//! For tests: a network in memory between stores, which can be cut.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use base::sync::Mutex;
use base::task::Group;
use base::time::Stopwatch;
use tokio_util::sync::CancellationToken;

use crate::bounds::Bounds;
use crate::config::Config;
use crate::disk::{Disk, SystemDisk};
use crate::kv::Revision;
use crate::member::{Bootstrap, Dial, Network, Peer};
use crate::store::Store;

/// How long [`until`] waits.
const PATIENCE: Duration = Duration::from_secs(120);
/// Bytes on their way in one direction.
const PIPE_BYTES: usize = 64 * 1024;

#[derive(Default)]
struct Wires {
    handlers: BTreeMap<String, (Arc<dyn wire::Handler>, Group)>,
    cut: BTreeSet<String>,
    open: Vec<(String, String, CancellationToken)>,
}

/// The network.
#[derive(Clone, Default)]
pub(crate) struct Net(Arc<Mutex<Wires>>);

struct Port {
    net: Net,
    from: String,
}

/// A member that is named as it is reached.
pub(crate) fn peer(name: &str) -> Peer {
    Peer { addr: name.to_owned(), name: name.to_owned() }
}

impl Net {
    fn wires(&self) -> std::sync::MutexGuard<'_, Wires> {
        self.0.lock()
    }

    /// Opens a store that is reached under `name`. What it and Raft say is seen with RUST_LOG and `--nocapture`.
    pub(crate) async fn open(&self, dir: &Path, name: &str, bootstrap: Bootstrap) -> (Arc<Store>, Group) {
        self.open_on(Arc::new(SystemDisk), dir, name, bootstrap).await.unwrap()
    }

    /// The same on a disk that may fail.
    pub(crate) async fn open_on(
        &self,
        disk: Arc<dyn Disk>,
        dir: &Path,
        name: &str,
        bootstrap: Bootstrap,
    ) -> Result<(Arc<Store>, Group), crate::error::Error> {
        let filter = tracing_subscriber::EnvFilter::from_default_env();
        // Only the first of a process's tests sets it.
        let _set = tracing_subscriber::fmt().with_env_filter(filter).with_test_writer().try_init();
        let (group, _reports) = Group::root(name);
        let dial = Arc::new(Port { net: self.clone(), from: name.to_owned() });
        let network = Network { name: name.to_owned(), address: name.to_owned(), dial };
        let config = Config {
            dir: dir.join(name),
            bootstrap,
            network: Some(network),
            rng: group.rng().clone(),
            bounds: Bounds::TESTS,
        };
        let store = match Store::open_on(disk, config, &group).await {
            Ok(store) => store,
            Err(err) => {
                group.shutdown().await;
                return Err(err);
            }
        };
        self.wires().handlers.insert(name.to_owned(), (store.peer_handler(), Group::root("net").0));
        Ok((store, group))
    }

    /// Takes a store off the network, as when its process ends.
    pub(crate) fn unplug(&self, name: &str) {
        let mut wires = self.wires();
        wires.handlers.remove(name);
        wires.open.retain(|(a, b, token)| {
            let keep = a != name && b != name;
            if !keep {
                token.cancel();
            }
            keep
        });
    }

    /// Has a store be reached under another name, and its connections end, as when its machine gets another address.
    pub(crate) fn rename(&self, from: &str, to: &str) {
        let handler = self.wires().handlers.get(from).cloned();
        self.unplug(from);
        self.wires().handlers.extend(handler.map(|handler| (to.to_owned(), handler)));
    }

    /// Cuts a store off from all others.
    pub(crate) fn cut(&self, name: &str) {
        let mut wires = self.wires();
        wires.cut.insert(name.to_owned());
        for (a, b, token) in &wires.open {
            if a == name || b == name {
                token.cancel();
            }
        }
    }

    /// Undoes [`Net::cut`].
    pub(crate) fn heal(&self, name: &str) {
        self.wires().cut.remove(name);
    }
}

#[async_trait]
impl Dial for Port {
    async fn dial(&self, address: &str) -> io::Result<Box<dyn wire::dial::Stream>> {
        let (client, server) = tokio::io::duplex(PIPE_BYTES);
        let mut wires = self.net.wires();
        if wires.cut.contains(&self.from) || wires.cut.contains(address) {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "cut"));
        }
        let Some((handler, group)) = wires.handlers.get(address).cloned() else {
            return Err(io::ErrorKind::ConnectionRefused.into());
        };
        let token = CancellationToken::new();
        wires.open.push((self.from.clone(), address.to_owned(), token.clone()));
        let conn = wire::ConnInfo::in_process(Arc::new(()));
        group.spawn_short("conn", async move {
            tokio::select! {
                _ended = wire::serve::serve_stream(server, conn, handler) => {}
                () = token.cancelled() => {}
            }
        });
        Ok(Box::new(client))
    }
}

/// Hash and revision of each member's content, values included.
pub(crate) async fn hashes(stores: &[(Arc<Store>, Group)]) -> Vec<(u64, Revision)> {
    let hashes = stores.iter().map(|(store, _)| async move { store.hash(None).await.unwrap() });
    futures_util::future::join_all(hashes).await
}

/// Waits until `holds`: for long, as a test may share a slow machine with many others.
pub(crate) async fn until(what: &str, holds: impl AsyncFnMut() -> bool) {
    until_or(what, holds, String::new).await;
}

/// The same, with a word on how things stand for the one who reads of the failure.
pub(crate) async fn until_or(what: &str, mut holds: impl AsyncFnMut() -> bool, how_it_stands: impl Fn() -> String) {
    let begun = Stopwatch::start();
    while !holds().await {
        assert!(begun.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}\n{}", how_it_stands());
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
}

/// Waits until each store knows that all of them vote, and no others. From then on any majority of them can elect:
/// while the voters change, a majority of the old ones is needed as well.
pub(crate) async fn until_all_vote(stores: &[(Arc<Store>, Group)]) {
    let all = vec![stores.iter().map(|(store, _)| store.member_id()).collect::<BTreeSet<u64>>()];
    let votes = || stores.iter().map(|(store, _)| store.node().voters()).collect::<Vec<_>>();
    until_or("all vote", async || votes().iter().all(|seen| *seen == all), || format!("{:?}", votes())).await;
}
