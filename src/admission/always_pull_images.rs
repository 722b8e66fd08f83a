//! Every image is pulled anew with the pod's own credentials: nobody runs a private image because somebody else brought
//! it to the node.

use std::collections::HashSet;

use async_trait::async_trait;
use model::reference::GroupResource;
use registry::attributes::Attributes;
use registry::status::Status;
use schema::validate::error::FieldError;
use serde_json::{Value, json};

use super::{Operation, Plugin, Review};

const LISTS: [&str; 3] = ["initContainers", "containers", "ephemeralContainers"];

/// Upstream's `AlwaysPullImages`.
pub struct AlwaysPullImages;

#[async_trait]
impl Plugin for AlwaysPullImages {
    fn name(&self) -> &'static str {
        "AlwaysPullImages"
    }

    fn handles(&self, operation: Operation, a: &Attributes) -> bool {
        a.is(GroupResource::core("pods")) && matches!(operation, Operation::Create | Operation::Update)
    }

    async fn admit(&self, review: &mut Review<'_>) -> Result<(), Status> {
        if brings_no_image(review) {
            return Ok(());
        }
        for list in LISTS {
            for container in review.object["spec"].get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
                container["imagePullPolicy"] = json!("Always");
            }
        }
        for volume in review.object["spec"].get_mut("volumes").and_then(Value::as_array_mut).into_iter().flatten() {
            if let Some(image) = volume.get_mut("image").filter(|image| image.is_object()) {
                image["pullPolicy"] = json!("Always");
            }
        }
        Ok(())
    }

    async fn validate(&self, review: &Review<'_>) -> Result<(), Status> {
        if brings_no_image(review) {
            return Ok(());
        }
        let wrong = LISTS.into_iter().find_map(|list| {
            let containers = review.object["spec"][list].as_array()?;
            let at = containers.iter().position(|container| container["imagePullPolicy"] != "Always")?;
            Some((format!("spec.{list}[{at}].imagePullPolicy"), containers[at]["imagePullPolicy"].clone()))
        });
        wrong.map_or(Ok(()), |(field, policy)| {
            Err(review.forbidden(&FieldError::not_supported(field, policy, &["Always"]).to_string()))
        })
    }
}

/// A change of a pod that leaves its images as they are.
fn brings_no_image(review: &Review<'_>) -> bool {
    let images = |pod: &Value| -> Vec<Value> {
        let containers = LISTS.into_iter().flat_map(|list| pod["spec"][list].as_array().cloned().unwrap_or_default());
        containers.map(|container| container["image"].clone()).collect()
    };
    review.old.is_some_and(|old| {
        let had: HashSet<Value> = images(old).into_iter().collect();
        images(review.object).iter().all(|image| had.contains(image))
    })
}
