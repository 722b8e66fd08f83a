//! What the counts in a workload's status may be.

use serde_json::Value;

use crate::read;
use crate::table::Resource;
use crate::validate::checks::{Errors, NOT_NEGATIVE};
use crate::validate::error::FieldError;

/// The counts of one kind's status: none is negative, some are bounded by others.
struct Counts {
    group: &'static str,
    kind: &'static str,
    counts: &'static [&'static str],
    /// Not greater than `replicas`.
    of_replicas: &'static [&'static str],
    /// What a count of available pods above that of ready ones is told.
    of_ready: &'static str,
}

const READY: &str = "cannot be greater than readyReplicas";

const KINDS: &[Counts] = &[
    Counts {
        group: "apps",
        kind: "Deployment",
        counts: &[
            "observedGeneration",
            "replicas",
            "updatedReplicas",
            "readyReplicas",
            "availableReplicas",
            "unavailableReplicas",
            "terminatingReplicas",
            "collisionCount",
        ],
        of_replicas: &["updatedReplicas", "readyReplicas", "availableReplicas"],
        of_ready: READY,
    },
    Counts {
        group: "apps",
        kind: "ReplicaSet",
        counts: &["replicas", "fullyLabeledReplicas", "readyReplicas", "availableReplicas", "observedGeneration", "terminatingReplicas"],
        of_replicas: &["fullyLabeledReplicas", "readyReplicas", "availableReplicas"],
        of_ready: READY,
    },
    Counts {
        group: "",
        kind: "ReplicationController",
        counts: &["replicas", "fullyLabeledReplicas", "readyReplicas", "availableReplicas", "observedGeneration"],
        of_replicas: &["fullyLabeledReplicas", "readyReplicas", "availableReplicas"],
        of_ready: READY,
    },
    Counts {
        group: "apps",
        kind: "StatefulSet",
        counts: &[
            "replicas",
            "readyReplicas",
            "currentReplicas",
            "updatedReplicas",
            "availableReplicas",
            "observedGeneration",
            "collisionCount",
        ],
        of_replicas: &["readyReplicas", "currentReplicas", "updatedReplicas", "availableReplicas"],
        of_ready: "cannot be greater than status.readyReplicas",
    },
    Counts {
        group: "apps",
        kind: "DaemonSet",
        counts: &[
            "currentNumberScheduled",
            "numberMisscheduled",
            "desiredNumberScheduled",
            "numberReady",
            "observedGeneration",
            "updatedNumberScheduled",
            "numberAvailable",
            "numberUnavailable",
            "collisionCount",
        ],
        of_replicas: &[],
        of_ready: READY,
    },
    Counts {
        group: "policy",
        kind: "PodDisruptionBudget",
        counts: &["disruptionsAllowed", "currentHealthy", "desiredHealthy", "expectedPods"],
        of_replicas: &[],
        of_ready: READY,
    },
    Counts {
        group: "autoscaling",
        kind: "HorizontalPodAutoscaler",
        counts: &["currentReplicas", "desiredReplicas"],
        of_replicas: &[],
        of_ready: READY,
    },
];

/// What is wrong with the counts of a status that replaces `old`'s.
pub(super) fn counts(r: &Resource, new: &Value, old: &Value, errors: &mut Errors) {
    let Some(kind) = KINDS.iter().find(|k| k.group == r.group && k.kind == r.kind) else { return };
    let status = read::at(new, "status").unwrap_or(&Value::Null);
    let number = |field: &str| read::number(status, field);
    let mut wrong = |field: &str, why: &str| errors.push(FieldError::invalid(format!("status.{field}"), number(field), why));
    for field in kind.counts.iter().filter(|f| number(f) < 0) {
        wrong(field, NOT_NEGATIVE);
    }
    for field in kind.of_replicas.iter().filter(|f| number(f) > number("replicas")) {
        wrong(field, "cannot be greater than status.replicas");
    }
    if !kind.of_replicas.is_empty() && number("availableReplicas") > number("readyReplicas") {
        wrong("availableReplicas", kind.of_ready);
    }
    if kind.counts.contains(&"collisionCount") && number("collisionCount") < read::number(old, "status.collisionCount") {
        wrong("collisionCount", "cannot be decremented");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::Catalog;
    use serde_json::json;

    #[test]
    fn counts_fit_each_other() {
        let deployments = Catalog::builtin().resource("apps", "v1", "deployments").unwrap();
        let said = |status: Value| {
            let mut errors = Vec::new();
            counts(deployments, &json!({"status": status}), &json!({"status": {"collisionCount": 1}}), &mut errors);
            errors.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert!(said(json!({"replicas": 3, "readyReplicas": 2, "availableReplicas": 2, "collisionCount": 1})).is_empty());
        assert_eq!(
            said(json!({"replicas": 1, "readyReplicas": -1, "updatedReplicas": 2})),
            [
                "status.readyReplicas: Invalid value: -1: must be greater than or equal to 0",
                "status.updatedReplicas: Invalid value: 2: cannot be greater than status.replicas",
                "status.availableReplicas: Invalid value: 0: cannot be greater than readyReplicas",
                "status.collisionCount: Invalid value: 0: cannot be decremented",
            ]
        );
    }
}
