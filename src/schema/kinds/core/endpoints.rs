//! Endpoints.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::behaviour::{Behaviour, Creation, Object, Printer, Rules, kind};
use crate::defaults::{each, put_zero};
use crate::print::cells::{age, name, three_and_more};
use crate::print::column::{self, AGE, NAME};
use crate::read;
use crate::validate;

/// The row.
pub(crate) static ENDPOINTS: Behaviour = Behaviour {
    defaults,
    rules: Rules { always: validate::endpoints::endpoints, ..Rules::NONE },
    printer: Printer { columns: &[NAME, column::text("Endpoints"), AGE], cells },
    creation: Creation::CreateOrUpdate,
    ..kind("", "Endpoints")
};

fn defaults(object: &mut Object) {
    for subset in each(object, "subsets") {
        each(subset, "ports").for_each(|p| put_zero(p, "protocol", "TCP"));
    }
}

fn host_port(ip: &str, port: i64) -> String {
    if ip.contains(':') { format!("[{ip}]:{port}") } else { format!("{ip}:{port}") }
}

fn cells(object: &Value, now: Timestamp) -> Vec<Value> {
    let mut all = Vec::new();
    for subset in read::list(object, "subsets") {
        let ips = || read::list(subset, "addresses").iter().map(|a| read::text(a, "ip"));
        let ports = read::list(subset, "ports");
        if ports.is_empty() {
            all.extend(ips().map(str::to_owned));
        }
        for port in ports {
            all.extend(ips().map(|ip| host_port(ip, read::number(port, "port"))));
        }
    }
    vec![name(object), json!(three_and_more(&all)), age(object, now)]
}
