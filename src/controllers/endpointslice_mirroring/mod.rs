//! Endpoints that somebody writes by hand for a Service without a selector, shown as EndpointSlices, which is all that proxies read.

mod plan;

use std::sync::Arc;

use client::informer::{Informer, Key};
use client::queue::Queue;
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
    slices: Informer<EndpointSlice>,
}

/// Starts the controller.
pub(crate) fn start(context: &Context) {
    let controller = Controller {
        client: context.client(NAME),
        services: context.informers.get(),
        endpoints: context.informers.get(),
        slices: context.informers.get(),
    };
    let queue = Arc::new(Queue::default());
    context.feed_own(&controller.endpoints, &queue);
    context.feed_own(&controller.services, &queue);
    context.feed(&controller.slices, &queue, |change| {
        let mirrored = |slice: &EndpointSlice| {
            let service = plan::is_ours(slice).then(|| slice.labels().get(plan::SERVICE_NAME)).flatten()?;
            Some(Key::new(&slice.namespace()?, service))
        };
        driver::objects_of(change).iter().filter_map(|slice| mirrored(slice)).collect()
    });
    let waits = (controller.services.clone(), controller.endpoints.clone(), controller.slices.clone());
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
        let endpoints = self.endpoints.get(&key.namespace, &key.name).filter(|e| selects_nothing && plan::is_mirrored(e));
        let belongs = |slice: &EndpointSlice| plan::is_ours(slice) && slice.labels().get(plan::SERVICE_NAME) == Some(&key.name);
        let existing: Vec<Arc<EndpointSlice>> = self
            .slices
            .list_in(&key.namespace)
            .into_iter()
            .filter(|slice| belongs(slice) && slice.metadata.deletion_timestamp.is_none())
            .collect();
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
