//! The service proxy: waits for changes, renders the Services that they touch, and applies the difference.

mod conntrack;
mod flows;
mod health;
mod parts;
pub(crate) mod rules;
pub(crate) mod snapshot;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use base::chain::Chain;
use base::task::Group;
use base::time::Stopwatch;
use client::informer::{Changes, Informer, Informers, Key};
use client::services::{Services, Touched};
use k8s_openapi::api::core::v1::Node;
use tracing::{debug, info, warn};

use crate::service::health::{Health, LocalEndpoints};
use crate::service::parts::Parts;
use crate::service::rules::{Family, Part, ServiceRules, Site, TABLE};
use crate::service::snapshot::{Place, ServicePort};
use crate::table::Table;
use crate::{Config, NetworkError, nft, table};

/// A burst of changes (a rolling update) is gathered this long before nft is called.
const GATHER: Duration = Duration::from_millis(20);
/// After a refusal the whole table is tried again, this much later.
const RETRY: Duration = Duration::from_secs(2);

/// Follows Services and EndpointSlices as long as the group lives.
pub(crate) async fn run(config: Config, informers: &Informers, group: &Group) {
    // IPv4's callers come to IPv6's wildcard, too.
    let v6 = config.families().contains(&Family::V6);
    let any = if v6 { std::net::Ipv6Addr::UNSPECIFIED.into() } else { std::net::Ipv4Addr::UNSPECIFIED.into() };
    let health = Health::start(any, group).await;
    let services = Services::follow(informers);
    group.spawn("service-proxy", follow(Proxy::new(config), health, services, informers.get::<Node>()));
}

/// The table without a Service: pods that leave the cluster still get the node's address.
pub(crate) async fn only_masquerade(config: Config) -> Result<(), NetworkError> {
    let proxy = Proxy::new(config);
    for family in proxy.applied.keys() {
        apply(&proxy.site(*family), None, BTreeMap::new()).await?;
    }
    Ok(())
}

async fn follow(mut proxy: Proxy, health: Health, mut services: Services, nodes: Informer<Node>) {
    let mut node_changes = nodes.changes();
    // Half of the objects would be rules that refuse what works.
    services.synced().await;
    nodes.synced().await;
    let mut touched = Touched::All;
    loop {
        let place = Place { node: proxy.config.node_name.clone(), zone: zone(&nodes, &proxy.config.node_name) };
        let clock = Stopwatch::start();
        let wait = match proxy.sync(&services, &touched, &place).await {
            Ok(local) => {
                health.synced(clock.elapsed(), local).await;
                touched = Touched::none();
                None
            }
            Err(err) => {
                health.failed();
                warn!(err = %Chain(&err), "cannot apply service rules, trying the whole table again");
                touched = Touched::All;
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
            () = services.touched(&mut touched) => {}
            () = moved(&mut node_changes, &nodes, &place) => touched = Touched::All,
            () = retry => {}
        }
        services.gather(GATHER, &mut touched).await;
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
    applied: BTreeMap<Family, Option<Parts>>,
    /// Services with a health check port.
    checked: BTreeMap<Key, BTreeMap<u16, LocalEndpoints>>,
}

impl Proxy {
    pub(crate) fn new(config: Config) -> Proxy {
        let families = config.cluster_cidrs.iter().map(|cidr| (Family::of(&cidr.addr()), None)).collect();
        Proxy { config, applied: families, checked: BTreeMap::new() }
    }

    fn site(&self, family: Family) -> Site {
        Site {
            family,
            cluster_cidrs: self.config.cluster_cidrs.iter().copied().filter(|cidr| Family::of(&cidr.addr()) == family).collect(),
            masquerade_pods: family == Family::V4 || self.config.ipv6_masquerade,
        }
    }

    /// Brings the kernel to what the objects say, `touched` since the last call. After an error the next call must be told
    /// [`Touched::All`], and writes the whole table.
    async fn sync(&mut self, services: &Services, touched: &Touched, place: &Place) -> Result<BTreeMap<u16, LocalEndpoints>, NetworkError> {
        let keys = self.keys(services, touched);
        let ports: Vec<(Key, Option<Vec<ServicePort>>)> = keys
            .into_iter()
            .map(|key| {
                let service = services.get(&key);
                let ports = service.map(|service| snapshot::service_ports(&service, &services.slices(&key), place));
                (key, ports.filter(|ports| !ports.is_empty()))
            })
            .collect();
        for (key, ports) in &ports {
            let checked = ports.as_deref().map(health::local_endpoints).filter(|checked| !checked.is_empty());
            match checked {
                Some(checked) => drop(self.checked.insert(key.clone(), checked)),
                None => drop(self.checked.remove(key)),
            }
        }
        let families: Vec<Family> = self.applied.keys().copied().collect();
        for family in families {
            let site = self.site(family);
            let fresh = ports.iter().map(|(key, ports)| (key.clone(), ports.as_ref().map(|ports| rules::part(&site, ports)))).collect();
            // Whatever ends this before its end leaves nothing behind that would count as applied.
            let before = self.applied.insert(family, None).flatten();
            self.applied.insert(family, Some(apply(&site, before, fresh).await?));
        }
        debug!(n = ports.len(), "service rules are in force");
        Ok(self.checked.values().flatten().map(|(port, local)| (*port, local.clone())).collect())
    }

    /// The Services to look at: those that are there, and those that were.
    fn keys(&self, services: &Services, touched: &Touched) -> BTreeSet<Key> {
        match touched {
            Touched::These(keys) => keys.clone(),
            Touched::All => {
                let there = services.list().into_iter().map(|service| Key::of(&*service));
                let were = self.applied.values().flatten().flat_map(Parts::keys).cloned();
                there.chain(were).chain(self.checked.keys().cloned()).collect()
            }
        }
    }
}

/// Makes one family's rules what `fresh` says of the Services in it, and gives what is in force then.
async fn apply(site: &Site, before: Option<Parts>, fresh: BTreeMap<Key, Option<Part>>) -> Result<Parts, NetworkError> {
    let table = rules::table(site.family);
    let Some(mut parts) = before else {
        let mut parts = Parts::default();
        parts.change(fresh);
        let whole = parts.whole(rules::frame(site));
        nft::apply(&table::full(table, &whole.content)).await?;
        forget_flows(site.family, &ServiceRules::default(), &whole).await;
        return Ok(parts);
    };
    let delta = parts.change(fresh);
    let script = table::update(table, &delta.before.content, &delta.after.content);
    nft::apply(&script.change).await?;
    nft::apply(&script.sweep).await?;
    forget_flows(site.family, &delta.before, &delta.after).await;
    Ok(parts)
}

async fn forget_flows(family: Family, before: &ServiceRules, after: &ServiceRules) {
    let stale = flows::stale_flows(before, after);
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
