//! Questions to the authorizer, as expressions put them together:
//! `authorizer.group('apps').resource('x').check('get').allowed()`.

use super::eval::{Outcome, error};
use super::value::Val;

/// A question on its way, or its answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Authz {
    /// `/healthz`, for requests that are about no resource.
    pub path: Option<String>,
    /// API group.
    pub group: String,
    /// Plural.
    pub resource: String,
    /// Such as `status`.
    pub subresource: String,
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// `a=b`: what of the fields is asked for.
    pub field_selector: String,
    /// The same of labels.
    pub label_selector: String,
    /// Namespace and name, if a service account is asked about and not the user of the request.
    pub service_account: Option<(String, String)>,
    /// Allowed, and why.
    pub answer: Option<(bool, String)>,
}

/// Who answers.
pub trait Host {
    /// Whether the question's user may `verb`, and why.
    fn authorize(&self, question: &Authz, verb: &str) -> (bool, String);
}

impl Authz {
    /// As `type()` names it.
    pub fn type_name(&self) -> &'static str {
        match (&self.answer, &self.path, self.resource.is_empty()) {
            (Some(_), ..) => "kubernetes.authorization.Decision",
            (None, Some(_), _) => "kubernetes.authorization.PathCheck",
            (None, None, false) => "kubernetes.authorization.ResourceCheck",
            (None, None, true) => "kubernetes.authorization.Authorizer",
        }
    }

    /// A method of it.
    pub(super) fn method(&self, host: Option<&dyn Host>, name: &str, args: &[Val]) -> Outcome {
        let texts: Option<Vec<&str>> =
            args.iter().map(|a| if let Val::Text(t) = a { Some(t.as_ref()) } else { None }).collect();
        let Some(texts) = texts else { return error("no such overload") };
        let mut next = self.clone();
        match (name, texts.as_slice(), &self.answer) {
            ("path", [text], None) => next.path = Some((*text).to_owned()),
            ("group", [text], None) => next.group = (*text).to_owned(),
            ("resource", [text], None) => next.resource = (*text).to_owned(),
            ("subresource", [text], None) => next.subresource = (*text).to_owned(),
            ("namespace", [text], None) => next.namespace = (*text).to_owned(),
            ("name", [text], None) => next.name = (*text).to_owned(),
            ("fieldSelector", [text], None) => next.field_selector = (*text).to_owned(),
            ("labelSelector", [text], None) => next.label_selector = (*text).to_owned(),
            ("serviceAccount", [namespace, name], None) => {
                next.service_account = Some(((*namespace).to_owned(), (*name).to_owned()))
            }
            ("check", [verb], None) => match host {
                Some(host) => next.answer = Some(host.authorize(self, verb)),
                None => return error("no authorizer"),
            },
            ("allowed", [], Some((yes, _))) => return Ok(Val::Bool(*yes)),
            ("reason", [], Some((_, why))) => return Ok(Val::text(why)),
            ("errored", [], Some(_)) => return Ok(Val::Bool(false)),
            ("error", [], Some(_)) => return Ok(Val::text("")),
            _ => return error(format!("no such overload: {}.{name}", self.type_name())),
        }
        Ok(Val::Authz(next.into()))
    }
}
