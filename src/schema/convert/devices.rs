//! resource.k8s.io: v1beta1 has a request's fields right in it and a device's under `basic`; later versions differ.

use serde_json::{Map, Value};

const KEPT: [&str; 3] = ["name", "firstAvailable", "exactly"];

pub(super) fn between(map: &mut Map<String, Value>, kind: &str, from_flat: bool, to_flat: bool) {
    if from_flat == to_flat {
        return;
    }
    let spec = map.get_mut("spec").and_then(Value::as_object_mut);
    match (kind, spec) {
        ("ResourceClaim", Some(spec)) => requests(spec, to_flat),
        ("ResourceClaimTemplate", Some(spec)) => {
            if let Some(spec) = spec.get_mut("spec").and_then(Value::as_object_mut) {
                requests(spec, to_flat);
            }
        }
        ("ResourceSlice", Some(spec)) => each(spec.get_mut("devices")).for_each(|d| device(d, to_flat)),
        _ => {}
    }
}

fn each(list: Option<&mut Value>) -> impl Iterator<Item = &mut Map<String, Value>> {
    list.and_then(Value::as_array_mut).into_iter().flatten().filter_map(Value::as_object_mut)
}

fn requests(spec: &mut Map<String, Value>, to_flat: bool) {
    for request in each(spec.get_mut("devices").and_then(|d| d.get_mut("requests"))) {
        if to_flat {
            if let Some(Value::Object(exactly)) = request.remove("exactly") {
                request.extend(exactly);
            }
        } else if !request.contains_key("firstAvailable") {
            nest(request, "exactly", |key| !KEPT.contains(&key));
        }
    }
}

fn device(d: &mut Map<String, Value>, to_flat: bool) {
    if to_flat {
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
