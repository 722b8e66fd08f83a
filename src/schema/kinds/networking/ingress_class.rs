//! IngressClass (networking.k8s.io).

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::behaviour::{Behaviour, Object, Owners, Printer, Rules, kind};
use crate::defaults::{at, make, put};
use crate::print::cells::{age, name};
use crate::print::column::{self, AGE, NAME};
use crate::read;
use crate::validate;

/// The row.
pub(crate) static INGRESS_CLASS: Behaviour = Behaviour {
    defaults,
    owners: Owners::CLIENTS.counts_spec(),
    rules: Rules {
        always: validate::ingress::ingress_class,
        update: validate::ingress::ingress_class_update,
        ..Rules::NONE
    },
    printer: Printer { columns: &[NAME, column::text("Controller"), column::text("Parameters"), AGE], cells },
    ..kind("networking.k8s.io", "IngressClass")
};

fn defaults(object: &mut Object) {
    if let Some(parameters) = at(make(object, "spec"), "parameters") {
        put(parameters, "scope", "Cluster");
    }
}

fn cells(object: &Value, now: Timestamp) -> Vec<Value> {
    let parameters = match read::at(object, "spec.parameters") {
        None => "<none>".to_owned(),
        Some(p) => {
            let group = read::some_text(p, "apiGroup").map(|g| format!(".{g}")).unwrap_or_default();
            format!("{}{group}/{}", read::text(p, "kind"), read::text(p, "name"))
        }
    };
    vec![name(object), json!(read::text(object, "spec.controller")), json!(parameters), age(object, now)]
}
