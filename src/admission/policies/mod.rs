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
use std::sync::Arc;

use base::sync::Mutex;
use cel::admission::{self, Extras};
use cel::run::{Fault, Outcome};
use cel::syntax::Dialect;
use cel::types::Ty;
use cel::value::Val;
use cel::{OBJECT_BUDGET, Program, Surroundings};
use model::labels::Selector;
use model::meta;
use registry::lookup::Lookup;
use schema::read;
use schema::table::GroupVersion;
use serde_json::Value;

use super::Review;
use super::conditions::Conditions;
use super::expressions::Facts;
use super::matching::Matcher;

const GROUP: &str = "admissionregistration.k8s.io";

/// A program, or why there is none.
pub type Compiled = Result<Program, String>;

/// Fields of both sorts of policies.
pub struct Policy {
    name: String,
    matcher: Matcher,
    conditions: Conditions,
    variables: Vec<(String, Compiled)>,
    param_kind: Option<(String, String)>,
    ignores_failure: bool,
    /// Names that its expressions may use.
    names: Vec<(String, Ty)>,
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
            let program = Program::compile(read::text(variable, "expression"), &known).map_err(|err| err.to_string());
            types.insert(name.clone(), program.as_ref().map_or(Ty::Dyn, |p| p.result.clone()));
            variables.push((name, program));
        }
        let conditions = Conditions::with(&spec["matchConditions"], &names);
        Some(Policy {
            name: meta::name(object).to_owned(),
            matcher: Matcher::of_policy(&spec["matchConstraints"]).ok()?,
            conditions,
            variables,
            param_kind: kind.map(|k| (read::text(k, "apiVersion").to_owned(), read::text(k, "kind").to_owned())),
            ignores_failure: read::text(spec, "failurePolicy") == "Ignore",
            names: admission::with_variables(names, &types),
        })
    }

    fn compile(&self, dialect: Dialect, text: &str) -> Compiled {
        Program::compile_in(dialect, text.trim(), &self.names).map_err(|err| err.to_string())
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

/// All policies of one sort with their bindings, compiled when they change.
pub struct Shelf<P> {
    policies: &'static str,
    bindings: &'static str,
    compiled: Mutex<Option<Stamped<P>>>,
}

type Stamped<P> = ((u64, u64), Arc<Set<P>>);

/// Policies and bindings as they stand, in the order of their names.
pub struct Set<P> {
    policies: Vec<P>,
    bindings: Vec<Binding>,
}

impl<P> Shelf<P> {
    fn new(policies: &'static str, bindings: &'static str) -> Shelf<P> {
        Shelf { policies, bindings, compiled: Mutex::default() }
    }

    fn current(&self, lookup: &dyn Lookup, of: impl Fn(&Value) -> Option<P>) -> Arc<Set<P>> {
        let at = (*lookup.changed(GROUP, self.policies).borrow(), *lookup.changed(GROUP, self.bindings).borrow());
        let mut compiled = self.compiled.lock();
        if let Some((_, set)) = compiled.as_ref().filter(|(when, _)| *when == at) {
            return Arc::clone(set);
        }
        let set = Arc::new(Set {
            policies: lookup.list(GROUP, self.policies, None).iter().filter_map(|p| of(p)).collect(),
            bindings: lookup.list(GROUP, self.bindings, None).iter().filter_map(|b| Binding::of(b)).collect(),
        });
        *compiled = Some((at, Arc::clone(&set)));
        set
    }
}

/// The parameters that a binding names, each with its `namespace/name`; `Err` in words when there are none and that is
/// a failure.
async fn parameters(policy: &Policy, binding: &Binding, review: &Review<'_>) -> Result<Vec<(String, Val)>, String> {
    let none = || Ok(vec![(String::new(), Val::Null)]);
    let Some((api_version, kind)) = &policy.param_kind else { return none() };
    let param_ref = &binding.param_ref;
    if !param_ref.is_object() {
        return none();
    }
    let Some(row) = review.catalog.by_kind(GroupVersion::parse(api_version), kind) else {
        return Err(format!("failed to find resource referenced by paramKind: '{}'", shown_kind(api_version, kind)));
    };
    let stored = review.catalog.storage_of(row);
    review.lookup.load(&stored.group, &stored.plural).await;
    let namespace = match (row.namespaced, read::some_text(param_ref, "namespace").filter(|n| !n.is_empty())) {
        (false, Some(_)) => {
            return Err("paramRef.namespace must not be provided for a cluster-scoped `paramKind`".to_owned());
        }
        (false, None) => "",
        (true, Some(namespace)) => namespace,
        (true, None) if review.attributes.namespace.is_empty() => {
            return Err(
                "cannot use namespaced paramRef in policy binding that matches cluster-scoped resources".to_owned()
            );
        }
        (true, None) => &review.attributes.namespace,
    };
    let found: Vec<Arc<Value>> = match read::some_text(param_ref, "name").filter(|n| !n.is_empty()) {
        Some(name) => review.lookup.get(&stored.group, &stored.plural, namespace, name).into_iter().collect(),
        None => {
            let selector = Selector::from_json(param_ref.get("selector")).map_err(|e| e.to_string())?;
            let all = review.lookup.list(&stored.group, &stored.plural, (!namespace.is_empty()).then_some(namespace));
            all.into_iter().filter(|o| selector.matches_object(o)).collect()
        }
    };
    if found.is_empty() && read::text(param_ref, "parameterNotFoundAction") != "Allow" {
        return Err("no params found for policy binding with `Deny` parameterNotFoundAction".to_owned());
    }
    let mut shown = Vec::with_capacity(found.len());
    for object in found {
        let key = format!("{}/{}", meta::namespace(&object), meta::name(&object));
        let object = review.versions.in_version((*object).clone(), stored, row).await.map_err(|s| s.message.clone())?;
        shown.push((key, Val::from_json(&object)));
    }
    Ok(shown)
}

fn shown_kind(api_version: &str, kind: &str) -> String {
    let group_version = if api_version.contains('/') { api_version.to_owned() } else { format!("/{api_version}") };
    format!("{group_version}, Kind={kind}")
}
