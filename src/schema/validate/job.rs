//! What jobs say about indexes, failures and success.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::read;
use crate::validate::checks::{Errors, invalid_each, not_negative};
use crate::validate::error::FieldError;
use crate::validate::names;

const RULES_MAX: usize = 20;
const EXIT_CODES_MAX: usize = 255;
const PARALLELISM_MAX: i64 = 100_000;

/// The fields that go together.
pub(super) fn modes(spec: &Value, path: &str, errors: &mut Errors) {
    let number = |field: &str| read::integer(spec, field);
    let invalid = |field: &str, n: i64, why: &str| FieldError::invalid(format!("{path}.{field}"), n, why);
    not_negative(spec, path, "maxFailedIndexes", errors);
    let (failed, limit) = (number("maxFailedIndexes"), number("backoffLimitPerIndex"));
    if failed.is_some() && limit.is_none() {
        errors.push(FieldError::required(format!("{path}.backoffLimitPerIndex"), "when maxFailedIndexes is specified"));
    }
    match read::text(spec, "completionMode") {
        "Indexed" => {
            if number("completions").is_none() {
                errors.push(FieldError::required(format!("{path}.completions"), "when completion mode is Indexed"));
            }
            if let Some(n) = number("parallelism").filter(|n| *n > PARALLELISM_MAX) {
                let why = format!("must be less than or equal to {PARALLELISM_MAX} when completion mode is Indexed");
                errors.push(invalid("parallelism", n, &why));
            }
            if let (Some(failed), Some(all)) = (failed, number("completions"))
                && failed > all
            {
                errors.push(invalid("maxFailedIndexes", failed, "must be less than or equal to completions"));
            }
        }
        mode => {
            if !matches!(mode, "" | "NonIndexed") {
                errors.push(FieldError::not_supported(format!("{path}.completionMode"), mode, &["NonIndexed", "Indexed"]));
            }
            for (field, n) in [("backoffLimitPerIndex", limit), ("maxFailedIndexes", failed)] {
                if let Some(n) = n {
                    errors.push(invalid(field, n, "requires indexed completion mode"));
                }
            }
            if let Some(policy) = read::at(spec, "successPolicy") {
                errors.push(FieldError::invalid(format!("{path}.successPolicy"), policy.clone(), "requires indexed completion mode"));
            }
        }
    }
    let replacement = read::text(spec, "podReplacementPolicy");
    let supported: &[&str] = if read::at(spec, "podFailurePolicy").is_some() { &["Failed"] } else { &["Failed", "TerminatingOrFailed"] };
    if !replacement.is_empty() && !supported.contains(&replacement) {
        errors.push(FieldError::not_supported(format!("{path}.podReplacementPolicy"), replacement, supported));
    }
    if let Some(policy) = read::at(spec, "podFailurePolicy") {
        failure_policy(spec, policy, &format!("{path}.podFailurePolicy.rules"), errors);
    }
    let rules = read::list(spec, "successPolicy.rules");
    if read::at(spec, "successPolicy").is_some() && rules.is_empty() && read::text(spec, "completionMode") == "Indexed" {
        let why = "at least one rules must be specified when the successPolicy is specified";
        errors.push(FieldError::required(format!("{path}.successPolicy.rules"), why));
    }
}

fn failure_policy(spec: &Value, policy: &Value, path: &str, errors: &mut Errors) {
    let rules = read::list(policy, "rules");
    if rules.len() > RULES_MAX {
        errors.push(FieldError::too_many(path, rules.len(), RULES_MAX));
    }
    let lists = ["template.spec.containers", "template.spec.initContainers"];
    let containers: BTreeSet<&str> = lists.iter().flat_map(|l| read::list(spec, l)).map(|c| read::text(c, "name")).collect();
    for (idx, rule) in rules.iter().enumerate() {
        let path = format!("{path}[{idx}]");
        let action = read::text(rule, "action");
        match action {
            "" => {
                let why = "valid values: [\"Count\" \"FailIndex\" \"FailJob\" \"Ignore\"]";
                errors.push(FieldError::required(format!("{path}.action"), why));
            }
            "FailIndex" if read::at(spec, "backoffLimitPerIndex").is_none() => {
                errors.push(FieldError::invalid(format!("{path}.action"), action, "requires the backoffLimitPerIndex to be set"));
            }
            "Count" | "FailIndex" | "FailJob" | "Ignore" => {}
            other => errors.push(FieldError::not_supported(format!("{path}.action"), other, &["Count", "FailIndex", "FailJob", "Ignore"])),
        }
        let (codes, conditions) = (read::at(rule, "onExitCodes"), read::list(rule, "onPodConditions"));
        if let Some(codes) = codes {
            exit_codes(codes, &containers, &format!("{path}.onExitCodes"), errors);
        }
        for (at, pattern) in conditions.iter().enumerate() {
            let path = format!("{path}.onPodConditions[{at}]");
            let (kind, status) = (read::text(pattern, "type"), read::text(pattern, "status"));
            invalid_each(&format!("{path}.type"), kind, names::qualified_name_errors(kind), errors);
            if !matches!(status, "True" | "False" | "Unknown") {
                errors.push(FieldError::not_supported(format!("{path}.status"), status, &["False", "True", "Unknown"]));
            }
        }
        let mut without_value = |why: &str| {
            let mut error = FieldError::invalid(path.as_str(), Value::Null, why);
            error.bad_value = None;
            errors.push(error);
        };
        match (codes.is_some(), conditions.is_empty()) {
            (true, false) => without_value("specifying both OnExitCodes and OnPodConditions is not supported"),
            (false, true) => without_value("specifying one of OnExitCodes and OnPodConditions is required"),
            _ => {}
        }
    }
}

fn exit_codes(of: &Value, containers: &BTreeSet<&str>, path: &str, errors: &mut Errors) {
    let operator = read::text(of, "operator");
    match operator {
        "" => errors.push(FieldError::required(format!("{path}.operator"), "valid values: [\"In\" \"NotIn\"]")),
        "In" | "NotIn" => {}
        other => errors.push(FieldError::not_supported(format!("{path}.operator"), other, &["In", "NotIn"])),
    }
    if let Some(name) = read::some_text(of, "containerName").filter(|n| !containers.contains(n)) {
        let why = "must be one of the container or initContainer names in the pod template";
        errors.push(FieldError::invalid(format!("{path}.containerName"), name, why));
    }
    let values: Vec<i64> = read::list(of, "values").iter().filter_map(Value::as_i64).collect();
    let field = format!("{path}.values");
    if values.is_empty() {
        errors.push(FieldError::invalid(field.as_str(), Vec::<i64>::new(), "at least one value is required"));
    } else if values.len() > EXIT_CODES_MAX {
        errors.push(FieldError::too_many(field.as_str(), values.len(), EXIT_CODES_MAX));
    }
    let mut seen = BTreeSet::new();
    for (idx, value) in values.iter().enumerate() {
        let here = format!("{field}[{idx}]");
        if operator == "In" && *value == 0 {
            errors.push(FieldError::invalid(here.as_str(), *value, "must not be 0 for the In operator"));
        }
        if !seen.insert(*value) {
            errors.push(FieldError::duplicate(here, *value));
        }
    }
    if !values.is_sorted() {
        errors.push(FieldError::invalid(field, values, "must be ordered"));
    }
}
