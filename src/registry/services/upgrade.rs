//! A cluster that gets its second family later: a Service that prefers two gets its second address when a server starts
//! that gives both. Upstream leaves such a Service as it is until somebody changes its policy; here the operator's new
//! range is that change.

use std::sync::Arc;
use std::time::Duration;

use base::task::Group;
use model::meta;
use model::reference::{GroupResource, NamespacedName};
use schema::table::GroupVersion;
use serde_json::{Value, json};
use store::Txn;
use tracing::{info, warn};

use super::addresses::cidr_family;
use super::allocator::Allocator;
use super::families;
use crate::status::Status;

/// After a failure, before the next try.
const RETRY: Duration = Duration::from_secs(5);

/// Why the families of a cluster's services are not those that a server is to give.
#[derive(Debug, thiserror::Error)]
pub enum FamilyError {
    /// The catalog has no ServiceCIDR.
    #[error("there is no such kind")]
    NoKind,
    /// The store does not say which families there were.
    #[error(transparent)]
    Unread(#[from] Status),
    /// One that was there is not given any more.
    #[error(
        "this cluster began with services of {before} ({ranges}) and --service-cidr is {now}: a family can be added \
         behind the first, and none be taken away"
    )]
    TakenAway {
        /// Families from which the cluster's services have addresses.
        before: String,
        /// Their ranges.
        ranges: String,
        /// Families that this server gives.
        now: String,
    },
}

/// Refuses to take a family away that the cluster's services may have addresses of: a family can come, and stays.
///
/// Errors: the store fails, or a family is missing.
pub async fn check(allocator: &Allocator) -> Result<(), FamilyError> {
    let catalog = allocator.objects.catalogs.now();
    let row = catalog
        .by_kind(GroupVersion::parse("networking.k8s.io/v1"), "ServiceCIDR")
        .map(|row| Arc::clone(catalog.storage_of(row)));
    let row = row.ok_or(FamilyError::NoKind)?;
    let Some(have) = allocator.objects.read(&row, NamespacedName::cluster("kubernetes")).await? else { return Ok(()) };
    let value = have.value();
    let ranges = schema::read::texts(&value, "spec.cidrs");
    let before: Vec<&str> = ranges.iter().map(|range| if range.contains(':') { "IPv6" } else { "IPv4" }).collect();
    let now: Vec<&str> = allocator.service_cidrs.iter().map(cidr_family).collect();
    if now.starts_with(&before) {
        return Ok(());
    }
    Err(FamilyError::TakenAway { before: before.join(" and "), ranges: ranges.join(","), now: now.join(" and ") })
}

/// Gives the second address to those that wait for it, as long as the group lives or until all have it.
pub fn start(allocator: &Arc<Allocator>, group: &Group) {
    if allocator.service_cidrs.len() < 2 {
        return;
    }
    let allocator = Arc::clone(allocator);
    group.spawn_short("second-family", async move {
        loop {
            let (mut given, mut failed) = (0, None);
            for (namespace, name) in waiting(&allocator) {
                match give(&allocator, NamespacedName { namespace: &namespace, name: &name }).await {
                    Ok(true) => given += 1,
                    // Somebody was faster: the next look tells.
                    Ok(false) => failed = failed.or(Some("it was changed meanwhile".to_owned())),
                    Err(status) => failed = Some(format!("{namespace}/{name}: {}", status.message)),
                }
            }
            if given > 0 {
                info!(n = given, "services that prefer two families got their second address");
            }
            let Some(why) = failed else { return };
            warn!(why, "cannot give every service its second address yet, trying again");
            tokio::time::sleep(RETRY).await;
        }
    });
}

/// Services that prefer two families and have one.
fn waiting(allocator: &Allocator) -> Vec<(String, String)> {
    let all = allocator.objects.cache.kind(GroupResource::core("services")).snapshot(None).items;
    let name = |service: Value| (meta::namespace(&service).to_owned(), meta::name(&service).to_owned());
    all.iter().map(|entry| entry.value()).filter(waits).map(name).collect()
}

fn waits(service: &Value) -> bool {
    let spec = &service["spec"];
    spec["type"] != "ExternalName" && spec["ipFamilyPolicy"] == "PreferDualStack" && families::of(service).len() == 1
}

/// False if the service was changed meanwhile.
async fn give(allocator: &Allocator, named: NamespacedName<'_>) -> Result<bool, Status> {
    let catalog = allocator.objects.catalogs.now();
    let row = catalog.by_kind(GroupVersion::CORE, "Service").map(|row| Arc::clone(catalog.storage_of(row)));
    let row = row.ok_or_else(Status::no_such_resource)?;
    let turn = allocator.turn().await?;
    let Some(have) = allocator.objects.read(&row, named).await?.filter(|have| waits(&have.value())) else {
        return Ok(true);
    };
    let old = have.value();
    let mut new = old.clone();
    let first = families::of(&old);
    let all = allocator.service_cidrs.iter().map(cidr_family);
    let second: Vec<&str> = all.filter(|family| !first.iter().any(|have| have == family)).collect();
    new["spec"]["ipFamilies"] = json!(first.iter().map(String::as_str).chain(second).collect::<Vec<_>>());
    allocator.on_update(&mut new, &old)?;
    let mut txn = Txn::default();
    turn.join(&mut txn);
    Ok(allocator.objects.put_within(txn, &row, named, &mut new, have.rv).await?.is_some())
}
