//! Tables for `kubectl get`: upstream's columns and cells for every built-in kind.

mod cluster;
pub mod custom;
pub mod duration;
mod network;
mod pod;
mod policy;
mod storage;
mod workload;

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::read;
use crate::table::Resource;
use model::meta;

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
        json!({"name": self.name, "type": self.kind, "format": self.format, "description": "", "priority": self.priority})
    }
}

const fn text(name: &'static str) -> Column {
    Column { name, kind: "string", format: "", priority: 0 }
}

const fn integer(name: &'static str) -> Column {
    Column { name, kind: "integer", format: "", priority: 0 }
}

const fn boolean(name: &'static str) -> Column {
    Column { name, kind: "boolean", format: "", priority: 0 }
}

const fn wide(name: &'static str) -> Column {
    Column { name, kind: "string", format: "", priority: 1 }
}

const NAME: Column = Column { name: "Name", kind: "string", format: "name", priority: 0 };
const AGE: Column = text("Age");
const CREATED_AT: Column = Column { name: "Created At", kind: "date", format: "", priority: 0 };

/// How one kind is printed. A row's first cell is always the name, unless the kind has another order.
struct Printer {
    group: &'static str,
    kind: &'static str,
    columns: &'static [Column],
    cells: fn(&Value, Timestamp) -> Vec<Value>,
}

const fn printer(
    group: &'static str,
    kind: &'static str,
    columns: &'static [Column],
    cells: fn(&Value, Timestamp) -> Vec<Value>,
) -> Printer {
    Printer { group, kind, columns, cells }
}

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

fn name_and_created(object: &Value, _now: Timestamp) -> Vec<Value> {
    vec![name(object), json!(meta::creation_timestamp(object))]
}

fn name_and_age(object: &Value, now: Timestamp) -> Vec<Value> {
    vec![name(object), age(object, now)]
}

fn name(object: &Value) -> Value {
    json!(meta::name(object))
}

fn age(object: &Value, now: Timestamp) -> Value {
    json!(duration::since(meta::creation_timestamp(object), now))
}

/// The text at a path, or `<none>`.
fn or_none(object: &Value, path: &str) -> Value {
    json!(read::some_text(object, path).unwrap_or("<none>"))
}

fn or_unset(object: &Value, path: &str) -> Value {
    json!(read::some_text(object, path).unwrap_or("<unset>"))
}

/// `a=b,c=d`, or `<none>`.
fn labels_text(labels: Option<&serde_json::Map<String, Value>>) -> String {
    let pairs: Vec<String> =
        labels.into_iter().flatten().map(|(k, v)| format!("{k}={}", v.as_str().unwrap_or_default())).collect();
    if pairs.is_empty() { "<none>".to_owned() } else { pairs.join(",") }
}

/// Names and images of a pod template's containers.
fn containers(object: &Value, template_spec: &str) -> (Value, Value) {
    let list = read::list(object, &format!("{template_spec}.containers"));
    let join = |field: &str| json!(list.iter().map(|c| read::text(c, field)).collect::<Vec<_>>().join(","));
    (join("name"), join("image"))
}

/// The first three, and how many more.
fn three_and_more(list: &[String]) -> String {
    match list.len() {
        0 => "<none>".to_owned(),
        n if n > 3 => format!("{} + {} more...", list[..3].join(","), n - 3),
        _ => list.join(","),
    }
}

#[cfg(test)]
mod tests;
