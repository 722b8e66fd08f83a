//! Secret.

use base64::Engine as _;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::entries;
use crate::behaviour::{Behaviour, Object, Printer, Rules, kind};
use crate::defaults::{make, put_zero};
use crate::print::cells::{age, name};
use crate::print::column::{self, AGE, NAME};
use crate::read;
use crate::validate;

/// The row.
pub(crate) static SECRET: Behaviour = Behaviour {
    selectable: &["type"],
    defaults,
    rules: Rules { always: validate::config::secret, update: validate::config::secret_update, ..Rules::NONE },
    printer: Printer { columns: &[NAME, column::text("Type"), column::integer("Data"), AGE], cells },
    ..kind("", "Secret")
};

fn defaults(object: &mut Object) {
    put_zero(object, "type", "Opaque");
    // stringData is write-only: it overrides data and is never stored.
    let Some(Value::Object(plain)) = object.remove("stringData") else { return };
    for (key, value) in plain {
        let encoded = base64::engine::general_purpose::STANDARD.encode(value.as_str().unwrap_or_default());
        make(object, "data").insert(key, encoded.into());
    }
}

fn cells(object: &Value, now: Timestamp) -> Vec<Value> {
    vec![name(object), json!(read::text(object, "type")), json!(entries(object, "data")), age(object, now)]
}
