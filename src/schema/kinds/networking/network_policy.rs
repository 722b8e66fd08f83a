//! NetworkPolicy (networking.k8s.io).

use jiff::Timestamp;
use model::labels::format_label_selector;
use serde_json::{Value, json};

use crate::behaviour::{Behaviour, Object, Owners, Printer, Rules, kind};
use crate::defaults::{each, is_empty, make, put};
use crate::print::cells::{age, name};
use crate::print::column::{self, AGE, NAME};
use crate::read;
use crate::validate;

/// The row.
pub(crate) static NETWORK_POLICY: Behaviour = Behaviour {
    defaults,
    owners: Owners::CLIENTS.counts_spec(),
    rules: Rules { always: validate::network::network_policy, ..Rules::NONE },
    printer: Printer { columns: &[NAME, column::text("Pod-Selector"), AGE], cells },
    ..kind("networking.k8s.io", "NetworkPolicy")
};

fn defaults(object: &mut Object) {
    let spec = make(object, "spec");
    for direction in ["ingress", "egress"] {
        for rule in each(spec, direction) {
            each(rule, "ports").for_each(|p| put(p, "protocol", "TCP"));
        }
    }
    if is_empty(spec, "policyTypes") {
        let types = if is_empty(spec, "egress") { json!(["Ingress"]) } else { json!(["Ingress", "Egress"]) };
        spec.insert("policyTypes".into(), types);
    }
}

fn cells(object: &Value, now: Timestamp) -> Vec<Value> {
    vec![name(object), json!(format_label_selector(read::at(object, "spec.podSelector"))), age(object, now)]
}
