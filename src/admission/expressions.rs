//! The request, as CEL expressions of admission see it.

use std::cell::Cell;
use std::sync::Arc;

use authz::{Authorizer, Decision};
use cel::authz::{Authz, Host};
use cel::run::{Fault, Lazy};
use cel::types::{BOOL, Ty};
use cel::value::Val;
use cel::{Program, Surroundings};
use futures_util::FutureExt as _;
use model::reference::{GroupResource, NamespacedName};
use registry::attributes::Attributes;
use registry::status::Status;
use registry::user::UserInfo;

use super::Review;
use super::matching::Matched;
use super::webhooks::question;

/// Why an expression has no program.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CompileError {
    /// It is refused, in cel-go's words.
    #[error(transparent)]
    Refused(#[from] cel::CompileError),
    /// It says neither yes nor no.
    #[error("must evaluate to bool")]
    NotBool,
}

/// A program, or why there is none.
pub type Compiled = Result<Program, CompileError>;

/// Why an expression has no value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExpressionError {
    /// It has no program.
    #[error("compilation failed")]
    Compile(#[source] CompileError),
    /// Its program failed.
    #[error("{0}")]
    Run(Fault),
}

/// Takes a program that says yes or no, or of which that is known only when it runs.
pub fn condition(program: Compiled) -> Compiled {
    program.and_then(|p| if p.result == BOOL || p.result == Ty::Dyn { Ok(p) } else { Err(CompileError::NotBool) })
}

/// Whether a condition holds.
pub fn holds(program: &Compiled, surroundings: &Surroundings<'_>, budget: &Cell<i64>) -> Result<bool, ExpressionError> {
    match program {
        Ok(program) => program.holds(surroundings, budget).map_err(ExpressionError::Run),
        Err(why) => Err(ExpressionError::Compile(why.clone())),
    }
}

/// The values of one request in one version.
pub struct Facts {
    object: Val,
    old: Val,
    request: Val,
    namespace: Val,
    resource: Authz,
    host: Option<Asker>,
}

/// Asks the server's authorizer for the user of the request.
struct Asker {
    authorizer: Arc<dyn Authorizer>,
    user: Arc<UserInfo>,
}

impl Facts {
    /// Reads a request.
    ///
    /// Errors: the object has no form in that version.
    pub async fn of(review: &Review<'_>, matched: &Matched) -> Result<Facts, Status> {
        let object = question::versioned(review, review.object, matched).await?;
        let request = question::request("", review, matched, &object).await?;
        let mut shown = request;
        let old = shown["oldObject"].take();
        if let Some(map) = shown.as_object_mut() {
            for field in ["object", "oldObject", "uid"] {
                map.remove(field);
            }
        }
        let namespace = match review.attributes.namespace.as_str() {
            "" => None,
            _ if review.attributes.is(GroupResource::core("namespaces")) => None,
            name => review.lookup.get(GroupResource::core("namespaces"), NamespacedName::cluster(name)),
        };
        Ok(Facts {
            object: Val::from_json(&object),
            old: Val::from_json(&old),
            request: Val::from_json(&shown),
            namespace: namespace.map_or(Val::Null, |n| Val::from_json(&n)),
            resource: resource_check(review.attributes),
            host: None,
        })
    }

    /// Lets expressions ask the authorizer.
    pub fn ask(mut self, authorizer: &Arc<dyn Authorizer>, user: &Arc<UserInfo>) -> Facts {
        self.host = Some(Asker { authorizer: Arc::clone(authorizer), user: Arc::clone(user) });
        self
    }

    /// Names and values for one run.
    pub fn surroundings<'a>(&'a self, lazy: Option<&'a Lazy<'a>>, params: Val) -> Surroundings<'a> {
        let named = [
            ("object", &self.object),
            ("oldObject", &self.old),
            ("request", &self.request),
            ("namespaceObject", &self.namespace),
            ("params", &params),
        ];
        let mut values: Vec<(String, Val)> = named.into_iter().map(|(n, v)| (n.to_owned(), v.clone())).collect();
        values.push(("authorizer".to_owned(), Val::Authz(Authz::default().into())));
        values.push(("authorizer.requestResource".to_owned(), Val::Authz(self.resource.clone().into())));
        Surroundings { values, lazy, host: self.host.as_ref().map(|h| h as &dyn Host) }
    }
}

/// `authorizer.requestResource`: a question about what the request itself is about.
fn resource_check(a: &Attributes) -> Authz {
    Authz {
        group: a.group.clone(),
        resource: a.resource.clone(),
        subresource: a.subresource.clone(),
        namespace: a.namespace.clone(),
        name: a.name.clone(),
        ..Authz::default()
    }
}

impl Host for Asker {
    fn authorize(&self, question: &Authz, verb: &str) -> (bool, String) {
        let user = match &question.service_account {
            None => Arc::clone(&self.user),
            Some((namespace, name)) => {
                let groups = ["system:serviceaccounts".to_owned(), format!("system:serviceaccounts:{namespace}")];
                let groups: Vec<&str> = groups.iter().map(String::as_str).collect();
                Arc::new(UserInfo::new(format!("system:serviceaccount:{namespace}:{name}"), &groups))
            }
        };
        let attributes = Attributes {
            user,
            verb: verb.to_owned(),
            group: question.group.clone(),
            version: "*".to_owned(),
            resource: question.resource.clone(),
            subresource: question.subresource.clone(),
            namespace: question.namespace.clone(),
            name: question.name.clone(),
            field_selector: question.field_selector.clone(),
            label_selector: question.label_selector.clone(),
            path: question.path.clone().unwrap_or_default(),
            is_resource: question.path.is_none(),
            ..Attributes::default()
        };
        // RBAC and the node authorizer answer from memory; one that has to ask around cannot be asked from here.
        match self.authorizer.authorize(&attributes).now_or_never() {
            Some(Decision::Allow { reason }) => (true, reason),
            Some(Decision::Deny { reason } | Decision::NoOpinion { reason }) => (false, reason),
            None => (false, "the authorizer did not answer at once".to_owned()),
        }
    }
}
