//! Somebody outside says which images may run.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use base::sync::Mutex;
use bytes::Bytes;
use model::meta;
use registry::attributes::Attributes;
use registry::status::Status;
use registry::strict::known;
use registry::webhook::client::Webhooks;
use registry::webhook::kubeconfig::Remote;
use schema::read;
use serde_json::{Value, json};
use tokio::time::Instant;
use tracing::warn;

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
    /// Errors: a text about the first thing that is wrong.
    pub fn of(value: &Value, path: &str) -> Result<ImagePolicy, String> {
        known(value, path, &["imagePolicy"]).map_err(|err| err.to_string())?;
        let (policy, at) = (&value["imagePolicy"], format!("{path}.imagePolicy"));
        known(policy, &at, &["kubeConfigFile", "allowTTL", "denyTTL", "retryBackoff", "defaultAllow"])
            .map_err(|err| err.to_string())?;
        let kubeconfig =
            read::some_text(policy, "kubeConfigFile").ok_or_else(|| format!("{at}.kubeConfigFile: Required value"))?;
        // -1 is none at all; 0 is upstream's default; bounds are upstream's.
        let within = |field: &str, unit: Duration, bounds: (u64, u64), usual: u64| match read::number(policy, field) {
            -1 => Ok(Duration::ZERO),
            0 => Ok(unit * u32::try_from(usual).unwrap_or(1)),
            n => {
                let fits = u64::try_from(n)
                    .ok()
                    .filter(|n| (bounds.0..=bounds.1).contains(n))
                    .and_then(|n| u32::try_from(n).ok());
                fits.map(|n| unit * n)
                    .ok_or_else(|| format!("{at}.{field}: {n} must be between {} and {}", bounds.0, bounds.1))
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

impl ImagePolicyWebhook {
    /// Asks `remote` through `webhooks`.
    pub fn new(policy: ImagePolicy, remote: Remote, webhooks: Arc<Webhooks>) -> ImagePolicyWebhook {
        ImagePolicyWebhook { policy, remote, webhooks, known: Mutex::default() }
    }

    async fn ask(&self, question: &str) -> Result<Verdict, String> {
        let mut wait = self.policy.retry_backoff;
        let mut tried = 0;
        let body = loop {
            let question = Bytes::from(question.to_owned());
            match self.webhooks.post(&self.remote.endpoint, &self.remote.identity, question, TIMEOUT).await {
                Ok(body) => break body,
                Err(err) if tried + 1 >= TRIES => return Err(err.to_string()),
                Err(err) => warn!(err = %err, "the backend of image policies does not answer, it is asked again"),
            }
            tokio::time::sleep(wait).await;
            wait = wait.mul_f64(1.5);
            tried += 1;
        };
        let answer: Value = serde_json::from_slice(&body).map_err(|err| err.to_string())?;
        let annotations = read::map(&answer, "status.auditAnnotations").into_iter().flatten();
        Ok(Verdict {
            allowed: read::flag(&answer, "status.allowed"),
            reason: read::text(&answer, "status.reason").to_owned(),
            annotations: annotations
                .map(|(key, value)| (key.clone(), value.as_str().unwrap_or_default().to_owned()))
                .collect(),
        })
    }

    async fn verdict(&self, question: String) -> Result<Verdict, String> {
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
            Err(why) => {
                warn!(why, "error contacting webhook backend");
                if self.policy.default_allow {
                    trail.note("alpha.image-policy.k8s.io/failed-open", "true");
                    return Ok(());
                }
                Err(review.forbidden(&why))
            }
        }
    }
}
