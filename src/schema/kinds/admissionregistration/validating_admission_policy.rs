//! ValidatingAdmissionPolicy (admissionregistration.k8s.io).

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{admission_policy, param_kind};
use crate::behaviour::{Behaviour, Finalizers, Owners, Printer, Rules, kind};
use crate::print::cells::{age, name};
use crate::print::column::{self, AGE, NAME};
use crate::read;
use crate::validate;

/// The row.
pub(crate) static VALIDATING_ADMISSION_POLICY: Behaviour = Behaviour {
    defaults: admission_policy,
    owners: Owners::CLIENTS.with_status().status_keeps_metadata().counts_spec().conditional(),
    rules: Rules {
        finalizers: Finalizers::Any,
        always: validate::policy::validating,
        status: |new, _, errors| validate::status::conditions(new, errors),
        ..Rules::NONE
    },
    printer: Printer { columns: &[NAME, column::integer("Validations"), column::text("ParamKind"), AGE], cells },
    ..kind("admissionregistration.k8s.io", "ValidatingAdmissionPolicy")
};

fn cells(object: &Value, now: Timestamp) -> Vec<Value> {
    vec![name(object), json!(read::list(object, "spec.validations").len()), param_kind(object), age(object, now)]
}
