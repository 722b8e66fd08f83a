//! Volumes of a pod.

use std::collections::BTreeSet;

use model::names;
use model::quantity::Quantity;
use serde_json::Value;

use crate::read;
use crate::validate::checks::{Errors, invalid_each};
use crate::validate::container::{local_path, no_back_steps};
use crate::validate::error::FieldError;
use crate::validate::path::Path;
use crate::validate::{env, metadata, storage};

pub(super) const HOST_PATHS: [&str; 8] =
    ["", "BlockDevice", "CharDevice", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket"];

/// The field that each kind of volume cannot do without.
const NEEDS: &[(&str, &str)] = &[
    ("hostPath", "path"),
    ("secret", "secretName"),
    ("configMap", "name"),
    ("persistentVolumeClaim", "claimName"),
    ("csi", "driver"),
    ("nfs", "server"),
    ("nfs", "path"),
    ("iscsi", "targetPortal"),
    ("iscsi", "iqn"),
    ("image", "reference"),
    ("gitRepo", "repository"),
    ("rbd", "image"),
    ("cinder", "volumeID"),
    ("glusterfs", "endpoints"),
    ("glusterfs", "path"),
    ("azureFile", "secretName"),
    ("azureFile", "shareName"),
    ("azureDisk", "diskName"),
    ("azureDisk", "diskURI"),
    ("vsphereVolume", "volumePath"),
    ("photonPersistentDisk", "pdID"),
    ("portworxVolume", "volumeID"),
    ("gcePersistentDisk", "pdName"),
    ("awsElasticBlockStore", "volumeID"),
    ("flexVolume", "driver"),
    ("quobyte", "registry"),
    ("quobyte", "volume"),
    ("scaleIO", "gateway"),
    ("scaleIO", "system"),
    ("scaleIO", "volumeName"),
    ("storageos", "volumeName"),
];

/// All volumes; the names of the good ones come back for the mounts.
pub(super) fn volumes<'a>(spec: &'a Value, path: Path<'_>, errors: &mut Errors) -> BTreeSet<&'a str> {
    let mut seen = BTreeSet::new();
    for (idx, volume) in read::list(spec, "volumes").iter().enumerate() {
        let path = format!("{path}.volumes[{idx}]");
        let name = read::text(volume, "name");
        if name.is_empty() {
            errors.push(FieldError::required(format!("{path}.name"), ""));
        } else {
            invalid_each(Path(&format!("{path}.name")), name, names::dns_label_errors(name), errors);
            if !seen.insert(name) {
                errors.push(FieldError::duplicate(format!("{path}.name"), name));
            }
        }
        let sources: Vec<&String> = volume
            .as_object()
            .into_iter()
            .flatten()
            .filter(|(k, v)| *k != "name" && !v.is_null())
            .map(|(k, _)| k)
            .collect();
        match sources.as_slice() {
            [] => errors.push(FieldError::required(path.as_str(), "must specify a volume type")),
            [source] => self::source(volume, source, Path(&path), errors),
            [_, others @ ..] => errors.extend(others.iter().map(|other| {
                FieldError::forbidden(format!("{path}.{other}"), "may not specify more than 1 volume type")
            })),
        }
    }
    seen
}

/// The server goes to mount(8): it may not look like an option. Upstream takes any text.
pub(super) fn nfs_server(body: &Value, path: Path<'_>, errors: &mut Errors) {
    let server = read::text(body, "server");
    let plain = server.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._:%[]".contains(&b));
    if server.starts_with('-') || !plain {
        errors.push(FieldError::invalid(format!("{path}.server"), server, "must be a host name or an IP address"));
    }
}

fn source(volume: &Value, source: &str, path: Path<'_>, errors: &mut Errors) {
    let path = format!("{path}.{source}");
    let Some(body) = read::at(volume, source) else { return };
    for (_, field) in NEEDS.iter().filter(|(s, _)| *s == source) {
        if read::text(body, field).is_empty() {
            errors.push(FieldError::required(format!("{path}.{field}"), ""));
        }
    }
    match source {
        // Its absence was told already.
        "hostPath" if read::text(body, "path").is_empty() => {}
        "gitRepo" => local_path(read::text(body, "directory"), Path(&format!("{path}.directory")), errors),
        "hostPath" => {
            no_back_steps(read::text(body, "path"), Path(&format!("{path}.path")), errors);
            let kind = read::text(body, "type");
            if !HOST_PATHS.contains(&kind) {
                errors.push(FieldError::not_supported(format!("{path}.type"), kind, &HOST_PATHS));
            }
        }
        "emptyDir" => {
            let negative =
                body.get("sizeLimit").and_then(|q| Quantity::from_value(q).ok()).is_some_and(|q| q.sign() < 0);
            if negative {
                let message = "SizeLimit field must be a valid resource quantity";
                errors.push(FieldError::forbidden(format!("{path}.sizeLimit"), message));
            }
        }
        "nfs" => {
            if !read::text(body, "path").starts_with('/') {
                errors.push(FieldError::invalid(
                    format!("{path}.path"),
                    read::text(body, "path"),
                    "must be an absolute path",
                ));
            }
            nfs_server(body, Path(&path), errors);
        }
        "csi" => {
            let driver = read::text(body, "driver");
            csi_driver(driver, Path(&format!("{path}.driver")), errors);
            match read::at(body, "nodePublishSecretRef").map(|secret| read::text(secret, "name")) {
                None => {}
                Some("") => errors.push(FieldError::required(format!("{path}.nodePublishSecretRef.name"), "")),
                // Upstream leaves the reference out of this path.
                Some(name) => {
                    invalid_each(Path(&format!("{path}.name")), name, names::dns_subdomain_errors(name), errors)
                }
            }
        }
        "ephemeral" => match read::at(body, "volumeClaimTemplate") {
            None => errors.push(FieldError::required(format!("{path}.volumeClaimTemplate"), "")),
            Some(template) => {
                template_metadata(template, Path(&format!("{path}.volumeClaimTemplate.metadata")), errors);
                let spec = template.get("spec").unwrap_or(&Value::Null);
                storage::claim_spec(spec, Path(&format!("{path}.volumeClaimTemplate.spec")), errors);
            }
        },
        "image" => pull_policy(read::text(body, "pullPolicy"), Path(&format!("{path}.pullPolicy")), errors),
        "configMap" | "secret" => {
            mode(body, "defaultMode", Path(&path), errors);
            items(body, Path(&path), errors);
        }
        "downwardAPI" => {
            mode(body, "defaultMode", Path(&path), errors);
            downward(body, Path(&path), errors);
        }
        "projected" => {
            mode(body, "defaultMode", Path(&path), errors);
            projected(body, &path, errors);
        }
        _ => {}
    }
}

/// The metadata of a claim that a pod brings along: labels and annotations, and nothing else.
fn template_metadata(template: &Value, path: Path<'_>, errors: &mut Errors) {
    if let Some(map) = read::map(template, "metadata.annotations") {
        metadata::annotations(map, Path(&path.child("annotations")), errors);
    }
    if let Some(map) = read::map(template, "metadata.labels") {
        metadata::labels(map, Path(&path.child("labels")), errors);
    }
    let is_set = |value: &Value| !value.is_null() && value != "" && value != 0;
    for (field, _) in read::map(template, "metadata").into_iter().flatten().filter(|(_, value)| is_set(value)) {
        if !matches!(field.as_str(), "annotations" | "labels") {
            errors.push(FieldError::forbidden(path.child(field), "cannot be set"));
        }
    }
}

fn pull_policy(policy: &str, path: Path<'_>, errors: &mut Errors) {
    let supported = ["Always", "IfNotPresent", "Never"];
    if !policy.is_empty() && !supported.contains(&policy) {
        errors.push(FieldError::not_supported(path, policy, &supported));
    }
}

/// The name of a CSI driver.
pub(super) fn csi_driver(driver: &str, path: Path<'_>, errors: &mut Errors) {
    if driver.is_empty() {
        // Its absence was told already.
        return;
    }
    if driver.len() > 63 {
        errors.push(FieldError::too_long(path, 63));
    }
    invalid_each(path, driver, names::dns_subdomain_errors(&driver.to_lowercase()), errors);
}

fn mode(body: &Value, field: &str, path: Path<'_>, errors: &mut Errors) {
    if let Some(mode) = read::integer(body, field).filter(|m| !(0..=0o777).contains(m)) {
        let message = "must be a number between 0 and 0777 (octal), both inclusive";
        errors.push(FieldError::invalid(format!("{path}.{field}"), mode, message));
    }
}

fn items(body: &Value, path: Path<'_>, errors: &mut Errors) {
    for (idx, item) in read::list(body, "items").iter().enumerate() {
        let path = format!("{path}.items[{idx}]");
        for field in ["key", "path"] {
            if read::text(item, field).is_empty() {
                errors.push(FieldError::required(format!("{path}.{field}"), ""));
            }
        }
        free_path(read::text(item, "path"), Path(&format!("{path}.path")), errors);
        mode(item, "mode", Path(&path), errors);
    }
}

fn downward(body: &Value, path: Path<'_>, errors: &mut Errors) {
    // Upstream leaves the position out of the paths of these.
    for item in read::list(body, "items") {
        mode(item, "mode", path, errors);
        let file = read::text(item, "path");
        if file.is_empty() {
            errors.push(FieldError::required(format!("{path}.path"), ""));
        }
        free_path(file, Path(&format!("{path}.path")), errors);
        if let Some(reference) = read::at(item, "fieldRef") {
            env::field_ref(reference, &env::FILE_FIELDS, Path(&format!("{path}.fieldRef")), errors);
        } else if let Some(reference) = read::at(item, "resourceFieldRef") {
            env::resource_ref(reference, Path(&format!("{path}.resourceFieldRef")), env::ExposedIn::File, errors);
        }
        match (read::at(item, "fieldRef"), read::at(item, "resourceFieldRef")) {
            (None, None) => errors.push(FieldError::required(path, "one of fieldRef and resourceFieldRef is required")),
            (Some(_), Some(_)) => {
                let message = "fieldRef and resourceFieldRef can not be specified simultaneously";
                errors.push(FieldError::invalid(path, "resource", message));
            }
            _ => {}
        }
    }
}

/// A relative path that does not begin with two dots.
fn free_path(text: &str, path: Path<'_>, errors: &mut Errors) {
    local_path(text, path, errors);
    if text.starts_with("..") && !text.starts_with("../") && text != ".." {
        errors.push(FieldError::invalid(path, text, "must not start with '..'"));
    }
}

/// The files that one source makes, by the name that is blamed for a repeat.
fn paths_of<'v>(kind: &str, source: &'v Value) -> Vec<(&'v str, &'v str)> {
    match kind {
        "configMap" | "secret" => {
            read::list(source, "items").iter().map(|i| (read::text(i, "path"), read::text(source, "name"))).collect()
        }
        "downwardAPI" => {
            read::list(source, "items").iter().map(|i| (read::text(i, "path"), read::text(i, "path"))).collect()
        }
        "clusterTrustBundle" => vec![(read::text(source, "path"), read::text(source, "path"))],
        "podCertificate" => ["credentialBundlePath", "keyPath", "certificateChainPath"]
            .iter()
            .map(|f| (read::text(source, f), read::text(source, f)))
            .collect(),
        _ => Vec::new(),
    }
}

fn token(source: &Value, outer: &str, path: Path<'_>, errors: &mut Errors) {
    let field = format!("{path}.expirationSeconds");
    if let Some(secs) = read::integer(source, "expirationSeconds") {
        if secs < 600 {
            errors.push(FieldError::invalid(field.as_str(), secs, "may not specify a duration less than 10 minutes"));
        }
        if secs > 1 << 32 {
            errors.push(FieldError::invalid(field, secs, "may not specify a duration larger than 2^32 seconds"));
        }
    }
    match read::text(source, "path") {
        "" => errors.push(FieldError::required(format!("{outer}.path"), "")),
        file => free_path(file, Path(&format!("{outer}.path")), errors),
    }
}

fn trust_bundle(source: &Value, path: Path<'_>, errors: &mut Errors) {
    match (read::some_text(source, "name"), read::some_text(source, "signerName")) {
        (Some(_), Some(_)) => {
            errors.push(FieldError::invalid(path, source.clone(), "only one of name and signerName may be used"));
        }
        (Some(name), None) => {
            if name.is_empty() {
                errors.push(FieldError::required(format!("{path}.name"), "must be a valid object name"));
            }
            if read::at(source, "labelSelector").is_some() {
                let why = "labelSelector must be unset if name is specified";
                errors.push(FieldError::invalid(format!("{path}.labelSelector"), source["labelSelector"].clone(), why));
            }
        }
        (None, Some("")) => {
            errors.push(FieldError::required(format!("{path}.signerName"), "must be a valid signer name"))
        }
        (None, Some(_)) => {}
        (None, None) => errors.push(FieldError::required(path, "either name or signerName must be specified")),
    }
    match read::text(source, "path") {
        "" => errors.push(FieldError::required(format!("{path}.path"), "")),
        file => free_path(file, Path(&format!("{path}.path")), errors),
    }
}

fn projected(body: &Value, outer: &str, errors: &mut Errors) {
    let path = outer;
    let mut files = BTreeSet::new();
    for source in read::list(body, "sources") {
        for (kind, inner) in source.as_object().into_iter().flatten() {
            for (file, blamed) in paths_of(kind, inner) {
                if !file.is_empty() && !files.insert(file) {
                    errors.push(FieldError::invalid(outer, blamed, "conflicting duplicate paths"));
                }
            }
        }
    }
    for (idx, source) in read::list(body, "sources").iter().enumerate() {
        let path = format!("{path}.sources[{idx}]");
        let given: Vec<(&String, &Value)> =
            source.as_object().into_iter().flatten().filter(|(_, v)| !v.is_null()).collect();
        match given.as_slice() {
            // Upstream says nothing about a source without one.
            [] => {}
            [(name, inner)] => {
                let path = format!("{path}.{name}");
                match name.as_str() {
                    "configMap" | "secret" => {
                        if read::text(inner, "name").is_empty() {
                            errors.push(FieldError::required(format!("{path}.name"), ""));
                        }
                        items(inner, Path(&path), errors);
                    }
                    "downwardAPI" => downward(inner, Path(&path), errors),
                    "serviceAccountToken" => token(inner, outer, Path(&path), errors),
                    "clusterTrustBundle" => trust_bundle(inner, Path(&path), errors),
                    _ => {}
                }
            }
            _ => errors.push(FieldError::forbidden(path, "may not specify more than 1 volume type per source")),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn said(volumes: Value) -> Vec<String> {
        let mut errors = Vec::new();
        super::volumes(&json!({"volumes": volumes}), Path("spec"), &mut errors);
        errors.iter().map(ToString::to_string).collect()
    }

    /// Of one volume; its path is left out.
    fn said_of(source: Value) -> Vec<String> {
        let mut volume = json!({"name": "v"});
        volume.as_object_mut().unwrap().append(source.clone().as_object_mut().unwrap());
        let all = said(json!([volume]));
        all.iter().map(|text| text.replacen("spec.volumes[0]", "", 1)).collect()
    }

    /// Spec: `TestValidateVolumes` of upstream v1.36 (`pkg/apis/core/validation/validation_test.go`).
    #[test]
    fn volumes_have_names_and_one_source_each() {
        let empty = || json!({});
        assert_eq!(
            said(json!([{"name": "a", "emptyDir": empty()}, {"name": "b", "hostPath": {"path": "/d"}}])),
            [""; 0]
        );
        assert_eq!(
            said(json!([{"emptyDir": empty()}, {"name": "a", "emptyDir": empty()},
                {"name": "a", "emptyDir": empty()}])),
            ["spec.volumes[0].name: Required value", "spec.volumes[2].name: Duplicate value: \"a\""]
        );
        let named = said(json!([{"name": "a.b.c", "emptyDir": empty()}]));
        assert_eq!(named, ["spec.volumes[0].name: Invalid value: \"a.b.c\": must not contain dots"]);
        assert_eq!(said(json!([{"name": "a"}])), ["spec.volumes[0]: Required value: must specify a volume type"]);
        let two = json!([{"name": "a", "emptyDir": empty(), "hostPath": {"path": "/d"}}]);
        assert_eq!(said(two), ["spec.volumes[0].hostPath: Forbidden: may not specify more than 1 volume type"]);
    }

    #[test]
    fn each_source_has_what_it_needs() {
        for (source, wanted) in [
            (json!({"hostPath": {"path": "", "type": "Odd"}}), &[".hostPath.path: Required value"][..]),
            (
                json!({"hostPath": {"path": "/a/../b"}}),
                &[".hostPath.path: Invalid value: \"/a/../b\": must not contain '..'"],
            ),
            (json!({"hostPath": {"path": "/a/..b", "type": "Socket"}}), &[]),
            (
                json!({"gitRepo": {"repository": "", "directory": "/d"}}),
                &[
                    ".gitRepo.repository: Required value",
                    ".gitRepo.directory: Invalid value: \"/d\": must be a relative path",
                ],
            ),
            (
                json!({"gitRepo": {"repository": "r", "directory": "a/../b"}}),
                &[".gitRepo.directory: Invalid value: \"a/../b\": must not contain '..'"],
            ),
            (
                json!({"emptyDir": {"sizeLimit": "-1Gi"}}),
                &[".emptyDir.sizeLimit: Forbidden: SizeLimit field must be a valid resource quantity"],
            ),
            (json!({"persistentVolumeClaim": {}}), &[".persistentVolumeClaim.claimName: Required value"]),
            (
                json!({"nfs": {"server": "s", "path": "d"}}),
                &[".nfs.path: Invalid value: \"d\": must be an absolute path"],
            ),
            (
                json!({"csi": {"driver": "d.io", "nodePublishSecretRef": {}}}),
                &[".csi.nodePublishSecretRef.name: Required value"],
            ),
            (json!({"csi": {"driver": ""}}), &[".csi.driver: Required value"]),
            (json!({"image": {"reference": ""}}), &[".image.reference: Required value"]),
            (
                json!({"image": {"reference": "i", "pullPolicy": "Odd"}}),
                &[".image.pullPolicy: Unsupported value: \"Odd\": supported values: \"Always\", \"IfNotPresent\", \
                    \"Never\""],
            ),
            (json!({"ephemeral": {}}), &[".ephemeral.volumeClaimTemplate: Required value"]),
        ] {
            assert_eq!(said_of(source.clone()), wanted, "{source}");
        }
        let secret = said_of(json!({"csi": {"driver": "d.io", "nodePublishSecretRef": {"name": "A b"}}}));
        assert!(
            secret[0].starts_with(
                ".csi.name: Invalid value: \"A b\": a lowercase RFC 1123 \
            subdomain"
            ),
            "{secret:?}"
        );
    }

    #[test]
    fn files_stay_below_their_volume_and_have_modes() {
        let item = |key: &str, path: &str, mode: i64| {
            let item = json!({"key": key, "path": path, "mode": mode});
            json!({"secret": {"secretName": "s", "items": [item]}})
        };
        let mode = "must be a number between 0 and 0777 (octal), both inclusive";
        for (source, wanted) in [
            (item("k", "a/b", 0o644), vec![]),
            (item("k", "a/..b", 0), vec![]),
            (item("", "p", 0), vec![".secret.items[0].key: Required value".to_owned()]),
            (item("k", "", 0), vec![".secret.items[0].path: Required value".to_owned()]),
            (
                item("k", "/p", 0),
                vec![".secret.items[0].path: Invalid value: \"/p\": must be a relative path".to_owned()],
            ),
            (
                item("k", "a/../p", 0),
                vec![".secret.items[0].path: Invalid value: \"a/../p\": must not contain '..'".to_owned()],
            ),
            (
                item("k", "..", 0),
                vec![".secret.items[0].path: Invalid value: \"..\": must not contain '..'".to_owned()],
            ),
            (
                item("k", "..p", 0),
                vec![".secret.items[0].path: Invalid value: \"..p\": must not start with '..'".to_owned()],
            ),
            (item("k", "p", 0o1000), vec![format!(".secret.items[0].mode: Invalid value: 512: {mode}")]),
            (
                json!({"configMap": {"name": "c", "defaultMode": -1}}),
                vec![format!(".configMap.defaultMode: Invalid value: -1: {mode}")],
            ),
            (json!({"configMap": {}}), vec![".configMap.name: Required value".to_owned()]),
            (
                json!({"downwardAPI": {"items": [{"path": "p"}]}}),
                vec![".downwardAPI: Required value: one of fieldRef and resourceFieldRef is required".to_owned()],
            ),
        ] {
            assert_eq!(said_of(source.clone()), wanted, "{source}");
        }
    }

    #[test]
    fn the_sources_of_a_projection_make_different_files() {
        let projected = |sources: Value| said_of(json!({"projected": {"sources": sources}}));
        let of = |kind: &str, path: &str| json!({kind: {"name": "n", "items": [{"key": "k", "path": path}]}});
        assert_eq!(projected(json!([of("secret", "a"), of("configMap", "b")])), [""; 0]);
        assert_eq!(
            projected(json!([of("secret", "a"), of("configMap", "a")])),
            [".projected: Invalid value: \"n\": conflicting duplicate paths"]
        );
        let token = |path: &str, secs: i64| json!([{"serviceAccountToken": {"path": path, "expirationSeconds": secs}}]);
        assert_eq!(projected(token("t", 600)), [""; 0]);
        let at = ".projected.sources[0].serviceAccountToken.expirationSeconds";
        assert_eq!(
            projected(token("t", 599)),
            [format!("{at}: Invalid value: 599: may not specify a duration less than 10 minutes")]
        );
        assert_eq!(
            projected(token("t", (1 << 32) + 1)),
            [format!("{at}: Invalid value: 4294967297: may not specify a duration larger than 2^32 seconds")]
        );
        assert_eq!(projected(token("", 600)), [".projected.path: Required value"]);
        let mut both = of("secret", "a");
        both.as_object_mut().unwrap().append(of("configMap", "b").as_object_mut().unwrap());
        assert_eq!(
            projected(json!([both])),
            [".projected.sources[0]: Forbidden: may not specify more than 1 volume type per source"]
        );
        assert_eq!(projected(json!([{"secret": {}}])), [".projected.sources[0].secret.name: Required value"]);
    }

    /// Spec: `ValidateTemplateObjectMeta` of upstream v1.36.
    #[test]
    fn a_claim_that_a_pod_brings_has_labels_and_annotations_alone() {
        let spec = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
        let with = |metadata: Value| {
            said_of(json!({"ephemeral": {"volumeClaimTemplate": {"metadata": metadata,
            "spec": spec}}}))
        };
        let at = ".ephemeral.volumeClaimTemplate.metadata";
        assert_eq!(with(json!({"labels": {"a": "b"}, "annotations": {"A/b": "c"}, "name": ""})), [""; 0]);
        assert_eq!(with(json!({"name": "n"})), [format!("{at}.name: Forbidden: cannot be set")]);
        let labels = with(json!({"labels": {"a": "b c"}}));
        assert!(labels[0].starts_with(&format!("{at}.labels: Invalid value: \"b c\": a valid label")), "{labels:?}");
    }
}
