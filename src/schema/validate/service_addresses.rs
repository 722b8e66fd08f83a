//! The addresses of a Service and their families: how they fit each other, and which of them may still change.

use std::collections::BTreeSet;
use std::net::IpAddr;

use serde_json::{Value, json};

use crate::read;
use crate::validate::checks::{Errors, ip};
use crate::validate::error::FieldError;
use crate::validate::path::Path;

const IPS: &str = "spec.clusterIPs";
const FAMILIES: &str = "spec.ipFamilies";
const POLICY: &str = "spec.ipFamilyPolicy";
const POLICIES: [&str; 3] = ["PreferDualStack", "RequireDualStack", "SingleStack"];
const SET: &str = "may not change once set";

fn is_headless(service: &Value) -> bool {
    read::texts(service, IPS) == ["None"]
}

fn is_external(service: &Value) -> bool {
    read::text(service, "spec.type") == "ExternalName"
}

/// Addresses and families of one service.
pub(super) fn check(service: &Value, errors: &mut Errors) {
    if is_external(service) {
        external(service, errors);
        return;
    }
    let (first, ips, families) =
        (read::text(service, "spec.clusterIP"), read::texts(service, IPS), read::texts(service, FAMILIES));
    let shown = json!(ips);
    match (first, ips.first()) {
        ("", Some(_)) => {
            errors.push(FieldError::invalid(IPS, shown.clone(), "must be empty when `clusterIP` is not specified"))
        }
        ("", None) => {}
        (_, None) => errors.push(FieldError::required(IPS, "")),
        (first, Some(ip)) if first != *ip => {
            errors.push(FieldError::invalid(IPS, shown.clone(), "first value must match `clusterIP`"))
        }
        _ => {}
    }
    let mut seen = BTreeSet::new();
    for (idx, family) in families.iter().enumerate() {
        let path = format!("{FAMILIES}[{idx}]");
        if !["IPv4", "IPv6"].contains(family) {
            errors.push(FieldError::not_supported(path.as_str(), *family, &["IPv4", "IPv6"]));
        }
        if !seen.insert(family) {
            errors.push(FieldError::duplicate(path, *family));
        }
    }
    if let Some(policy) = read::at(service, POLICY).and_then(Value::as_str).filter(|p| !POLICIES.contains(p)) {
        errors.push(FieldError::not_supported(POLICY, policy, &POLICIES));
    }
    let before = errors.len();
    for (idx, text) in ips.iter().enumerate() {
        if idx == 0 && *text == "None" {
            if ips.len() > 1 {
                errors.push(FieldError::invalid(IPS, shown.clone(), "'None' must be the first and only value"));
            }
            continue;
        }
        ip(text, Path(&format!("{IPS}[{idx}]")), errors);
    }
    let readable = errors.len() == before;
    if ips.len() > 2 {
        errors.push(FieldError::invalid(IPS, shown.clone(), "may only hold up to 2 values"));
    }
    if !readable || is_headless(service) {
        return;
    }
    let addresses: Vec<IpAddr> = ips.iter().filter_map(|text| text.parse().ok()).collect();
    if addresses.len() > 1 && !(addresses.iter().any(IpAddr::is_ipv4) && addresses.iter().any(IpAddr::is_ipv6)) {
        errors.push(FieldError::invalid(IPS, shown, "may specify no more than one IP for each IP family"));
    }
    for (idx, (address, family)) in addresses.iter().zip(&families).enumerate() {
        if ["IPv4", "IPv6"].contains(family) && address.is_ipv4() != (*family == "IPv4") {
            let why = format!("expected an {family} value as indicated by `ipFamilies[{idx}]`");
            errors.push(FieldError::invalid(format!("{IPS}[{idx}]"), address.to_string(), why));
        }
    }
}

/// A name of somebody else's has no addresses here.
fn external(service: &Value, errors: &mut Errors) {
    let given =
        |field: &str| read::at(service, field).is_some_and(|v| v.as_array().is_none_or(|l| !l.is_empty()) && v != "");
    for (field, given) in [
        (IPS, given(IPS) || given("spec.clusterIP")),
        (FAMILIES, given(FAMILIES)),
        (POLICY, read::at(service, POLICY).is_some()),
    ] {
        if given {
            errors.push(FieldError::forbidden(field, "may not be set for ExternalName services"));
        }
    }
}

/// A second address may come and go; the first stays as long as the service has one.
pub(crate) fn update(new: &Value, old: &Value, errors: &mut Errors) {
    class(new, old, errors);
    addresses_update(new, old, errors);
}

/// The errors of a change of addresses.
pub(super) fn addresses_update(new: &Value, old: &Value, errors: &mut Errors) {
    if is_external(new) || is_external(old) {
        return;
    }
    if !(is_headless(new) && is_headless(old)) {
        moved(new, old, (IPS, "clusterIP"), errors);
    }
    if !is_headless(new) && !is_headless(old) {
        moved(new, old, (FAMILIES, "ipFamily"), errors);
    }
}

fn moved(new: &Value, old: &Value, (field, what): (&str, &str), errors: &mut Errors) {
    let (now, before) = (read::texts(new, field), read::texts(old, field));
    let mut wrong =
        |idx: usize, why: &str| errors.push(FieldError::invalid(format!("{field}[{idx}]"), json!(now), why));
    if now.len() == before.len() {
        for idx in (0..now.len()).filter(|idx| now[*idx] != before[*idx]) {
            // Upstream names the first family, whichever changed.
            wrong(if field == FAMILIES { 0 } else { idx }, SET);
        }
        return;
    }
    if now.is_empty() {
        wrong(0, &format!("primary {what} can not be unset"));
    } else if !before.is_empty() && now[0] != before[0] {
        wrong(0, SET);
    }
    if now.len() == 1 && before.len() > 1 && read::text(new, POLICY) != "SingleStack" {
        let policy = read::at(new, POLICY).cloned().unwrap_or(Value::Null);
        let why = format!("must be set to 'SingleStack' when releasing the secondary {what}");
        errors.push(FieldError::invalid(POLICY, policy, why));
    }
}

/// Whose balancer it is stays, and so does the port of its health check.
fn class(new: &Value, old: &Value, errors: &mut Errors) {
    let balanced = |service| read::text(service, "spec.type") == "LoadBalancer";
    if !balanced(new) || !balanced(old) {
        return;
    }
    let class = |service| read::at(service, "spec.loadBalancerClass").cloned().unwrap_or(Value::Null);
    if class(new) != class(old) {
        errors.push(FieldError::invalid("spec.loadBalancerClass", class(new), SET));
    }
    let checked = |service| read::text(service, "spec.externalTrafficPolicy") == "Local";
    let port = |service| read::number(service, "spec.healthCheckNodePort");
    if checked(new) && checked(old) && port(new) != port(old) {
        errors.push(FieldError::forbidden("spec.healthCheckNodePort", "field is immutable"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(ips: &[&str], families: &[&str], policy: &str) -> Value {
        json!({"spec": {"type": "ClusterIP", "clusterIP": ips.first(), "clusterIPs": ips, "ipFamilies": families,
            "ipFamilyPolicy": policy}})
    }

    fn texts(errors: &Errors) -> Vec<String> {
        errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn addresses_are_of_their_families() {
        let said = |service: &Value| {
            let mut errors = Vec::new();
            check(service, &mut errors);
            texts(&errors)
        };
        assert!(said(&service(&["10.43.0.1", "fd00::1"], &["IPv4", "IPv6"], "RequireDualStack")).is_empty());
        assert!(said(&service(&["None"], &["IPv4"], "SingleStack")).is_empty());
        assert_eq!(
            said(&service(&["10.43.0.1", "10.43.0.2"], &["IPv6", "IPv6"], "Odd")),
            [
                "spec.ipFamilies[1]: Duplicate value: \"IPv6\"",
                "spec.ipFamilyPolicy: Unsupported value: \"Odd\": supported values: \"PreferDualStack\", \
                \"RequireDualStack\", \"SingleStack\"",
                "spec.clusterIPs: Invalid value: [\"10.43.0.1\",\"10.43.0.2\"]: may specify no more than one IP for \
                each IP family",
                "spec.clusterIPs[0]: Invalid value: \"10.43.0.1\": expected an IPv6 value as indicated by \
                `ipFamilies[0]`",
                "spec.clusterIPs[1]: Invalid value: \"10.43.0.2\": expected an IPv6 value as indicated by \
                `ipFamilies[1]`",
            ]
        );
    }

    #[test]
    fn the_first_address_stays_and_the_second_goes_by_policy() {
        let said = |new: &Value, old: &Value| {
            let mut errors = Vec::new();
            update(new, old, &mut errors);
            texts(&errors)
        };
        let both = service(&["10.43.0.1", "fd00::1"], &["IPv4", "IPv6"], "RequireDualStack");
        let one = |policy: &str| service(&["10.43.0.1"], &["IPv4"], policy);
        assert!(said(&both, &one("SingleStack")).is_empty());
        assert!(said(&one("SingleStack"), &both).is_empty());
        assert_eq!(said(&one("PreferDualStack"), &both).len(), 2);
        assert_eq!(
            said(&service(&["10.43.0.9"], &["IPv4"], "SingleStack"), &one("SingleStack")),
            ["spec.clusterIPs[0]: Invalid value: [\"10.43.0.9\"]: may not change once set"]
        );
        let balancer = |class: &str| json!({"spec": {"type": "LoadBalancer", "loadBalancerClass": class}});
        assert_eq!(said(&balancer("a/b"), &balancer("a/c")).len(), 1);
    }
}
