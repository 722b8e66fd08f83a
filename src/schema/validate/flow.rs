//! FlowSchemas and priority levels.

use std::collections::BTreeSet;

use model::meta;
use model::names;
use serde_json::{Value, json};

use crate::read;
use crate::validate::checks::{Errors, invalid_each};
use crate::validate::error::FieldError;
use crate::validate::path::Path;

const PRECEDENCE_MAX: i64 = 10_000;
const QUEUES_MAX: i64 = 10_000_000;
/// Bits of hash that shuffle sharding has.
const ENTROPY_BITS_MAX: i64 = 60;
const VERBS: [&str; 9] = ["create", "delete", "deletecollection", "get", "list", "patch", "proxy", "update", "watch"];

/// FlowSchema.
pub(crate) fn schema(object: &Value, errors: &mut Errors) {
    let (name, spec) = (meta::name(object), read::at(object, "spec").unwrap_or(&Value::Null));
    let precedence = read::number(spec, "matchingPrecedence");
    let mut wrong = |why: String| errors.push(FieldError::invalid("spec.matchingPrecedence", precedence, why));
    if precedence <= 0 {
        wrong("must be a positive value".to_owned());
    }
    if precedence > PRECEDENCE_MAX {
        wrong(format!("must not be greater than {PRECEDENCE_MAX}"));
    }
    if precedence == 1 && name != "exempt" {
        wrong("only the schema named 'exempt' may have matchingPrecedence 1".to_owned());
    }
    if let Some(method) = read::at(spec, "distinguisherMethod")
        && !["ByNamespace", "ByUser"].contains(&read::text(method, "type"))
    {
        errors.push(FieldError::not_supported(
            "spec.distinguisherMethod.type",
            method.clone(),
            &["ByNamespace", "ByUser"],
        ));
    }
    match read::text(spec, "priorityLevelConfiguration.name") {
        "" => {
            errors.push(FieldError::required("spec.priorityLevelConfiguration.name", "must reference a priority level"))
        }
        level => invalid_each(
            Path("spec.priorityLevelConfiguration.name"),
            level,
            names::dns_subdomain_errors(level),
            errors,
        ),
    }
    for (idx, rule) in read::list(spec, "rules").iter().enumerate() {
        rules(rule, Path(&format!("spec.rules[{idx}]")), errors);
    }
    if fixed_schema(name).is_some_and(|fixed| fixed != *spec) {
        errors.push(FieldError::invalid("spec", spec.clone(), format!("spec of '{name}' must equal the fixed value")));
    }
    conditions(object, errors);
}

/// The two schemas that nobody may change.
fn fixed_schema(name: &str) -> Option<Value> {
    let group = |group: &str| json!({"kind": "Group", "group": {"name": group}});
    let everything = |subjects: Vec<Value>| {
        json!([{"subjects": subjects,
            "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "clusterScope": true,
                "namespaces": ["*"]}],
            "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}]}])
    };
    match name {
        "exempt" => Some(json!({"priorityLevelConfiguration": {"name": "exempt"}, "matchingPrecedence": 1,
            "rules": everything(vec![group("system:masters")])})),
        "catch-all" => Some(json!({"priorityLevelConfiguration": {"name": "catch-all"}, "matchingPrecedence": 10000,
            "distinguisherMethod": {"type": "ByUser"},
            "rules": everything(vec![group("system:unauthenticated"), group("system:authenticated")])})),
        _ => None,
    }
}

fn rules(rule: &Value, path: Path<'_>, errors: &mut Errors) {
    let subjects = read::list(rule, "subjects");
    if subjects.is_empty() {
        errors.push(FieldError::required(format!("{path}.subjects"), "subjects must contain at least one value"));
    }
    for (idx, subject) in subjects.iter().enumerate() {
        self::subject(subject, Path(&format!("{path}.subjects[{idx}]")), errors);
    }
    let (resources, urls) = (read::list(rule, "resourceRules"), read::list(rule, "nonResourceRules"));
    if resources.is_empty() && urls.is_empty() {
        errors
            .push(FieldError::required(path, "at least one of resourceRules and nonResourceRules has to be non-empty"));
    }
    for (idx, rule) in resources.iter().enumerate() {
        resource_rule(rule, Path(&format!("{path}.resourceRules[{idx}]")), errors);
    }
    for (idx, rule) in urls.iter().enumerate() {
        url_rule(rule, Path(&format!("{path}.nonResourceRules[{idx}]")), errors);
    }
}

const SUBJECTS: [(&str, &str); 3] = [("Group", "group"), ("ServiceAccount", "serviceAccount"), ("User", "user")];

fn subject(of: &Value, path: Path<'_>, errors: &mut Errors) {
    let kind = read::text(of, "kind");
    let Some((_, own)) = SUBJECTS.iter().find(|(k, _)| *k == kind) else {
        let supported: Vec<&str> = SUBJECTS.iter().map(|(kind, _)| *kind).collect();
        errors.push(FieldError::not_supported(format!("{path}.kind"), kind, &supported));
        return;
    };
    let here = format!("{path}.{own}");
    match read::at(of, own) {
        None => errors.push(FieldError::required(here, format!("{own} is required when subject kind is '{kind}'"))),
        Some(who) => {
            let name = read::text(who, "name");
            if name.is_empty() {
                errors.push(FieldError::required(format!("{here}.name"), ""));
            } else if kind == "ServiceAccount" && name != "*" {
                invalid_each(Path(&format!("{here}.name")), name, names::dns_subdomain_errors(name), errors);
            }
            match read::text(who, "namespace") {
                _ if kind != "ServiceAccount" => {}
                "" => errors.push(FieldError::required(
                    format!("{here}.namespace"),
                    "must specify namespace for service account",
                )),
                ns => invalid_each(Path(&format!("{here}.namespace")), ns, names::dns_label_errors(ns), errors),
            }
        }
    }
    for (other, field) in SUBJECTS.iter().filter(|(k, field)| *k != kind && read::at(of, field).is_some()) {
        errors.push(FieldError::forbidden(
            format!("{path}.{field}"),
            format!("{field} is forbidden when subject kind is not '{other}'"),
        ));
    }
}

/// A list that holds `*` holds nothing else.
fn alone(values: &[&str], path: Path<'_>, what: &str, errors: &mut Errors) {
    if values.len() > 1 && values.contains(&"*") {
        errors.push(FieldError::invalid(
            path,
            values.to_vec(),
            format!("if '*' is present, must not specify other {what}"),
        ));
    }
}

fn verbs(rule: &Value, path: Path<'_>, errors: &mut Errors) {
    let (verbs, path) = (read::texts(rule, "verbs"), format!("{path}.verbs"));
    if verbs.is_empty() {
        errors.push(FieldError::required(path.as_str(), "verbs must contain at least one value"));
    } else if !verbs.contains(&"*") && verbs.iter().any(|v| !VERBS.contains(v)) {
        errors.push(FieldError::not_supported(path.as_str(), verbs.clone(), &VERBS));
    }
    alone(&verbs, Path(&path), "verbs", errors);
}

fn resource_rule(rule: &Value, path: Path<'_>, errors: &mut Errors) {
    verbs(rule, path, errors);
    for (field, one, many) in [("apiGroups", "api group", "api groups"), ("resources", "resource", "resources")] {
        let (values, path) = (read::texts(rule, field), format!("{path}.{field}"));
        if values.is_empty() {
            errors.push(FieldError::required(path.as_str(), format!("resource rules must supply at least one {one}")));
        }
        alone(&values, Path(&path), many, errors);
    }
    let (namespaces, path) = (read::texts(rule, "namespaces"), format!("{path}.namespaces"));
    if namespaces.is_empty() && !read::flag(rule, "clusterScope") {
        let why = "resource rules that are not cluster scoped must supply at least one namespace";
        errors.push(FieldError::required(path, why));
    } else if namespaces.contains(&"*") {
        alone(&namespaces, Path(&path), "namespaces", errors);
    } else {
        for (idx, ns) in namespaces.into_iter().enumerate() {
            let whys = names::dns_label_errors(ns).into_iter();
            let whys =
                whys.map(|why| format!("each member of this list must be '*' or a DNS-1123 label; {why}")).collect();
            invalid_each(Path(&format!("{path}[{idx}]")), ns, whys, errors);
        }
    }
}

fn url_rule(rule: &Value, path: Path<'_>, errors: &mut Errors) {
    verbs(rule, path, errors);
    let (urls, path) = (read::texts(rule, "nonResourceURLs"), format!("{path}.nonResourceURLs"));
    if urls.is_empty() {
        errors.push(FieldError::required(path, "nonResourceURLs must contain at least one value"));
    } else if urls.contains(&"*") {
        alone(&urls, Path(&path), "non-resource URLs", errors);
    } else {
        for (idx, url) in urls.into_iter().enumerate() {
            if let Some(why) = url_error(url) {
                errors.push(FieldError::invalid(format!("{path}[{idx}]"), url, why));
            }
        }
    }
}

fn url_error(url: &str) -> Option<&'static str> {
    let stars = url.matches('*').count();
    match url {
        "" => Some("must not be empty"),
        "/" => None,
        _ if !url.starts_with('/') => Some("must start with slash"),
        _ if url.contains(' ') => Some("must not contain white-space"),
        _ if url.contains("//") => Some("must not contain double slash"),
        _ if stars > 1 || (stars == 1 && !url.ends_with("/*")) => Some("wildcard can only do suffix matching"),
        _ => None,
    }
}

/// PriorityLevelConfiguration.
pub(crate) fn level(object: &Value, errors: &mut Errors) {
    let (name, spec) = (meta::name(object), read::at(object, "spec").unwrap_or(&Value::Null));
    let key = "flowcontrol.k8s.io/v1beta3-preserve-zero-concurrency-shares";
    if meta::annotation(object, key).is_some() {
        errors.push(FieldError::forbidden("metadata.annotations", format!("annotation '{key}' is forbidden")));
    }
    let kind = read::text(spec, "type");
    if (name == "exempt") != (kind == "Exempt") {
        errors.push(FieldError::invalid("spec.type", kind, "must be 'Exempt' if and only if `name` is 'exempt'"));
    }
    let (limited, exempt) = (read::at(spec, "limited"), read::at(spec, "exempt"));
    match kind {
        "Exempt" => {
            if limited.is_some() {
                errors.push(FieldError::forbidden("spec.limited", "must be nil if the type is not Limited"));
            }
            if let Some(exempt) = exempt {
                shares(exempt, Path("spec.exempt"), errors);
            }
        }
        "Limited" => {
            if exempt.is_some() {
                errors.push(FieldError::forbidden("spec.exempt", "must be nil if the type is Limited"));
            }
            match limited {
                None => errors.push(FieldError::required("spec.limited", "must not be empty when type is Limited")),
                Some(limited) => self::limited(limited, errors),
            }
        }
        other => errors.push(FieldError::not_supported("spec.type", other, &["Exempt", "Limited"])),
    }
    fixed_level(name, spec, errors);
    conditions(object, errors);
}

fn fixed_level(name: &str, spec: &Value, errors: &mut Errors) {
    if name == "exempt" && read::text(spec, "type") != "Exempt" {
        let why = "spec of 'exempt' except the 'spec.exempt' field must equal the fixed value";
        errors.push(FieldError::invalid("spec", spec.clone(), why));
    }
    let fixed = json!({"type": "Limited",
        "limited": {"nominalConcurrencyShares": 5, "lendablePercent": 0, "limitResponse": {"type": "Reject"}}});
    if name == "catch-all" && *spec != fixed {
        errors.push(FieldError::invalid("spec", spec.clone(), "spec of 'catch-all' must equal the fixed value"));
    }
}

fn shares(of: &Value, path: Path<'_>, errors: &mut Errors) {
    if let Some(n) = read::integer(of, "nominalConcurrencyShares").filter(|n| *n < 0) {
        errors.push(FieldError::invalid(
            format!("{path}.nominalConcurrencyShares"),
            n,
            "must be a non-negative integer",
        ));
    }
    if let Some(n) = read::integer(of, "lendablePercent").filter(|n| !(0..=100).contains(n)) {
        errors.push(FieldError::invalid(format!("{path}.lendablePercent"), n, "must be between 0 and 100, inclusive"));
    }
}

fn limited(of: &Value, errors: &mut Errors) {
    shares(of, Path("spec.limited"), errors);
    if let Some(n) = read::integer(of, "borrowingLimitPercent").filter(|n| *n < 0) {
        errors.push(FieldError::invalid(
            "spec.limited.borrowingLimitPercent",
            n,
            "if specified, must be a non-negative integer",
        ));
    }
    let path = "spec.limited.limitResponse";
    let queuing = read::at(of, "limitResponse.queuing");
    match (read::text(of, "limitResponse.type"), queuing) {
        ("Reject", Some(_)) => {
            errors.push(FieldError::forbidden(
                format!("{path}.queuing"),
                "must be nil if limited.limitResponse.type is not Limited",
            ));
        }
        ("Reject", None) => {}
        ("Queue", None) => {
            errors.push(FieldError::required(
                format!("{path}.queuing"),
                "must not be empty if limited.limitResponse.type is Limited",
            ));
        }
        ("Queue", Some(queuing)) => queues(queuing, Path(&format!("{path}.queuing")), errors),
        (other, _) => errors.push(FieldError::not_supported(format!("{path}.type"), other, &["Queue", "Reject"])),
    }
}

fn queues(of: &Value, path: Path<'_>, errors: &mut Errors) {
    let (length, queues, hand) =
        (read::number(of, "queueLengthLimit"), read::number(of, "queues"), read::number(of, "handSize"));
    let mut wrong =
        |field: &str, n: i64, why: String| errors.push(FieldError::invalid(format!("{path}.{field}"), n, why));
    if length <= 0 {
        wrong("queueLengthLimit", length, "must be positive".to_owned());
    }
    if queues <= 0 {
        wrong("queues", queues, "must be positive".to_owned());
    } else if queues > QUEUES_MAX {
        wrong("queues", queues, format!("must not be greater than {QUEUES_MAX}"));
    }
    if hand <= 0 {
        wrong("handSize", hand, "must be positive".to_owned());
    } else if hand > queues {
        wrong("handSize", hand, format!("should not be greater than queues ({queues})"));
    } else if entropy_bits(queues, hand) > ENTROPY_BITS_MAX {
        let why = format!(
            "required entropy bits of deckSize {queues} and handSize {hand} should not be greater than \
            {ENTROPY_BITS_MAX}"
        );
        wrong("handSize", hand, why);
    }
}

/// Bits of hash needed to deal `hand` cards out of a deck, as upstream counts them.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    reason = "both are below 10^7, the result below 10^9"
)]
fn entropy_bits(deck: i64, hand: i64) -> i64 {
    ((deck as f64).log2() * hand as f64).ceil() as i64
}

fn conditions(object: &Value, errors: &mut Errors) {
    let mut seen = BTreeSet::new();
    for (idx, condition) in read::list(object, "status.conditions").iter().enumerate() {
        let (kind, path) = (read::text(condition, "type"), format!("status.conditions[{idx}].type"));
        if !seen.insert(kind) {
            errors.push(FieldError::duplicate(path.as_str(), kind));
        }
        if kind.is_empty() {
            errors.push(FieldError::required(path, ""));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(check: fn(&Value, &mut Errors), name: &str, spec: Value) -> Vec<String> {
        let mut errors = Vec::new();
        check(&json!({"metadata": {"name": name}, "spec": spec}), &mut errors);
        errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_schema_says_who_and_what() {
        let spec = json!({"matchingPrecedence": 1, "priorityLevelConfiguration": {"name": "l"}, "rules": [{
            "subjects": [{"kind": "User", "user": {"name": ""}, "group": {"name": "g"}}],
            "resourceRules": [{"verbs": ["*", "get"], "apiGroups": [], "resources": ["pods"], "namespaces": ["A"]}],
            "nonResourceRules": [{"verbs": ["eat"], "nonResourceURLs": ["x"]}]}]});
        let said = wrong(schema, "s", spec);
        let starts = [
            "spec.matchingPrecedence: Invalid value: 1: only the schema named 'exempt'",
            "spec.rules[0].subjects[0].user.name: Required value",
            "spec.rules[0].subjects[0].group: Forbidden: group is forbidden when subject kind is not 'Group'",
            "spec.rules[0].resourceRules[0].verbs: Invalid value: [\"*\",\"get\"]: if '*' is present, must not specify \
            other verbs",
            "spec.rules[0].resourceRules[0].apiGroups: Required value: resource rules must supply at least one api \
            group",
            "spec.rules[0].resourceRules[0].namespaces[0]: Invalid value: \"A\": each member of this list",
            "spec.rules[0].nonResourceRules[0].verbs: Unsupported value: [\"eat\"]",
            "spec.rules[0].nonResourceRules[0].nonResourceURLs[0]: Invalid value: \"x\": must start with slash",
        ];
        assert_eq!(said.len(), starts.len(), "{said:#?}");
        for (said, start) in said.iter().zip(starts) {
            assert!(said.starts_with(start), "{said}");
        }
    }

    #[test]
    fn what_is_fixed_stays() {
        assert_eq!(wrong(schema, "exempt", fixed_schema("exempt").unwrap()), Vec::<String>::new());
        let mut spec = fixed_schema("catch-all").unwrap();
        assert_eq!(wrong(schema, "catch-all", spec.clone()), Vec::<String>::new());
        spec["matchingPrecedence"] = json!(9);
        assert!(wrong(schema, "catch-all", spec)[0].ends_with("spec of 'catch-all' must equal the fixed value"));
    }

    #[test]
    fn hands_are_dealt_out_of_decks() {
        let queuing = |queues: i64, hand: i64| {
            json!({"type": "Limited", "limited": {"nominalConcurrencyShares": 1, "limitResponse": {"type": "Queue",
                "queuing": {"queues": queues, "handSize": hand, "queueLengthLimit": 50}}}})
        };
        assert!(wrong(level, "l", queuing(64, 8)).is_empty());
        assert!(wrong(level, "l", queuing(4, 8))[0].ends_with("should not be greater than queues (4)"));
        assert!(
            wrong(level, "l", queuing(512, 10))[0]
                .contains("required entropy bits of deckSize 512 and handSize 10 should not be greater than 60")
        );
        assert_eq!(
            wrong(level, "l", json!({"type": "Limited"})),
            ["spec.limited: Required value: must not be empty when type is Limited"]
        );
    }
}
