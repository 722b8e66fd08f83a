//! LimitRange.

use serde_json::Value;

use crate::behaviour::{Behaviour, Creation, Object, Rules, kind};
use crate::defaults::{each, make, text};
use crate::validate;

/// The row.
pub(crate) static LIMIT_RANGE: Behaviour = Behaviour {
    defaults,
    rules: Rules { always: validate::cluster::limit_range, ..Rules::NONE },
    creation: Creation::CreateOrUpdate,
    ..kind("", "LimitRange")
};

fn defaults(object: &mut Object) {
    for item in each(make(object, "spec"), "limits") {
        if text(item, "type") != "Container" {
            continue;
        }
        fill(item, "default", "max");
        fill(item, "defaultRequest", "default");
        fill(item, "defaultRequest", "min");
    }
}

fn fill(item: &mut Object, to: &str, from: &str) {
    let Some(Value::Object(source)) = item.get(from).cloned() else { return };
    if source.is_empty() {
        return;
    }
    let target = make(item, to);
    for (name, quantity) in source {
        target.entry(name).or_insert(quantity);
    }
}
