//! The table of controllers.

use std::sync::Arc;

use base::task::Group;
use base::time::Clock;
use client::informer::Informers;
use client::transport::Clients;
use ipnet::IpNet;

use crate::driver::Context;
use crate::settings::masks::NodeMasks;
use crate::settings::{LocalPath, Settings};
use crate::signer::Signer;
use crate::{
    attach, certificates, cronjob, daemonset, deployment, disruption, endpointslice, endpointslice_mirroring, garbage,
    hpa, job, namespace, node, pod_gc, quota, replicaset, secrets, service_account, service_cidr, service_lb,
    statefulset, volume,
};

/// Configuration of the controllers.
#[derive(Clone)]
pub struct Config {
    /// Address ranges of pods, at most one a family; each node gets a slice of each.
    pub cluster_cidrs: Vec<IpNet>,
    /// How large these slices are.
    pub node_masks: NodeMasks,
    /// Address ranges of Services, as flags say them.
    pub service_cidrs: Vec<IpNet>,
    /// PEM of the CA that pods verify the API server with.
    pub root_ca_pem: String,
    /// Ports of the nodes that no LoadBalancer Service may take; `None` leaves such Services to somebody else.
    pub balancer_reserved_ports: Option<Vec<u16>>,
    /// Signs certificates and tokens.
    pub signer: Arc<dyn Signer>,
    /// Settings that flags chose.
    pub settings: Settings,
    /// Tells the time to all of them.
    pub clock: Clock,
    /// Where the class `local-path` puts volumes; `None` leaves it to another provisioner.
    pub local_path: Option<LocalPath>,
}

/// Starts all controllers. They act as `system:serviceaccount:kube-system:NAME` and read through `informers`.
///
/// They live in `group`: stopping it (a lost leadership) stops them, and nothing else.
pub fn run(config: &Config, clients: Clients, informers: Informers, group: &Group) {
    let context = Context::new(clients, informers, config.clock.clone(), group.child("controllers"))
        .choosing(config.settings.chosen.clone());
    service_account::start(&context, config.root_ca_pem.clone());
    namespace::start(&context);
    daemonset::start(&context);
    job::start(&context);
    cronjob::start(&context);
    statefulset::start(&context);
    disruption::start(&context);
    // Those that watch what nobody else wants are not begun where they are switched off.
    if context.runs("resourcequota-controller") {
        quota::start(&context);
    }
    hpa::start(&context, config.settings.autoscaler);
    certificates::start(&context, Arc::clone(&config.signer), config.settings.signing_life);
    secrets::start(&context, Arc::clone(&config.signer), config.root_ca_pem.clone(), config.settings.legacy_token_life);
    volume::start(&context, config.local_path.clone());
    attach::start(&context);
    if context.runs("garbage-collector-controller") {
        garbage::start(&context);
    }
    pod_gc::start(&context, config.settings.ended_pods_max);
    node::start(&context, &config.cluster_cidrs, config.node_masks, &config.settings);
    deployment::start(&context);
    replicaset::start(&context);
    service_cidr::start(&context);
    endpointslice::start(&context);
    endpointslice_mirroring::start(&context);
    if let Some(reserved) = &config.balancer_reserved_ports {
        let ranges = [config.cluster_cidrs.as_slice(), &config.service_cidrs].concat();
        service_lb::start(&context, reserved.clone(), ranges);
    }
}
