//! Label selectors and node selectors over typed objects: which labels and which nodes they pick.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Affinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, PersistentVolume};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use crate::labels::requirement::Operator;

type Labels = BTreeMap<String, String>;

/// Whether a selector picks these labels. An empty selector picks everything. One that cannot be read, as upstream's
/// `LabelSelectorAsSelector` would find, picks nothing.
pub fn selects(selector: &LabelSelector, labels: Option<&Labels>) -> bool {
    let actual = |key: &str| labels.and_then(|labels| labels.get(key)).map(String::as_str);
    selector.match_labels.as_ref().is_none_or(|wanted| includes(wanted, labels))
        && selector.match_expressions.iter().flatten().all(|r| {
            let operator = Operator::of_label_selector(&r.operator);
            operator.is_some_and(|operator| operator.holds(actual(&r.key), texts(r.values.as_deref())))
        })
}

/// Whether the labels have all that are `wanted`, each with its value: a Service's selector, a pod's `nodeSelector`.
pub fn includes(wanted: &Labels, labels: Option<&Labels>) -> bool {
    let actual = |key: &str| labels.and_then(|labels| labels.get(key)).map(String::as_str);
    wanted.iter().all(|(key, value)| Operator::Equals.holds(actual(key), std::iter::once(value.as_str())))
}

/// Whether a selector asks for nothing, so that it picks everything.
pub fn is_empty(selector: &LabelSelector) -> bool {
    selector.match_labels.as_ref().is_none_or(BTreeMap::is_empty)
        && selector.match_expressions.as_ref().is_none_or(Vec::is_empty)
}

fn texts(values: Option<&[String]>) -> impl ExactSizeIterator<Item = &str> {
    values.unwrap_or_default().iter().map(String::as_str)
}

/// Whether one requirement of a node selector holds for the value that a node has.
fn requirement_holds(requirement: &NodeSelectorRequirement, actual: Option<&str>) -> bool {
    let operator = Operator::of_node_selector(&requirement.operator);
    operator.is_some_and(|operator| operator.holds(actual, texts(requirement.values.as_deref())))
}

/// Whether a node selector picks the node of this name and with these labels. Without terms, and by empty ones, it
/// picks none.
pub fn picks_node(selector: &NodeSelector, name: &str, labels: &Labels) -> bool {
    selector.node_selector_terms.iter().any(|term| term_picks_node(term, name, labels))
}

/// Whether all requirements of one term hold; an empty term picks no node.
pub fn term_picks_node(term: &NodeSelectorTerm, name: &str, labels: &Labels) -> bool {
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    let field = |key: &str| (key == "metadata.name").then_some(name);
    !(expressions.is_empty() && fields.is_empty())
        && expressions.iter().all(|r| requirement_holds(r, labels.get(&r.key).map(String::as_str)))
        && fields.iter().all(|r| requirement_holds(r, field(&r.key)))
}

/// Whether a pod's required node affinity, if it has any, lets it be on the node.
pub fn affinity_allows(affinity: Option<&Affinity>, name: &str, labels: &Labels) -> bool {
    let of_nodes = affinity.and_then(|affinity| affinity.node_affinity.as_ref());
    let required = of_nodes.and_then(|nodes| nodes.required_during_scheduling_ignored_during_execution.as_ref());
    required.is_none_or(|selector| picks_node(selector, name, labels))
}

/// Whether a volume can be reached from the node.
pub fn reaches(volume: &PersistentVolume, name: &str, labels: &Labels) -> bool {
    let required = volume.spec.as_ref().and_then(|spec| spec.node_affinity.as_ref()?.required.as_ref());
    required.is_none_or(|selector| picks_node(selector, name, labels))
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
        assert!(picks(json!({"matchLabels": {"app": "web"},
                "matchExpressions": [{"key": "tier", "operator": "NotIn", "values": ["db"]}]})));
        assert!(!picks(
            json!({"matchLabels": {"app": "web"}, "matchExpressions": [{"key": "tier", "operator": "Exists"}]})
        ));
        assert!(!picks(json!({"matchExpressions": [{"key": "app", "operator": "In", "values": ["db"]}]})));
    }
}
