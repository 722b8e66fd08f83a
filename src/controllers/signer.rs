//! The signer: certificates and tokens with the cluster's keys, which controllers do not hold.

use std::time::Duration;

/// Why nothing was signed. Conditions show it, with its causes.
#[derive(Debug, thiserror::Error)]
pub enum SignError {
    /// The cluster has no CA of this signer name.
    #[error("no signer {0}")]
    NoSigner(String),
    /// The request cannot be read, asks for more than its profile allows, or the key is not there.
    #[error(transparent)]
    Refused(Box<dyn std::error::Error + Send + Sync>),
}

/// A bootstrap token, by which a machine that has it knows what the cluster signed.
#[derive(Clone, Copy)]
pub struct BootstrapToken<'a> {
    /// The public part.
    pub id: &'a str,
    /// The part that signs.
    pub secret: &'a str,
}

/// The cluster's keys, for what controllers sign with them.
pub trait Signer: Send + Sync {
    /// A certificate (PEM) by the CA behind `signer_name`, for a request (PEM) that fits it; `life` is cut to one year.
    fn certificate(
        &self,
        signer_name: &str,
        request: &[u8],
        usages: &[&str],
        life: Option<Duration>,
    ) -> Result<String, SignError>;

    /// The user (`system:node:NAME`) of a request for a node's client certificate; `None` if it is none.
    fn node_of(&self, request: &[u8]) -> Option<String>;

    /// A signature over `content`, which it does not hold, with the secret of the token.
    fn detached(&self, content: &str, token: BootstrapToken<'_>) -> String;

    /// A token with these claims.
    fn token(&self, claims: &serde_json::Value) -> Result<String, SignError>;
}
