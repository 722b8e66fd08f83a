//! The service proxy: waits for changes, renders the table anew, and applies the difference.

mod conntrack;
mod diff;
mod nft;
pub(crate) mod rules;
mod snapshot;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use base::chain::Chain;
use base::task::Group;
use client::informer::{Informer, Informers};
use futures_util::FutureExt as _;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use tracing::{debug, info, warn};

use crate::service::rules::{Family, Ruleset, Site, TABLE};
use crate::{Config, NetworkError, host};

/// A burst of changes (a rolling update) is gathered this long before nft is called.
const GATHER: Duration = Duration::from_millis(20);
/// After a refusal the whole table is tried again, this much later.
const RETRY: Duration = Duration::from_secs(2);

/// Starts the proxy: checks the node, then follows Services and EndpointSlices as long as the group lives.
///
/// Errors: what an administrator must mend first (no nft, no forwarding). Later failures are logged and tried again.
/// Rules stay in force when the group stops, so that pods keep their network while kedge restarts; [`cleanup`] removes them.
pub async fn run(config: Config, informers: &Informers, group: &Group) -> Result<(), NetworkError> {
    nft::check().await?;
    let families: BTreeSet<Family> = config.cluster_cidrs.iter().map(|cidr| Family::of(&cidr.addr())).collect();
    host::prepare(&families)?;
    host::route_services(&config.service_cidrs, &config.node_ips, group).await?;
    let (services, slices) = (informers.get::<Service>(), informers.get::<EndpointSlice>());
    group.spawn("service-proxy", follow(Proxy::new(config), services, slices));
    Ok(())
}

async fn follow(mut proxy: Proxy, services: Informer<Service>, slices: Informer<EndpointSlice>) {
    let (mut service_changes, mut slice_changes) = (services.changes(), slices.changes());
    // Half of the objects would be rules that refuse what works.
    services.synced().await;
    slices.synced().await;
    loop {
        let wait = match proxy.sync(&services.list(), &slices.list()).await {
            Ok(()) => None,
            Err(err) => {
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
            () = retry => {}
        }
        tokio::time::sleep(GATHER).await;
        // Everything gathered is in the caches by now; waking again for it would apply nothing.
        while service_changes.next().now_or_never().is_some() {}
        while slice_changes.next().now_or_never().is_some() {}
    }
}

/// What is in force in the kernel; `None` for a family that must be written whole.
pub(crate) struct Proxy {
    config: Config,
    applied: BTreeMap<Family, Option<Ruleset>>,
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
    pub(crate) async fn sync(&mut self, services: &[Arc<Service>], slices: &[Arc<EndpointSlice>]) -> Result<(), NetworkError> {
        let ports = snapshot::service_ports(services, slices, &self.config.node_name);
        let families: Vec<Family> = self.applied.keys().copied().collect();
        for family in families {
            let after = rules::render(&self.site(family), &ports);
            let before = self.applied.insert(family, None).flatten();
            match &before {
                None => nft::apply(&diff::full(family, &after)).await?,
                Some(before) => {
                    let script = diff::update(family, before, &after);
                    nft::apply(&script.change).await?;
                    nft::apply(&script.sweep).await?;
                }
            }
            forget_flows(family, before.as_ref(), &after).await;
            self.applied.insert(family, Some(after));
        }
        debug!(n = ports.len(), "service rules are in force");
        Ok(())
    }
}

async fn forget_flows(family: Family, before: Option<&Ruleset>, after: &Ruleset) {
    let none = Ruleset::default();
    let stale = diff::stale_flows(before.unwrap_or(&none), after);
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

/// Removes the tables of the proxy and of the CNI plugins, and nothing else. Tables that are not there are no error.
pub async fn cleanup() -> Result<(), NetworkError> {
    let mut script = String::new();
    for family in ["ip", "ip6"] {
        for table in [TABLE, "kedge-hostport", "kedge-masq"] {
            // Adding first makes the deletion succeed whether it was there or not.
            script += &format!("add table {family} {table}\ndelete table {family} {table}\n");
        }
    }
    nft::apply(&script).await
}
