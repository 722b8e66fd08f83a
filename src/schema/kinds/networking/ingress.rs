//! Ingress (networking.k8s.io).

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::behaviour::{Behaviour, Owners, Printer, Rules, kind};
use crate::print::cells::{age, load_balancer, name, or_none, three_and_more};
use crate::print::column::{self, AGE, NAME};
use crate::read;
use crate::validate;

/// The row.
pub(crate) static INGRESS: Behaviour = Behaviour {
    owners: Owners::CLIENTS.with_status().counts_spec(),
    rules: Rules {
        always: validate::ingress::ingress,
        new: validate::ingress::one_class,
        status: |new, _, errors| validate::status::balancer(new, errors),
        ..Rules::NONE
    },
    printer: Printer {
        columns: &[
            NAME,
            column::text("Class"),
            column::text("Hosts"),
            column::text("Address"),
            column::text("Ports"),
            AGE,
        ],
        cells,
    },
    ..kind("networking.k8s.io", "Ingress")
};

fn cells(object: &Value, now: Timestamp) -> Vec<Value> {
    let hosts: Vec<String> =
        read::list(object, "spec.rules").iter().filter_map(|r| read::some_text(r, "host")).map(str::to_owned).collect();
    let hosts = if hosts.is_empty() { "*".to_owned() } else { three_and_more(&hosts) };
    let ports = if read::list(object, "spec.tls").is_empty() { "80" } else { "80, 443" };
    vec![
        name(object),
        or_none(object, "spec.ingressClassName"),
        json!(hosts),
        json!(load_balancer(object).join(",")),
        json!(ports),
        age(object, now),
    ]
}
