//! Nobody grants what they do not have: checks on writes of roles and bindings.

use std::sync::Arc;

use serde_json::Value;

use super::rbac::{GROUP, Rbac};
use super::rule::{Rule, rules_of};
use super::{Authorizer, Decision, covers};
use crate::attributes::Attributes;
use crate::status::Status;
use crate::user::{GROUP_MASTERS, UserInfo};

/// What the checks ask.
#[derive(Clone)]
pub struct Escalation {
    /// Who holds what.
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
        if lets_go_only(role, old) || self.may(a, "escalate", &a.resource, &a.name).await {
            return Ok(());
        }
        self.held(&a.user, &a.namespace, &rules_of(role)).map_err(|why| Status::forbidden(GROUP, &a.resource, &a.name, &why))?;
        // A role that gathers can come to hold anything, and one that does so no more is not tightened any more.
        if role["aggregationRule"].is_object() || old.is_some_and(|old| old["aggregationRule"].is_object()) {
            let all = Rule { verbs: vec!["*".into()], api_groups: vec!["*".into()], resources: vec!["*".into()], ..Rule::default() };
            let urls = Rule { verbs: vec!["*".into()], non_resource_urls: vec!["*".into()], ..Rule::default() };
            if let Err(_why) = self.held(&a.user, "", &[all, urls]) {
                let why = "must have cluster-admin privileges to use the aggregationRule";
                return Err(Status::forbidden(GROUP, &a.resource, &a.name, why));
            }
        }
        Ok(())
    }

    async fn check_binding(&self, a: &Attributes, binding: &Value, old: Option<&Value>) -> Result<(), Status> {
        let role = &binding["roleRef"];
        let name = role["name"].as_str().unwrap_or_default();
        let resource = if role["kind"] == "ClusterRole" { "clusterroles" } else { "roles" };
        if lets_go_only(binding, old) || self.may(a, "bind", resource, name).await {
            return Ok(());
        }
        let rules = match self.rbac.rules_of_ref(role, &a.namespace) {
            Ok(rules) => rules,
            Err(_missing) => return Err(Status::not_found(GROUP, resource, name)),
        };
        self.held(&a.user, &a.namespace, &rules).map_err(|why| Status::forbidden(GROUP, &a.resource, &a.name, &why))
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

    /// Whether the user holds `rules` in `namespace`; the text of the refusal is upstream's.
    fn held(&self, user: &UserInfo, namespace: &str, rules: &[Rule]) -> Result<(), String> {
        let (held, errors) = self.rbac.rules_for(user, namespace);
        let missing = covers::missing(&held, rules).map_err(|too_many| too_many.to_string())?;
        if missing.rules.is_empty() {
            return Ok(());
        }
        let groups: Vec<String> = user.groups.iter().map(|group| format!("{group:?}")).collect();
        let lines: Vec<String> = missing.rules.iter().map(Rule::compact).collect();
        let mut why = format!(
            "user {:?} (groups=[{}]) is attempting to grant RBAC permissions not currently held:\n{}",
            user.name,
            groups.join(" "),
            lines.join("\n")
        );
        if missing.more {
            why.push_str("\nand more");
        }
        if !errors.is_empty() {
            why.push_str(&format!("; resolution errors: [{}]", errors.join(", ")));
        }
        Err(why)
    }
}

/// Whether an update changes only what garbage collection needs, so that it can remove what it could not grant.
///
/// Everything else is judged, labels above all: a label alone makes a role part of another that gathers
/// (`pkg/registry/rbac/helpers.go`, 1.36.2).
fn lets_go_only(object: &Value, old: Option<&Value>) -> bool {
    let bare = |object: &Value| {
        let mut bare = object.clone();
        if let Some(metadata) = bare.get_mut("metadata").and_then(Value::as_object_mut) {
            for field in ["ownerReferences", "finalizers", "managedFields", "resourceVersion"] {
                metadata.remove(field);
            }
        }
        bare
    };
    old.is_some_and(|old| bare(object) == bare(old))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::authz::fixture::Objects;

    fn escalation() -> Escalation {
        let read = json!([{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}]);
        let objects = Objects::of([
            (GROUP, "clusterroles", json!({"metadata": {"name": "reader"}, "rules": read})),
            (
                GROUP,
                "clusterroles",
                json!({"metadata": {"name": "lord"}, "rules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}]}),
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
        let text = "clusterroles.rbac.authorization.k8s.io \"r\" is forbidden: user \"bob\" (groups=[\"system:authenticated\"]) is attempting to grant \
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
        let mut labelled = bind("lord");
        labelled["metadata"] = json!({"labels": {"a": "b"}});
        assert_eq!(escalation().check(&a, &labelled, Some(&bind("lord"))).await.unwrap_err().code, 403);
        assert_eq!(escalation().check(&a, &bind("nobody"), None).await.unwrap_err().code, 404);
    }
    #[tokio::test]
    async fn a_label_makes_no_part_of_an_aggregated_role_of_what_its_writer_lacks() {
        let lord = |metadata: Value, more: Value| {
            let mut role = json!({"metadata": metadata, "rules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}]});
            role["aggregationRule"] = more;
            role
        };
        let (a, plain) = (writes("clusterroles", "lord"), lord(json!({"name": "lord", "resourceVersion": "1"}), Value::Null));
        let labels = json!({"name": "lord", "labels": {"rbac.authorization.k8s.io/aggregate-to-view": "true"}});
        let status = escalation().check(&a, &lord(labels, Value::Null), Some(&plain)).await.unwrap_err();
        assert!(status.message.contains("not currently held"), "{}", status.message);
        let annotated = lord(json!({"name": "lord", "annotations": {"a": "b"}}), Value::Null);
        assert_eq!(escalation().check(&a, &annotated, Some(&plain)).await.unwrap_err().code, 403);
        // The garbage collector takes finalizers and owners off of what it could not grant.
        let free = lord(
            json!({"name": "lord", "finalizers": [], "managedFields": [1], "ownerReferences": [], "resourceVersion": "2"}),
            Value::Null,
        );
        escalation().check(&a, &free, Some(&plain)).await.unwrap();
        // What gathered may not stop to gather by the hand of somebody who lacks what it can come to hold.
        let (mut reads, gathers) = (json!({"rules": []}), json!({"rules": [], "aggregationRule": {"clusterRoleSelectors": []}}));
        let text = "must have cluster-admin privileges to use the aggregationRule";
        assert!(escalation().check(&a, &reads, Some(&gathers)).await.unwrap_err().message.contains(text));
        reads["metadata"] = json!({"labels": {"a": "b"}});
        escalation().check(&a, &reads, Some(&json!({"rules": []}))).await.unwrap();
    }
}
