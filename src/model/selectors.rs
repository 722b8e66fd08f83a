//! Label selectors over labels: one reading of them for controllers and scheduler.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{NodeSelector, NodeSelectorRequirement};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

/// Whether a selector picks these labels. An empty selector picks everything, as upstream's `LabelSelectorAsSelector`
/// has it.
pub fn selects(selector: &LabelSelector, labels: Option<&BTreeMap<String, String>>) -> bool {
    let actual = |key: &str| labels.and_then(|labels| labels.get(key)).map(String::as_str);
    selector.match_labels.iter().flatten().all(|(key, value)| actual(key) == Some(value.as_str()))
        && selector.match_expressions.iter().flatten().all(|r| {
            let values = r.values.as_deref().unwrap_or_default();
            let listed = actual(&r.key).is_some_and(|actual| values.iter().any(|v| v == actual));
            match r.operator.as_str() {
                "In" => listed,
                "NotIn" => !listed,
                "Exists" => actual(&r.key).is_some(),
                "DoesNotExist" => actual(&r.key).is_none(),
                _ => false,
            }
        })
}

/// Whether one requirement of a node selector holds for the value that a node has.
pub fn requirement_holds(requirement: &NodeSelectorRequirement, actual: Option<&str>) -> bool {
    let values = requirement.values.as_deref().unwrap_or_default();
    let listed = || actual.is_some_and(|actual| values.iter().any(|v| v == actual));
    let compare = |holds: fn(i64, i64) -> bool| {
        let numbers = actual.and_then(|a| a.parse().ok()).zip(values.first().and_then(|v| v.parse().ok()));
        numbers.is_some_and(|(actual, wanted)| holds(actual, wanted))
    };
    match requirement.operator.as_str() {
        "In" => listed(),
        "NotIn" => !listed(),
        "Exists" => actual.is_some(),
        "DoesNotExist" => actual.is_none(),
        "Gt" => compare(|actual, wanted| actual > wanted),
        "Lt" => compare(|actual, wanted| actual < wanted),
        _ => false,
    }
}

/// Whether a node selector picks the node of this name and with these labels. Without terms, and by empty ones, it
/// picks none.
pub fn picks_node(selector: &NodeSelector, name: &str, labels: &BTreeMap<String, String>) -> bool {
    selector.node_selector_terms.iter().any(|term| {
        let expressions = term.match_expressions.as_deref().unwrap_or_default();
        let fields = term.match_fields.as_deref().unwrap_or_default();
        let field = |key: &str| (key == "metadata.name").then_some(name);
        !(expressions.is_empty() && fields.is_empty())
            && expressions.iter().all(|r| requirement_holds(r, labels.get(&r.key).map(String::as_str)))
            && fields.iter().all(|r| requirement_holds(r, field(&r.key)))
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn expressions_and_labels_must_all_hold_and_nothing_asked_is_everything() {
        let labels = BTreeMap::from([("app".to_owned(), "web".to_owned())]);
        let picks = |selector| selects(&serde_json::from_value(selector).unwrap(), Some(&labels));
        assert!(picks(json!({})));
        assert!(picks(
            json!({"matchLabels": {"app": "web"}, "matchExpressions": [{"key": "tier", "operator": "NotIn", "values": ["db"]}]})
        ));
        assert!(!picks(
            json!({"matchLabels": {"app": "web"}, "matchExpressions": [{"key": "tier", "operator": "Exists"}]})
        ));
        assert!(!picks(json!({"matchExpressions": [{"key": "app", "operator": "In", "values": ["db"]}]})));
    }
}
