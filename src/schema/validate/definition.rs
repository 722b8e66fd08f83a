//! CustomResourceDefinitions.

use std::collections::BTreeSet;

use model::meta;
use model::names;
use serde_json::Value;

use crate::custom::structural;
use crate::read;
use crate::validate::checks::{Errors, invalid_each};
use crate::validate::error::FieldError;
use crate::validate::matching;
use crate::validate::path::Path;

const APPROVED: &str = "api-approved.kubernetes.io";
const COLUMN_TYPES: [&str; 5] = ["boolean", "date", "integer", "number", "string"];
const SELECTABLE_FIELDS_MAX: usize = 8;

/// Rules that may cost too much; those of a definition that is there already stay.
pub(crate) fn costs(object: &Value, errors: &mut Errors) {
    for (schema, place) in schemas(object) {
        errors.extend(crate::custom::cost::problems(schema, &place));
    }
}

/// The schemas of a definition and where upstream sees them: in one place if all versions have the same.
fn schemas(object: &Value) -> Vec<(&Value, String)> {
    let versions = read::list(object, "spec.versions");
    let of = |version| read::at(version, "schema.openAPIV3Schema");
    let hoisted = versions.iter().all(|v| of(v) == versions.first().and_then(of));
    let all = versions.iter().enumerate().filter(|(idx, _)| !hoisted || *idx == 0);
    let place = |idx| {
        if hoisted {
            "spec.validation.openAPIV3Schema".to_owned()
        } else {
            format!("spec.versions[{idx}].schema.openAPIV3Schema")
        }
    };
    all.filter_map(|(idx, version)| Some((of(version)?, place(idx)))).collect()
}

/// Holds on create and on update.
pub(crate) fn create(object: &Value, errors: &mut Errors) {
    let (group, plural) = (read::text(object, "spec.group"), read::text(object, "spec.names.plural"));
    let name = format!("{plural}.{group}");
    if meta::name(object) != name {
        let message = "must be spec.names.plural+\".\"+spec.group";
        errors.push(FieldError::invalid("metadata.name", meta::name(object), message));
    }
    if group.is_empty() {
        errors.push(FieldError::required("spec.group", ""));
    } else {
        invalid_each(Path("spec.group"), group, names::dns_subdomain_errors(group), errors);
        if group.split('.').count() < 2 {
            errors.push(FieldError::invalid("spec.group", group, "should be a domain with at least one dot"));
        }
    }
    approved(object, group, errors);
    match read::text(object, "spec.scope") {
        "" => errors.push(FieldError::required("spec.scope", "")),
        "Cluster" | "Namespaced" => {}
        other => errors.push(FieldError::not_supported("spec.scope", other, &["Cluster", "Namespaced"])),
    }
    if read::flag(object, "spec.preserveUnknownFields") {
        let why =
            "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead";
        errors.push(FieldError::invalid("spec.preserveUnknownFields", true, why));
    }
    versions(object, errors);
    accepted_names(object, errors);
    conversion(object, errors);
}

/// Fields that may not change once the names are taken.
pub(crate) fn update(new: &Value, old: &Value, errors: &mut Errors) {
    if read::condition_is_true(old, "Established") {
        for path in ["spec.scope", "spec.names.kind"] {
            immutable(new, old, path, errors);
        }
    }
    for path in ["spec.group", "spec.names.plural"] {
        immutable(new, old, path, errors);
    }
    stored_versions(new, errors);
}

fn immutable(new: &Value, old: &Value, path: &str, errors: &mut Errors) {
    if read::text(new, path) != read::text(old, path) {
        errors.push(FieldError::invalid(path, read::text(new, path), "field is immutable"));
    }
}

/// A write of the status.
pub(crate) fn status(new: &Value, errors: &mut Errors) {
    stored_versions(new, errors);
}

fn stored_versions(object: &Value, errors: &mut Errors) {
    let stored = read::texts(object, "status.storedVersions");
    let path = "status.storedVersions";
    if stored.is_empty() {
        errors.push(FieldError::invalid(path, Vec::<Value>::new(), "must have at least one stored version"));
        return;
    }
    let versions = read::list(object, "spec.versions");
    for (idx, name) in stored.iter().enumerate() {
        if !versions.iter().any(|v| read::text(v, "name") == *name) {
            errors.push(FieldError::invalid(format!("{path}[{idx}]"), *name, "must appear in spec.versions"));
        }
    }
    let storage = versions.iter().find(|v| read::flag(v, "storage")).map(|v| read::text(v, "name"));
    if let Some(storage) = storage.filter(|s| !stored.contains(s)) {
        errors.push(FieldError::invalid(path, stored, format!("must have the storage version {storage}")));
    }
}

fn approved(object: &Value, group: &str, errors: &mut Errors) {
    if !(group.ends_with(".k8s.io") || group.ends_with(".kubernetes.io") || matches!(group, "k8s.io" | "kubernetes.io"))
    {
        return;
    }
    let path = format!("metadata.annotations[{APPROVED}]");
    let see = "see https://github.com/kubernetes/enhancements/pull/1111";
    match meta::annotation(object, APPROVED) {
        None | Some("") => errors.push(FieldError::required(
            path,
            format!("protected groups must have approval annotation {APPROVED:?}, {see}"),
        )),
        Some(said) if said.starts_with("unapproved") || said.contains("://") => {}
        Some(said) => {
            let why = format!(
                "protected groups must have approval annotation {APPROVED:?} with either a URL or a reason starting \
                with \"unapproved\", {see}"
            );
            errors.push(FieldError::invalid(path, said, why));
        }
    }
}

fn versions(object: &Value, errors: &mut Errors) {
    let versions = read::list(object, "spec.versions");
    let stored = versions.iter().filter(|v| read::flag(v, "storage")).count();
    if stored != 1 {
        errors.push(FieldError::invalid(
            "spec.versions",
            versions.to_vec(),
            "must have exactly one version marked as storage version",
        ));
    }
    // One schema for all versions is hoisted upstream, and errors name that place.
    let schema_of = |v: &'_ Value| read::at(v, "schema.openAPIV3Schema").cloned();
    let hoisted = versions.iter().all(|v| schema_of(v) == versions.first().and_then(schema_of));
    let mut seen = BTreeSet::new();
    for (idx, version) in versions.iter().enumerate() {
        let path = format!("spec.versions[{idx}]");
        let name = read::text(version, "name");
        invalid_each(Path(&format!("{path}.name")), name, names::dns_1035_label_errors(name), errors);
        if !seen.insert(name) {
            errors.push(FieldError::invalid("spec.versions", versions.to_vec(), "must contain unique version names"));
        }
        match read::at(version, "schema.openAPIV3Schema") {
            None => errors.push(FieldError::required(format!("{path}.schema.openAPIV3Schema"), "schemas are required")),
            Some(_) if hoisted && idx > 0 => {}
            Some(schema) => {
                let place = if hoisted {
                    "spec.validation.openAPIV3Schema".to_owned()
                } else {
                    format!("{path}.schema.openAPIV3Schema")
                };
                errors.extend(structural::check(schema, &place));
                errors.extend(crate::custom::rules::problems(schema, &place));
            }
        }
        columns(version, Path(&path), errors);
        scale(version, Path(&path), errors);
        selectable(version, Path(&path), errors);
        if version.get("deprecationWarning").is_some() && !read::flag(version, "deprecated") {
            errors.push(FieldError::invalid(
                format!("{path}.deprecationWarning"),
                read::text(version, "deprecationWarning"),
                "can only be set for deprecated versions",
            ));
        }
    }
}

fn columns(version: &Value, path: Path<'_>, errors: &mut Errors) {
    for (idx, column) in read::list(version, "additionalPrinterColumns").iter().enumerate() {
        let path = format!("{path}.additionalPrinterColumns[{idx}]");
        for field in ["name", "type", "jsonPath"] {
            if read::text(column, field).is_empty() {
                errors.push(FieldError::required(
                    format!("{path}.{}", if field == "jsonPath" { "JSONPath" } else { field }),
                    "",
                ));
            }
        }
        let kind = read::text(column, "type");
        if !kind.is_empty() && !COLUMN_TYPES.contains(&kind) {
            errors.push(FieldError::invalid(
                format!("{path}.type"),
                kind,
                format!("must be one of {}", COLUMN_TYPES.join(",")),
            ));
        }
    }
}

fn scale(version: &Value, path: Path<'_>, errors: &mut Errors) {
    let Some(scale) = read::at(version, "subresources.scale") else { return };
    for (field, roots, required) in [
        ("specReplicasPath", &[".spec."][..], true),
        ("statusReplicasPath", &[".status."], true),
        ("labelSelectorPath", &[".spec.", ".status."], false),
    ] {
        let (at, text) = (format!("{path}.subresources.scale.{field}"), read::text(scale, field));
        if text.is_empty() {
            if required {
                errors.push(FieldError::required(at, ""));
            }
        } else if !roots.iter().any(|r| text.starts_with(r)) {
            let why = if roots.len() == 1 {
                format!("should be a json path under {}", roots[0].trim_end_matches('.'))
            } else {
                "should be a json path under either .spec or .status".to_owned()
            };
            errors.push(FieldError::invalid(at, text, why));
        } else if text.contains('[') {
            errors.push(FieldError::invalid(at, text, "should be a simple json path without array notation"));
        }
    }
}

fn selectable(version: &Value, path: Path<'_>, errors: &mut Errors) {
    let fields = read::list(version, "selectableFields");
    if fields.len() > SELECTABLE_FIELDS_MAX {
        errors.push(FieldError::too_many(format!("{path}.selectableFields"), fields.len(), SELECTABLE_FIELDS_MAX));
    }
    let mut seen = BTreeSet::new();
    for (idx, field) in fields.iter().enumerate() {
        let at = format!("{path}.selectableFields[{idx}].jsonPath");
        let text = read::text(field, "jsonPath");
        if text.is_empty() {
            errors.push(FieldError::required(at, ""));
            continue;
        }
        if !seen.insert(text) {
            errors.push(FieldError::duplicate(&at, text));
        }
        if text.starts_with(".metadata") {
            errors.push(FieldError::invalid(at, text, "must not point to fields in metadata"));
            continue;
        }
        let steps = text.strip_prefix('.').map(|t| t.split('.')).into_iter().flatten();
        let schema = read::at(version, "schema.openAPIV3Schema").unwrap_or(&Value::Null);
        let leaf = steps.fold(schema, |at, step| at["properties"].get(step).unwrap_or(&Value::Null));
        match leaf["type"].as_str() {
            _ if leaf.is_null() || !text.starts_with('.') => {
                errors.push(FieldError::invalid(at, text, "is an invalid path: does not refer to a valid field"))
            }
            Some("string" | "boolean" | "integer") => {}
            _ => errors.push(FieldError::invalid(
                at,
                text,
                "must point to a field of type string, boolean or integer. Enum string fields and strings with formats \
                are allowed.",
            )),
        }
    }
}

fn accepted_names(object: &Value, errors: &mut Errors) {
    for (field, required) in [("plural", true), ("singular", true), ("kind", true), ("listKind", true)] {
        let path = format!("spec.names.{field}");
        let text = read::text(object, &path);
        if text.is_empty() {
            if required {
                errors.push(FieldError::required(path, ""));
            }
            continue;
        }
        if matches!(field, "kind" | "listKind") {
            for message in names::dns_1035_label_errors(&text.to_lowercase()) {
                errors.push(FieldError::invalid(
                    &path,
                    text,
                    format!("may have mixed case, but should otherwise match: {message}"),
                ));
            }
        } else {
            invalid_each(Path(&path), text, names::dns_1035_label_errors(text), errors);
        }
    }
    for (field, what) in [("shortNames", "spec.names.shortNames"), ("categories", "spec.names.categories")] {
        for (idx, text) in read::texts(object, what).into_iter().enumerate() {
            invalid_each(Path(&format!("spec.names.{field}[{idx}]")), text, names::dns_1035_label_errors(text), errors);
        }
    }
    let (kind, list) = (read::text(object, "spec.names.kind"), read::text(object, "spec.names.listKind"));
    if !kind.is_empty() && kind == list {
        errors.push(FieldError::invalid("spec.names.listKind", list, "kind and listKind may not be the same"));
    }
}

fn conversion(object: &Value, errors: &mut Errors) {
    let path = "spec.conversion";
    let webhook = read::at(object, "spec.conversion.webhook");
    match read::text(object, "spec.conversion.strategy") {
        "" | "None" => {
            if webhook.is_some() {
                errors.push(FieldError::forbidden(
                    format!("{path}.webhook"),
                    "should not be set when strategy is not set to Webhook",
                ));
            }
        }
        "Webhook" => {
            let Some(webhook) = webhook else {
                errors.push(FieldError::required(
                    format!("{path}.webhook.clientConfig"),
                    "required when strategy is set to Webhook",
                ));
                return;
            };
            if read::texts(webhook, "conversionReviewVersions").is_empty() {
                errors.push(FieldError::required(format!("{path}.webhook.conversionReviewVersions"), ""));
            } else if !read::texts(webhook, "conversionReviewVersions").iter().any(|v| matches!(*v, "v1" | "v1beta1")) {
                let why = "must include at least one of v1, v1beta1";
                errors.push(FieldError::invalid(
                    format!("{path}.webhook.conversionReviewVersions"),
                    read::texts(webhook, "conversionReviewVersions"),
                    why,
                ));
            }
            matching::client_config(&webhook["clientConfig"], Path(&format!("{path}.webhook.clientConfig")), errors);
        }
        other => errors.push(FieldError::not_supported(format!("{path}.strategy"), other, &["None", "Webhook"])),
    }
}
