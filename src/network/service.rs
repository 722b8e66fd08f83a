//! The service proxy: waits for changes, renders the table anew, and applies the difference.

mod conntrack;
mod flows;
mod health;
pub(crate) mod rules;
pub(crate) mod snapshot;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use base::chain::Chain;
use base::task::Group;
use base::time::Stopwatch;
use client::informer::{Changes, Informer, Informers};
use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use tracing::{debug, info, warn};

use crate::service::health::{Health, LocalEndpoints};
use crate::service::rules::{Family, ServiceRules, Site, TABLE};
use crate::service::snapshot::Place;
use crate::table::Table;
use crate::{Config, NetworkError, nft, table};

/// A burst of changes (a rolling update) is gathered this long before nft is called.
const GATHER: Duration = Duration::from_millis(20);
/// After a refusal the whole table is tried again, this much later.
const RETRY: Duration = Duration::from_secs(2);

/// Follows Services and EndpointSlices as long as the group lives.
pub(crate) async fn run(config: Config, informers: &Informers, group: &Group) {
    let health = Health::start(group).await;
    let (services, slices, nodes) = (informers.get::<Service>(), informers.get::<EndpointSlice>(), informers.get::<Node>());
    group.spawn("service-proxy", follow(Proxy::new(config), health, services, slices, nodes));
}

/// The table without a Service: pods that leave the cluster still get the node's address.
pub(crate) async fn only_masquerade(config: Config) -> Result<(), NetworkError> {
    let place = Place { node: config.node_name.clone(), zone: None };
    Proxy::new(config).sync(&[], &[], &place).await.map(drop)
}

async fn follow(mut proxy: Proxy, health: Health, services: Informer<Service>, slices: Informer<EndpointSlice>, nodes: Informer<Node>) {
    let (mut service_changes, mut slice_changes, mut node_changes) = (services.changes(), slices.changes(), nodes.changes());
    // Half of the objects would be rules that refuse what works.
    services.synced().await;
    slices.synced().await;
    nodes.synced().await;
    loop {
        let place = Place { node: proxy.config.node_name.clone(), zone: zone(&nodes, &proxy.config.node_name) };
        let clock = Stopwatch::start();
        let wait = match proxy.sync(&services.list(), &slices.list(), &place).await {
            Ok(local) => {
                health.synced(clock.elapsed(), local).await;
                None
            }
            Err(err) => {
                health.failed();
                warn!(err = %Chain(&err), "cannot apply service rules, trying the whole table again");
                Some(RETRY)
            }
        };
        let retry = async {
            match wait {
                Some(wait) => tokio::time::sleep(wait).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = service_changes.next() => {}
            _ = slice_changes.next() => {}
            () = moved(&mut node_changes, &nodes, &place) => {}
            () = retry => {}
        }
        tokio::time::sleep(GATHER).await;
        // Everything gathered is in the caches by now; waking again for it would apply nothing.
        service_changes.drain();
        slice_changes.drain();
    }
}

fn zone(nodes: &Informer<Node>, name: &str) -> Option<String> {
    nodes.get("", name)?.metadata.labels.as_ref()?.get("topology.kubernetes.io/zone").cloned()
}

/// Resolves when this node's zone has changed.
async fn moved(changes: &mut Changes<Node>, nodes: &Informer<Node>, place: &Place) {
    loop {
        changes.next().await;
        if zone(nodes, &place.node) != place.zone {
            return;
        }
    }
}

/// What is in force in the kernel; `None` for a family that must be written whole.
pub(crate) struct Proxy {
    config: Config,
    applied: BTreeMap<Family, Option<ServiceRules>>,
}

impl Proxy {
    pub(crate) fn new(config: Config) -> Proxy {
        let families = config.cluster_cidrs.iter().map(|cidr| (Family::of(&cidr.addr()), None)).collect();
        Proxy { config, applied: families }
    }

    fn site(&self, family: Family) -> Site {
        Site {
            family,
            cluster_cidrs: self.config.cluster_cidrs.iter().copied().filter(|cidr| Family::of(&cidr.addr()) == family).collect(),
            masquerade_pods: family == Family::V4 || self.config.ipv6_masquerade,
        }
    }

    /// Brings the kernel to what the objects say. After an error the next call writes the whole table.
    async fn sync(
        &mut self,
        services: &[Arc<Service>],
        slices: &[Arc<EndpointSlice>],
        place: &Place,
    ) -> Result<BTreeMap<u16, LocalEndpoints>, NetworkError> {
        let ports = snapshot::service_ports(services, slices, place);
        let families: Vec<Family> = self.applied.keys().copied().collect();
        for family in families {
            let after = rules::render(&self.site(family), &ports);
            let before = self.applied.insert(family, None).flatten();
            match &before {
                None => nft::apply(&table::full(rules::table(family), &after.content)).await?,
                Some(before) => {
                    let script = table::update(rules::table(family), &before.content, &after.content);
                    nft::apply(&script.change).await?;
                    nft::apply(&script.sweep).await?;
                }
            }
            forget_flows(family, before.as_ref(), &after).await;
            self.applied.insert(family, Some(after));
        }
        debug!(n = ports.len(), "service rules are in force");
        Ok(health::local_endpoints(&ports))
    }
}

async fn forget_flows(family: Family, before: Option<&ServiceRules>, after: &ServiceRules) {
    let none = ServiceRules::default();
    let stale = flows::stale_flows(before.unwrap_or(&none), after);
    // At the start nothing is known of earlier endpoints: only flows that were never translated can be told.
    if stale.is_empty() {
        return;
    }
    match Group::blocking(move || conntrack::forget(family, &stale)).await {
        Ok(Ok(0)) => {}
        Ok(Ok(n)) => info!(n, "forgot UDP flows of endpoints that are gone"),
        Ok(Err(err)) => warn!(err = %err, "cannot forget UDP flows of endpoints that are gone"),
        Err(err) => warn!(err = %Chain(&err), "cannot forget UDP flows of endpoints that are gone"),
    }
}

/// The script that removes the tables of the proxy and of the CNI plugins.
pub(crate) fn removal() -> String {
    let tables = ["ip", "ip6"].into_iter().flat_map(|family| [TABLE, "kedge-hostport", "kedge-masq"].map(|name| Table { family, name }));
    tables.chain([Table { family: "inet", name: "kedge-bandwidth" }]).map(table::remove).collect()
}
