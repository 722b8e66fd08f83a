//! MutatingAdmissionPolicy (admissionregistration.k8s.io).

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{admission_policy, param_kind};
use crate::behaviour::{Behaviour, Finalizers, Owners, Printer, Rules, kind};
use crate::print::cells::{age, name};
use crate::print::column::{self, AGE, NAME};
use crate::read;
use crate::validate;

/// The row.
pub(crate) static MUTATING_ADMISSION_POLICY: Behaviour = Behaviour {
    stored: Some(("admissionregistration.k8s.io", "v1")),
    defaults: admission_policy,
    owners: Owners::CLIENTS.counts_spec().conditional(),
    rules: Rules { finalizers: Finalizers::Any, always: validate::policy::mutating, ..Rules::NONE },
    printer: Printer { columns: &[NAME, column::integer("Mutations"), column::text("ParamKind"), AGE], cells },
    ..kind("admissionregistration.k8s.io", "MutatingAdmissionPolicy")
};

fn cells(object: &Value, now: Timestamp) -> Vec<Value> {
    vec![name(object), json!(read::list(object, "spec.mutations").len()), param_kind(object), age(object, now)]
}
