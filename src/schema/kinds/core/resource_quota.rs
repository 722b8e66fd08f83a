//! ResourceQuota.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::behaviour::{Behaviour, Deletion, Owners, Printer, Rules, kind};
use crate::print::cells::{age, name};
use crate::print::column::{self, AGE, NAME};
use crate::read;
use crate::validate;

/// The row.
pub(crate) static RESOURCE_QUOTA: Behaviour = Behaviour {
    owners: Owners::CLIENTS.with_status(),
    rules: Rules { always: validate::quota::quota, update: validate::quota::quota_update, ..Rules::NONE },
    printer: Printer { columns: &[NAME, column::text("Request"), column::text("Limit"), AGE], cells },
    deletion: Deletion::RETURNED,
    ..kind("", "ResourceQuota")
};

fn cells(object: &Value, now: Timestamp) -> Vec<Value> {
    let (mut requests, mut limits) = (Vec::new(), Vec::new());
    for (resource, hard) in read::map(object, "status.hard").into_iter().flatten() {
        let used =
            read::map(object, "status.used").and_then(|u| u.get(resource)).and_then(Value::as_str).unwrap_or("0");
        let text = format!("{resource}: {used}/{}", hard.as_str().unwrap_or_default());
        if resource.starts_with("limits.") { limits.push(text) } else { requests.push(text) }
    }
    vec![name(object), json!(requests.join(", ")), json!(limits.join(", ")), age(object, now)]
}
