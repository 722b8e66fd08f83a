//! resource.k8s.io: v1beta1 has a request's fields right in it and a device's under `basic`; later versions differ.

use serde_json::{Map, Value};

use crate::behaviour::{Object, Versions};

const KEPT: [&str; 3] = ["name", "firstAvailable", "exactly"];

/// A claim of either form in the other one.
pub(crate) fn claim(map: &mut Object, versions: Versions<'_>) {
    if let (Some(form), Some(spec)) = (wanted(versions), spec(map)) {
        requests(spec, form);
    }
}

/// The same of a claim's template.
pub(crate) fn template(map: &mut Object, versions: Versions<'_>) {
    if let (Some(form), Some(spec)) = (wanted(versions), spec(map).and_then(spec)) {
        requests(spec, form);
    }
}

/// The same of a slice's devices.
pub(crate) fn slice(map: &mut Object, versions: Versions<'_>) {
    if let (Some(form), Some(spec)) = (wanted(versions), spec(map)) {
        each(spec.get_mut("devices")).for_each(|d| device(d, form));
    }
}

/// Where the fields of a request and of a device stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// Right in it.
    Flat,
    /// In a struct of it.
    Nested,
}

/// The form that is wanted, if the versions differ in it.
fn wanted(versions: Versions<'_>) -> Option<Form> {
    let form = |version: &str| if version.ends_with("/v1beta1") { Form::Flat } else { Form::Nested };
    Some(form(versions.to)).filter(|wanted| *wanted != form(versions.from))
}

fn spec(map: &mut Object) -> Option<&mut Object> {
    map.get_mut("spec").and_then(Value::as_object_mut)
}

fn each(list: Option<&mut Value>) -> impl Iterator<Item = &mut Map<String, Value>> {
    list.and_then(Value::as_array_mut).into_iter().flatten().filter_map(Value::as_object_mut)
}

fn requests(spec: &mut Map<String, Value>, form: Form) {
    for request in each(spec.get_mut("devices").and_then(|d| d.get_mut("requests"))) {
        if form == Form::Flat {
            if let Some(Value::Object(exactly)) = request.remove("exactly") {
                request.extend(exactly);
            }
        } else if !request.contains_key("firstAvailable") {
            nest(request, "exactly", |key| !KEPT.contains(&key));
        }
    }
}

fn device(d: &mut Map<String, Value>, form: Form) {
    if form == Form::Flat {
        nest(d, "basic", |key| key != "name");
    } else if let Some(Value::Object(basic)) = d.remove("basic") {
        d.extend(basic);
    }
}

fn nest(map: &mut Map<String, Value>, under: &str, moves: impl Fn(&str) -> bool) {
    let keys: Vec<String> = map.keys().filter(|k| moves(k)).cloned().collect();
    let inner: Map<String, Value> = keys.into_iter().filter_map(|k| map.remove_entry(&k)).collect();
    map.insert(under.to_owned(), Value::Object(inner));
}
