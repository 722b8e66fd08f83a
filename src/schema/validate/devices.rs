//! resource.k8s.io: claims of devices, classes, and the slices in which drivers list them.

use std::collections::{BTreeMap, BTreeSet};

use cel::Program;
use cel::syntax::Dialect;
use cel::types::Ty;
use model::names;
use serde_json::Value;

use crate::read;
use crate::validate::checks::{Errors, IMMUTABLE, invalid_each};
use crate::validate::device_slice;
use crate::validate::drivers::driver_name;
use crate::validate::error::FieldError;
use crate::validate::path::Path;
use crate::validate::pod;

const REQUESTS_MAX: usize = 32;
const CONSTRAINTS_MAX: usize = 32;
const CONFIGS_MAX: usize = 32;
const SELECTORS_MAX: usize = 32;
const ALTERNATIVES_MAX: usize = 8;
const RESERVED_MAX: usize = 256;
const RESULTS_MAX: usize = 32;
const EXPRESSION_BYTES_MAX: usize = 10 * 1024;
const PARAMETER_BYTES_MAX: usize = 10 * 1024;
const REFERENCE: &str =
    "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'";

/// The items of a list that is not too long.
pub(super) fn items<'v>(
    of: &'v Value,
    field: &str,
    path: Path<'_>,
    max: usize,
    errors: &mut Errors,
) -> Vec<(String, &'v Value)> {
    let (list, path) = (read::list(of, field), format!("{path}.{field}"));
    if list.len() > max {
        errors.push(FieldError::too_many(path, list.len(), max));
        return Vec::new();
    }
    list.iter().enumerate().map(|(idx, item)| (format!("{path}[{idx}]"), item)).collect()
}

/// Reports the items whose key came before.
pub(super) fn unique<'v>(items: &[(String, &'v Value)], key: impl Fn(&'v Value) -> &'v str, errors: &mut Errors) {
    let mut seen = BTreeSet::new();
    for (path, item) in items {
        if !seen.insert(key(item)) {
            errors.push(FieldError::duplicate(path.as_str(), key(item)));
        }
    }
}

fn itself(item: &Value) -> &str {
    item.as_str().unwrap_or_default()
}

fn name_of(item: &Value) -> &str {
    read::text(item, "name")
}

pub(super) fn label_name(name: &str, path: Path<'_>, errors: &mut Errors) {
    invalid_each(path, name, names::dns_label_errors(name), errors);
}

/// Requests by name, each with its alternatives.
type Names<'v> = BTreeMap<&'v str, BTreeSet<&'v str>>;

fn request_names(devices: &Value) -> Names<'_> {
    let alternatives = |r| read::list(r, "firstAvailable").iter().map(name_of).collect();
    read::list(devices, "requests").iter().map(|r| (name_of(r), alternatives(r))).collect()
}

fn reference(name: &str, known: &Names<'_>, path: Path<'_>, errors: &mut Errors) {
    let parts: Vec<&str> = name.split('/').collect();
    let found = match parts.as_slice() {
        [one] => known.contains_key(one),
        [one, two] => known.get(one).is_some_and(|subs| subs.contains(two)),
        _ => {
            errors.push(FieldError::invalid(path, name, REFERENCE));
            return;
        }
    };
    for part in parts {
        label_name(part, path, errors);
    }
    if !found {
        errors.push(FieldError::invalid(path, name, REFERENCE));
    }
}

fn references(of: &Value, known: &Names<'_>, path: Path<'_>, errors: &mut Errors) {
    let list = items(of, "requests", path, REQUESTS_MAX, errors);
    for (path, name) in &list {
        reference(itself(name), known, Path(path), errors);
    }
    unique(&list, itself, errors);
}

/// ResourceClaim.
pub(crate) fn claim(object: &Value, errors: &mut Errors) {
    claim_spec(&object["spec"], Path("spec"), errors);
}

/// ResourceClaimTemplate.
pub(crate) fn template(object: &Value, errors: &mut Errors) {
    let metadata = &object["spec"]["metadata"];
    for field in ["labels", "annotations"] {
        let map = read::map(metadata, field).cloned().unwrap_or_default();
        for mut error in crate::validate::labels_or_annotations(field, &map) {
            error.field = format!("spec.{}", error.field);
            errors.push(error);
        }
    }
    claim_spec(&object["spec"]["spec"], Path("spec.spec"), errors);
}

/// The spec of a claim stays.
pub(crate) fn spec_update(new: &Value, old: &Value, errors: &mut Errors) {
    if new["spec"] != old["spec"] {
        // Nothing else about it can be mended.
        errors.retain(|e| !e.field.starts_with("spec"));
        errors.push(FieldError::invalid("spec", new["spec"].clone(), IMMUTABLE));
    }
}

fn claim_spec(spec: &Value, path: Path<'_>, errors: &mut Errors) {
    let (devices, path) = (&spec["devices"], format!("{path}.devices"));
    let known = request_names(devices);
    let requests = items(devices, "requests", Path(&path), REQUESTS_MAX, errors);
    for (path, one) in &requests {
        request(one, Path(path), errors);
    }
    unique(&requests, name_of, errors);
    for (path, constraint) in items(devices, "constraints", Path(&path), CONSTRAINTS_MAX, errors) {
        references(constraint, &known, Path(&path), errors);
        match (read::some_text(constraint, "matchAttribute"), read::some_text(constraint, "distinctAttribute")) {
            (Some(name), _) => full_name(name, Path(&format!("{path}.matchAttribute")), errors),
            (None, Some(name)) => full_name(name, Path(&format!("{path}.distinctAttribute")), errors),
            (None, None) => {
                let why = "exactly one of \"matchAttribute\" or \"distinctAttribute\" is required, but multiple fields \
                    are set";
                errors.push(FieldError::required(path, why));
            }
        }
    }
    for (path, one) in items(devices, "config", Path(&path), CONFIGS_MAX, errors) {
        references(one, &known, Path(&path), errors);
        configuration(one, Path(&path), errors);
    }
}

fn request(one: &Value, path: Path<'_>, errors: &mut Errors) {
    label_name(name_of(one), Path(&format!("{path}.name")), errors);
    let exactly = read::at(one, "exactly");
    match (exactly, read::list(one, "firstAvailable").is_empty()) {
        (None, true) => {
            errors.push(FieldError::required(path, "exactly one of `exactly` or `firstAvailable` is required"))
        }
        (Some(_), false) => {
            let why = "exactly one of `exactly` or `firstAvailable` is required, but multiple fields are set";
            errors.push(FieldError::invalid(path, Value::Null, why));
        }
        (Some(exactly), true) => wanted(exactly, Path(&format!("{path}.exactly")), errors),
        (None, false) => {
            let subs = items(one, "firstAvailable", path, ALTERNATIVES_MAX, errors);
            for (path, sub) in &subs {
                label_name(name_of(sub), Path(&format!("{path}.name")), errors);
                wanted(sub, Path(path), errors);
            }
            unique(&subs, name_of, errors);
        }
    }
}

/// The class, selectors and number of a request.
fn wanted(of: &Value, path: Path<'_>, errors: &mut Errors) {
    match read::text(of, "deviceClassName") {
        "" => errors.push(FieldError::required(format!("{path}.deviceClassName"), "")),
        class => {
            invalid_each(Path(&format!("{path}.deviceClassName")), class, names::dns_subdomain_errors(class), errors)
        }
    }
    selectors(of, path, errors);
    let count = read::number(of, "count");
    match read::text(of, "allocationMode") {
        "All" if count != 0 => {
            errors.push(FieldError::invalid(
                format!("{path}.count"),
                count,
                "must not be specified when allocationMode is 'All'",
            ));
        }
        "ExactCount" if count <= 0 => {
            errors.push(FieldError::invalid(format!("{path}.count"), count, "must be greater than zero"))
        }
        "All" | "ExactCount" => {}
        other => {
            errors.push(FieldError::not_supported(format!("{path}.allocationMode"), other, &["All", "ExactCount"]))
        }
    }
    for (idx, one) in read::list(of, "tolerations").iter().enumerate() {
        toleration(one, Path(&format!("{path}.tolerations[{idx}]")), errors);
    }
}

fn selectors(of: &Value, path: Path<'_>, errors: &mut Errors) {
    for (path, selector) in items(of, "selectors", path, SELECTORS_MAX, errors) {
        let Some(cel) = read::at(selector, "cel") else {
            errors.push(FieldError::required(format!("{path}.cel"), ""));
            continue;
        };
        let text = read::text(cel, "expression");
        if text.len() > EXPRESSION_BYTES_MAX {
            errors.push(FieldError::too_long(format!("{path}.cel.expression"), EXPRESSION_BYTES_MAX));
        } else if let Err(why) = Program::compile_in(Dialect::Devices, text, &[("device".to_owned(), Ty::Dyn)]) {
            let why = format!("compilation failed: {why}");
            errors.push(FieldError::invalid(format!("{path}.cel.expression"), text, why));
        }
    }
}

const EFFECTS: [&str; 3] = ["NoExecute", "NoSchedule", "None"];

fn toleration(one: &Value, path: Path<'_>, errors: &mut Errors) {
    if let Some(key) = read::some_text(one, "key") {
        invalid_each(Path(&format!("{path}.key")), key, names::qualified_name_errors(key), errors);
    }
    let value = read::text(one, "value");
    match read::text(one, "operator") {
        "Exists" if !value.is_empty() => {
            errors.push(FieldError::invalid(format!("{path}.value"), value, "must be empty for operator `Exists`"));
        }
        "Exists" => {}
        "Equal" => invalid_each(Path(&format!("{path}.value")), value, names::label_value_errors(value), errors),
        "" => errors.push(FieldError::required(format!("{path}.operator"), "")),
        other => errors.push(FieldError::not_supported(format!("{path}.operator"), other, &["Equal", "Exists"])),
    }
    if let Some(effect) = read::some_text(one, "effect").filter(|e| !EFFECTS.contains(e)) {
        errors.push(FieldError::not_supported(format!("{path}.effect"), effect, &EFFECTS));
    }
}

/// A taint of a device.
pub(super) fn taint(one: &Value, path: Path<'_>, errors: &mut Errors) {
    let (key, value) = (read::text(one, "key"), read::text(one, "value"));
    invalid_each(Path(&format!("{path}.key")), key, names::qualified_name_errors(key), errors);
    invalid_each(Path(&format!("{path}.value")), value, names::label_value_errors(value), errors);
    match read::text(one, "effect") {
        "" => errors.push(FieldError::required(format!("{path}.effect"), "")),
        effect if !EFFECTS.contains(&effect) => {
            errors.push(FieldError::not_supported(format!("{path}.effect"), effect, &EFFECTS))
        }
        _ => {}
    }
}

fn configuration(of: &Value, path: Path<'_>, errors: &mut Errors) {
    let Some(opaque) = read::at(of, "opaque") else {
        errors.push(FieldError::required(format!("{path}.opaque"), ""));
        return;
    };
    driver_name(read::text(opaque, "driver"), Path(&format!("{path}.opaque.driver")), errors);
    let path = format!("{path}.opaque.parameters");
    match read::at(opaque, "parameters") {
        None => errors.push(FieldError::required(path, "")),
        Some(value) if value.to_string().len() > PARAMETER_BYTES_MAX => {
            errors.push(FieldError::too_long(path, PARAMETER_BYTES_MAX))
        }
        Some(Value::Object(_)) => {}
        Some(_) => errors.push(FieldError::invalid(path, "<value omitted>", "must be a valid JSON object")),
    }
}

/// `domain/name`, of which the domain may be missing.
pub(super) fn qualified(name: &str, path: Path<'_>, errors: &mut Errors) {
    match name.split('/').collect::<Vec<_>>().as_slice() {
        [id] => identifier(id, path, errors),
        [domain, id] => {
            match *domain {
                "" => errors.push(FieldError::invalid(path, "", "the domain must not be empty")),
                domain => driver_name(domain, path, errors),
            }
            match *id {
                "" => errors.push(FieldError::invalid(path, "", "the name must not be empty")),
                id => identifier(id, path, errors),
            }
        }
        // Upstream takes names with more parts.
        _ => {}
    }
}

fn full_name(name: &str, path: Path<'_>, errors: &mut Errors) {
    qualified(name, path, errors);
    if !name.contains('/') {
        errors.push(FieldError::invalid(
            path,
            name,
            "a fully qualified name must be a domain and a name separated by a slash",
        ));
    }
}

const IDENTIFIER_MAX: usize = 32;

fn identifier(id: &str, path: Path<'_>, errors: &mut Errors) {
    if id.len() > IDENTIFIER_MAX {
        errors.push(FieldError::too_long(path, IDENTIFIER_MAX));
    }
    let first = id.bytes().next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_');
    if !first || !id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') {
        let why = "a valid C identifier must start with alphabetic character or '_', followed by a string of \
            alphanumeric characters or '_' (e.g. 'my_name',  or 'MY_NAME',  or 'MyName', regex used for validation \
            is '[A-Za-z_][A-Za-z0-9_]*')";
        errors.push(FieldError::invalid(path, id, why));
    }
}

/// DeviceClass.
pub(crate) fn class(object: &Value, errors: &mut Errors) {
    let spec = &object["spec"];
    selectors(spec, Path("spec"), errors);
    for (path, one) in items(spec, "config", Path("spec"), CONFIGS_MAX, errors) {
        configuration(one, Path(&path), errors);
    }
    if let Some(name) = read::at(spec, "extendedResourceName").and_then(Value::as_str) {
        let own = name
            .split_once('/')
            .is_some_and(|(domain, _)| !domain.ends_with("kubernetes.io") && !name.starts_with("requests."));
        if !own || !names::qualified_name_errors(&format!("requests.{name}")).is_empty() {
            errors.push(FieldError::invalid(
                "spec.extendedResourceName",
                name,
                "must be a valid extended resource name",
            ));
        }
    }
}

/// DeviceTaintRule.
pub(crate) fn taint_rule(object: &Value, errors: &mut Errors) {
    let path = "spec.deviceSelector";
    if let Some(selector) = read::at(object, path) {
        if let Some(driver) = read::at(selector, "driver").and_then(Value::as_str) {
            driver_name(driver, Path(&format!("{path}.driver")), errors);
        }
        if let Some(pool) = read::at(selector, "pool").and_then(Value::as_str) {
            device_slice::pool_name(pool, Path(&format!("{path}.pool")), errors);
        }
        if let Some(device) = read::at(selector, "device").and_then(Value::as_str) {
            label_name(device, Path(&format!("{path}.device")), errors);
        }
    }
    taint(&object["spec"]["taint"], Path("spec.taint"), errors);
}

/// ResourceSlice.
pub(crate) fn slice(object: &Value, errors: &mut Errors) {
    device_slice::slice(&object["spec"], errors);
}

/// Whose slice it is stays.
pub(crate) fn slice_update(new: &Value, old: &Value, errors: &mut Errors) {
    for field in ["spec.pool.name", "spec.driver", "spec.nodeName"] {
        crate::validate::checks::immutable(new, old, field, errors);
    }
}

/// The status of a claim: what was allocated, and for whom.
pub(crate) fn claim_status(new: &Value, old: &Value, errors: &mut Errors) {
    let status = &new["status"];
    let reserved = items(status, "reservedFor", Path("status"), RESERVED_MAX, errors);
    for (path, one) in &reserved {
        for field in ["resource", "name", "uid"].into_iter().filter(|f| read::text(one, f).is_empty()) {
            errors.push(FieldError::required(format!("{path}.{field}"), ""));
        }
    }
    unique(&reserved, |one| read::text(one, "uid"), errors);
    let (now, before) = (read::at(status, "allocation"), read::at(old, "status.allocation"));
    if !reserved.is_empty() && now.is_none() {
        errors.push(FieldError::forbidden("status.reservedFor", "may not be specified when `allocated` is not set"));
    } else if model::meta::deletion_timestamp(new).is_some() {
        let earlier = read::list(old, "status.reservedFor");
        if reserved.iter().any(|(_, one)| !earlier.contains(one)) {
            let why = "new entries may not be added while `deallocationRequested` or `deletionTimestamp` are set";
            errors.push(FieldError::forbidden("status.reservedFor", why));
        }
    }
    match (now, before) {
        (Some(now), Some(before)) if now != before => {
            errors.push(FieldError::invalid("status.allocation", now.clone(), IMMUTABLE));
        }
        (Some(now), None) => allocation(now, &request_names(&new["spec"]["devices"]), errors),
        _ => {}
    }
}

fn allocation(of: &Value, known: &Names<'_>, errors: &mut Errors) {
    let path = "status.allocation";
    for (path, result) in items(&of["devices"], "results", Path(&format!("{path}.devices")), RESULTS_MAX, errors) {
        reference(read::text(result, "request"), known, Path(&format!("{path}.request")), errors);
        driver_name(read::text(result, "driver"), Path(&format!("{path}.driver")), errors);
        device_slice::pool_name(read::text(result, "pool"), Path(&format!("{path}.pool")), errors);
        label_name(read::text(result, "device"), Path(&format!("{path}.device")), errors);
        device_slice::binding_conditions(result, Path(&path), errors);
    }
    for (path, one) in items(&of["devices"], "config", Path(&format!("{path}.devices")), 2 * CONFIGS_MAX, errors) {
        match read::text(one, "source") {
            "" => errors.push(FieldError::required(format!("{path}.source"), "")),
            "FromClaim" | "FromClass" => {}
            other => {
                errors.push(FieldError::not_supported(format!("{path}.source"), other, &["FromClaim", "FromClass"]))
            }
        }
        references(one, known, Path(&path), errors);
        configuration(one, Path(&path), errors);
    }
    if let Some(selector) = read::at(of, "nodeSelector") {
        pod::node_selector(selector, Path(&format!("{path}.nodeSelector")), errors);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::validate::testing::wrong_spec as wrong;
    use serde_json::json;

    #[test]
    fn a_claim_says_what_it_wants() {
        let exactly = json!({"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1});
        assert!(wrong(claim, json!({"devices": {"requests": [{"name": "a", "exactly": exactly}]}})).is_empty());
        let devices = json!({
            "requests": [{"name": "a", "exactly": {"allocationMode": "All", "count": 2,
                "selectors": [{}, {"cel": {"expression": "a +"}}]}},
                {"name": "a"}],
            "constraints": [{"requests": ["b"], "matchAttribute": "plain"}],
            "config": [{"opaque": {"driver": "d.io", "parameters": [1]}}]});
        let said = wrong(claim, json!({"devices": devices}));
        let starts = [
            "spec.devices.requests[0].exactly.deviceClassName: Required value",
            "spec.devices.requests[0].exactly.selectors[0].cel: Required value",
            "spec.devices.requests[0].exactly.selectors[1].cel.expression: Invalid value: \"a +\": compilation failed",
            "spec.devices.requests[0].exactly.count: Invalid value: 2: must not be specified when allocationMode is \
            'All'",
            "spec.devices.requests[1]: Required value: exactly one of `exactly` or `firstAvailable` is required",
            "spec.devices.requests[1]: Duplicate value: \"a\"",
            "spec.devices.constraints[0].requests[0]: Invalid value: \"b\": must be the name of a request",
            "spec.devices.constraints[0].matchAttribute: Invalid value: \"plain\": a fully qualified name",
            "spec.devices.config[0].opaque.parameters: Invalid value: \"<value omitted>\": must be a valid JSON object",
        ];
        assert_eq!(said.len(), starts.len(), "{said:#?}");
        for (said, start) in said.iter().zip(starts) {
            assert!(said.starts_with(start), "{said}");
        }
    }

    #[test]
    fn an_allocation_is_for_good() {
        let status = |device: &str, reserved: Value| {
            let result = json!({"request": "a", "driver": "d.io", "pool": "p", "device": device});
            json!({"spec": {"devices": {"requests": [{"name": "a"}]}},
                "status": {"allocation": {"devices": {"results": [result]}}, "reservedFor": reserved}})
        };
        let said = |new: &Value, old: &Value| {
            let mut errors = Vec::new();
            claim_status(new, old, &mut errors);
            errors.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        let pod = json!([{"resource": "pods", "name": "p", "uid": "u"}]);
        assert!(said(&status("x", pod.clone()), &json!({})).is_empty());
        assert!(said(&status("y", pod), &status("x", json!([])))[0].ends_with(IMMUTABLE));
        let alone = json!({"status": {"reservedFor": [{"resource": "pods", "name": "p", "uid": "u"}]}});
        assert_eq!(
            said(&alone, &json!({})),
            ["status.reservedFor: Forbidden: may not be specified when `allocated` is not set"]
        );
    }
}
