//! DeviceClass (resource.k8s.io).

use crate::behaviour::{Behaviour, Owners, Printer, Rules, kind};
use crate::print::cells::name_and_age;
use crate::print::column::{AGE, NAME};
use crate::validate;

/// The row.
pub(crate) static DEVICE_CLASS: Behaviour = Behaviour {
    stored: Some(("resource.k8s.io", "v1")),
    owners: Owners::CLIENTS.counts_spec(),
    rules: Rules { always: validate::devices::class, ..Rules::NONE },
    printer: Printer { columns: &[NAME, AGE], cells: name_and_age },
    ..kind("resource.k8s.io", "DeviceClass")
};
