//! The signer: certificates and tokens with the cluster's keys, which controllers do not hold.

use std::time::Duration;

/// The cluster's keys, for what controllers sign with them. Errors are sentences for the user.
pub trait Signer: Send + Sync {
    /// A certificate (PEM) by the CA behind `signer_name`, for a request (PEM) that fits it; `life` is cut to one year.
    fn certificate(
        &self,
        signer_name: &str,
        request: &[u8],
        usages: &[&str],
        life: Option<Duration>,
    ) -> Result<String, String>;

    /// The user (`system:node:NAME`) of a request for a node's client certificate; `None` if it is none.
    fn node_of(&self, request: &[u8]) -> Option<String>;

    /// A signature over `content`, which it does not hold, with the secret of the bootstrap token `id`.
    fn detached(&self, content: &str, id: &str, secret: &str) -> String;

    /// A token with these claims.
    fn token(&self, claims: &serde_json::Value) -> Result<String, String>;
}
