//! ServiceCIDRs: each is held by a finalizer as long as Services have addresses of it alone, and says in its condition
//! `Ready` whether new ones come from it (upstream's `pkg/controller/servicecidrs`).

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use base::time::{Clock, rfc3339_secs};
use client::informer::{Change, Informer, Key};
use client::queue::Queue;
use ipnet::IpNet;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::networking::v1::ServiceCIDR;
use kube::ResourceExt as _;
use kube::api::{Api, Patch, PatchParams};
use serde_json::{Value, json};

use crate::driver::{self, Context, Error, Next, Reconcile};

const NAME: &str = "service-cidrs-controller";
const FINALIZER: &str = "networking.k8s.io/service-cidr-finalizer";
/// Until all servers have heard that nothing new may come of it.
const GRACE: Duration = Duration::from_secs(10);

struct Controller {
    client: kube::Client,
    clock: Clock,
    cidrs: Informer<ServiceCIDR>,
    services: Informer<Service>,
}

/// Starts the controller.
pub(crate) fn start(context: &Context) {
    let (cidrs, services) = (context.informers.get::<ServiceCIDR>(), context.informers.get::<Service>());
    let queue = Arc::new(Queue::default());
    let all = cidrs.clone();
    // One that comes or goes may be what lets another one go.
    context.feed(&cidrs, &queue, move |change| {
        driver::objects_of(change).iter().map(|cidr| Key::of(&**cidr)).chain(ending(&all)).collect()
    });
    let all = cidrs.clone();
    context.feed(&services, &queue, move |change| match change {
        Change::Added(_) => Vec::new(),
        _ => ending(&all),
    });
    let controller = Controller {
        client: context.client(NAME),
        clock: context.clock.clone(),
        cidrs: cidrs.clone(),
        services: services.clone(),
    };
    context.start(NAME, &queue, controller, async move {
        cidrs.synced().await;
        services.synced().await;
    });
}

fn ending(cidrs: &Informer<ServiceCIDR>) -> Vec<Key> {
    cidrs.list().iter().filter(|cidr| cidr.metadata.deletion_timestamp.is_some()).map(|cidr| Key::of(&**cidr)).collect()
}

fn ranges(cidr: &ServiceCIDR) -> Vec<IpNet> {
    let texts = cidr.spec.iter().flat_map(|spec| spec.cidrs.iter().flatten());
    texts.filter_map(|text| text.parse().ok()).collect()
}

/// Whether an address would be in no range without this one.
fn is_needed(cidr: &ServiceCIDR, all: &[Arc<ServiceCIDR>], mut ips: impl Iterator<Item = IpAddr>) -> bool {
    let own = ranges(cidr);
    let others = all
        .iter()
        .filter(|other| other.metadata.name != cidr.metadata.name && other.metadata.deletion_timestamp.is_none());
    let others: Vec<IpNet> = others.flat_map(|other| ranges(other)).collect();
    ips.any(|ip| own.iter().any(|range| range.contains(&ip)) && !others.iter().any(|range| range.contains(&ip)))
}

fn says(cidr: &ServiceCIDR, status: &str) -> bool {
    let conditions = cidr.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == status)
}

/// The condition Ready of a range.
enum Readiness {
    Ready,
    /// It is to go, and has addresses of Services.
    InUse,
}

impl Controller {
    async fn say(&self, cidr: &ServiceCIDR, readiness: Readiness) -> Result<(), Error> {
        let (status, reason, message) = match readiness {
            Readiness::Ready => ("True", "", "Kubernetes Service CIDR is ready"),
            Readiness::InUse => (
                "False",
                "Terminating",
                "There are still IPAddresses referencing the ServiceCIDR, please remove them or create a new \
                 ServiceCIDR",
            ),
        };
        if says(cidr, status) {
            return Ok(());
        }
        let condition = json!({
            "type": "Ready",
            "status": status,
            "reason": reason,
            "message": message,
            "lastTransitionTime": rfc3339_secs(self.clock.now()),
        });
        let patch = Patch::Merge(json!({ "status": { "conditions": [condition] } }));
        let api: Api<ServiceCIDR> = Api::all(self.client.clone());
        driver::gone_is_fine(api.patch_status(&cidr.name_any(), &PatchParams::default(), &patch).await)?;
        Ok(())
    }

    async fn set_finalizers(&self, cidr: &ServiceCIDR, finalizers: Vec<String>) -> Result<(), Error> {
        let metadata: Value = json!({ "resourceVersion": cidr.resource_version(), "finalizers": finalizers });
        let api: Api<ServiceCIDR> = Api::all(self.client.clone());
        let patch = Patch::Merge(json!({ "metadata": metadata }));
        driver::gone_is_fine(api.patch(&cidr.name_any(), &PatchParams::default(), &patch).await)?;
        Ok(())
    }

    fn service_ips(&self) -> Vec<IpAddr> {
        let services = self.services.list();
        let texts = services
            .iter()
            .filter_map(|service| service.spec.as_ref())
            .flat_map(|spec| spec.cluster_ips.iter().flatten());
        texts.filter_map(|text| text.parse().ok()).collect()
    }
}

#[async_trait::async_trait]
impl Reconcile for Controller {
    async fn reconcile(&self, key: &Key) -> Result<Next, Error> {
        let Some(cidr) = self.cidrs.get("", &key.name) else { return Ok(Next::Wait) };
        let held = cidr.finalizers().iter().any(|finalizer| finalizer == FINALIZER);
        let Some(since) = cidr.metadata.deletion_timestamp.as_ref().map(|time| time.0) else {
            if !held {
                let all = cidr.finalizers().iter().cloned().chain([FINALIZER.to_owned()]).collect();
                self.set_finalizers(&cidr, all).await?;
            }
            self.say(&cidr, Readiness::Ready).await?;
            return Ok(Next::Wait);
        };
        if !held {
            return Ok(Next::Wait);
        }
        if is_needed(&cidr, &self.cidrs.list(), self.service_ips().into_iter()) {
            self.say(&cidr, Readiness::InUse).await?;
            return Ok(Next::Wait);
        }
        if let Some(left) = left(since, self.clock.now()) {
            return Ok(Next::After(left));
        }
        let rest = cidr.finalizers().iter().filter(|finalizer| *finalizer != FINALIZER).cloned().collect();
        self.set_finalizers(&cidr, rest).await?;
        Ok(Next::Wait)
    }
}

/// The rest of the grace of one that is on its way out.
fn left(since: Timestamp, now: Timestamp) -> Option<Duration> {
    let end = since.checked_add(SignedDuration::try_from(GRACE).ok()?).ok()?;
    Duration::try_from(end.duration_since(now)).ok().filter(|left| !left.is_zero())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cidr(name: &str, ranges: &[&str], ends: bool) -> Arc<ServiceCIDR> {
        let ended = ends.then_some("2026-01-01T00:00:00Z");
        let object = json!({ "metadata": { "name": name, "deletionTimestamp": ended }, "spec": { "cidrs": ranges } });
        Arc::new(serde_json::from_value(object).unwrap())
    }

    #[test]
    fn a_range_is_needed_as_long_as_an_address_is_in_it_alone() {
        let ends = cidr("a", &["10.99.0.0/24", "fd99::/112"], true);
        let needed = |others: &[Arc<ServiceCIDR>], ip: &str| {
            let all: Vec<Arc<ServiceCIDR>> = others.iter().chain([&ends]).cloned().collect();
            is_needed(&ends, &all, std::iter::once(ip.parse().unwrap()))
        };
        assert!(needed(&[], "10.99.0.7") && needed(&[], "fd99::7"));
        assert!(!needed(&[], "10.43.0.7"));
        assert!(!needed(&[cidr("b", &["10.99.0.0/16"], false)], "10.99.0.7"));
        assert!(needed(&[cidr("b", &["10.99.0.0/16"], true)], "10.99.0.7"));
    }

    #[test]
    fn nothing_goes_before_its_grace_is_over() {
        let at = |secs: i64| Timestamp::from_second(secs).unwrap();
        assert_eq!(left(at(100), at(104)), Some(Duration::from_secs(6)));
        assert_eq!(left(at(100), at(110)), None);
    }
}
