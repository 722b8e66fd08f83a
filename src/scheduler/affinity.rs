//! Matching: node selector terms, taints, and label selectors of pods.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{NodeSelector, NodeSelectorTerm, Taint, Toleration};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use model::selectors::requirement_holds;

use crate::snapshot::NodeState;

/// Whether any term matches; a selector without terms matches nothing.
pub fn node_selector_matches(selector: &NodeSelector, node: &NodeState) -> bool {
    selector.node_selector_terms.iter().any(|term| term_matches(term, node))
}

/// Whether all requirements of one term hold; an empty term matches nothing.
pub fn term_matches(term: &NodeSelectorTerm, node: &NodeState) -> bool {
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    let field = |key: &str| (key == "metadata.name").then(|| node.name());
    !(expressions.is_empty() && fields.is_empty())
        && expressions.iter().all(|r| requirement_holds(r, node.label(&r.key)))
        && fields.iter().all(|r| requirement_holds(r, field(&r.key)))
}

/// Whether a label selector picks these labels; an absent selector picks nothing, an empty one everything.
pub fn label_selector_matches(selector: Option<&LabelSelector>, labels: Option<&BTreeMap<String, String>>) -> bool {
    selector.is_some_and(|selector| model::selectors::selects(selector, labels))
}

/// Whether one toleration tolerates one taint. Spec: `core/v1` Toleration.
pub fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let effect = toleration.effect.as_deref().unwrap_or_default();
    let key = toleration.key.as_deref().unwrap_or_default();
    if !effect.is_empty() && effect != taint.effect || !key.is_empty() && key != taint.key {
        return false;
    }
    match toleration.operator.as_deref().unwrap_or_default() {
        "Exists" => true,
        "" | "Equal" => {
            !key.is_empty()
                && toleration.value.as_deref().unwrap_or_default() == taint.value.as_deref().unwrap_or_default()
        }
        _ => false,
    }
}
