//! Whom webhooks and admission policies want to see: rules, selectors, conditions, and where a webhook is.

use std::collections::BTreeSet;

use cel::admission::{self, Extras};
use cel::types::{BOOL, Ty};
use cel::{CompileError, Program};
use model::names;
use serde_json::Value;

use crate::read;
use crate::validate::checks::{Errors, invalid_each, label_selector};
use crate::validate::error::FieldError;
use crate::validate::path::Path;

const OPERATIONS: [&str; 5] = ["*", "CONNECT", "CREATE", "DELETE", "UPDATE"];
const CONDITIONS_MAX: usize = 64;

/// Whether a field has to be there.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Presence {
    Required,
    Optional,
}

/// The field is one of `supported`, which is sorted as upstream prints it.
pub(super) fn one_of(
    of: &Value,
    path: Path<'_>,
    (field, presence): (&str, Presence),
    supported: &[&str],
    errors: &mut Errors,
) {
    let here = path.child(field);
    match read::some_text(of, field) {
        None | Some("") if presence == Presence::Required => errors.push(FieldError::required(here, "")),
        Some(text) if !supported.contains(&text) => errors.push(FieldError::not_supported(here, text, supported)),
        _ => {}
    }
}

/// A list that stands at `path` has items; a wildcard has none beside it. `what` names the items.
fn wildcard_alone(all: &[&str], path: Path<'_>, what: &str, errors: &mut Errors) {
    if all.is_empty() {
        errors.push(FieldError::required(path, ""));
    }
    if all.len() > 1 && all.contains(&"*") {
        let why = format!("if '*' is present, must not specify other {what}");
        errors.push(FieldError::invalid(path, all, why));
    }
}

/// A `RuleWithOperations`.
pub(super) fn rule(rule: &Value, path: Path<'_>, errors: &mut Errors) {
    let list = |field: &str| (read::texts(rule, field), path.child(field));
    let (operations, here) = list("operations");
    wildcard_alone(&operations, Path(&here), "operations", errors);
    for (idx, operation) in read::texts(rule, "operations").into_iter().enumerate() {
        if !OPERATIONS.contains(&operation) {
            errors.push(FieldError::not_supported(format!("{path}.operations[{idx}]"), operation, &OPERATIONS));
        }
    }
    let ((groups, of_groups), (versions, of_versions)) = (list("apiGroups"), list("apiVersions"));
    wildcard_alone(&groups, Path(&of_groups), "API groups", errors);
    wildcard_alone(&versions, Path(&of_versions), "API versions", errors);
    for (idx, version) in read::texts(rule, "apiVersions").into_iter().enumerate() {
        if version.is_empty() {
            errors.push(FieldError::required(format!("{path}.apiVersions[{idx}]"), ""));
        }
    }
    resources(&read::texts(rule, "resources"), Path(&path.child("resources")), errors);
    one_of(rule, path, ("scope", Presence::Optional), &["*", "Cluster", "Namespaced"], errors);
}

fn resources(all: &[&str], path: Path<'_>, errors: &mut Errors) {
    if all.is_empty() {
        errors.push(FieldError::required(path, ""));
    }
    let (mut any_sub, mut any_resource) = (BTreeSet::new(), BTreeSet::new());
    let (mut star, mut bare) = (false, false);
    for (idx, text) in all.iter().enumerate() {
        let here = format!("{path}[{idx}]");
        if text.is_empty() {
            errors.push(FieldError::required(here, ""));
            continue;
        }
        star |= *text == "*";
        let Some((resource, sub)) = text.split_once('/') else {
            bare = *text != "*";
            continue;
        };
        if any_sub.contains(resource) {
            let why = format!("if '{resource}/*' is present, must not specify {text}");
            errors.push(FieldError::invalid(here.as_str(), *text, why));
        }
        if any_resource.contains(sub) {
            let why = format!("if '*/{sub}' is present, must not specify {text}");
            errors.push(FieldError::invalid(here, *text, why));
        }
        if sub == "*" {
            any_sub.insert(resource);
        }
        if resource == "*" {
            any_resource.insert(sub);
        }
    }
    if all.len() > 1 && all.contains(&"*/*") {
        errors.push(FieldError::invalid(path, all.to_vec(), "if '*/*' is present, must not specify other resources"));
    }
    if star && bare {
        let why = "if '*' is present, must not specify other resources without subresources";
        errors.push(FieldError::invalid(path, all.to_vec(), why));
    }
}

/// `matchConstraints` of a policy, `matchResources` of a binding.
pub(super) fn match_resources(of: &Value, path: Path<'_>, errors: &mut Errors) {
    one_of(of, path, ("matchPolicy", Presence::Required), &["Equivalent", "Exact"], errors);
    for field in ["namespaceSelector", "objectSelector"] {
        match read::at(of, field) {
            None => errors.push(FieldError::required(path.child(field), "")),
            Some(selector) => label_selector(selector, Path(&path.child(field)), errors),
        }
    }
    for list in ["resourceRules", "excludeResourceRules"] {
        for (idx, named) in read::list(of, list).iter().enumerate() {
            let here = format!("{path}.{list}[{idx}]");
            let mut seen = BTreeSet::new();
            for (at, name) in read::texts(named, "resourceNames").into_iter().enumerate() {
                let here = format!("{here}.resourceNames[{at}]");
                invalid_each(Path(&here), name, names::path_segment_errors(name), errors);
                if !seen.insert(name) {
                    errors.push(FieldError::duplicate(here, name));
                }
            }
            rule(named, Path(&here), errors);
        }
    }
}

/// `matchConditions` of webhooks and policies.
pub(super) fn conditions(of: &Value, path: Path<'_>, extras: Extras, errors: &mut Errors) {
    let all = read::list(of, "matchConditions");
    let path = path.child("matchConditions");
    if all.len() > CONDITIONS_MAX {
        errors.push(FieldError::too_many(path.as_str(), all.len(), CONDITIONS_MAX));
    }
    let names = admission::names(extras);
    let mut seen = BTreeSet::new();
    for (idx, condition) in all.iter().enumerate() {
        let here = format!("{path}[{idx}]");
        let text = read::text(condition, "expression").trim();
        if text.is_empty() {
            errors.push(FieldError::required(format!("{here}.expression"), ""));
        } else {
            compiles(text, &names, Some(&BOOL), Path(&format!("{here}.expression")), errors);
        }
        let name = read::text(condition, "name");
        if name.is_empty() {
            errors.push(FieldError::required(format!("{here}.name"), ""));
            continue;
        }
        invalid_each(Path(&format!("{here}.name")), name, names::qualified_name_errors(name), errors);
        if !seen.insert(name) {
            errors.push(FieldError::duplicate(format!("{here}.name"), name));
        }
    }
}

/// An expression compiles, and makes what is wanted; its type.
pub(super) fn compiles(
    text: &str,
    names: &[(String, Ty)],
    wanted: Option<&Ty>,
    path: Path<'_>,
    errors: &mut Errors,
) -> Ty {
    made(Program::compile(text, names), text, wanted, path, errors)
}

/// Checks that the compiled expression makes the wanted type; the type that it makes.
pub(super) fn made(
    compiled: Result<Program, CompileError>,
    text: &str,
    wanted: Option<&Ty>,
    path: Path<'_>,
    errors: &mut Errors,
) -> Ty {
    match compiled {
        Err(why) => {
            errors.push(FieldError::invalid(path, text, format!("compilation failed: {why}")));
            Ty::Dyn
        }
        Ok(program) => {
            if let Some(wanted) = wanted.filter(|w| !program.makes(w)) {
                errors.push(FieldError::invalid(
                    path,
                    text,
                    format!("must evaluate to {wanted} but got {}", program.result),
                ));
            }
            program.result
        }
    }
}

/// Where a webhook is: `url` or `service`, not both.
pub(super) fn client_config(client: &Value, path: Path<'_>, errors: &mut Errors) {
    let (url, service) = (read::some_text(client, "url"), read::at(client, "service"));
    match (url, service) {
        (Some(url), None) => webhook_url(url, Path(&path.child("url")), errors),
        (None, Some(of)) => service_reference(of, Path(&path.child("service")), errors),
        _ => errors.push(FieldError::required(path, "exactly one of url or service is required")),
    }
}

fn webhook_url(text: &str, path: Path<'_>, errors: &mut Errors) {
    const FORM: &str = "; desired format: https://host[/path]";
    let (scheme, rest) = text.split_once("://").unwrap_or(("", text));
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, tail) = rest.split_at(end);
    let (user, host) = authority.rsplit_once('@').map_or(("", authority), |(user, host)| (user, host));
    if scheme != "https" {
        errors.push(FieldError::invalid(path, scheme, format!("'https' is the only allowed URL scheme{FORM}")));
    }
    if host.is_empty() || scheme.is_empty() {
        errors.push(FieldError::invalid(path, "", format!("host must be specified{FORM}")));
    }
    if !user.is_empty() {
        errors.push(FieldError::invalid(path, user, "user information is not permitted in the URL"));
    }
    let (tail, fragment) = tail.split_once('#').unwrap_or((tail, ""));
    if !fragment.is_empty() {
        errors.push(FieldError::invalid(path, fragment, "fragments are not permitted in the URL"));
    }
    if let Some((_, query)) = tail.split_once('?').filter(|(_, query)| !query.is_empty()) {
        errors.push(FieldError::invalid(path, query, "query parameters are not permitted in the URL"));
    }
}

fn service_reference(service: &Value, path: Path<'_>, errors: &mut Errors) {
    for field in ["name", "namespace"] {
        if read::text(service, field).is_empty() {
            errors.push(FieldError::required(path.child(field), ""));
        }
    }
    let port = service.get("port").and_then(Value::as_i64).unwrap_or(443);
    let wrong = names::port_number_errors(port);
    if !wrong.is_empty() {
        errors.push(FieldError::invalid(path.child("port"), port, format!("port is not valid: {}", wrong.join(", "))));
    }
    let text = read::text(service, "path");
    let here = path.child("path");
    if matches!(text, "" | "/") {
        return;
    }
    if text == "//" {
        errors.push(FieldError::invalid(here, text, "segment[0] may not be empty"));
        return;
    }
    if !text.starts_with('/') {
        errors.push(FieldError::invalid(here.as_str(), text, "must start with a '/'"));
    }
    let steps = text.get(1..).unwrap_or_default();
    for (idx, step) in steps.strip_suffix('/').unwrap_or(steps).split('/').enumerate() {
        if step.is_empty() {
            errors.push(FieldError::invalid(here.as_str(), text, format!("segment[{idx}] may not be empty")));
            continue;
        }
        for why in names::dns_subdomain_errors(step) {
            errors.push(FieldError::invalid(here.as_str(), text, format!("segment[{idx}]: {why}")));
        }
    }
}
