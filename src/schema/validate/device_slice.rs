//! ResourceSlices: a driver's devices, their attributes, capacities, counters and taints.

use std::collections::BTreeSet;

use model::names;
use model::quantity::Quantity;
use serde_json::Value;

use crate::read;
use crate::validate::checks::{Errors, invalid_each};
use crate::validate::devices::{items, label_name, qualified, taint, unique};
use crate::validate::drivers::driver_name;
use crate::validate::error::FieldError;
use crate::validate::path::Path;
use crate::validate::pod;

const DEVICES_MAX: usize = 128;
const DEVICES_WITH_MORE_MAX: usize = 64;
const COUNTER_SETS_MAX: usize = 8;
const COUNTERS_MAX: usize = 32;
const CONSUMED_SETS_MAX: usize = 2;
const ATTRIBUTES_MAX: usize = 32;
const ATTRIBUTE_VALUES_MAX: usize = 48;
const ATTRIBUTE_BYTES_MAX: usize = 64;
const POOL_BYTES_MAX: usize = 253;
const TAINTS_MAX: usize = 16;
const CONDITIONS_MAX: usize = 4;
const LISTS: [&str; 4] = ["bools", "ints", "strings", "versions"];

/// Subdomains between slashes.
pub(super) fn pool_name(name: &str, path: Path<'_>, errors: &mut Errors) {
    if name.is_empty() {
        errors.push(FieldError::required(path, ""));
        return;
    }
    if name.len() > POOL_BYTES_MAX {
        errors.push(FieldError::too_long(path, POOL_BYTES_MAX));
    }
    for part in name.split('/') {
        invalid_each(path, part, names::dns_subdomain_errors(part), errors);
    }
}

pub(super) fn slice(spec: &Value, errors: &mut Errors) {
    driver_name(read::text(spec, "driver"), Path("spec.driver"), errors);
    pool_name(read::text(spec, "pool.name"), Path("spec.pool.name"), errors);
    let count = read::number(spec, "pool.resourceSliceCount");
    if count <= 0 {
        errors.push(FieldError::invalid("spec.pool.resourceSliceCount", count, "must be greater than zero"));
    }
    if let Some(n) = read::integer(spec, "pool.generation").filter(|n| *n < 0) {
        errors.push(FieldError::invalid("spec.pool.generation", n, "must be greater than or equal to zero"));
    }
    let mut set = places(spec, Path("spec"), "must be either unset or set to a non-empty string", errors);
    if let Some(selector) = read::at(spec, "nodeSelector")
        && read::list(selector, "nodeSelectorTerms").len() != 1
    {
        let terms = read::list(selector, "nodeSelectorTerms").to_vec();
        errors.push(FieldError::invalid(
            "spec.nodeSelector.nodeSelectorTerms",
            terms,
            "must have exactly one node selector term",
        ));
    }
    let nodes =
        if flag(spec, "perDeviceNodeSelection", Path("spec"), errors) { Nodes::OfDevice } else { Nodes::OfSlice };
    if nodes == Nodes::OfDevice {
        set.push("`perDeviceNodeSelection`");
    }
    let one_of = "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required";
    match set.len() {
        0 => errors.push(FieldError::required("spec", one_of)),
        1 => {}
        _ => {
            let why = format!("{one_of}, but multiple fields are set");
            errors.push(FieldError::invalid("spec", format!("{{{}}}", set.join(", ")), why));
        }
    }
    if read::at(spec, "sharedCounters").is_some() && read::at(spec, "devices").is_some() {
        errors.push(FieldError::invalid("spec", "", "only one of `sharedCounters` or `devices` is allowed"));
    }
    let more = read::list(spec, "devices").iter().any(has_more);
    let devices = items(spec, "devices", Path("spec"), if more { DEVICES_WITH_MORE_MAX } else { DEVICES_MAX }, errors);
    for (path, one) in &devices {
        device(one, Path(path), nodes, errors);
    }
    unique(&devices, |d| read::text(d, "name"), errors);
    let sets = items(spec, "sharedCounters", Path("spec"), COUNTER_SETS_MAX, errors);
    for (path, one) in &sets {
        counters(one, "name", Path(path), errors);
    }
    unique(&sets, |s| read::text(s, "name"), errors);
}

/// Devices with taints, counters or lists of attributes: fewer fit in a slice.
fn has_more(device: &Value) -> bool {
    let attributes = read::map(device, "attributes").into_iter().flatten();
    ["taints", "consumesCounters"].iter().any(|f| !read::list(device, f).is_empty())
        || attributes.into_iter().any(|(_, a)| LISTS.iter().any(|f| read::at(a, f).is_some()))
}

/// Which of the three ways to name nodes are used.
fn places(of: &Value, path: Path<'_>, empty: &str, errors: &mut Errors) -> Vec<&'static str> {
    let mut set = Vec::new();
    match read::at(of, "nodeName").and_then(Value::as_str) {
        None => {}
        Some("") => errors.push(FieldError::invalid(format!("{path}.nodeName"), "", empty)),
        Some(name) => {
            set.push("`nodeName`");
            invalid_each(Path(&format!("{path}.nodeName")), name, names::dns_subdomain_errors(name), errors);
        }
    }
    if let Some(selector) = read::at(of, "nodeSelector") {
        set.push("`nodeSelector`");
        pod::node_selector(selector, Path(&format!("{path}.nodeSelector")), errors);
    }
    if flag(of, "allNodes", path, errors) {
        set.push("`allNodes`");
    }
    set
}

/// A flag that is never false.
fn flag(of: &Value, field: &str, path: Path<'_>, errors: &mut Errors) -> bool {
    let said = read::at(of, field).and_then(Value::as_bool);
    if said == Some(false) {
        errors.push(FieldError::invalid(format!("{path}.{field}"), false, "must be either unset or set to true"));
    }
    said == Some(true)
}

fn counters(of: &Value, name: &str, path: Path<'_>, errors: &mut Errors) {
    match read::text(of, name) {
        "" => errors.push(FieldError::required(format!("{path}.{name}"), "")),
        text => label_name(text, Path(&format!("{path}.{name}")), errors),
    }
    let path = format!("{path}.counters");
    match read::map(of, "counters").filter(|m| !m.is_empty()) {
        None => errors.push(FieldError::required(path, "")),
        Some(map) if map.len() > COUNTERS_MAX => errors.push(FieldError::too_many(path, map.len(), COUNTERS_MAX)),
        Some(map) => map.keys().for_each(|key| label_name(key, Path(&path), errors)),
    }
}

/// Which of the two says on which nodes a device is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Nodes {
    OfSlice,
    OfDevice,
}

fn device(one: &Value, path: Path<'_>, nodes: Nodes, errors: &mut Errors) {
    label_name(read::text(one, "name"), Path(&format!("{path}.name")), errors);
    let empty = serde_json::Map::new();
    let (attributes, capacity) =
        (read::map(one, "attributes").unwrap_or(&empty), read::map(one, "capacity").unwrap_or(&empty));
    let n = attributes.len() + capacity.len();
    if n > ATTRIBUTES_MAX {
        let why = format!("the total number of attributes and capacities must not exceed {ATTRIBUTES_MAX}");
        errors.push(FieldError::invalid(path, n, why));
    }
    let values = |a: &Value| LISTS.iter().map(|f| read::list(a, f).len()).sum::<usize>().max(1);
    let n: usize = attributes.values().map(values).sum();
    if n > ATTRIBUTE_VALUES_MAX {
        errors.push(FieldError::invalid(
            path,
            n,
            format!("the total number of attribute values must not exceed {ATTRIBUTE_VALUES_MAX}"),
        ));
    }
    for (name, value) in attributes {
        qualified(name, Path(&format!("{path}.attributes")), errors);
        attribute(value, Path(&format!("{path}.attributes[{name}]")), errors);
    }
    let shared = read::flag(one, "allowMultipleAllocations");
    for (name, value) in capacity {
        qualified(name, Path(&format!("{path}.capacity")), errors);
        let here = format!("{path}.capacity[{name}].requestPolicy");
        match read::at(value, "requestPolicy") {
            Some(_) if !shared => errors.push(FieldError::forbidden(here, "allowMultipleAllocations must be true")),
            Some(policy) => request_policy(value, policy, Path(&here), errors),
            None => {}
        }
    }
    for (path, one) in items(one, "taints", path, TAINTS_MAX, errors) {
        taint(one, Path(&path), errors);
    }
    let consumed = items(one, "consumesCounters", path, CONSUMED_SETS_MAX, errors);
    for (path, set) in &consumed {
        counters(set, "counterSet", Path(path), errors);
    }
    unique(&consumed, |c| read::text(c, "counterSet"), errors);
    device_nodes(one, path, nodes, errors);
    binding_conditions(one, path, errors);
}

fn device_nodes(one: &Value, path: Path<'_>, nodes: Nodes, errors: &mut Errors) {
    if nodes == Nodes::OfSlice {
        if ["nodeName", "nodeSelector", "allNodes"].iter().any(|f| read::at(one, f).is_some()) {
            let why = "`nodeName`, `nodeSelector` and `allNodes` can only be set if `perDeviceNodeSelection` is set to \
                true in the ResourceSlice spec";
            errors.push(FieldError::invalid(path, Value::Null, why));
        }
        return;
    }
    let set = places(one, path, "must not be empty", errors);
    let why = "exactly one of `nodeName`, `nodeSelector`, or `allNodes` is required when `perDeviceNodeSelection` is \
        set to true in the ResourceSlice spec";
    match set.len() {
        0 => errors.push(FieldError::required(path, why)),
        1 => {}
        _ => errors.push(FieldError::invalid(path, format!("{{{}}}", set.join(", ")), why)),
    }
}

fn attribute(of: &Value, path: Path<'_>, errors: &mut Errors) {
    let mut n = ["bool", "int"].iter().filter(|f| read::at(of, f).is_some()).count();
    for field in ["string", "version"] {
        if let Some(text) = read::at(of, field).and_then(Value::as_str) {
            n += 1;
            attribute_text(text, Form::of(field), Path(&format!("{path}.{field}")), errors);
        }
    }
    for field in LISTS {
        let Some(list) = read::at(of, field).and_then(Value::as_array) else { continue };
        n += 1;
        if list.is_empty() {
            errors.push(FieldError::invalid(format!("{path}.{field}"), list.clone(), "must not be empty if specified"));
        }
        for (idx, text) in list.iter().enumerate().filter_map(|(idx, v)| Some((idx, v.as_str()?))) {
            attribute_text(text, Form::of(field), Path(&format!("{path}.{field}[{idx}]")), errors);
        }
    }
    if n != 1 {
        let shown = if n == 0 { Value::from("") } else { of.clone() };
        errors.push(FieldError::invalid(path, shown, "exactly one value must be specified"));
    }
}

/// The form of an attribute's text.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Any,
    Version,
}

impl Form {
    fn of(field: &str) -> Form {
        if matches!(field, "version" | "versions") { Form::Version } else { Form::Any }
    }
}

fn attribute_text(text: &str, form: Form, path: Path<'_>, errors: &mut Errors) {
    if form == Form::Version && !is_version(text) {
        errors.push(FieldError::invalid(path, text, "must be a string compatible with semver.org spec 2.0.0"));
    }
    if text.len() > ATTRIBUTE_BYTES_MAX {
        errors.push(FieldError::too_long(path, ATTRIBUTE_BYTES_MAX));
    }
}

/// `1.2.3-rc.1+build`, as semver.org has it.
fn is_version(text: &str) -> bool {
    let number = |part: &str| {
        !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()) && (part == "0" || !part.starts_with('0'))
    };
    let word = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
    let (rest, build) = text.split_once('+').map_or((text, None), |(rest, build)| (rest, Some(build)));
    let (core, pre) = rest.split_once('-').map_or((rest, None), |(core, pre)| (core, Some(pre)));
    let core: Vec<&str> = core.split('.').collect();
    let identifier = |part: &str| word(part) && (number(part) || !part.bytes().all(|b| b.is_ascii_digit()));
    core.len() == 3
        && core.into_iter().all(number)
        && pre.is_none_or(|pre| pre.split('.').all(identifier))
        && build.is_none_or(|build| build.split('.').all(word))
}

/// How much of a shared capacity one request takes.
fn request_policy(capacity: &Value, policy: &Value, path: Path<'_>, errors: &mut Errors) {
    let quantity = |of: &Value, field: &str| of.get(field).and_then(|v| Quantity::from_value(v).ok());
    let (values, range) = (read::list(policy, "validValues"), read::at(policy, "validRange"));
    if !values.is_empty() && range.is_some() {
        let why =
            "exactly one policy can be specified, cannot specify \"validValues\" and \"validRange\" at the same time";
        errors.push(FieldError::forbidden(path, why));
        return;
    }
    let Some(most) = quantity(capacity, "value") else { return };
    let default = quantity(policy, "default");
    if !values.is_empty() {
        let Some(default) = default else {
            errors.push(FieldError::required(format!("{path}.default"), "required when validValues is defined"));
            return;
        };
        let options: Vec<Quantity> = values.iter().filter_map(|v| Quantity::from_value(v).ok()).collect();
        for (idx, pair) in options.windows(2).enumerate() {
            if pair[0] > pair[1] {
                let here = format!("{path}.validValues[{}]", idx + 1);
                errors.push(FieldError::invalid(here, pair[1].to_string(), "values must be sorted in ascending order"));
            }
        }
        for (idx, option) in options.iter().enumerate().filter(|(_, o)| **o > most) {
            let why = format!("option is larger than capacity value: {most}");
            errors.push(FieldError::invalid(format!("{path}.validValues[{idx}]"), option.to_string(), why));
        }
        if !options.contains(&default) {
            let why = "default value is not valid according to the requestPolicy";
            errors.push(FieldError::invalid(format!("{path}.validValues"), default.to_string(), why));
        }
        return;
    }
    let Some(range) = range else { return };
    let path = format!("{path}.validRange");
    let Some(default) = default else {
        errors
            .push(FieldError::required(path.replace(".validRange", ".default"), "required when validRange is defined"));
        return;
    };
    let Some(min) = quantity(range, "min") else {
        errors.push(FieldError::required(format!("{path}.min"), "required when validRange is defined"));
        return;
    };
    let mut wrong = |field: &str, bad: &Quantity, why: String| {
        errors.push(FieldError::invalid(format!("{path}.{field}"), bad.to_string(), why));
    };
    if min > most {
        wrong("min", &min, format!("min is larger than capacity value: {most}"));
    }
    if default < min {
        wrong("min", &default, format!("default is less than min: {min}"));
    }
    if let Some(max) = quantity(range, "max") {
        if min > max {
            wrong("max", &min, format!("min is larger than max: {max}"));
        }
        if max > most {
            wrong("max", &max, format!("max is larger than capacity value: {most}"));
        }
        if default > max {
            wrong("max", &default, format!("default is more than max: {max}"));
        }
    }
}

/// Conditions that a binding waits for: both sorts or none, and no name in both.
pub(super) fn binding_conditions(of: &Value, path: Path<'_>, errors: &mut Errors) {
    let fields = ["bindingConditions", "bindingFailureConditions"];
    for field in fields {
        let list = items(of, field, path, CONDITIONS_MAX, errors);
        for (path, name) in &list {
            let name = name.as_str().unwrap_or_default();
            invalid_each(Path(path), name, names::qualified_name_errors(name), errors);
        }
        unique(&list, |name| name.as_str().unwrap_or_default(), errors);
    }
    let [good, bad] = fields.map(|f| read::texts(of, f));
    let known: BTreeSet<&str> = good.iter().copied().collect();
    for (idx, name) in bad.iter().enumerate().filter(|(_, n)| known.contains(**n)) {
        let why = "bindingFailureConditions must not overlap with bindingConditions";
        errors.push(FieldError::invalid(format!("{path}.bindingFailureConditions[{idx}]"), *name, why));
    }
    if good.is_empty() != bad.is_empty() {
        let (missing, other) = if good.is_empty() { (fields[0], fields[1]) } else { (fields[1], fields[0]) };
        let why = format!("{missing} are required to use {other}");
        errors.push(FieldError::invalid(format!("{path}.{missing}"), Value::Null, why));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn wrong(spec: Value) -> Vec<String> {
        let mut errors = Vec::new();
        slice(&spec, &mut errors);
        errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_slice_lists_devices_of_one_pool() {
        let device = json!({"name": "gpu-0", "attributes": {"model": {"string": "x"}, "d.io/v": {"version": "1.2.3"}},
            "capacity": {"memory": {"value": "1Gi"}}});
        let mut spec = json!({"driver": "d.io", "nodeName": "n",
            "pool": {"name": "n", "resourceSliceCount": 1, "generation": 1},
            "devices": [device]});
        assert_eq!(wrong(spec.clone()), Vec::<String>::new());
        spec["allNodes"] = json!(true);
        spec["pool"]["resourceSliceCount"] = json!(0);
        spec["devices"][0]["attributes"]["model"] = json!({"string": "x", "int": 1});
        spec["devices"][0]["attributes"]["d.io/v"] = json!({"version": "01.2"});
        spec["devices"][0]["capacity"]["memory"]["requestPolicy"] = json!({});
        spec["devices"][0]["bindingConditions"] = json!(["a"]);
        let said = wrong(spec);
        let starts = [
            "spec.pool.resourceSliceCount: Invalid value: 0: must be greater than zero",
            "spec: Invalid value: \"{`nodeName`, `allNodes`}\": exactly one of",
            "spec.devices[0].attributes[d.io/v].version: Invalid value: \"01.2\": must be a string compatible with \
            semver.org spec 2.0.0",
            "spec.devices[0].attributes[model]: Invalid value: {",
            "spec.devices[0].capacity[memory].requestPolicy: Forbidden: allowMultipleAllocations must be true",
            "spec.devices[0].bindingFailureConditions: Invalid value: null: bindingFailureConditions are required to \
            use bindingConditions",
        ];
        assert_eq!(said.len(), starts.len(), "{said:#?}");
        for (said, start) in said.iter().zip(starts) {
            assert!(said.starts_with(start), "{said}");
        }
    }

    #[test]
    fn versions_are_those_of_semver() {
        for good in ["1.2.3", "0.0.0", "1.0.0-rc.1+build.7", "1.0.0-x-y"] {
            assert!(is_version(good), "{good}");
        }
        for bad in ["1.2", "01.2.3", "1.2.3-", "1.2.3-01", "v1.2.3", "1.2.3+"] {
            assert!(!is_version(bad), "{bad}");
        }
    }

    #[test]
    fn a_policy_fits_its_capacity() {
        let said = |policy: Value| {
            let mut errors = Vec::new();
            request_policy(&json!({"value": "4"}), &policy, Path("p"), &mut errors);
            errors.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert!(said(json!({"default": "1", "validValues": ["1", "2"]})).is_empty());
        assert_eq!(said(json!({"default": "3", "validValues": ["2", "1", "8"]})).len(), 3);
        assert_eq!(
            said(json!({"default": "1", "validRange": {"min": "2", "max": "5"}})),
            [
                "p.validRange.min: Invalid value: \"1\": default is less than min: 2",
                "p.validRange.max: Invalid value: \"5\": max is larger than capacity value: 4",
            ]
        );
    }
}
