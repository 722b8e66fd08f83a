//! ResourceClaim (resource.k8s.io).

use jiff::Timestamp;
use model::meta;
use serde_json::{Value, json};

use super::device_requests;
use crate::behaviour::{Behaviour, Owners, Printer, Rules, kind};
use crate::convert;
use crate::defaults::make;
use crate::print::cells::{age, name};
use crate::print::column::{self, AGE, NAME};
use crate::read;
use crate::validate;

/// The row.
pub(crate) static RESOURCE_CLAIM: Behaviour = Behaviour {
    stored: Some(("resource.k8s.io", "v1")),
    defaults: |object| device_requests(make(object, "spec")),
    owners: Owners::CLIENTS.with_status().status_keeps_metadata(),
    rules: Rules {
        always: validate::devices::claim,
        update: validate::devices::spec_update,
        status: validate::devices::claim_status,
        ..Rules::NONE
    },
    printer: Printer { columns: &[NAME, column::text("State"), AGE], cells },
    convert: convert::devices::claim,
    ..kind("resource.k8s.io", "ResourceClaim")
};

fn cells(object: &Value, now: Timestamp) -> Vec<Value> {
    let mut states = Vec::new();
    if meta::deletion_timestamp(object).is_some() {
        states.push("deleted");
    }
    let allocated = read::at(object, "status.allocation").is_some();
    if allocated {
        states.push("allocated");
    }
    if !read::list(object, "status.reservedFor").is_empty() {
        states.push("reserved");
    } else if !allocated {
        states.push("pending");
    }
    vec![name(object), json!(states.join(",")), age(object, now)]
}
