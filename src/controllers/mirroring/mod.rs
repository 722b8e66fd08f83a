//! Endpoints that a person wrote for a Service without selector, mirrored into EndpointSlices, which is all that nodes read.

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
    endpoints: Informer<Endpoints>,
    services: Informer<Service>,
    slices: Informer<EndpointSlice>,
}

/// Starts the controller.
pub(crate) fn start(context: &Context) {
    let controller = Controller {
        client: context.client(NAME),
        endpoints: context.informers.get(),
        services: context.informers.get(),
        slices: context.informers.get(),
    };
    let queue = Arc::new(Queue::default());
    context.feed_own(&controller.endpoints, &queue);
    context.feed_own(&controller.services, &queue);
    context.feed(&controller.slices, &queue, |change| {
        let ours = |slice: &&Arc<EndpointSlice>| is_mirror(slice);
        let key = |slice: &Arc<EndpointSlice>| Some(Key::new(&slice.namespace()?, slice.labels().get(plan::SERVICE_NAME)?));
        driver::objects_of(change).iter().filter(ours).filter_map(key).collect()
    });
    let waits = (controller.endpoints.clone(), controller.services.clone(), controller.slices.clone());
    context.start(NAME, &queue, controller, async move {
        waits.0.synced().await;
        waits.1.synced().await;
        waits.2.synced().await;
    });
}

fn is_mirror(slice: &EndpointSlice) -> bool {
    slice.labels().get(plan::MANAGED_BY).map(String::as_str) == Some(plan::MANAGER)
}

#[async_trait::async_trait]
impl Reconcile for Controller {
    async fn reconcile(&self, key: &Key) -> Result<Next, Error> {
        let service = self.services.get(&key.namespace, &key.name);
        let by_hand =
            |service: &Service| service.spec.as_ref().and_then(|s| s.selector.as_ref()).is_none_or(|selector| selector.is_empty());
        let wanted = service.is_some_and(|service| by_hand(&service));
        let endpoints = self.endpoints.get(&key.namespace, &key.name).filter(|endpoints| wanted && plan::is_mirrored(endpoints));
        let of_service = |slice: &Arc<EndpointSlice>| is_mirror(slice) && slice.labels().get(plan::SERVICE_NAME) == Some(&key.name);
        let existing: Vec<_> = self.slices.list_in(&key.namespace).into_iter().filter(of_service).collect();
        let plan = plan::plan(endpoints.as_deref(), &existing);
        let api: Api<EndpointSlice> = Api::namespaced(self.client.clone(), &key.namespace);
        for slice in &plan.update {
            driver::gone_is_fine(api.replace(&slice.name_any(), &PostParams::default(), slice).await)?;
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
