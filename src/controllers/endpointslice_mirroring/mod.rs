//! Endpoints that somebody writes by hand for a Service without a selector, shown as EndpointSlices, which is all that
//! proxies read.

mod plan;

use std::sync::Arc;

use client::informer::{Groups, Informer, Key};
use client::queue::Queue;
use client::services::service_of;
use k8s_openapi::api::core::v1::{Endpoints, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::ResourceExt as _;
use kube::api::{Api, DeleteParams, PostParams};

use crate::driver::{self, Context, Error, Next, Reconcile};

const NAME: &str = "endpointslicemirroring-controller";

struct Controller {
    client: kube::Client,
    services: Informer<Service>,
    endpoints: Informer<Endpoints>,
    slices: Groups<EndpointSlice>,
}

/// Starts the controller.
pub(crate) fn start(context: &Context) {
    let slices = context.informers.get::<EndpointSlice>();
    let controller = Controller {
        client: context.client(NAME),
        services: context.informers.get(),
        endpoints: context.informers.get(),
        slices: slices.group_by(service_of),
    };
    let queue = Arc::new(Queue::default());
    context.feed_own(&controller.endpoints, &queue);
    context.feed_own(&controller.services, &queue);
    context.feed(&slices, &queue, |change| {
        driver::objects_of(change)
            .iter()
            .filter(|slice| plan::is_ours(slice))
            .filter_map(|slice| service_of(slice))
            .collect()
    });
    let waits = (controller.services.clone(), controller.endpoints.clone(), slices);
    context.start(NAME, &queue, controller, async move {
        waits.0.synced().await;
        waits.1.synced().await;
        waits.2.synced().await;
    });
}

#[async_trait::async_trait]
impl Reconcile for Controller {
    async fn reconcile(&self, key: &Key) -> Result<Next, Error> {
        let service = self.services.get(&key.namespace, &key.name);
        let selects_nothing = service.is_some_and(|s| s.spec.as_ref().is_none_or(|spec| spec.selector.is_none()));
        let endpoints =
            self.endpoints.get(&key.namespace, &key.name).filter(|e| selects_nothing && plan::is_mirrored(e));
        let mut existing: Vec<Arc<EndpointSlice>> = self.slices.get(key);
        existing.retain(|slice| plan::is_ours(slice) && slice.metadata.deletion_timestamp.is_none());
        let wanted = endpoints.map(|e| plan::slices(&e)).unwrap_or_default();
        let plan = plan::plan(wanted, &existing);
        let api: Api<EndpointSlice> = Api::namespaced(self.client.clone(), &key.namespace);
        for slice in &plan.update {
            api.replace(&slice.name_any(), &PostParams::default(), slice).await?;
        }
        for slice in &plan.create {
            api.create(&PostParams::default(), slice).await?;
        }
        for name in &plan.delete {
            driver::gone_is_fine(api.delete(name, &DeleteParams::default()).await)?;
        }
        Ok(Next::Wait)
    }
}
