//! What the counts in a workload's status may be.

use serde_json::Value;

use crate::read;
use crate::table::Resource;
use crate::validate::checks::{Errors, NOT_NEGATIVE, ip};
use crate::validate::error::FieldError;
use model::names;

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
        counts: &[
            "replicas",
            "fullyLabeledReplicas",
            "readyReplicas",
            "availableReplicas",
            "observedGeneration",
            "terminatingReplicas",
        ],
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
    let mut wrong =
        |field: &str, why: &str| errors.push(FieldError::invalid(format!("status.{field}"), number(field), why));
    for field in kind.counts.iter().filter(|f| number(f) < 0) {
        wrong(field, NOT_NEGATIVE);
    }
    for field in kind.of_replicas.iter().filter(|f| number(f) > number("replicas")) {
        wrong(field, "cannot be greater than status.replicas");
    }
    if !kind.of_replicas.is_empty() && number("availableReplicas") > number("readyReplicas") {
        wrong("availableReplicas", kind.of_ready);
    }
    if kind.counts.contains(&"collisionCount") && number("collisionCount") < read::number(old, "status.collisionCount")
    {
        wrong("collisionCount", "cannot be decremented");
    }
}

/// What single kinds want of their status beyond its counts.
pub(super) fn of_kind(r: &Resource, new: &Value, errors: &mut Errors) {
    match (r.group.as_ref(), r.kind.as_ref()) {
        ("", "Namespace") => phase(new, errors),
        ("", "Pod") => pod(new, errors),
        ("", "Service") => {
            let taken = !read::list(new, "status.loadBalancer.ingress").is_empty();
            if taken && read::text(new, "spec.type") != "LoadBalancer" {
                let why = "may only be used when `spec.type` is 'LoadBalancer'";
                errors.push(FieldError::forbidden("status.loadBalancer.ingress", why));
            } else {
                balancer(new, errors);
            }
        }
        ("networking.k8s.io", "Ingress") => balancer(new, errors),
        ("policy", "PodDisruptionBudget") | ("admissionregistration.k8s.io", "ValidatingAdmissionPolicy") => {
            conditions(new, errors)
        }
        _ => {}
    }
}

/// Spec: upstream v1.36 `ValidateNamespaceStatusUpdate`.
fn phase(new: &Value, errors: &mut Errors) {
    let (phase, dying) = (read::text(new, "status.phase"), model::meta::deletion_timestamp(new).is_some());
    let why = match (phase, dying) {
        ("Active", false) | ("Terminating", true) => return,
        (_, false) => "may only be 'Active' if `deletionTimestamp` is empty",
        (_, true) => "may only be 'Terminating' if `deletionTimestamp` is not empty",
    };
    errors.push(FieldError::invalid("status.Phase", phase, why));
}

/// Spec: upstream v1.36 `ValidatePodStatusUpdate`: a name, and at most one address a family.
fn pod(new: &Value, errors: &mut Errors) {
    let node = read::text(new, "status.nominatedNodeName");
    if !node.is_empty() {
        let path = "status.nominatedNodeName";
        errors.extend(names::dns_subdomain_errors(node).into_iter().map(|why| FieldError::invalid(path, node, why)));
    }
    for field in ["podIPs", "hostIPs"] {
        let list = read::list(new, &format!("status.{field}"));
        let ips: Vec<&str> = list.iter().map(|entry| read::text(entry, "ip")).collect();
        for (idx, text) in ips.iter().enumerate() {
            ip(text, &format!("status.{field}[{idx}]"), errors);
        }
        let is_six = |text: &str| text.contains(':');
        let two = matches!(ips.as_slice(), [a, b] if is_six(a) != is_six(b));
        if ips.len() > 1 && !two {
            let why = "may specify no more than one IP for each IP family";
            errors.push(FieldError::invalid(format!("status.{field}"), Value::from(list.to_vec()), why));
        }
    }
}

/// Addresses and names at which a load balancer is reached.
fn balancer(new: &Value, errors: &mut Errors) {
    for (idx, entry) in read::list(new, "status.loadBalancer.ingress").iter().enumerate() {
        let path = format!("status.loadBalancer.ingress[{idx}]");
        let (address, name) = (read::text(entry, "ip"), read::text(entry, "hostname"));
        if !address.is_empty() {
            ip(address, &format!("{path}.ip"), errors);
        }
        if name.is_empty() {
            continue;
        }
        let here = format!("{path}.hostname");
        errors.extend(names::dns_subdomain_errors(name).into_iter().map(|why| FieldError::invalid(&*here, name, why)));
        if name.parse::<std::net::IpAddr>().is_ok() {
            errors.push(FieldError::invalid(here, name, "must be a DNS name, not an IP address"));
        }
    }
}

/// Spec: upstream v1.36 `metav1validation.ValidateConditions`, as far as readers rely on it.
fn conditions(new: &Value, errors: &mut Errors) {
    for (idx, condition) in read::list(new, "status.conditions").iter().enumerate() {
        let path = format!("status.conditions[{idx}]");
        if read::text(condition, "type").is_empty() {
            errors.push(FieldError::required(format!("{path}.type"), ""));
        }
        let status = read::text(condition, "status");
        if !["False", "True", "Unknown"].contains(&status) {
            errors.push(FieldError::not_supported(format!("{path}.status"), status, &["False", "True", "Unknown"]));
        }
        if read::text(condition, "reason").is_empty() {
            errors.push(FieldError::required(format!("{path}.reason"), ""));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::Catalog;
    use serde_json::json;

    #[test]
    fn a_status_says_what_can_be() {
        let said = |group: &str, plural: &str, object: Value| {
            let mut errors = Vec::new();
            of_kind(Catalog::builtin().resource(group, "v1", plural).unwrap(), &object, &mut errors);
            errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
        };
        let ips =
            |list: &[&str]| json!({"status": {"podIPs": list.iter().map(|ip| json!({"ip": ip})).collect::<Vec<_>>()}});
        assert_eq!(said("", "pods", ips(&["10.0.0.1", "fd00::1"])), "");
        assert!(
            said("", "pods", ips(&["10.0.0.1", "10.0.0.2"]))
                .ends_with("may specify no more than one IP for each IP family")
        );
        assert!(said("", "pods", ips(&["10.0.0.1", "fd00::1", "10.0.0.2"])).ends_with("for each IP family"));
        assert!(
            said("", "pods", json!({"status": {"nominatedNodeName": "No Node"}}))
                .starts_with("status.nominatedNodeName: Invalid")
        );
        let taken = json!({"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}});
        assert!(
            said("", "services", json!({"spec": {"type": "ClusterIP"}, "status": taken}))
                .starts_with("status.loadBalancer.ingress: Forbidden")
        );
        assert_eq!(said("", "services", json!({"spec": {"type": "LoadBalancer"}, "status": taken})), "");
        let name = json!({"status": {"loadBalancer": {"ingress": [{"hostname": "192.0.2.1"}]}}});
        assert!(said("networking.k8s.io", "ingresses", name).ends_with("must be a DNS name, not an IP address"));
        assert!(
            said("", "namespaces", json!({"metadata": {}, "status": {"phase": "Terminating"}}))
                .starts_with("status.Phase: Invalid")
        );
        let odd = json!({"status": {"conditions": [{"type": "T", "status": "Perhaps", "reason": "R"}]}});
        assert!(
            said("policy", "poddisruptionbudgets", odd).starts_with("status.conditions[0].status: Unsupported value")
        );
    }

    #[test]
    fn counts_fit_each_other() {
        let deployments = Catalog::builtin().resource("apps", "v1", "deployments").unwrap();
        let said = |status: Value| {
            let mut errors = Vec::new();
            counts(deployments, &json!({"status": status}), &json!({"status": {"collisionCount": 1}}), &mut errors);
            errors.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert!(
            said(json!({"replicas": 3, "readyReplicas": 2, "availableReplicas": 2, "collisionCount": 1})).is_empty()
        );
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
