//! Configurations of admission webhooks.

use std::collections::BTreeSet;

use cel::admission::Extras;
use model::names;
use serde_json::Value;

use crate::read;
use crate::validate::checks::{Errors, invalid_each, label_selector};
use crate::validate::error::FieldError;
use crate::validate::matching::{self, Presence, one_of};
use crate::validate::path::Path;

const REVIEWS: [&str; 2] = ["v1", "v1beta1"];
const SIDE_EFFECTS: [&str; 2] = ["None", "NoneOnDryRun"];

/// MutatingWebhookConfiguration and ValidatingWebhookConfiguration.
pub(crate) fn configuration(object: &Value, errors: &mut Errors) {
    let mut seen = BTreeSet::new();
    for (idx, hook) in read::list(object, "webhooks").iter().enumerate() {
        let path = format!("webhooks[{idx}]");
        webhook(hook, Path(&path), errors);
        review_versions(hook, Path(&format!("{path}.admissionReviewVersions")), errors);
        let name = read::text(hook, "name");
        if !name.is_empty() && !seen.insert(name) {
            errors.push(FieldError::duplicate(format!("{path}.name"), name));
        }
    }
}

fn webhook(hook: &Value, path: Path<'_>, errors: &mut Errors) {
    full_name(read::text(hook, "name"), Path(&format!("{path}.name")), errors);
    for (idx, rule) in read::list(hook, "rules").iter().enumerate() {
        matching::rule(rule, Path(&format!("{path}.rules[{idx}]")), errors);
    }
    one_of(hook, path, ("failurePolicy", Presence::Optional), &["Fail", "Ignore"], errors);
    one_of(hook, path, ("matchPolicy", Presence::Optional), &["Equivalent", "Exact"], errors);
    match read::some_text(hook, "sideEffects") {
        None => {
            let why = format!("must specify one of {}", SIDE_EFFECTS.join(", "));
            errors.push(FieldError::required(format!("{path}.sideEffects"), why));
        }
        Some(said) if !SIDE_EFFECTS.contains(&said) => {
            errors.push(FieldError::not_supported(format!("{path}.sideEffects"), said, &SIDE_EFFECTS));
        }
        Some(_) => {}
    }
    if let Some(secs) = hook.get("timeoutSeconds").and_then(Value::as_i64).filter(|s| !(1..=30).contains(s)) {
        let why = "the timeout value must be between 1 and 30 seconds";
        errors.push(FieldError::invalid(format!("{path}.timeoutSeconds"), secs, why));
    }
    for field in ["namespaceSelector", "objectSelector"] {
        if let Some(selector) = read::at(hook, field) {
            label_selector(selector, Path(&format!("{path}.{field}")), errors);
        }
    }
    one_of(hook, path, ("reinvocationPolicy", Presence::Optional), &["IfNeeded", "Never"], errors);
    matching::client_config(&hook["clientConfig"], Path(&format!("{path}.clientConfig")), errors);
    matching::conditions(hook, path, Extras { params: false, authorizer: true }, errors);
}

fn full_name(name: &str, path: Path<'_>, errors: &mut Errors) {
    if name.is_empty() {
        errors.push(FieldError::required(path, ""));
        return;
    }
    let wrong = names::dns_subdomain_errors(name);
    if !wrong.is_empty() {
        errors.push(FieldError::invalid(path, name, wrong.join(",")));
        return;
    }
    if name.split('.').count() < 3 {
        errors.push(FieldError::invalid(
            path,
            name,
            "should be a domain with at least three segments separated by dots",
        ));
    }
}

fn review_versions(hook: &Value, path: Path<'_>, errors: &mut Errors) {
    let all = read::texts(hook, "admissionReviewVersions");
    if all.is_empty() {
        errors.push(FieldError::required(path, format!("must specify one of {}", REVIEWS.join(", "))));
        return;
    }
    let mut seen = BTreeSet::new();
    for (idx, version) in all.iter().enumerate() {
        let here = format!("{path}[{idx}]");
        if !seen.insert(*version) {
            errors.push(FieldError::invalid(here, *version, "duplicate version"));
            continue;
        }
        invalid_each(Path(&here), *version, names::dns_1035_label_errors(version), errors);
    }
    if !all.iter().any(|v| REVIEWS.contains(v)) {
        let why = format!("must include at least one of {}", REVIEWS.join(", "));
        errors.push(FieldError::invalid(path, all, why));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn wrong(hook: Value) -> Vec<String> {
        let mut errors = Vec::new();
        configuration(&json!({"webhooks": [hook]}), &mut errors);
        errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_webhook_says_where_it_is_and_what_it_speaks() {
        let good = json!({"name": "a.b.c", "sideEffects": "None", "admissionReviewVersions": ["v1"],
            "clientConfig": {"url": "https://h/p"},
            "rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}]});
        assert!(wrong(good.clone()).is_empty());
        let mut bad = good.clone();
        bad["clientConfig"] = json!({"url": "http://u@h/?q=1#f"});
        assert_eq!(wrong(bad).len(), 4);
        let mut bad = good.clone();
        bad["name"] = json!("a.b");
        bad["sideEffects"] = json!("Some");
        bad["rules"][0]["resources"] = json!(["*", "pods"]);
        assert_eq!(
            wrong(bad),
            [
                "webhooks[0].name: Invalid value: \"a.b\": should be a domain with at least three segments separated \
                by dots",
                "webhooks[0].rules[0].resources: Invalid value: [\"*\",\"pods\"]: if '*' is present, must not specify \
                other resources without subresources",
                "webhooks[0].sideEffects: Unsupported value: \"Some\": supported values: \"None\", \"NoneOnDryRun\"",
            ]
        );
        let mut bad = good;
        bad["clientConfig"] = json!({"service": {"namespace": "n", "name": "s", "path": "x//y"}});
        assert_eq!(
            wrong(bad)[0],
            "webhooks[0].clientConfig.service.path: Invalid value: \"x//y\": must start with a '/'"
        );
    }
}
