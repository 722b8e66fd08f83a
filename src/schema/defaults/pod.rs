//! Defaults of pods, pod templates, containers and volumes (upstream: pkg/apis/core/v1/defaults.go).

use serde_json::{Value, json};

use super::{Object, at, each, has, make, put, put_zero, text};

const CONTAINER_LISTS: [&str; 3] = ["initContainers", "containers", "ephemeralContainers"];

pub(crate) fn pod(object: &mut Object) {
    let pod = make(object, "spec");
    spec(pod);
    // A bare pod gets these; a template does not, or every template would change on upgrade.
    put(pod, "enableServiceLinks", true);
    let host_network = pod.get("hostNetwork") == Some(&Value::Bool(true));
    for list in ["initContainers", "containers"] {
        for container in each(pod, list) {
            requests_from_limits(container);
            if host_network {
                for port in each(container, "ports") {
                    let number = port.get("containerPort").cloned().unwrap_or_default();
                    put_zero(port, "hostPort", number);
                }
            }
        }
    }
    put_zero(make(object, "status"), "phase", "Pending");
}

pub(crate) fn pod_template(object: &mut Object) {
    template(object);
}

/// Defaults `template.spec` of a workload's spec.
pub(crate) fn template(owner: &mut Object) {
    spec(make(make(owner, "template"), "spec"));
}

pub(crate) fn spec(pod: &mut Object) {
    put_zero(pod, "restartPolicy", "Always");
    put_zero(pod, "dnsPolicy", "ClusterFirst");
    put(pod, "terminationGracePeriodSeconds", 30);
    put(pod, "securityContext", json!({}));
    put_zero(pod, "schedulerName", "default-scheduler");
    // Both names of the field are always written alike.
    let account = if text(pod, "serviceAccountName").is_empty() {
        text(pod, "serviceAccount")
    } else {
        text(pod, "serviceAccountName")
    }
    .to_owned();
    if !account.is_empty() {
        pod.insert("serviceAccountName".into(), account.clone().into());
        pod.insert("serviceAccount".into(), account.into());
    }
    for list in CONTAINER_LISTS {
        each(pod, list).for_each(container);
    }
    each(pod, "volumes").for_each(volume);
}

fn container(c: &mut Object) {
    put_zero(c, "terminationMessagePath", "/dev/termination-log");
    put_zero(c, "terminationMessagePolicy", "File");
    let policy = if is_latest(text(c, "image")) { "Always" } else { "IfNotPresent" };
    put_zero(c, "imagePullPolicy", policy);
    put(c, "resources", json!({}));
    each(c, "ports").for_each(|p| put_zero(p, "protocol", "TCP"));
    for env in each(c, "env") {
        let Some(from) = at(env, "valueFrom") else { continue };
        if let Some(field) = at(from, "fieldRef") {
            put_zero(field, "apiVersion", "v1");
        }
        if let Some(file) = at(from, "fileKeyRef") {
            put(file, "optional", false);
        }
    }
    for name in ["livenessProbe", "readinessProbe", "startupProbe"] {
        if let Some(p) = at(c, name) {
            probe(p);
        }
    }
    if let Some(lifecycle) = at(c, "lifecycle") {
        for name in ["postStart", "preStop"] {
            if let Some(get) = at(lifecycle, name).and_then(|h| at(h, "httpGet")) {
                http_get(get);
            }
        }
    }
}

/// True for an image with no tag and no digest, or with the tag `latest`.
fn is_latest(image: &str) -> bool {
    let name = image.split('@').next().unwrap_or_default();
    match name.rsplit('/').next().and_then(|last| last.split_once(':')) {
        Some((_, tag)) => tag == "latest",
        None => name.len() == image.len(),
    }
}

fn probe(p: &mut Object) {
    put_zero(p, "timeoutSeconds", 1);
    put_zero(p, "periodSeconds", 10);
    put_zero(p, "successThreshold", 1);
    put_zero(p, "failureThreshold", 3);
    if let Some(get) = at(p, "httpGet") {
        http_get(get);
    }
    if let Some(grpc) = at(p, "grpc") {
        put(grpc, "service", "");
    }
}

fn http_get(get: &mut Object) {
    put_zero(get, "path", "/");
    put_zero(get, "scheme", "HTTP");
}

fn requests_from_limits(container: &mut Object) {
    let Some(resources) = at(container, "resources") else { return };
    let Some(Value::Object(limits)) = resources.get("limits").cloned() else { return };
    let requests = make(resources, "requests");
    for (name, limit) in limits {
        requests.entry(name).or_insert(limit);
    }
}

pub(crate) fn volume(v: &mut Object) {
    if !v.iter().any(|(key, value)| key != "name" && !value.is_null()) {
        v.insert("emptyDir".into(), json!({}));
    }
    for name in ["secret", "configMap", "downwardAPI", "projected"] {
        if let Some(source) = at(v, name) {
            put(source, "defaultMode", 420);
        }
    }
    if let Some(source) = at(v, "downwardAPI") {
        field_refs(source);
    }
    if let Some(projected) = at(v, "projected") {
        for source in each(projected, "sources") {
            if let Some(token) = at(source, "serviceAccountToken") {
                put(token, "expirationSeconds", 3600);
            }
            if let Some(api) = at(source, "downwardAPI") {
                field_refs(api);
            }
        }
    }
    if let Some(path) = at(v, "hostPath") {
        put(path, "type", "");
    }
    if let Some(disk) = at(v, "azureDisk") {
        put(disk, "readOnly", false);
    }
    if let Some(claim) = at(v, "ephemeral").and_then(|e| at(e, "volumeClaimTemplate")).and_then(|t| at(t, "spec")) {
        put(claim, "volumeMode", "Filesystem");
    }
    if let Some(image) = at(v, "image") {
        let policy = if is_latest(text(image, "reference")) { "Always" } else { "IfNotPresent" };
        put_zero(image, "pullPolicy", policy);
    }
}

fn field_refs(source: &mut Object) {
    for item in each(source, "items") {
        if has(item, "fieldRef")
            && let Some(field) = at(item, "fieldRef")
        {
            put_zero(field, "apiVersion", "v1");
        }
    }
}
