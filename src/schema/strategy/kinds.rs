//! What single kinds fill in or keep by themselves.

use serde_json::{Map, Value, json};

use super::{copy_field, make, pod};
use crate::meta;

pub(super) fn create(group: &str, kind: &str, new: &mut Value) {
    match (group, kind) {
        ("", "Pod") => pod::create(new),
        ("", "Namespace") => namespace_create(new),
        ("", "PersistentVolume" | "PersistentVolumeClaim") => new["status"] = json!({"phase": "Pending"}),
        ("batch", "Job") => job_create(new),
        ("apiextensions.k8s.io", "CustomResourceDefinition") => definition_stored_versions(new),
        _ => {}
    }
}

pub(super) fn update(group: &str, kind: &str, new: &mut Value, old: &Value) {
    match (group, kind) {
        ("", "Pod") => pod::lift_grace(new),
        ("", "Namespace") => namespace_update(new, old),
        ("", "Service") => service_update(new, old),
        // What was asked for, and by whom, is what approvers and signers judge.
        ("certificates.k8s.io", "CertificateSigningRequest") => copy_field(new, old, "spec"),
        ("apiextensions.k8s.io", "CustomResourceDefinition") => definition_stored_versions(new),
        _ => {}
    }
}

fn namespace_create(new: &mut Value) {
    new["status"] = json!({"phase": "Active"});
    let name = meta::name(new).to_owned();
    make(new, &["metadata", "labels"]).insert("kubernetes.io/metadata.name".into(), name.into());
    let spec = make(new, &["spec"]);
    let finalizers = spec.entry("finalizers").or_insert_with(|| json!([]));
    if let Value::Array(all) = finalizers
        && !all.iter().any(|f| f == "kubernetes")
    {
        all.push("kubernetes".into());
    }
}

fn namespace_update(new: &mut Value, old: &Value) {
    let name = meta::name(new).to_owned();
    make(new, &["metadata", "labels"]).insert("kubernetes.io/metadata.name".into(), name.into());
    // Only the finalize subresource changes these.
    match old.pointer("/spec/finalizers") {
        Some(finalizers) => make(new, &["spec"]).insert("finalizers".into(), finalizers.clone()),
        None => make(new, &["spec"]).remove("finalizers"),
    };
    copy_field(new, old, "status");
}

/// A Job selects its own pods by its uid, unless the user took that over.
fn job_create(new: &mut Value) {
    if new.pointer("/spec/manualSelector") == Some(&Value::Bool(true)) {
        return;
    }
    let (uid, name) = (meta::uid(new).to_owned(), meta::name(new).to_owned());
    let labels = make(new, &["spec", "template", "metadata", "labels"]);
    for (key, value) in [
        ("controller-uid", &uid),
        ("job-name", &name),
        ("batch.kubernetes.io/controller-uid", &uid),
        ("batch.kubernetes.io/job-name", &name),
    ] {
        labels.insert(key.into(), value.as_str().into());
    }
    make(new, &["spec", "selector", "matchLabels"]).insert("batch.kubernetes.io/controller-uid".into(), uid.into());
}

/// The version that is stored now is remembered among those that ever were.
fn definition_stored_versions(new: &mut Value) {
    let versions = new.pointer("/spec/versions").and_then(Value::as_array).into_iter().flatten();
    let stored = versions.filter(|v| v["storage"] == true).filter_map(|v| v["name"].as_str()).map(str::to_owned).next();
    let Some(stored) = stored else { return };
    let all = make(new, &["status"]).entry("storedVersions").or_insert_with(|| json!([]));
    if !all.is_array() {
        *all = json!([]);
    }
    if let Value::Array(all) = all
        && !all.iter().any(|v| *v == stored)
    {
        all.push(stored.into());
    }
}

/// A client that sends a Service without the values allocated for it means to keep them.
fn service_update(new: &mut Value, old: &Value) {
    let kind = |v: &Value| v.pointer("/spec/type").and_then(Value::as_str).unwrap_or_default().to_owned();
    let (now, before) = (kind(new), kind(old));
    let needs_ip = |k: &str| matches!(k, "ClusterIP" | "NodePort" | "LoadBalancer");
    let absent = |v: &Value, key: &str| v["spec"][key].as_str().unwrap_or_default().is_empty();
    if needs_ip(&now) && needs_ip(&before) {
        let none_said = new["spec"]["clusterIPs"].as_array().is_none_or(Vec::is_empty);
        if absent(new, "clusterIP") && none_said {
            for key in ["clusterIP", "clusterIPs"] {
                copy_in(make(new, &["spec"]), &old["spec"], key);
            }
        } else if none_said && new["spec"]["clusterIP"] == old["spec"]["clusterIP"] {
            copy_in(make(new, &["spec"]), &old["spec"], "clusterIPs");
        }
    }
    let needs_port = |k: &str| matches!(k, "NodePort" | "LoadBalancer");
    if needs_port(&now) && needs_port(&before) {
        keep_node_ports(new, old);
    }
    let health = |v: &Value| kind(v) == "LoadBalancer" && v["spec"]["externalTrafficPolicy"] == "Local";
    if health(new) && health(old) && new["spec"]["healthCheckNodePort"].as_i64().unwrap_or(0) == 0 {
        copy_in(make(new, &["spec"]), &old["spec"], "healthCheckNodePort");
    }
    drop_dependent(new, old, &now, &before);
}

/// What only the type before needed goes with it, unless the client changed it too: then validation speaks.
fn drop_dependent(new: &mut Value, old: &Value, now: &str, before: &str) {
    let balancer = |k: &str| k == "LoadBalancer";
    let outside = |v: &Value, k: &str| {
        matches!(k, "NodePort" | "LoadBalancer") || (k == "ClusterIP" && v["spec"]["externalIPs"].as_array().is_some_and(|l| !l.is_empty()))
    };
    let mut stale = Vec::new();
    if balancer(before) && !balancer(now) {
        stale.extend(["allocateLoadBalancerNodePorts", "loadBalancerClass"]);
    }
    if outside(old, before) && !outside(new, now) {
        stale.push("externalTrafficPolicy");
    }
    for field in stale {
        if new["spec"][field] == old["spec"][field]
            && let Some(spec) = new["spec"].as_object_mut()
        {
            spec.remove(field);
        }
    }
}

fn copy_in(to: &mut Map<String, Value>, from: &Value, key: &str) {
    if let Some(value) = from.get(key) {
        to.insert(key.to_owned(), value.clone());
    }
}

fn keep_node_ports(new: &mut Value, old: &Value) {
    let same = |a: &Value, b: &Value| a["port"] == b["port"] && a["protocol"] == b["protocol"];
    let Some(ports) = new.pointer_mut("/spec/ports").and_then(Value::as_array_mut) else { return };
    let before = old.pointer("/spec/ports").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let taken: Vec<Value> = ports.iter().filter_map(|p| p.get("nodePort")).cloned().collect();
    for port in ports.iter_mut().filter(|p| p["nodePort"].as_i64().unwrap_or(0) == 0) {
        let kept = before.iter().find(|b| same(port, b)).and_then(|b| b.get("nodePort"));
        if let Some(number) = kept.filter(|n| !taken.contains(n)) {
            port["nodePort"] = number.clone();
        }
    }
}

/// `old` with one field taken from `new`.
pub(super) fn with_field(old: &Value, new: &Value, parent: &str, field: &str) -> Value {
    let mut merged = old.clone();
    let given = new.pointer(parent).and_then(|p| p.get(field));
    let slot = make(&mut merged, &[parent.trim_start_matches('/')]);
    match given {
        Some(value) => slot.insert(field.to_owned(), value.clone()),
        None => slot.remove(field),
    };
    merged
}

/// `old` with its own resources, and those and the resize policies of the same-named containers, taken from `new`.
pub(super) fn resized(old: &Value, new: &Value) -> Value {
    let mut merged = old.clone();
    if let Some(spec) = merged["spec"].as_object_mut() {
        match new["spec"].get("resources") {
            Some(own) => drop(spec.insert("resources".to_owned(), own.clone())),
            None => drop(spec.remove("resources")),
        }
    }
    for list in ["containers", "initContainers"] {
        let given = new["spec"][list].as_array().map(Vec::as_slice).unwrap_or_default();
        let Some(containers) = merged["spec"][list].as_array_mut() else { continue };
        for container in containers {
            let Some(wanted) = given.iter().find(|g| g["name"] == container["name"]) else { continue };
            for key in ["resources", "resizePolicy"] {
                if let (Some(map), Some(value)) = (container.as_object_mut(), wanted.get(key)) {
                    map.insert(key.to_owned(), value.clone());
                }
            }
        }
        // Indexing for writing has put a null where a pod has no such list.
        if let Some(spec) = merged["spec"].as_object_mut()
            && spec.get(list).is_some_and(Value::is_null)
        {
            spec.remove(list);
        }
    }
    merged
}
