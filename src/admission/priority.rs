//! A pod's priority is the number behind its priority class.

use std::sync::Arc;

use async_trait::async_trait;
use model::meta;
use model::reference::{GroupResource, NamespacedName};
use registry::attributes::Attributes;
use registry::lookup::Lookup;
use registry::status::Status;
use serde_json::{Value, json};

use super::{Operation, Plugin, Review};

const GROUP: &str = "scheduling.k8s.io";

/// Upstream's `Priority`.
pub struct Priority;

#[async_trait]
impl Plugin for Priority {
    fn name(&self) -> &'static str {
        "Priority"
    }

    fn handles(&self, operation: Operation, a: &Attributes) -> bool {
        matches!(operation, Operation::Create | Operation::Update)
            && (a.is(GroupResource::core("pods")) || a.is(GroupResource { group: GROUP, resource: "priorityclasses" }))
    }

    async fn admit(&self, review: &mut Review<'_>) -> Result<(), Status> {
        if review.attributes.resource != "pods" {
            return Ok(());
        }
        match review.operation {
            Operation::Create => resolve(review).await,
            _ => keep(review),
        }
    }

    async fn validate(&self, review: &Review<'_>) -> Result<(), Status> {
        if review.attributes.resource != "priorityclasses" || review.object["globalDefault"] != true {
            return Ok(());
        }
        match default_class(review.lookup) {
            Some(other) if meta::name(&other) != review.attributes.name => {
                let why = format!(
                    "PriorityClass {} is already marked as default. Only one default can exist",
                    meta::name(&other)
                );
                Err(review.forbidden(&why))
            }
            _ => Ok(()),
        }
    }
}

fn default_class(lookup: &dyn Lookup) -> Option<Arc<Value>> {
    let classes = lookup.list(GroupResource { group: GROUP, resource: "priorityclasses" }, None);
    classes.into_iter().filter(|class| class["globalDefault"] == true).min_by_key(|class| class["value"].as_i64())
}

/// An update cannot change what was computed; clients that do not know the fields leave them out.
fn keep(review: &mut Review<'_>) -> Result<(), Status> {
    let Some(old) = review.old else { return Ok(()) };
    for field in ["priority", "preemptionPolicy"] {
        if review.object["spec"][field].is_null() && !old["spec"][field].is_null() {
            review.object["spec"][field] = old["spec"][field].clone();
        }
    }
    Ok(())
}

async fn resolve(review: &mut Review<'_>) -> Result<(), Status> {
    let spec = &review.object["spec"];
    let asked = spec["priorityClassName"].as_str().unwrap_or_default();
    let class = if asked.is_empty() {
        default_class(review.lookup)
    } else {
        let why = format!("no PriorityClass with name {asked} was found");
        Some(
            review
                .lookup
                .sure(GroupResource { group: GROUP, resource: "priorityclasses" }, NamespacedName::cluster(asked))
                .await
                .ok_or_else(|| review.forbidden(&why))?,
        )
    };
    let priority = class.as_ref().and_then(|class| class["value"].as_i64()).unwrap_or(0);
    let policy = class
        .as_ref()
        .and_then(|class| class["preemptionPolicy"].as_str())
        .unwrap_or("PreemptLowerPriority")
        .to_owned();
    if let Some(given) = spec["priority"].as_i64().filter(|given| *given != priority) {
        let why = format!(
            "the integer value of priority ({given}) must not be provided in pod spec; priority admission controller \
             computed {priority} from the given PriorityClass name"
        );
        return Err(review.forbidden(&why));
    }
    if let Some(given) = spec["preemptionPolicy"].as_str().filter(|given| *given != policy) {
        let why = format!(
            "the string value of PreemptionPolicy ({given}) must not be provided in pod spec; priority admission \
             controller computed {policy} from the given PriorityClass name"
        );
        return Err(review.forbidden(&why));
    }
    if let Some(class) = class.filter(|_| asked.is_empty()) {
        review.object["spec"]["priorityClassName"] = json!(meta::name(&class));
    }
    review.object["spec"]["priority"] = json!(priority);
    review.object["spec"]["preemptionPolicy"] = json!(policy);
    Ok(())
}
