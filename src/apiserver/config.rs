//! Settings of the API server, as the role that builds it decides them.

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;

use base::rng::Rng;
use base::time::Clock;
use ipnet::IpNet;
use registry::version::Build;
use tokio::sync::watch;

use crate::arguments::Arguments;

/// Configuration, by a person or the role.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where clients reach this server now: the address of the `kubernetes` service's endpoint.
    pub advertise_address: watch::Receiver<IpAddr>,
    /// Its port.
    pub advertise_port: u16,
    /// Ranges of cluster IPs, the primary family first.
    pub service_cidrs: Vec<IpNet>,
    /// Ports for services of type NodePort and LoadBalancer.
    pub node_ports: RangeInclusive<u16>,
    /// For the `extension-apiserver-authentication` ConfigMap: the CA of client certificates, PEM.
    pub client_ca_pem: String,
    /// The same for the front proxy's certificates, PEM.
    pub request_header_ca_pem: String,
    /// Whether this server answers for `metrics.k8s.io` where no APIService gives the group to another.
    pub serve_usage: bool,
    /// Where the program comes from, for `/version`.
    pub build: Build,
    /// More families of the page of metrics.
    pub more_metrics: MoreMetrics,
    /// Upstream's flags.
    pub arguments: Arguments,
    /// Wall time.
    pub clock: Clock,
    /// Names and ids.
    pub rng: Rng,
}

/// Writes a part of the page of metrics that this room knows nothing of.
#[derive(Clone)]
pub struct MoreMetrics(pub Arc<dyn Fn() -> String + Send + Sync>);

impl std::fmt::Debug for MoreMetrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("MoreMetrics")
    }
}
