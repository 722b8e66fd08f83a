//! Gives each node its part of the cluster's pod network, for ever: a node keeps its range until it is deleted. When
//! the cluster gets a second family, each node gets a range of it beside the first.

use std::collections::BTreeSet;
use std::sync::Arc;

use client::events::{Recorder, Severity};
use client::informer::{Informer, Key};
use client::queue::Queue;
use ipnet::IpNet;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt as _;
use kube::api::{Api, Patch, PatchParams};
use serde_json::json;
use tokio::sync::Mutex;

use super::plan::{self, Range};
use crate::driver::{Context, Error, Next, Reconcile};
use crate::settings::masks::NodeMasks;

const NAME: &str = "node-controller";

struct Controller {
    client: kube::Client,
    recorder: Recorder,
    nodes: Informer<Node>,
    ranges: Vec<Range>,
    /// Ranges given out that the cache may not show yet. Its lock makes choosing and writing one step.
    given: Mutex<BTreeSet<String>>,
}

/// Starts the controller for the cluster's ranges, at most one of each family, which are cut into pieces of `masks`. A
/// range smaller than that is one piece: room for one node.
pub(super) fn start(context: &Context, cluster_cidrs: &[IpNet], masks: NodeMasks) {
    let ranges = cluster_cidrs.iter().map(|cidr| Range::new(cidr, masks)).collect();
    let nodes = context.informers.get::<Node>();
    let queue = Arc::new(Queue::default());
    context.feed_own(&nodes, &queue);
    let client = context.client(NAME);
    let recorder = context.recorder(NAME);
    let controller = Controller { client, recorder, nodes: nodes.clone(), ranges, given: Mutex::default() };
    context.start("node-ipam-controller", &queue, controller, async move { nodes.synced().await });
}

fn cidrs(node: &Node) -> Vec<String> {
    let Some(spec) = &node.spec else { return Vec::new() };
    spec.pod_cidrs.clone().filter(|c| !c.is_empty()).unwrap_or_else(|| spec.pod_cidr.iter().cloned().collect())
}

impl Controller {
    /// Tells of ranges that no other node will make a route for.
    fn report_trouble(&self, key: &Key, nodes: &[Arc<Node>]) {
        let Some(node) = nodes.iter().find(|node| node.name_any() == key.name) else { return };
        let age = |node: &Node| (node.metadata.creation_timestamp.as_ref().map(|time| time.0), node.name_any());
        let older = nodes.iter().filter(|other| age(other) < age(node)).flat_map(|other| cidrs(other)).collect();
        if let Some(text) = plan::trouble(&cidrs(node), &self.ranges, &older) {
            self.recorder.report(&**node, Severity::Warning, "CIDRNotUsable", text);
        }
    }
}

#[async_trait::async_trait]
impl Reconcile for Controller {
    async fn reconcile(&self, key: &Key) -> Result<Next, Error> {
        let mut given = self.given.lock().await;
        let nodes = self.nodes.list();
        // What a node claims beyond the cluster's pieces is nobody's, and keeps no other node from its own.
        let claims = nodes.iter().flat_map(|node| cidrs(node));
        let used: BTreeSet<String> =
            claims.flat_map(|cidr| self.ranges.iter().flat_map(move |range| range.pieces_of(&cidr))).collect();
        self.report_trouble(key, &nodes);
        let wanted = |node: &Node| {
            plan::ranges_of_node(&cidrs(node), &self.ranges, |cidr| used.contains(cidr) || given.contains(cidr))
        };
        let node = self.nodes.get("", &key.name).filter(|node| node.metadata.deletion_timestamp.is_none());
        let Some((node, wanted)) = node.and_then(|node| Some((Arc::clone(&node), wanted(&node)?))) else {
            // Every node that waits for a range is in the queue: when none is left, the cache has caught up.
            if nodes.iter().all(|node| plan::ranges_of_node(&cidrs(node), &self.ranges, |_| false).is_none()) {
                given.clear();
            }
            return Ok(Next::Wait);
        };
        let Ok(chosen) = wanted else {
            let text = format!("Node {} status is now: CIDRNotAvailable", key.name);
            self.recorder.report(&*node, Severity::Normal, "CIDRNotAvailable", text);
            return Err(Error::Object("no free pod range is left in the cluster's range".to_owned()));
        };
        let patch = json!({"metadata": {"resourceVersion": node.resource_version()},
            "spec": {"podCIDR": chosen.first(), "podCIDRs": chosen}});
        let api: Api<Node> = Api::all(self.client.clone());
        api.patch(&key.name, &PatchParams::default(), &Patch::Strategic(patch)).await?;
        given.extend(chosen);
        Ok(Next::Wait)
    }
}
