//! ComponentStatus.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::behaviour::{Behaviour, Printer, ServerPart, kind};
use crate::print::cells::name;
use crate::print::column::{self, NAME};
use crate::read;

/// The row.
pub(crate) static COMPONENT_STATUS: Behaviour = Behaviour {
    printer: Printer {
        columns: &[NAME, column::text("Status"), column::text("Message"), column::text("Error")],
        cells,
    },
    server: ServerPart::Components,
    ..kind("", "ComponentStatus")
};

fn cells(object: &Value, _now: Timestamp) -> Vec<Value> {
    let healthy = read::typed(read::list(object, "conditions"), "Healthy");
    let status = match healthy.map(|c| read::text(c, "status")) {
        Some("True") => "Healthy",
        Some(_) => "Unhealthy",
        None => "Unknown",
    };
    let field = |f: &str| json!(healthy.map_or("", |c| read::text(c, f)));
    vec![name(object), json!(status), field("message"), field("error")]
}
