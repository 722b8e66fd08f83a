//! The way to a node that holds a tunnel open to another server only: that server passes the dials on.

use std::collections::BTreeMap;
use std::sync::Arc;

use base::chain::Chain;
use base::sync::Mutex;
use base::task::Group;
use tokio::sync::watch;
use tracing::{debug, info};
use wire::dial::Dial;
use wire::proxy::Target;
use wire::tunnel::Tunnel;

use crate::protocol::RELAY;
use crate::tunnel::{OpenError, target_of, upgraded};

/// Ways to nodes by way of other servers, made when they are needed.
pub struct Relay {
    /// Shows the supervisor's certificate, speaks HTTP/1.1.
    tls: Arc<rustls::ClientConfig>,
    /// The other servers, `host:port`.
    servers: watch::Receiver<Vec<String>>,
    open: Mutex<BTreeMap<String, Tunnel>>,
    group: Group,
}

impl Relay {
    /// Connections live in `group`.
    pub fn new(tls: Arc<rustls::ClientConfig>, servers: watch::Receiver<Vec<String>>, group: &Group) -> Relay {
        Relay { tls, servers, open: Mutex::default(), group: group.child("relays") }
    }

    /// The way to a node by way of the first other server that holds a tunnel to it.
    pub async fn to(&self, node: &str) -> Option<Arc<dyn Dial>> {
        let known = self.open.lock().get(node).filter(|way| !way.is_closed()).cloned();
        if let Some(way) = known {
            return Some(Arc::new(way));
        }
        let servers = self.servers.borrow().clone();
        for server in servers {
            let begun = match target_of(&server, &self.tls) {
                Ok(target) => self.begin(&target, node).await,
                Err(err) => Err(err),
            };
            match begun {
                Ok(way) => {
                    info!(node, peer = server, "node is reached by way of another server");
                    self.open.lock().insert(node.to_owned(), way.clone());
                    return Some(Arc::new(way));
                }
                Err(err) => debug!(node, peer = server, err = %Chain(&err), "no way to the node there"),
            }
        }
        None
    }

    async fn begin(&self, server: &Target, node: &str) -> Result<Tunnel, OpenError> {
        let stream = upgraded(server, &format!("{RELAY}{node}"), &self.group).await?;
        let (tunnel, ended) = Tunnel::accept(stream).await?;
        self.group.spawn_short("relay", ended);
        Ok(tunnel)
    }
}
