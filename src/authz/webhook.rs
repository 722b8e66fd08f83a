//! A webhook that decides: a SubjectAccessReview by somebody else.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use base::sync::Mutex;
use bytes::Bytes;
use cel::Program;
use registry::attributes::Attributes;
use registry::webhook::client::Webhooks;
use registry::webhook::kubeconfig::Remote;
use serde_json::{Value, json};
use tokio::time::Instant;
use tracing::warn;

use super::{Authorizer, Decision, conditions};

/// Verdicts that are remembered; when full, all are forgotten.
const REMEMBERED_MAX: usize = 8192;
/// Questions longer than this are not remembered, as upstream.
const QUESTION_BYTES_MAX: usize = 10_000;

/// How a webhook is asked.
pub struct Settings {
    /// Where it is.
    pub remote: Remote,
    /// How long it may take.
    pub timeout: Duration,
    /// How long a yes is remembered.
    pub authorized_ttl: Duration,
    /// How long anything else is.
    pub unauthorized_ttl: Duration,
    /// `failurePolicy: Deny`.
    pub denies_on_failure: bool,
    /// It is asked about requests only for which all of these hold.
    pub conditions: Vec<Program>,
}

/// Asks a webhook.
pub struct Webhook {
    settings: Settings,
    webhooks: Arc<Webhooks>,
    known: Mutex<HashMap<String, (Instant, Decision)>>,
}

impl Webhook {
    /// Asks through `webhooks`.
    pub fn new(settings: Settings, webhooks: Arc<Webhooks>) -> Webhook {
        Webhook { settings, webhooks, known: Mutex::default() }
    }

    /// Decision of a question that got no answer.
    fn unanswered(&self) -> Decision {
        match self.settings.denies_on_failure {
            true => Decision::Deny { reason: String::new() },
            false => Decision::NoOpinion { reason: String::new() },
        }
    }

    fn ttl(&self, decision: &Decision) -> Duration {
        if matches!(decision, Decision::Allow { .. }) {
            self.settings.authorized_ttl
        } else {
            self.settings.unauthorized_ttl
        }
    }
}

/// `spec` of the SubjectAccessReview about a request.
fn spec(a: &Attributes) -> Value {
    let mut spec = json!({ "user": a.user.name });
    let mut put = |key: &str, value: Value, present: bool| {
        if present {
            spec[key] = value;
        }
    };
    put("groups", json!(a.user.groups), !a.user.groups.is_empty());
    put("uid", json!(a.user.uid), !a.user.uid.is_empty());
    put("extra", json!(a.user.extra), !a.user.extra.is_empty());
    if !a.is_resource {
        spec["nonResourceAttributes"] = json!({ "path": a.path, "verb": a.verb });
        return spec;
    }
    let mut resource = json!({});
    let parts = [
        ("namespace", &a.namespace),
        ("verb", &a.verb),
        ("group", &a.group),
        ("version", &a.version),
        ("resource", &a.resource),
        ("subresource", &a.subresource),
        ("name", &a.name),
    ];
    for (key, text) in parts {
        if !text.is_empty() {
            resource[key] = json!(text);
        }
    }
    for (key, text) in [("fieldSelector", &a.field_selector), ("labelSelector", &a.label_selector)] {
        if !text.is_empty() {
            resource[key] = json!({ "rawSelector": text });
        }
    }
    spec["resourceAttributes"] = resource;
    spec
}

fn decision(review: &Value) -> Decision {
    let status = &review["status"];
    let reason = status["reason"].as_str().unwrap_or_default().to_owned();
    match (status["denied"] == true, status["allowed"] == true) {
        (true, true) => {
            Decision::Deny { reason: "webhook subject access review returned both allow and deny response".to_owned() }
        }
        (true, false) => Decision::Deny { reason },
        (false, true) => Decision::Allow { reason },
        (false, false) => Decision::NoOpinion { reason },
    }
}

#[async_trait]
impl Authorizer for Webhook {
    async fn authorize(&self, a: &Attributes) -> Decision {
        let spec = spec(a);
        match conditions::hold(&self.settings.conditions, &spec) {
            Ok(true) => {}
            Ok(false) => return Decision::NoOpinion { reason: String::new() },
            Err(err) => {
                warn!(err = %err, "match conditions of an authorizer cannot be evaluated");
                return self.unanswered();
            }
        }
        let question =
            json!({ "kind": "SubjectAccessReview", "apiVersion": "authorization.k8s.io/v1", "spec": spec }).to_string();
        let lock = || self.known.lock();
        if let Some((at, decision)) = lock().get(&question)
            && at.elapsed() < self.ttl(decision)
        {
            return decision.clone();
        }
        let settings = &self.settings;
        let said = self
            .webhooks
            .post(&settings.remote.endpoint, &settings.remote.identity, Bytes::from(question.clone()), settings.timeout)
            .await;
        let review = said
            .map_err(|err| err.to_string())
            .and_then(|bytes| serde_json::from_slice::<Value>(&bytes).map_err(|err| err.to_string()));
        match review {
            Ok(review) => {
                let decision = decision(&review);
                if question.len() <= QUESTION_BYTES_MAX {
                    let mut known = lock();
                    if known.len() >= REMEMBERED_MAX {
                        known.clear();
                    }
                    known.insert(question, (Instant::now(), decision.clone()));
                }
                decision
            }
            Err(why) => {
                warn!(why, "Failed to make webhook authorizer request");
                self.unanswered()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_no_ends_the_chain_and_silence_does_not() {
        assert!(matches!(decision(&json!({ "status": { "allowed": false, "denied": true } })), Decision::Deny { .. }));
        assert!(matches!(decision(&json!({ "status": { "allowed": false } })), Decision::NoOpinion { .. }));
        let a = Attributes { verb: "get".into(), path: "/healthz".into(), ..Attributes::default() };
        assert_eq!(spec(&a)["nonResourceAttributes"], json!({ "path": "/healthz", "verb": "get" }));
    }
}
