//! Admission policies: their expressions compile, and say what they should.

use serde_json::Value;

use crate::cel::Program;
use crate::cel::types::{BOOL, TEXT, Ty};
use crate::read;
use crate::validate::checks::Errors;
use crate::validate::error::FieldError;

fn names() -> Vec<(String, Ty)> {
    let dynamic = ["object", "oldObject", "request", "namespaceObject", "params", "variables"].map(|n| (n.to_owned(), Ty::Dyn));
    dynamic.into_iter().chain([("authorizer".to_owned(), Ty::Named("kubernetes.authorization.Authorizer"))]).collect()
}

/// MutatingAdmissionPolicyBinding: refused, because a bound policy that changes nothing would be worse than none.
pub(super) fn mutating_binding(_: &Value, errors: &mut Errors) {
    errors.push(FieldError::forbidden(
        "spec.policyName",
        "mutating admission policies are not enforced by this version; use a mutating webhook",
    ));
}

/// ValidatingAdmissionPolicy.
pub(super) fn validating(object: &Value, errors: &mut Errors) {
    let spec = &object["spec"];
    let (validations, annotations) = (read::list(spec, "validations"), read::list(spec, "auditAnnotations"));
    if validations.is_empty() && annotations.is_empty() {
        errors.push(FieldError::required("spec.validations", "validations or auditAnnotations must contain at least one item"));
    }
    if spec["matchConstraints"].is_null() {
        errors.push(FieldError::required("spec.matchConstraints", ""));
    } else if read::list(spec, "matchConstraints.resourceRules").is_empty() {
        errors.push(FieldError::required("spec.matchConstraints.resourceRules", ""));
    }
    if spec["paramKind"].is_object() {
        for field in ["apiVersion", "kind"] {
            if read::text(&spec["paramKind"], field).is_empty() {
                errors.push(FieldError::required(format!("spec.paramKind.{field}"), ""));
            }
        }
    }
    for (idx, variable) in read::list(spec, "variables").iter().enumerate() {
        expression(variable, "expression", &format!("spec.variables[{idx}]"), None, errors);
    }
    for (idx, condition) in read::list(spec, "matchConditions").iter().enumerate() {
        expression(condition, "expression", &format!("spec.matchConditions[{idx}]"), Some(&BOOL), errors);
    }
    for (idx, validation) in validations.iter().enumerate() {
        let path = format!("spec.validations[{idx}]");
        expression(validation, "expression", &path, Some(&BOOL), errors);
        if read::some_text(validation, "messageExpression").is_some_and(|m| !m.is_empty()) {
            expression(validation, "messageExpression", &path, Some(&TEXT), errors);
        }
        if let Some(reason) = read::some_text(validation, "reason")
            .filter(|r| !matches!(*r, "" | "Unauthorized" | "Forbidden" | "Invalid" | "RequestEntityTooLarge"))
        {
            errors.push(FieldError::not_supported(
                format!("{path}.reason"),
                reason,
                &["Forbidden", "Invalid", "RequestEntityTooLarge", "Unauthorized"],
            ));
        }
    }
    for (idx, annotation) in annotations.iter().enumerate() {
        let path = format!("spec.auditAnnotations[{idx}]");
        if read::text(annotation, "key").is_empty() {
            errors.push(FieldError::required(format!("{path}.key"), ""));
        }
        expression(annotation, "valueExpression", &path, None, errors);
    }
}

fn expression(of: &Value, field: &str, path: &str, wanted: Option<&Ty>, errors: &mut Errors) {
    let (at, text) = (format!("{path}.{field}"), read::text(of, field).trim());
    if text.is_empty() {
        errors.push(FieldError::required(at, format!("{field} is not specified")));
        return;
    }
    match Program::compile(text, &names()) {
        Err(why) => errors.push(FieldError::invalid(at, text, format!("compilation failed: {why}"))),
        Ok(program) => {
            if let Some(wanted) = wanted.filter(|w| program.result != **w && program.result != Ty::Dyn) {
                errors.push(FieldError::invalid(at, text, format!("must evaluate to {wanted}")));
            }
        }
    }
}
