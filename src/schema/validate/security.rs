//! Security contexts of pods and containers.

use model::names;
use serde_json::{Value, json};

use crate::read;
use crate::validate::checks::{Errors, invalid_each};
use crate::validate::container::local_path;
use crate::validate::error::FieldError;
use crate::validate::path::Path;

const PROFILES: [&str; 3] = ["Localhost", "RuntimeDefault", "Unconfined"];
const PROFILE_BYTES_MAX: usize = 4095;
/// Of Windows options.
const CREDENTIAL_SPEC_BYTES_MAX: usize = 64 * 1024;

fn ids(context: &Value, path: Path<'_>, fields: &[&str], errors: &mut Errors) {
    for field in fields {
        if let Some(id) = read::integer(context, field) {
            invalid_each(Path(&format!("{path}.{field}")), id, names::range_errors(id, 0, i64::from(i32::MAX)), errors);
        }
    }
}

fn one_of(context: &Value, path: Path<'_>, field: &str, supported: &[&str], errors: &mut Errors) {
    if let Some(text) = read::some_text(context, field).filter(|t| !supported.contains(t)) {
        errors.push(FieldError::not_supported(format!("{path}.{field}"), text, supported));
    }
}

/// `spec.securityContext`.
pub(super) fn pod(spec: &Value, path: Path<'_>, errors: &mut Errors) {
    let Some(context) = read::at(spec, "securityContext") else { return };
    let path = format!("{path}.securityContext");
    ids(context, Path(&path), &["fsGroup", "runAsUser", "runAsGroup"], errors);
    for (idx, group) in read::list(context, "supplementalGroups").iter().enumerate() {
        let id = group.as_i64().unwrap_or(-1);
        invalid_each(
            Path(&format!("{path}.supplementalGroups[{idx}]")),
            id,
            names::range_errors(id, 0, i64::from(i32::MAX)),
            errors,
        );
    }
    one_of(context, Path(&path), "fsGroupChangePolicy", &["Always", "OnRootMismatch"], errors);
    one_of(context, Path(&path), "supplementalGroupsPolicy", &["Merge", "Strict"], errors);
    one_of(context, Path(&path), "seLinuxChangePolicy", &["MountOption", "Recursive"], errors);
    profiles(context, Path(&path), errors);
    windows(context, Path(&path), errors);
}

/// The users that a pod's processes are.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Users {
    /// Of the host: `root` in the pod is `root` outside.
    OfHost,
    /// Of a namespace of the pod's own.
    OfPod,
}

impl Users {
    /// Reads `hostUsers`.
    pub(super) fn of(spec: &Value) -> Users {
        if spec.get("hostUsers").and_then(Value::as_bool) == Some(false) { Users::OfPod } else { Users::OfHost }
    }
}

/// `securityContext` of a container.
pub(super) fn container(context: &Value, path: Path<'_>, users: Users, errors: &mut Errors) {
    ids(context, path, &["runAsUser", "runAsGroup"], errors);
    one_of(context, path, "procMount", &["Default", "Unmasked"], errors);
    if users == Users::OfHost && read::text(context, "procMount") == "Unmasked" {
        errors.push(FieldError::invalid(
            format!("{path}.procMount"),
            "Unmasked",
            "`hostUsers` must be false to use `Unmasked`",
        ));
    }
    profiles(context, path, errors);
    windows(context, path, errors);
    if read::at(context, "allowPrivilegeEscalation").and_then(Value::as_bool) == Some(false) {
        if read::flag(context, "privileged") {
            let message = "cannot set `allowPrivilegeEscalation` to false and `privileged` to true";
            errors.push(FieldError::invalid(path, context.clone(), message));
        }
        if read::texts(context, "capabilities.add").contains(&"CAP_SYS_ADMIN") {
            let message = "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN";
            errors.push(FieldError::invalid(path, json!(context), message));
        }
    }
}

fn profiles(context: &Value, path: Path<'_>, errors: &mut Errors) {
    if let Some(profile) = read::at(context, "seccompProfile") {
        let path = format!("{path}.seccompProfile");
        let kind = kind_of(profile, Path(&path), "type is required when seccompProfile is set", errors);
        match (kind == "Localhost", read::some_text(profile, "localhostProfile")) {
            (true, None) => {
                let why = "must be set when seccomp type is Localhost";
                errors.push(FieldError::required(format!("{path}.localhostProfile"), why));
            }
            (true, Some(file)) => local_path(file, Path(&format!("{path}.localhostProfile")), errors),
            (false, Some(_)) => {
                let why = "can only be set when seccomp type is Localhost";
                errors.push(FieldError::invalid(format!("{path}.localhostProfile"), profile.clone(), why));
            }
            (false, None) => {}
        }
    }
    if let Some(profile) = read::at(context, "appArmorProfile") {
        let path = format!("{path}.appArmorProfile");
        let kind = kind_of(profile, Path(&path), "type is required when appArmorProfile is set", errors);
        let field = format!("{path}.localhostProfile");
        let required = "must be set when AppArmor type is Localhost";
        match (kind, read::some_text(profile, "localhostProfile")) {
            ("Localhost", None) => errors.push(FieldError::required(field, required)),
            ("Localhost", Some(name)) => {
                if name.trim() != name {
                    errors.push(FieldError::invalid(field.as_str(), name, "must not be padded with whitespace"));
                } else if name.is_empty() {
                    errors.push(FieldError::required(field.as_str(), required));
                }
                if name.len() > PROFILE_BYTES_MAX {
                    errors.push(FieldError::too_long(field, PROFILE_BYTES_MAX));
                }
            }
            ("RuntimeDefault" | "Unconfined", Some(name)) => {
                errors.push(FieldError::invalid(field, name, "can only be set when AppArmor type is Localhost"));
            }
            _ => {}
        }
    }
}

fn kind_of<'v>(profile: &'v Value, path: Path<'_>, missing: &str, errors: &mut Errors) -> &'v str {
    let kind = read::text(profile, "type");
    if kind.is_empty() {
        errors.push(FieldError::required(format!("{path}.type"), missing));
    } else if !PROFILES.contains(&kind) {
        errors.push(FieldError::not_supported(format!("{path}.type"), kind, &PROFILES));
    }
    kind
}

fn windows(context: &Value, path: Path<'_>, errors: &mut Errors) {
    let Some(options) = read::at(context, "windowsOptions") else { return };
    let path = format!("{path}.windowsOptions");
    if let Some(name) = read::some_text(options, "gmsaCredentialSpecName") {
        invalid_each(Path(&format!("{path}.gmsaCredentialSpecName")), name, names::dns_subdomain_errors(name), errors);
    }
    if let Some(spec) = read::some_text(options, "gmsaCredentialSpec") {
        let field = format!("{path}.gmsaCredentialSpec");
        if spec.is_empty() {
            errors.push(FieldError::invalid(field, spec, "gmsaCredentialSpec cannot be an empty string"));
        } else if spec.len() > CREDENTIAL_SPEC_BYTES_MAX {
            errors.push(FieldError::invalid(field, spec, "gmsaCredentialSpec size must be under 64 KiB"));
        }
    }
    if let Some(user) = read::some_text(options, "runAsUserName") {
        let field = format!("{path}.runAsUserName");
        if user.is_empty() {
            errors.push(FieldError::invalid(field, user, "runAsUserName cannot be an empty string"));
        } else if user.chars().any(char::is_control) {
            errors.push(FieldError::invalid(field, user, "runAsUserName cannot contain control characters"));
        } else if user.split('\\').count() > 2 {
            errors.push(FieldError::invalid(field, user, "runAsUserName cannot contain more than one backslash"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_of_the_node_needs_its_name_and_others_have_none() {
        let wrong = |context: Value| {
            let mut errors = Vec::new();
            container(&context, Path("s"), Users::OfHost, &mut errors);
            errors.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(
            wrong(json!({"seccompProfile": {"type": "Localhost"}})),
            ["s.seccompProfile.localhostProfile: Required value: must be set when seccomp type is Localhost"]
        );
        assert_eq!(wrong(json!({"appArmorProfile": {"type": "Unconfined", "localhostProfile": "x"}})).len(), 1);
        assert_eq!(
            wrong(json!({"procMount": "Unmasked", "seccompProfile": {"type": "Odd"}})),
            [
                "s.procMount: Invalid value: \"Unmasked\": `hostUsers` must be false to use `Unmasked`",
                "s.seccompProfile.type: Unsupported value: \"Odd\": supported values: \"Localhost\", \
                \"RuntimeDefault\", \"Unconfined\"",
            ]
        );
    }
}
