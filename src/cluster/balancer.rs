//! The way from a node to some server: a TCP proxy on loopback that stays with one server while it is well and moves on
//! when it is not.
//!
//! The list of servers is kept in a file, so that a node starts while the server it once joined through is gone for
//! good.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use base::chain::Chain;
use base::files::{self, FileError};
use base::sync::Mutex;
use base::task::Group;
use serde::{Deserialize, Serialize};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::tunnel::split;

/// A server that does not take a connection by then is passed over.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// A server's health as far as it is known, best first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Health {
    Up,
    #[default]
    Unknown,
    Down,
}

#[derive(Default)]
struct Server {
    health: Health,
    /// Cuts the connections to it.
    cut: CancellationToken,
}

#[derive(Default)]
struct State {
    /// By `host:port`, in the order of the list.
    servers: Vec<String>,
    known: BTreeMap<String, Server>,
    active: Option<String>,
    /// Servers that are not believed, of which a person was told.
    doubted: BTreeSet<String>,
}

/// Content of the file.
#[derive(Default, Serialize, Deserialize)]
struct Saved {
    servers: Vec<String>,
}

/// Passes connections on to a healthy server.
pub struct Balancer {
    file: PathBuf,
    /// The address given by the person, which is the last resort.
    given: String,
    state: Mutex<State>,
}

impl State {
    /// Servers in the order in which a new connection tries them: the active one first unless it is down, then by
    /// health.
    fn candidates(&self) -> Vec<String> {
        let health = |server: &String| self.known.get(server).map_or(Health::Unknown, |known| known.health);
        let mut order = self.servers.clone();
        order.sort_by_key(|server| (health(server), self.active.as_ref() != Some(server)));
        if let Some(active) = self.active.clone().filter(|active| health(active) != Health::Down) {
            order.retain(|server| *server != active);
            order.insert(0, active);
        }
        order
    }
}

impl Balancer {
    /// Reads the servers that were known last time; `given` is tried after them. Errors: the file cannot be read.
    pub fn open(file: PathBuf, given: &str) -> Result<Arc<Balancer>, FileError> {
        // A file that cannot be understood is one that is not there: the given server is enough.
        let saved: Saved =
            files::read_if_exists(&file)?.and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default();
        let mut servers = saved.servers;
        servers.retain(|server| on_this_machine(given) || !on_this_machine(server));
        if !servers.iter().any(|server| server == given) {
            servers.push(given.to_owned());
        }
        let state = State { servers, ..State::default() };
        Ok(Arc::new(Balancer { file, given: given.to_owned(), state: Mutex::new(state) }))
    }

    fn with<T>(&self, look: impl FnOnce(&mut State) -> T) -> T {
        look(&mut self.state.lock())
    }

    /// Every server that may answer, in the order in which they are tried.
    pub fn candidates(&self) -> Vec<String> {
        self.with(|state| state.candidates())
    }

    /// The servers are these now. An empty list is not believed, nor is a server that says it is on this machine while
    /// the one that was named is not. Errors: the list cannot be saved; it is used all the same.
    pub fn set_servers(&self, mut servers: Vec<String>) -> Result<(), FileError> {
        if !on_this_machine(&self.given) {
            servers.retain(|server| {
                let believed = !on_this_machine(server);
                if !believed && self.with(|state| state.doubted.insert(server.clone())) {
                    let remedy = "give that server another --advertise-address or --node-ip";
                    warn!(
                        peer = server,
                        "a server advertises an address that leads back to this machine, which is not used: {remedy}"
                    );
                }
                believed
            });
        }
        if servers.is_empty() {
            return Ok(());
        }
        let text = serde_json::to_vec_pretty(&Saved { servers: servers.clone() }).unwrap_or_default();
        if !servers.contains(&self.given) {
            servers.push(self.given.clone());
        }
        let changed = self.with(|state| {
            let changed = state.servers != servers;
            let gone: Vec<String> = state.known.keys().filter(|known| !servers.contains(known)).cloned().collect();
            for server in gone {
                if let Some(known) = state.known.remove(&server) {
                    known.cut.cancel();
                }
            }
            state.active = state.active.take().filter(|active| servers.contains(active));
            state.servers.clone_from(&servers);
            changed
        });
        if changed {
            info!(servers = ?servers, "servers of the cluster");
        }
        if changed || !self.file.exists() {
            files::write_atomic(&self.file, &text, 0o600)?;
        }
        Ok(())
    }

    /// A server is well.
    pub fn up(&self, server: &str) {
        self.with(|state| state.known.entry(server.to_owned()).or_default().health = Health::Up);
    }

    /// A server is not well: connections to it are cut, so that their owners move on.
    pub fn down(&self, server: &str) {
        self.with(|state| {
            let known = state.known.entry(server.to_owned()).or_default();
            known.health = Health::Down;
            std::mem::take(&mut known.cut).cancel();
        });
    }

    /// Cuts every connection, so that their owners come back (with new certificates).
    pub fn cut_all(&self) {
        self.with(|state| state.known.values_mut().for_each(|known| std::mem::take(&mut known.cut).cancel()));
    }

    /// Listens on loopback and passes connections on until the group stops. Errors: the port is in use.
    pub async fn start(self: &Arc<Balancer>, addr: SocketAddr, group: &Group) -> io::Result<()> {
        let listener = TcpListener::bind(addr).await?;
        let (balancer, own) = (Arc::clone(self), group.child("balancer"));
        group.spawn("balancer", async move {
            loop {
                match listener.accept().await {
                    Ok((client, _)) => {
                        let balancer = Arc::clone(&balancer);
                        own.spawn_short("connection", async move { balancer.pass_on(client).await });
                    }
                    Err(err) => {
                        warn!(err = %Chain(&err), "cannot accept a connection");
                        tokio::time::sleep(Duration::from_millis(50)).await;
                    }
                }
            }
        });
        Ok(())
    }

    async fn pass_on(&self, mut client: TcpStream) {
        let Some((server, mut upstream, cut)) = self.connect().await else { return };
        let _no_delay = client.set_nodelay(true).and_then(|()| upstream.set_nodelay(true));
        tokio::select! {
            () = cut.cancelled() => debug!(peer = server, "connection to server cut"),
            ended = tokio::io::copy_bidirectional(&mut client, &mut upstream) => drop(ended),
        }
    }

    async fn connect(&self) -> Option<(String, TcpStream, CancellationToken)> {
        let mut failures = Vec::new();
        for server in self.candidates() {
            let timed_out = || io::Error::new(io::ErrorKind::TimedOut, "timed out");
            match tokio::time::timeout(CONNECT_TIMEOUT, TcpStream::connect(&server))
                .await
                .unwrap_or_else(|_| Err(timed_out()))
            {
                Ok(stream) => {
                    let cut = self.with(|state| {
                        let known = state.known.entry(server.clone()).or_default();
                        if known.health == Health::Down {
                            known.health = Health::Unknown;
                        }
                        let cut = known.cut.clone();
                        if state.active.as_ref() != Some(&server) {
                            info!(peer = server, "server chosen");
                            state.active = Some(server.clone());
                        }
                        cut
                    });
                    return Some((server, stream, cut));
                }
                Err(err) => {
                    self.down(&server);
                    failures.push(format!("{server}: {err}"));
                }
            }
        }
        let first = self.with(|state| state.active.take().is_some());
        if first {
            warn!(servers = failures.join("; "), "no server can be reached, trying again");
        }
        None
    }
}

/// Whether `host:port` never leaves the machine on which it is dialled.
fn on_this_machine(server: &str) -> bool {
    let host = split(server).map_or(server, |(host, _)| host);
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback() || ip.is_unspecified())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    async fn server(name: &'static str, group: &Group) -> (String, CancellationToken) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap().to_string();
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        group.spawn_short(name, async move {
            let mut held = Vec::new();
            loop {
                tokio::select! {
                    () = stopped.cancelled() => return,
                    accepted = listener.accept() => {
                        let mut socket = accepted.unwrap().0;
                        socket.write_all(name.as_bytes()).await.unwrap();
                        held.push(socket);
                    }
                }
            }
        });
        (addr, stop)
    }

    #[test]
    fn a_server_that_calls_itself_loopback_is_not_looked_for_on_this_machine() {
        let dir = tempfile::tempdir().unwrap();
        let balancer = Balancer::open(dir.path().join("a.json"), "10.0.0.1:6443").unwrap();
        balancer.set_servers(vec!["127.0.0.1:6443".to_owned()]).unwrap();
        assert_eq!(balancer.candidates(), ["10.0.0.1:6443"]);
        balancer.set_servers(vec!["[::1]:6443".to_owned(), "10.0.0.2:6443".to_owned()]).unwrap();
        assert_eq!(balancer.candidates(), ["10.0.0.2:6443", "10.0.0.1:6443"]);
        let beside = Balancer::open(dir.path().join("b.json"), "127.0.0.1:6443").unwrap();
        beside.set_servers(vec!["127.0.0.1:6443".to_owned(), "127.0.0.1:7443".to_owned()]).unwrap();
        assert_eq!(beside.candidates().len(), 2, "an agent beside its server");
    }

    async fn greeting(socket: &mut TcpStream) -> Option<u8> {
        let mut byte = [0];
        socket.read_exact(&mut byte).await.ok().map(|_| byte[0])
    }

    #[tokio::test]
    async fn connections_stay_with_one_server_and_move_when_it_dies() {
        let (group, _fatal) = Group::root("test");
        let dir = tempfile::tempdir().unwrap();
        let ((a, stop_a), (b, _b)) = (server("a", &group).await, server("b", &group).await);
        let file = dir.path().join("lb.json");
        let balancer = Balancer::open(file.clone(), &a).unwrap();
        balancer.set_servers(vec![a.clone(), b.clone()]).unwrap();
        let port = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        balancer.start(port, &group).await.unwrap();
        let mut one = TcpStream::connect(port).await.unwrap();
        let mut two = TcpStream::connect(port).await.unwrap();
        assert_eq!((greeting(&mut one).await, greeting(&mut two).await), (Some(b'a'), Some(b'a')));
        stop_a.cancel();
        balancer.down(&a);
        assert_eq!(greeting(&mut one).await, None, "a connection to a dead server is cut");
        let mut three = TcpStream::connect(port).await.unwrap();
        assert_eq!(greeting(&mut three).await, Some(b'b'));
        balancer.up(&a);
        assert_eq!(balancer.candidates()[0], b, "no fall-back while the new server is well");
        let again = Balancer::open(file, "localhost:1").unwrap();
        assert_eq!(again.candidates(), [a, b, "localhost:1".to_owned()]);
    }

    #[test]
    fn the_active_server_is_tried_first_unless_it_is_down_and_the_others_by_their_health() {
        let order = |active: Option<&str>, known: &[(&str, Health)]| {
            let known = known.iter().map(|(server, health)| {
                ((*server).to_owned(), Server { health: *health, cut: CancellationToken::new() })
            });
            let state = State {
                servers: ["a", "b", "c", "d"].map(str::to_owned).into(),
                known: known.collect(),
                active: active.map(str::to_owned),
                doubted: BTreeSet::new(),
            };
            state.candidates().concat()
        };
        use Health::{Down, Unknown, Up};
        for (active, known, want) in [
            (None, &[][..], "abcd"),
            (Some("c"), &[], "cabd"),
            (Some("c"), &[("c", Down)], "abdc"),
            (Some("c"), &[("a", Up), ("c", Unknown)], "cabd"),
            (None, &[("a", Down), ("b", Down), ("d", Up)], "dcab"),
            (Some("b"), &[("a", Up), ("b", Down), ("d", Up)], "adcb"),
            (Some("gone"), &[], "goneabcd"),
        ] {
            assert_eq!(order(active, known), want, "{active:?} {known:?}");
        }
    }

    #[test]
    fn a_list_of_servers_that_is_empty_or_broken_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("lb.json");
        std::fs::write(&file, "{").unwrap();
        let balancer = Balancer::open(file.clone(), "10.0.0.1:6443").unwrap();
        assert_eq!(balancer.candidates(), ["10.0.0.1:6443"]);
        balancer.set_servers(Vec::new()).unwrap();
        assert_eq!(balancer.candidates(), ["10.0.0.1:6443"]);
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "{", "nothing was written");
        assert!(Balancer::open(dir.path().to_owned(), "10.0.0.1:6443").is_err(), "it is a folder");
    }

    #[test]
    fn addresses_that_never_leave_the_machine_are_known_in_every_form() {
        for (server, want) in [
            ("localhost:6443", true),
            ("127.0.0.1:6443", true),
            ("127.9.9.9", true),
            ("[::1]:6443", true),
            ("0.0.0.0:6443", true),
            ("[::]:6443", true),
            ("10.0.0.1:6443", false),
            ("localhost.example:6443", false),
        ] {
            assert_eq!(on_this_machine(server), want, "{server}");
        }
    }
}
