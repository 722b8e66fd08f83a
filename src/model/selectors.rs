//! Label selectors and node selectors over typed objects: which labels and which nodes they pick.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{NodeSelector, NodeSelectorRequirement, NodeSelectorTerm};
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
fn requirement_holds(requirement: &NodeSelectorRequirement, actual: Option<&str>) -> bool {
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
    selector.node_selector_terms.iter().any(|term| term_picks_node(term, name, labels))
}

/// Whether all requirements of one term hold; an empty term picks no node.
pub fn term_picks_node(term: &NodeSelectorTerm, name: &str, labels: &BTreeMap<String, String>) -> bool {
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    let field = |key: &str| (key == "metadata.name").then_some(name);
    !(expressions.is_empty() && fields.is_empty())
        && expressions.iter().all(|r| requirement_holds(r, labels.get(&r.key).map(String::as_str)))
        && fields.iter().all(|r| requirement_holds(r, field(&r.key)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Cases of upstream's `TestNodeSelectorMatch` (component-helpers/scheduling/corev1/nodeaffinity).
    #[test]
    fn a_node_selector_picks_by_any_term_and_a_term_by_all_of_it() {
        let labels = BTreeMap::from([("zone".to_owned(), "a".to_owned()), ("cores".to_owned(), "8".to_owned())]);
        let by_label = |key: &str, operator: &str, value: &str| {
            let requirement = json!({"key": key, "operator": operator, "values": [value]});
            json!({ "matchExpressions": [requirement] })
        };
        let by_name = json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]});
        let other = json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["m"]}]});
        let mut both = by_label("zone", "In", "a");
        both["matchFields"] = other["matchFields"].clone();
        for (terms, want) in [
            (json!([]), false),
            (json!([{}]), false),
            (json!([by_label("zone", "In", "a")]), true),
            (json!([by_label("zone", "NotIn", "a")]), false),
            (json!([by_label("disk", "NotIn", "ssd")]), true),
            (json!([by_label("disk", "Exists", "")]), false),
            (json!([by_label("cores", "Gt", "4")]), true),
            (json!([by_label("cores", "Lt", "8")]), false),
            (json!([by_label("zone", "Gt", "4")]), false),
            (json!([by_name]), true),
            (json!([other]), false),
            (json!([other, by_label("zone", "In", "a")]), true),
            (json!([both]), false),
        ] {
            let selector = serde_json::from_value(json!({ "nodeSelectorTerms": terms })).unwrap();
            assert_eq!(picks_node(&selector, "n", &labels), want, "{terms}");
        }
    }

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
