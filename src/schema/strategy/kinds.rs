//! What single kinds fill in or keep by themselves.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value, json};

use super::{conditions, make, pod};
use model::meta;

pub(super) fn create(group: &str, kind: &str, new: &mut Value) {
    match (group, kind) {
        ("", "Pod") => pod::create(new),
        ("", "Namespace") => namespace_create(new),
        ("", "PersistentVolume") => {
            new["status"] =
                json!({"phase": "Pending", "lastPhaseTransitionTime": new["metadata"]["creationTimestamp"]});
        }
        ("", "PersistentVolumeClaim") => new["status"] = json!({"phase": "Pending"}),
        ("", "ServiceAccount") => bare_references(new),
        ("apiregistration.k8s.io", "APIService") => {
            local_service(new, meta::creation_timestamp(new).unwrap_or_default().to_owned())
        }
        ("batch", "Job") => job_create(new),
        ("apiextensions.k8s.io", "CustomResourceDefinition") => definition_stored_versions(new),
        ("apps", "DaemonSet") => template_generation(new, &Value::Null),
        ("coordination.k8s.io", "Lease") => uncoordinated(new, &Value::Null),
        _ => {}
    }
}

pub(super) fn update(group: &str, kind: &str, new: &mut Value, old: &Value) {
    match (group, kind) {
        ("", "Pod") => pod::lift_grace(new),
        ("", "Namespace") => namespace_update(new, old),
        ("", "Service") => service_update(new, old),
        ("", "ServiceAccount") => bare_references(new),
        ("apiextensions.k8s.io", "CustomResourceDefinition") => definition_stored_versions(new),
        ("apps", "DaemonSet") => template_generation(new, old),
        ("coordination.k8s.io", "Lease") => uncoordinated(new, old),
        _ => {}
    }
}

/// What a status write leaves open, from before.
pub(super) fn status(group: &str, kind: &str, new: &mut Value, old: &Value, now: &str) {
    match (group, kind) {
        ("", "Pod") => pod::status(new, old),
        ("", "PersistentVolume") => volume_phase(new, old, now),
        ("apps", "DaemonSet") => super::owners::keep(new, old, &["metadata", "annotations", TEMPLATE_GENERATION]),
        ("certificates.k8s.io", "CertificateSigningRequest") => {
            conditions::keep_verdicts(new, old);
            conditions::stamp(new, old, now);
        }
        _ => {}
    }
}

/// How often a DaemonSet's template changed: a field of old versions, which upstream still writes into an annotation.
const TEMPLATE_GENERATION: &str = "deprecated.daemonset.template.generation";

/// Spec: upstream v1.36 `daemonSetStrategy`, and the conversion of DaemonSets.
fn template_generation(new: &mut Value, old: &Value) {
    let of = |v: &Value| meta::annotation(v, TEMPLATE_GENERATION).and_then(|n| n.parse::<i64>().ok());
    let generation = if old.is_null() {
        of(new).unwrap_or(0).max(1)
    } else {
        // One that was stored before this was kept has changed an unknown number of times.
        of(old).unwrap_or(1) + i64::from(new["spec"]["template"] != old["spec"]["template"])
    };
    meta::set_annotation(new, TEMPLATE_GENERATION, &generation.to_string());
}

/// Coordinated leader election is off, here as by default upstream: its fields are dropped unless they are there.
fn uncoordinated(new: &mut Value, old: &Value) {
    for path in [&["spec", "strategy"], &["spec", "preferredHolder"]] {
        if path.iter().try_fold(old, |at, key| at.get(key)).is_none() {
            super::owners::drop_field(new, path);
        }
    }
}

/// The time of the last change of phase, which a writer need not know.
fn volume_phase(new: &mut Value, old: &Value, now: &str) {
    let time = |v: &Value| v["status"]["lastPhaseTransitionTime"].as_str().map(str::to_owned);
    let same_phase = new["status"]["phase"] == old["status"]["phase"];
    let (said, before) = (time(new), time(old));
    if same_phase && said.is_none() {
        super::owners::keep(new, old, &["status", "lastPhaseTransitionTime"]);
    } else if !same_phase && (said.is_none() || said == before) {
        new["status"]["lastPhaseTransitionTime"] = now.into();
    }
}

/// An account refers to Secrets of its own namespace by name and nothing else.
fn bare_references(new: &mut Value) {
    for secret in new.get_mut("secrets").and_then(Value::as_array_mut).into_iter().flatten() {
        let name = secret["name"].take();
        *secret = if name.is_null() { json!({}) } else { json!({ "name": name }) };
    }
}

/// What this server serves itself is there from the beginning.
fn local_service(new: &mut Value, now: String) {
    if new["spec"].get("service").is_none_or(Value::is_null) {
        new["status"] = json!({"conditions": [{
            "type": "Available", "status": "True", "reason": "Local", "message": "Local APIServices are always available",
            "lastTransitionTime": now,
        }]});
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
        matches!(k, "NodePort" | "LoadBalancer")
            || (k == "ClusterIP" && v["spec"]["externalIPs"].as_array().is_some_and(|l| !l.is_empty()))
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
    let Some(ports) = new.pointer_mut("/spec/ports").and_then(Value::as_array_mut) else { return };
    let before = old.pointer("/spec/ports").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let mut by_port: HashMap<[&Value; 2], &Value> = HashMap::new();
    for port in before {
        by_port.entry([&port["port"], &port["protocol"]]).or_insert(port);
    }
    let taken: HashSet<Value> = ports.iter().filter_map(|p| p.get("nodePort")).cloned().collect();
    for port in ports.iter_mut().filter(|p| p["nodePort"].as_i64().unwrap_or(0) == 0) {
        let kept = by_port.get(&[&port["port"], &port["protocol"]]).and_then(|b| b.get("nodePort"));
        if let Some(number) = kept.filter(|n| !taken.contains(*n)) {
            port["nodePort"] = number.clone();
        }
    }
}
