//! The API server's way to kubelets, pods and services, with its own client certificate: through a node's tunnel where
//! it holds one open, else straight over the network.

use std::net::IpAddr;
use std::sync::Arc;

use apiserver::stream::{log, port_forward, remote_command};
use async_trait::async_trait;
use base::chain::Chain;
use base::task::Group;
use cluster::relay::Relay;
use cluster::tunnel::Tunnels;
use http::{Request, Response};
use k8s_openapi::api::core::v1::{Node, NodeAddress, NodeStatus};
use model::node;
use registry::connect::{Connector, Target};
use registry::status::Status;
use serde_json::Value;
use wire::dial::Dial;
use wire::{Body, proxy};

/// The kubelet's port when a Node does not tell it.
const KUBELET_PORT: u16 = base::ports::KUBELET;
/// Address types in the order in which kubelets are tried, as k3s has it, but for `Hostname`: a name leads where its
/// resolver says.
const ADDRESS_TYPES: [&str; 2] = ["InternalIP", "ExternalIP"];

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
        Direct {
            kubelets: h1(kubelets),
            unverified: h1(unverified),
            tunnels,
            relay,
            own: own.to_owned(),
            group: group.child("streams"),
        }
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

/// Whose node it is.
#[derive(Clone, Copy)]
enum Whose {
    /// This server's own.
    Own,
    Other,
}

/// Where the kubelet of a node listens, by the node's own word: an address of one machine is dialled, of this server's
/// `own` node any, and no name.
///
/// Errors: 400 where the node has addresses, but none such; 500 where it has none.
fn kubelet_host(node: &Value, whose: Whose) -> Result<IpAddr, Status> {
    let addresses: Vec<NodeAddress> = serde_json::from_value(node["status"]["addresses"].clone()).unwrap_or_default();
    if !addresses.iter().any(|address| ADDRESS_TYPES.contains(&address.type_.as_str())) {
        return Err(Status::internal(format!("no preferred addresses found for node {:?}", model::meta::name(node))));
    }
    let said =
        Node { status: Some(NodeStatus { addresses: Some(addresses), ..NodeStatus::default() }), ..Node::default() };
    let first = |kind| match whose {
        Whose::Own => node::own_addresses(&said, kind).next(),
        Whose::Other => node::addresses(&said, kind).next(),
    };
    ADDRESS_TYPES.into_iter().find_map(first).ok_or_else(|| Status::bad_request("address not allowed"))
}

fn kubelet_port(node: &Value) -> u16 {
    let port = node.pointer("/status/daemonEndpoints/kubeletEndpoint/Port").and_then(Value::as_u64);
    port.and_then(|port| u16::try_from(port).ok()).unwrap_or(KUBELET_PORT)
}

#[async_trait]
impl Connector for Direct {
    async fn connect(&self, target: Target, request: Request<Body>) -> Result<Response<Body>, Status> {
        let unreachable =
            |err: wire::dial::DialError| Status::internal(format!("error dialing backend: {}", Chain(&err)));
        match target {
            Target::Kubelet { node, path_and_query } => {
                let name = model::meta::name(&node).to_owned();
                let via = self.way_to(&name).await;
                let host = match &via {
                    // At the end of its tunnel a kubelet is on loopback.
                    Some(_) => IpAddr::from([127, 0, 0, 1]),
                    // This server's own node may call itself 127.0.0.1; to another one's word that would be this
                    // server.
                    None => kubelet_host(&node, if name == self.own { Whose::Own } else { Whose::Other })?,
                };
                let (host, port) = (host.to_string(), kubelet_port(&node));
                let to =
                    proxy::Target { host, port, tls: Some(Arc::clone(&self.kubelets)), server_name: Some(name), via };
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
                    Some(node) => self.way_to(model::meta::name(&node)).await,
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
            "addresses": [{"type": "ExternalIP", "address": "192.0.2.1"}, {"type": "InternalIP",
                "address": "10.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": 11250}},
        }});
        assert_eq!(kubelet_host(&node, Whose::Other).unwrap(), IpAddr::from([10, 0, 0, 1]));
        assert_eq!(kubelet_port(&node), 11250);
        assert_eq!(kubelet_host(&json!({}), Whose::Other).unwrap_err().code, 500);
    }

    #[test]
    fn a_kubelet_is_dialled_at_an_address_of_one_machine_and_at_no_name() {
        let node = |addresses: &[&str]| {
            let all: Vec<Value> = addresses.iter().map(|text| json!({"type": "InternalIP", "address": text})).collect();
            json!({"status": {"addresses": all}})
        };
        for text in ["127.0.0.1", "169.254.169.254", "::1", "localhost", "vault.prod.svc"] {
            assert_eq!(kubelet_host(&node(&[text]), Whose::Other).unwrap_err().code, 400, "{text}");
        }
        assert!(kubelet_host(&node(&["127.0.0.1"]), Whose::Own).is_ok(), "this server's own node");
        assert_eq!(kubelet_host(&node(&["127.0.0.1", "10.0.0.1"]), Whose::Other).unwrap(), IpAddr::from([10, 0, 0, 1]));
        let named = json!({"status": {"addresses": [{"type": "Hostname", "address": "10.0.0.1"}]}});
        assert_eq!(kubelet_host(&named, Whose::Other).unwrap_err().code, 500);
    }

    #[test]
    fn the_port_is_the_one_that_the_node_names_or_the_usual_one() {
        let port =
            |port: Value| kubelet_port(&json!({"status": {"daemonEndpoints": {"kubeletEndpoint": {"Port": port}}}}));
        assert_eq!((port(json!(11250)), port(json!(70000)), port(json!("x"))), (11250, KUBELET_PORT, KUBELET_PORT));
        assert_eq!(kubelet_port(&json!({})), KUBELET_PORT);
    }
}
