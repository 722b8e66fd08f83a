//! The table of controllers.

use base::task::Group;
use client::informer::Informers;
use client::transport::Clients;
use ipnet::IpNet;

use crate::driver::Context;
use crate::{
    cronjob, daemonset, deployment, endpointslice, endpointslice_mirroring, garbage, job, namespace, node, pod_gc, replicaset,
    service_account, service_lb, statefulset, volume_protection,
};

/// What controllers must be told.
#[derive(Clone, Debug)]
pub struct Config {
    /// Address range of pods; each node gets a slice of it.
    pub cluster_cidr: IpNet,
    /// PEM of the CA that pods verify the API server with.
    pub root_ca_pem: String,
    /// Ports of the nodes that no LoadBalancer Service may take; `None` leaves such Services to somebody else.
    pub balancer_reserved_ports: Option<Vec<u16>>,
}

/// Starts all controllers. They act as `system:serviceaccount:kube-system:NAME` and read through `informers`.
///
/// They live in `group`: stopping it (a lost leadership) stops them, and nothing else.
pub fn run(config: &Config, clients: Clients, informers: Informers, group: &Group) {
    let context = Context::new(clients, informers, group.child("controllers"));
    service_account::start(&context, config.root_ca_pem.clone());
    namespace::start(&context);
    daemonset::start(&context);
    job::start(&context);
    cronjob::start(&context);
    statefulset::start(&context);
    garbage::start(&context);
    pod_gc::start(&context);
    node::start(&context, config.cluster_cidr);
    deployment::start(&context);
    replicaset::start(&context);
    endpointslice::start(&context);
    endpointslice_mirroring::start(&context);
    volume_protection::start(&context);
    if let Some(reserved) = &config.balancer_reserved_ports {
        service_lb::start(&context, reserved.clone());
    }
}
