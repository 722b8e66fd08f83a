//! Lease (coordination.k8s.io).

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::behaviour::{Behaviour, Creation, Finalizers, Owners, Prepare, Printer, Rules, kind};
use crate::print::cells::{age, name};
use crate::print::column::{self, AGE, NAME};
use crate::read;
use crate::strategy::keep::drop_field;
use crate::validate;

/// The row.
pub(crate) static LEASE: Behaviour = Behaviour {
    owners: Owners::CLIENTS.conditional(),
    prepare: Prepare { create: |new| uncoordinated(new, &Value::Null), update: uncoordinated, ..Prepare::NONE },
    rules: Rules { finalizers: Finalizers::Any, always: validate::coordination::lease, ..Rules::NONE },
    printer: Printer { columns: &[NAME, column::text("Holder"), AGE], cells },
    creation: Creation::CreateOrUpdate,
    ..kind("coordination.k8s.io", "Lease")
};

/// Coordinated leader election is off, here as by default upstream: its fields are dropped unless they are there.
fn uncoordinated(new: &mut Value, old: &Value) {
    for path in [&["spec", "strategy"], &["spec", "preferredHolder"]] {
        if path.iter().try_fold(old, |at, key| at.get(key)).is_none() {
            drop_field(new, path);
        }
    }
}

fn cells(object: &Value, now: Timestamp) -> Vec<Value> {
    vec![name(object), json!(read::text(object, "spec.holderIdentity")), age(object, now)]
}
