//! Roles and bindings.

use model::names::{dns_subdomain_errors, path_segment_errors};
use serde_json::Value;

use crate::read;
use crate::validate::checks::{Errors, invalid_each, label_selector};
use crate::validate::error::FieldError;
use crate::validate::path::Path;

const GROUP: &str = "rbac.authorization.k8s.io";

#[derive(Clone, Copy, PartialEq, Eq)]
enum Scope {
    Namespace,
    Cluster,
}

fn rules(object: &Value, scope: Scope, errors: &mut Errors) {
    for (idx, rule) in read::list(object, "rules").iter().enumerate() {
        let path = format!("rules[{idx}]");
        let urls = read::texts(rule, "nonResourceURLs");
        let (groups, resources) = (read::list(rule, "apiGroups"), read::list(rule, "resources"));
        if read::list(rule, "verbs").is_empty() {
            errors.push(FieldError::required(format!("{path}.verbs"), "verbs must contain at least one value"));
        }
        if !urls.is_empty() {
            let mut bad = |message: &str| {
                errors.push(FieldError::invalid(format!("{path}.nonResourceURLs"), urls.clone(), message))
            };
            if scope == Scope::Namespace {
                bad("namespaced rules cannot apply to non-resource URLs");
            }
            if !groups.is_empty() || !resources.is_empty() || !read::list(rule, "resourceNames").is_empty() {
                bad("rules cannot apply to both regular resources and non-resource URLs");
            }
            continue;
        }
        if groups.is_empty() {
            errors.push(FieldError::required(
                format!("{path}.apiGroups"),
                "resource rules must supply at least one api group",
            ));
        }
        if resources.is_empty() {
            errors.push(FieldError::required(
                format!("{path}.resources"),
                "resource rules must supply at least one resource",
            ));
        }
    }
}

pub(crate) fn role(object: &Value, errors: &mut Errors) {
    rules(object, Scope::Namespace, errors);
}

pub(crate) fn cluster_role(object: &Value, errors: &mut Errors) {
    rules(object, Scope::Cluster, errors);
    if let Some(aggregation) = read::at(object, "aggregationRule") {
        let selectors = read::list(aggregation, "clusterRoleSelectors");
        if selectors.is_empty() {
            let message = "at least one clusterRoleSelector required if aggregationRule is non-nil";
            errors.push(FieldError::required("aggregationRule.clusterRoleSelectors", message));
        }
        for (idx, selector) in selectors.iter().enumerate() {
            label_selector(selector, Path(&format!("aggregationRule.clusterRoleSelectors[{idx}]")), errors);
        }
    }
}

fn binding(object: &Value, kinds: &[&str], scope: Scope, errors: &mut Errors) {
    let group = read::text(object, "roleRef.apiGroup");
    if group != GROUP {
        errors.push(FieldError::not_supported("roleRef.apiGroup", group, &[GROUP]));
    }
    let kind = read::text(object, "roleRef.kind");
    if !kinds.contains(&kind) {
        errors.push(FieldError::not_supported("roleRef.kind", kind, kinds));
    }
    let name = read::text(object, "roleRef.name");
    if name.is_empty() {
        errors.push(FieldError::required("roleRef.name", ""));
    } else {
        invalid_each(Path("roleRef.name"), name, path_segment_errors(name), errors);
    }
    for (idx, subject) in read::list(object, "subjects").iter().enumerate() {
        self::subject(subject, Path(&format!("subjects[{idx}]")), scope, errors);
    }
}

fn subject(subject: &Value, path: Path<'_>, scope: Scope, errors: &mut Errors) {
    let name = read::text(subject, "name");
    if name.is_empty() {
        errors.push(FieldError::required(format!("{path}.name"), ""));
    }
    let group = read::text(subject, "apiGroup");
    match read::text(subject, "kind") {
        "ServiceAccount" => {
            if !name.is_empty() {
                invalid_each(Path(&format!("{path}.name")), name, dns_subdomain_errors(name), errors);
            }
            if !group.is_empty() {
                errors.push(FieldError::not_supported(format!("{path}.apiGroup"), group, &[""]));
            }
            if scope == Scope::Cluster && read::text(subject, "namespace").is_empty() {
                errors.push(FieldError::required(format!("{path}.namespace"), ""));
            }
        }
        "User" | "Group" => {
            if group != GROUP {
                errors.push(FieldError::not_supported(format!("{path}.apiGroup"), group, &[GROUP]));
            }
        }
        other => {
            errors.push(FieldError::not_supported(format!("{path}.kind"), other, &["ServiceAccount", "User", "Group"]))
        }
    }
}

pub(crate) fn role_binding(object: &Value, errors: &mut Errors) {
    binding(object, &["Role", "ClusterRole"], Scope::Namespace, errors);
}

pub(crate) fn cluster_role_binding(object: &Value, errors: &mut Errors) {
    binding(object, &["ClusterRole"], Scope::Cluster, errors);
}

pub(crate) fn binding_update(new: &Value, old: &Value, errors: &mut Errors) {
    let (now, before) = (read::at(new, "roleRef"), read::at(old, "roleRef"));
    if now != before {
        errors.push(FieldError::invalid("roleRef", now.cloned().unwrap_or(Value::Null), "cannot change roleRef"));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::validate::testing::{replaced, wrong};

    /// Spec: `ValidatePolicyRule` of upstream v1.36.
    #[test]
    fn a_rule_is_about_resources_or_urls() {
        let urls = "rules[0].nonResourceURLs: Invalid value: [\"/*\"]: ";
        for (rule, of_role, of_cluster_role) in [
            (json!({"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}), vec![], vec![]),
            (
                json!({"apiGroups": [""], "resources": ["pods"]}),
                vec!["rules[0].verbs: Required value: verbs must contain at least one value".to_owned()],
                vec!["rules[0].verbs: Required value: verbs must contain at least one value".to_owned()],
            ),
            (
                json!({"verbs": ["get"], "resources": ["pods"]}),
                vec![
                    "rules[0].apiGroups: Required value: resource rules must supply at least one api group".to_owned(),
                ],
                vec![
                    "rules[0].apiGroups: Required value: resource rules must supply at least one api group".to_owned(),
                ],
            ),
            (
                json!({"verbs": ["get"], "apiGroups": [""]}),
                vec!["rules[0].resources: Required value: resource rules must supply at least one resource".to_owned()],
                vec!["rules[0].resources: Required value: resource rules must supply at least one resource".to_owned()],
            ),
            (
                json!({"verbs": ["get"], "nonResourceURLs": ["/*"]}),
                vec![format!("{urls}namespaced rules cannot apply to non-resource URLs")],
                vec![],
            ),
            (
                json!({"verbs": ["get"], "nonResourceURLs": ["/*"], "resourceNames": ["a"]}),
                vec![
                    format!("{urls}namespaced rules cannot apply to non-resource URLs"),
                    format!("{urls}rules cannot apply to both regular resources and non-resource URLs"),
                ],
                vec![format!("{urls}rules cannot apply to both regular resources and non-resource URLs")],
            ),
        ] {
            let object = json!({"rules": [rule]});
            assert_eq!(wrong(role, object.clone()), of_role, "{object}");
            assert_eq!(wrong(cluster_role, object.clone()), of_cluster_role, "{object}");
        }
    }

    #[test]
    fn an_aggregation_has_selectors() {
        let why = "at least one clusterRoleSelector required if aggregationRule is non-nil";
        assert_eq!(
            wrong(cluster_role, json!({"aggregationRule": {}})),
            [format!("aggregationRule.clusterRoleSelectors: Required value: {why}")]
        );
        let selector = json!({"matchExpressions": [{"key": "a", "operator": "In"}]});
        let said = wrong(cluster_role, json!({"aggregationRule": {"clusterRoleSelectors": [selector]}}));
        assert!(
            said[0].starts_with(
                "aggregationRule.clusterRoleSelectors[0].matchExpressions[0].values: \
            "
            ),
            "{said:?}"
        );
    }

    /// Spec: `ValidateRoleBinding`, `ValidateRoleBindingSubject` of upstream v1.36.
    #[test]
    fn a_binding_names_a_role_and_subjects() {
        let binding = |role: Value, subject: Value| json!({"roleRef": role, "subjects": [subject]});
        let good = || json!({"apiGroup": GROUP, "kind": "ClusterRole", "name": "view"});
        let user = || json!({"apiGroup": GROUP, "kind": "User", "name": "me"});
        let group = "supported values: \"rbac.authorization.k8s.io\"";
        for (object, said) in [
            (binding(good(), user()), vec![]),
            (
                binding(json!({"kind": "ClusterRole", "name": "view"}), user()),
                vec![format!("roleRef.apiGroup: Unsupported value: \"\": {group}")],
            ),
            (
                binding(json!({"apiGroup": GROUP, "kind": "Foo", "name": "view"}), user()),
                vec![
                    "roleRef.kind: Unsupported value: \"Foo\": supported values: \"Role\", \"ClusterRole\"".to_owned(),
                ],
            ),
            (
                binding(json!({"apiGroup": GROUP, "kind": "Role", "name": ""}), user()),
                vec!["roleRef.name: Required value".to_owned()],
            ),
            (
                binding(json!({"apiGroup": GROUP, "kind": "Role", "name": "a/b"}), user()),
                vec!["roleRef.name: Invalid value: \"a/b\": may not contain '/'".to_owned()],
            ),
            (
                binding(good(), json!({"kind": "User", "name": "me"})),
                vec![format!("subjects[0].apiGroup: Unsupported value: \"\": {group}")],
            ),
            (
                binding(good(), json!({"apiGroup": GROUP, "kind": "Group", "name": ""})),
                vec!["subjects[0].name: Required value".to_owned()],
            ),
            (
                binding(good(), json!({"apiGroup": GROUP, "kind": "ServiceAccount", "name": "a", "namespace": "b"})),
                vec![format!("subjects[0].apiGroup: Unsupported value: \"{GROUP}\": supported values: \"\"")],
            ),
            (
                binding(good(), json!({"kind": "Robot", "name": "a"})),
                vec![
                    "subjects[0].kind: Unsupported value: \"Robot\": supported values: \"ServiceAccount\", \"User\", \
                     \"Group\""
                        .to_owned(),
                ],
            ),
        ] {
            assert_eq!(wrong(role_binding, object.clone()), said, "{object}");
        }
        let account = binding(good(), json!({"kind": "ServiceAccount", "name": "a"}));
        assert_eq!(wrong(role_binding, account.clone()), [""; 0]);
        assert_eq!(wrong(cluster_role_binding, account), ["subjects[0].namespace: Required value"]);
        let role = binding(json!({"apiGroup": GROUP, "kind": "Role", "name": "r"}), user());
        assert_eq!(
            wrong(cluster_role_binding, role),
            ["roleRef.kind: Unsupported value: \"Role\": supported values: \"ClusterRole\""]
        );
    }

    #[test]
    fn a_binding_keeps_its_role() {
        let of = |name: &str| json!({"roleRef": {"name": name}});
        assert_eq!(replaced(binding_update, of("a"), of("a")), [""; 0]);
        assert_eq!(
            replaced(binding_update, of("b"), of("a")),
            ["roleRef: Invalid value: {\"name\":\"b\"}: cannot change roleRef"]
        );
    }
}
