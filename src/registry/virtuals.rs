//! Virtual resources: what is created is answered and not stored.

use async_trait::async_trait;
use serde_json::Value;

use crate::attributes::Attributes;
use crate::status::Status;

/// A virtual resource: a `create` that computes an answer and stores nothing (TokenReview, SubjectAccessReview, …).
#[async_trait]
pub trait Virtual: Send + Sync + 'static {
    /// Answers the posted object (decoded, with defaults); what is returned is sent with 201.
    async fn create(&self, attributes: &Attributes, object: Value) -> Result<Value, Status>;
}
