//! Keeps the condition `Dangling` of every FlowSchema: whether the level that it names is there.

use std::sync::Arc;
use std::time::Duration;

use base::task::Group;
use futures_util::future::BoxFuture;
use model::meta;
use model::reference::{GroupResource, NamespacedName};
use registry::forms;
use registry::lookup::Lookup as _;
use registry::objects::Objects;
use registry::status::Status;
use schema::read;
use serde_json::{Value, json};
use tracing::warn;

use super::GROUP;

const SCHEMAS: &str = "flowschemas";
const LEVELS: &str = "prioritylevelconfigurations";
/// After a write that failed or lost a race.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// Starts the task.
pub fn keep(objects: &Arc<Objects>, group: &Group) {
    let objects = Arc::clone(objects);
    group.spawn("flow-schema-status", async move {
        let mut changes =
            [SCHEMAS, LEVELS].map(|resource| objects.cache.changed(GroupResource { group: GROUP, resource }));
        loop {
            changes.iter_mut().for_each(tokio::sync::watch::Receiver::mark_unchanged);
            let done = round(&objects).await;
            if let Err(status) = &done {
                warn!(why = %status, "cannot keep the status of FlowSchemas");
            }
            let [schemas, levels] = &mut changes;
            // Cancel safe: what has changed stays changed until the next round marks it.
            let some = async {
                tokio::select! {
                    ended = schemas.changed() => ended,
                    ended = levels.changed() => ended,
                }
            };
            if !matches!(done, Ok(true)) {
                let _either = tokio::time::timeout(LOOK_AGAIN, some).await;
            } else if some.await.is_err() {
                return;
            }
        }
    });
}

/// Looks at every schema; false if one has to be looked at again.
async fn round(objects: &Objects) -> Result<bool, Status> {
    let row = forms::stored(GroupResource { group: GROUP, resource: SCHEMAS }).ok_or_else(Status::no_such_resource)?;
    let levels = objects.cache.list(GroupResource { group: GROUP, resource: LEVELS }, None);
    let now = base::time::rfc3339_secs(objects.clock.now());
    let mut writes: Vec<BoxFuture<'_, Result<bool, Status>>> = Vec::new();
    for schema in objects.cache.list(GroupResource { group: GROUP, resource: SCHEMAS }, None) {
        let level = read::text(&schema, "spec.priorityLevelConfiguration.name");
        let Some(mut new) = judged(&schema, levels.iter().any(|l| meta::name(l) == level), &now) else { continue };
        let row = &row;
        writes.push(Box::pin(async move {
            let version = meta::resource_version(&schema).parse().unwrap_or(0);
            Ok(objects.put(row, NamespacedName::cluster(meta::name(&schema)), &mut new, version).await?.is_some())
        }));
    }
    // Together they share one fsync.
    let done: Result<Vec<bool>, Status> = futures_util::future::join_all(writes).await.into_iter().collect();
    Ok(done?.into_iter().all(|written| written))
}

/// The schema with its condition as it should be; `None` if it is so.
fn judged(schema: &Value, found: bool, now: &str) -> Option<Value> {
    let level = read::text(schema, "spec.priorityLevelConfiguration.name");
    let about = format!("This FlowSchema references the PriorityLevelConfiguration object named {level:?}");
    let (status, reason, message) = match found {
        true => ("False", "Found", format!("{about} and it exists")),
        false => ("True", "NotFound", format!("{about} but there is no such object")),
    };
    let have = read::typed(read::list(schema, "status.conditions"), "Dangling");
    let same = |c: &Value| c["status"] == status && c["reason"] == reason && c["message"] == message.as_str();
    if have.is_some_and(same) {
        return None;
    }
    let since = have.filter(|c| c["status"] == status).map_or(now, |c| read::text(c, "lastTransitionTime")).to_owned();
    let wanted = json!({ "type": "Dangling", "status": status, "reason": reason, "message": message,
        "lastTransitionTime": since });
    let others = read::list(schema, "status.conditions").iter().filter(|c| c["type"] != "Dangling").cloned();
    let mut new = schema.clone();
    new["status"]["conditions"] = others.chain([wanted]).collect();
    Some(new)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schema_says_whether_its_level_is_there() {
        let schema = json!({"spec": {"priorityLevelConfiguration": {"name": "l"}}});
        let dangling = judged(&schema, false, "t1").unwrap();
        let condition = &dangling["status"]["conditions"][0];
        assert_eq!((&condition["status"], &condition["lastTransitionTime"]), (&json!("True"), &json!("t1")));
        assert_eq!(
            condition["message"],
            "This FlowSchema references the PriorityLevelConfiguration object named \"l\" but there is no such object"
        );
        assert!(judged(&dangling, false, "t2").is_none());
        assert_eq!(judged(&dangling, true, "t3").unwrap()["status"]["conditions"][0]["reason"], "Found");
    }
}
