//! EndpointSlice (discovery.k8s.io).

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::behaviour::{Behaviour, Generation, Object, Owners, Printer, Rules, kind};
use crate::defaults::{each, put};
use crate::print::cells::{age, name, three_and_more};
use crate::print::column::{self, AGE, NAME};
use crate::read;
use crate::validate;

/// The row.
pub(crate) static ENDPOINT_SLICE: Behaviour = Behaviour {
    defaults,
    owners: Owners::CLIENTS.generation(Generation::Counts(&[
        &["addressType"],
        &["endpoints"],
        &["ports"],
        &["metadata", "labels"],
    ])),
    rules: Rules { always: validate::endpoints::slice, update: validate::endpoints::slice_update, ..Rules::NONE },
    printer: Printer {
        columns: &[NAME, column::text("AddressType"), column::text("Ports"), column::text("Endpoints"), AGE],
        cells,
    },
    ..kind("discovery.k8s.io", "EndpointSlice")
};

fn defaults(object: &mut Object) {
    for port in each(object, "ports") {
        put(port, "name", "");
        put(port, "protocol", "TCP");
    }
}

fn cells(object: &Value, now: Timestamp) -> Vec<Value> {
    let ports: Vec<String> = read::list(object, "ports")
        .iter()
        .map(|p| read::integer(p, "port").map_or_else(|| "*".to_owned(), |n| n.to_string()))
        .collect();
    let addresses: Vec<String> =
        read::list(object, "endpoints").iter().flat_map(|e| read::texts(e, "addresses")).map(str::to_owned).collect();
    let unset = |list: &[String]| if list.is_empty() { "<unset>".to_owned() } else { three_and_more(list) };
    vec![
        name(object),
        json!(read::text(object, "addressType")),
        json!(unset(&ports)),
        json!(unset(&addresses)),
        age(object, now),
    ]
}
