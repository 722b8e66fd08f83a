//! Options of a request: create, update, patch and delete options. The status names `PatchOptions.meta.k8s.io ""`.

use crate::validate::error::FieldError;
use crate::validate::path::Path;

const MANAGER_BYTES_MAX: usize = 128;

/// The options of a write, as they stand in the query.
#[derive(Clone, Copy, Debug, Default)]
pub struct WriteOptions<'a> {
    /// `fieldManager`, empty when missing.
    pub field_manager: &'a str,
    /// Every `dryRun`.
    pub dry_run: &'a [&'a str],
    /// `fieldValidation`, empty when missing.
    pub field_validation: &'a str,
}

/// Checks `CreateOptions` or `UpdateOptions`.
pub fn write(options: &WriteOptions<'_>) -> Vec<FieldError> {
    let mut errors = field_manager(options.field_manager, Path("fieldManager"));
    if options.dry_run.iter().any(|d| *d != "All") {
        errors.push(FieldError::not_supported("dryRun", options.dry_run.to_vec(), &["All"]));
    }
    if !matches!(options.field_validation, "" | "Ignore" | "Warn" | "Strict") {
        let supported = &["", "Ignore", "Strict", "Warn"];
        errors.push(FieldError::not_supported("fieldValidation", options.field_validation, supported));
    }
    errors
}

/// Whether a patch is a server-side apply: it needs a manager, and only it may use force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatchKind {
    /// `application/apply-patch+yaml`
    Apply,
    /// Every other format.
    Other,
}

/// Checks `PatchOptions`; `force` is Some when the query has it.
pub fn patch(options: &WriteOptions<'_>, kind: PatchKind, force: Option<bool>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    match kind {
        PatchKind::Apply if options.field_manager.is_empty() => {
            errors.push(FieldError::required("fieldManager", "is required for apply patch"));
        }
        PatchKind::Other if force.is_some() => {
            errors.push(FieldError::forbidden("force", "may not be specified for non-apply patch"));
        }
        _ => {}
    }
    errors.extend(write(options));
    errors
}

/// Checks `DeleteOptions`.
pub fn delete(orphan_dependents: Option<bool>, propagation_policy: Option<&str>, dry_run: &[&str]) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if let Some(policy) = propagation_policy {
        if orphan_dependents.is_some() {
            let message = "orphanDependents and deletionPropagation cannot be both set";
            errors.push(FieldError::invalid("propagationPolicy", policy, message));
        }
        if !matches!(policy, "Foreground" | "Background" | "Orphan") {
            let supported = &["Foreground", "Background", "Orphan", "nil"];
            errors.push(FieldError::not_supported("propagationPolicy", policy, supported));
        }
    }
    errors.extend(write(&WriteOptions { dry_run, ..WriteOptions::default() }));
    errors
}

fn field_manager(text: &str, path: Path<'_>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if text.len() > MANAGER_BYTES_MAX {
        errors.push(FieldError::too_long(path, MANAGER_BYTES_MAX));
    }
    for (at, c) in text.char_indices().filter(|(_, c)| c.is_control()) {
        let message = format!("invalid character U+{:04X} (at position {at})", u32::from(c));
        errors.push(FieldError::invalid(path, text, message));
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn apply_needs_a_manager_and_only_apply_may_force() {
        let options = WriteOptions::default();
        assert_eq!(
            patch(&options, PatchKind::Apply, None)[0].to_string(),
            "fieldManager: Required value: is required for apply patch"
        );
        assert_eq!(
            patch(&options, PatchKind::Other, Some(true))[0].to_string(),
            "force: Forbidden: may not be specified for non-apply patch"
        );
        let bad = WriteOptions { dry_run: &["x"], ..options };
        assert_eq!(write(&bad)[0].to_string(), "dryRun: Unsupported value: [\"x\"]: supported values: \"All\"");
    }
}
