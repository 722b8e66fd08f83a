//! Somebody outside says which images may run.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use base::chain::Chain;
use base::sync::Mutex;
use bytes::Bytes;
use model::meta;
use registry::attributes::Attributes;
use registry::status::Status;
use registry::strict::known;
use registry::webhook::client::{CallError, Webhooks};
use registry::webhook::kubeconfig::Remote;
use schema::read;
use schema::validate::error::FieldError;
use serde_json::{Value, json};
use tokio::time::Instant;
use tracing::warn;

use super::error::ConfigurationError;
use super::{Operation, Plugin, Review};

/// Verdicts that are remembered; when full, all are forgotten.
const REMEMBERED_MAX: usize = 1024;
/// Tries, and how long each may take.
const TRIES: u32 = 5;
const TIMEOUT: Duration = Duration::from_secs(30);

/// `imagePolicy` of the plugin's configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImagePolicy {
    /// Where the backend is and who we are to it.
    pub kubeconfig: PathBuf,
    allow_ttl: Duration,
    deny_ttl: Duration,
    retry_backoff: Duration,
    default_allow: bool,
}

impl ImagePolicy {
    /// Reads it; `path` is where it stands.
    ///
    /// Errors: about the first thing that is wrong.
    pub fn of(value: &Value, path: &str) -> Result<ImagePolicy, ConfigurationError> {
        known(value, path, &["imagePolicy"])?;
        let (policy, at) = (&value["imagePolicy"], format!("{path}.imagePolicy"));
        known(policy, &at, &["kubeConfigFile", "allowTTL", "denyTTL", "retryBackoff", "defaultAllow"])?;
        let kubeconfig = read::some_text(policy, "kubeConfigFile")
            .ok_or_else(|| FieldError::required(format!("{at}.kubeConfigFile"), ""))?;
        // -1 is none at all; 0 is upstream's default; bounds are upstream's.
        let within = |field: &str, unit: Duration, bounds: (u64, u64), usual: u64| match read::number(policy, field) {
            -1 => Ok(Duration::ZERO),
            0 => Ok(unit * u32::try_from(usual).unwrap_or(1)),
            number => {
                let (min, max) = bounds;
                let fits =
                    u64::try_from(number).ok().filter(|n| (min..=max).contains(n)).and_then(|n| u32::try_from(n).ok());
                let out = || ConfigurationError::OutOfBounds { number, min, max }.at(format!("{at}.{field}"));
                fits.map(|n| unit * n).ok_or_else(out)
            }
        };
        let second = Duration::from_secs(1);
        Ok(ImagePolicy {
            kubeconfig: kubeconfig.into(),
            allow_ttl: within("allowTTL", second, (1, 1800), 300)?,
            deny_ttl: within("denyTTL", second, (1, 1800), 30)?,
            retry_backoff: within("retryBackoff", Duration::from_millis(1), (1, 300_000), 500)?,
            default_allow: read::flag(policy, "defaultAllow"),
        })
    }
}

/// Upstream's `ImagePolicyWebhook`.
pub struct ImagePolicyWebhook {
    policy: ImagePolicy,
    remote: Remote,
    webhooks: Arc<Webhooks>,
    known: Mutex<HashMap<String, (Instant, Verdict)>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Verdict {
    allowed: bool,
    reason: String,
    annotations: Vec<(String, String)>,
}

/// Why the backend gave no verdict.
#[derive(Debug, thiserror::Error)]
enum NoVerdict {
    /// It did not answer.
    #[error(transparent)]
    Call(#[from] CallError),
    /// Its answer is no JSON.
    #[error(transparent)]
    Answer(#[from] serde_json::Error),
}

impl ImagePolicyWebhook {
    /// Asks `remote` through `webhooks`.
    pub fn new(policy: ImagePolicy, remote: Remote, webhooks: Arc<Webhooks>) -> ImagePolicyWebhook {
        ImagePolicyWebhook { policy, remote, webhooks, known: Mutex::default() }
    }

    async fn ask(&self, question: &str) -> Result<Verdict, NoVerdict> {
        let mut wait = self.policy.retry_backoff;
        let mut tried = 0;
        let body = loop {
            let question = Bytes::from(question.to_owned());
            match self.webhooks.post(&self.remote.endpoint, &self.remote.identity, question, TIMEOUT).await {
                Ok(body) => break body,
                Err(err) if tried + 1 >= TRIES => return Err(err.into()),
                Err(err) => warn!(err = %err, "the backend of image policies does not answer, it is asked again"),
            }
            tokio::time::sleep(wait).await;
            wait = wait.mul_f64(1.5);
            tried += 1;
        };
        let answer: Value = serde_json::from_slice(&body)?;
        let annotations = read::map(&answer, "status.auditAnnotations").into_iter().flatten();
        Ok(Verdict {
            allowed: read::flag(&answer, "status.allowed"),
            reason: read::text(&answer, "status.reason").to_owned(),
            annotations: annotations
                .map(|(key, value)| (key.clone(), value.as_str().unwrap_or_default().to_owned()))
                .collect(),
        })
    }

    async fn verdict(&self, question: String) -> Result<Verdict, NoVerdict> {
        let lock = || self.known.lock();
        let ttl = |verdict: &Verdict| if verdict.allowed { self.policy.allow_ttl } else { self.policy.deny_ttl };
        if let Some((at, verdict)) = lock().get(&question)
            && at.elapsed() < ttl(verdict)
        {
            return Ok(verdict.clone());
        }
        let verdict = self.ask(&question).await?;
        let mut known = lock();
        if known.len() >= REMEMBERED_MAX {
            known.clear();
        }
        known.insert(question, (Instant::now(), verdict.clone()));
        Ok(verdict)
    }
}

/// The images of a pod, with its annotations that are meant for the backend.
fn question(pod: &Value, namespace: &str) -> String {
    let lists = ["initContainers", "containers", "ephemeralContainers"];
    let images = lists.iter().flat_map(|list| pod["spec"][*list].as_array().into_iter().flatten());
    let containers: Vec<Value> = images.map(|container| json!({ "image": container["image"] })).collect();
    let all = meta::annotations(pod).into_iter().flatten();
    let meant: serde_json::Map<String, Value> = all
        .filter(|(key, _)| key.contains(".image-policy.k8s.io/"))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    let spec = json!({ "containers": containers, "annotations": meant, "namespace": namespace });
    json!({ "kind": "ImageReview", "apiVersion": "imagepolicy.k8s.io/v1alpha1", "metadata": {}, "spec": spec })
        .to_string()
}

#[async_trait]
impl Plugin for ImagePolicyWebhook {
    fn name(&self) -> &'static str {
        "ImagePolicyWebhook"
    }

    fn handles(&self, operation: Operation, a: &Attributes) -> bool {
        a.group.is_empty()
            && matches!(a.resource_path().as_str(), "pods" | "pods/ephemeralcontainers")
            && matches!(operation, Operation::Create | Operation::Update)
    }

    async fn validate(&self, review: &Review<'_>) -> Result<(), Status> {
        let namespace = &review.attributes.namespace;
        let asks = question(review.object, namespace);
        if review.old.is_some_and(|old| question(old, namespace) == asks) {
            return Ok(());
        }
        let trail = &review.attributes.trail;
        match self.verdict(asks).await {
            Ok(verdict) => {
                for (key, value) in &verdict.annotations {
                    trail.note(&format!("imagepolicywebhook.image-policy.k8s.io/{key}"), value);
                }
                let why = if verdict.reason.is_empty() { String::new() } else { format!(": {}", verdict.reason) };
                if verdict.allowed {
                    Ok(())
                } else {
                    Err(review.forbidden(&format!("image policy webhook backend denied one or more images{why}")))
                }
            }
            Err(err) => {
                warn!(err = %Chain(&err), "error contacting webhook backend");
                if self.policy.default_allow {
                    trail.note("alpha.image-policy.k8s.io/failed-open", "true");
                    return Ok(());
                }
                Err(review.forbidden(&Chain(&err).to_string()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(fields: Value) -> Result<ImagePolicy, String> {
        let mut policy = json!({"kubeConfigFile": "/k"});
        for (field, value) in fields.as_object().into_iter().flatten() {
            policy[field] = value.clone();
        }
        ImagePolicy::of(&json!({ "imagePolicy": policy }), "c").map_err(|err| Chain(&err).to_string())
    }

    /// The bounds and defaults of upstream's plugin/pkg/admission/imagepolicy/config.go (v1.36).
    #[test]
    fn times_have_upstreams_defaults_and_bounds() {
        let plain = policy(json!({})).unwrap();
        let secs = Duration::from_secs;
        assert_eq!((plain.allow_ttl, plain.deny_ttl, plain.default_allow), (secs(300), secs(30), false));
        assert_eq!(plain.retry_backoff, Duration::from_millis(500));
        let own = policy(json!({"allowTTL": 1800, "denyTTL": -1, "retryBackoff": 1, "defaultAllow": true})).unwrap();
        assert_eq!((own.allow_ttl, own.deny_ttl, own.default_allow), (secs(1800), Duration::ZERO, true));
        assert_eq!(own.retry_backoff, Duration::from_millis(1));
        for (fields, wanted) in [
            (json!({"allowTTL": 1801}), "c.imagePolicy.allowTTL: 1801 must be between 1 and 1800"),
            (json!({"denyTTL": -2}), "c.imagePolicy.denyTTL: -2 must be between 1 and 1800"),
            (json!({"retryBackoff": 300_001}), "c.imagePolicy.retryBackoff: 300001 must be between 1 and 300000"),
            (json!({"kubeConfigFile": null}), "c.imagePolicy.kubeConfigFile: Required value"),
            (json!({"ttl": 1}), "strict decoding error: unknown field \"c.imagePolicy.ttl\""),
        ] {
            assert_eq!(policy(fields).unwrap_err(), wanted);
        }
    }

    #[test]
    fn the_backend_sees_images_and_the_annotations_that_are_meant_for_it() {
        let pod = json!({
            "metadata": {"annotations": {"mine.image-policy.k8s.io/ticket": "1", "other/ticket": "2"}},
            "spec": {
                "containers": [{"name": "a", "image": "app"}],
                "initContainers": [{"name": "i", "image": "init"}],
                "ephemeralContainers": [{"name": "e", "image": "debug"}],
            },
        });
        let asked: Value = serde_json::from_str(&question(&pod, "ns")).unwrap();
        assert_eq!(asked["kind"], "ImageReview");
        assert_eq!(
            asked["spec"],
            json!({
                "containers": [{"image": "init"}, {"image": "app"}, {"image": "debug"}],
                "annotations": {"mine.image-policy.k8s.io/ticket": "1"},
                "namespace": "ns",
            })
        );
    }
}
