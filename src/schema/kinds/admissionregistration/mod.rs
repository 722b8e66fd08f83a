//! The kinds of admissionregistration.k8s.io.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::behaviour::Object;
use crate::defaults::{at, each, make, put};
use crate::print::cells::{age, name};
use crate::print::column::{self, AGE, Column, NAME};
use crate::read;

pub(crate) mod mutating_admission_policy;
pub(crate) mod mutating_admission_policy_binding;
pub(crate) mod mutating_webhook_configuration;
pub(crate) mod validating_admission_policy;
pub(crate) mod validating_admission_policy_binding;
pub(crate) mod validating_webhook_configuration;

pub(super) fn webhook(w: &mut Object) {
    put(w, "failurePolicy", "Fail");
    put(w, "matchPolicy", "Equivalent");
    put(w, "namespaceSelector", json!({}));
    put(w, "objectSelector", json!({}));
    put(w, "timeoutSeconds", 10);
    each(w, "rules").for_each(|r| put(r, "scope", "*"));
    if let Some(service) = at(make(w, "clientConfig"), "service") {
        put(service, "port", 443);
    }
}

pub(super) fn admission_policy(object: &mut Object) {
    let spec = make(object, "spec");
    put(spec, "failurePolicy", "Fail");
    if let Some(constraints) = at(spec, "matchConstraints") {
        match_resources(constraints);
    }
}

pub(super) fn admission_binding(object: &mut Object) {
    if let Some(resources) = at(make(object, "spec"), "matchResources") {
        match_resources(resources);
    }
}

pub(super) fn match_resources(m: &mut Object) {
    put(m, "matchPolicy", "Equivalent");
    put(m, "namespaceSelector", json!({}));
    put(m, "objectSelector", json!({}));
    for list in ["resourceRules", "excludeResourceRules"] {
        each(m, list).for_each(|r| put(r, "scope", "*"));
    }
}

pub(super) const WEBHOOKS: &[Column] = &[NAME, column::integer("Webhooks"), AGE];

pub(super) const POLICY_BINDING: &[Column] = &[NAME, column::text("PolicyName"), column::text("ParamRef"), AGE];

pub(super) fn webhooks(object: &Value, now: Timestamp) -> Vec<Value> {
    vec![name(object), json!(read::list(object, "webhooks").len()), age(object, now)]
}

pub(super) fn param_kind(object: &Value) -> Value {
    json!(
        read::at(object, "spec.paramKind").map_or_else(
            || "<unset>".to_owned(),
            |p| format!("{}/{}", read::text(p, "apiVersion"), read::text(p, "kind"))
        )
    )
}

pub(super) fn policy_binding(object: &Value, now: Timestamp) -> Vec<Value> {
    let param = match read::at(object, "spec.paramRef") {
        None => "<unset>".to_owned(),
        Some(p) => match (read::text(p, "namespace"), read::some_text(p, "name")) {
            ("", Some(name)) => name.to_owned(),
            (ns, Some(name)) => format!("{ns}/{name}"),
            (ns, None) => format!("{ns}/<any>"),
        },
    };
    vec![name(object), json!(read::text(object, "spec.policyName")), json!(param), age(object, now)]
}
