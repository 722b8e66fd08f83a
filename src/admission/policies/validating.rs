//! ValidatingAdmissionPolicy: rules about every object that say yes or no.

use std::cell::Cell;
use std::sync::Arc;

use async_trait::async_trait;
use authz::Authorizer;
use base::chain::Chain;
use cel::Surroundings;
use cel::syntax::Dialect;
use cel::value::Val;
use registry::attributes::Attributes;
use registry::status::{Cause, Status};
use schema::read;
use serde_json::{Value, json};

use super::{Binding, Policy, Resources, Shelf, parameters};
use crate::expressions::{self, Compiled, Facts};
use crate::matching::configures_admission;
use crate::{Operation, Plugin, Review};

struct Validation {
    expression: String,
    program: Compiled,
    message: Option<String>,
    message_program: Option<Compiled>,
    reason: String,
}

struct Rules {
    policy: Policy,
    validations: Vec<Validation>,
    annotations: Vec<(String, Compiled)>,
}

/// The plugin.
pub struct ValidatingAdmissionPolicies {
    authorizer: Arc<dyn Authorizer>,
    shelf: Shelf<Rules>,
}

impl Rules {
    fn of(object: &Value) -> Option<Rules> {
        let (policy, spec) = (Policy::of(object)?, &object["spec"]);
        let validation = |v: &Value| Validation {
            expression: read::text(v, "expression").trim().to_owned(),
            program: expressions::condition(policy.compile(Dialect::Common, read::text(v, "expression"))),
            message: read::some_text(v, "message").map(|m| m.trim().to_owned()).filter(|m| !m.is_empty()),
            message_program: read::some_text(v, "messageExpression")
                .filter(|m| !m.is_empty())
                .map(|m| policy.compile(Dialect::Common, m)),
            reason: read::some_text(v, "reason").unwrap_or("Invalid").to_owned(),
        };
        let annotation = |a: &Value| {
            (read::text(a, "key").to_owned(), policy.compile(Dialect::Common, read::text(a, "valueExpression")))
        };
        let validations = read::list(spec, "validations").iter().map(validation).collect();
        let annotations = read::list(spec, "auditAnnotations").iter().map(annotation).collect();
        Some(Rules { policy, validations, annotations })
    }

    fn judge(&self, review: &Review<'_>, facts: &Facts, params: &Val) -> Vec<Complaint> {
        self.policy.within(facts, params, |surroundings, budget| self.judge_in(review, surroundings, budget))
    }

    fn judge_in(&self, review: &Review<'_>, surroundings: &Surroundings<'_>, budget: &Cell<i64>) -> Vec<Complaint> {
        let ignores = self.policy.ignores_failure;
        let failed =
            |message: String| if ignores { None } else { Some(Complaint { message, reason: "Invalid".to_owned() }) };
        match self.policy.conditions.hold_with(surroundings, budget) {
            Ok(true) => {}
            Ok(false) => return Vec::new(),
            Err(err) => return failed(Chain(&err).to_string()).into_iter().collect(),
        }
        for (key, program) in &self.annotations {
            if let Ok(program) = program
                && let Ok(Val::Text(text)) = program.run(surroundings, budget)
            {
                review.attributes.trail.note(&format!("{}/{key}", self.policy.name), &text);
            }
        }
        let mut complaints = Vec::new();
        for validation in &self.validations {
            match expressions::holds(&validation.program, surroundings, budget) {
                Ok(true) => {}
                Ok(false) => complaints.push(Complaint {
                    message: message(validation, surroundings, budget),
                    reason: validation.reason.clone(),
                }),
                Err(err) => complaints.extend(failed(format!(
                    "expression '{}' resulted in error: {}",
                    validation.expression,
                    Chain(&err)
                ))),
            }
        }
        complaints
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
        let of = Resources { policies: "validatingadmissionpolicies", bindings: "validatingadmissionpolicybindings" };
        ValidatingAdmissionPolicies { authorizer, shelf: Shelf::new(of) }
    }
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

#[async_trait]
impl Plugin for ValidatingAdmissionPolicies {
    fn name(&self) -> &'static str {
        "ValidatingAdmissionPolicy"
    }

    fn handles(&self, _operation: Operation, attributes: &Attributes) -> bool {
        // Reviews and bindings by name are no objects that a policy could speak about.
        !configures_admission(attributes)
            && !matches!(attributes.group.as_str(), "authentication.k8s.io" | "authorization.k8s.io")
    }

    async fn validate(&self, review: &Review<'_>) -> Result<(), Status> {
        let set = self.shelf.current(review.lookup, Rules::of);
        for rules in &set.policies {
            let policy = &rules.policy;
            let Some(matched) = policy.matcher.matches(review)? else { continue };
            for binding in set.bindings.iter().filter(|b| b.policy == policy.name) {
                if binding.matcher.matches_or_unruled(review)?.is_none() {
                    continue;
                }
                let complaints = match parameters(policy, binding, review).await {
                    Ok(params) => {
                        let facts = Facts::of(review, &matched).await?.ask(&self.authorizer, &review.attributes.user);
                        params.iter().flat_map(|(_, params)| rules.judge(review, &facts, params)).collect()
                    }
                    Err(_) if policy.ignores_failure => Vec::new(),
                    Err(err) => vec![Complaint {
                        message: format!("failed to configure binding: {}", Chain(&err)),
                        reason: "Invalid".to_owned(),
                    }],
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
            .map(|(idx, c)| {
                json!({"message": c.message, "policy": policy.name, "binding": binding.name,
                "expressionIndex": idx, "validationActions": binding.actions})
            })
            .collect();
        review
            .attributes
            .trail
            .note("validation.policy.admission.k8s.io/validation_failure", Value::from(failures).to_string());
    }
    denied.map_or(Ok(()), Err)
}

fn refusal(policy: &Policy, binding: &Binding, review: &Review<'_>, complaint: &Complaint) -> Status {
    let why = format!(
        "ValidatingAdmissionPolicy '{}' with binding '{}' denied request: {}",
        policy.name, binding.name, complaint.message
    );
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
