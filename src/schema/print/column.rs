//! The columns of a table.

use serde_json::{Value, json};

/// One column of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    /// Title; kubectl prints it in capitals.
    pub name: &'static str,
    /// `string`, `integer` or `boolean`.
    pub kind: &'static str,
    /// `name` for the column that names the row, else empty.
    pub format: &'static str,
    /// 0 always, 1 only with `-o wide`.
    pub priority: i32,
}

impl Column {
    /// The wire form of `metav1.TableColumnDefinition`.
    pub fn to_value(&self) -> Value {
        json!({"name": self.name, "type": self.kind, "format": self.format, "description": "",
            "priority": self.priority})
    }
}

pub(crate) const fn text(name: &'static str) -> Column {
    Column { name, kind: "string", format: "", priority: 0 }
}

pub(crate) const fn integer(name: &'static str) -> Column {
    Column { name, kind: "integer", format: "", priority: 0 }
}

pub(crate) const fn boolean(name: &'static str) -> Column {
    Column { name, kind: "boolean", format: "", priority: 0 }
}

pub(crate) const fn wide(name: &'static str) -> Column {
    Column { name, kind: "string", format: "", priority: 1 }
}

pub(crate) const NAME: Column = Column { name: "Name", kind: "string", format: "name", priority: 0 };
pub(crate) const AGE: Column = text("Age");
pub(crate) const CREATED_AT: Column = Column { name: "Created At", kind: "date", format: "", priority: 0 };
