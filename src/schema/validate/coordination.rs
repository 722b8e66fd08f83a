//! Leases, candidates for them, and migrations of stored objects.

use cel::semver::Semver;
use model::names::{self, NameUse};
use serde_json::Value;

use crate::read;
use crate::validate::checks::{Errors, immutable, invalid_each, positive};
use crate::validate::error::FieldError;
use crate::validate::path::Path;

const OLDEST: &str = "OldestEmulationVersion";

/// Lease.
pub(crate) fn lease(object: &Value, errors: &mut Errors) {
    let spec = read::at(object, "spec").unwrap_or(&Value::Null);
    positive(spec, Path("spec"), "leaseDurationSeconds", errors);
    if let Some(n) = read::integer(spec, "leaseTransitions").filter(|n| *n < 0) {
        errors.push(FieldError::invalid("spec.leaseTransitions", n, "must be greater than or equal to 0"));
    }
    let wanted = read::text(spec, "strategy");
    if read::at(spec, "strategy").is_some() {
        strategy(wanted, errors);
    }
    if read::some_text(spec, "preferredHolder").is_some() && wanted.is_empty() {
        errors.push(FieldError::forbidden("spec.preferredHolder", "may only be specified if `strategy` is defined"));
    }
}

/// One of Kubernetes's own, or a qualified name of somebody else's. The doubled name in the path is upstream's.
fn strategy(text: &str, errors: &mut Errors) {
    if text.contains('/') {
        invalid_each(Path("spec.strategy.strategy"), text, names::qualified_name_errors(text), errors);
    } else if text != OLDEST {
        errors.push(FieldError::not_supported("spec.strategy.strategy", text, &[OLDEST]));
    }
}

/// The name of a candidate.
pub(crate) fn candidate_name(text: &str, _: NameUse) -> Vec<String> {
    names::config_key_errors(text)
}

/// LeaseCandidate.
pub(crate) fn candidate(object: &Value, errors: &mut Errors) {
    let spec = read::at(object, "spec").unwrap_or(&Value::Null);
    let required = |field: &str, why: &str| FieldError::required(format!("spec.{field}"), why);
    if read::text(spec, "leaseName").is_empty() {
        errors.push(required("leaseName", ""));
    }
    let mut version = |field: &str| {
        let text = read::some_text(spec, field)?;
        let version = Semver::read(text).ok();
        if version.is_none() {
            errors.push(FieldError::invalid(format!("spec.{field}"), text, "must be a valid semantic version"));
        }
        version
    };
    let emulated = version("emulationVersion");
    let binary = version("binaryVersion");
    let said = read::text(spec, "binaryVersion");
    if said.is_empty() {
        errors.push(required("binaryVersion", ""));
    }
    if let (Some(binary), Some(emulated)) = (&binary, &emulated)
        && binary < emulated
    {
        errors.push(FieldError::invalid(
            "spec.binaryVersion",
            said,
            "must be greater than or equal to `emulationVersion`",
        ));
    }
    match read::text(spec, "strategy") {
        "" => errors.push(required("strategy", "")),
        text => {
            if text == OLDEST && emulated.is_none() {
                errors.push(required(
                    "emulationVersion",
                    "must be specified when `strategy` is 'OldestEmulationVersion'",
                ));
            }
            strategy(text, errors);
        }
    }
}

/// A candidate stays one for its lease.
pub(crate) fn candidate_update(new: &Value, old: &Value, errors: &mut Errors) {
    immutable(new, old, "spec.leaseName", errors);
}

/// StorageVersionMigration.
pub(crate) fn migration(object: &Value, errors: &mut Errors) {
    let (group, resource) = (read::text(object, "spec.resource.group"), read::text(object, "spec.resource.resource"));
    if resource.is_empty() {
        errors.push(FieldError::required("spec.resource.resource", "resource is required to be set"));
    }
    let mut joined = |field: &str, text: &str, whys: Vec<String>| {
        if !text.is_empty() && !whys.is_empty() {
            errors.push(FieldError::invalid(format!("spec.resource.{field}"), text, whys.join(",")));
        }
    };
    joined("resource", resource, names::dns_1035_label_errors(resource));
    joined("group", group, names::dns_subdomain_errors(group));
}

/// The resource that is migrated is said once.
pub(crate) fn migration_update(new: &Value, old: &Value, errors: &mut Errors) {
    immutable(new, old, "spec", errors);
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn candidate_errors(spec: Value) -> Vec<String> {
        let mut errors = Vec::new();
        candidate(&json!({ "spec": spec }), &mut errors);
        errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_candidate_says_what_it_is_a_candidate_for_and_what_it_runs() {
        let wanted =
            ["spec.leaseName: Required value", "spec.binaryVersion: Required value", "spec.strategy: Required value"];
        assert_eq!(candidate_errors(json!({})), wanted);
        let older =
            json!({"leaseName": "l", "binaryVersion": "1.0.0", "emulationVersion": "1.1.0", "strategy": OLDEST});
        assert_eq!(
            candidate_errors(older),
            ["spec.binaryVersion: Invalid value: \"1.0.0\": must be greater than or equal to `emulationVersion`"]
        );
        assert!(
            candidate_errors(
                json!({"leaseName": "l", "binaryVersion": "1.1.0", "emulationVersion": "1.1.0", "strategy": OLDEST})
            )
            .is_empty()
        );
    }

    #[test]
    fn a_migration_names_a_resource() {
        let errors_of = |resource: Value| {
            let mut errors = Vec::new();
            migration(&json!({"spec": {"resource": resource}}), &mut errors);
            errors.iter().map(|e| e.field.clone()).collect::<Vec<_>>()
        };
        assert_eq!(errors_of(json!({})), ["spec.resource.resource"]);
        assert_eq!(
            errors_of(json!({"resource": "Pods", "group": "a b"})),
            ["spec.resource.resource", "spec.resource.group"]
        );
        assert!(errors_of(json!({"resource": "pods"})).is_empty());
    }
}
