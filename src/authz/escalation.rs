//! Nobody grants what they do not have: checks on writes of roles and bindings.

use std::fmt;
use std::sync::Arc;

use model::reference::GroupResource;
use registry::attributes::Attributes;
use registry::status::Status;
use registry::user::{GROUP_MASTERS, UserInfo};
use serde_json::Value;

use super::covers::{self, Missing, TooMany};
use super::rbac::{GROUP, Rbac, RoleRefError, listed};
use super::rule::{Rule, rules_of};
use super::{Authorizer, Decision};

/// Dependencies of the checks.
#[derive(Clone)]
pub struct Escalation {
    /// The roles that users hold.
    pub rbac: Arc<Rbac>,
    /// Whether the user may `escalate` or `bind` explicitly.
    pub authorizer: Arc<dyn Authorizer>,
}

impl Escalation {
    /// Refuses a write of a role or binding that would give rights which its writer lacks.
    ///
    /// `old` is the stored object of an update. Other resources pass.
    pub async fn check(&self, a: &Attributes, object: &Value, old: Option<&Value>) -> Result<(), Status> {
        if a.group != GROUP || !a.subresource.is_empty() || a.user.in_group(GROUP_MASTERS) {
            return Ok(());
        }
        match a.resource.as_str() {
            "roles" | "clusterroles" => self.check_role(a, object, old).await,
            "rolebindings" | "clusterrolebindings" => self.check_binding(a, object, old).await,
            _ => Ok(()),
        }
    }

    async fn check_role(&self, a: &Attributes, role: &Value, old: Option<&Value>) -> Result<(), Status> {
        if old.is_some_and(|old| only_kept(role, old)) || self.may(a, "escalate", &a.resource, &a.name).await {
            return Ok(());
        }
        self.held(&a.user, &a.namespace, &rules_of(role))
            .map_err(|why| Status::forbidden(of_rbac(&a.resource), &a.name, why.to_string()))?;
        // A role that gathers can come to hold anything, and one that gathered may not be changed by one who could not
        // have made it.
        if gathers(role) || old.is_some_and(gathers) {
            let all = Rule {
                verbs: vec!["*".into()],
                api_groups: vec!["*".into()],
                resources: vec!["*".into()],
                ..Rule::default()
            };
            let urls = Rule { verbs: vec!["*".into()], non_resource_urls: vec!["*".into()], ..Rule::default() };
            if let Err(_why) = self.held(&a.user, "", &[all, urls]) {
                let why = "must have cluster-admin privileges to use the aggregationRule";
                return Err(Status::forbidden(GroupResource { group: GROUP, resource: &a.resource }, &a.name, why));
            }
        }
        Ok(())
    }

    async fn check_binding(&self, a: &Attributes, binding: &Value, old: Option<&Value>) -> Result<(), Status> {
        let role = &binding["roleRef"];
        let name = role["name"].as_str().unwrap_or_default();
        let resource = if role["kind"] == "ClusterRole" { "clusterroles" } else { "roles" };
        if old.is_some_and(|old| only_kept(binding, old)) || self.may(a, "bind", resource, name).await {
            return Ok(());
        }
        let rules = match self.rbac.rules_of_ref(role, &a.namespace) {
            Ok(rules) => rules,
            Err(_missing) => return Err(Status::not_found(GroupResource { group: GROUP, resource }, name)),
        };
        self.held(&a.user, &a.namespace, &rules)
            .map_err(|why| Status::forbidden(of_rbac(&a.resource), &a.name, why.to_string()))
    }

    async fn may(&self, a: &Attributes, verb: &str, resource: &str, name: &str) -> bool {
        let asked = Attributes {
            user: a.user.clone(),
            verb: verb.to_owned(),
            group: GROUP.to_owned(),
            version: "*".to_owned(),
            resource: resource.to_owned(),
            namespace: a.namespace.clone(),
            name: name.to_owned(),
            is_resource: true,
            ..Attributes::default()
        };
        matches!(self.authorizer.authorize(&asked).await, Decision::Allow { .. })
    }

    /// Whether the user holds `rules` in `namespace`.
    fn held(&self, user: &UserInfo, namespace: &str, rules: &[Rule]) -> Result<(), NotHeld> {
        let (held, unresolved) = self.rbac.rules_for(user, namespace);
        let missing = covers::missing(&held, rules)?;
        if missing.rules.is_empty() {
            return Ok(());
        }
        Err(NotHeld::Missing(Box::new(Attempt { user: user.clone(), missing, unresolved })))
    }
}

/// Why a user may not give rights away.
#[derive(Debug, thiserror::Error)]
enum NotHeld {
    #[error(transparent)]
    TooMany(#[from] TooMany),
    #[error("{0}")]
    Missing(Box<Attempt>),
}

/// A grant of rights that the user lacks. `Display` is upstream's text.
#[derive(Debug)]
struct Attempt {
    user: UserInfo,
    missing: Missing,
    /// Roles of the user's bindings that are not there.
    unresolved: Vec<RoleRefError>,
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let groups: Vec<String> = self.user.groups.iter().map(|group| format!("{group:?}")).collect();
        let lines: Vec<String> = self.missing.rules.iter().map(Rule::compact).collect();
        write!(
            f,
            "user {:?} (groups=[{}]) is attempting to grant RBAC permissions not currently held:\n{}",
            self.user.name,
            groups.join(" "),
            lines.join("\n")
        )?;
        if self.missing.more {
            f.write_str("\nand more")?;
        }
        match self.unresolved.as_slice() {
            [] => Ok(()),
            errors => write!(f, "; resolution errors: [{}]", listed(errors)),
        }
    }
}

fn of_rbac(resource: &str) -> GroupResource<'_> {
    GroupResource { group: GROUP, resource }
}

/// Whether a write changes nothing but what the garbage collector needs to: labels decide which roles gather a role's
/// rules.
///
/// Spec: upstream v1.36 `IsOnlyMutatingGCFields` (pkg/registry/rbac/helpers.go).
fn only_kept(new: &Value, old: &Value) -> bool {
    let rest = |object: &Value| {
        let mut object = object.clone();
        if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.retain(|field, _| {
                !matches!(field.as_str(), "ownerReferences" | "finalizers" | "selfLink" | "managedFields")
            });
        }
        without_empty(object)
    };
    rest(new) == rest(old)
}

/// Nothing and an empty list, map or text are the same.
fn without_empty(value: Value) -> Value {
    let says = |value: &Value| match value {
        Value::Null => false,
        Value::Array(items) => !items.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
        Value::String(text) => !text.is_empty(),
        Value::Bool(_) | Value::Number(_) => true,
    };
    match value {
        Value::Object(fields) => {
            fields.into_iter().map(|(field, v)| (field, without_empty(v))).filter(|(_, v)| says(v)).collect()
        }
        Value::Array(items) => items.into_iter().map(without_empty).collect(),
        other => other,
    }
}

fn gathers(role: &Value) -> bool {
    role["aggregationRule"]["clusterRoleSelectors"].as_array().is_some_and(|selectors| !selectors.is_empty())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use registry::memory::Objects;

    fn escalation() -> Escalation {
        let read = json!([{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}]);
        let objects = Objects::of([
            (GROUP, "clusterroles", json!({"metadata": {"name": "reader"}, "rules": read})),
            (
                GROUP,
                "clusterroles",
                json!({"metadata": {"name": "lord"},
                    "rules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}]}),
            ),
            (
                GROUP,
                "clusterrolebindings",
                json!({"metadata": {"name": "b"}, "roleRef": {"kind": "ClusterRole", "name": "reader"},
                "subjects": [{"kind": "User", "name": "bob"}]}),
            ),
        ]);
        let rbac = Arc::new(Rbac::new(Arc::new(objects)));
        Escalation { rbac: rbac.clone(), authorizer: rbac }
    }

    fn writes(resource: &str, name: &str) -> Attributes {
        let user = UserInfo::new("bob", &[]).into();
        Attributes {
            user,
            verb: "create".into(),
            group: GROUP.into(),
            resource: resource.into(),
            name: name.into(),
            is_resource: true,
            ..Attributes::default()
        }
    }

    #[tokio::test]
    async fn a_role_with_more_than_its_writer_has_is_refused_with_upstreams_text() {
        let role = json!({"rules": [{"verbs": ["get", "delete"], "apiGroups": [""], "resources": ["pods"]}]});
        let status = escalation().check(&writes("clusterroles", "r"), &role, None).await.unwrap_err();
        let text = "clusterroles.rbac.authorization.k8s.io \"r\" is forbidden: user \"bob\" \
                    (groups=[\"system:authenticated\"]) is attempting to grant \
                    RBAC permissions not currently held:\n{APIGroups:[\"\"], Resources:[\"pods\"], Verbs:[\"delete\"]}";
        assert_eq!(status.message, text);
        let role = json!({"rules": [{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}]});
        escalation().check(&writes("clusterroles", "r"), &role, None).await.unwrap();
    }

    #[tokio::test]
    async fn binding_a_greater_role_is_refused_and_an_unchanged_one_passes() {
        let bind = |role: &str| json!({"roleRef": {"kind": "ClusterRole", "name": role}, "subjects": []});
        let a = writes("clusterrolebindings", "b");
        assert_eq!(escalation().check(&a, &bind("lord"), None).await.unwrap_err().code, 403);
        escalation().check(&a, &bind("lord"), Some(&bind("lord"))).await.unwrap();
        escalation().check(&a, &bind("reader"), None).await.unwrap();
        assert_eq!(escalation().check(&a, &bind("nobody"), None).await.unwrap_err().code, 404);
    }

    // issue 12: who might patch a role came to anything by the label of what an administrator's role gathers.
    #[tokio::test]
    async fn a_label_on_a_greater_role_is_a_change_of_it_and_an_owner_is_none() {
        let lord = json!({"metadata": {"name": "lord", "managedFields": [1]},
            "rules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}]});
        let mut labelled = lord.clone();
        labelled["metadata"]["labels"] = json!({"rbac.authorization.k8s.io/aggregate-to-edit": "true"});
        let mut kept = lord.clone();
        kept["metadata"] =
            json!({"name": "lord", "labels": {}, "finalizers": ["a.b/c"], "ownerReferences": [{"uid": "u"}]});
        for resource in ["roles", "clusterroles"] {
            let a = writes(resource, "lord");
            assert_eq!(escalation().check(&a, &labelled, Some(&lord)).await.unwrap_err().code, 403, "{resource}");
            escalation().check(&a, &kept, Some(&lord)).await.unwrap();
        }
        let bound =
            json!({"metadata": {"name": "b"}, "roleRef": {"kind": "ClusterRole", "name": "lord"}, "subjects": []});
        let mut labelled = bound.clone();
        labelled["metadata"]["labels"] = json!({"a": "b"});
        for resource in ["rolebindings", "clusterrolebindings"] {
            assert_eq!(
                escalation().check(&writes(resource, "b"), &labelled, Some(&bound)).await.unwrap_err().code,
                403,
                "{resource}"
            );
        }
    }

    #[tokio::test]
    async fn a_role_that_gathers_is_changed_by_none_but_who_holds_everything() {
        let plain = json!({"metadata": {"name": "r"}, "rules": []});
        let gathering = json!({"metadata": {"name": "r"}, "rules": [],
            "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"a": "b"}}]}});
        let mut labelled = gathering.clone();
        labelled["metadata"]["labels"] = json!({"a": "b"});
        for (new, old) in
            [(&labelled, Some(&gathering)), (&plain, Some(&gathering)), (&gathering, Some(&plain)), (&gathering, None)]
        {
            let said = escalation().check(&writes("clusterroles", "r"), new, old).await.unwrap_err();
            assert!(
                said.message.ends_with("must have cluster-admin privileges to use the aggregationRule"),
                "{}",
                said.message
            );
        }
    }
}
