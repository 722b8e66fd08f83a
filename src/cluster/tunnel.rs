//! Tunnels: nodes open one to every server and keep it; servers find the way to a node among those that are open.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base::backoff::Backoff;
use base::chain::Chain;
use base::rng::Rng;
use base::sync::Mutex;
use base::task::Group;
use http::{HeaderMap, StatusCode};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info};
use wire::dial::{Dial, DialError, Stream};
use wire::proxy::{self, Target};
use wire::tunnel::{PROTOCOL, Tunnel};

use crate::balancer::Balancer;
use crate::protocol::TUNNEL;

struct Open {
    id: u64,
    peer: IpAddr,
    tunnel: Tunnel,
    cut: CancellationToken,
}

/// Tunnels of one node: one, and for a while the one that it replaces. Another takes the place of the oldest.
const PER_NODE_MAX: usize = 4;

/// The tunnels that nodes hold open to this server.
#[derive(Default)]
pub struct Tunnels {
    by_node: Mutex<BTreeMap<String, Vec<Open>>>,
    last_id: AtomicU64,
}

impl Tunnels {
    fn with<T>(&self, look: impl FnOnce(&mut BTreeMap<String, Vec<Open>>) -> T) -> T {
        look(&mut self.by_node.lock())
    }

    /// Takes a tunnel in; the answer is for [`Tunnels::remove`], and the token says when to let it go.
    pub fn add(&self, node: &str, peer: IpAddr, tunnel: Tunnel) -> (u64, CancellationToken) {
        let (id, cut) = (self.last_id.fetch_add(1, Ordering::Relaxed), CancellationToken::new());
        let open = Open { id, peer, tunnel, cut: cut.clone() };
        self.with(|all| {
            let of_node = all.entry(node.to_owned()).or_default();
            if of_node.len() >= PER_NODE_MAX {
                of_node.remove(0).cut.cancel();
            }
            of_node.push(open);
        });
        (id, cut)
    }

    /// Lets all tunnels go, so that the nodes turn to other servers.
    pub fn cut_all(&self) {
        self.with(|all| all.values().flatten().for_each(|open| open.cut.cancel()));
    }

    /// Forgets a tunnel that ended.
    pub fn remove(&self, node: &str, id: u64) {
        self.with(|all| {
            if let Some(open) = all.get_mut(node) {
                open.retain(|tunnel| tunnel.id != id);
            }
            all.retain(|_, open| !open.is_empty());
        });
    }

    /// The way to a node: its newest tunnel.
    pub fn to(&self, node: &str) -> Option<Arc<dyn Dial>> {
        self.with(|all| {
            let open = all.get(node)?.iter().rev().find(|open| !open.tunnel.is_closed())?;
            Some(Arc::new(open.tunnel.clone()) as Arc<dyn Dial>)
        })
    }

    /// Where else a node of this name is connected from.
    pub fn elsewhere(&self, node: &str, address: IpAddr) -> Option<IpAddr> {
        self.with(|all| {
            all.get(node)?.iter().find(|open| !open.tunnel.is_closed() && open.peer != address).map(|open| open.peer)
        })
    }

    /// Nodes with a tunnel, by name.
    pub fn nodes(&self) -> Vec<String> {
        self.with(|all| all.keys().cloned().collect())
    }
}

/// Addresses that servers may reach over this node's tunnels.
pub trait Reach: Send + Sync + 'static {
    /// Whether a server may dial `host:port`.
    fn allows(&self, host: IpAddr, port: u16) -> bool;
}

struct Gate(Arc<dyn Reach>);

#[async_trait::async_trait]
impl Dial for Gate {
    async fn dial(&self, host: &str, port: u16) -> io::Result<Box<dyn Stream>> {
        let denied = || {
            io::Error::new(
                io::ErrorKind::PermissionDenied,
                format!("this node does not let servers reach {host}:{port}"),
            )
        };
        let ip: IpAddr = host.parse().map_err(|_| denied())?;
        if !self.0.allows(ip, port) {
            return Err(denied());
        }
        wire::dial::tcp(host, port, host, None).await.map_err(|err| io::Error::other(Chain(&err).to_string()))
    }
}

/// Keeps a node's tunnels.
pub struct Keeper {
    /// Shows the node's client certificate and trusts servers.
    pub tls: Arc<rustls::ClientConfig>,
    /// Addresses that servers may reach.
    pub reach: Arc<dyn Reach>,
    /// Told which servers are up; `None` on a machine that is a server itself.
    pub balancer: Option<Arc<Balancer>>,
    /// Counts the tunnels that were opened.
    pub opened: watch::Sender<u64>,
    /// Jitter.
    pub rng: Rng,
}

impl Keeper {
    /// Keeps one tunnel to each of `servers` (`host:port`), which may change; `renewed` makes all of them be opened
    /// anew.
    pub fn start(self, mut servers: watch::Receiver<Vec<String>>, renewed: watch::Receiver<u64>, group: &Group) {
        let (keeper, own) = (Arc::new(self), group.child("tunnels"));
        group.spawn("tunnels", async move {
            let mut kept: BTreeMap<String, CancellationToken> = BTreeMap::new();
            loop {
                let wanted = servers.borrow_and_update().clone();
                kept.retain(|server, stop| {
                    let stays = wanted.contains(server);
                    if !stays {
                        stop.cancel();
                    }
                    stays
                });
                for server in wanted {
                    kept.entry(server.clone()).or_insert_with(|| {
                        let (stop, keeper, renewed, streams) =
                            (CancellationToken::new(), Arc::clone(&keeper), renewed.clone(), own.clone());
                        let stopped = stop.clone();
                        own.spawn_short("tunnel", async move {
                            tokio::select! {
                                () = stopped.cancelled() => {}
                                () = keeper.keep(&server, renewed, &streams) => {}
                            }
                        });
                        stop
                    });
                }
                if servers.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
            }
        });
    }

    async fn keep(&self, server: &str, mut renewed: watch::Receiver<u64>, group: &Group) {
        let mut backoff = Backoff::new(Duration::from_millis(250), Duration::from_secs(3));
        loop {
            renewed.mark_unchanged();
            match self.open(server, group).await {
                Ok(stream) => {
                    info!(peer = server, "tunnel to server opened");
                    backoff.reset();
                    self.opened.send_modify(|n| *n += 1);
                    if let Some(balancer) = &self.balancer {
                        balancer.up(server);
                    }
                    let served = wire::tunnel::serve(stream, Arc::new(Gate(Arc::clone(&self.reach))), group);
                    let lost = tokio::select! {
                        ended = served => { debug!(peer = server, err = ?ended.err(), "tunnel ended"); true }
                        // A new certificate: the old one would end with its connection's owner still on it.
                        _ = renewed.changed() => false,
                    };
                    if lost {
                        info!(peer = server, "tunnel to server lost");
                        if let Some(balancer) = &self.balancer {
                            balancer.down(server);
                        }
                    }
                }
                Err(err) => {
                    if backoff.failures() == 0 {
                        info!(peer = server, err = %Chain(&err), "cannot open a tunnel to server, trying again");
                    }
                    if let Some(balancer) = &self.balancer {
                        balancer.down(server);
                    }
                }
            }
            tokio::time::sleep(backoff.next(&self.rng)).await;
        }
    }

    async fn open(&self, server: &str, group: &Group) -> Result<Box<dyn Stream>, OpenError> {
        upgraded(&target_of(server, &self.tls)?, TUNNEL, group).await
    }
}

/// Why a server gave no tunnel.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OpenError {
    #[error("'{0}' is not host:port")]
    Address(String),
    #[error(transparent)]
    Dial(#[from] DialError),
    #[error("the server answered {0}")]
    Refused(StatusCode),
    /// The connection broke before the tunnel spoke.
    #[error(transparent)]
    Broken(#[from] io::Error),
}

/// A server (`host:port`) as what is asked for a tunnel.
pub(crate) fn target_of(server: &str, tls: &Arc<rustls::ClientConfig>) -> Result<Target, OpenError> {
    let (host, port) = split(server).ok_or_else(|| OpenError::Address(server.to_owned()))?;
    Ok(Target { host: host.to_owned(), port, tls: Some(Arc::clone(tls)), server_name: None, via: None })
}

/// Asks for the upgrade to a tunnel at `path`.
pub(crate) async fn upgraded(target: &Target, path: &str, group: &Group) -> Result<Box<dyn Stream>, OpenError> {
    let answer = proxy::open_upgrade(target, path, PROTOCOL, HeaderMap::new(), group).await?;
    answer.map_err(|answer| OpenError::Refused(answer.status()))
}

/// Host and port of `host:port`, the brackets of an IPv6 address taken off.
pub fn split(server: &str) -> Option<(&str, u16)> {
    let (host, port) = server.rsplit_once(':')?;
    Some((host.trim_start_matches('[').trim_end_matches(']'), port.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_node_has_a_few_tunnels_and_loses_the_oldest() {
        let (tunnels, mut cuts) = (Tunnels::default(), Vec::new());
        for _ in 0..PER_NODE_MAX + 2 {
            let (tunnel, _driven) = Tunnel::accept(tokio::io::duplex(1 << 16).0).await.unwrap();
            cuts.push(tunnels.add("n1", IpAddr::from([192, 0, 2, 1]), tunnel).1);
        }
        let cut: Vec<bool> = cuts.iter().map(CancellationToken::is_cancelled).collect();
        assert_eq!(cut, [true, true, false, false, false, false]);
        assert_eq!(tunnels.with(|all| all["n1"].len()), PER_NODE_MAX);
    }

    #[test]
    fn an_address_is_split_at_its_last_colon() {
        assert_eq!(split("10.0.0.1:6443"), Some(("10.0.0.1", 6443)));
        assert_eq!(split("[fd00::1]:6443"), Some(("fd00::1", 6443)));
        assert_eq!(split("10.0.0.1"), None);
    }

    #[tokio::test]
    async fn a_node_is_reached_by_its_newest_tunnel_and_known_by_where_it_comes_from() {
        let (tunnels, [here, there]) = (Tunnels::default(), [1, 2].map(|n| IpAddr::from([192, 0, 2, n])));
        let (tunnel, _driven) = Tunnel::accept(tokio::io::duplex(1 << 16).0).await.unwrap();
        let (id, cut) = tunnels.add("n1", here, tunnel);
        assert_eq!(tunnels.nodes(), ["n1"]);
        assert!(tunnels.to("n1").is_some() && tunnels.to("n2").is_none());
        assert_eq!(tunnels.elsewhere("n1", here), None);
        assert_eq!(tunnels.elsewhere("n1", there), Some(here));
        assert_eq!(tunnels.elsewhere("n2", there), None);
        tunnels.cut_all();
        assert!(cut.is_cancelled());
        tunnels.remove("n1", id + 1);
        assert_eq!(tunnels.nodes(), ["n1"], "another one ended");
        tunnels.remove("n1", id);
        assert_eq!(tunnels.nodes(), [""; 0]);
        assert_eq!(tunnels.elsewhere("n1", there), None);
    }
}
