//! Policies of jobs: indexes, failures and success.

use std::collections::BTreeSet;

use model::names;
use serde_json::{Value, json};

use crate::read;
use crate::validate::checks::{Errors, invalid_each, not_negative};
use crate::validate::error::FieldError;
use crate::validate::path::Path;

const RULES_MAX: usize = 20;
const EXIT_CODES_MAX: usize = 255;
const PARALLELISM_MAX: i64 = 100_000;
const MANY_AT_ONCE_MAX: i64 = 10_000;
const MANAGER_MAX: usize = 63;
const INDEXES_BYTES_MAX: usize = 64 * 1024;

/// The fields that go together.
pub(super) fn modes(spec: &Value, path: Path<'_>, errors: &mut Errors) {
    let number = |field: &str| read::integer(spec, field);
    let invalid = |field: &str, n: i64, why: &str| FieldError::invalid(format!("{path}.{field}"), n, why);
    not_negative(spec, path, "maxFailedIndexes", errors);
    let (failed, limit) = (number("maxFailedIndexes"), number("backoffLimitPerIndex"));
    if failed.is_some() && limit.is_none() {
        errors.push(FieldError::required(format!("{path}.backoffLimitPerIndex"), "when maxFailedIndexes is specified"));
    }
    if let Some(manager) = read::at(spec, "managedBy").and_then(Value::as_str) {
        managed_by(manager, Path(&format!("{path}.managedBy")), errors);
    }
    let mode = read::at(spec, "completionMode").and_then(Value::as_str);
    match mode.unwrap_or("NonIndexed") {
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
            large(spec, path, errors);
        }
        mode => {
            if mode != "NonIndexed" {
                errors.push(FieldError::not_supported(
                    format!("{path}.completionMode"),
                    mode,
                    &["NonIndexed", "Indexed"],
                ));
            }
            for (field, n) in [("backoffLimitPerIndex", limit), ("maxFailedIndexes", failed)] {
                if let Some(n) = n.filter(|_| mode == "NonIndexed") {
                    errors.push(invalid(field, n, "requires indexed completion mode"));
                }
            }
            if let Some(policy) = read::at(spec, "successPolicy") {
                errors.push(FieldError::invalid(
                    format!("{path}.successPolicy"),
                    shown(policy),
                    "requires indexed completion mode",
                ));
            }
        }
    }
    let replacement = read::at(spec, "podReplacementPolicy").and_then(Value::as_str);
    let supported: &[&str] =
        if read::at(spec, "podFailurePolicy").is_some() { &["Failed"] } else { &["Failed", "TerminatingOrFailed"] };
    if let Some(replacement) = replacement.filter(|policy| !supported.contains(policy)) {
        errors.push(FieldError::not_supported(format!("{path}.podReplacementPolicy"), replacement, supported));
    }
    if let Some(policy) = read::at(spec, "podFailurePolicy") {
        failure_policy(spec, policy, Path(&format!("{path}.podFailurePolicy.rules")), errors);
    }
    success_rules(spec, path, errors);
}

/// The rules of a policy of success.
fn success_rules(spec: &Value, path: Path<'_>, errors: &mut Errors) {
    let rules = read::list(spec, "successPolicy.rules");
    if read::at(spec, "successPolicy").is_some() && rules.is_empty() && read::text(spec, "completionMode") == "Indexed"
    {
        let why = "at least one rules must be specified when the successPolicy is specified";
        errors.push(FieldError::required(format!("{path}.successPolicy.rules"), why));
    }
    if rules.len() > RULES_MAX {
        errors.push(FieldError::too_many(format!("{path}.successPolicy.rules"), rules.len(), RULES_MAX));
    }
    if let Some(completions) =
        read::integer(spec, "completions").filter(|_| read::text(spec, "completionMode") == "Indexed")
    {
        for (idx, rule) in rules.iter().enumerate() {
            success_rule(rule, completions, Path(&format!("{path}.successPolicy.rules[{idx}]")), errors);
        }
    }
}

/// Upstream shows every field of its own type, given or not.
fn shown(policy: &Value) -> Value {
    let rule = |rule: &Value| {
        let of = |field: &str| read::at(rule, field).cloned().unwrap_or(Value::Null);
        json!({"SucceededIndexes": of("succeededIndexes"), "SucceededCount": of("succeededCount")})
    };
    let rules =
        read::at(policy, "rules").and_then(Value::as_array).map(|rules| rules.iter().map(rule).collect::<Vec<_>>());
    json!({ "Rules": rules })
}

/// `example.com/manager`: somebody else than the job controller.
fn managed_by(manager: &str, path: Path<'_>, errors: &mut Errors) {
    match manager.split_once('/').filter(|(host, rest)| !host.is_empty() && !rest.is_empty()) {
        None if manager.is_empty() => errors.push(FieldError::required(path, "")),
        None => {
            errors.push(FieldError::invalid(path, manager, "must be a domain-prefixed path (such as \"acme.io/foo\")"))
        }
        Some((host, rest)) => {
            invalid_each(path, host, names::dns_subdomain_errors(host), errors);
            if !rest.bytes().all(|b| b.is_ascii_alphanumeric() || b"/-._~%!$&'()*+,;=:".contains(&b)) {
                let why = "Invalid path (regex used for validation is '[A-Za-z0-9/\\-._~%!$&'()*+,;=:]+')";
                errors.push(FieldError::invalid(path, rest, why));
            }
        }
    }
    if manager.len() > MANAGER_MAX {
        errors.push(FieldError::too_long(path, MANAGER_MAX));
    }
}

/// Very many indexes are only for those who bound their failures.
fn large(spec: &Value, path: Path<'_>, errors: &mut Errors) {
    let number = |field: &str| read::integer(spec, field);
    let mut invalid =
        |field: &str, n: i64, why: String| errors.push(FieldError::invalid(format!("{path}.{field}"), n, why));
    let failed = number("maxFailedIndexes");
    if let Some(n) = failed.filter(|n| *n > PARALLELISM_MAX) {
        invalid("maxFailedIndexes", n, format!("must be less than or equal to {PARALLELISM_MAX}"));
    }
    if number("completions").is_none_or(|n| n <= PARALLELISM_MAX) || number("backoffLimitPerIndex").is_none() {
        return;
    }
    let why = format!(
        "must be less than or equal to {MANY_AT_ONCE_MAX} when completions are above {PARALLELISM_MAX} and used with \
        backoff limit per index"
    );
    for field in ["parallelism", "maxFailedIndexes"] {
        if let Some(n) = number(field).filter(|n| *n > MANY_AT_ONCE_MAX) {
            invalid(field, n, why.clone());
        }
    }
    if failed.is_none() {
        let why = format!("must be specified when completions is above {PARALLELISM_MAX}");
        errors.push(FieldError::required(format!("{path}.maxFailedIndexes"), why));
    }
}

/// One way in which an indexed job with so many completions may succeed early.
fn success_rule(rule: &Value, completions: i64, path: Path<'_>, errors: &mut Errors) {
    let (indexes, count) =
        (read::at(rule, "succeededIndexes").and_then(Value::as_str), read::integer(rule, "succeededCount"));
    if indexes.is_none() && count.is_none() {
        errors.push(FieldError::required(path, "at least one of succeededCount or succeededIndexes must be specified"));
    }
    let mut total = 0;
    if let Some(text) = indexes {
        let field = format!("{path}.succeededIndexes");
        if text.len() > INDEXES_BYTES_MAX {
            errors.push(FieldError::too_long(field.as_str(), INDEXES_BYTES_MAX));
        }
        match n_indexes(text, completions) {
            Ok(n) => total = n,
            Err(why) => errors.push(FieldError::invalid(field, text, format!("error parsing succeededIndexes: {why}"))),
        }
    }
    let Some(count) = count else { return };
    not_negative(rule, path, "succeededCount", errors);
    for (limit, of) in [
        (Some(completions), "the number of specified completions"),
        (indexes.map(|_| total), "the number of indexes in the specified succeededIndexes field"),
    ] {
        if let Some(limit) = limit.filter(|limit| count > *limit) {
            let why = format!("must be less than or equal to {limit} ({of})");
            errors.push(FieldError::invalid(format!("{path}.succeededCount"), count, why));
        }
    }
}

/// A list of indexes that cannot be read, in upstream's words.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
enum IndexesError {
    #[error("cannot convert string to integer for index: {0:?}")]
    NoNumber(String),
    #[error("too large index: {0:?}")]
    TooLarge(String),
    #[error("non-increasing order, previous: {previous}, current: {current}")]
    Order { previous: i64, current: i64 },
    #[error(
        "the fragment {0:?} violates the requirement that an index interval can have at most two parts separated by \
         '-'"
    )]
    Interval(String),
}

/// How many indexes `1,3-5` names.
fn n_indexes(text: &str, completions: i64) -> Result<i64, IndexesError> {
    let index = |text: &str| match text.parse::<i64>() {
        Err(_) => Err(IndexesError::NoNumber(text.to_owned())),
        Ok(n) if n >= completions => Err(IndexesError::TooLarge(text.to_owned())),
        Ok(n) => Ok(n),
    };
    let order = |previous, current| Err(IndexesError::Order { previous, current });
    let (mut total, mut last) = (0, None);
    for part in text.split(',').filter(|_| !text.is_empty()) {
        let ends: Vec<&str> = part.split('-').collect();
        if ends.len() > 2 {
            return Err(IndexesError::Interval(part.to_owned()));
        }
        let first = index(ends[0])?;
        let end = ends.get(1).map(|end| index(end)).transpose()?;
        if let Some(end) = end.filter(|end| first >= *end) {
            return order(first, end);
        }
        if let Some(last) = last.filter(|last| *last >= first) {
            return order(last, first);
        }
        let end = end.unwrap_or(first);
        total += end - first + 1;
        last = Some(end);
    }
    Ok(total)
}

fn failure_policy(spec: &Value, policy: &Value, path: Path<'_>, errors: &mut Errors) {
    let rules = read::list(policy, "rules");
    if rules.len() > RULES_MAX {
        errors.push(FieldError::too_many(path, rules.len(), RULES_MAX));
    }
    let lists = ["template.spec.containers", "template.spec.initContainers"];
    let containers: BTreeSet<&str> =
        lists.iter().flat_map(|l| read::list(spec, l)).map(|c| read::text(c, "name")).collect();
    for (idx, rule) in rules.iter().enumerate() {
        let path = format!("{path}[{idx}]");
        let action = read::text(rule, "action");
        match action {
            "" => {
                let why = "valid values: [\"Count\" \"FailIndex\" \"FailJob\" \"Ignore\"]";
                errors.push(FieldError::required(format!("{path}.action"), why));
            }
            "FailIndex" if read::at(spec, "backoffLimitPerIndex").is_none() => {
                errors.push(FieldError::invalid(
                    format!("{path}.action"),
                    action,
                    "requires the backoffLimitPerIndex to be set",
                ));
            }
            "Count" | "FailIndex" | "FailJob" | "Ignore" => {}
            other => errors.push(FieldError::not_supported(
                format!("{path}.action"),
                other,
                &["Count", "FailIndex", "FailJob", "Ignore"],
            )),
        }
        let (codes, conditions) = (read::at(rule, "onExitCodes"), read::list(rule, "onPodConditions"));
        if let Some(codes) = codes {
            exit_codes(codes, &containers, Path(&format!("{path}.onExitCodes")), errors);
        }
        for (at, pattern) in conditions.iter().enumerate() {
            let path = format!("{path}.onPodConditions[{at}]");
            let (kind, status) = (read::text(pattern, "type"), read::text(pattern, "status"));
            invalid_each(Path(&format!("{path}.type")), kind, names::qualified_name_errors(kind), errors);
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

fn exit_codes(of: &Value, containers: &BTreeSet<&str>, path: Path<'_>, errors: &mut Errors) {
    let operator = read::text(of, "operator");
    match operator {
        "" => errors.push(FieldError::required(format!("{path}.operator"), "valid values: [\"In\" \"NotIn\"]")),
        "In" | "NotIn" => {}
        other => errors.push(FieldError::not_supported(format!("{path}.operator"), other, &["In", "NotIn"])),
    }
    if let Some(name) = read::at(of, "containerName").and_then(Value::as_str).filter(|n| !containers.contains(n)) {
        let why = "must be one of the container or initContainer names in the pod template";
        errors.push(FieldError::invalid(format!("{path}.containerName"), name, why));
    }
    let values: Vec<i64> = read::list(of, "values").iter().filter_map(Value::as_i64).collect();
    let field = format!("{path}.values");
    if values.is_empty() {
        let given = read::at(of, "values").cloned().unwrap_or(Value::Null);
        errors.push(FieldError::invalid(field.as_str(), given, "at least one value is required"));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indexes_rise_and_stay_below_the_completions() {
        assert_eq!(n_indexes("0,2-4", 5), Ok(4));
        assert_eq!(n_indexes("", 5), Ok(0));
        assert_eq!(n_indexes("3,2", 5), Err(IndexesError::Order { previous: 3, current: 2 }));
        assert_eq!(n_indexes("5", 5), Err(IndexesError::TooLarge("5".to_owned())));
        assert_eq!(n_indexes("a", 5), Err(IndexesError::NoNumber("a".to_owned())));
    }

    #[test]
    fn a_manager_is_named_with_its_domain() {
        let said = |text: &str| {
            let mut errors = Vec::new();
            managed_by(text, Path("m"), &mut errors);
            errors.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert!(said("a.b/c").is_empty());
        assert_eq!(said(""), ["m: Required value"]);
        assert_eq!(said("x"), ["m: Invalid value: \"x\": must be a domain-prefixed path (such as \"acme.io/foo\")"]);
        assert!(said("a.b/c d")[0].contains("Invalid path"));
    }
}
