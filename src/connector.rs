//! The API server's way to kubelets, pods and services, with its own client certificate: through a node's tunnel where it holds one
//! open, else straight over the network.

use std::sync::Arc;

use apiserver::connect::{Connector, Target};
use apiserver::status::Status;
use apiserver::stream::{log, port_forward, remote_command};
use async_trait::async_trait;
use base::chain::Chain;
use base::task::Group;
use cluster::relay::Relay;
use cluster::tunnel::Tunnels;
use http::{Request, Response};
use serde_json::Value;
use wire::dial::Dial;
use wire::{Body, proxy};

/// The kubelet's port when a Node does not tell it.
const KUBELET_PORT: u16 = 10250;
/// Address types in the order in which kubelets are tried, as k3s has it.
const ADDRESS_TYPES: [&str; 3] = ["InternalIP", "ExternalIP", "Hostname"];

/// Dials; streams live in a task group.
pub(crate) struct Direct {
    /// Trusts kubelets' serving certificates and shows the API server's client certificate.
    kubelets: Arc<rustls::ClientConfig>,
    /// For `https:` proxy targets, whose certificates upstream does not verify either.
    unverified: Arc<rustls::ClientConfig>,
    /// The ways to nodes that cannot be dialled.
    tunnels: Arc<Tunnels>,
    /// The ways by way of other servers.
    relay: Relay,
    /// This server's own node, which needs no way.
    own: String,
    group: Group,
}

impl Direct {
    /// A connector whose connections live in `group`.
    pub(crate) fn new(
        kubelets: Arc<rustls::ClientConfig>,
        unverified: Arc<rustls::ClientConfig>,
        tunnels: Arc<Tunnels>,
        relay: Relay,
        own: &str,
        group: &Group,
    ) -> Direct {
        // Every connection here is HTTP/1.1: upgrades need it.
        let h1 = |config: Arc<rustls::ClientConfig>| {
            let mut config = rustls::ClientConfig::clone(&config);
            config.alpn_protocols = vec![b"http/1.1".to_vec()];
            Arc::new(config)
        };
        Direct { kubelets: h1(kubelets), unverified: h1(unverified), tunnels, relay, own: own.to_owned(), group: group.child("streams") }
    }

    /// The way to a node: its tunnel to this server, else one to another server; none is the network.
    async fn way_to(&self, node: &str) -> Option<Arc<dyn Dial>> {
        if node == self.own {
            return None;
        }
        match self.tunnels.to(node) {
            Some(way) => Some(way),
            None => self.relay.to(node).await,
        }
    }
}

/// Where the kubelet of a node listens.
fn kubelet_address(node: &Value) -> Option<(String, u16)> {
    let addresses = node.pointer("/status/addresses")?.as_array()?;
    let of_type = |wanted: &str| addresses.iter().find(|a| a["type"] == wanted).and_then(|a| a["address"].as_str());
    let host = ADDRESS_TYPES.iter().find_map(|wanted| of_type(wanted))?.to_owned();
    let port = node.pointer("/status/daemonEndpoints/kubeletEndpoint/Port").and_then(Value::as_u64);
    Some((host, port.and_then(|port| u16::try_from(port).ok()).unwrap_or(KUBELET_PORT)))
}

#[async_trait]
impl Connector for Direct {
    async fn connect(&self, target: Target, request: Request<Body>) -> Result<Response<Body>, Status> {
        let unreachable = |err: wire::dial::DialError| Status::internal(format!("error dialing backend: {}", Chain(&err)));
        match target {
            Target::Kubelet { node, path_and_query } => {
                let name = schema::meta::name(&node).to_owned();
                let (host, port) =
                    kubelet_address(&node).ok_or_else(|| Status::internal(format!("no preferred addresses found for node {name:?}")))?;
                // At the end of its tunnel a kubelet is on loopback.
                let via = self.way_to(&name).await;
                let host = if via.is_some() { "127.0.0.1".to_owned() } else { host };
                let to = proxy::Target { host, port, tls: Some(Arc::clone(&self.kubelets)), server_name: Some(name), via };
                let path = path_and_query.as_str();
                if path.starts_with("/portForward/") {
                    port_forward::connect(request, &to, path, &self.group).await.map_err(unreachable)
                } else if path.starts_with("/exec/") || path.starts_with("/attach/") {
                    remote_command::connect(request, &to, path, &self.group).await.map_err(unreachable)
                } else if path.starts_with("/containerLogs/") {
                    log::connect(request, &to, path, &self.group).await.map_err(unreachable)
                } else {
                    proxy::forward(request, &to, path, &self.group).await.map_err(unreachable)
                }
            }
            Target::Proxy { scheme, host, port, path_and_query, node, .. } => {
                let tls = (scheme == "https").then(|| Arc::clone(&self.unverified));
                let via = match node {
                    Some(node) => self.way_to(schema::meta::name(&node)).await,
                    None => None,
                };
                let to = proxy::Target { host, port, tls, server_name: None, via };
                proxy::forward(request, &to, &path_and_query, &self.group).await.map_err(unreachable)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_internal_address_is_preferred() {
        let node = json!({"status": {
            "addresses": [{"type": "Hostname", "address": "h"}, {"type": "InternalIP", "address": "10.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": 11250}},
        }});
        assert_eq!(kubelet_address(&node), Some(("10.0.0.1".to_owned(), 11250)));
        assert_eq!(kubelet_address(&json!({})), None);
    }
}
