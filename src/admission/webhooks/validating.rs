//! `ValidatingAdmissionWebhook`: all webhooks judge at once; the first refusal in their order is the answer.

use std::sync::Arc;

use async_trait::async_trait;
use futures_util::future::{BoxFuture, join_all};
use registry::attributes::Attributes;
use registry::status::Status;

use super::hook::{Hook, Hooks};
use super::outside::Outside;
use super::question::{self, Failure};
use crate::matching::{Matched, configures_admission};
use crate::{Operation, Plugin, Review};

/// Upstream's plugin of that name.
pub struct Validating {
    hooks: Hooks,
    outside: Outside,
}

impl Validating {
    /// Asks through `outside`.
    pub fn new(outside: Outside) -> Validating {
        Validating { hooks: Hooks::new("validatingwebhookconfigurations"), outside }
    }

    async fn ask(&self, review: &Review<'_>, hook: &Hook, matched: &Matched) -> Result<(), Status> {
        let watch = base::time::Stopwatch::start();
        let done = self.question(review, hook, matched).await;
        hook.measured("validating", review.operation, watch.elapsed(), done.as_ref().err());
        done
    }

    async fn question(&self, review: &Review<'_>, hook: &Hook, matched: &Matched) -> Result<(), Status> {
        let shown = question::versioned(review, review.object, matched).await?;
        match question::ask(&self.outside, hook, review, matched, &shown).await? {
            Ok((_, response)) => {
                question::note(hook, &response, &review.attributes.trail);
                Ok(())
            }
            Err(failure) => {
                if matches!(&failure, Failure::Call(_)) && hook.ignores_failure {
                    review.attributes.trail.note(
                        &format!("failed-open.validating.webhook.admission.k8s.io/round_0_index_{}", hook.position),
                        &hook.name,
                    );
                }
                failure.status(hook).map_or(Ok(()), Err)
            }
        }
    }
}

#[async_trait]
impl Plugin for Validating {
    fn name(&self) -> &'static str {
        "ValidatingAdmissionWebhook"
    }

    fn handles(&self, _operation: Operation, a: &Attributes) -> bool {
        !configures_admission(a)
    }

    async fn validate(&self, review: &Review<'_>) -> Result<(), Status> {
        let hooks = self.hooks.current(review.lookup);
        let mut wanted: Vec<(Arc<Hook>, Matched)> = Vec::new();
        for hook in hooks.iter() {
            if let Some(matched) = hook.wants(review).await? {
                wanted.push((hook.clone(), matched));
            }
        }
        // Boxed one by one: the compiler cannot see that a closure's borrowing futures may change threads.
        let mut asked: Vec<BoxFuture<'_, Result<(), Status>>> = Vec::with_capacity(wanted.len());
        for (hook, matched) in &wanted {
            asked.push(Box::pin(self.ask(review, hook, matched)));
        }
        join_all(asked).await.into_iter().collect()
    }
}
