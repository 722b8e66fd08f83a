//! IPAddress (networking.k8s.io).

use jiff::Timestamp;
use model::names;
use serde_json::{Value, json};

use crate::behaviour::{Behaviour, Printer, Rules, kind};
use crate::print::cells::{age, name};
use crate::print::column::{self, AGE, NAME};
use crate::read;
use crate::validate;

/// The row.
pub(crate) static IP_ADDRESS: Behaviour = Behaviour {
    stored: Some(("networking.k8s.io", "v1")),
    rules: Rules {
        name: names::path_segment,
        always: validate::cluster::ip_address,
        update: validate::cluster::ip_address_update,
        ..Rules::NONE
    },
    printer: Printer { columns: &[NAME, column::text("ParentRef"), AGE], cells },
    ..kind("networking.k8s.io", "IPAddress")
};

fn cells(object: &Value, now: Timestamp) -> Vec<Value> {
    let parent = match read::at(object, "spec.parentRef") {
        None => "<none>".to_owned(),
        Some(p) => {
            let parts = [read::text(p, "resource"), read::text(p, "group")];
            let resource = parts.iter().filter(|t| !t.is_empty()).copied().collect::<Vec<_>>().join(".");
            let parts = [&resource, read::text(p, "namespace"), read::text(p, "name")];
            parts.iter().filter(|t| !t.is_empty()).copied().collect::<Vec<_>>().join("/")
        }
    };
    vec![name(object), json!(parent), age(object, now)]
}
