//! Reviews of identity: whose token is this, and who am I.

use std::sync::Arc;

use async_trait::async_trait;
use registry::attributes::Attributes;
use registry::status::Status;
use registry::virtuals::Virtual;
use serde_json::{Value, json};

use super::chain::Chain;

/// Answers `TokenReview`.
pub struct TokenReview(pub Arc<Chain>);

#[async_trait]
impl Virtual for TokenReview {
    async fn create(&self, _a: &Attributes, mut object: Value) -> Result<Value, Status> {
        let token = object["spec"]["token"].as_str().unwrap_or_default().to_owned();
        if token.is_empty() {
            return Err(Status::bad_request("token is required for TokenReview in authentication"));
        }
        let asked: Vec<String> = object["spec"]["audiences"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|v| v.as_str().map(str::to_owned))
            .collect();
        let accepted = if asked.is_empty() { self.0.audiences().to_vec() } else { asked };
        object["status"] = match self.0.token(&token, &accepted).await {
            Ok(Some(found)) => json!({"authenticated": true, "user": found.user, "audiences": found.audiences}),
            Ok(None) => json!({}),
            Err(err) => json!({ "error": err.to_string() }),
        };
        if object["status"]["user"].is_object() && object["status"]["audiences"].as_array().is_some_and(Vec::is_empty) {
            object["status"]["audiences"] = json!(accepted);
        }
        Ok(object)
    }
}

/// Answers `SelfSubjectReview`.
pub struct SelfReview;

#[async_trait]
impl Virtual for SelfReview {
    async fn create(&self, a: &Attributes, mut object: Value) -> Result<Value, Status> {
        object["status"] = json!({ "userInfo": *a.user });
        Ok(object)
    }
}

/// Both, by group and resource.
pub fn virtuals(chain: &Arc<Chain>) -> Vec<(&'static str, &'static str, Arc<dyn Virtual>)> {
    const GROUP: &str = "authentication.k8s.io";
    vec![
        (GROUP, "tokenreviews", Arc::new(TokenReview(chain.clone()))),
        (GROUP, "selfsubjectreviews", Arc::new(SelfReview)),
    ]
}
