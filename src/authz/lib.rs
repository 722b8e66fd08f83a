//! Authorization: may this user do this?

pub mod abac;
pub mod aggregate;
pub mod bootstrap;
pub mod conditions;
pub mod covers;
pub mod escalation;
#[cfg(test)]
mod matrix_tests;
pub mod node;
pub mod rbac;
pub mod review;
pub mod rule;
pub mod union;
pub mod webhook;

use async_trait::async_trait;
use registry::attributes::Attributes;

/// The answer of an authorizer, with the reason for logs and reviews (may be empty).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Yes; nobody else is asked.
    Allow { reason: String },
    /// No; nobody else is asked.
    Deny { reason: String },
    /// The next one decides; if there is none, no.
    NoOpinion { reason: String },
}

/// Decides about requests.
#[async_trait]
pub trait Authorizer: Send + Sync + 'static {
    /// Decides about one request.
    async fn authorize(&self, attributes: &Attributes) -> Decision;
}
