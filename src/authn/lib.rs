//! Authentication: from a request's credentials to a user.

pub mod basic;
pub mod bootstrap_token;
pub mod chain;
pub mod configuration;
pub mod front_proxy;
pub mod issue;
pub mod jwt;
pub mod legacy;
pub mod oidc;
pub mod records;
pub mod review;
pub mod service_account;
pub mod token_file;
pub mod token_webhook;
pub mod x509;

use async_trait::async_trait;
use registry::status::Status;
use registry::user::UserInfo;
use serde_json::Value;

/// Why credentials that were given are no good. Answered with 401 whatever the cause; the cause goes to the log.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct AuthnError(pub String);

/// Turns credentials into a user.
#[async_trait]
pub trait Authenticator: Send + Sync + 'static {
    /// `Ok(None)`: no credentials of this authenticator's kind. `Err`: credentials that are wrong.
    async fn authenticate(
        &self,
        parts: &http::request::Parts,
        conn: &wire::ConnInfo,
    ) -> Result<Option<UserInfo>, AuthnError>;
}

/// Issues service-account tokens (`serviceaccounts/token`) and publishes the keys that check them.
#[async_trait]
pub trait TokenIssuer: Send + Sync + 'static {
    /// Answers a TokenRequest for the service account (its stored object): the same object with `status` filled.
    async fn issue(
        &self,
        service_account: &Value,
        request: Value,
        lookup: &dyn registry::lookup::Lookup,
    ) -> Result<Value, Status>;
    /// `/.well-known/openid-configuration`.
    fn openid_configuration(&self) -> Value;
    /// `/openid/v1/jwks`.
    fn jwks(&self) -> Value;
}
