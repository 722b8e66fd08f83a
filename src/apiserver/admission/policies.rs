//! ValidatingAdmissionPolicy: CEL rules about every object, with bindings that say where and with which parameters.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use schema::cel::eval::{Fault, Outcome};
use schema::cel::types::{BOOL, Ty};
use schema::cel::value::Val;
use schema::cel::{OBJECT_BUDGET, Program, Surroundings};
use schema::labels::Selector;
use schema::{meta, read};
use serde_json::{Value, json};

use super::conditions::{self, Conditions};
use super::expressions::Facts;
use super::matching::{Matched, Matcher, configures_admission};
use super::{Operation, Plugin, Review};
use crate::attributes::Attributes;
use crate::authz::Authorizer;
use crate::lookup::Lookup;
use crate::status::{Cause, Status};

const GROUP: &str = "admissionregistration.k8s.io";
const POLICIES: &str = "validatingadmissionpolicies";
const BINDINGS: &str = "validatingadmissionpolicybindings";

type Compiled = Result<Program, String>;

struct Validation {
    expression: String,
    program: Compiled,
    message: Option<String>,
    message_program: Option<Compiled>,
    reason: String,
}

struct Policy {
    name: String,
    matcher: Matcher,
    conditions: Conditions,
    variables: Vec<(String, Compiled)>,
    validations: Vec<Validation>,
    annotations: Vec<(String, Compiled)>,
    param_kind: Option<(String, String)>,
    ignores_failure: bool,
}

struct Binding {
    name: String,
    policy: String,
    matcher: Matcher,
    param_ref: Value,
    actions: Vec<String>,
}

#[derive(Default)]
struct Set {
    policies: Vec<Policy>,
    bindings: Vec<Binding>,
}

/// The plugin. Policies are compiled when they change.
pub struct ValidatingAdmissionPolicies {
    authorizer: Arc<dyn Authorizer>,
    compiled: Mutex<Option<((u64, u64), Arc<Set>)>>,
}

/// What expressions of policies may use.
fn names() -> Vec<(String, Ty)> {
    let more = ["namespaceObject", "params", "variables"].map(|n| (n.to_owned(), Ty::Dyn));
    conditions::names().into_iter().chain(more).collect()
}

fn compile(text: &str) -> Compiled {
    Program::compile(text.trim(), &names())
}

impl Policy {
    fn of(object: &Value) -> Option<Policy> {
        let spec = &object["spec"];
        let named = |c: &Value| (read::text(c, "name").to_owned(), compile(read::text(c, "expression")));
        let validation = |v: &Value| Validation {
            expression: read::text(v, "expression").trim().to_owned(),
            program: compile(read::text(v, "expression"))
                .and_then(|p| if p.result == BOOL || p.result == Ty::Dyn { Ok(p) } else { Err("must evaluate to bool".to_owned()) }),
            message: read::some_text(v, "message").map(|m| m.trim().to_owned()).filter(|m| !m.is_empty()),
            message_program: read::some_text(v, "messageExpression").filter(|m| !m.is_empty()).map(compile),
            reason: read::some_text(v, "reason").unwrap_or("Invalid").to_owned(),
        };
        let kind = spec.get("paramKind").filter(|k| k.is_object());
        Some(Policy {
            name: meta::name(object).to_owned(),
            matcher: Matcher::of_policy(&spec["matchConstraints"]).ok()?,
            conditions: Conditions::with(&spec["matchConditions"], &names()),
            variables: read::list(spec, "variables").iter().map(named).collect(),
            validations: read::list(spec, "validations").iter().map(validation).collect(),
            annotations: read::list(spec, "auditAnnotations")
                .iter()
                .map(|a| (read::text(a, "key").to_owned(), compile(read::text(a, "valueExpression"))))
                .collect(),
            param_kind: kind.map(|k| (read::text(k, "apiVersion").to_owned(), read::text(k, "kind").to_owned())),
            ignores_failure: read::text(spec, "failurePolicy") == "Ignore",
        })
    }
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

/// One verdict that is not yes: why, and the reason for the Status.
struct Complaint {
    message: String,
    reason: String,
}

impl ValidatingAdmissionPolicies {
    /// With the authorizer that expressions may ask.
    pub fn new(authorizer: Arc<dyn Authorizer>) -> ValidatingAdmissionPolicies {
        ValidatingAdmissionPolicies { authorizer, compiled: Mutex::default() }
    }

    fn set(&self, lookup: &dyn Lookup) -> Arc<Set> {
        let at = (*lookup.changed(GROUP, POLICIES).borrow(), *lookup.changed(GROUP, BINDINGS).borrow());
        let mut compiled = self.compiled.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, set)) = compiled.as_ref().filter(|(when, _)| *when == at) {
            return Arc::clone(set);
        }
        let set = Arc::new(Set {
            policies: lookup.list(GROUP, POLICIES, None).iter().filter_map(|p| Policy::of(p)).collect(),
            bindings: lookup.list(GROUP, BINDINGS, None).iter().filter_map(|b| Binding::of(b)).collect(),
        });
        *compiled = Some((at, Arc::clone(&set)));
        set
    }

    /// Judges by one policy as one binding puts it in force.
    fn judge(&self, policy: &Policy, review: &Review<'_>, matched: &Matched, params: &[Val]) -> Result<Vec<Complaint>, Status> {
        let facts = Facts::of(review, matched)?.ask(&self.authorizer, &review.attributes.user);
        let mut complaints = Vec::new();
        for params in params {
            complaints.extend(judge_with(policy, review, &facts, params));
        }
        Ok(complaints)
    }
}

fn judge_with(policy: &Policy, review: &Review<'_>, facts: &Facts, params: &Val) -> Vec<Complaint> {
    let budget = Cell::new(OBJECT_BUDGET);
    let made: RefCell<BTreeMap<String, Outcome>> = RefCell::default();
    let variable = |name: &str| variable(policy, facts, params, &made, &budget, name);
    let surroundings = facts.surroundings(Some(&variable), params.clone());
    let failed = |message: String| if policy.ignores_failure { None } else { Some(Complaint { message, reason: "Invalid".to_owned() }) };
    match policy.conditions.hold_with(&surroundings, &budget) {
        Ok(true) => {}
        Ok(false) => return Vec::new(),
        Err(why) => return failed(why).into_iter().collect(),
    }
    for (key, program) in &policy.annotations {
        if let Ok(program) = program
            && let Ok(Val::Text(text)) = program.run(&surroundings, &budget)
        {
            review.attributes.trail.note(&format!("{}/{key}", policy.name), &text);
        }
    }
    let mut complaints = Vec::new();
    for validation in &policy.validations {
        let held = match &validation.program {
            Ok(program) => program.holds(&surroundings, &budget).map_err(|fault| fault.to_string()),
            Err(why) => Err(format!("compilation failed: {why}")),
        };
        match held {
            Ok(true) => {}
            Ok(false) => {
                complaints.push(Complaint { message: message(validation, &surroundings, &budget), reason: validation.reason.clone() })
            }
            Err(why) => complaints.extend(failed(format!("expression '{}' resulted in error: {why}", validation.expression))),
        }
    }
    complaints
}

/// `variables.NAME`: made once, when it is first asked for; it sees those before it.
fn variable(
    policy: &Policy,
    facts: &Facts,
    params: &Val,
    made: &RefCell<BTreeMap<String, Outcome>>,
    budget: &Cell<i64>,
    name: &str,
) -> Option<Outcome> {
    if let Some(known) = made.borrow().get(name) {
        return Some(known.clone());
    }
    let at = policy.variables.iter().position(|(n, _)| n == name)?;
    let before = |other: &str| {
        let earlier = policy.variables[..at].iter().any(|(n, _)| n == other);
        if earlier { variable(policy, facts, params, made, budget, other) } else { None }
    };
    let outcome = match &policy.variables[at].1 {
        Ok(program) => program.run(&facts.surroundings(Some(&before), params.clone()), budget),
        Err(why) => Err(Fault::Error(format!("composited variable {name:?} fails to compile: {why}"))),
    };
    made.borrow_mut().insert(name.to_owned(), outcome.clone());
    Some(outcome)
}

fn message(validation: &Validation, surroundings: &Surroundings<'_>, budget: &Cell<i64>) -> String {
    if let Some(Ok(program)) = &validation.message_program
        && let Ok(Val::Text(text)) = program.run(surroundings, budget)
        && !text.trim().is_empty()
        && !text.contains('\n')
    {
        return text.trim().to_owned();
    }
    validation.message.clone().unwrap_or_else(|| format!("failed expression: {}", validation.expression))
}

/// The parameters that a binding names; `Err` in words when there are none and that is a failure.
async fn parameters(policy: &Policy, binding: &Binding, review: &Review<'_>) -> Result<Vec<Val>, String> {
    let Some((api_version, kind)) = &policy.param_kind else { return Ok(vec![Val::Null]) };
    let param_ref = &binding.param_ref;
    if !param_ref.is_object() {
        return Ok(vec![Val::Null]);
    }
    let Some(row) = review.catalog.by_api_version(api_version, kind) else {
        return Err(format!("failed to find resource referenced by paramKind: '{}'", shown_kind(api_version, kind)));
    };
    let stored = review.catalog.storage_of(row);
    review.lookup.load(&stored.group, &stored.plural).await;
    let namespace = match (row.namespaced, read::some_text(param_ref, "namespace")) {
        (false, _) => "",
        (true, Some(namespace)) => namespace,
        (true, None) if review.attributes.namespace.is_empty() => {
            return Err("cannot use namespaced paramRef in policy binding that matches cluster-scoped resources".to_owned());
        }
        (true, None) => &review.attributes.namespace,
    };
    let shown =
        |object: &Value| crate::kinds::convert(object.clone(), stored, row).map(|o| Val::from_json(&o)).map_err(|s| s.message.clone());
    let found: Vec<Arc<Value>> = match read::some_text(param_ref, "name").filter(|n| !n.is_empty()) {
        Some(name) => review.lookup.get(&stored.group, &stored.plural, namespace, name).into_iter().collect(),
        None => {
            let selector = Selector::from_label_selector(param_ref.get("selector")).map_err(|e| e.to_string())?;
            let all = review.lookup.list(&stored.group, &stored.plural, (!namespace.is_empty()).then_some(namespace));
            all.into_iter().filter(|o| selector.matches_object(o)).collect()
        }
    };
    if found.is_empty() && read::text(param_ref, "parameterNotFoundAction") != "Allow" {
        return Err("no params found for policy binding with `Deny` parameterNotFoundAction".to_owned());
    }
    found.iter().map(|o| shown(o)).collect()
}

fn shown_kind(api_version: &str, kind: &str) -> String {
    let group_version = if api_version.contains('/') { api_version.to_owned() } else { format!("/{api_version}") };
    format!("{group_version}, Kind={kind}")
}

#[async_trait]
impl Plugin for ValidatingAdmissionPolicies {
    fn name(&self) -> &'static str {
        "ValidatingAdmissionPolicy"
    }

    fn handles(&self, _operation: Operation, attributes: &Attributes) -> bool {
        // Reviews and bindings by name are no objects that a policy could speak about.
        !configures_admission(attributes) && !matches!(attributes.group.as_str(), "authentication.k8s.io" | "authorization.k8s.io")
    }

    async fn validate(&self, review: &Review<'_>) -> Result<(), Status> {
        let set = self.set(review.lookup);
        for policy in &set.policies {
            let Some(matched) = policy.matcher.matches(review)? else { continue };
            for binding in set.bindings.iter().filter(|b| b.policy == policy.name) {
                if binding.matcher.matches_or_unruled(review)?.is_none() {
                    continue;
                }
                let complaints = match parameters(policy, binding, review).await {
                    Ok(params) => self.judge(policy, review, &matched, &params)?,
                    Err(_) if policy.ignores_failure => Vec::new(),
                    Err(why) => vec![Complaint { message: format!("failed to configure binding: {why}"), reason: "Invalid".to_owned() }],
                };
                carry_out(policy, binding, review, &complaints)?;
            }
        }
        Ok(())
    }
}

fn carry_out(policy: &Policy, binding: &Binding, review: &Review<'_>, complaints: &[Complaint]) -> Result<(), Status> {
    let does = |action: &str| binding.actions.iter().any(|a| a == action);
    let mut denied = None;
    for complaint in complaints {
        if does("Warn") {
            let text = format!(
                "Validation failed for ValidatingAdmissionPolicy '{}' with binding '{}': {}",
                policy.name, binding.name, complaint.message
            );
            review.attributes.trail.warn([text]);
        }
        if does("Deny") && denied.is_none() {
            denied = Some(refusal(policy, binding, review, complaint));
        }
    }
    if does("Audit") && !complaints.is_empty() {
        let failures: Vec<Value> = complaints
            .iter()
            .enumerate()
            .map(|(idx, c)| json!({"message": c.message, "policy": policy.name, "binding": binding.name, "expressionIndex": idx, "validationActions": binding.actions}))
            .collect();
        review.attributes.trail.note("validation.policy.admission.k8s.io/validation_failure", &Value::from(failures).to_string());
    }
    denied.map_or(Ok(()), Err)
}

fn refusal(policy: &Policy, binding: &Binding, review: &Review<'_>, complaint: &Complaint) -> Status {
    let why = format!("ValidatingAdmissionPolicy '{}' with binding '{}' denied request: {}", policy.name, binding.name, complaint.message);
    let mut status = review.forbidden(&why);
    (status.code, status.reason) = match complaint.reason.as_str() {
        "Forbidden" => (403, "Forbidden"),
        "Unauthorized" => (401, "Unauthorized"),
        "RequestEntityTooLarge" => (413, "RequestEntityTooLarge"),
        _ => (422, "Invalid"),
    };
    status.causes.push(Cause { reason: String::new(), message: complaint.message.clone(), field: String::new() });
    status
}
