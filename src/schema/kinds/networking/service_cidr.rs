//! ServiceCIDR (networking.k8s.io).

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::behaviour::{Behaviour, Owners, Printer, Rules, kind};
use crate::print::cells::{age, name};
use crate::print::column::{self, AGE, NAME};
use crate::read;
use crate::validate;

/// The row.
pub(crate) static SERVICE_CIDR: Behaviour = Behaviour {
    stored: Some(("networking.k8s.io", "v1")),
    owners: Owners::CLIENTS.with_status().status_keeps_metadata(),
    rules: Rules {
        always: validate::network::service_cidr,
        update: validate::network::service_cidr_update,
        ..Rules::NONE
    },
    printer: Printer { columns: &[NAME, column::text("CIDRs"), AGE], cells },
    ..kind("networking.k8s.io", "ServiceCIDR")
};

fn cells(object: &Value, now: Timestamp) -> Vec<Value> {
    vec![name(object), json!(read::texts(object, "spec.cidrs").join(",")), age(object, now)]
}
