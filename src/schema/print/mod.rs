//! Tables for `kubectl get`: upstream's columns and cells for every built-in kind.

pub mod cells;
pub mod column;
pub mod custom;
pub mod duration;
pub(crate) mod events;
pub(crate) mod pod;
pub(crate) mod workload;

use column::Column;
use jiff::Timestamp;
use serde_json::Value;

use crate::table::Resource;

/// The columns of a resource. Custom resources' own columns (additionalPrinterColumns) come from [`custom`].
pub fn columns(r: &Resource) -> &'static [Column] {
    r.behaviour.printer.columns
}

/// The wire form of the columns, those of a custom resource too.
pub fn column_values(r: &Resource) -> Vec<Value> {
    match &r.definition {
        Some(definition) => custom::columns(&definition.columns),
        None => columns(r).iter().map(Column::to_value).collect(),
    }
}

/// The cells of one object, as many as there are columns.
pub fn row(r: &Resource, object: &Value, now: Timestamp) -> Vec<Value> {
    if let Some(definition) = &r.definition {
        return custom::row(&definition.columns, object, now);
    }
    (r.behaviour.printer.cells)(object, now)
}

#[cfg(test)]
mod tests;
