//! Volumes of a pod.

use std::collections::BTreeSet;

use model::names;
use model::quantity::Quantity;
use serde_json::Value;

use crate::read;
use crate::validate::checks::{Errors, invalid_each};
use crate::validate::container::{local_path, no_back_steps};
use crate::validate::error::FieldError;
use crate::validate::{env, storage};

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
pub(super) fn volumes<'a>(spec: &'a Value, path: &str, errors: &mut Errors) -> BTreeSet<&'a str> {
    let mut seen = BTreeSet::new();
    for (idx, volume) in read::list(spec, "volumes").iter().enumerate() {
        let path = format!("{path}.volumes[{idx}]");
        let name = read::text(volume, "name");
        if name.is_empty() {
            errors.push(FieldError::required(format!("{path}.name"), ""));
        } else {
            invalid_each(&format!("{path}.name"), name, names::dns_label_errors(name), errors);
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
            [source] => self::source(volume, source, &path, errors),
            [_, others @ ..] => errors.extend(others.iter().map(|other| {
                FieldError::forbidden(format!("{path}.{other}"), "may not specify more than 1 volume type")
            })),
        }
    }
    seen
}

/// The server goes to mount(8): it may not look like an option. Upstream takes any text.
pub(super) fn nfs_server(body: &Value, path: &str, errors: &mut Errors) {
    let server = read::text(body, "server");
    let plain = server.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._:%[]".contains(&b));
    if server.starts_with('-') || !plain {
        errors.push(FieldError::invalid(format!("{path}.server"), server, "must be a host name or an IP address"));
    }
}

fn source(volume: &Value, source: &str, path: &str, errors: &mut Errors) {
    let path = format!("{path}.{source}");
    let Some(body) = read::at(volume, source) else { return };
    for (_, field) in NEEDS.iter().filter(|(s, _)| *s == source) {
        if read::text(body, field).is_empty() {
            errors.push(FieldError::required(format!("{path}.{field}"), ""));
        }
    }
    match source {
        "hostPath" => {
            no_back_steps(read::text(body, "path"), &format!("{path}.path"), errors);
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
            nfs_server(body, &path, errors);
        }
        "csi" => {
            let driver = read::text(body, "driver");
            csi_driver(driver, &format!("{path}.driver"), errors);
            if let Some(secret) = read::at(body, "nodePublishSecretRef")
                && read::text(secret, "name").is_empty()
            {
                errors.push(FieldError::required(format!("{path}.nodePublishSecretRef.name"), ""));
            }
        }
        "ephemeral" => match read::at(body, "volumeClaimTemplate") {
            None => errors.push(FieldError::required(format!("{path}.volumeClaimTemplate"), "")),
            Some(template) => {
                let spec = template.get("spec").unwrap_or(&Value::Null);
                storage::claim_spec(spec, &format!("{path}.volumeClaimTemplate.spec"), errors);
            }
        },
        "image" => pull_policy(read::text(body, "pullPolicy"), &format!("{path}.pullPolicy"), errors),
        "configMap" | "secret" => {
            mode(body, "defaultMode", &path, errors);
            items(body, &path, errors);
        }
        "downwardAPI" => {
            mode(body, "defaultMode", &path, errors);
            downward(body, &path, errors);
        }
        "projected" => {
            mode(body, "defaultMode", &path, errors);
            projected(body, &path, errors);
        }
        _ => {}
    }
}

fn pull_policy(policy: &str, path: &str, errors: &mut Errors) {
    let supported = ["Always", "IfNotPresent", "Never"];
    if !policy.is_empty() && !supported.contains(&policy) {
        errors.push(FieldError::not_supported(path, policy, &supported));
    }
}

/// The name of a CSI driver.
pub(super) fn csi_driver(driver: &str, path: &str, errors: &mut Errors) {
    if driver.is_empty() {
        // Its absence was told already.
        return;
    }
    if driver.len() > 63 {
        errors.push(FieldError::too_long(path, 63));
    }
    invalid_each(path, driver, names::dns_subdomain_errors(&driver.to_lowercase()), errors);
}

fn mode(body: &Value, field: &str, path: &str, errors: &mut Errors) {
    if let Some(mode) = read::integer(body, field).filter(|m| !(0..=0o777).contains(m)) {
        let message = "must be a number between 0 and 0777 (octal), both inclusive";
        errors.push(FieldError::invalid(format!("{path}.{field}"), mode, message));
    }
}

fn items(body: &Value, path: &str, errors: &mut Errors) {
    for (idx, item) in read::list(body, "items").iter().enumerate() {
        let path = format!("{path}.items[{idx}]");
        for field in ["key", "path"] {
            if read::text(item, field).is_empty() {
                errors.push(FieldError::required(format!("{path}.{field}"), ""));
            }
        }
        free_path(read::text(item, "path"), &format!("{path}.path"), errors);
        mode(item, "mode", &path, errors);
    }
}

fn downward(body: &Value, path: &str, errors: &mut Errors) {
    // Upstream leaves the position out of the paths of these.
    for item in read::list(body, "items") {
        let path = path.to_owned();
        mode(item, "mode", &path, errors);
        let file = read::text(item, "path");
        if file.is_empty() {
            errors.push(FieldError::required(format!("{path}.path"), ""));
        }
        free_path(file, &format!("{path}.path"), errors);
        if let Some(reference) = read::at(item, "fieldRef") {
            env::field_ref(reference, &env::FILE_FIELDS, &format!("{path}.fieldRef"), errors);
        } else if let Some(reference) = read::at(item, "resourceFieldRef") {
            env::resource_ref(reference, &format!("{path}.resourceFieldRef"), env::Place::File, errors);
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
fn free_path(text: &str, path: &str, errors: &mut Errors) {
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

fn token(source: &Value, outer: &str, path: &str, errors: &mut Errors) {
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
        file => free_path(file, &format!("{outer}.path"), errors),
    }
}

fn trust_bundle(source: &Value, path: &str, errors: &mut Errors) {
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
        file => free_path(file, &format!("{path}.path"), errors),
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
                        items(inner, &path, errors);
                    }
                    "downwardAPI" => downward(inner, &path, errors),
                    "serviceAccountToken" => token(inner, outer, &path, errors),
                    "clusterTrustBundle" => trust_bundle(inner, &path, errors),
                    _ => {}
                }
            }
            _ => errors.push(FieldError::forbidden(path, "may not specify more than 1 volume type per source")),
        }
    }
}
