//! Protocol between a joining machine and a server: one request, one answer.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::secrets::Secrets;

/// Everything of ours on the API's port begins with this.
pub const PREFIX: &str = "/v1-kedge/";
/// Where a machine joins, and renews its certificates.
pub const JOIN: &str = "/v1-kedge/join";
/// Where a server that joined becomes a member of the store.
pub const MEMBERS: &str = "/v1-kedge/members";
/// Where another server's way to a node begins, the node's name behind it.
pub const RELAY: &str = "/v1-kedge/relay/";
/// Where a node opens its tunnel.
pub const TUNNEL: &str = "/v1-kedge/tunnel";
/// Which set of authorities is in use: a fingerprint, for everybody.
pub const AUTHORITIES: &str = "/v1-kedge/authorities";
/// The authorities to trust, for everybody.
pub const CACERTS: &str = "/cacerts";
/// Says `pong`, to everybody.
pub const PING: &str = "/ping";
/// The proof that the request's body comes from the holder of the node key in it.
pub const SIGNATURE: &str = "kedge-signature";
/// The minor version of Kubernetes that this program speaks.
pub const MINOR: u32 = 36;
/// Bytes of an answer, which may hold a bundle of authorities.
pub const BODY_BYTES_MAX: usize = 1024 * 1024;
/// Bytes of a request: strangers send it, and 512 of them at once.
pub const JOIN_BYTES_MAX: usize = 64 * 1024;

/// Role that a machine asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// It runs pods.
    Agent,
    /// It serves the API, too.
    Server,
}

/// A machine asks to be a node, or to stay one.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JoinRequest {
    /// Agent or server.
    pub role: Role,
    /// Only ask whether it would be let in.
    pub check: bool,
    /// The node's name.
    pub node_name: String,
    /// Its addresses.
    pub node_ips: Vec<IpAddr>,
    /// `/etc/machine-id`, may be empty.
    pub machine_id: String,
    /// The program's version.
    pub version: String,
    /// The minor version of Kubernetes that it speaks.
    pub minor: u32,
    /// Its clock.
    pub unix_ms: i64,
    /// The machine's own key, public half.
    pub public_key: String,
    /// For `system:node:NAME`: a certificate signing request, DER in base64. Empty from servers, which sign for
    /// themselves.
    pub kubelet_client_csr: String,
    /// For the kubelet's server.
    pub kubelet_serving_csr: String,
    /// For the service proxy.
    pub proxy_client_csr: String,
    /// Flags that must agree on all servers, with their values; servers only.
    #[serde(default)]
    pub flags: BTreeMap<String, String>,
}

/// Settings of the cluster that all nodes need.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Settings {
    /// Ranges of pods' addresses.
    pub cluster_cidrs: Vec<IpNet>,
    /// Ranges of services' addresses.
    pub service_cidrs: Vec<IpNet>,
    /// Addresses of the DNS service.
    pub cluster_dns: Vec<IpAddr>,
    /// e.g. `cluster.local`.
    pub cluster_domain: String,
    /// Further settings by the name of their flag, e.g. `flannel-backend`.
    #[serde(default)]
    pub options: BTreeMap<String, String>,
}

/// The answer to a machine that is let in. It may hold every secret of the cluster: it is printed nowhere.
#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Welcome {
    /// Authorities of servers, PEM.
    pub server_ca: String,
    /// Authorities of clients, PEM.
    pub client_ca: String,
    /// The fingerprint of all authorities.
    #[serde(default)]
    pub authorities: String,
    /// Certificates, PEM, leaf first; empty for a check and for servers.
    pub kubelet_client: String,
    /// See [`Welcome::kubelet_client`].
    pub kubelet_serving: String,
    /// See [`Welcome::kubelet_client`].
    pub proxy_client: String,
    /// The settings of every node.
    pub settings: Settings,
    /// Where servers answer, `host:port`.
    pub servers: Vec<String>,
    /// The server's version.
    pub version: String,
    /// The server's clock.
    pub unix_ms: i64,
    /// For servers: what must be equal on all of them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub secrets: Secrets,
}

/// A server that holds the cluster's secrets asks to become a member of the store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewMember {
    /// The number that its store drew.
    pub id: u64,
    /// Its node's name.
    pub name: String,
    /// `host:port` where it answers other members.
    pub address: String,
}
