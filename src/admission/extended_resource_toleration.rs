//! A pod that asks for a device tolerates the taint that keeps others off the nodes that have it.

use std::collections::{BTreeSet, HashSet};

use async_trait::async_trait;
use model::reference::GroupResource;
use registry::attributes::Attributes;
use registry::status::Status;
use serde_json::{Value, json};

use super::{Operation, Plugin, Review};

/// Upstream's `ExtendedResourceToleration`.
pub struct ExtendedResourceToleration;

#[async_trait]
impl Plugin for ExtendedResourceToleration {
    fn name(&self) -> &'static str {
        "ExtendedResourceToleration"
    }

    fn handles(&self, operation: Operation, a: &Attributes) -> bool {
        a.is(GroupResource::core("pods")) && matches!(operation, Operation::Create | Operation::Update)
    }

    async fn admit(&self, review: &mut Review<'_>) -> Result<(), Status> {
        let spec = &mut review.object["spec"];
        let containers =
            ["containers", "initContainers"].into_iter().flat_map(|list| spec[list].as_array().into_iter().flatten());
        let asked =
            containers.flat_map(|container| container["resources"]["requests"].as_object().into_iter().flatten());
        let names: BTreeSet<String> = asked.map(|(name, _)| name.clone()).filter(|name| is_extended(name)).collect();
        let all = names.iter().map(|name| json!({ "key": name, "operator": "Exists" }));
        match spec["tolerations"].as_array_mut() {
            Some(list) => {
                let have: HashSet<Value> = list.iter().cloned().collect();
                list.extend(all.filter(|toleration| !have.contains(toleration)));
            }
            None if names.is_empty() => {}
            None => spec["tolerations"] = all.collect(),
        }
        Ok(())
    }
}

/// `example.com/gpu`, but nothing of Kubernetes' own.
fn is_extended(name: &str) -> bool {
    name.split_once('/').is_some_and(|(domain, _)| !domain.ends_with("kubernetes.io")) && !name.starts_with("requests.")
}
