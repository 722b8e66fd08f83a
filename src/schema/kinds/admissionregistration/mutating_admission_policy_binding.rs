//! MutatingAdmissionPolicyBinding (admissionregistration.k8s.io).

use super::{POLICY_BINDING, admission_binding, policy_binding};
use crate::behaviour::{Behaviour, Finalizers, Owners, Printer, Rules, kind};
use crate::validate;

/// The row.
pub(crate) static MUTATING_ADMISSION_POLICY_BINDING: Behaviour = Behaviour {
    stored: Some(("admissionregistration.k8s.io", "v1")),
    defaults: admission_binding,
    owners: Owners::CLIENTS.counts_spec().conditional(),
    rules: Rules { finalizers: Finalizers::Any, always: validate::policy::mutating_binding, ..Rules::NONE },
    printer: Printer { columns: POLICY_BINDING, cells: policy_binding },
    ..kind("admissionregistration.k8s.io", "MutatingAdmissionPolicyBinding")
};
