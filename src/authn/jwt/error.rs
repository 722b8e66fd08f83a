//! Why an ID token makes nobody a user, in upstream's words where it has them.

use cel::run::Fault;
use pki::jwt::JwtError;
use registry::webhook::call::EndpointError;
use registry::webhook::client::CallError;
use serde_json::Value;

/// Claims that do not make a user.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub(super) enum ClaimsError {
    #[error("oidc: verify token: oidc: expected audience in {wanted:?} got {got}")]
    Audience { wanted: Vec<String>, got: Value },
    #[error("oidc: verify token: oidc: token is expired")]
    Expired,
    #[error("oidc: verify token: oidc: current time is before the nbf (not before) time")]
    NotYet,
    #[error("oidc: required claim {claim} value does not match. Got = {got}, want = {wanted}")]
    Required { claim: String, got: Value, wanted: String },
    #[error("oidc: parse username claims {claim:?}: claim not present")]
    NoName { claim: String },
    #[error("oidc: parse uid claim {claim:?}: claim not present")]
    NoUid { claim: String },
    #[error("oidc: no username mapping")]
    NoMapping,
    #[error("oidc: username claim expression evaluated to an empty string")]
    EmptyName,
    #[error("oidc: email not verified: {0:?}")]
    EmailNotVerified(String),
    #[error("oidc: parse 'email_verified' claim: {0} is not a boolean")]
    EmailVerified(Value),
    #[error("oidc: error evaluating claim expression: expression '{expression}' resulted in error: {fault}")]
    Expression { expression: String, fault: Fault },
    #[error("oidc: error evaluating {what} claim expression: must return a string, got {got}")]
    NotText { what: &'static str, got: String },
    #[error("oidc: validation expression '{expression}' failed")]
    Rule { expression: String },
    #[error("oidc: validation expression '{expression}' failed: {message}")]
    RuleWithMessage { expression: String, message: String },
}

/// A token whose signature cannot be verified.
#[derive(Debug, thiserror::Error)]
pub(super) enum KeysError {
    #[error("oidc: verify token")]
    Token(#[from] JwtError),
    #[error("oidc: authenticator not initialized")]
    NoKeys,
    #[error("oidc: issuer did not match the issuer returned by provider, expected {expected:?} got {got}")]
    Issuer { expected: String, got: Value },
    /// An address that the issuer or its own description names.
    #[error(transparent)]
    Address(#[from] EndpointError),
    #[error(transparent)]
    Call(#[from] CallError),
    #[error("{url}: {status}")]
    Answer { url: String, status: http::StatusCode },
    #[error("{url}")]
    NotJson { url: String, source: serde_json::Error },
}
