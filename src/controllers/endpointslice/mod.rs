//! Services: the addresses of the pods they select, as EndpointSlices and as Endpoints.

mod endpoints;
mod plan;
mod topology;

use std::collections::BTreeMap;
use std::sync::Arc;

use client::informer::{Change, Groups, Informer, Key};
use client::queue::Queue;
use client::services::service_of;
use k8s_openapi::api::core::v1::{Endpoints, Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::ResourceExt as _;
use kube::api::{Api, DeleteParams, PostParams};
use model::pod::Pod;
use model::selectors;

use crate::driver::{self, Context, Error, Next, Reconcile};

const NAME: &str = "endpointslice-controller";
const OLD_NAME: &str = "endpoint-controller";

struct Controller {
    client: kube::Client,
    old_client: kube::Client,
    services: Informer<Service>,
    pods: Informer<Pod>,
    nodes: Informer<Node>,
    slices: Groups<EndpointSlice>,
    endpoints: Informer<Endpoints>,
    kinds: Kinds,
}

/// Which of upstream's two controllers this one stands for.
#[derive(Clone, Copy)]
struct Kinds {
    slices: bool,
    endpoints: bool,
}

/// Starts the controller.
pub(crate) fn start(context: &Context) {
    let slices = context.informers.get::<EndpointSlice>();
    let controller = Controller {
        client: context.client(NAME),
        old_client: context.client(OLD_NAME),
        services: context.informers.get(),
        pods: context.informers.get(),
        nodes: context.informers.get(),
        slices: slices.group_by(service_of),
        endpoints: context.informers.get(),
        kinds: Kinds {
            slices: context.runs("endpointslice-controller"),
            endpoints: context.runs("endpoints-controller"),
        },
    };
    let queue = Arc::new(Queue::default());
    context.feed_own(&controller.services, &queue);
    let services = controller.services.clone();
    context.feed(&controller.pods, &queue, move |change| pod_concerns(change, &services));
    let (services, pods) = (controller.services.clone(), controller.pods.clone());
    context.feed(&controller.nodes, &queue, move |change| node_concerns(change, &services, &pods));
    context.feed(&slices, &queue, |change| {
        driver::objects_of(change).iter().filter_map(|slice| service_of(slice)).collect()
    });
    context.feed(&controller.endpoints, &queue, |change| match change {
        Change::Deleted(endpoints) => vec![Key::of(&**endpoints)],
        _ => Vec::new(),
    });
    let waits = (
        controller.services.clone(),
        controller.pods.clone(),
        controller.nodes.clone(),
        slices,
        controller.endpoints.clone(),
    );
    context.start(NAME, &queue, controller, async move {
        waits.0.synced().await;
        waits.1.synced().await;
        waits.2.synced().await;
        waits.3.synced().await;
        waits.4.synced().await;
    });
}

/// The Services that show a node's zone, or that share their endpoints out by it; a zone's label may come after the
/// pods.
fn node_concerns(change: &Change<Node>, services: &Informer<Service>, pods: &Informer<Pod>) -> Vec<Key> {
    let shown = |node: &Node| (topology::zone_of(node).map(str::to_owned), topology::counted_cpu(node));
    let (node, moved) = match change {
        Change::Modified { old, new } if shown(old) == shown(new) => return Vec::new(),
        Change::Modified { old, new } => (new, topology::zone_of(old) != topology::zone_of(new)),
        Change::Added(node) | Change::Deleted(node) => (node, topology::zone_of(node).is_some()),
    };
    let mut keys: Vec<Key> = services
        .list()
        .iter()
        .filter(|service| topology::is_auto(service))
        .map(|service| Key::of(&**service))
        .collect();
    let name = node.name_any();
    let here = |pod: &Arc<Pod>| moved && pod.spec.as_ref().is_some_and(|spec| spec.node_name.as_deref() == Some(&name));
    for pod in pods.list().iter().filter(|pod| here(pod)) {
        keys.extend(selecting(pod, services));
    }
    keys
}

/// The Services that select a pod.
fn selecting(pod: &Pod, services: &Informer<Service>) -> Vec<Key> {
    let selects = |service: &Arc<Service>| {
        let selector = service.spec.as_ref().and_then(|s| s.selector.as_ref()).filter(|s| !s.is_empty());
        selector.is_some_and(|selector| selectors::includes(selector, pod.metadata.labels.as_ref()))
    };
    let all = services.list_in(&pod.namespace().unwrap_or_default());
    all.iter().filter(|service| selects(service)).map(|service| Key::of(&**service)).collect()
}

/// The Services that select a pod, before or after the change; none if nothing changed that a Service shows.
fn pod_concerns(change: &Change<Pod>, services: &Informer<Service>) -> Vec<Key> {
    if let Change::Modified { old, new } = change {
        let shown = |pod: &Pod| {
            let status = pod.status.as_ref();
            let ready = model::phase::is_ready(pod);
            let ips = status.map(|s| (s.pod_ip.clone(), s.pod_ips.clone()));
            (
                ready,
                ips,
                model::phase::phase(pod).to_owned(),
                pod.metadata.deletion_timestamp.is_some(),
                pod.metadata.labels.clone(),
            )
        };
        if shown(old) == shown(new) {
            return Vec::new();
        }
    }
    // Most changes leave the labels as they are, and each look goes through all Services of the namespace.
    let mut pods = driver::objects_of(change);
    pods.dedup_by(|a, b| a.metadata.labels == b.metadata.labels);
    pods.iter().flat_map(|pod| selecting(pod, services)).collect()
}

#[async_trait::async_trait]
impl Reconcile for Controller {
    async fn reconcile(&self, key: &Key) -> Result<Next, Error> {
        // The slices and Endpoints of a Service that is gone are the garbage collector's, by their owner reference.
        let Some(service) = self.services.get(&key.namespace, &key.name) else { return self.forget(key).await };
        let spec = service.spec.clone().unwrap_or_default();
        let Some(selector) = spec.selector.filter(|s| !s.is_empty()) else { return Ok(Next::Wait) };
        if spec.type_.as_deref() == Some("ExternalName") || service.metadata.deletion_timestamp.is_some() {
            return Ok(Next::Wait);
        }
        let selected: Vec<Arc<Pod>> = self
            .pods
            .list_in(&key.namespace)
            .into_iter()
            .filter(|pod| selectors::includes(&selector, pod.metadata.labels.as_ref()))
            .collect();
        if self.kinds.slices {
            self.write_slices(&service, &selected).await?;
        }
        if self.kinds.endpoints {
            self.write_endpoints(&service, &selected).await?;
        }
        Ok(Next::Wait)
    }
}

impl Controller {
    async fn write_slices(&self, service: &Service, selected: &[Arc<Pod>]) -> Result<(), Error> {
        let namespace = service.namespace().unwrap_or_default();
        let mut existing = self.slices.get(&Key::of(service));
        existing.retain(|slice| {
            slice.labels().get(plan::MANAGED_BY).map(String::as_str) == Some(plan::MANAGER)
                && slice.metadata.deletion_timestamp.is_none()
        });
        let nodes: BTreeMap<String, Arc<Node>> =
            self.nodes.list().into_iter().map(|node| (node.name_any(), node)).collect();
        let plan = plan::plan(service, selected, &nodes, &existing);
        let api: Api<EndpointSlice> = Api::namespaced(self.client.clone(), &namespace);
        for slice in &plan.update {
            api.replace(&slice.name_any(), &PostParams::default(), slice).await?;
        }
        for slice in &plan.create {
            api.create(&PostParams::default(), slice).await?;
        }
        for name in &plan.delete {
            driver::gone_is_fine(api.delete(name, &DeleteParams::default()).await)?;
        }
        Ok(())
    }

    async fn write_endpoints(&self, service: &Service, selected: &[Arc<Pod>]) -> Result<(), Error> {
        let namespace = service.namespace().unwrap_or_default();
        let existing = self.endpoints.get(&namespace, &service.name_any());
        let wanted = endpoints::endpoints(service, selected, existing.as_deref());
        let api: Api<Endpoints> = Api::namespaced(self.old_client.clone(), &namespace);
        match existing {
            None => drop(api.create(&PostParams::default(), &wanted).await?),
            Some(existing) if *existing != wanted => {
                drop(api.replace(&wanted.name_any(), &PostParams::default(), &wanted).await?)
            }
            Some(_) => {}
        }
        Ok(())
    }

    /// Endpoints share their Service's name and end with it; they carry no owner reference in upstream either.
    async fn forget(&self, key: &Key) -> Result<Next, Error> {
        let ours = self
            .endpoints
            .get(&key.namespace, &key.name)
            .is_some_and(|e| e.labels().contains_key(endpoints::MANAGED_BY));
        if ours {
            let api: Api<Endpoints> = Api::namespaced(self.old_client.clone(), &key.namespace);
            driver::gone_is_fine(api.delete(&key.name, &DeleteParams::default()).await)?;
        }
        Ok(Next::Wait)
    }
}
