//! Tables for `kubectl get`: upstream's columns and cells for every built-in kind.

pub mod cells;
mod cluster;
pub mod column;
pub mod custom;
pub mod duration;
mod network;
mod pod;
mod policy;
mod storage;
mod workload;

use jiff::Timestamp;
use serde_json::Value;

use crate::table::Resource;
use cells::{name_and_age, name_and_created};
use column::{AGE, CREATED_AT, Column, NAME, Printer, printer};

const DEFAULT: Printer = printer("", "", &[NAME, CREATED_AT], name_and_created);
const CUSTOM: Printer = printer("", "", &[NAME, AGE], name_and_age);

fn printer_of(r: &Resource) -> &'static Printer {
    if r.custom {
        return &CUSTOM;
    }
    let groups =
        [pod::PRINTERS, workload::PRINTERS, network::PRINTERS, cluster::PRINTERS, storage::PRINTERS, policy::PRINTERS];
    let wanted = |p: &&Printer| p.kind == r.kind && p.group == r.group;
    groups.into_iter().flatten().find(wanted).unwrap_or(&DEFAULT)
}

/// The columns of a resource. Custom resources' own columns (additionalPrinterColumns) come from [`custom`].
pub fn columns(r: &Resource) -> &'static [Column] {
    printer_of(r).columns
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
    (printer_of(r).cells)(object, now)
}

#[cfg(test)]
mod tests;
