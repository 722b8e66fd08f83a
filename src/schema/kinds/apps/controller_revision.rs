//! ControllerRevision (apps).

use jiff::Timestamp;
use model::meta;
use serde_json::{Value, json};

use crate::behaviour::{Behaviour, Printer, Rules, kind};
use crate::print::cells::{age, name};
use crate::print::column::{self, AGE, NAME};
use crate::print::workload::count;
use crate::validate;

/// The row.
pub(crate) static CONTROLLER_REVISION: Behaviour = Behaviour {
    rules: Rules {
        always: validate::workload::controller_revision,
        update: validate::workload::controller_revision_update,
        ..Rules::NONE
    },
    printer: Printer { columns: &[NAME, column::text("Controller"), column::integer("Revision"), AGE], cells },
    ..kind("apps", "ControllerRevision")
};

fn cells(object: &Value, now: Timestamp) -> Vec<Value> {
    let owner = meta::controller_of(object).map(|o| {
        let group = o.api_version.split_once('/').map_or("", |(group, _)| group);
        let kind = o.kind.to_lowercase();
        if group.is_empty() { format!("{kind}/{}", o.name) } else { format!("{kind}.{group}/{}", o.name) }
    });
    vec![name(object), json!(owner.unwrap_or_else(|| "<none>".to_owned())), count(object, "revision"), age(object, now)]
}
