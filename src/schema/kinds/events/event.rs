//! Event (events.k8s.io).

use crate::behaviour::{Behaviour, Finalizers, Printer, Rules, kind};
use crate::convert;
use crate::print::events;
use crate::validate;

/// The row.
pub(crate) static EVENT: Behaviour = Behaviour {
    stored: Some(("", "v1")),
    selectable: &[
        "regarding.kind",
        "regarding.namespace",
        "regarding.name",
        "regarding.uid",
        "regarding.apiVersion",
        "regarding.resourceVersion",
        "regarding.fieldPath",
        "reason",
        "reportingController",
        "type",
    ],
    rules: Rules { finalizers: Finalizers::Any, requested: validate::events::strict, ..Rules::NONE },
    printer: Printer { columns: events::COLUMNS, cells: events::cells },
    convert: convert::events::between,
    stored_field: convert::events::core_field,
    ..kind("events.k8s.io", "Event")
};
