//! Admission policies: CEL about every object, with bindings that say where and with which parameters.
//!
//! What both sorts share is here; [`validating`] judges, [`mutating`] changes.

pub mod mutating;
pub mod parameters;
pub mod patches;
pub mod typing;
pub mod validating;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use base::sync::Mutex;
use cel::admission::{self, Extras};
use cel::run::{Fault, Outcome};
use cel::syntax::Dialect;
use cel::types::Ty;
use cel::value::Val;
use cel::{OBJECT_BUDGET, Program, Surroundings};
use model::labels::Selector;
use model::labels::error::SelectorError;
use model::meta;
use model::reference::{GroupResource, NamespacedName};
use registry::lookup::Lookup;
use registry::status::Status;
use schema::read;
use schema::table::GroupVersion;
use serde_json::Value;

use super::Review;
use super::conditions::Conditions;
use super::expressions::{CompileError, Compiled, Facts};
use super::matching::Matcher;

const GROUP: &str = "admissionregistration.k8s.io";

/// Fields of both sorts of policies.
pub struct Policy {
    name: String,
    matcher: Matcher,
    conditions: Conditions,
    variables: Vec<(String, Compiled)>,
    param_kind: Option<ParamKind>,
    ignores_failure: bool,
    /// Names that its expressions may use.
    names: Vec<(String, Ty)>,
}

/// `paramKind` of a policy: the kind of its parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParamKind {
    api_version: String,
    kind: String,
}

/// As upstream prints a GroupVersionKind.
impl fmt::Display for ParamKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let joint = if self.api_version.contains('/') { "" } else { "/" };
        write!(f, "{joint}{}, Kind={}", self.api_version, self.kind)
    }
}

impl Policy {
    fn of(object: &Value) -> Option<Policy> {
        let spec = &object["spec"];
        let kind = spec.get("paramKind").filter(|k| k.is_object());
        let names = admission::names(Extras { params: kind.is_some(), authorizer: true });
        let (mut variables, mut types) = (Vec::new(), BTreeMap::new());
        for variable in read::list(spec, "variables") {
            let name = read::text(variable, "name").to_owned();
            let known = admission::with_variables(names.clone(), &types);
            let program = Program::compile(read::text(variable, "expression"), &known).map_err(CompileError::Refused);
            types.insert(name.clone(), program.as_ref().map_or(Ty::Dyn, |p| p.result.clone()));
            variables.push((name, program));
        }
        let conditions = Conditions::with(&spec["matchConditions"], &names);
        Some(Policy {
            name: meta::name(object).to_owned(),
            matcher: Matcher::of_policy(&spec["matchConstraints"]).ok()?,
            conditions,
            variables,
            param_kind: kind.map(|k| ParamKind {
                api_version: read::text(k, "apiVersion").to_owned(),
                kind: read::text(k, "kind").to_owned(),
            }),
            ignores_failure: read::text(spec, "failurePolicy") == "Ignore",
            names: admission::with_variables(names, &types),
        })
    }

    fn compile(&self, dialect: Dialect, text: &str) -> Compiled {
        Program::compile_in(dialect, text.trim(), &self.names).map_err(CompileError::Refused)
    }

    /// Runs `with` where the policy's variables are made when they are asked for.
    fn within<T>(&self, facts: &Facts, params: &Val, with: impl FnOnce(&Surroundings<'_>, &Cell<i64>) -> T) -> T {
        let budget = Cell::new(OBJECT_BUDGET);
        let made: RefCell<BTreeMap<String, Outcome>> = RefCell::default();
        let scope = Scope { policy: self, facts, params, made: &made, budget: &budget };
        let variable = |name: &str| scope.variable(name, self.variables.len());
        with(&facts.surroundings(Some(&variable), params.clone()), &budget)
    }
}

/// Where a policy's variables live while it is asked once.
struct Scope<'a> {
    policy: &'a Policy,
    facts: &'a Facts,
    params: &'a Val,
    made: &'a RefCell<BTreeMap<String, Outcome>>,
    budget: &'a Cell<i64>,
}

impl Scope<'_> {
    /// `variables.NAME`: made once, when it is first asked for; it sees those before it.
    fn variable(&self, name: &str, end: usize) -> Option<Outcome> {
        let at = self.policy.variables[..end].iter().position(|(n, _)| n == name)?;
        if let Some(known) = self.made.borrow().get(name) {
            return Some(known.clone());
        }
        let before = |other: &str| self.variable(other, at);
        let outcome = match &self.policy.variables[at].1 {
            Ok(program) => program.run(&self.facts.surroundings(Some(&before), self.params.clone()), self.budget),
            Err(why) => Err(Fault::Error(format!("composited variable {name:?} fails to compile: {why}"))),
        };
        self.made.borrow_mut().insert(name.to_owned(), outcome.clone());
        Some(outcome)
    }
}

/// Puts a policy in force somewhere.
pub struct Binding {
    name: String,
    policy: String,
    matcher: Matcher,
    param_ref: Value,
    actions: Vec<String>,
}

impl Binding {
    fn of(object: &Value) -> Option<Binding> {
        let spec = &object["spec"];
        Some(Binding {
            name: meta::name(object).to_owned(),
            policy: read::text(spec, "policyName").to_owned(),
            matcher: Matcher::of_policy(&spec["matchResources"]).ok()?,
            param_ref: spec["paramRef"].clone(),
            actions: read::texts(spec, "validationActions").into_iter().map(str::to_owned).collect(),
        })
    }
}

/// Resources of one sort of policies.
#[derive(Clone, Copy, Debug)]
pub struct Resources {
    policies: &'static str,
    bindings: &'static str,
}

/// All policies of one sort with their bindings, compiled when they change.
pub struct Shelf<P> {
    of: Resources,
    compiled: Mutex<Option<Stamped<P>>>,
}

type Stamped<P> = ((u64, u64), Arc<Set<P>>);

/// Policies and bindings as they stand, in the order of their names.
pub struct Set<P> {
    policies: Vec<P>,
    bindings: Vec<Binding>,
}

impl<P> Shelf<P> {
    fn new(of: Resources) -> Shelf<P> {
        Shelf { of, compiled: Mutex::default() }
    }

    fn current(&self, lookup: &dyn Lookup, of: impl Fn(&Value) -> Option<P>) -> Arc<Set<P>> {
        let kind = |resource| GroupResource { group: GROUP, resource };
        let (policies, bindings) = (kind(self.of.policies), kind(self.of.bindings));
        let at = (*lookup.changed(policies).borrow(), *lookup.changed(bindings).borrow());
        let mut compiled = self.compiled.lock();
        if let Some((_, set)) = compiled.as_ref().filter(|(when, _)| *when == at) {
            return Arc::clone(set);
        }
        let set = Arc::new(Set {
            policies: lookup.list(policies, None).iter().filter_map(|p| of(p)).collect(),
            bindings: lookup.list(bindings, None).iter().filter_map(|b| Binding::of(b)).collect(),
        });
        *compiled = Some((at, Arc::clone(&set)));
        set
    }
}

/// Why a binding's parameters cannot be had.
#[derive(Debug, thiserror::Error)]
enum ParametersError {
    #[error("failed to find resource referenced by paramKind: '{0}'")]
    NoSuchKind(ParamKind),
    #[error("paramRef.namespace must not be provided for a cluster-scoped `paramKind`")]
    NamespaceOfClusterScoped,
    #[error("cannot use namespaced paramRef in policy binding that matches cluster-scoped resources")]
    NoNamespace,
    #[error(transparent)]
    Selector(#[from] SelectorError),
    #[error("no params found for policy binding with `Deny` parameterNotFoundAction")]
    NotFound,
    /// A parameter has no form in the version that the policy names.
    #[error(transparent)]
    Version(#[from] Status),
}

/// The parameters that a binding names, each with its `namespace/name`.
///
/// Errors: there are none, and that is a failure.
async fn parameters(
    policy: &Policy,
    binding: &Binding,
    review: &Review<'_>,
) -> Result<Vec<(String, Val)>, ParametersError> {
    let none = || Ok(vec![(String::new(), Val::Null)]);
    let Some(param_kind) = &policy.param_kind else { return none() };
    let param_ref = &binding.param_ref;
    if !param_ref.is_object() {
        return none();
    }
    let group_version = GroupVersion::parse(&param_kind.api_version);
    let Some(row) = review.catalog.by_kind(group_version, &param_kind.kind) else {
        return Err(ParametersError::NoSuchKind(param_kind.clone()));
    };
    let stored = review.catalog.storage_of(row);
    review.lookup.load(stored.group_resource()).await;
    let namespace = match (row.namespaced, read::some_text(param_ref, "namespace").filter(|n| !n.is_empty())) {
        (false, Some(_)) => return Err(ParametersError::NamespaceOfClusterScoped),
        (false, None) => "",
        (true, Some(namespace)) => namespace,
        (true, None) if review.attributes.namespace.is_empty() => return Err(ParametersError::NoNamespace),
        (true, None) => &review.attributes.namespace,
    };
    let found: Vec<Arc<Value>> = match read::some_text(param_ref, "name").filter(|n| !n.is_empty()) {
        Some(name) => {
            review.lookup.get(stored.group_resource(), NamespacedName { namespace, name }).into_iter().collect()
        }
        None => {
            let selector = Selector::from_json(param_ref.get("selector"))?;
            let all = review.lookup.list(stored.group_resource(), (!namespace.is_empty()).then_some(namespace));
            all.into_iter().filter(|o| selector.matches_object(o)).collect()
        }
    };
    if found.is_empty() && read::text(param_ref, "parameterNotFoundAction") != "Allow" {
        return Err(ParametersError::NotFound);
    }
    let mut shown = Vec::with_capacity(found.len());
    for object in found {
        let key = format!("{}/{}", meta::namespace(&object), meta::name(&object));
        let object = review.versions.in_version((*object).clone(), stored, row).await?;
        shown.push((key, Val::from_json(&object)));
    }
    Ok(shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_is_shown_as_upstream_shows_it() {
        for (api_version, kind, wanted) in
            [("v1", "ConfigMap", "/v1, Kind=ConfigMap"), ("a.org/v1", "Limit", "a.org/v1, Kind=Limit")]
        {
            let kind = ParamKind { api_version: api_version.to_owned(), kind: kind.to_owned() };
            assert_eq!(kind.to_string(), wanted);
        }
    }
}
