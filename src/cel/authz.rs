//! Questions to the authorizer, as expressions put them together:
//! `authorizer.group('apps').resource('x').check('get').allowed()`.

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

/// The authorizer that answers.
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
}
