//! `--authentication-token-webhook-config-file`: a TokenReview by somebody else.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use base::sync::Mutex;
use bytes::Bytes;
use registry::webhook::client::Webhooks;
use registry::webhook::kubeconfig::Remote;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::time::Instant;

use super::AuthnError;
use super::chain::{Authenticated, TokenAuthenticator};

/// The webhook must answer within this.
const ANSWER: Duration = Duration::from_secs(30);
/// Verdicts that are remembered; when full, all are forgotten.
const REMEMBERED_MAX: usize = 4096;

type Verdict = Option<(registry::user::UserInfo, Vec<String>)>;

/// Asks a webhook about tokens.
pub struct TokenWebhook {
    remote: Remote,
    webhooks: Arc<Webhooks>,
    version: String,
    ttl: Duration,
    /// By the token's digest: tokens themselves are not kept.
    known: Mutex<HashMap<[u8; 32], (Instant, Verdict)>>,
}

impl TokenWebhook {
    /// `version` is that of TokenReview; verdicts are remembered for `ttl`.
    pub fn new(remote: Remote, webhooks: Arc<Webhooks>, version: String, ttl: Duration) -> TokenWebhook {
        TokenWebhook { remote, webhooks, version, ttl, known: Mutex::default() }
    }

    async fn ask(&self, token: &str, audiences: &[String]) -> Result<Verdict, AuthnError> {
        let review = json!({
            "kind": "TokenReview", "apiVersion": format!("authentication.k8s.io/{}", self.version),
            "spec": { "token": token, "audiences": audiences },
        });
        let body = Bytes::from(review.to_string());
        let said = self
            .webhooks
            .post(&self.remote.endpoint, &self.remote.identity, body, ANSWER)
            .await
            .map_err(|err| AuthnError(err.to_string()))?;
        let review: Value = serde_json::from_slice(&said).map_err(|err| AuthnError(err.to_string()))?;
        let status = &review["status"];
        if status["authenticated"] != true {
            return match status["error"].as_str().filter(|e| !e.is_empty()) {
                Some(error) => Err(AuthnError(error.to_owned())),
                None => Ok(None),
            };
        }
        let user = serde_json::from_value(status["user"].clone()).map_err(|err| AuthnError(err.to_string()))?;
        let good_for: Vec<String> = status["audiences"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|a| a.as_str().map(str::to_owned))
            .collect();
        // One that says nothing about audiences speaks for those of this server.
        if !good_for.is_empty() && !good_for.iter().any(|a| audiences.contains(a)) {
            return Ok(None);
        }
        Ok(Some((user, good_for)))
    }
}

#[async_trait]
impl TokenAuthenticator for TokenWebhook {
    async fn token(&self, token: &str, audiences: &[String]) -> Result<Option<Authenticated>, AuthnError> {
        let mut digest = Sha256::new();
        digest.update(token);
        for audience in audiences {
            digest.update([0]);
            digest.update(audience);
        }
        let key: [u8; 32] = digest.finalize().into();
        let lock = || self.known.lock();
        let remembered = lock().get(&key).filter(|(at, _)| at.elapsed() < self.ttl).map(|(_, verdict)| verdict.clone());
        let verdict = match remembered {
            Some(verdict) => verdict,
            None => {
                let verdict = self.ask(token, audiences).await?;
                let mut known = lock();
                if known.len() >= REMEMBERED_MAX {
                    known.clear();
                }
                known.insert(key, (Instant::now(), verdict.clone()));
                verdict
            }
        };
        Ok(verdict.map(|(user, audiences)| Authenticated { user, audiences }))
    }
}
