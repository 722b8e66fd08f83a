//! Rules for the counts in a workload's status.

use model::names;
use serde_json::Value;

use crate::read;
use crate::table::Resource;
use crate::validate::checks::{Errors, NOT_NEGATIVE, ip};
use crate::validate::error::FieldError;
use crate::validate::path::Path;

/// The text for more available pods than ready ones.
pub(crate) const READY: &str = "cannot be greater than readyReplicas";

/// Errors of the counts of a status that replaces `old`'s.
pub(super) fn counts(r: &Resource, new: &Value, old: &Value, errors: &mut Errors) {
    let Some(kind) = &r.behaviour.rules.counts else { return };
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

/// Only a load balancer has its addresses.
pub(crate) fn service(new: &Value, errors: &mut Errors) {
    let taken = !read::list(new, "status.loadBalancer.ingress").is_empty();
    if taken && read::text(new, "spec.type") != "LoadBalancer" {
        let why = "may only be used when `spec.type` is 'LoadBalancer'";
        errors.push(FieldError::forbidden("status.loadBalancer.ingress", why));
    } else {
        balancer(new, errors);
    }
}

/// Spec: upstream v1.36 `ValidateNamespaceStatusUpdate`.
pub(crate) fn phase(new: &Value, errors: &mut Errors) {
    let (phase, dying) = (read::text(new, "status.phase"), model::meta::deletion_timestamp(new).is_some());
    let why = match (phase, dying) {
        ("Active", false) | ("Terminating", true) => return,
        (_, false) => "may only be 'Active' if `deletionTimestamp` is empty",
        (_, true) => "may only be 'Terminating' if `deletionTimestamp` is not empty",
    };
    errors.push(FieldError::invalid("status.Phase", phase, why));
}

/// Spec: upstream v1.36 `ValidatePodStatusUpdate`: a name, and at most one address a family.
pub(crate) fn pod(new: &Value, errors: &mut Errors) {
    let node = read::text(new, "status.nominatedNodeName");
    if !node.is_empty() {
        let path = "status.nominatedNodeName";
        errors.extend(names::dns_subdomain_errors(node).into_iter().map(|why| FieldError::invalid(path, node, why)));
    }
    for field in ["podIPs", "hostIPs"] {
        let list = read::list(new, &format!("status.{field}"));
        let ips: Vec<&str> = list.iter().map(|entry| read::text(entry, "ip")).collect();
        for (idx, text) in ips.iter().enumerate() {
            ip(text, Path(&format!("status.{field}[{idx}]")), errors);
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
pub(crate) fn balancer(new: &Value, errors: &mut Errors) {
    for (idx, entry) in read::list(new, "status.loadBalancer.ingress").iter().enumerate() {
        let path = format!("status.loadBalancer.ingress[{idx}]");
        let (address, name) = (read::text(entry, "ip"), read::text(entry, "hostname"));
        if !address.is_empty() {
            ip(address, Path(&format!("{path}.ip")), errors);
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
pub(crate) fn conditions(new: &Value, errors: &mut Errors) {
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
            let r = Catalog::builtin().resource(crate::table::GroupVersion { group, version: "v1" }, plural).unwrap();
            (r.behaviour.rules.status)(&object, &Value::Null, &mut errors);
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
        let deployments =
            Catalog::builtin().resource(crate::table::GroupVersion::parse("apps/v1"), "deployments").unwrap();
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
