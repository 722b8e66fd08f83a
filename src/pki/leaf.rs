//! The leaves that a server keeps: one row each, with who they are and who signs them.

use std::collections::BTreeSet;
use std::net::IpAddr;

use rcgen::SanType;

use crate::server::Options;

/// The user of a server's own parts: its certificate is shown between servers, and it deploys add-ons.
pub const SUPERVISOR: &str = "system:kedge-supervisor";

/// Usage of a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Usage {
    /// To prove a client.
    Client,
    /// To prove a server.
    Server,
    /// Both (etcd peers).
    Both,
}

/// Subject, names and use of one leaf.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeafSpec {
    /// CN: the user name.
    pub common_name: String,
    /// O: the groups.
    pub organizations: Vec<String>,
    /// DNS names and addresses.
    pub sans: BTreeSet<String>,
    /// Client, server or both.
    pub usage: Usage,
}

impl LeafSpec {
    pub(crate) fn san_types(&self) -> Result<Vec<SanType>, rcgen::Error> {
        san_types(&self.sans)
    }
}

/// Names and addresses as they stand in a certificate.
pub(crate) fn san_types(sans: &BTreeSet<String>) -> Result<Vec<SanType>, rcgen::Error> {
    let san = |name: &String| match name.parse::<IpAddr>() {
        Ok(ip) => Ok(SanType::IpAddress(ip)),
        Err(_) => Ok(SanType::DnsName(name.as_str().try_into()?)),
    };
    sans.iter().map(san).collect()
}

/// The authorities of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ca {
    /// Vouches for servers.
    Server,
    /// Vouches for clients: users and nodes.
    Client,
    /// Vouches for front proxies, which speak for others.
    RequestHeader,
    /// Vouches for the etcd face and its clients.
    EtcdServer,
    /// Vouches for members of the store among each other.
    EtcdPeer,
}

impl Ca {
    /// All of them.
    pub const ALL: [Ca; 5] = [Ca::Server, Ca::Client, Ca::RequestHeader, Ca::EtcdServer, Ca::EtcdPeer];

    /// File name under `server/tls` without its ending.
    pub fn stem(self) -> &'static str {
        match self {
            Ca::Server => "server-ca",
            Ca::Client => "client-ca",
            Ca::RequestHeader => "request-header-ca",
            Ca::EtcdServer => "etcd/server-ca",
            Ca::EtcdPeer => "etcd/peer-ca",
        }
    }

    /// The name in the subject, before the `@`.
    pub(crate) fn subject(self) -> &'static str {
        match self {
            Ca::Server => "kedge-server-ca",
            Ca::Client => "kedge-client-ca",
            Ca::RequestHeader => "kedge-request-header-ca",
            Ca::EtcdServer => "kedge-etcd-server-ca",
            Ca::EtcdPeer => "kedge-etcd-peer-ca",
        }
    }
}

/// The leaves of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Leaf {
    /// Shown on port 6443.
    ServingApiserver,
    /// Shown on port 10250.
    ServingKubelet,
    /// The person with the kubeconfig: `system:admin` of `system:masters`.
    ClientAdmin,
    /// The controllers.
    ClientController,
    /// The scheduler.
    ClientScheduler,
    /// This machine's kubelet.
    ClientKubelet,
    /// The service proxy.
    ClientKubeProxy,
    /// Kedge itself.
    ClientSupervisor,
    /// The API server when it asks an aggregated API server on behalf of a user.
    ClientAuthProxy,
    /// The API server when it calls a kubelet.
    ClientApiserver,
    /// Server certificate of the etcd face on the loopback address.
    EtcdServer,
    /// Clients of the etcd face.
    EtcdClient,
    /// Shown by members of the store to each other, at both ends.
    EtcdPeer,
}

/// The name in every member's certificate: their addresses change.
pub const PEER_NAME: &str = "kedge-peer";

impl Leaf {
    /// All of them, in the order in which they are made.
    pub const ALL: [Leaf; 13] = [
        Leaf::ServingApiserver,
        Leaf::ServingKubelet,
        Leaf::ClientAdmin,
        Leaf::ClientController,
        Leaf::ClientScheduler,
        Leaf::ClientKubelet,
        Leaf::ClientKubeProxy,
        Leaf::ClientSupervisor,
        Leaf::ClientAuthProxy,
        Leaf::ClientApiserver,
        Leaf::EtcdServer,
        Leaf::EtcdClient,
        Leaf::EtcdPeer,
    ];

    /// File name under `server/tls` without its ending.
    pub fn stem(self) -> &'static str {
        match self {
            Leaf::ServingApiserver => "serving-kube-apiserver",
            Leaf::ServingKubelet => "serving-kubelet",
            Leaf::ClientAdmin => "client-admin",
            Leaf::ClientController => "client-controller",
            Leaf::ClientScheduler => "client-scheduler",
            Leaf::ClientKubelet => "client-kubelet",
            Leaf::ClientKubeProxy => "client-kube-proxy",
            Leaf::ClientSupervisor => "client-supervisor",
            Leaf::ClientAuthProxy => "client-auth-proxy",
            Leaf::ClientApiserver => "client-kube-apiserver",
            Leaf::EtcdServer => "etcd/server",
            Leaf::EtcdClient => "etcd/client",
            Leaf::EtcdPeer => "etcd/peer-server-client",
        }
    }

    /// The authority that signs it.
    pub fn ca(self) -> Ca {
        match self {
            Leaf::ServingApiserver | Leaf::ServingKubelet => Ca::Server,
            Leaf::ClientAuthProxy => Ca::RequestHeader,
            Leaf::EtcdServer | Leaf::EtcdClient => Ca::EtcdServer,
            Leaf::EtcdPeer => Ca::EtcdPeer,
            _ => Ca::Client,
        }
    }

    /// The subject that it names.
    pub fn spec(self, options: &Options) -> LeafSpec {
        let client = |common_name: &str, organization: Option<&str>| LeafSpec {
            common_name: common_name.to_owned(),
            organizations: organization.map(str::to_owned).into_iter().collect(),
            sans: BTreeSet::new(),
            usage: Usage::Client,
        };
        let masters = Some("system:masters");
        match self {
            Leaf::ServingApiserver => apiserver_spec(options),
            Leaf::ServingKubelet => kubelet_serving_spec(&options.node_name, &options.node_ips),
            Leaf::ClientAdmin => client("system:admin", masters),
            Leaf::ClientController => client("system:kube-controller-manager", None),
            Leaf::ClientScheduler => client("system:kube-scheduler", None),
            Leaf::ClientKubelet => client(&format!("system:node:{}", options.node_name), Some("system:nodes")),
            Leaf::ClientKubeProxy => client("system:kube-proxy", None),
            Leaf::ClientSupervisor => client(SUPERVISOR, masters),
            Leaf::ClientAuthProxy => client("system:auth-proxy", None),
            Leaf::ClientApiserver => client("kube-apiserver", masters),
            Leaf::EtcdServer => LeafSpec {
                common_name: "kedge-etcd-server".to_owned(),
                organizations: Vec::new(),
                sans: ["localhost", "127.0.0.1", "::1"].into_iter().map(str::to_owned).collect(),
                usage: Usage::Server,
            },
            Leaf::EtcdClient => client("kedge-etcd-client", None),
            Leaf::EtcdPeer => LeafSpec {
                common_name: options.node_name.clone(),
                organizations: Vec::new(),
                sans: [PEER_NAME.to_owned()].into(),
                usage: Usage::Both,
            },
        }
    }
}

/// Every name under which clients reach the API server.
fn apiserver_spec(options: &Options) -> LeafSpec {
    let domain = &options.cluster_domain;
    let mut sans: BTreeSet<String> =
        ["kubernetes", "kubernetes.default", "kubernetes.default.svc", "localhost", "127.0.0.1", "::1"]
            .into_iter()
            .map(str::to_owned)
            .collect();
    sans.insert(format!("kubernetes.default.svc.{domain}"));
    sans.insert(options.node_name.clone());
    sans.extend(options.node_ips.iter().chain(&options.service_ips).map(IpAddr::to_string));
    sans.extend(options.tls_sans.iter().map(|san| canonical_san(san)));
    LeafSpec { common_name: "kube-apiserver".to_owned(), organizations: Vec::new(), sans, usage: Usage::Server }
}

/// Names under which the API server reaches a kubelet.
pub fn kubelet_serving_spec(node: &str, ips: &[IpAddr]) -> LeafSpec {
    let names = [node, "localhost", "127.0.0.1", "::1"].into_iter().map(str::to_owned);
    LeafSpec {
        common_name: format!("system:node:{node}"),
        organizations: vec!["system:nodes".to_owned()],
        sans: names.chain(ips.iter().map(IpAddr::to_string)).collect(),
        usage: Usage::Server,
    }
}

// `::0001` and `::1` are one address: compare what is written in the certificate with its shortest form.
fn canonical_san(san: &str) -> String {
    san.parse::<IpAddr>().map_or_else(|_| san.to_owned(), |ip| ip.to_string())
}
