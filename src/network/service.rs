//! The service proxy: waits for changes, renders the Services that they touch, and applies the difference.

mod affinity;
mod conntrack;
mod flows;
mod frame;
mod health;
mod listeners;
mod parts;
mod reserved;
pub(crate) mod rules;
pub(crate) mod snapshot;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use base::chain::Chain;
use base::task::Group;
use base::time::Stopwatch;
use client::informer::{Change, Changes, Informer, Informers, Key};
use client::services::{Services, Touched};
use ipnet::IpNet;
use k8s_openapi::api::core::v1::Node;
use tracing::{debug, info, warn};

use crate::config::Config;
use crate::error::NetworkError;
use crate::family::Family;
use crate::monitor::Watched;
use crate::service::flows::Stale;
use crate::service::health::{Health, LocalEndpoints};
use crate::service::listeners::Listeners;
use crate::service::parts::Parts;
use crate::service::reserved::{Elements, Reserved};
use crate::service::rules::{Part, Site};
use crate::service::snapshot::{Locality, ServicePort};
use crate::table::{Ruleset, Table};
use crate::{nft, table};

/// A burst of changes (a rolling update) is gathered this long before nft is called.
const GATHER: Duration = Duration::from_millis(20);
/// After a refusal the whole table is tried again, this much later.
const RETRY: Duration = Duration::from_secs(2);
/// How often the machine's listeners are looked at while Services have addresses of the machine. Without such Services
/// nobody looks.
const LISTENERS_PERIOD: Duration = Duration::from_secs(60);

/// Follows Services and EndpointSlices as long as the group lives.
pub(crate) async fn run(config: Config, foreign: Watched, informers: &Informers, group: &Group) {
    // IPv4's callers come to IPv6's wildcard, too.
    let v6 = config.families().contains(&Family::V6);
    let any = if v6 { std::net::Ipv6Addr::UNSPECIFIED.into() } else { std::net::Ipv4Addr::UNSPECIFIED.into() };
    let health = Health::start(any, group).await;
    let services = Services::follow(informers);
    group.spawn("service-proxy", follow(Proxy::new(config), foreign, health, services, informers.get::<Node>()));
}

/// The tables of the proxy.
pub(crate) fn tables() -> impl Iterator<Item = Table> {
    [Family::V4, Family::V6].into_iter().map(rules::table)
}

/// The table without a Service: pods that leave the cluster still get the node's address.
pub(crate) async fn only_masquerade(config: Config, mut foreign: Watched, group: &Group) -> Result<(), NetworkError> {
    let proxy = Proxy::new(config);
    proxy.masquerade().await?;
    group.spawn("service-masquerade", async move {
        loop {
            foreign.next().await;
            while let Err(err) = proxy.masquerade().await {
                warn!(err = %Chain(&err), "cannot mend the rules that masquerade pods, trying again");
                tokio::time::sleep(RETRY).await;
            }
        }
    });
    Ok(())
}

async fn follow(mut proxy: Proxy, mut foreign: Watched, health: Health, mut services: Services, nodes: Informer<Node>) {
    let mut node_changes = nodes.changes();
    // Half of the objects would be rules that refuse what works.
    services.synced().await;
    nodes.synced().await;
    let mut touched = Touched::All;
    loop {
        let locality = Locality { node: proxy.config.node_name.clone(), zone: zone(&nodes, &proxy.config.node_name) };
        let clock = Stopwatch::start();
        let reserved = Reserved::of(&proxy.config, &nodes.list(), &services);
        let wait = match proxy.sync(&services, reserved, &touched, &locality).await {
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
            match wait.or_else(|| (!proxy.exposed.is_empty()).then_some(LISTENERS_PERIOD)) {
                Some(wait) => tokio::time::sleep(wait).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            news = foreign.next() => {
                warn!(n = news.changed.len(), "somebody else changed the rules of Services: they are written anew");
                proxy.distrust();
                touched = Touched::All;
            }
            () = services.touched(&mut touched) => {}
            () = moved(&mut node_changes, &nodes, &locality) => {
                if zone(&nodes, &locality.node) != locality.zone {
                    touched = Touched::All;
                }
            }
            () = retry => {}
        }
        services.gather(GATHER, &mut touched).await;
    }
}

fn zone(nodes: &Informer<Node>, name: &str) -> Option<String> {
    nodes.get("", name)?.metadata.labels.as_ref()?.get("topology.kubernetes.io/zone").cloned()
}

/// Resolves when this node's zone has changed, or some node's addresses have.
async fn moved(changes: &mut Changes<Node>, nodes: &Informer<Node>, locality: &Locality) {
    loop {
        let readdressed = match changes.next().await {
            Change::Added(_) | Change::Deleted(_) => true,
            Change::Modified { old, new } => reserved::addresses(&old) != reserved::addresses(&new),
        };
        if readdressed || zone(nodes, &locality.node) != locality.zone {
            return;
        }
    }
}

/// Rules in force in the kernel; `None` for a family that must be written whole.
pub(crate) struct Proxy {
    config: Config,
    applied: BTreeMap<Family, Option<Parts>>,
    /// Services with a health check port.
    checked: BTreeMap<Key, BTreeMap<u16, LocalEndpoints>>,
    /// Services with addresses beside their cluster's, which may be the machine's.
    exposed: BTreeSet<Key>,
    listeners: Listeners,
    reserved: Reserved,
    /// Parts that nft did not take, by Service: left out until it says something else.
    refused: BTreeMap<(Family, Key), Part>,
}

impl Proxy {
    pub(crate) fn new(config: Config) -> Proxy {
        let families = config.cluster_cidrs.iter().map(|cidr| (Family::of(&cidr.addr()), None)).collect();
        let (checked, exposed) = (BTreeMap::new(), BTreeSet::new());
        let (listeners, reserved) = (Listeners::default(), Reserved::default());
        Proxy { config, applied: families, checked, exposed, listeners, reserved, refused: BTreeMap::new() }
    }

    /// Forgets what is in force: the kernel does not hold what was put there.
    fn distrust(&mut self) {
        self.applied.values_mut().for_each(|parts| *parts = None);
    }

    async fn masquerade(&self) -> Result<(), NetworkError> {
        for family in self.applied.keys() {
            let mut parts = Parts::default();
            parts.change(BTreeMap::new());
            nft::apply(&table::full(rules::table(*family), &parts.whole(frame::frame(&self.site(*family))).content))
                .await?;
        }
        Ok(())
    }

    fn site(&self, family: Family) -> Site {
        let of_family = |ranges: &[IpNet]| -> Vec<IpNet> {
            ranges.iter().copied().filter(|range| Family::of(&range.addr()) == family).collect()
        };
        let node_ports = &self.config.node_port_addresses;
        Site {
            family,
            cluster_cidrs: of_family(&self.config.cluster_cidrs),
            node_port_addresses: (!node_ports.is_empty()).then(|| of_family(node_ports)),
            masquerade_pods: family == Family::V4 || self.config.ipv6_masquerade,
            listeners: self.listeners.clone(),
            reserved: self.reserved.clone(),
        }
    }

    /// Has the kernel know what the machine listens on now.
    async fn look_at_listeners(&mut self) -> Result<(), NetworkError> {
        let now = match Group::blocking(Listeners::read).await {
            Ok(Ok(now)) => now,
            Ok(Err(err)) => {
                return Err(NetworkError::Io { doing: "cannot read who listens on this machine", source: err });
            }
            Err(err) => {
                return Err(NetworkError::Io {
                    doing: "cannot read who listens on this machine",
                    source: std::io::Error::other(err),
                });
            }
        };
        let before = std::mem::replace(&mut self.listeners, now);
        if before == self.listeners {
            return Ok(());
        }
        let after = self.listeners.clone();
        self.change_sets(|family| before.elements(family), |family| after.elements(family)).await
    }

    /// Has the kernel know what is the system's now.
    async fn reserve(&mut self, reserved: Reserved) -> Result<(), NetworkError> {
        if self.reserved == reserved {
            return Ok(());
        }
        let before = std::mem::replace(&mut self.reserved, reserved.clone());
        self.change_sets(|family| before.elements(family), |family| reserved.elements(family)).await
    }

    /// Changes sets of the frame in the tables that are in force. After an error those are written anew.
    async fn change_sets(
        &mut self,
        before: impl Fn(Family) -> Elements,
        after: impl Fn(Family) -> Elements,
    ) -> Result<(), NetworkError> {
        let in_force: Vec<Family> =
            self.applied.iter().filter(|(_, parts)| parts.is_some()).map(|(family, _)| *family).collect();
        for family in in_force {
            let rules = |elements: Elements| Ruleset { elements, ..Ruleset::default() };
            let update = table::update(rules::table(family), &rules(before(family)), &rules(after(family)));
            if let Err(err) = nft::apply(&update.change).await {
                self.distrust();
                return Err(err);
            }
        }
        Ok(())
    }

    /// Brings the kernel to what the objects say, `touched` since the last call. After an error the next call must be
    /// told [`Touched::All`], and writes the whole table.
    async fn sync(
        &mut self,
        services: &Services,
        reserved: Reserved,
        touched: &Touched,
        locality: &Locality,
    ) -> Result<BTreeMap<u16, LocalEndpoints>, NetworkError> {
        self.reserve(reserved).await?;
        let keys = self.keys(services, touched);
        let ports: Vec<(Key, Option<Vec<ServicePort>>)> = keys
            .into_iter()
            .map(|key| {
                let service = services.get(&key);
                let ports = service.map(|service| snapshot::service_ports(&service, &services.slices(&key), locality));
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
        for (key, ports) in &ports {
            let far = |port: &ServicePort| !port.external_ips.is_empty() || !port.balancer_ips.is_empty();
            match ports.iter().flatten().any(far) {
                true => drop(self.exposed.insert(key.clone())),
                false => drop(self.exposed.remove(key)),
            }
        }
        // Without such Services no rule asks who listens.
        if !self.exposed.is_empty() {
            self.look_at_listeners().await?;
        }
        let local = self.config.node_ips.borrow().clone();
        let families: Vec<Family> = self.applied.keys().copied().collect();
        for family in families {
            let site = self.site(family);
            let mut fresh: BTreeMap<Key, Option<Part>> = ports
                .iter()
                .map(|(key, ports)| (key.clone(), ports.as_ref().map(|ports| rules::part(&site, ports))))
                .collect();
            self.leave_refused_out(family, &mut fresh);
            // Whatever ends this before its end leaves nothing behind that would count as applied.
            let before = self.applied.insert(family, None).flatten();
            let whole = before.is_none();
            let applied = match apply(&site, before, fresh.clone(), &local).await {
                Err(err) if whole && is_of_the_script(&err) => self.without_the_bad(&site, fresh, &err, &local).await?,
                applied => applied?,
            };
            self.applied.insert(family, Some(applied));
        }
        debug!(n = ports.len(), "service rules are in force");
        Ok(self.checked.values().flatten().map(|(port, local)| (*port, local.clone())).collect())
    }

    /// A Service that was refused once stays out while it says the same.
    fn leave_refused_out(&mut self, family: Family, fresh: &mut BTreeMap<Key, Option<Part>>) {
        for (key, part) in fresh {
            let slot = (family, key.clone());
            match self.refused.get(&slot) {
                Some(refused) if part.as_ref() == Some(refused) => *part = None,
                Some(_) => drop(self.refused.remove(&slot)),
                None => {}
            }
        }
    }

    /// Writes the whole table without the Services that nft does not take: one must not stop all others.
    async fn without_the_bad(
        &mut self,
        site: &Site,
        mut fresh: BTreeMap<Key, Option<Part>>,
        why: &NetworkError,
        local: &[IpAddr],
    ) -> Result<Parts, NetworkError> {
        let all: Vec<(&Key, &Part)> = fresh.iter().filter_map(|(key, part)| Some((key, part.as_ref()?))).collect();
        let refused = refused_ones(&all, |some| taken(site, some)).await?;
        for key in refused {
            warn!(
                service = %key, err = %Chain(why),
                "nft takes the rules of all Services but this one: it is left out until it changes"
            );
            if let Some(Some(part)) = fresh.insert(key.clone(), None) {
                self.refused.insert((site.family, key), part);
            }
        }
        apply(site, None, fresh, local).await
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

/// Whether one Service's part may be why nft failed: it hangs on some of what it does not refuse.
fn is_of_the_script(err: &NetworkError) -> bool {
    matches!(err, NetworkError::NftRefused { .. } | NetworkError::NftHangs)
}

/// Whether nft takes a table with these Services alone.
async fn taken(site: &Site, some: &[(&Key, &Part)]) -> Result<(), NetworkError> {
    let mut parts = Parts::default();
    parts.change(some.iter().map(|(key, part)| ((*key).clone(), Some((*part).clone()))).collect());
    nft::would_take(&table::full(rules::table(site.family), &parts.whole(frame::frame(site)).content)).await
}

/// The Services whose rules are not `taken` by themselves, found by halves. Where nothing at all is taken it is not
/// their fault, and an error: a machine that stands still takes nobody's rules.
async fn refused_ones<'a, F, T>(all: &'a [(&'a Key, &'a Part)], taken: F) -> Result<Vec<Key>, NetworkError>
where
    F: Fn(&'a [(&'a Key, &'a Part)]) -> T,
    T: Future<Output = Result<(), NetworkError>>,
{
    let (mut open, mut bad) = (vec![all], Vec::new());
    taken(&[]).await?;
    while let Some(some) = open.pop() {
        match (taken(some).await, some) {
            (Ok(()), _) => {}
            (Err(err), some) if some.is_empty() || !is_of_the_script(&err) => return Err(err),
            (Err(_), [(key, _)]) => {
                taken(&[]).await?;
                bad.push((*key).clone());
            }
            (Err(_), _) => open.extend([&some[..some.len() / 2], &some[some.len() / 2..]]),
        }
    }
    Ok(bad)
}

/// Makes one family's rules what `fresh` says of the Services in it, and gives what is in force then.
async fn apply(
    site: &Site,
    before: Option<Parts>,
    fresh: BTreeMap<Key, Option<Part>>,
    local: &[IpAddr],
) -> Result<Parts, NetworkError> {
    let table = rules::table(site.family);
    let Some(mut parts) = before else {
        let mut parts = Parts::default();
        parts.change(fresh);
        let whole = parts.whole(frame::frame(site));
        let script = table::full(table, &whole.content);
        let kept = affinity::kept(table, &whole.content).await;
        if kept.is_empty() || nft::apply(&(script.clone() + &kept)).await.is_err() {
            nft::apply(&script).await?;
        }
        forget_flows(site.family, flows::at_start(&whole), local).await;
        return Ok(parts);
    };
    let delta = parts.change(fresh);
    let script = table::update(table, &delta.before.content, &delta.after.content);
    nft::apply(&script.change).await?;
    nft::apply(&script.sweep).await?;
    forget_flows(site.family, flows::after_change(&delta.before, &delta.after), local).await;
    Ok(parts)
}

async fn forget_flows(family: Family, stale: Stale, local: &[IpAddr]) {
    if stale.is_empty() {
        return;
    }
    let local = local.to_vec();
    match Group::blocking(move || conntrack::forget(family, &stale, &local)).await {
        Ok(Ok(0)) => {}
        Ok(Ok(n)) => info!(n, "forgot UDP flows of endpoints that are gone"),
        Ok(Err(err)) => warn!(err = %err, "cannot forget UDP flows of endpoints that are gone"),
        Err(err) => warn!(err = %Chain(&err), "cannot forget UDP flows of endpoints that are gone"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // A script on which nft hung was tried again for ever, whole, and no node had a rule that was newer.
    #[tokio::test]
    async fn a_service_on_which_nft_hangs_is_found_among_many() {
        let keys: Vec<Key> = (0..40).map(|n| Key::new("default", &format!("svc-{n}"))).collect();
        let part = Part::default();
        let all: Vec<(&Key, &Part)> = keys.iter().map(|key| (key, &part)).collect();
        let (hung, refused) = (&keys[7], &keys[30]);
        let taken = |some: &[(&Key, &Part)]| {
            std::future::ready(match some {
                some if some.iter().any(|(key, _)| *key == hung) => Err(NetworkError::NftHangs),
                some if some.iter().any(|(key, _)| *key == refused) => {
                    Err(NetworkError::NftRefused { text: String::new() })
                }
                _ => Ok(()),
            })
        };
        let found: BTreeSet<Key> = refused_ones(&all, taken).await.unwrap().into_iter().collect();
        assert_eq!(found, [hung.clone(), refused.clone()].into());
        // A machine on which nothing goes on blames nobody.
        assert!(refused_ones(&all, |_| std::future::ready(Err(NetworkError::NftHangs))).await.is_err());
    }
}
