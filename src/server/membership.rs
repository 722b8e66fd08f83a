//! A server among servers: where the others are, the tunnels to them, and members that go when their Nodes are deleted.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use base::chain::Chain;
use base::rng::Rng;
use base::task::Group;
use client::informer::{Change, Informers};
use cluster::supervisor::addresses_of;
use cluster::tunnel::{Keeper, Reach};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::ResourceExt as _;
use store::error::Error;
use store::store::Store;
use tokio::sync::watch;
use tracing::{error, info, warn};

/// The label of a Node that is a server's.
pub(crate) const CONTROL_PLANE: &str = "node-role.kubernetes.io/control-plane";
/// After a member could not be removed, before the next try.
const RETRY: Duration = Duration::from_secs(5);
/// Tries to remove a member: a store without a majority cannot.
const TRIES: usize = 60;

/// Tells where the other servers are (`host:port`), as the endpoints of the service `kubernetes` say.
pub(crate) fn follow_servers(
    tell: watch::Sender<Vec<String>>,
    own: impl Fn() -> String + Send + 'static,
    informers: &Informers,
    group: &Group,
) {
    let slices = informers.get::<EndpointSlice>();
    group.spawn("servers", async move {
        let mut changes = slices.changes();
        slices.synced().await;
        loop {
            if let Some(slice) = slices.get("default", "kubernetes") {
                let mut servers = addresses_of(&slice);
                let own = own();
                servers.retain(|server| *server != own);
                tell.send_if_modified(|now| {
                    let changed = *now != servers;
                    *now = servers;
                    changed
                });
            }
            changes.next().await;
            changes.drain();
        }
    });
}

/// Has the other members find this one under the address that the machine has now.
pub(crate) fn follow_address(store: Arc<Store>, mut advertised: watch::Receiver<IpAddr>, port: u16, group: &Group) {
    group.spawn("member-address", async move {
        loop {
            store.moved(&SocketAddr::new(*advertised.borrow_and_update(), port).to_string());
            if advertised.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    });
}

/// Keeps a tunnel of this server's own node to each other server.
pub(crate) fn keep_tunnels(
    tls: Arc<rustls::ClientConfig>,
    reach: Arc<dyn Reach>,
    servers: watch::Receiver<Vec<String>>,
    rng: Rng,
    group: &Group,
) {
    let (renew, renewed) = watch::channel(0);
    Keeper { tls, reach, balancer: None, opened: watch::Sender::default(), rng }.start(servers, renewed, group);
    group.spawn("tunnels-certificates", async move {
        // The keeper waits for news on this channel as long as it lives.
        let _open = renew;
        std::future::pending::<()>().await;
    });
}

/// Lets a member go whose Node somebody deleted. Every other server does it, for any of them may be the one that sees
/// it.
pub(crate) fn follow_nodes(store: Arc<Store>, own_name: String, informers: &Informers, group: &Group) {
    let nodes = informers.get::<Node>();
    let removals = group.child("removals");
    group.spawn("deleted-members", async move {
        let mut changes = nodes.changes();
        nodes.synced().await;
        loop {
            let Change::Deleted(node) = changes.next().await else { continue };
            let (store, name) = (Arc::clone(&store), node.name_any());
            if name != own_name {
                removals.spawn_short("removal", async move { remove(&store, &name).await });
            }
        }
    });
}

/// Ends this process, loudly, when the cluster let its member go: nothing can be read or written here any more.
pub(crate) fn end_when_removed(store: Arc<Store>, db: PathBuf, group: &Group) {
    group.spawn("membership", async move {
        store.removed().await;
        error!(
            path = %db.display(),
            "this server was removed from the cluster: to let it join again remove that folder and start it with \
             --server"
        );
    });
}

async fn remove(store: &Store, name: &str) {
    for n in 0..TRIES {
        // A store that cannot say who its members are (a leader just went) is asked again: the Node is deleted once
        // only.
        let tried = match store.members().await {
            Ok(members) => match members.iter().find(|member| member.name == name && member.id != store.member_id()) {
                Some(member) => store.remove(member.id).await,
                // An agent, or a server that another one removed.
                None if n == 0 => return,
                None => Ok(()),
            },
            Err(err) => Err(err),
        };
        match tried {
            // Gone already: another server was faster, or an answer was lost.
            Ok(()) | Err(Error::MemberNotFound { .. }) => {
                info!(node = name, "the node was deleted: its server is a member of the store no more");
                return warn_of_two(store).await;
            }
            Err(Error::LastMember) => return,
            Err(err) => {
                warn!(node = name, err = %Chain(&err), "the server of a deleted node cannot be removed from the store \
                    yet")
            }
        }
        tokio::time::sleep(RETRY).await;
    }
}

/// Says loudly what two voters mean.
pub(crate) async fn warn_of_two(store: &Store) {
    let Ok(members) = store.members().await else { return };
    let voters: Vec<&str> = members.iter().filter(|member| member.voter).map(|member| member.name.as_str()).collect();
    if voters.len() == 2 {
        warn!(
            servers = voters.join(", "),
            "TWO SERVERS ARE LESS SAFE THAN ONE: if either is down, nothing can be written. Add a third, or remove \
             one with 'kubectl delete node'"
        );
    }
}
