//! Keeps definitions' status, serves what is established, and takes the objects of a dying definition with it.

use std::sync::Arc;
use std::time::Duration;

use base::task::Group;
use model::meta;
use model::reference::{GroupResource, NamespacedName};
use registry::lookup::Lookup as _;
use registry::metrics::Metrics;
use registry::objects::Objects;
use registry::status::Status;
use registry::{forms, keys};
use schema::custom::definition::CLEANUP;
use schema::read;
use schema::table::Resource;
use serde_json::Value;
use tracing::{info, warn};

use super::status::{set_condition, settled};

const GROUP: &str = "apiextensions.k8s.io";
const PLURAL: &str = "customresourcedefinitions";
/// While a dying definition waits for its objects' finalizers, and after a failed write.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// Starts the task.
pub fn keep(objects: &Arc<Objects>, metrics: &Arc<Metrics>, group: &Group) {
    let (objects, metrics) = (Arc::clone(objects), Arc::clone(metrics));
    group.spawn("custom-resources", async move {
        let mut changed = objects.cache.changed(GroupResource { group: GROUP, resource: PLURAL });
        loop {
            changed.mark_unchanged();
            let done = round(&objects, &metrics).await;
            if let Err(status) = &done {
                warn!(why = %status, "cannot keep custom resource definitions");
            }
            if matches!(done, Ok(true)) {
                if changed.changed().await.is_err() {
                    return;
                }
            } else {
                let _either = tokio::time::timeout(LOOK_AGAIN, changed.changed()).await;
            }
        }
    });
}

fn definitions(objects: &Objects) -> Vec<Arc<Value>> {
    let mut all = objects.cache.list(GroupResource { group: GROUP, resource: PLURAL }, None);
    // Who came first has the name.
    all.sort_by(|a, b| (meta::creation_timestamp(a), meta::name(a)).cmp(&(meta::creation_timestamp(b), meta::name(b))));
    all
}

/// Serves every established definition as it is now.
pub fn serve(objects: &Objects, metrics: &Metrics) {
    let established: Vec<Arc<Value>> =
        definitions(objects).into_iter().filter(|d| read::condition_is_true(d, "Established")).collect();
    for (group, plural) in objects.catalogs.serve(&established) {
        objects.cache.forget(GroupResource { group: &group, resource: &plural });
        if !objects.catalogs.now().resources().iter().any(|row| row.group == *group && row.plural == *plural) {
            metrics.forget(GroupResource { group: &group, resource: &plural });
        }
        info!(group, resource = plural, "custom resource changed");
    }
}

/// One look at all definitions; false if somebody has to look again soon.
async fn round(objects: &Objects, metrics: &Metrics) -> Result<bool, Status> {
    let row = forms::stored(GroupResource { group: GROUP, resource: PLURAL }).ok_or_else(Status::no_such_resource)?;
    let now = base::time::rfc3339_secs(objects.clock.now());
    let mut settled_all = true;
    for definition in definitions(objects) {
        // The list anew each time: an earlier one of this round may have taken a name.
        if let Some(new) =
            settled(&definition, &objects.cache.list(GroupResource { group: GROUP, resource: PLURAL }, None), &now)
        {
            settled_all &= replace(objects, &row, &definition, new).await?;
        }
    }
    serve(objects, metrics);
    for definition in definitions(objects) {
        if meta::deletion_timestamp(&definition).is_some() && meta::finalizers(&definition).contains(&CLEANUP) {
            settled_all &= clean(objects, &row, &definition, &now).await?;
        }
    }
    serve(objects, metrics);
    Ok(settled_all)
}

fn version_of(object: &Value) -> u64 {
    meta::resource_version(object).parse().unwrap_or(0)
}

/// Writes a definition; false if somebody was faster.
async fn replace(objects: &Objects, row: &Resource, old: &Value, mut new: Value) -> Result<bool, Status> {
    let name = meta::name(old).to_owned();
    if meta::deletion_timestamp(&new).is_some() && meta::finalizers(&new).is_empty() {
        return Ok(objects.remove(row, NamespacedName::cluster(&name), version_of(old)).await?.is_some());
    }
    Ok(objects.put(row, NamespacedName::cluster(&name), &mut new, version_of(old)).await?.is_some())
}

/// Deletes the objects of a dying definition; when none is left the definition loses its finalizer. False: not yet.
async fn clean(objects: &Objects, row: &Resource, definition: &Value, now: &str) -> Result<bool, Status> {
    let condition = |object: &mut Value, status: &str, reason: &str, message: &str| {
        set_condition(object, "Terminating", (status, reason, message), now)
    };
    let mut new = definition.clone();
    let (group, plural) = (read::text(definition, "spec.group"), read::text(definition, "spec.names.plural"));
    let catalog = objects.catalogs.now();
    let custom = catalog
        .resources()
        .iter()
        .find(|r| r.custom && r.group == group && r.plural == plural)
        .map(|r| Arc::clone(catalog.storage_of(r)));
    match custom {
        None => condition(&mut new, "False", "NeverEstablished", "resource was never established"),
        Some(custom) => {
            let mut busy = definition.clone();
            condition(&mut busy, "True", "InstanceDeletionInProgress", "CustomResource deletion is in progress");
            if busy != *definition {
                replace(objects, row, definition, busy).await?;
                return Ok(false);
            }
            if !delete_all(objects, &custom, now).await? {
                return Ok(false);
            }
            condition(&mut new, "False", "InstanceDeletionCompleted", "removed all instances");
        }
    }
    let finalizers: Vec<String> =
        meta::finalizers(definition).into_iter().filter(|f| *f != CLEANUP).map(str::to_owned).collect();
    meta::set_finalizers(&mut new, &finalizers.iter().map(String::as_str).collect::<Vec<_>>());
    replace(objects, row, definition, new).await
}

/// Deletes every object, marks those that finalizers hold; true when none is left.
async fn delete_all(objects: &Objects, custom: &Resource, now: &str) -> Result<bool, Status> {
    let prefix = keys::prefix(custom.group_resource());
    let (stored, _) = objects.cache.read_all(&prefix, None).await?;
    let mut left = 0;
    for kv in &stored {
        let Ok(mut object) = serde_json::from_slice::<Value>(&kv.value) else { continue };
        let (namespace, name) = (meta::namespace(&object).to_owned(), meta::name(&object).to_owned());
        if meta::finalizers(&object).is_empty() {
            left += usize::from(
                objects
                    .remove(custom, NamespacedName { namespace: &namespace, name: &name }, kv.mod_revision.0)
                    .await?
                    .is_none(),
            );
            continue;
        }
        left += 1;
        if meta::deletion_timestamp(&object).is_none() {
            meta::set_deletion_timestamp(&mut object, Some(now));
            meta::set_deletion_grace_period_seconds(&mut object, Some(0));
            let generation = meta::generation(&object);
            meta::set_generation(&mut object, generation + 1);
            objects
                .put(custom, NamespacedName { namespace: &namespace, name: &name }, &mut object, kv.mod_revision.0)
                .await?;
        }
    }
    Ok(left == 0)
}
