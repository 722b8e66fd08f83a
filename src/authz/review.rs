//! Access reviews: what an authorizer would say, asked as an object.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use model::reference::GroupKind;
use registry::attributes::Attributes;
use registry::status::{Cause, Status};
use registry::user::UserInfo;
use registry::virtuals::Virtual;
use serde_json::{Value, json};

use super::rbac::{Rbac, listed};
use super::{Authorizer, Decision};

const GROUP: &str = "authorization.k8s.io";

/// Which of the three access reviews is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `SubjectAccessReview`: about anybody, everywhere.
    Subject,
    /// `LocalSubjectAccessReview`: about anybody, in one namespace.
    Local,
    /// `SelfSubjectAccessReview`: about the one who asks.
    Own,
}

/// Answers access reviews.
pub struct AccessReview {
    /// Which.
    pub kind: Kind,
    /// The authorizer that is asked.
    pub authorizer: Arc<dyn Authorizer>,
}

#[async_trait]
impl Virtual for AccessReview {
    async fn create(&self, a: &Attributes, mut object: Value) -> Result<Value, Status> {
        let spec = &object["spec"];
        check(self.kind, spec, a)?;
        let user = if self.kind == Kind::Own { a.user.clone() } else { Arc::new(subject(spec)) };
        let asked = attributes(spec, user);
        object["status"] = status_of(self.authorizer.authorize(&asked).await);
        Ok(object)
    }
}

fn check(kind: Kind, spec: &Value, a: &Attributes) -> Result<(), Status> {
    let name = match kind {
        Kind::Subject => "SubjectAccessReview",
        Kind::Local => "LocalSubjectAccessReview",
        Kind::Own => "SelfSubjectAccessReview",
    };
    let refuse = |reason: &str, field: &str, message: String| {
        let cause = Cause { reason: reason.to_owned(), message, field: field.to_owned() };
        Err(Status::invalid(GroupKind { group: GROUP, kind: name }, "", vec![cause]))
    };
    let (resource, path) = (spec["resourceAttributes"].is_object(), spec["nonResourceAttributes"].is_object());
    if resource && path {
        let text = "Invalid value: \"null\": cannot be specified in combination with resourceAttributes".to_owned();
        return refuse("FieldValueInvalid", "spec.nonResourceAttributes", text);
    }
    if !resource && !path {
        let text = "Invalid value: null: exactly one of nonResourceAttributes or resourceAttributes must be specified"
            .to_owned();
        return refuse("FieldValueInvalid", "spec.resourceAttributes", text);
    }
    let nobody =
        spec["user"].as_str().unwrap_or_default().is_empty() && spec["groups"].as_array().is_none_or(Vec::is_empty);
    if kind != Kind::Own && nobody {
        return refuse(
            "FieldValueInvalid",
            "spec.user",
            "Invalid value: \"\": at least one of user or group must be specified".to_owned(),
        );
    }
    if kind == Kind::Local && path {
        let text = "Invalid value: \"null\": disallowed on this kind of request".to_owned();
        return refuse("FieldValueInvalid", "spec.nonResourceAttributes", text);
    }
    if kind == Kind::Local && spec["resourceAttributes"]["namespace"].as_str().unwrap_or_default() != a.namespace {
        let given = spec["resourceAttributes"]["namespace"].as_str().unwrap_or_default();
        let text = format!("Invalid value: {given:?}: must match metadata.namespace");
        return refuse("FieldValueInvalid", "spec.resourceAttributes.namespace", text);
    }
    Ok(())
}

fn subject(spec: &Value) -> UserInfo {
    let text = |field: &str| spec[field].as_str().unwrap_or_default().to_owned();
    let list = |value: &Value| {
        value.as_array().into_iter().flatten().filter_map(|v| v.as_str().map(str::to_owned)).collect::<Vec<_>>()
    };
    let extra: BTreeMap<String, Vec<String>> =
        spec["extra"].as_object().into_iter().flatten().map(|(k, v)| (k.to_lowercase(), list(v))).collect();
    UserInfo { name: text("user"), uid: text("uid"), groups: list(&spec["groups"]), extra }
}

/// The request that a review's spec describes.
pub fn attributes(spec: &Value, user: Arc<UserInfo>) -> Attributes {
    let (resource, path) = (&spec["resourceAttributes"], &spec["nonResourceAttributes"]);
    let text = |from: &Value, field: &str| from[field].as_str().unwrap_or_default().to_owned();
    if path.is_object() {
        return Attributes { user, verb: text(path, "verb"), path: text(path, "path"), ..Attributes::default() };
    }
    Attributes {
        user,
        verb: text(resource, "verb"),
        group: text(resource, "group"),
        version: text(resource, "version"),
        resource: text(resource, "resource"),
        subresource: text(resource, "subresource"),
        namespace: text(resource, "namespace"),
        name: text(resource, "name"),
        is_resource: true,
        label_selector: text(&resource["labelSelector"], "rawSelector"),
        field_selector: field_selector(&resource["fieldSelector"]),
        ..Attributes::default()
    }
}

// Requirements with one value and `In` are `field=value`; others say nothing that our authorizers read.
fn field_selector(selector: &Value) -> String {
    if let Some(raw) = selector["rawSelector"].as_str() {
        return raw.to_owned();
    }
    let terms = selector["requirements"].as_array().into_iter().flatten().filter_map(|requirement| {
        let values = requirement["values"].as_array()?;
        let (key, value) = (requirement["key"].as_str()?, values.first()?.as_str()?);
        (requirement["operator"] == "In" && values.len() == 1).then(|| format!("{key}={value}"))
    });
    terms.collect::<Vec<_>>().join(",")
}

fn status_of(decision: Decision) -> Value {
    let (allowed, denied, reason) = match decision {
        Decision::Allow { reason } => (true, false, reason),
        Decision::Deny { reason } => (false, true, reason),
        Decision::NoOpinion { reason } => (false, false, reason),
    };
    let mut status = json!({ "allowed": allowed });
    if denied {
        status["denied"] = json!(true);
    }
    if !reason.is_empty() {
        status["reason"] = json!(reason);
    }
    status
}

/// Answers `SelfSubjectRulesReview`: everything that the one who asks may do in a namespace.
pub struct RulesReview {
    /// The roles that users hold.
    pub rbac: Arc<Rbac>,
}

#[async_trait]
impl Virtual for RulesReview {
    async fn create(&self, a: &Attributes, mut object: Value) -> Result<Value, Status> {
        let namespace = object["spec"]["namespace"].as_str().unwrap_or_default().to_owned();
        if namespace.is_empty() {
            return Err(Status::bad_request("no namespace on request"));
        }
        let (rules, errors) = self.rbac.rules_for(&a.user, &namespace);
        let (of_paths, of_resources): (Vec<_>, Vec<_>) =
            rules.into_iter().partition(|rule| !rule.non_resource_urls.is_empty());
        object["status"] = json!({
            "resourceRules": of_resources.iter().map(|rule| rule.to_value()).collect::<Vec<_>>(),
            "nonResourceRules": of_paths.iter().map(|rule| rule.to_value()).collect::<Vec<_>>(),
            "incomplete": !errors.is_empty(),
        });
        if !errors.is_empty() {
            object["status"]["evaluationError"] = json!(listed(&errors));
        }
        Ok(object)
    }
}

/// Every review of access, by group and resource.
pub fn virtuals(
    authorizer: &Arc<dyn Authorizer>,
    rbac: &Arc<Rbac>,
) -> Vec<(&'static str, &'static str, Arc<dyn Virtual>)> {
    let access = |kind: Kind| Arc::new(AccessReview { kind, authorizer: authorizer.clone() });
    vec![
        (GROUP, "subjectaccessreviews", access(Kind::Subject)),
        (GROUP, "localsubjectaccessreviews", access(Kind::Local)),
        (GROUP, "selfsubjectaccessreviews", access(Kind::Own)),
        (GROUP, "selfsubjectrulesreviews", Arc::new(RulesReview { rbac: rbac.clone() })),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::union::Masters;

    #[tokio::test]
    async fn a_review_answers_for_the_subject_and_not_for_the_one_who_asks() {
        let review = AccessReview { kind: Kind::Subject, authorizer: Arc::new(Masters) };
        let a = Attributes { user: UserInfo::new("admin", &["system:masters"]).into(), ..Attributes::default() };
        let spec = |user: &str, groups: Value| {
            json!({"spec": {"user": user, "groups": groups,
            "resourceAttributes": {"verb": "get", "resource": "pods"}}})
        };
        let allowed = |object: Value| object["status"]["allowed"].clone();
        assert_eq!(allowed(review.create(&a, spec("bob", json!([]))).await.unwrap()), false);
        assert_eq!(allowed(review.create(&a, spec("bob", json!(["system:masters"]))).await.unwrap()), true);
        let status = review.create(&a, json!({"spec": {"user": "bob"}})).await.unwrap_err();
        assert_eq!(status.code, 422);
    }
}
