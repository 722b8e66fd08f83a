//! `metav1.Status`: the one mapping of what went wrong to code, reason and text, worded as upstream's `apierrors`.

use std::collections::HashSet;
use std::fmt;

use model::meta;
use model::reference::{GroupKind, GroupResource};
use schema::validate::error::FieldError;
use serde_json::{Map, Value, json};

/// One cause of a status, e.g. one invalid field.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cause {
    /// Machine-readable, e.g. `FieldValueRequired`; may be empty.
    pub reason: String,
    /// Text.
    pub message: String,
    /// Path of the field, may be empty.
    pub field: String,
}

/// Fields of a [`Status`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Body {
    /// HTTP code.
    pub code: u16,
    /// CamelCase reason, e.g. `NotFound`.
    pub reason: &'static str,
    /// Text for people.
    pub message: String,
    /// Name of the object, may be empty.
    pub name: String,
    /// API group, may be empty.
    pub group: String,
    /// Resource (plural) or kind, as upstream fills `details.kind`.
    pub kind: String,
    /// Uid of the object, may be empty.
    pub uid: String,
    /// Causes.
    pub causes: Vec<Cause>,
    /// Seconds after which to try again; 0 is none.
    pub retry_after: u32,
    /// Where an expired list may be continued, may be empty.
    pub next: String,
    /// Whether `details` is written even if it is empty.
    pub with_details: bool,
    /// A whole status of somebody else's making, which is sent as it is.
    pub foreign: Option<Value>,
}

/// A refusal or failure on its way to the client. Boxed: `Result<_, Status>` stays small.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status(Box<Body>);

impl std::ops::Deref for Status {
    type Target = Body;
    fn deref(&self) -> &Body {
        &self.0
    }
}

impl std::ops::DerefMut for Status {
    fn deref_mut(&mut self) -> &mut Body {
        &mut self.0
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Status {}

impl Status {
    /// Any status; prefer a named constructor.
    pub fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Status {
        Status(Box::new(Body { code, reason, message: message.into(), ..Body::default() }))
    }

    /// Adds `details` about the object.
    fn about(mut self, of: GroupKind<'_>, name: &str) -> Status {
        self.group = of.group.to_owned();
        self.kind = of.kind.to_owned();
        self.name = name.to_owned();
        self
    }

    /// 404 `pods "x" not found`.
    pub fn not_found(of: GroupResource<'_>, name: &str) -> Status {
        Status::new(404, "NotFound", format!("{of} {name:?} not found")).about(as_kind(of), name)
    }

    /// 422 about an option of the request: `ListOptions.meta.k8s.io "" is invalid: limit: …`.
    pub fn options(kind: &str, error: schema::validate::error::FieldError) -> Status {
        invalid(GroupKind { group: "meta.k8s.io", kind }, "", vec![error])
    }

    /// 404 for a path that no resource answers.
    pub fn no_such_resource() -> Status {
        let mut status = Status::new(404, "NotFound", "the server could not find the requested resource");
        status.with_details = true;
        status
    }

    /// 409 `pods "x" already exists`.
    pub fn already_exists(of: GroupResource<'_>, name: &str) -> Status {
        Status::new(409, "AlreadyExists", format!("{of} {name:?} already exists")).about(as_kind(of), name)
    }

    /// 409 when every generated name was taken.
    pub fn generate_name_conflict(of: GroupResource<'_>, name: &str) -> Status {
        let mut status = Status::already_exists(of, name);
        status.message.push_str(", the server was not able to generate a unique name for the object");
        status.retry_after = 1;
        status
    }

    /// 409 `Operation cannot be fulfilled on pods "x": why`.
    pub fn conflict(of: GroupResource<'_>, name: &str, why: impl fmt::Display) -> Status {
        let message = format!("Operation cannot be fulfilled on {of} {name:?}: {why}");
        Status::new(409, "Conflict", message).about(as_kind(of), name)
    }

    /// 409 of a lost race: the stored object is newer than the sent one.
    pub fn modified(of: GroupResource<'_>, name: &str) -> Status {
        let why = "the object has been modified; please apply your changes to the latest version and try again";
        Status::conflict(of, name, why)
    }

    /// 409 of server-side apply: fields that others manage. `causes` has one entry a field.
    pub fn apply_conflict(message: impl Into<String>, causes: Vec<Cause>) -> Status {
        let mut status = Status::new(409, "Conflict", message);
        status.causes = causes;
        status
    }

    /// 401 `Unauthorized`.
    pub fn unauthorized() -> Status {
        Status::new(401, "Unauthorized", "Unauthorized")
    }

    /// 403 `pods "x" is forbidden: why`, `pods is forbidden: why` or `forbidden: why`.
    pub fn forbidden(of: GroupResource<'_>, name: &str, why: impl fmt::Display) -> Status {
        let message = if of.resource.is_empty() {
            format!("forbidden: {why}")
        } else if name.is_empty() {
            format!("{of} is forbidden: {why}")
        } else {
            format!("{of} {name:?} is forbidden: {why}")
        };
        let mut status = Status::new(403, "Forbidden", message).about(as_kind(of), name);
        status.with_details = true;
        status
    }

    /// 403 of the authorizers, with upstream's sentence about who cannot do what where.
    pub fn access_denied(a: &crate::attributes::Attributes, reason: &str) -> Status {
        let user = &a.user.name;
        let mut why = if a.is_resource {
            let place = if a.namespace.is_empty() {
                "at the cluster scope".to_owned()
            } else {
                format!("in the namespace {:?}", a.namespace)
            };
            format!(
                "User {user:?} cannot {} resource {:?} in API group {:?} {place}",
                a.verb,
                a.resource_path(),
                a.group
            )
        } else {
            format!("User {user:?} cannot {} path {:?}", a.verb, a.path)
        };
        if !reason.is_empty() {
            why.push_str(": ");
            why.push_str(reason);
        }
        Status::forbidden(a.group_resource(), &a.name, why)
    }

    /// 422 `Pod "x" is invalid: …`; each cause's message is prefixed by its field, as upstream's field errors print.
    pub fn invalid(of: GroupKind<'_>, name: &str, causes: Vec<Cause>) -> Status {
        let text = |cause: &Cause| match cause.field.as_str() {
            "" => cause.message.clone(),
            field => format!("{field}: {}", cause.message),
        };
        let all: Vec<String> = causes.iter().map(text).collect();
        let mut seen = HashSet::new();
        let texts: Vec<&str> = all.iter().map(String::as_str).filter(|text| seen.insert(*text)).collect();
        let subject = format!("{of} {name:?} is invalid");
        let message = match texts.as_slice() {
            [] => subject,
            [one] => format!("{subject}: {one}"),
            many => format!("{subject}: [{}]", many.join(", ")),
        };
        let mut status = Status::new(422, "Invalid", message).about(of, name);
        status.causes = causes;
        status
    }

    /// 400.
    pub fn bad_request(message: impl Into<String>) -> Status {
        Status::new(400, "BadRequest", message)
    }

    /// 405 `create is not supported on resources of kind "pods"`.
    pub fn method_not_supported(of: GroupResource<'_>, verb: &str) -> Status {
        let message = format!("{verb} is not supported on resources of kind {:?}", of.to_string());
        Status::new(405, "MethodNotAllowed", message).about(as_kind(of), "")
    }

    /// 405 for a path that has no such method.
    pub fn method_not_allowed() -> Status {
        let mut status =
            Status::new(405, "MethodNotAllowed", "the server does not allow this method on the requested resource");
        status.with_details = true;
        status
    }

    /// 406 with the list of what can be had.
    pub fn not_acceptable(accepted: &str) -> Status {
        Status::new(406, "NotAcceptable", format!("only the following media types are accepted: {accepted}"))
    }

    /// 415 with the list of what is understood.
    pub fn unsupported_media_type(accepted: &str) -> Status {
        let message =
            format!("the body of the request was in an unknown format - accepted media types include: {accepted}");
        Status::new(415, "UnsupportedMediaType", message)
    }

    /// 413.
    pub fn too_large(limit: usize) -> Status {
        Status::new(413, "RequestEntityTooLarge", format!("Request entity too large: limit is {limit}"))
    }

    /// 410 `too old resource version: 3 (17)`: the watch or list must start anew.
    pub fn too_old(asked: u64, floor: u64) -> Status {
        Status::expired(format!("too old resource version: {asked} ({floor})"))
    }

    /// 410 with reason `Expired`.
    pub fn expired(message: impl Into<String>) -> Status {
        Status::new(410, "Expired", message)
    }

    /// 504 `Too large resource version: 9, current: 3`: the client knows a future that this server has not seen.
    pub fn future(asked: u64, current: u64) -> Status {
        let mut status =
            Status::new(504, "Timeout", format!("Timeout: Too large resource version: {asked}, current: {current}"));
        status.causes = vec![Cause {
            reason: "ResourceVersionTooLarge".into(),
            message: "Too large resource version".into(),
            ..Cause::default()
        }];
        status.retry_after = 1;
        status
    }

    /// 429, to be tried again after some seconds.
    pub fn too_many_requests(message: impl Into<String>, retry_after: u32) -> Status {
        let mut status = Status::new(429, "TooManyRequests", message);
        status.retry_after = retry_after;
        status
    }

    /// 503.
    pub fn unavailable(message: impl Into<String>) -> Status {
        Status::new(503, "ServiceUnavailable", message)
    }

    /// 504 `Timeout: …`.
    pub fn timeout(message: impl fmt::Display) -> Status {
        Status::new(504, "Timeout", format!("Timeout: {message}"))
    }

    /// 500 `Internal error occurred: …`.
    pub fn internal(why: impl fmt::Display) -> Status {
        let mut status = Status::new(500, "InternalError", format!("Internal error occurred: {why}"));
        status.causes = vec![Cause { message: why.to_string(), ..Cause::default() }];
        status
    }

    /// A status that a webhook made.
    pub fn foreign(code: u16, message: impl Into<String>, whole: Value) -> Status {
        Status(Box::new(Body { code, message: message.into(), foreign: Some(whole), ..Body::default() }))
    }

    /// The object for the wire.
    pub fn to_value(&self) -> Value {
        if let Some(whole) = &self.foreign {
            return whole.clone();
        }
        let mut out = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "code": self.code,
        });
        if !self.reason.is_empty() {
            out["reason"] = json!(self.reason);
        }
        if !self.next.is_empty() {
            out["metadata"]["continue"] = json!(self.next);
        }
        let details = self.details();
        if !details.is_empty() || self.with_details {
            out["details"] = Value::Object(details);
        }
        out
    }

    fn details(&self) -> Map<String, Value> {
        let mut details = Map::new();
        for (key, value) in [("name", &self.name), ("group", &self.group), ("kind", &self.kind), ("uid", &self.uid)] {
            if !value.is_empty() {
                details.insert(key.to_owned(), json!(value));
            }
        }
        if !self.causes.is_empty() {
            let causes = self.causes.iter().map(Cause::to_value).collect();
            details.insert("causes".to_owned(), Value::Array(causes));
        }
        if self.retry_after > 0 {
            details.insert("retryAfterSeconds".to_owned(), json!(self.retry_after));
        }
        details
    }

    /// `Status` of a success, as delete answers: `details` name what went.
    pub fn deleted(of: GroupResource<'_>, object: &Value) -> Value {
        let (name, uid) = (meta::name(object), meta::uid(object));
        let mut details = Map::new();
        for (key, value) in [("name", name), ("group", of.group), ("kind", of.resource), ("uid", uid)] {
            if !value.is_empty() {
                details.insert(key.to_owned(), json!(value));
            }
        }
        json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details })
    }
}

impl From<store::error::Error> for Status {
    fn from(err: store::error::Error) -> Status {
        use store::error::Error;
        match err {
            Error::Compacted { .. } => Status::expired("The resourceVersion for the provided list is too old."),
            Error::Future { asked, current } => Status::future(asked.0, current.0),
            Error::NotLeader { .. } | Error::SlowWatcher | Error::Closed => Status::unavailable(err.to_string()),
            Error::TimedOut => Status::new(504, "Timeout", err.to_string()),
            Error::TooLarge { max, .. } => Status::too_large(max),
            other => Status::internal(base::chain::Chain(&other)),
        }
    }
}

impl Cause {
    fn to_value(&self) -> Value {
        let mut out = Map::new();
        for (key, value) in [("reason", &self.reason), ("message", &self.message), ("field", &self.field)] {
            if !value.is_empty() {
                out.insert(key.to_owned(), json!(value));
            }
        }
        Value::Object(out)
    }
}

/// 422 from the engine's field errors.
pub fn invalid(of: GroupKind<'_>, name: &str, errors: Vec<FieldError>) -> Status {
    let cause =
        |e: &FieldError| Cause { reason: e.kind.reason().to_owned(), message: e.body(), field: e.field.clone() };
    Status::invalid(of, name, errors.iter().map(cause).collect())
}

/// `details.kind` of what is about a resource is the resource: upstream fills it so.
fn as_kind(of: GroupResource<'_>) -> GroupKind<'_> {
    GroupKind { group: of.group, kind: of.resource }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attributes::Attributes;
    use crate::user::UserInfo;

    #[test]
    fn texts_are_those_of_upstream() {
        assert_eq!(
            Status::not_found(GroupResource { group: "apps", resource: "deployments" }, "web").message,
            r#"deployments.apps "web" not found"#
        );
        assert_eq!(Status::not_found(GroupResource::core("pods"), "x").message, r#"pods "x" not found"#);
        let a = Attributes {
            user: UserInfo::new("x", &[]).into(),
            verb: "list".into(),
            resource: "pods".into(),
            namespace: "default".into(),
            is_resource: true,
            ..Attributes::default()
        };
        let text =
            r#"pods is forbidden: User "x" cannot list resource "pods" in API group "" in the namespace "default""#;
        assert_eq!(Status::access_denied(&a, "").message, text);
    }

    #[test]
    fn several_invalid_fields_are_listed_in_brackets() {
        let cause = |field: &str| Cause {
            reason: "FieldValueRequired".into(),
            message: "Required value".into(),
            field: field.into(),
        };
        let status = Status::invalid(GroupKind { group: "", kind: "Pod" }, "x", vec![cause("a"), cause("b")]);
        assert_eq!(status.message, r#"Pod "x" is invalid: [a: Required value, b: Required value]"#);
        assert_eq!(status.to_value()["details"]["causes"][1]["field"], "b");
    }

    #[test]
    fn every_refusal_has_upstreams_code_reason_and_words() {
        let apps = GroupResource { group: "apps", resource: "deployments" };
        let pods = GroupResource::core("pods");
        for (status, code, reason, message) in [
            (Status::not_found(apps, "web"), 404, "NotFound", r#"deployments.apps "web" not found"#),
            (Status::already_exists(pods, "x"), 409, "AlreadyExists", r#"pods "x" already exists"#),
            (
                Status::generate_name_conflict(pods, "x-"),
                409,
                "AlreadyExists",
                r#"pods "x-" already exists, the server was not able to generate a unique name for the object"#,
            ),
            (
                Status::modified(pods, "x"),
                409,
                "Conflict",
                "Operation cannot be fulfilled on pods \"x\": the object has been modified; please apply your changes \
                 to \
                 the latest version and try again",
            ),
            (Status::forbidden(pods, "x", "no"), 403, "Forbidden", r#"pods "x" is forbidden: no"#),
            (Status::forbidden(pods, "", "no"), 403, "Forbidden", "pods is forbidden: no"),
            (Status::forbidden(GroupResource::default(), "", "no"), 403, "Forbidden", "forbidden: no"),
            (
                Status::method_not_supported(apps, "create"),
                405,
                "MethodNotAllowed",
                r#"create is not supported on resources of kind "deployments.apps""#,
            ),
            (Status::too_old(3, 17), 410, "Expired", "too old resource version: 3 (17)"),
            (Status::future(9, 3), 504, "Timeout", "Timeout: Too large resource version: 9, current: 3"),
            (Status::internal("why"), 500, "InternalError", "Internal error occurred: why"),
            (Status::too_large(7), 413, "RequestEntityTooLarge", "Request entity too large: limit is 7"),
        ] {
            assert_eq!((status.code, status.reason, status.message.as_str()), (code, reason, message));
        }
    }

    #[test]
    fn details_name_the_resource_in_the_place_of_the_kind() {
        let apps = GroupResource { group: "apps", resource: "deployments" };
        let details = json!({ "name": "web", "group": "apps", "kind": "deployments" });
        assert_eq!(Status::not_found(apps, "web").to_value()["details"], details);
        let object = json!({ "metadata": { "name": "web", "uid": "u" } });
        assert_eq!(
            Status::deleted(apps, &object),
            json!({
                "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success",
                "details": { "name": "web", "group": "apps", "kind": "deployments", "uid": "u" },
            })
        );
        assert_eq!(Status::bad_request("x").to_value().get("details"), None);
        assert_eq!(Status::no_such_resource().to_value()["details"], json!({}), "upstream writes it empty");
    }

    #[test]
    fn a_denial_says_who_cannot_do_what_where() {
        let of = |namespace: &str, is_resource: bool| Attributes {
            user: UserInfo::new("x", &[]).into(),
            verb: "get".into(),
            group: "apps".into(),
            resource: if is_resource { "deployments".into() } else { String::new() },
            subresource: if is_resource { "scale".into() } else { String::new() },
            namespace: namespace.into(),
            path: "/metrics".into(),
            is_resource,
            ..Attributes::default()
        };
        let denied = r#"User "x" cannot get resource "deployments/scale" in API group "apps""#;
        for (a, reason, message) in [
            (of("", true), "", format!("deployments.apps is forbidden: {denied} at the cluster scope")),
            (
                of("n", true),
                "because",
                format!("deployments.apps is forbidden: {denied} in the namespace \"n\": because"),
            ),
            (of("", false), "", r#"forbidden: User "x" cannot get path "/metrics""#.to_owned()),
        ] {
            assert_eq!(Status::access_denied(&a, reason).message, message);
        }
    }

    #[test]
    fn one_fault_is_told_once_however_often_it_is_found() {
        let kind = GroupKind { group: "apps", kind: "Deployment" };
        let cause = |field: &str| Cause { message: "m".into(), field: field.into(), ..Cause::default() };
        for (causes, message) in [
            (vec![], "Deployment.apps \"x\" is invalid"),
            (vec![cause("a"), cause("a")], "Deployment.apps \"x\" is invalid: a: m"),
            (vec![cause(""), cause("a")], "Deployment.apps \"x\" is invalid: [m, a: m]"),
        ] {
            assert_eq!(Status::invalid(kind, "x", causes).message, message);
        }
    }
}
