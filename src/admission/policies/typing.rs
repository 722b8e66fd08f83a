//! Keeps the status of validating policies: what their expressions get wrong about the kinds that they match.

use std::sync::Arc;
use std::time::Duration;

use base::task::Group;
use model::meta;
use model::reference::{GroupResource, NamespacedName};
use registry::forms;
use registry::lookup::Lookup as _;
use registry::objects::Objects;
use registry::status::Status;
use schema::declared;
use serde_json::{Value, json};
use tracing::warn;

const GROUP: &str = "admissionregistration.k8s.io";
const PLURAL: &str = "validatingadmissionpolicies";
/// After a write that failed or lost a race.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// Starts the task.
pub fn keep(objects: &Arc<Objects>, group: &Group) {
    let objects = Arc::clone(objects);
    group.spawn("policy-types", async move {
        let mut changed = objects.cache.changed(GroupResource { group: GROUP, resource: PLURAL });
        loop {
            changed.mark_unchanged();
            let done = round(&objects).await;
            if let Err(status) = &done {
                warn!(why = %status, "cannot keep the status of policies");
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

/// Checks every policy that is newer than its status; false if one has to be looked at again.
async fn round(objects: &Objects) -> Result<bool, Status> {
    let row = forms::stored(GroupResource { group: GROUP, resource: PLURAL }).ok_or_else(Status::no_such_resource)?;
    let mut all = true;
    for policy in objects.cache.list(GroupResource { group: GROUP, resource: PLURAL }, None) {
        let Some(status) = checked(&policy, &objects.catalogs.now()) else { continue };
        let mut new = (*policy).clone();
        new["status"] = status;
        let version = meta::resource_version(&policy).parse().unwrap_or(0);
        all &= objects.put(&row, NamespacedName::cluster(meta::name(&policy)), &mut new, version).await?.is_some();
    }
    Ok(all)
}

/// The status of a policy whose present generation was not checked yet.
fn checked(policy: &Value, catalog: &schema::catalog::Catalog) -> Option<Value> {
    let generation = meta::generation(policy);
    if policy["status"]["observedGeneration"].as_i64() == Some(generation) {
        return None;
    }
    let mut status = policy["status"].as_object().cloned().unwrap_or_default();
    let warnings = declared::warnings(policy, catalog);
    let types = if warnings.is_empty() { json!({}) } else { json!({ "expressionWarnings": warnings }) };
    status.insert("observedGeneration".to_owned(), json!(generation));
    status.insert("typeChecking".to_owned(), types);
    Some(Value::Object(status))
}

#[cfg(test)]
mod tests {
    use super::*;
    use schema::catalog::Catalog;

    #[test]
    fn a_policy_is_checked_once_a_generation() {
        let mut policy = json!({"metadata": {"generation": 2}, "spec": {"validations": [{"expression": "true"}]}});
        let status = checked(&policy, Catalog::builtin()).unwrap();
        assert_eq!(status, json!({"observedGeneration": 2, "typeChecking": {}}));
        policy["status"] = status;
        assert!(checked(&policy, Catalog::builtin()).is_none());
    }
}
