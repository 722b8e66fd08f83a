//! Pods of a namespace run on its nodes only: its selector joins theirs, and a list says which selectors they may have.

use std::collections::BTreeMap;

use async_trait::async_trait;
use model::meta;
use model::reference::{GroupResource, NamespacedName};
use registry::attributes::Attributes;
use registry::status::Status;
use registry::strict::known;
use schema::read;
use serde_json::{Value, json};

use super::error::{ConfigurationError, InvalidSelector};
use super::{Operation, Plugin, Review};

const ANNOTATION: &str = "scheduler.alpha.kubernetes.io/node-selector";
const DEFAULT: &str = "clusterDefaultNodeSelector";

type Labels = BTreeMap<String, String>;

/// `podNodeSelectorPluginConfig`: the default selector, and what the pods of single namespaces may select.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selectors(BTreeMap<String, Labels>);

impl Selectors {
    /// Reads it; `path` is where it stands.
    ///
    /// Errors: with the place of what is wrong.
    pub fn of(value: &Value, path: &str) -> Result<Selectors, ConfigurationError> {
        known(value, path, &["podNodeSelectorPluginConfig"])?;
        let entries = read::map(value, "podNodeSelectorPluginConfig").into_iter().flatten();
        let entry = |(name, text): (&String, &Value)| {
            let text = text.as_str().ok_or(ConfigurationError::NoSelector);
            let labels = text.and_then(|text| Ok(labels(text)?));
            let labels = labels.map_err(|why| why.at(format!("{path}.podNodeSelectorPluginConfig.{name}")))?;
            Ok((name.clone(), labels))
        };
        entries.map(entry).collect::<Result<_, ConfigurationError>>().map(Selectors)
    }
}

/// `a=b,c=d`.
fn labels(text: &str) -> Result<Labels, InvalidSelector> {
    let pairs = text.split(',').map(str::trim).filter(|pair| !pair.is_empty());
    let pair = |pair: &str| match pair.split_once('=') {
        Some((key, value)) if !key.trim().is_empty() => Ok((key.trim().to_owned(), value.trim().to_owned())),
        _ => Err(InvalidSelector(pair.to_owned())),
    };
    pairs.map(pair).collect()
}

/// Upstream's `PodNodeSelector`.
pub struct PodNodeSelector(pub Selectors);

impl PodNodeSelector {
    fn of_namespace(&self, review: &Review<'_>) -> Result<Labels, Status> {
        let name = &review.attributes.namespace;
        let namespace = review
            .lookup
            .get(GroupResource::core("namespaces"), NamespacedName::cluster(name))
            .ok_or_else(|| Status::not_found(GroupResource::core("namespaces"), name))?;
        match meta::annotation(&namespace, ANNOTATION) {
            Some(text) => labels(text).map_err(|why| review.forbidden(&why.to_string())),
            None => Ok(self.0.0.get(DEFAULT).cloned().unwrap_or_default()),
        }
    }
}

#[async_trait]
impl Plugin for PodNodeSelector {
    fn name(&self) -> &'static str {
        "PodNodeSelector"
    }

    fn handles(&self, operation: Operation, a: &Attributes) -> bool {
        operation == Operation::Create && a.is(GroupResource::core("pods"))
    }

    async fn admit(&self, review: &mut Review<'_>) -> Result<(), Status> {
        let wanted = self.of_namespace(review)?;
        let has = &review.object["spec"]["nodeSelector"];
        if wanted.iter().any(|(key, value)| has[key].as_str().is_some_and(|other| other != value)) {
            return Err(review.forbidden("pod node label selector conflicts with its namespace node label selector"));
        }
        for (key, value) in wanted {
            review.object["spec"]["nodeSelector"][key] = json!(value);
        }
        Ok(())
    }

    async fn validate(&self, review: &Review<'_>) -> Result<(), Status> {
        let wanted = self.of_namespace(review)?;
        let has = &review.object["spec"]["nodeSelector"];
        if wanted.iter().any(|(key, value)| has[key].as_str().is_some_and(|other| other != value)) {
            return Err(review.forbidden("pod node label selector conflicts with its namespace node label selector"));
        }
        let Some(allowed) = self.0.0.get(&review.attributes.namespace).filter(|allowed| !allowed.is_empty()) else {
            return Ok(());
        };
        let listed = |(key, value): (&String, &Value)| allowed.get(key).is_some_and(|v| value == v);
        match has.as_object().into_iter().flatten().all(listed) {
            true => Ok(()),
            false => Err(review.forbidden("pod node label selector labels conflict with its namespace whitelist")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_selector_is_a_list_of_pairs() {
        let read = |text: &str| {
            labels(text).map(|labels| labels.iter().map(|(k, v)| format!("{k}={v}")).collect::<Vec<_>>().join(","))
        };
        for (text, wanted) in [
            ("", ""),
            ("a=b", "a=b"),
            (" a = b , c=d ", "a=b,c=d"),
            ("a=", "a="),
            ("a=b=c", "a=b=c"),
            ("a=1,a=2", "a=2"),
        ] {
            assert_eq!(read(text).as_deref(), Ok(wanted), "{text}");
        }
        for (text, part) in [("a", "a"), ("=b", "=b"), ("a=b,c", "c"), ("a=b, =d", "=d")] {
            assert_eq!(read(text).unwrap_err().to_string(), format!("invalid selector: [{part}]"), "{text}");
        }
    }
}
