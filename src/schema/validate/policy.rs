//! Admission policies and their bindings: expressions compile, and say what they should.

use std::collections::{BTreeMap, BTreeSet};

use cel::Program;
use cel::admission::{self, Extras};
use cel::syntax::Dialect;
use cel::types::{BOOL, TEXT, Ty};
use model::meta;
use model::names;
use serde_json::Value;

use crate::read;
use crate::validate::checks::{Errors, invalid_each, label_selector};
use crate::validate::error::FieldError;
use crate::validate::matching::{Presence, compiles, conditions, made, match_resources, one_of};
use crate::validate::path::Path;

const REASONS: [&str; 3] = ["Forbidden", "Invalid", "RequestEntityTooLarge"];
const MUTABLE: [&str; 4] = ["*", "CONNECT", "CREATE", "UPDATE"];
const ANNOTATIONS_MAX: usize = 20;
const ANNOTATION_BYTES_MAX: usize = 5 * 1024;

/// The rules that both sorts of policies share; the names that their expressions may use.
fn common(spec: &Value, errors: &mut Errors) -> Vec<(String, Ty)> {
    one_of(spec, Path("spec"), ("failurePolicy", Presence::Required), &["Fail", "Ignore"], errors);
    let params = spec["paramKind"].is_object();
    if params {
        param_kind(&spec["paramKind"], errors);
    }
    match read::at(spec, "matchConstraints") {
        None => errors.push(FieldError::required("spec.matchConstraints", "")),
        Some(constraints) => {
            match_resources(constraints, Path("spec.matchConstraints"), errors);
            if read::list(constraints, "resourceRules").is_empty() {
                errors.push(FieldError::required("spec.matchConstraints.resourceRules", ""));
            }
        }
    }
    conditions(spec, Path("spec"), Extras { params, authorizer: true }, errors);
    let names = admission::names(Extras { params, authorizer: true });
    let mut variables = BTreeMap::new();
    for (idx, variable) in read::list(spec, "variables").iter().enumerate() {
        let path = format!("spec.variables[{idx}]");
        let name = read::text(variable, "name").trim();
        if name.is_empty() {
            errors.push(FieldError::required(format!("{path}.name"), "name is not specified"));
        } else if !is_identifier(name) {
            errors.push(FieldError::invalid(format!("{path}.name"), name, "must be a valid CEL identifier"));
        }
        let known = admission::with_variables(names.clone(), &variables);
        let ty = expression(variable, "expression", Path(&path), &known, None, errors);
        variables.insert(name.to_owned(), ty);
    }
    admission::with_variables(names, &variables)
}

fn is_identifier(name: &str) -> bool {
    let first = name.chars().next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_');
    let reserved = ["true", "false", "null", "in"].contains(&name) || cel::syntax::is_reserved(name);
    first && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') && !reserved
}

fn param_kind(kind: &Value, errors: &mut Errors) {
    let path = "spec.paramKind.apiVersion";
    let text = read::text(kind, "apiVersion");
    match text.split('/').collect::<Vec<_>>().as_slice() {
        [""] => errors.push(FieldError::required(path, "")),
        parts @ ([_] | [_, _]) => {
            let (group, version) = if let [group, version] = parts { (*group, *version) } else { ("", parts[0]) };
            let wrong = names::dns_subdomain_errors(group);
            if !group.is_empty() && !wrong.is_empty() {
                errors.push(FieldError::invalid(path, group, wrong.join(",")));
            }
            let wrong = names::dns_1035_label_errors(version);
            if version.is_empty() {
                errors.push(FieldError::invalid(path, text, "version must be specified"));
            } else if !wrong.is_empty() {
                errors.push(FieldError::invalid(path, version, wrong.join(",")));
            }
        }
        _ => errors.push(FieldError::invalid(path, text, format!("unexpected GroupVersion string: {text}"))),
    }
    let text = read::text(kind, "kind");
    let wrong = names::dns_1035_label_errors(&text.to_lowercase());
    if text.is_empty() {
        errors.push(FieldError::required("spec.paramKind.kind", ""));
    } else if !wrong.is_empty() {
        let why = format!("may have mixed case, but should otherwise match: {}", wrong.join(","));
        errors.push(FieldError::invalid("spec.paramKind.kind", text, why));
    }
}

fn expression(
    of: &Value,
    field: &str,
    path: Path<'_>,
    names: &[(String, Ty)],
    wanted: Option<&Ty>,
    errors: &mut Errors,
) -> Ty {
    let (at, text) = (path.child(field), read::text(of, field));
    if text.trim().is_empty() {
        errors.push(FieldError::required(at, format!("{field} is not specified")));
        return Ty::Dyn;
    }
    compiles(text, names, wanted, Path(&at), errors)
}

/// ValidatingAdmissionPolicy.
pub(crate) fn validating(object: &Value, errors: &mut Errors) {
    let spec = &object["spec"];
    let names = common(spec, errors);
    let (validations, annotations) = (read::list(spec, "validations"), read::list(spec, "auditAnnotations"));
    if validations.is_empty() && annotations.is_empty() {
        for field in ["spec.validations", "spec.auditAnnotations"] {
            errors.push(FieldError::required(field, "validations or auditAnnotations must contain at least one item"));
        }
    }
    for (idx, validation) in validations.iter().enumerate() {
        judge(validation, Path(&format!("spec.validations[{idx}]")), &names, errors);
    }
    if annotations.len() > ANNOTATIONS_MAX {
        let why = format!("must not have more than {ANNOTATIONS_MAX} auditAnnotations");
        errors.push(FieldError::invalid("spec.auditAnnotations", annotations.to_vec(), why));
    }
    let mut seen = BTreeSet::new();
    for (idx, annotation) in annotations.iter().enumerate() {
        let path = format!("spec.auditAnnotations[{idx}]");
        let key = read::text(annotation, "key");
        let whole = format!("{}/{key}", meta::name(object));
        invalid_each(Path(&format!("{path}.key")), whole.as_str(), names::qualified_name_errors(&whole), errors);
        if read::text(annotation, "valueExpression").trim().len() > ANNOTATION_BYTES_MAX {
            let why = format!("must not exceed {ANNOTATION_BYTES_MAX} bytes in length");
            errors.push(FieldError::required(format!("{path}.valueExpression"), why));
        } else {
            let n_before = errors.len();
            let ty = expression(annotation, "valueExpression", Path(&path), &names, None, errors);
            if errors.len() == n_before && ty != Ty::Null && ty != TEXT {
                let text = read::text(annotation, "valueExpression");
                let why = format!("must evaluate to one of [string null_type] but got {ty}");
                errors.push(FieldError::invalid(format!("{path}.valueExpression"), text, why));
            }
        }
        if !seen.insert(key) {
            errors.push(FieldError::duplicate(format!("{path}.key"), key));
        }
    }
}

fn judge(validation: &Value, path: Path<'_>, names: &[(String, Ty)], errors: &mut Errors) {
    expression(validation, "expression", path, names, Some(&BOOL), errors);
    match read::some_text(validation, "messageExpression") {
        None | Some("") => {}
        Some(text) if text.trim().is_empty() => {
            errors.push(FieldError::invalid(
                format!("{path}.messageExpression"),
                text,
                "must be non-empty if specified",
            ));
        }
        Some(_) => {
            // The authorizer is not for messages.
            let names: Vec<_> = names.iter().filter(|(name, _)| !name.starts_with("authorizer")).cloned().collect();
            expression(validation, "messageExpression", path, &names, Some(&TEXT), errors);
        }
    }
    let message = read::text(validation, "message");
    if !message.is_empty() && message.trim().is_empty() {
        errors.push(FieldError::invalid(format!("{path}.message"), message, "must be non-empty if specified"));
    } else if message.trim().contains(['\n', '\r']) {
        errors.push(FieldError::invalid(format!("{path}.message"), message, "must not contain line breaks"));
    }
    one_of(validation, path, ("reason", Presence::Optional), &REASONS, errors);
}

/// MutatingAdmissionPolicy.
pub(crate) fn mutating(object: &Value, errors: &mut Errors) {
    let spec = &object["spec"];
    let names = common(spec, errors);
    mutable(&spec["matchConstraints"], Path("spec.matchConstraints"), errors);
    let mutations = read::list(spec, "mutations");
    if mutations.is_empty() {
        errors.push(FieldError::required("spec.mutations", "mutations must contain at least one item"));
    }
    for (idx, mutation) in mutations.iter().enumerate() {
        let path = format!("spec.mutations[{idx}]");
        let (own, other, wanted) = match read::text(mutation, "patchType") {
            "" => {
                errors.push(FieldError::required(format!("{path}.patchType"), ""));
                continue;
            }
            "JSONPatch" => ("jsonPatch", "applyConfiguration", Ty::List(Box::new(Ty::Made("JSONPatch".into())))),
            "ApplyConfiguration" => ("applyConfiguration", "jsonPatch", Ty::Made("Object".into())),
            text => {
                errors.push(FieldError::not_supported(
                    format!("{path}.patchType"),
                    text,
                    &["ApplyConfiguration", "JSONPatch"],
                ));
                continue;
            }
        };
        let kind = read::text(mutation, "patchType");
        match read::at(mutation, own) {
            None => errors.push(FieldError::required(
                format!("{path}.{own}"),
                format!("must be specified when patchType is {kind}"),
            )),
            Some(patch) => {
                let here = format!("{path}.{own}.expression");
                match read::text(patch, "expression").trim() {
                    "" => errors.push(FieldError::required(here, "")),
                    text => drop(made(
                        Program::compile_in(Dialect::Patches, text, &names),
                        text,
                        Some(&wanted),
                        Path(&here),
                        errors,
                    )),
                }
            }
        }
        if read::at(mutation, other).is_some() {
            let why = format!("must not be specified when patchType is {kind}");
            errors.push(FieldError::invalid(format!("{path}.{other}"), format!("{{{other}}}"), why));
        }
    }
    one_of(spec, Path("spec"), ("reinvocationPolicy", Presence::Required), &["IfNeeded", "Never"], errors);
}

/// There is no object to change in a delete.
fn mutable(resources: &Value, path: Path<'_>, errors: &mut Errors) {
    for rule in read::list(resources, "resourceRules") {
        for operation in read::texts(rule, "operations").into_iter().filter(|o| !MUTABLE.contains(o)) {
            errors.push(FieldError::not_supported(format!("{path}.resourceRules.operations"), operation, &MUTABLE));
        }
    }
}

fn binding(spec: &Value, errors: &mut Errors) {
    match read::text(spec, "policyName") {
        "" => errors.push(FieldError::required("spec.policyName", "")),
        name => invalid_each(Path("spec.policyName"), name, names::dns_subdomain_errors(name), errors),
    }
    if let Some(of) = read::at(spec, "paramRef") {
        param_ref(of, errors);
    }
    if let Some(resources) = read::at(spec, "matchResources") {
        match_resources(resources, Path("spec.matchResources"), errors);
    }
}

fn param_ref(of: &Value, errors: &mut Errors) {
    let path = "spec.paramRef";
    let (name, selector) = (read::text(of, "name"), read::at(of, "selector"));
    let both = "name and selector are mutually exclusive";
    if !name.is_empty() {
        invalid_each(Path("spec.paramRef.name"), name, names::path_segment_errors(name), errors);
        if selector.is_some() {
            errors.push(FieldError::forbidden("spec.paramRef.name", both));
        }
    }
    if let Some(selector) = selector {
        label_selector(selector, Path("spec.paramRef.selector"), errors);
        if !name.is_empty() {
            errors.push(FieldError::forbidden("spec.paramRef.selector", both));
        }
    }
    if name.is_empty() && selector.is_none() {
        errors.push(FieldError::required(path, "one of name or selector must be specified"));
    }
    one_of(of, Path(path), ("parameterNotFoundAction", Presence::Required), &["Deny", "Allow"], errors);
}

/// ValidatingAdmissionPolicyBinding.
pub(crate) fn validating_binding(object: &Value, errors: &mut Errors) {
    let spec = &object["spec"];
    binding(spec, errors);
    let path = "spec.validationActions";
    let actions = read::texts(spec, "validationActions");
    let mut seen = BTreeSet::new();
    for (idx, action) in actions.iter().enumerate() {
        if !["Audit", "Deny", "Warn"].contains(action) {
            errors.push(FieldError::not_supported(format!("{path}[{idx}]"), *action, &["Audit", "Deny", "Warn"]));
        }
        if !seen.insert(*action) {
            errors.push(FieldError::duplicate(format!("{path}[{idx}]"), *action));
        }
    }
    if seen.contains("Deny") && seen.contains("Warn") {
        let why = "must not contain both Deny and Warn (repeating the same validation failure information in the API \
            response and \
                   headers serves no purpose)";
        errors.push(FieldError::invalid(path, actions, why));
    }
    if seen.is_empty() {
        errors.push(FieldError::required(path, "at least one validation action is required"));
    }
}

/// MutatingAdmissionPolicyBinding.
pub(crate) fn mutating_binding(object: &Value, errors: &mut Errors) {
    binding(&object["spec"], errors);
    mutable(&object["spec"]["matchResources"], Path("spec.matchResources"), errors);
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn wrong(kind: fn(&Value, &mut Errors), spec: Value) -> Vec<String> {
        let mut errors = Vec::new();
        kind(&json!({"metadata": {"name": "p"}, "spec": spec}), &mut errors);
        errors.iter().map(ToString::to_string).collect()
    }

    fn policy() -> Value {
        json!({"failurePolicy": "Fail", "reinvocationPolicy": "Never",
            "matchConstraints": {"matchPolicy": "Equivalent", "namespaceSelector": {}, "objectSelector": {},
                "resourceRules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"],
                    "resources": ["pods"]}]},
            "variables": [{"name": "n", "expression": "'a' + object.metadata.name"}],
            "mutations": [
                {"patchType": "ApplyConfiguration",
                    "applyConfiguration": {"expression": "Object{metadata: Object.metadata{labels: {'a': \
                        variables.n}}}"}},
                {"patchType": "JSONPatch", "jsonPatch": {"expression": "[JSONPatch{op: 'add', path: '/x/' + \
                    jsonpatch.escapeKey('a/b'), value: 'y'}]"}}]})
    }

    #[test]
    fn a_mutation_makes_an_object_or_a_list_of_patches() {
        assert_eq!(wrong(mutating, policy()), Vec::<String>::new());
        let mut bad = policy();
        bad["mutations"][0]["applyConfiguration"]["expression"] = json!("true");
        bad["mutations"][1]["jsonPatch"]["expression"] = json!("[JSONPatch{op: 1}]");
        bad["matchConstraints"]["resourceRules"][0]["operations"] = json!(["DELETE"]);
        let said = wrong(mutating, bad);
        assert_eq!(
            said[0],
            "spec.matchConstraints.resourceRules.operations: Unsupported value: \"DELETE\": supported values: \"*\", \
            \"CONNECT\", \"CREATE\", \"UPDATE\""
        );
        assert_eq!(
            said[1],
            "spec.mutations[0].applyConfiguration.expression: Invalid value: \"true\": must evaluate to Object but got \
            bool"
        );
        assert!(said[2].contains("expected type of field 'op' is 'string' but provided type is 'int'"), "{}", said[2]);
    }

    #[test]
    fn what_has_no_type_at_all_is_no_mutation() {
        // Asked of a genuine kube-apiserver 1.36.2.
        let of = |expression: &str| {
            let mut spec = policy();
            spec["mutations"][1]["jsonPatch"]["expression"] = json!(expression);
            wrong(mutating, spec)
        };
        let refused = |expression: &str, got: &str| {
            let path = "spec.mutations[1].jsonPatch.expression";
            assert_eq!(
                of(expression),
                [format!("{path}: Invalid value: \"{expression}\": must evaluate to list(JSONPatch) but got {got}")]
            );
        };
        refused("[]", "list(dyn)");
        refused("object", "dyn");
        refused("object.spec.x", "dyn");
        refused("object.spec.x == 1", "bool");
        let patch = "[JSONPatch{op: 'remove', path: '/a'}]";
        for good in [
            format!("[] + {patch}"),
            format!("has(object.a) ? {patch} : []"),
            "[1].map(i, JSONPatch{op: 'remove', path: '/a'})".to_owned(),
        ] {
            assert_eq!(of(&good), Vec::<String>::new(), "{good}");
        }
    }

    #[test]
    fn a_binding_names_a_policy_and_one_way_to_its_parameters() {
        let spec =
            json!({"policyName": "p", "paramRef": {"name": "a", "selector": {}, "parameterNotFoundAction": "Deny"}});
        assert_eq!(
            wrong(mutating_binding, spec),
            [
                "spec.paramRef.name: Forbidden: name and selector are mutually exclusive",
                "spec.paramRef.selector: Forbidden: name and selector are mutually exclusive",
            ]
        );
        assert_eq!(
            wrong(validating_binding, json!({"policyName": "p", "validationActions": ["Deny", "Warn"]})).len(),
            1
        );
    }
}
