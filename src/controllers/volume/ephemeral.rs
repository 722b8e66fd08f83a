//! Claims that live as long as one pod: `volumes[].ephemeral`.

use std::sync::Arc;

use base::chain::Chain;
use client::events::{Recorder, Severity};
use client::informer::{Informer, Key};
use client::queue::Queue;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt as _;
use kube::api::{Api, PostParams};
use model::owners;
use model::pod::Pod;

use crate::driver::{self, Context, Error, EventSource, Next, Reconcile};

const NAME: &str = "ephemeral-volume-controller";
const SOURCE: &str = "ephemeral_volume";

struct Controller {
    client: kube::Client,
    recorder: Recorder,
    pods: Informer<Pod>,
    claims: Informer<PersistentVolumeClaim>,
}

/// The name of the claim behind a pod's ephemeral volume.
pub(super) fn claim_name(pod: &Pod, volume: &str) -> String {
    format!("{}-{volume}", pod.name_any())
}

/// Starts the controller.
pub(super) fn start(context: &Context) {
    let controller = Controller {
        client: context.client(NAME),
        recorder: context.recorder_as(EventSource { account: NAME, component: SOURCE }),
        pods: context.informers.get(),
        claims: context.informers.get(),
    };
    let queue = Arc::new(Queue::default());
    context.feed(&controller.pods, &queue, |change| {
        let has = |pod: &Arc<Pod>| {
            pod.spec.iter().flat_map(|s| s.volumes.iter().flatten()).any(|volume| volume.ephemeral.is_some())
        };
        driver::objects_of(change).into_iter().filter(has).map(|pod| Key::of(&*pod)).collect()
    });
    context.feed(&controller.claims, &queue, |change| {
        driver::objects_of(change).iter().filter_map(|claim| driver::owner_key(&**claim, "Pod")).collect()
    });
    let waits = (controller.pods.clone(), controller.claims.clone());
    context.start(NAME, &queue, controller, async move {
        waits.0.synced().await;
        waits.1.synced().await;
    });
}

#[async_trait::async_trait]
impl Reconcile for Controller {
    async fn reconcile(&self, key: &Key) -> Result<Next, Error> {
        let Some(pod) = self.pods.get(&key.namespace, &key.name) else { return Ok(Next::Wait) };
        if pod.metadata.deletion_timestamp.is_some() {
            return Ok(Next::Wait);
        }
        let api: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), &key.namespace);
        for volume in pod.spec.iter().flat_map(|s| s.volumes.iter().flatten()) {
            let Some(template) = volume.ephemeral.as_ref().and_then(|e| e.volume_claim_template.as_ref()) else {
                continue;
            };
            let name = claim_name(&pod, &volume.name);
            if let Some(there) = self.claims.get(&key.namespace, &name) {
                if !owners::is_controlled_by(&there.metadata, &pod.uid().unwrap_or_default()) {
                    return Err(Error::Object(format!(
                        "PVC {:?} was not created for pod {:?} (pod is not owner)",
                        format!("{}/{name}", key.namespace),
                        key.to_string()
                    )));
                }
                continue;
            }
            let mut claim =
                PersistentVolumeClaim { spec: Some(template.spec.clone()), ..PersistentVolumeClaim::default() };
            let from = template.metadata.clone().unwrap_or_default();
            (claim.metadata.labels, claim.metadata.annotations) = (from.labels, from.annotations);
            claim.metadata.name = Some(name);
            claim.metadata.owner_references = Some(vec![owners::reference_to(&*pod)]);
            if let Err(err) = api.create(&PostParams::default(), &claim).await {
                let text = format!("ephemeral volume {}: create PVC: {}", volume.name, Chain(&err));
                self.recorder.report(&*pod, Severity::Warning, "FailedBinding", text);
                return Err(err.into());
            }
        }
        Ok(Next::Wait)
    }
}
