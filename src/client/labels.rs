//! Label selectors over labels: one reading of them for controllers and scheduler.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

/// Whether a selector picks these labels. An empty selector picks everything, as upstream's `LabelSelectorAsSelector` has it.
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
        assert!(!picks(json!({"matchLabels": {"app": "web"}, "matchExpressions": [{"key": "tier", "operator": "Exists"}]})));
        assert!(!picks(json!({"matchExpressions": [{"key": "app", "operator": "In", "values": ["db"]}]})));
    }
}
