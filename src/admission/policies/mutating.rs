//! MutatingAdmissionPolicy: expressions that change objects before anybody outside is asked about them.

use std::sync::Arc;

use async_trait::async_trait;
use authz::Authorizer;
use base::chain::Chain;
use cel::run::Fault;
use cel::syntax::Dialect;
use cel::value::Val;
use registry::attributes::Attributes;
use registry::status::{Cause, Status};
use schema::decode::FieldValidation;
use schema::read;
use schema::table::GroupVersion;
use serde_json::Value;

use super::patches::{self, PatchError};
use super::{Binding, ParametersError, Policy, Resources, Shelf, parameters};
use crate::conditions::ConditionsError;
use crate::expressions::{CompileError, Compiled, Facts};
use crate::matching::{Matched, configures_admission};
use crate::webhooks::{mutating, question};
use crate::{Operation, Plugin, Review};

/// How a mutation's result is laid on the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Patch {
    Apply,
    Json,
}

struct Rules {
    policy: Policy,
    mutations: Vec<(Patch, Compiled)>,
    again_if_needed: bool,
}

impl Rules {
    fn of(object: &Value) -> Option<Rules> {
        let (policy, spec) = (Policy::of(object)?, &object["spec"]);
        let mutation = |m: &Value| {
            let (patch, field) = if read::text(m, "patchType") == "JSONPatch" {
                (Patch::Json, "jsonPatch")
            } else {
                (Patch::Apply, "applyConfiguration")
            };
            (patch, policy.compile(Dialect::Patches, read::text(&m[field], "expression")))
        };
        let mutations = read::list(spec, "mutations").iter().map(mutation).collect();
        Some(Rules { policy, mutations, again_if_needed: read::text(spec, "reinvocationPolicy") == "IfNeeded" })
    }
}

/// One policy that could not do its work, with its binding.
type Trouble<'a> = (&'a Policy, &'a Binding, PolicyError);

/// The plugin.
pub struct MutatingAdmissionPolicies {
    authorizer: Arc<dyn Authorizer>,
    shelf: Shelf<Rules>,
}

/// Why a policy could not do its work.
#[derive(Debug, thiserror::Error)]
enum PolicyError {
    #[error("failed to configure binding")]
    Parameters(#[from] ParametersError),
    #[error(transparent)]
    Conditions(#[from] ConditionsError),
    #[error("compilation failed")]
    Compile(#[source] CompileError),
    #[error("expression '{expression}' resulted in error: {fault}")]
    Run { expression: String, fault: Fault },
    #[error(transparent)]
    Patch(#[from] PatchError),
}

impl MutatingAdmissionPolicies {
    /// With the authorizer that expressions may ask.
    pub fn new(authorizer: Arc<dyn Authorizer>) -> MutatingAdmissionPolicies {
        let of = Resources { policies: "mutatingadmissionpolicies", bindings: "mutatingadmissionpolicybindings" };
        MutatingAdmissionPolicies { authorizer, shelf: Shelf::new(of) }
    }

    /// Runs one policy with one set of parameters. `Ok(Err(…))` is for the failure policy to judge.
    async fn invoke(
        &self,
        rules: &Rules,
        id: &str,
        matched: &Matched,
        params: &Val,
        review: &mut Review<'_>,
    ) -> Result<Result<(), PolicyError>, Status> {
        let facts = Facts::of(review, matched).await?.ask(&self.authorizer, &review.attributes.user);
        match rules
            .policy
            .within(&facts, params, |surroundings, budget| rules.policy.conditions.hold_with(surroundings, budget))
        {
            Ok(true) => {}
            Ok(false) => return Ok(Ok(())),
            Err(err) => return Ok(Err(err.into())),
        }
        if review.reinvocation.is_second() && !review.reinvocation.policies.repeats(id) {
            return Ok(Ok(()));
        }
        let (mut changed, mut trouble) = (false, Ok(()));
        for (patch, program) in &rules.mutations {
            if review.object.is_null() {
                continue;
            }
            match self.mutate(rules, *patch, program, matched, params, review).await? {
                Ok(other) => changed |= other,
                // The mutations after it are still tried, as upstream does.
                Err(why) => trouble = trouble.and(Err(why)),
            }
        }
        if changed {
            review.reinvocation.policies.changed();
            review.reinvocation.want();
        }
        if rules.again_if_needed {
            review.reinvocation.policies.called(id.to_owned());
        }
        Ok(trouble)
    }

    /// Runs one mutation; whether the object is another one now.
    async fn mutate(
        &self,
        rules: &Rules,
        patch: Patch,
        program: &Compiled,
        matched: &Matched,
        params: &Val,
        review: &mut Review<'_>,
    ) -> Result<Result<bool, PolicyError>, Status> {
        let facts = Facts::of(review, matched).await?.ask(&self.authorizer, &review.attributes.user);
        let program = match program {
            Ok(program) => program,
            Err(why) => return Ok(Err(PolicyError::Compile(why.clone()))),
        };
        let made = match rules.policy.within(&facts, params, |surroundings, budget| program.run(surroundings, budget)) {
            Ok(made) => made,
            Err(fault) => return Ok(Err(PolicyError::Run { expression: program.text.clone(), fault })),
        };
        drop(facts);
        let shown = question::versioned(review, review.object, matched).await?;
        let row = review
            .catalog
            .resource(GroupVersion { group: &matched.group, version: &matched.version }, &matched.resource)
            .filter(|r| r.kind == matched.kind.kind);
        let of = match row {
            Some(row) => Some(row.type_def()),
            None => review.catalog.type_of_kind(matched.kind.group_version(), &matched.kind.kind),
        };
        let Some(of) = of else {
            let kind = format!("{}, Kind={}", matched.kind.api_version(), matched.kind.kind);
            return Err(Status::unavailable(format!(
                "Resource kind {kind} not found. There can be a delay between when CustomResourceDefinitions are \
                 created and when they are available."
            )));
        };
        let changed = match patch {
            Patch::Apply => patches::configured(of, &shown, &made),
            Patch::Json => patches::patched(&shown, &made),
        };
        let changed = match changed {
            Ok(changed) if changed == shown => return Ok(Ok(false)),
            Ok(changed) => changed,
            Err(err) => return Ok(Err(err.into())),
        };
        let strictness = if patch == Patch::Json { FieldValidation::Strict } else { FieldValidation::Ignore };
        let decoded = match row {
            Some(row) => schema::decode::conform_resource(changed, row, strictness),
            None => schema::decode::conform(changed, of, strictness),
        };
        let decoded = decoded.map_err(|err| Status::internal(err.message(matched.kind.borrowed())))?;
        *review.object = question::stored(review, decoded.value, matched).await?;
        mutating::complete(review);
        Ok(Ok(true))
    }
}

#[async_trait]
impl Plugin for MutatingAdmissionPolicies {
    fn name(&self) -> &'static str {
        "MutatingAdmissionPolicy"
    }

    fn handles(&self, operation: Operation, attributes: &Attributes) -> bool {
        operation != Operation::Delete
            && !configures_admission(attributes)
            && !matches!(attributes.group.as_str(), "authentication.k8s.io" | "authorization.k8s.io")
    }

    async fn admit(&self, review: &mut Review<'_>) -> Result<(), Status> {
        let set = self.shelf.current(review.lookup, Rules::of);
        if set.bindings.is_empty() {
            return Ok(());
        }
        // What matches is settled before anything is changed.
        let mut troubles: Vec<Trouble<'_>> = Vec::new();
        let mut invocations = Vec::new();
        for rules in &set.policies {
            let Some(matched) = rules.policy.matcher.matches(review)? else { continue };
            for binding in set.bindings.iter().filter(|b| b.policy == rules.policy.name) {
                if binding.matcher.matches_or_unruled(review)?.is_none() {
                    continue;
                }
                match parameters(&rules.policy, binding, review).await {
                    Ok(params) => invocations.extend(params.into_iter().map(|p| (rules, binding, matched.clone(), p))),
                    Err(err) => troubles.push((&rules.policy, binding, err.into())),
                }
            }
        }
        if review.reinvocation.is_second() {
            review.reinvocation.policies.before_second(review.object);
        }
        for (rules, binding, matched, (key, params)) in &invocations {
            let id = format!("{} {} {key}", rules.policy.name, binding.name);
            if let Err(err) = self.invoke(rules, &id, matched, params, review).await? {
                troubles.push((&rules.policy, binding, err));
            }
        }
        review.reinvocation.policies.after(review.object);
        troubles.retain(|(policy, ..)| !policy.ignores_failure);
        refusal(review, &troubles)
    }
}

fn refusal(review: &Review<'_>, troubles: &[Trouble<'_>]) -> Result<(), Status> {
    let shown = |(policy, binding, err): &Trouble<'_>| {
        format!("policy '{}' with binding '{}' denied request: {}", policy.name, binding.name, Chain(err))
    };
    let Some(first) = troubles.first() else { return Ok(()) };
    let mut status = review.forbidden("");
    status.message = shown(first);
    // A configuration that cannot be used keeps the reason of the refusal.
    if !matches!(first.2, PolicyError::Parameters(_)) {
        status.reason = "Invalid";
    }
    status.causes =
        troubles.iter().map(|t| Cause { reason: String::new(), message: shown(t), field: String::new() }).collect();
    Err(status)
}
