//! How long a kubelet may keep Secrets and ConfigMaps before it looks again, by the size of the cluster.

use std::sync::Arc;

use client::informer::{Change, Informer, Key};
use client::queue::Queue;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt as _;
use kube::api::{Api, Patch, PatchParams};
use serde_json::json;

use crate::driver::{self, Context, Error, Next, Reconcile};

const NAME: &str = "ttl-controller";
const ANNOTATION: &str = "node.alpha.kubernetes.io/ttl";

struct Ttl {
    client: kube::Client,
    nodes: Informer<Node>,
}

/// Seconds, by the number of nodes, as upstream.
fn ttl_secs(nodes: usize) -> u32 {
    match nodes {
        0..=100 => 0,
        101..=500 => 15,
        501..=1000 => 30,
        1001..=2000 => 60,
        _ => 300,
    }
}

/// Starts the controller.
pub(super) fn start(context: &Context) {
    let nodes = context.informers.get::<Node>();
    let queue = Arc::new(Queue::default());
    let all = nodes.clone();
    context.feed(&nodes, &queue, move |change| match change {
        // Another number of nodes concerns them all.
        Change::Added(_) | Change::Deleted(_) => all.list().iter().map(|node| Key::of(&**node)).collect(),
        Change::Modified { .. } => Vec::new(),
    });
    let ttl = Ttl { client: context.client(NAME), nodes: nodes.clone() };
    context.start(NAME, &queue, ttl, async move { nodes.synced().await });
}

#[async_trait::async_trait]
impl Reconcile for Ttl {
    async fn reconcile(&self, key: &Key) -> Result<Next, Error> {
        let Some(node) = self.nodes.get("", &key.name) else { return Ok(Next::Wait) };
        let wanted = ttl_secs(self.nodes.len()).to_string();
        if node.annotations().get(ANNOTATION) != Some(&wanted) {
            let patch = Patch::Merge(json!({"metadata": {"annotations": {ANNOTATION: wanted}}}));
            let api: Api<Node> = Api::all(self.client.clone());
            driver::gone_is_fine(api.patch(&key.name, &PatchParams::default(), &patch).await)?;
        }
        Ok(Next::Wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_clusters_look_at_once() {
        assert_eq!([1, 100, 101, 5000].map(ttl_secs), [0, 0, 15, 300]);
    }
}
