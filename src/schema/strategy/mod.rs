//! What a server does to an object between defaulting and validation: who owns status, when generation moves,
//! what a kind fills in by itself. Name, uid and creationTimestamp are set by the caller before.

use serde_json::{Map, Value, json};

use crate::meta;
use crate::table::{Empty, Resource};

mod conditions;
mod kinds;
mod pod;
pub mod qos;
#[cfg(test)]
mod tests;

pub use conditions::stamp_conditions;
pub use qos::qos_class;

/// Resets what a client may not set at creation: status, generation; fills in what the kind wants.
pub fn prepare_for_create(r: &Resource, new: &mut Value) {
    if resets_status_on_create(r) {
        reset_status(r, new);
    }
    if has_generation(r) {
        meta::metadata_mut(new).insert("generation".into(), 1.into());
    } else {
        meta::metadata_mut(new).remove("generation");
    }
    if !r.custom {
        kinds::create(&r.group, &r.kind, new);
    }
}

/// A write to the main resource: status stays as it was, generation moves if the rest changed.
pub fn prepare_for_update(r: &Resource, new: &mut Value, old: &Value) {
    if r.has_status() {
        copy_field(new, old, "status");
    }
    if !r.custom {
        kinds::update(&r.group, &r.kind, new, old);
    }
    settle_generation(r, new, old);
}

/// A write to the status subresource: everything but status and metadata stays as it was.
pub fn prepare_for_status_update(r: &Resource, new: &mut Value, old: &Value) {
    let (Some(fields), Some(before)) = (new.as_object_mut(), old.as_object()) else { return };
    let own = |key: &str| matches!(key, "apiVersion" | "kind" | "metadata" | "status");
    fields.retain(|key, _| own(key));
    fields.extend(before.iter().filter(|(key, _)| !own(key)).map(|(key, value)| (key.clone(), value.clone())));
    let metadata = meta::metadata_mut(new);
    let empty = Map::new();
    let old_metadata = meta::metadata(old).unwrap_or(&empty);
    if r.custom {
        keep_metadata(metadata, old_metadata);
    } else {
        for key in ["generation", "deletionTimestamp", "deletionGracePeriodSeconds", "ownerReferences"] {
            copy_entry(metadata, old_metadata, key);
        }
    }
}

/// A custom resource's status write changes no metadata but the bookkeeping of the write itself.
fn keep_metadata(metadata: &mut Map<String, Value>, old: &Map<String, Value>) {
    let bookkeeping = |key: &str| matches!(key, "resourceVersion" | "managedFields");
    metadata.retain(|key, _| bookkeeping(key));
    metadata.extend(old.iter().filter(|(key, _)| !bookkeeping(key)).map(|(k, v)| (k.clone(), v.clone())));
}

/// A write to another subresource whose body is the object itself: `ephemeralcontainers`, `resize`, `finalize`, `approval`.
///
/// Returns false if this subresource is no such thing; nothing was changed then.
pub fn prepare_for_subresource_update(r: &Resource, subresource: &str, new: &mut Value, old: &Value) -> bool {
    let merged = match (r.kind.as_ref(), subresource) {
        ("Pod", "ephemeralcontainers") => kinds::with_field(old, new, "/spec", "ephemeralContainers"),
        ("Pod", "resize") => kinds::resized(old, new),
        ("Namespace", "finalize") => kinds::with_field(old, new, "/spec", "finalizers"),
        ("CertificateSigningRequest", "approval") => kinds::with_field(old, new, "/status", "conditions"),
        _ => return false,
    };
    let mut merged = merged;
    // The caller's metadata carries its resourceVersion and managed fields.
    if let Some(metadata) = new.get("metadata") {
        merged["metadata"] = metadata.clone();
    }
    *new = merged;
    settle_generation(r, new, old);
    true
}

/// Seconds between the first delete and the end, for kinds that are deleted gracefully; nothing for all others.
///
/// `asked` is `gracePeriodSeconds` of the request.
pub fn graceful_seconds(r: &Resource, object: &Value, asked: Option<i64>) -> Option<i64> {
    if r.custom || !r.group.is_empty() || r.kind != "Pod" {
        return None;
    }
    let text = |path: &str| object.pointer(path).and_then(Value::as_str).unwrap_or_default();
    // Nothing runs: neither before a node has it nor after it ended.
    if text("/spec/nodeName").is_empty() || matches!(text("/status/phase"), "Failed" | "Succeeded") {
        return Some(0);
    }
    let said = object.pointer("/spec/terminationGracePeriodSeconds").and_then(Value::as_i64);
    let seconds = asked.or(said).unwrap_or(0);
    Some(if seconds < 0 { 1 } else { seconds })
}

/// True if metadata.generation counts the changes of this kind.
pub fn has_generation(r: &Resource) -> bool {
    r.custom
        || match r.group.as_ref() {
            "" => matches!(r.kind.as_ref(), "Pod" | "ReplicationController" | "PodTemplate"),
            "apps" => r.kind != "ControllerRevision",
            "batch" | "networking.k8s.io" | "policy" | "discovery.k8s.io" | "flowcontrol.apiserver.k8s.io" => true,
            "admissionregistration.k8s.io" | "apiextensions.k8s.io" | "scheduling.k8s.io" => true,
            "resource.k8s.io" => matches!(r.kind.as_ref(), "ResourceSlice" | "DeviceClass" | "DeviceTaintRule"),
            _ => false,
        }
}

fn settle_generation(r: &Resource, new: &mut Value, old: &Value) {
    let before = meta::generation(old);
    let metadata_old = meta::metadata(old).and_then(|m| m.get("generation")).cloned();
    if has_generation(r) && moved(r, new, old) {
        meta::metadata_mut(new).insert("generation".into(), (before + 1).into());
        return;
    }
    match metadata_old {
        Some(generation) => meta::metadata_mut(new).insert("generation".into(), generation),
        None => meta::metadata_mut(new).remove("generation"),
    };
}

fn moved(r: &Resource, new: &Value, old: &Value) -> bool {
    let (Some(a), Some(b)) = (new.as_object(), old.as_object()) else { return false };
    // A Deployment's annotations are part of what its controller reads.
    if r.group == "apps" && r.kind == "Deployment" && meta::annotations(new) != meta::annotations(old) {
        return true;
    }
    let status_apart = r.has_status() || !r.custom;
    let counts = |key: &str| match key {
        "apiVersion" | "kind" | "metadata" => false,
        "status" => !status_apart,
        _ => true,
    };
    let keys = a.keys().chain(b.keys().filter(|k| !a.contains_key(*k)));
    keys.filter(|k| counts(k)).any(|k| a.get(k) != b.get(k))
}

fn resets_status_on_create(r: &Resource) -> bool {
    // A kubelet registers its Node together with its status.
    r.has_status() && !(r.group.is_empty() && r.kind == "Node")
}

fn reset_status(r: &Resource, new: &mut Value) {
    let Some(fields) = new.as_object_mut() else { return };
    fields.remove("status");
    if let Some(field) = r.type_def().field("status")
        && field.empty == Empty::Always
    {
        fields.insert("status".into(), crate::decode::zero(&field.shape));
    }
}

fn copy_field(new: &mut Value, old: &Value, key: &str) {
    if let (Some(new), Some(old)) = (new.as_object_mut(), old.as_object()) {
        copy_entry(new, old, key);
    }
}

fn copy_entry(new: &mut Map<String, Value>, old: &Map<String, Value>, key: &str) {
    match old.get(key) {
        Some(value) => new.insert(key.to_owned(), value.clone()),
        None => new.remove(key),
    };
}

/// The struct at a JSON pointer, made on the way if absent.
fn make<'a>(object: &'a mut Value, path: &[&str]) -> &'a mut Map<String, Value> {
    let mut at = object;
    for key in path {
        if !at.is_object() {
            *at = json!({});
        }
        at = &mut at[*key];
    }
    if !at.is_object() {
        *at = json!({});
    }
    match at {
        Value::Object(map) => map,
        // The lines above have just made it one.
        _ => unreachable!("an object was put here"),
    }
}
