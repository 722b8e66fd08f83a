//! Taints and tolerations: whether a pod may be where a taint keeps others away.

use k8s_openapi::api::core::v1::{Taint, Toleration};

/// Whether one toleration tolerates one taint. An empty key asks for the operator `Exists`; an unknown operator
/// tolerates nothing.
///
/// Spec: `core/v1` Toleration, upstream's `ToleratesTaint` (component-helpers/scheduling/corev1, 1.36).
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

/// Whether any of the tolerations tolerates the taint.
pub fn is_tolerated(taint: &Taint, tolerations: Option<&[Toleration]>) -> bool {
    tolerations.into_iter().flatten().any(|toleration| tolerates(toleration, taint))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// The cases of upstream's `TestTolerationToleratesTaint` (k8s.io/api/core/v1/toleration_test.go), and what an
    /// empty key and an unknown operator mean.
    #[test]
    fn a_toleration_tolerates_what_upstream_says() {
        let all_three = json!({"key": "foo", "operator": "Exists", "effect": "NoSchedule"});
        let equal = json!({"key": "foo", "operator": "Equal", "value": "bar", "effect": "NoSchedule"});
        let cases: [(&str, Value, Value, bool); 13] = [
            (
                "same key and effect, Exists",
                all_three.clone(),
                json!({"key": "foo", "value": "bar", "effect": "NoSchedule"}),
                true,
            ),
            (
                "all keys, no effect",
                json!({"key": "foo", "operator": "Exists"}),
                json!({"key": "foo", "value": "bar", "effect": "NoExecute"}),
                true,
            ),
            (
                "all taints",
                json!({"operator": "Exists"}),
                json!({"key": "foo", "value": "bar", "effect": "NoSchedule"}),
                true,
            ),
            (
                "all taints of an effect",
                json!({"operator": "Exists", "effect": "NoExecute"}),
                json!({"key": "foo", "effect": "NoSchedule"}),
                false,
            ),
            (
                "another key",
                json!({"key": "bar", "operator": "Exists", "effect": "NoSchedule"}),
                json!({"key": "foo", "effect": "NoSchedule"}),
                false,
            ),
            ("another effect", all_three, json!({"key": "foo", "value": "bar", "effect": "PreferNoSchedule"}), false),
            ("same value, Equal", equal.clone(), json!({"key": "foo", "value": "bar", "effect": "NoSchedule"}), true),
            ("another value, Equal", equal, json!({"key": "foo", "value": "baz", "effect": "NoSchedule"}), false),
            (
                "no operator is Equal",
                json!({"key": "foo", "value": "bar"}),
                json!({"key": "foo", "value": "bar", "effect": "NoSchedule"}),
                true,
            ),
            (
                "no operator, another value",
                json!({"key": "foo", "value": "bar"}),
                json!({"key": "foo", "value": "baz", "effect": "NoSchedule"}),
                false,
            ),
            (
                "empty key with Equal",
                json!({"operator": "Equal"}),
                json!({"key": "foo", "effect": "NoSchedule"}),
                false,
            ),
            ("empty key without operator", json!({}), json!({"key": "foo", "effect": "NoSchedule"}), false),
            (
                "unknown operator",
                json!({"key": "foo", "operator": "Like", "value": "bar"}),
                json!({"key": "foo", "value": "bar", "effect": "NoSchedule"}),
                false,
            ),
        ];
        for (case, toleration, taint, want) in cases {
            let toleration: Toleration = serde_json::from_value(toleration).unwrap();
            assert_eq!(tolerates(&toleration, &serde_json::from_value(taint).unwrap()), want, "{case}");
        }
    }
}
