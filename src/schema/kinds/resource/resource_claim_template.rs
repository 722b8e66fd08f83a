//! ResourceClaimTemplate (resource.k8s.io).

use super::device_requests;
use crate::behaviour::{Behaviour, Printer, Rules, kind};
use crate::convert;
use crate::defaults::make;
use crate::print::cells::name_and_age;
use crate::print::column::{AGE, NAME};
use crate::validate;

/// The row.
pub(crate) static RESOURCE_CLAIM_TEMPLATE: Behaviour = Behaviour {
    stored: Some(("resource.k8s.io", "v1")),
    defaults: |object| device_requests(make(make(object, "spec"), "spec")),
    rules: Rules { always: validate::devices::template, update: validate::devices::spec_update, ..Rules::NONE },
    printer: Printer { columns: &[NAME, AGE], cells: name_and_age },
    convert: convert::devices::template,
    ..kind("resource.k8s.io", "ResourceClaimTemplate")
};
