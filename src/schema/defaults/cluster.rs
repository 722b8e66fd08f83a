//! Defaults of networking, RBAC, storage, scheduling, admission, extension and flow-control kinds.

use serde_json::json;

use super::{Object, at, each, has, is_empty, make, put, put_zero, text};

pub(super) fn network_policy(object: &mut Object) {
    let spec = make(object, "spec");
    for direction in ["ingress", "egress"] {
        for rule in each(spec, direction) {
            each(rule, "ports").for_each(|p| put(p, "protocol", "TCP"));
        }
    }
    if is_empty(spec, "policyTypes") {
        let types = if is_empty(spec, "egress") { json!(["Ingress"]) } else { json!(["Ingress", "Egress"]) };
        spec.insert("policyTypes".into(), types);
    }
}

pub(super) fn ingress_class(object: &mut Object) {
    if let Some(parameters) = at(make(object, "spec"), "parameters") {
        put(parameters, "scope", "Cluster");
    }
}

pub(super) fn role_binding(object: &mut Object) {
    put_zero(make(object, "roleRef"), "apiGroup", "rbac.authorization.k8s.io");
    for subject in each(object, "subjects") {
        if matches!(text(subject, "kind"), "User" | "Group") {
            put_zero(subject, "apiGroup", "rbac.authorization.k8s.io");
        }
    }
}

pub(super) fn storage_class(object: &mut Object) {
    put(object, "reclaimPolicy", "Delete");
    put(object, "volumeBindingMode", "Immediate");
}

pub(super) fn csi_driver(object: &mut Object) {
    let spec = make(object, "spec");
    put(spec, "attachRequired", true);
    put(spec, "podInfoOnMount", false);
    put(spec, "storageCapacity", false);
    put(spec, "fsGroupPolicy", "ReadWriteOnceWithFSType");
    put(spec, "requiresRepublish", false);
    put(spec, "seLinuxMount", false);
    if is_empty(spec, "volumeLifecycleModes") {
        spec.insert("volumeLifecycleModes".into(), json!(["Persistent"]));
    }
}

pub(super) fn priority_class(object: &mut Object) {
    put(object, "preemptionPolicy", "PreemptLowerPriority");
}

pub(super) fn validating_webhooks(object: &mut Object) {
    each(object, "webhooks").for_each(webhook);
}

pub(super) fn mutating_webhooks(object: &mut Object) {
    for w in each(object, "webhooks") {
        webhook(w);
        put(w, "reinvocationPolicy", "Never");
    }
}

fn webhook(w: &mut Object) {
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

fn match_resources(m: &mut Object) {
    put(m, "matchPolicy", "Equivalent");
    put(m, "namespaceSelector", json!({}));
    put(m, "objectSelector", json!({}));
    for list in ["resourceRules", "excludeResourceRules"] {
        each(m, list).for_each(|r| put(r, "scope", "*"));
    }
}

pub(super) fn definition(object: &mut Object) {
    let spec = make(object, "spec");
    let names = make(spec, "names");
    let kind = text(names, "kind").to_owned();
    if !kind.is_empty() {
        put_zero(names, "singular", kind.to_lowercase());
        put_zero(names, "listKind", format!("{kind}List"));
    }
    let conversion = make(spec, "conversion");
    put_zero(conversion, "strategy", "None");
    if let Some(service) = at(conversion, "webhook").and_then(|w| at(w, "clientConfig")).and_then(|c| at(c, "service"))
    {
        put(service, "port", 443);
    }
}

pub(super) fn api_service(object: &mut Object) {
    if let Some(service) = at(make(object, "spec"), "service") {
        put(service, "port", 443);
    }
}

pub(super) fn flow_schema(object: &mut Object) {
    put_zero(make(object, "spec"), "matchingPrecedence", 1000);
}

pub(super) fn priority_level(object: &mut Object) {
    let spec = make(object, "spec");
    if let Some(exempt) = at(spec, "exempt") {
        put(exempt, "nominalConcurrencyShares", 0);
        put(exempt, "lendablePercent", 0);
    }
    let Some(limited) = at(spec, "limited") else { return };
    put(limited, "nominalConcurrencyShares", 30);
    put(limited, "lendablePercent", 0);
    let response = make(limited, "limitResponse");
    if text(response, "type") == "Queue" {
        let queuing = make(response, "queuing");
        put_zero(queuing, "queues", 64);
        put_zero(queuing, "handSize", 8);
        put_zero(queuing, "queueLengthLimit", 50);
    }
}

pub(super) fn resource_claim(object: &mut Object) {
    let template = text(object, "kind") == "ResourceClaimTemplate";
    let spec = make(object, "spec");
    let spec = if template { make(spec, "spec") } else { spec };
    let Some(devices) = at(spec, "devices") else { return };
    for request in each(devices, "requests") {
        // v1 and v1beta2 nest the request; v1beta1 has its fields right here.
        if has(request, "deviceClassName") {
            device_request(request);
        }
        if let Some(exactly) = at(request, "exactly") {
            device_request(exactly);
        }
        each(request, "firstAvailable").for_each(device_request);
    }
}

fn device_request(request: &mut Object) {
    put_zero(request, "allocationMode", "ExactCount");
    if text(request, "allocationMode") == "ExactCount" {
        put_zero(request, "count", 1);
    }
}
