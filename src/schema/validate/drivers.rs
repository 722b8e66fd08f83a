//! Storage drivers, and volumes on their way to nodes.

use std::collections::{BTreeMap, BTreeSet};

use model::names;
use model::quantity::Quantity;
use serde_json::Value;

use crate::read;
use crate::validate::checks::{Errors, IMMUTABLE, NOT_NEGATIVE, immutable, invalid_each, label_selector};
use crate::validate::error::FieldError;
use crate::validate::path::Path;
use crate::validate::volume;

const NODE_ID_MAX: usize = 256;
const PARAMETERS_MAX: usize = 512;
const PARAMETER_BYTES_MAX: usize = 256 * 1024;
const ERROR_BYTES_MAX: usize = 1024;
const TOKEN_SECS_MIN: i64 = 600;
const ALLOCATABLE_PERIOD_SECS_MIN: i64 = 10;

/// CSIDriver.
pub(crate) fn driver(object: &Value, errors: &mut Errors) {
    let spec = read::at(object, "spec").unwrap_or(&Value::Null);
    // Upstream names the first of them so.
    let flags = [
        ("attachRequired", "attachedRequired"),
        ("podInfoOnMount", "podInfoOnMount"),
        ("storageCapacity", "storageCapacity"),
        ("seLinuxMount", "seLinuxMount"),
    ];
    for (_, shown) in flags.iter().filter(|(field, _)| read::at(spec, field).is_none()) {
        errors.push(FieldError::required(format!("spec.{shown}"), ""));
    }
    let policies = ["File", "None", "ReadWriteOnceWithFSType"];
    if let Some(policy) = read::some_text(spec, "fsGroupPolicy").filter(|p| !policies.contains(p)) {
        errors.push(FieldError::not_supported("spec.fsGroupPolicy", policy, &policies));
    }
    let requests = read::list(spec, "tokenRequests");
    token_requests(requests, errors);
    for mode in
        read::texts(spec, "volumeLifecycleModes").into_iter().filter(|m| !["Persistent", "Ephemeral"].contains(m))
    {
        errors.push(FieldError::not_supported("spec.volumeLifecycleModes", mode, &["Persistent", "Ephemeral"]));
    }
    if let Some(secs) =
        read::integer(spec, "nodeAllocatableUpdatePeriodSeconds").filter(|s| *s < ALLOCATABLE_PERIOD_SECS_MIN)
    {
        let why = "must be greater than or equal to 10 seconds";
        errors.push(FieldError::invalid("spec.nodeAllocatableUpdatePeriodSeconds", secs, why));
    }
    if let Some(flag) = read::at(spec, "serviceAccountTokenInSecrets").filter(|_| requests.is_empty()) {
        let why = "serviceAccountTokenInSecrets is set but no tokenRequests are specified";
        errors.push(FieldError::invalid("spec.serviceAccountTokenInSecrets", flag.clone(), why));
    }
}

fn token_requests(requests: &[Value], errors: &mut Errors) {
    let mut audiences = BTreeSet::new();
    for (idx, request) in requests.iter().enumerate() {
        let path = format!("spec.tokenRequests[{idx}]");
        let audience = read::text(request, "audience");
        if !audiences.insert(audience) {
            errors.push(FieldError::duplicate(format!("{path}.audience"), audience));
            continue;
        }
        let Some(secs) = read::integer(request, "expirationSeconds") else { continue };
        let mut wrong = |why: &str| errors.push(FieldError::invalid(format!("{path}.expirationSeconds"), secs, why));
        if secs < TOKEN_SECS_MIN {
            wrong("may not specify a duration less than 10 minutes");
        }
        if secs > 1 << 32 {
            wrong("may not specify a duration larger than 2^32 seconds");
        }
    }
}

/// Fields of a CSIDriver that stay.
pub(crate) fn driver_update(new: &Value, old: &Value, errors: &mut Errors) {
    for (field, shown) in [("attachRequired", "attachedRequired"), ("volumeLifecycleModes", "volumeLifecycleModes")] {
        let of = |object| read::at(object, &format!("spec.{field}")).cloned().unwrap_or(Value::Null);
        if of(new) != of(old) {
            errors.push(FieldError::invalid(format!("spec.{shown}"), of(new), IMMUTABLE));
        }
    }
}

/// The name of a driver, which must be there.
pub(super) fn driver_name(name: &str, path: Path<'_>, errors: &mut Errors) {
    if name.is_empty() {
        errors.push(FieldError::required(path, ""));
    }
    volume::csi_driver(name, path, errors);
}

/// CSINode.
pub(crate) fn node(object: &Value, errors: &mut Errors) {
    let mut seen = BTreeSet::new();
    for (idx, driver) in read::list(object, "spec.drivers").iter().enumerate() {
        let path = format!("spec.drivers[{idx}]");
        let (name, id) = (read::text(driver, "name"), read::text(driver, "nodeID"));
        driver_name(name, Path(&format!("{path}.name")), errors);
        if id.is_empty() {
            errors.push(FieldError::required(format!("{path}.nodeID"), ""));
        }
        if id.len() > NODE_ID_MAX {
            errors.push(FieldError::invalid(
                format!("{path}.nodeID"),
                id,
                format!("must be {NODE_ID_MAX} characters or less"),
            ));
        }
        if let Some(n) = read::integer(driver, "allocatable.count").filter(|n| *n < 0) {
            errors.push(FieldError::invalid(format!("{path}.allocatable.count"), n, NOT_NEGATIVE));
        }
        if !seen.insert(name) {
            errors.push(FieldError::duplicate(format!("{path}.name"), name));
        }
        let mut keys = BTreeSet::new();
        for key in read::texts(driver, "topologyKeys") {
            if key.is_empty() {
                errors.push(FieldError::required(path.as_str(), ""));
            }
            if !keys.insert(key) {
                errors.push(FieldError::duplicate(path.as_str(), key));
            }
            invalid_each(Path(&path), key, names::qualified_name_errors(key), errors);
        }
    }
}

/// A driver may come and go, but only its capacity changes.
pub(crate) fn node_update(new: &Value, old: &Value, errors: &mut Errors) {
    let fixed = |driver: &Value| {
        let mut driver = driver.clone();
        if let Some(map) = driver.as_object_mut() {
            map.remove("allocatable");
        }
        driver
    };
    for before in read::list(old, "spec.drivers") {
        let now = read::named(read::list(new, "spec.drivers"), read::text(before, "name"));
        if let Some(now) = now.filter(|now| fixed(now) != fixed(before)) {
            errors.push(FieldError::invalid("spec.drivers", fixed(now), IMMUTABLE));
        }
    }
}

/// CSIStorageCapacity.
pub(crate) fn capacity(object: &Value, errors: &mut Errors) {
    if let Some(selector) = read::at(object, "nodeTopology") {
        label_selector(selector, Path("nodeTopology"), errors);
    }
    let class = read::text(object, "storageClassName");
    invalid_each(Path("storageClassName"), class, names::dns_subdomain_errors(class), errors);
    if let Some(q) = object.get("capacity").and_then(|v| Quantity::from_value(v).ok()).filter(|q| q.sign() < 0) {
        errors.push(FieldError::invalid("capacity", q.to_string(), NOT_NEGATIVE));
    }
}

/// The place and class that a capacity is about stay.
pub(crate) fn capacity_update(new: &Value, old: &Value, errors: &mut Errors) {
    immutable(new, old, "nodeTopology", errors);
    immutable(new, old, "storageClassName", errors);
}

/// VolumeAttachment.
pub(crate) fn attachment(object: &Value, errors: &mut Errors) {
    let spec = read::at(object, "spec").unwrap_or(&Value::Null);
    driver_name(read::text(spec, "attacher"), Path("spec.attacher"), errors);
    let (name, inline) = (
        read::at(spec, "source.persistentVolumeName").and_then(Value::as_str),
        read::at(spec, "source.inlineVolumeSpec"),
    );
    match (name, inline) {
        (None, None) => {
            errors.push(FieldError::required(
                "spec.source",
                "must specify exactly one of inlineVolumeSpec and persistentVolumeName",
            ));
        }
        (Some(_), Some(_)) => {
            errors.push(FieldError::forbidden(
                "spec.source",
                "must specify exactly one of inlineVolumeSpec and persistentVolumeName",
            ));
        }
        (Some(""), None) => {
            errors.push(FieldError::required(
                "spec.source.persistentVolumeName",
                "must specify non empty persistentVolumeName",
            ));
        }
        _ => {}
    }
    let node = read::text(spec, "nodeName");
    invalid_each(Path("spec.nodeName"), node, names::dns_subdomain_errors(node), errors);
    attachment_status(object, errors);
    if let Some(name) = name {
        invalid_each(Path("spec.source.persistentVolumeName"), name, names::dns_subdomain_errors(name), errors);
    }
}

fn attachment_status(object: &Value, errors: &mut Errors) {
    let metadata = read::map(object, "status.attachmentMetadata");
    let bytes: usize = metadata.into_iter().flatten().map(|(k, v)| k.len() + v.as_str().map_or(0, str::len)).sum();
    if bytes > PARAMETER_BYTES_MAX {
        errors.push(FieldError::too_long("status.attachmentMetadata", PARAMETER_BYTES_MAX));
    }
    for field in ["attachError", "detachError"] {
        let Some(error) = read::at(object, &format!("status.{field}")) else { continue };
        if read::text(error, "message").len() > ERROR_BYTES_MAX {
            // Upstream tells the other bound.
            errors.push(FieldError::too_long(format!("status.{field}.message"), PARAMETER_BYTES_MAX));
        }
        if let Some(code) = read::integer(error, "errorCode").filter(|code| *code < 0) {
            invalid_each(
                Path(&format!("status.{field}.errorCode")),
                code,
                names::range_errors(code, 0, i64::from(i32::MAX)),
                errors,
            );
        }
    }
}

/// An attachment is for one volume on one node, for good.
pub(crate) fn attachment_update(new: &Value, old: &Value, errors: &mut Errors) {
    immutable(new, old, "spec", errors);
}

/// VolumeAttributesClass.
pub(crate) fn attributes_class(object: &Value, errors: &mut Errors) {
    provisioner(object, "driverName", errors);
    parameters(object, errors);
    if read::map(object, "parameters").is_none_or(serde_json::Map::is_empty) {
        errors.push(FieldError::required("parameters", "must contain at least one key/value pair"));
    }
}

/// A class of attributes stays what it is.
pub(crate) fn attributes_class_update(new: &Value, old: &Value, errors: &mut Errors) {
    for field in ["driverName", "parameters"] {
        if read::at(new, field) != read::at(old, field) {
            errors.push(FieldError::forbidden(field, format!("updates to {field} are forbidden.")));
        }
    }
}

/// The provisioner of a class: a qualified name in any case.
pub(super) fn provisioner(object: &Value, field: &str, errors: &mut Errors) {
    match read::text(object, field) {
        "" => errors.push(FieldError::required(field, "")),
        name => {
            invalid_each(Path(field), name.to_lowercase(), names::qualified_name_errors(&name.to_lowercase()), errors)
        }
    }
}

/// The parameters that a class passes on to its driver.
pub(super) fn parameters(object: &Value, errors: &mut Errors) {
    let Some(map) = read::map(object, "parameters") else { return };
    if map.len() > PARAMETERS_MAX {
        errors.push(FieldError::too_long("parameters", PARAMETERS_MAX));
        return;
    }
    for key in map.keys().filter(|k| k.is_empty()) {
        errors.push(FieldError::invalid("parameters", key.as_str(), "field can not be empty."));
    }
    let bytes: usize = map.iter().map(|(k, v)| k.len() + v.as_str().map_or(0, str::len)).sum();
    if bytes > PARAMETER_BYTES_MAX {
        errors.push(FieldError::too_long("parameters", PARAMETER_BYTES_MAX));
    }
}

/// Where volumes of a class may be made.
pub(super) fn topologies(object: &Value, errors: &mut Errors) {
    let mut before: BTreeSet<BTreeMap<&str, Vec<BTreeSet<&str>>>> = BTreeSet::new();
    for (idx, term) in read::list(object, "allowedTopologies").iter().enumerate() {
        let path = format!("allowedTopologies[{idx}]");
        let mut terms: BTreeMap<&str, Vec<BTreeSet<&str>>> = BTreeMap::new();
        for (at, expression) in read::list(term, "matchLabelExpressions").iter().enumerate() {
            let path = format!("{path}.matchLabelExpressions[{at}]");
            let (key, values) = (read::text(expression, "key"), read::texts(expression, "values"));
            if values.is_empty() {
                errors.push(FieldError::required(Path(&path).child("values"), ""));
            }
            let mut unique = BTreeSet::new();
            for (n, value) in values.into_iter().enumerate() {
                if !unique.insert(value) {
                    errors.push(FieldError::duplicate(format!("{path}.values[{n}]"), value));
                }
            }
            invalid_each(Path(&format!("{path}.key")), key, names::qualified_name_errors(key), errors);
            if terms.contains_key(key) {
                errors.push(FieldError::duplicate(format!("{path}.key"), key));
            }
            terms.entry(key).or_default().push(unique);
        }
        terms.values_mut().for_each(|values| values.sort());
        if !before.insert(terms) {
            errors.push(FieldError::duplicate(format!("{path}.matchLabelExpressions"), ""));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::validate::testing::wrong;
    use serde_json::json;

    #[test]
    fn a_driver_says_all_that_it_must() {
        let spec = json!({"attachRequired": true, "podInfoOnMount": true, "storageCapacity": false,
            "seLinuxMount": false,
            "fsGroupPolicy": "Some", "volumeLifecycleModes": ["Forever"], "nodeAllocatableUpdatePeriodSeconds": 5,
            "tokenRequests": [{"audience": "a", "expirationSeconds": 5}, {"audience": "a"}]});
        assert_eq!(
            wrong(driver, json!({"spec": spec})),
            [
                "spec.fsGroupPolicy: Unsupported value: \"Some\": supported values: \"File\", \"None\", \
                \"ReadWriteOnceWithFSType\"",
                "spec.tokenRequests[0].expirationSeconds: Invalid value: 5: may not specify a duration less than 10 \
                minutes",
                "spec.tokenRequests[1].audience: Duplicate value: \"a\"",
                "spec.volumeLifecycleModes: Unsupported value: \"Forever\": supported values: \"Persistent\", \
                \"Ephemeral\"",
                "spec.nodeAllocatableUpdatePeriodSeconds: Invalid value: 5: must be greater than or equal to 10 \
                seconds",
            ]
        );
        assert_eq!(wrong(driver, json!({"spec": {}})).len(), 4);
    }

    #[test]
    fn a_node_names_each_driver_once() {
        let spec = json!({"drivers": [{"name": "d.io", "nodeID": "n"},
            {"name": "d.io", "nodeID": "", "allocatable": {"count": -1}}]});
        assert_eq!(
            wrong(node, json!({"spec": spec})),
            [
                "spec.drivers[1].nodeID: Required value",
                "spec.drivers[1].allocatable.count: Invalid value: -1: must be greater than or equal to 0",
                "spec.drivers[1].name: Duplicate value: \"d.io\"",
            ]
        );
    }

    #[test]
    fn an_attachment_is_of_one_volume() {
        let both = json!({"spec": {"attacher": "d.io", "nodeName": "n",
            "source": {"persistentVolumeName": "v", "inlineVolumeSpec": {}}}});
        assert_eq!(
            wrong(attachment, both),
            ["spec.source: Forbidden: must specify exactly one of inlineVolumeSpec and persistentVolumeName"]
        );
        let none = json!({"spec": {"nodeName": "n", "source": {}}});
        assert_eq!(wrong(attachment, none)[0], "spec.attacher: Required value");
    }

    #[test]
    fn classes_have_parameters_and_distinct_topologies() {
        assert_eq!(
            wrong(attributes_class, json!({"driverName": "D.io"})),
            ["parameters: Required value: must contain at least one key/value pair"]
        );
        let term = json!({"matchLabelExpressions": [{"key": "zone", "values": ["a", "a"]}]});
        assert_eq!(
            wrong(topologies, json!({"allowedTopologies": [term, term]})),
            [
                "allowedTopologies[0].matchLabelExpressions[0].values[1]: Duplicate value: \"a\"",
                "allowedTopologies[1].matchLabelExpressions[0].values[1]: Duplicate value: \"a\"",
                "allowedTopologies[1].matchLabelExpressions: Duplicate value: \"\"",
            ]
        );
    }
}
