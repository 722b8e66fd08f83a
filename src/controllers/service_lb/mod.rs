//! Services of type LoadBalancer, at once and without pods: the nodes' own addresses become the balancer's, and every
//! node's service proxy answers on them. k3s's labels choose nodes (`svccontroller.k3s.cattle.io/enablelb`,
//! `…/lbpool`).

mod plan;

use std::sync::Arc;

use client::events::{Recorder, Severity};
use client::informer::{Change, Informer, Key};
use client::queue::Queue;
use ipnet::IpNet;
use k8s_openapi::api::core::v1::{LoadBalancerIngress, Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::ResourceExt as _;
use kube::api::{Api, Patch, PatchParams};
use model::pod::Pod;
use serde_json::json;

use crate::driver::{self, Context, Error, Next, Reconcile};

const NAME: &str = "service-controller";
const SERVICE_NAME: &str = "kubernetes.io/service-name";

struct Controller {
    client: kube::Client,
    recorder: Recorder,
    services: Informer<Service>,
    nodes: Informer<Node>,
    slices: Informer<EndpointSlice>,
    pods: Informer<Pod>,
    reserved: Vec<u16>,
    ranges: Vec<IpNet>,
}

/// Starts the controller. `reserved` are ports of the node that no Service may take, such as the API server's; `ranges`
/// hold the addresses of pods and Services, of which no node has one.
pub(crate) fn start(context: &Context, reserved: Vec<u16>, ranges: Vec<IpNet>) {
    let controller = Controller {
        client: context.client(NAME),
        recorder: context.recorder(NAME),
        services: context.informers.get(),
        nodes: context.informers.get(),
        slices: context.informers.get(),
        pods: context.informers.get(),
        reserved,
        ranges,
    };
    let queue = Arc::new(Queue::default());
    let services = controller.services.clone();
    context.feed(&controller.services, &queue, move |change| {
        let objects = driver::objects_of(change);
        if !objects.iter().any(|service| plan::concerns(service)) {
            return Vec::new();
        }
        // A port that one gives up may be what another waits for.
        let own = objects.first().map(|service| Key::of(&**service));
        own.into_iter().chain(balanced(&services)).collect()
    });
    let services = controller.services.clone();
    context.feed(&controller.nodes, &queue, move |change| match change {
        Change::Modified { old, new } if plan::node_facts(old) == plan::node_facts(new) => Vec::new(),
        _ => balanced(&services),
    });
    let services = controller.services.clone();
    context.feed(&controller.slices, &queue, move |change| {
        let service = |slice: &EndpointSlice| Some(Key::new(&slice.namespace()?, slice.labels().get(SERVICE_NAME)?));
        let keys = driver::objects_of(change).into_iter().filter_map(|slice| service(&slice));
        keys.filter(|key| services.get(&key.namespace, &key.name).is_some_and(|service| plan::is_local(&service)))
            .collect()
    });
    let services = controller.services.clone();
    context.feed(&controller.pods, &queue, move |change| match change {
        Change::Modified { old, new } if plan::host_ports(old) == plan::host_ports(new) => Vec::new(),
        change if driver::objects_of(change).iter().all(|pod| plan::host_ports(pod).is_empty()) => Vec::new(),
        _ => balanced(&services),
    });
    let waits =
        (controller.services.clone(), controller.nodes.clone(), controller.slices.clone(), controller.pods.clone());
    context.start(NAME, &queue, controller, async move {
        waits.0.synced().await;
        waits.1.synced().await;
        waits.2.synced().await;
        waits.3.synced().await;
    });
}

fn balanced(services: &Informer<Service>) -> Vec<Key> {
    services.list().iter().filter(|service| plan::concerns(service)).map(|service| Key::of(&**service)).collect()
}

#[async_trait::async_trait]
impl Reconcile for Controller {
    async fn reconcile(&self, key: &Key) -> Result<Next, Error> {
        let Some(service) =
            self.services.get(&key.namespace, &key.name).filter(|s| s.metadata.deletion_timestamp.is_none())
        else {
            return Ok(Next::Wait);
        };
        let have = service.status.as_ref().and_then(|s| s.load_balancer.as_ref()?.ingress.clone()).unwrap_or_default();
        let class = service.spec.as_ref().and_then(|s| s.load_balancer_class.as_ref());
        if class.is_some() {
            // Another balancer's.
            return Ok(Next::Wait);
        }
        let (nodes, slices, pods) = (self.nodes.list(), self.slices.list(), self.pods.list());
        let cluster = plan::Cluster {
            nodes: &nodes,
            slices: &slices,
            pods: &pods,
            reserved: &self.reserved,
            ranges: &self.ranges,
        };
        let outcome = plan::assign(&self.services.list(), &cluster).remove(key).unwrap_or_default();
        if let Some(trouble) = &outcome.trouble {
            self.recorder.report(&*service, Severity::Warning, "SyncLoadBalancerFailed", trouble.clone());
        }
        let same = outcome.ips.len() == have.len()
            && outcome.ips.iter().zip(&have).all(|(ip, have)| have.ip.as_ref() == Some(ip));
        if same {
            return Ok(Next::Wait);
        }
        let ingress: Vec<LoadBalancerIngress> = outcome
            .ips
            .iter()
            .map(|ip| LoadBalancerIngress {
                ip: Some(ip.clone()),
                ip_mode: Some("VIP".to_owned()),
                ..Default::default()
            })
            .collect();
        let api: Api<Service> = Api::namespaced(self.client.clone(), &key.namespace);
        let patch = json!({ "status": { "loadBalancer": { "ingress": ingress } } });
        api.patch_status(&key.name, &PatchParams::default(), &Patch::Merge(&patch)).await?;
        let before: Vec<&str> = have.iter().filter_map(|ingress| ingress.ip.as_deref()).collect();
        let text = format!("Updated LoadBalancer with new IPs: {before:?} -> {:?}", outcome.ips);
        self.recorder.report(&*service, Severity::Normal, "UpdatedLoadBalancer", text);
        Ok(Next::Wait)
    }
}
