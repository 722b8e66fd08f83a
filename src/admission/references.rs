//! Objects of the API that a pod names: a mirror pod, which shows what a node runs already, may name none.

use serde_json::Value;

/// Volumes that need nothing of the API.
const PLAIN: [&str; 22] = [
    "awsElasticBlockStore",
    "azureDisk",
    "cephfs",
    "cinder",
    "downwardAPI",
    "emptyDir",
    "fc",
    "flexVolume",
    "flocker",
    "gcePersistentDisk",
    "gitRepo",
    "hostPath",
    "image",
    "iscsi",
    "nfs",
    "photonPersistentDisk",
    "portworxVolume",
    "quobyte",
    "rbd",
    "scaleIO",
    "storageos",
    "vsphereVolume",
];

/// Fields that name a secret or config map wherever they stand in a pod's spec.
const NAMING: [(&str, &str); 6] = [
    ("secretRef", "secrets"),
    ("secretKeyRef", "secrets"),
    ("nodePublishSecretRef", "secrets"),
    ("imagePullSecrets", "secrets"),
    ("configMapRef", "configmaps"),
    ("configMapKeyRef", "configmaps"),
];

/// The first sort of object that a pod's `spec` names, as refusals call it. A volume of a kind that is not known counts
/// as one.
///
/// Spec: `HasAPIObjectReference` of upstream's pkg/api/pod/util.go (v1.36.2).
pub fn of_pod(spec: &Value) -> Option<String> {
    let named = |field: &str| spec[field].as_str().is_some_and(|name| !name.is_empty());
    if named("serviceAccountName") || named("serviceAccount") {
        return Some("serviceaccounts".to_owned());
    }
    if let Some((_, what)) = NAMING.iter().find(|(field, _)| holds(spec, field)) {
        return Some((*what).to_owned());
    }
    if spec["resourceClaims"].as_array().is_some_and(|claims| !claims.is_empty()) {
        return Some("resourceclaims".to_owned());
    }
    spec["volumes"].as_array().into_iter().flatten().find_map(of_volume)
}

fn of_volume(volume: &Value) -> Option<String> {
    let sources = volume.as_object().into_iter().flatten().filter(|(key, value)| *key != "name" && !value.is_null());
    let what = sources.filter(|(key, _)| !PLAIN.contains(&key.as_str())).map(|(key, source)| match key.as_str() {
        "configMap" => Some("configmaps (via configmap volumes)".to_owned()),
        "secret" => Some("secrets (via secret volumes)".to_owned()),
        "csi" => Some("csidrivers (via CSI volumes)".to_owned()),
        "glusterfs" => Some("endpoints (via glusterFS volumes)".to_owned()),
        "persistentVolumeClaim" => Some("persistentvolumeclaims".to_owned()),
        "ephemeral" => Some("persistentvolumeclaims (via ephemeral volumes)".to_owned()),
        "azureFile" => Some("secrets (via azureFile volumes)".to_owned()),
        "projected" => source["sources"].as_array().into_iter().flatten().find_map(of_source),
        other => Some(format!("what a volume of the kind {other} names")),
    });
    what.into_iter().flatten().next()
}

fn of_source(source: &Value) -> Option<String> {
    let known = [
        ("configMap", "configmaps (via projected volumes)"),
        ("secret", "secrets (via projected volumes)"),
        ("serviceAccountToken", "serviceaccounts (via projected volumes)"),
        ("clusterTrustBundle", "clustertrustbundles"),
        ("podCertificate", "podcertificates"),
    ];
    let mut held =
        source.as_object().into_iter().flatten().filter(|(key, value)| *key != "downwardAPI" && !value.is_null());
    held.next().map(|(key, _)| {
        known.iter().find(|(name, _)| name == key).map_or("an unknown projected source", |(_, what)| what).to_owned()
    })
}

/// Whether a field of this name holds something anywhere under `value`.
fn holds(value: &Value, field: &str) -> bool {
    match value {
        Value::Array(items) => items.iter().any(|item| holds(item, field)),
        Value::Object(fields) => fields.iter().any(|(key, inside)| {
            let filled = inside.is_object() || inside.as_array().is_some_and(|items| !items.is_empty());
            (key == field && filled) || holds(inside, field)
        }),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_way_to_name_an_object_is_seen() {
        let volume = |source: Value| json!({"volumes": [source]});
        for (spec, what) in [
            (json!({"serviceAccountName": "a"}), "serviceaccounts"),
            (json!({"imagePullSecrets": [{"name": "a"}]}), "secrets"),
            (json!({"containers": [{"env": [{"valueFrom": {"secretKeyRef": {"name": "a"}}}]}]}), "secrets"),
            (json!({"initContainers": [{"envFrom": [{"configMapRef": {"name": "a"}}]}]}), "configmaps"),
            (json!({"ephemeralContainers": [{"envFrom": [{"secretRef": {"name": "a"}}]}]}), "secrets"),
            (json!({"resourceClaims": [{"name": "a"}]}), "resourceclaims"),
            (volume(json!({"name": "v", "csi": {"driver": "d", "nodePublishSecretRef": {"name": "a"}}})), "secrets"),
            (volume(json!({"name": "v", "csi": {"driver": "d"}})), "csidrivers (via CSI volumes)"),
            (volume(json!({"name": "v", "azureFile": {"secretName": "a"}})), "secrets (via azureFile volumes)"),
            (volume(json!({"name": "v", "ephemeral": {}})), "persistentvolumeclaims (via ephemeral volumes)"),
            (volume(json!({"name": "v", "persistentVolumeClaim": {"claimName": "a"}})), "persistentvolumeclaims"),
            (volume(json!({"name": "v", "cephfs": {"secretRef": {"name": "a"}}})), "secrets"),
            (
                volume(
                    json!({"name": "v", "projected": {"sources": [{"downwardAPI": {}}, {"secret": {"name": "a"}}]}}),
                ),
                "secrets (via projected volumes)",
            ),
            (
                volume(json!({"name": "v", "projected": {"sources": [{"serviceAccountToken": {}}]}})),
                "serviceaccounts (via projected volumes)",
            ),
            (volume(json!({"name": "v", "projected": {"sources": [{"podCertificate": {}}]}})), "podcertificates"),
            (volume(json!({"name": "v", "tomorrow": {}})), "what a volume of the kind tomorrow names"),
        ] {
            assert_eq!(of_pod(&spec).as_deref(), Some(what), "{spec}");
        }
        let plain = json!({"containers": [{"name": "c"}],
            "volumes": [{"name": "v", "hostPath": {"path": "/"}}, {"name": "e", "emptyDir": {}},
            {"name": "p", "projected": {"sources": [{"downwardAPI": {}}]}}]});
        assert_eq!(of_pod(&plain), None);
    }
}
