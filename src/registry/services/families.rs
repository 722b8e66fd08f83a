//! Which families of addresses a Service has: upstream's rules for `ipFamilyPolicy`, `ipFamilies` and `clusterIPs`
//! (KEP-563, `pkg/registry/core/service/storage/alloc.go`). Pure.

use std::net::IpAddr;

use schema::read;
use schema::validate::error::FieldError;
use serde_json::{Value, json};

use super::addresses::{cluster_ips, family};

const POLICY: &str = "spec.ipFamilyPolicy";
const SINGLE: &str = "SingleStack";
const REQUIRE: &str = "RequireDualStack";
const PREFER: &str = "PreferDualStack";

/// The families that a service names, in its order.
pub(super) fn of(service: &Value) -> Vec<String> {
    let families = service["spec"]["ipFamilies"].as_array().into_iter().flatten();
    families.filter_map(Value::as_str).map(str::to_owned).collect()
}

fn policy(service: &Value) -> &str {
    service["spec"]["ipFamilyPolicy"].as_str().unwrap_or_default()
}

fn is_headless(service: &Value) -> bool {
    cluster_ips(service).first().is_some_and(|ip| ip == "None")
}

fn has_selector(service: &Value) -> bool {
    service["spec"]["selector"].as_object().is_some_and(|selector| !selector.is_empty())
}

/// Sets policy and families of a service in a cluster that has the families `configured`, the first being the one that
/// services get unless they ask. An address that the policy lets go goes; one that is missing is the caller's to
/// choose.
///
/// Errors: what does not fit each other or the cluster.
pub(super) fn complete(service: &mut Value, old: Option<&Value>, configured: &[&str]) -> Result<(), Vec<FieldError>> {
    let old = old.filter(|old| old["spec"]["type"] != "ExternalName");
    if old.is_some_and(|old| stays(service, old)) {
        return Ok(());
    }
    if policy(service).is_empty() {
        let before = old.map(policy).filter(|policy| !policy.is_empty());
        let first = if is_headless(service) && !has_selector(service) { REQUIRE } else { SINGLE };
        service["spec"]["ipFamilyPolicy"] = json!(before.unwrap_or(first));
    }
    let mut errors = Vec::new();
    if let Some(old) = old {
        release(service, old, &mut errors);
    }
    fits_policy(service, &mut errors);
    let mut families = of(service);
    infer(service, &mut families, configured, &mut errors);
    if !errors.is_empty() {
        return Err(errors);
    }
    let dual = policy(service) != SINGLE;
    let first = configured.first().copied().unwrap_or("IPv4");
    if is_headless(service) && !has_selector(service) {
        // Its endpoints are somebody's own, of whatever family: the cluster need not have it.
        if families.is_empty() {
            families.push(first.to_owned());
        }
        if dual && families.len() == 1 {
            families.push(other(&families[0]).to_owned());
        }
        service["spec"]["ipFamilies"] = json!(families);
        return Ok(());
    }
    if policy(service) == REQUIRE && configured.len() < 2 {
        let why = "this cluster is not configured for dual-stack services";
        errors.push(FieldError::invalid(POLICY, json!(REQUIRE), why));
    }
    for (idx, family) in families.iter().enumerate().filter(|(_, family)| !configured.contains(&family.as_str())) {
        errors.push(FieldError::invalid(
            format!("spec.ipFamilies[{idx}]"),
            json!(family),
            "not configured on this cluster",
        ));
    }
    if !errors.is_empty() {
        return Err(errors);
    }
    if families.is_empty() {
        families.push(first.to_owned());
    }
    if dual && families.len() == 1 && configured.len() == 2 {
        families.push(other(&families[0]).to_owned());
    }
    service["spec"]["ipFamilies"] = json!(families);
    Ok(())
}

/// A service that prefers two and changes nothing of it keeps the families that it has, whatever the cluster has by
/// now.
fn stays(service: &Value, old: &Value) -> bool {
    let same = |field: &str| read::at(service, field) == read::at(old, field);
    policy(service) == PREFER
        && same(POLICY)
        && same("spec.clusterIPs")
        && same("spec.ipFamilies")
        && service["spec"]["type"] != "ExternalName"
        && !of(service).is_empty()
        && (is_headless(service) || cluster_ips(service).len() == of(service).len())
}

/// To want one only lets the second go; to leave the second out takes that wish.
fn release(service: &mut Value, old: &Value, errors: &mut Vec<FieldError>) {
    let list = |service: &Value, field: &str| service["spec"][field].as_array().cloned().unwrap_or_default();
    for (field, what) in [("clusterIPs", "cluster IP"), ("ipFamilies", "IP family")] {
        let (now, before) = (list(service, field), list(old, field));
        if policy(service) == SINGLE {
            if now == before && now.len() > 1 {
                service["spec"][field] = json!(now[..1]);
            }
        } else if !now.is_empty() && now.len() < before.len() {
            let why = format!("must be 'SingleStack' to release the secondary {what}");
            errors.push(FieldError::invalid(POLICY, json!(policy(service)), why));
        }
    }
}

fn fits_policy(service: &Value, errors: &mut Vec<FieldError>) {
    if policy(service) != SINGLE {
        return;
    }
    for (field, many) in [("clusterIPs", cluster_ips(service).len() == 2), ("ipFamilies", of(service).len() == 2)] {
        if many {
            let why = format!("must be RequireDualStack or PreferDualStack when multiple {field} are specified");
            errors.push(FieldError::invalid(POLICY, json!(SINGLE), why));
        }
    }
}

/// Addresses tell families that were not named.
fn infer(service: &Value, families: &mut Vec<String>, configured: &[&str], errors: &mut Vec<FieldError>) {
    let ips = cluster_ips(service);
    for (idx, ip) in ips.iter().enumerate().skip(families.len()) {
        let Ok(ip) = ip.parse::<IpAddr>() else { break };
        let family = family(&ip);
        if configured.contains(&family) {
            families.push(family.to_owned());
        } else {
            let why = format!("{family} is not configured on this cluster");
            errors.push(FieldError::invalid(format!("spec.clusterIPs[{idx}]"), json!(ips), why));
        }
    }
}

fn other(family: &str) -> &'static str {
    if family == "IPv4" { "IPv6" } else { "IPv4" }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH: &[&str] = &["IPv4", "IPv6"];

    fn service(spec: Value) -> Value {
        let mut service = json!({ "spec": { "type": "ClusterIP", "selector": { "a": "b" } } });
        service["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        service
    }

    /// Policy and families, or what is wrong.
    fn said(spec: Value, old: Option<Value>, configured: &[&str]) -> String {
        let (mut new, old) = (service(spec), old.map(service));
        match complete(&mut new, old.as_ref(), configured) {
            Ok(()) => format!("{} {} {}", policy(&new), of(&new).join(","), cluster_ips(&new).join(",")),
            Err(errors) => errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "),
        }
    }

    #[test]
    fn a_new_service_has_one_family_unless_it_asks() {
        assert_eq!(said(json!({}), None, BOTH), "SingleStack IPv4 ");
        assert_eq!(said(json!({}), None, &["IPv6", "IPv4"]), "SingleStack IPv6 ");
        assert_eq!(said(json!({"ipFamilies": ["IPv6"]}), None, BOTH), "SingleStack IPv6 ");
        assert_eq!(said(json!({"ipFamilyPolicy": "PreferDualStack"}), None, BOTH), "PreferDualStack IPv4,IPv6 ");
        assert_eq!(said(json!({"ipFamilyPolicy": "PreferDualStack"}), None, &["IPv4"]), "PreferDualStack IPv4 ");
        assert_eq!(
            said(json!({"ipFamilyPolicy": "RequireDualStack", "ipFamilies": ["IPv6"]}), None, BOTH),
            "RequireDualStack IPv6,IPv4 "
        );
        assert_eq!(
            said(json!({"ipFamilyPolicy": "PreferDualStack", "clusterIPs": ["fd43::9"]}), None, BOTH),
            "PreferDualStack IPv6,IPv4 fd43::9"
        );
    }

    #[test]
    fn what_the_cluster_does_not_have_is_refused() {
        for (spec, says) in [
            (
                json!({"ipFamilyPolicy": "RequireDualStack"}),
                "spec.ipFamilyPolicy: Invalid value: \"RequireDualStack\": this cluster is not configured for \
                 dual-stack services",
            ),
            (
                json!({"ipFamilies": ["IPv6"]}),
                "spec.ipFamilies[0]: Invalid value: \"IPv6\": not configured on this cluster",
            ),
            (
                json!({"clusterIPs": ["fd43::9"]}),
                "spec.clusterIPs[0]: Invalid value: [\"fd43::9\"]: IPv6 is not configured on this cluster",
            ),
        ] {
            assert_eq!(said(spec, None, &["IPv4"]), says);
        }
        let two = "spec.ipFamilyPolicy: Invalid value: \"SingleStack\": must be RequireDualStack or PreferDualStack \
            when multiple";
        assert_eq!(
            said(json!({"ipFamilies": ["IPv4", "IPv6"]}), None, BOTH),
            format!("{two} ipFamilies are specified")
        );
        assert_eq!(
            said(json!({"clusterIPs": ["10.0.0.1", "fd43::1"]}), None, BOTH),
            format!("{two} clusterIPs are specified")
        );
    }

    #[test]
    fn a_headless_service_without_selector_has_both_anywhere() {
        let spec = json!({"clusterIP": "None", "clusterIPs": ["None"], "selector": {}});
        assert_eq!(said(spec, None, &["IPv4"]), "RequireDualStack IPv4,IPv6 None");
        assert_eq!(
            said(json!({"clusterIP": "None", "clusterIPs": ["None"]}), None, &["IPv4"]),
            "SingleStack IPv4 None"
        );
    }

    #[test]
    fn a_service_goes_up_and_down_by_its_policy() {
        let one = json!({"ipFamilyPolicy": "SingleStack", "ipFamilies": ["IPv4"], "clusterIPs": ["10.43.0.9"]});
        let both = json!({"ipFamilyPolicy": "RequireDualStack", "ipFamilies": ["IPv4", "IPv6"],
            "clusterIPs": ["10.43.0.9", "fd43::9"]});
        let with = |base: &Value, field: &str, value: Value| {
            let mut spec = base.clone();
            spec[field] = value;
            spec
        };
        let up = with(&one, "ipFamilyPolicy", json!("PreferDualStack"));
        assert_eq!(said(up.clone(), Some(one), BOTH), "PreferDualStack IPv4,IPv6 10.43.0.9");
        let down = with(&both, "ipFamilyPolicy", json!("SingleStack"));
        assert_eq!(said(down, Some(both.clone()), BOTH), "SingleStack IPv4 10.43.0.9");
        let less = with(&both, "clusterIPs", json!(["10.43.0.9"]));
        assert!(said(less, Some(both), BOTH).starts_with(
            "spec.ipFamilyPolicy: Invalid value: \"RequireDualStack\": must be 'SingleStack' to release the secondary \
             cluster IP"
        ));
        // Somebody else's change is no reason to give it a second address.
        assert_eq!(said(up.clone(), Some(up), BOTH), "PreferDualStack IPv4 10.43.0.9");
    }
}
