//! The writer of a policy or a binding must be allowed to read the parameters that it names: a policy could print them
//! in its refusals.

use std::sync::Arc;

use async_trait::async_trait;
use authz::{Authorizer, Decision};
use model::reference::{GroupKind, GroupResource, NamespacedName};
use registry::attributes::Attributes;
use registry::status::Status;
use registry::user::GROUP_MASTERS;
use schema::read;
use schema::table::GroupVersion;
use schema::validate::error::FieldError;
use serde_json::Value;

use super::GROUP;
use crate::{Operation, Plugin, Review};

/// Upstream makes these checks in the storage of policies and bindings; here they are one more plugin.
///
/// Spec: `authz.go` of upstream's pkg/registry/admissionregistration/validatingadmissionpolicy and its three brothers
/// (v1.36.2).
pub struct PolicyParameters(pub Arc<dyn Authorizer>);

/// Policies and bindings of both sorts: resource, kind, and for bindings the resource of their policies.
const KINDS: [(&str, &str, &str); 4] = [
    ("validatingadmissionpolicies", "ValidatingAdmissionPolicy", ""),
    ("mutatingadmissionpolicies", "MutatingAdmissionPolicy", ""),
    ("validatingadmissionpolicybindings", "ValidatingAdmissionPolicyBinding", "validatingadmissionpolicies"),
    ("mutatingadmissionpolicybindings", "MutatingAdmissionPolicyBinding", "mutatingadmissionpolicies"),
];

#[async_trait]
impl Plugin for PolicyParameters {
    fn name(&self) -> &'static str {
        "AdmissionPolicyParameters"
    }

    fn handles(&self, operation: Operation, a: &Attributes) -> bool {
        let kind =
            a.group == GROUP && a.subresource.is_empty() && KINDS.iter().any(|(resource, ..)| *resource == a.resource);
        kind && matches!(operation, Operation::Create | Operation::Update) && !a.user.in_group(GROUP_MASTERS)
    }

    async fn validate(&self, review: &Review<'_>) -> Result<(), Status> {
        let a = review.attributes;
        let Some((_, kind, policies)) = KINDS.iter().find(|(resource, ..)| *resource == a.resource) else {
            return Ok(());
        };
        let field = if policies.is_empty() { "paramKind" } else { "paramRef" };
        let (new, old) = (&review.object["spec"], review.old.map_or(&Value::Null, |old| &old["spec"]));
        if !new[field].is_object() || (new[field] == old[field] && new["policyName"] == old["policyName"]) {
            return Ok(());
        }
        let (asked, why) = if policies.is_empty() {
            let (kind, version) = (read::text(&new[field], "kind"), read::text(&new[field], "apiVersion"));
            let everything = ("get", "*", "*");
            let why = format!(
                "must have \"get\" permission on all objects of the referenced paramKind (kind={kind}, \
                 apiVersion={version})"
            );
            (self.asked(review, &new[field], everything), why)
        } else {
            let policy = review
                .lookup
                .sure(
                    GroupResource { group: GROUP, resource: policies },
                    NamespacedName::cluster(read::text(new, "policyName")),
                )
                .await;
            let param_kind = policy.map_or(Value::Null, |policy| policy["spec"]["paramKind"].clone());
            let (namespace, name) = (read::text(&new[field], "namespace"), read::text(&new[field], "name"));
            let verb = if name.is_empty() { "list" } else { "get" };
            let why = format!("does not have {verb:?} permission on the object referenced by paramRef");
            (self.asked(review, &param_kind, (verb, namespace, name)), why)
        };
        if matches!(self.0.authorize(&asked).await, Decision::Allow { .. }) {
            return Ok(());
        }
        let fault = FieldError::forbidden(format!("spec.{field}"), format!("user {:?} {why}", a.user.name));
        Err(registry::status::invalid(GroupKind { group: GROUP, kind }, &a.name, vec![fault]))
    }
}

impl PolicyParameters {
    /// The read of parameters of a kind. What cannot be told from the kind stands for everything.
    fn asked(
        &self,
        review: &Review<'_>,
        param_kind: &Value,
        (verb, namespace, name): (&str, &str, &str),
    ) -> Attributes {
        let (api_version, kind) = (read::text(param_kind, "apiVersion"), read::text(param_kind, "kind"));
        let (group, version) = match api_version.split_once('/') {
            Some(parts) => parts,
            None if api_version.is_empty() => ("*", "*"),
            None => ("", api_version),
        };
        let resource = review
            .catalog
            .by_kind(GroupVersion::parse(api_version), kind)
            .map_or_else(|| "*".to_owned(), |row| row.plural.to_string());
        Attributes {
            user: Arc::clone(&review.attributes.user),
            verb: verb.to_owned(),
            group: group.to_owned(),
            version: version.to_owned(),
            resource,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            is_resource: true,
            ..Attributes::default()
        }
    }
}
