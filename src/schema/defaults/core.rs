//! Defaults of the core group's other kinds, and of EndpointSlice and TokenRequest.

use base64::Engine as _;
use serde_json::{Value, json};

use super::{Object, at, each, has, is_empty, make, put, put_zero, text};

pub(super) fn service(object: &mut Object) {
    let spec = make(object, "spec");
    put_zero(spec, "sessionAffinity", "None");
    if text(spec, "sessionAffinity") == "None" {
        spec.remove("sessionAffinityConfig");
    } else if text(spec, "sessionAffinity") == "ClientIP" {
        put(make(make(spec, "sessionAffinityConfig"), "clientIP"), "timeoutSeconds", 10800);
    }
    put_zero(spec, "type", "ClusterIP");
    for port in each(spec, "ports") {
        put_zero(port, "protocol", "TCP");
        let number = port.get("port").cloned().unwrap_or_default();
        put_zero(port, "targetPort", number);
    }
    let kind = text(spec, "type").to_owned();
    let outside = matches!(kind.as_str(), "NodePort" | "LoadBalancer");
    if outside || (kind == "ClusterIP" && !is_empty(spec, "externalIPs")) {
        put_zero(spec, "externalTrafficPolicy", "Cluster");
    }
    if outside || kind == "ClusterIP" {
        put(spec, "internalTrafficPolicy", "Cluster");
    }
    if kind == "LoadBalancer" {
        put(spec, "allocateLoadBalancerNodePorts", true);
    }
    let balancer = make(make(object, "status"), "loadBalancer");
    for ingress in each(balancer, "ingress") {
        if !text(ingress, "ip").is_empty() {
            put(ingress, "ipMode", "VIP");
        }
    }
}

pub(super) fn secret(object: &mut Object) {
    put_zero(object, "type", "Opaque");
    // stringData is write-only: it overrides data and is never stored.
    let Some(Value::Object(plain)) = object.remove("stringData") else { return };
    for (key, value) in plain {
        let encoded = base64::engine::general_purpose::STANDARD.encode(value.as_str().unwrap_or_default());
        make(object, "data").insert(key, encoded.into());
    }
}

pub(super) fn persistent_volume(object: &mut Object) {
    let spec = make(object, "spec");
    put_zero(spec, "persistentVolumeReclaimPolicy", "Retain");
    put(spec, "volumeMode", "Filesystem");
    if let Some(path) = at(spec, "hostPath") {
        put(path, "type", "");
    }
    if let Some(disk) = at(spec, "azureDisk") {
        put(disk, "readOnly", false);
    }
    put_zero(make(object, "status"), "phase", "Pending");
}

pub(super) fn persistent_volume_claim(object: &mut Object) {
    put(make(object, "spec"), "volumeMode", "Filesystem");
    put_zero(make(object, "status"), "phase", "Pending");
}

pub(super) fn endpoints(object: &mut Object) {
    for subset in each(object, "subsets") {
        each(subset, "ports").for_each(|p| put_zero(p, "protocol", "TCP"));
    }
}

pub(super) fn endpoint_slice(object: &mut Object) {
    for port in each(object, "ports") {
        put(port, "name", "");
        put(port, "protocol", "TCP");
    }
}

pub(super) fn namespace(object: &mut Object) {
    put_zero(make(object, "status"), "phase", "Active");
    let metadata = make(object, "metadata");
    // An object that is still to be named gets its label once it has a name (strategy).
    let name = text(metadata, "name").to_owned();
    if !name.is_empty() {
        put(make(metadata, "labels"), "kubernetes.io/metadata.name", name);
    }
}

pub(super) fn node(object: &mut Object) {
    let status = make(object, "status");
    if is_empty(status, "allocatable")
        && let Some(capacity) = status.get("capacity").cloned()
    {
        status.insert("allocatable".into(), capacity);
    }
}

pub(super) fn limit_range(object: &mut Object) {
    for item in each(make(object, "spec"), "limits") {
        if text(item, "type") != "Container" {
            continue;
        }
        fill(item, "default", "max");
        fill(item, "defaultRequest", "default");
        fill(item, "defaultRequest", "min");
    }
}

fn fill(item: &mut Object, to: &str, from: &str) {
    let Some(Value::Object(source)) = item.get(from).cloned() else { return };
    if source.is_empty() {
        return;
    }
    let target = make(item, to);
    for (name, quantity) in source {
        target.entry(name).or_insert(quantity);
    }
}

pub(super) fn token_request(object: &mut Object) {
    let spec = make(object, "spec");
    if !has(spec, "expirationSeconds") {
        spec.insert("expirationSeconds".into(), json!(3600));
    }
}
