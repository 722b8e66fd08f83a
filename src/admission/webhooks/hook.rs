//! One webhook of a configuration, read once and kept until the configurations change.

use std::sync::Arc;
use std::time::Duration;

use base::chain::Chain;
use base::exposition::Metric;
use base::metrics;
use base::sync::Mutex;
use model::meta;
use model::reference::GroupResource;
use registry::lookup::Lookup;
use registry::status::Status;
use registry::webhook::call::{Endpoint, EndpointError};
use serde_json::Value;
use tracing::warn;

use crate::conditions::Conditions;
use crate::matching::{self, Matched, Matcher};
use crate::{Operation, Review};

/// The versions of AdmissionReview that are spoken.
const VERSIONS: [&str; 2] = ["v1", "v1beta1"];

const TOOK: Metric = Metric {
    name: "apiserver_admission_webhook_admission_duration_seconds",
    help: "How long webhooks took, by name, type and operation.",
};
const REJECTED: Metric =
    Metric { name: "apiserver_admission_webhook_rejection_count", help: "Requests that webhooks refused." };

/// One webhook, ready to be asked.
pub struct Hook {
    /// Of the configuration.
    pub configuration: String,
    /// Position of the webhook in its configuration.
    pub position: usize,
    /// Its own name.
    pub name: String,
    /// Whom it wants to see.
    pub matcher: Matcher,
    /// CEL conditions that must all be true.
    pub conditions: Conditions,
    /// Where it is.
    pub endpoint: Result<Endpoint, EndpointError>,
    /// How long it may take.
    pub timeout: Duration,
    /// `failurePolicy: Ignore`.
    pub ignores_failure: bool,
    /// It has no side effects that a dry run would feel.
    pub dry_run_is_safe: bool,
    /// `reinvocationPolicy: IfNeeded`.
    pub again_if_needed: bool,
    /// `admission.k8s.io/…` to speak: the first that both know.
    pub version: Option<&'static str>,
}

impl Hook {
    fn of(configuration: &Value, position: usize, webhook: &Value) -> Option<Hook> {
        let text = |field: &str| webhook[field].as_str().unwrap_or_default();
        let name = text("name").to_owned();
        // Validation has seen both before they were stored.
        let matcher =
            Matcher::of_webhook(webhook).map_err(|err| warn!(name, err = %err, "webhook with a bad selector")).ok()?;
        let conditions = Conditions::compile(&webhook["matchConditions"]);
        let versions = webhook["admissionReviewVersions"].as_array().into_iter().flatten();
        let version = versions.filter_map(Value::as_str).find_map(|v| VERSIONS.into_iter().find(|known| *known == v));
        Some(Hook {
            configuration: meta::name(configuration).to_owned(),
            position,
            name,
            matcher,
            conditions,
            endpoint: Endpoint::from_client_config(&webhook["clientConfig"]),
            timeout: Duration::from_secs(webhook["timeoutSeconds"].as_u64().unwrap_or(10)),
            ignores_failure: text("failurePolicy") == "Ignore",
            dry_run_is_safe: matches!(text("sideEffects"), "None" | "NoneOnDryRun"),
            again_if_needed: text("reinvocationPolicy") == "IfNeeded",
            version,
        })
    }

    /// Notes how long an answer took, and whether it refused the request. `sort` is `admit` or `validating`.
    pub fn measured(&self, sort: &str, operation: Operation, took: Duration, refused: Option<&Status>) {
        let rejected = if refused.is_some() { "true" } else { "false" };
        let operation = operation.text();
        let labels = [("name", self.name.as_str()), ("operation", operation), ("rejected", rejected), ("type", sort)];
        metrics::observe(TOOK, &labels, took);
        if let Some(status) = refused {
            // What is not the webhook's own no is the failure to ask it.
            let error = if status.code >= 500 { "calling_webhook_error" } else { "no_error" };
            let code = if error == "no_error" { status.code.to_string() } else { "0".to_owned() };
            let labels = [
                ("error_type", error),
                ("name", self.name.as_str()),
                ("operation", operation),
                ("rejection_code", &code),
                ("type", sort),
            ];
            metrics::count(REJECTED, &labels, 1);
        }
    }

    /// Tells webhooks of all configurations apart.
    pub fn id(&self) -> String {
        format!("{}/{}/{}", self.configuration, self.name, self.position)
    }

    /// Whether it is to be asked, and about which version.
    ///
    /// Errors: a condition failed and the failure policy is Fail; a dry run that it does not support.
    pub async fn wants(&self, review: &Review<'_>) -> Result<Option<Matched>, Status> {
        let Some(matched) = self.matcher.matches(review)? else { return Ok(None) };
        match self.conditions.hold(review, &matched).await {
            Ok(true) => {}
            Ok(false) => return Ok(None),
            Err(err) if self.ignores_failure => {
                warn!(webhook = %self.name, err = %Chain(&err), "match conditions failed, failing open");
                return Ok(None);
            }
            Err(err) => return Err(review.forbidden(&Chain(&err).to_string())),
        }
        if review.dry_run && !self.dry_run_is_safe {
            return Err(Status::bad_request(format!("admission webhook {:?} does not support dry run", self.name)));
        }
        Ok(Some(matched))
    }
}

/// All webhooks of one kind of configuration.
pub struct Hooks {
    resource: &'static str,
    compiled: Mutex<(u64, Arc<Vec<Arc<Hook>>>)>,
}

impl Hooks {
    /// Of `mutatingwebhookconfigurations` or `validatingwebhookconfigurations`.
    pub fn new(resource: &'static str) -> Hooks {
        Hooks { resource, compiled: Mutex::new((u64::MAX, Arc::default())) }
    }

    /// As they stand now, in the order of the configurations' names.
    pub fn current(&self, lookup: &dyn Lookup) -> Arc<Vec<Arc<Hook>>> {
        let at = *lookup.changed(GroupResource { group: matching::GROUP, resource: self.resource }).borrow();
        let mut compiled = self.compiled.lock();
        if compiled.0 != at {
            let mut configurations =
                lookup.list(GroupResource { group: matching::GROUP, resource: self.resource }, None);
            configurations.sort_by(|a, b| meta::name(a).cmp(meta::name(b)));
            let hooks = configurations.iter().flat_map(|configuration| {
                let webhooks = configuration["webhooks"].as_array().into_iter().flatten().enumerate();
                webhooks
                    .filter_map(|(position, webhook)| Hook::of(configuration, position, webhook).map(Arc::new))
                    .collect::<Vec<_>>()
            });
            *compiled = (at, Arc::new(hooks.collect()));
        }
        compiled.1.clone()
    }
}
