//! `MutatingAdmissionWebhook`: one webhook after the other may patch the object.

use async_trait::async_trait;
use registry::attributes::Attributes;
use registry::status::Status;
use schema::table::GroupVersion;
use serde_json::{Value, json};

use super::hook::{Hook, Hooks};
use super::outside::Outside;
use super::question;
use crate::matching::{Matched, configures_admission};
use crate::{Operation, Plugin, Review};

/// Upstream's plugin of that name.
pub struct Mutating {
    hooks: Hooks,
    outside: Outside,
}

impl Mutating {
    /// Asks through `outside`.
    pub fn new(outside: Outside) -> Mutating {
        Mutating { hooks: Hooks::new("mutatingwebhookconfigurations"), outside }
    }

    async fn run(&self, review: &mut Review<'_>, hook: &Hook, matched: &Matched) -> Result<(), Status> {
        let shown = question::versioned(review, review.object, matched).await?;
        let (answer, response) = match question::ask(&self.outside, hook, review, matched, &shown).await? {
            Ok(said) => said,
            Err(failure) => return failure.status(hook).map_or(Ok(()), Err),
        };
        question::note(hook, &response, &review.attributes.trail);
        if answer.patch.is_empty() {
            self.record(review, hook, None);
            return Ok(());
        }
        let patch: Value = serde_json::from_slice(&answer.patch).map_err(Status::internal)?;
        if patch.as_array().is_some_and(Vec::is_empty) {
            return Ok(());
        }
        if review.object.is_null() {
            let why = format!(
                "admission webhook {:?} attempted to modify the object, which is not supported for this operation",
                hook.name
            );
            return Err(Status::internal(why));
        }
        let patched = schema::patch::json(&shown, &answer.patch).map_err(Status::internal)?;
        let patched = conform(review, patched, matched)?;
        let changed = patched != shown;
        self.record(review, hook, changed.then_some(&patch));
        if changed {
            *review.object = question::stored(review, patched, matched).await?;
            complete(review);
            review.reinvocation.webhooks.changed();
            review.reinvocation.want();
        }
        Ok(())
    }

    /// Notes what a webhook did; `patch` is what changed the object.
    fn record(&self, review: &Review<'_>, hook: &Hook, patch: Option<&Value>) {
        let place = format!("round_{}_index_{}", u8::from(review.reinvocation.is_second()), hook.position);
        let mut what = json!({ "configuration": hook.configuration, "webhook": hook.name, "mutated": patch.is_some() });
        review.attributes.trail.note(&format!("mutation.webhook.admission.k8s.io/{place}"), what.to_string());
        if let (Some(patch), Some(what)) = (patch, what.as_object_mut()) {
            what.remove("mutated");
            what.insert("patch".to_owned(), patch.clone());
            what.insert("patchType".to_owned(), json!("JSONPatch"));
            review.attributes.trail.note(&format!("patch.webhook.admission.k8s.io/{place}"), json!(what).to_string());
        }
    }
}

/// The patched object in the form of its kind: what the kind does not know is dropped, as upstream's decoder does.
fn conform(review: &Review<'_>, patched: Value, matched: &Matched) -> Result<Value, Status> {
    let row =
        review.catalog.resource(GroupVersion { group: &matched.group, version: &matched.version }, &matched.resource);
    let Some(row) = row.filter(|row| row.kind == matched.kind.kind && row.kind == review.kind) else {
        return Ok(patched);
    };
    let decoded = schema::decode::conform(patched, row.type_def(), schema::decode::FieldValidation::Ignore);
    decoded.map(|decoded| decoded.value).map_err(|err| Status::internal(err.message(row.group_version_kind())))
}

/// Defaults of what a webhook or policy added.
pub fn complete(review: &mut Review<'_>) {
    let a = review.attributes;
    if let Some(row) = review.catalog.resource(GroupVersion { group: &a.group, version: &a.version }, &a.resource) {
        let stored = review.catalog.storage_of(row);
        if stored.kind == review.kind {
            schema::defaults::apply(stored, review.object);
        }
    }
}

#[async_trait]
impl Plugin for Mutating {
    fn name(&self) -> &'static str {
        "MutatingAdmissionWebhook"
    }

    fn handles(&self, _operation: Operation, a: &Attributes) -> bool {
        !configures_admission(a)
    }

    async fn admit(&self, review: &mut Review<'_>) -> Result<(), Status> {
        let hooks = self.hooks.current(review.lookup);
        if hooks.is_empty() {
            return Ok(());
        }
        if review.reinvocation.is_second() {
            review.reinvocation.webhooks.before_second(review.object);
        }
        for hook in hooks.iter() {
            if review.reinvocation.is_second() && !review.reinvocation.webhooks.repeats(&hook.id()) {
                continue;
            }
            let Some(matched) = hook.wants(review).await? else { continue };
            let watch = base::time::Stopwatch::start();
            let done = self.run(review, hook, &matched).await;
            hook.measured("admit", review.operation, watch.elapsed(), done.as_ref().err());
            done?;
            if hook.again_if_needed {
                review.reinvocation.webhooks.called(hook.id());
            }
        }
        review.reinvocation.webhooks.after(review.object);
        Ok(())
    }
}
