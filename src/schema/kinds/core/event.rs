//! Event.

use crate::behaviour::{Behaviour, Creation, Deletion, Finalizers, Lifetime, Printer, Rules, kind};
use crate::convert;
use crate::print::events;
use crate::validate;

/// The row.
pub(crate) static EVENT: Behaviour = Behaviour {
    selectable: &[
        "involvedObject.kind",
        "involvedObject.namespace",
        "involvedObject.name",
        "involvedObject.uid",
        "involvedObject.apiVersion",
        "involvedObject.resourceVersion",
        "involvedObject.fieldPath",
        "reason",
        "reportingComponent",
        "source",
        "type",
    ],
    rules: Rules { finalizers: Finalizers::Any, always: validate::events::event, ..Rules::NONE },
    printer: Printer { columns: events::COLUMNS, cells: events::cells },
    convert: convert::events::between,
    deletion: Deletion { lifetime: Lifetime::EventTtl, ..Deletion::PLAIN },
    creation: Creation::CreateOrUpdate,
    ..kind("", "Event")
};
