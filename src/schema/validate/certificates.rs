//! Certificate signing requests and bundles of trust, but for what is inside of their PEM.

use std::collections::BTreeSet;

use model::meta;
use model::names::{self, NameUse};
use serde_json::Value;

use crate::read;
use crate::validate::checks::{Errors, immutable, invalid_each};
use crate::validate::error::FieldError;
use crate::validate::path::Path;

const DOMAIN_MAX: usize = 253;
const SIGNER_MAX: usize = 253 + 1 + 253 + 63 + 1;
const SECS_MIN: i64 = 600;
const BUNDLE_BYTES_MAX: usize = 1024 * 1024;
const CONDITIONS: &str = "status.conditions";

const USAGES: [&str; 23] = [
    "any",
    "cert sign",
    "client auth",
    "code signing",
    "content commitment",
    "crl sign",
    "data encipherment",
    "decipher only",
    "digital signature",
    "email protection",
    "encipher only",
    "ipsec end system",
    "ipsec tunnel",
    "ipsec user",
    "key agreement",
    "key encipherment",
    "microsoft sgc",
    "netscape sgc",
    "ocsp signing",
    "s/mime",
    "server auth",
    "signing",
    "timestamping",
];

/// The name of a request is free.
pub(crate) fn any_name(_: &str, _: NameUse) -> Vec<String> {
    Vec::new()
}

/// CertificateSigningRequest, new.
pub(crate) fn request(object: &Value, errors: &mut Errors) {
    let spec = read::at(object, "spec").unwrap_or(&Value::Null);
    let usages = read::texts(spec, "usages");
    if usages.is_empty() {
        errors.push(FieldError::required("spec.usages", ""));
    }
    let mut seen = BTreeSet::new();
    for (idx, usage) in usages.into_iter().enumerate() {
        let path = format!("spec.usages[{idx}]");
        if !USAGES.contains(&usage) {
            errors.push(FieldError::not_supported(path.as_str(), usage, &USAGES));
        }
        if !seen.insert(usage) {
            errors.push(FieldError::duplicate(path, usage));
        }
    }
    match read::text(spec, "signerName") {
        "kubernetes.io/legacy-unknown" => {
            let why = "the legacy signerName is not allowed via this API version";
            errors.push(FieldError::invalid("spec.signerName", "kubernetes.io/legacy-unknown", why));
        }
        name => signer_name(name, Path("spec.signerName"), errors),
    }
    if let Some(secs) = read::integer(spec, "expirationSeconds").filter(|s| *s < SECS_MIN) {
        let why = "may not specify a duration less than 600 seconds (10 minutes)";
        errors.push(FieldError::invalid("spec.expirationSeconds", secs, why));
    }
    conditions(object, errors);
}

fn conditions(object: &Value, errors: &mut Errors) {
    let (mut seen, mut approved, mut denied) = (BTreeSet::new(), false, false);
    for (idx, condition) in read::list(object, CONDITIONS).iter().enumerate() {
        let path = format!("{CONDITIONS}[{idx}]");
        let (kind, status) = (read::text(condition, "type"), read::text(condition, "status"));
        if kind.is_empty() {
            errors.push(FieldError::required(format!("{path}.type"), ""));
        }
        let judgement = matches!(kind, "Approved" | "Denied" | "Failed");
        let allowed: &[&str] = if judgement { &["True"] } else { &["False", "True", "Unknown"] };
        if status.is_empty() {
            errors.push(FieldError::required(format!("{path}.status"), ""));
        } else if !allowed.contains(&status) {
            errors.push(FieldError::not_supported(format!("{path}.status"), status, allowed));
        }
        if (kind == "Approved" && denied) || (kind == "Denied" && approved) {
            errors.push(FieldError::invalid(CONDITIONS, kind, "Approved and Denied conditions are mutually exclusive"));
        }
        approved |= kind == "Approved";
        denied |= kind == "Denied";
        if !seen.insert(kind) {
            errors.push(FieldError::duplicate(format!("{path}.type"), kind));
        }
    }
}

/// The fields of a judgement that may still change: by `approval` its conditions, by `status` the certificate, once.
pub(crate) fn request_update(new: &Value, old: &Value, subresource: &str, errors: &mut Errors) {
    let of = |object: &Value, kind: &str| -> Vec<Value> {
        read::list(object, CONDITIONS).iter().filter(|c| read::text(c, "type") == kind).cloned().collect()
    };
    let mut forbid = |why: String| errors.push(FieldError::forbidden(CONDITIONS, why));
    for kind in ["Approved", "Denied", "Failed"] {
        if of(new, kind).len() < of(old, kind).len() {
            forbid(format!("updates may not remove a condition of type {kind:?}"));
        }
    }
    if subresource != "approval" {
        for kind in ["Approved", "Denied"] {
            let (now, before) = (of(new, kind), of(old, kind));
            match now.len().cmp(&before.len()) {
                std::cmp::Ordering::Less => {}
                std::cmp::Ordering::Greater => forbid(format!("updates may not add a condition of type {kind:?}")),
                std::cmp::Ordering::Equal if now != before => {
                    forbid(format!("updates may not modify a condition of type {kind:?}"))
                }
                std::cmp::Ordering::Equal => {}
            }
        }
    }
    let certificate = |object| read::text(object, "status.certificate").to_owned();
    let (now, before) = (certificate(new), certificate(old));
    if now != before && subresource != "status" {
        errors.push(FieldError::forbidden("status.certificate", "updates may not set certificate content"));
    } else if now != before && !before.is_empty() {
        errors.push(FieldError::forbidden("status.certificate", "updates may not modify existing certificate content"));
    }
}

/// A write to the request itself, which judges nothing.
pub(crate) fn request_main_update(new: &Value, old: &Value, errors: &mut Errors) {
    request_update(new, old, "", errors);
}

/// `example.com/signer-name`.
pub(super) fn signer_name(name: &str, path: Path<'_>, errors: &mut Errors) {
    if name.is_empty() {
        errors.push(FieldError::required(path, ""));
        return;
    }
    let Some((domain, rest)) = name.split_once('/').filter(|(_, rest)| !rest.contains('/')) else {
        let why = "must be a fully qualified domain and path of the form 'example.com/signer-name'";
        errors.push(FieldError::invalid(path, name, why));
        return;
    };
    if domain.len() > DOMAIN_MAX {
        errors.push(FieldError::too_long(path, DOMAIN_MAX));
    }
    first_wrong(domain, path, names::dns_label_errors, errors);
    if !domain.contains('.') {
        errors.push(FieldError::invalid(
            path,
            domain,
            "should be a domain with at least two segments separated by dots",
        ));
    }
    first_wrong(rest, path, names::dns_subdomain_errors, errors);
    if name.len() > SIGNER_MAX {
        errors.push(FieldError::too_long(path, SIGNER_MAX));
    }
}

/// The first part between dots that is no good.
fn first_wrong(text: &str, path: Path<'_>, check: fn(&str) -> Vec<String>, errors: &mut Errors) {
    let wrong = text.split('.').map(|label| (label, check(label))).find(|(_, whys)| !whys.is_empty());
    for (label, why) in wrong.into_iter().flat_map(|(label, whys)| whys.into_iter().map(move |why| (label, why))) {
        errors.push(FieldError::invalid(path, text, format!("validating label {label:?}: {why}")));
    }
}

/// ClusterTrustBundle.
pub(crate) fn trust_bundle(object: &Value, errors: &mut Errors) {
    let (name, signer) = (meta::name(object), read::text(object, "spec.signerName"));
    let needed = format!("{}:", signer.replace('/', ":"));
    let whys = match name.strip_prefix(&needed) {
        _ if signer.is_empty() && name.contains(':') => {
            vec!["ClusterTrustBundle without signer name must not have \":\" in its name".to_owned()]
        }
        _ if signer.is_empty() => names::dns_subdomain_errors(name),
        Some(rest) => names::dns_subdomain_errors(rest),
        None => vec![format!("ClusterTrustBundle for signerName {signer} must be named with prefix {needed}")],
    };
    invalid_each(Path("metadata.name"), name, whys, errors);
    if !signer.is_empty() {
        signer_name(signer, Path("spec.signerName"), errors);
    }
    if read::text(object, "spec.trustBundle").len() > BUNDLE_BYTES_MAX {
        errors.push(FieldError::too_long("spec.trustBundle", BUNDLE_BYTES_MAX));
    }
}

/// Whose bundle it is stays.
pub(crate) fn trust_bundle_update(new: &Value, old: &Value, errors: &mut Errors) {
    immutable(new, old, "spec.signerName", errors);
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn texts(errors: &Errors) -> Vec<String> {
        errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_request_names_a_signer_and_known_usages_once() {
        let mut errors = Vec::new();
        let spec = json!({"usages": ["client auth", "client auth"], "signerName": "io/x", "expirationSeconds": 5});
        request(&json!({"spec": spec}), &mut errors);
        assert_eq!(
            texts(&errors),
            [
                "spec.usages[1]: Duplicate value: \"client auth\"",
                "spec.signerName: Invalid value: \"io\": should be a domain with at least two segments separated by \
                dots",
                "spec.expirationSeconds: Invalid value: 5: may not specify a duration less than 600 seconds (10 \
                minutes)",
            ]
        );
        let mut errors = Vec::new();
        request(&json!({"spec": {"usages": ["eat"], "signerName": "kubernetes.io/kubelet-serving"}}), &mut errors);
        assert!(
            texts(&errors)[0]
                .starts_with("spec.usages[0]: Unsupported value: \"eat\": supported values: \"any\", \"cert sign\"")
        );
    }

    #[test]
    fn a_judgement_stands() {
        let with = |kinds: &[&str], certificate: &str| {
            let conditions: Vec<Value> = kinds.iter().map(|k| json!({"type": k, "status": "True"})).collect();
            json!({"status": {"conditions": conditions, "certificate": certificate}})
        };
        let said = |new: &Value, old: &Value, sub: &str| {
            let mut errors = Vec::new();
            request_update(new, old, sub, &mut errors);
            texts(&errors)
        };
        assert!(said(&with(&["Approved"], ""), &with(&[], ""), "approval").is_empty());
        assert_eq!(
            said(&with(&["Approved"], ""), &with(&[], ""), "status"),
            ["status.conditions: Forbidden: updates may not add a condition of type \"Approved\""]
        );
        assert_eq!(
            said(&with(&[], ""), &with(&["Denied"], ""), "approval"),
            ["status.conditions: Forbidden: updates may not remove a condition of type \"Denied\""]
        );
        assert!(said(&with(&[], "a"), &with(&[], ""), "status").is_empty());
        assert_eq!(
            said(&with(&[], "b"), &with(&[], "a"), "status"),
            ["status.certificate: Forbidden: updates may not modify existing certificate content"]
        );
        let mut errors = Vec::new();
        conditions(&with(&["Approved", "Denied"], ""), &mut errors);
        assert_eq!(
            texts(&errors),
            ["status.conditions: Invalid value: \"Denied\": Approved and Denied conditions are mutually exclusive"]
        );
    }

    #[test]
    fn a_bundle_is_named_after_its_signer() {
        let said = |name: &str, signer: &str| {
            let mut errors = Vec::new();
            trust_bundle(&json!({"metadata": {"name": name}, "spec": {"signerName": signer}}), &mut errors);
            texts(&errors)
        };
        assert!(said("example.com:foo:bar", "example.com/foo").is_empty());
        assert!(said("plain", "").is_empty());
        assert!(said("bar", "example.com/foo")[0].ends_with("must be named with prefix example.com:foo:"));
    }
}
