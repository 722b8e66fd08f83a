//! Bootstrap tokens: Secrets of `kube-system` with which machines without a certificate join.

use std::sync::Arc;

use async_trait::async_trait;
use base::time::Clock;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use model::reference::{GroupResource, NamespacedName};
use pki::token::BootstrapToken;
use registry::lookup::Lookup;
use registry::user::UserInfo;
use serde_json::Value;

use super::AuthnError;
use super::basic::same_secret;
use super::chain::{Authenticated, TokenAuthenticator};

const GROUP: &str = "system:bootstrappers";

/// Authenticates `id.secret` tokens.
pub struct BootstrapTokens {
    clock: Clock,
    lookup: Arc<dyn Lookup>,
}

impl BootstrapTokens {
    /// Reads the Secrets through `lookup`.
    pub fn new(clock: Clock, lookup: Arc<dyn Lookup>) -> BootstrapTokens {
        BootstrapTokens { clock, lookup }
    }
}

fn field(secret: &Value, name: &str) -> String {
    let bytes = secret["data"][name].as_str().and_then(|text| STANDARD.decode(text).ok()).unwrap_or_default();
    String::from_utf8(bytes).unwrap_or_default()
}

/// Whether a Secret lets this token in now. Every reason not to is the same to the caller.
fn accepted(secret: &Value, token: &BootstrapToken, now: Timestamp) -> bool {
    let expires = field(secret, "expiration");
    let live = expires.is_empty() || expires.parse::<Timestamp>().is_ok_and(|end| now < end);
    secret["type"] == "bootstrap.kubernetes.io/token"
        && secret["metadata"]["deletionTimestamp"].is_null()
        && field(secret, "token-id") == token.id
        && same_secret(&field(secret, "token-secret"), token.secret.expose())
        && field(secret, "usage-bootstrap-authentication") == "true"
        && live
}

#[async_trait]
impl TokenAuthenticator for BootstrapTokens {
    async fn token(&self, token: &str, audiences: &[String]) -> Result<Option<Authenticated>, AuthnError> {
        let Ok(token) = BootstrapToken::parse(token) else { return Ok(None) };
        let name = format!("bootstrap-token-{}", token.id);
        let Some(secret) =
            self.lookup.get(GroupResource::core("secrets"), NamespacedName { namespace: "kube-system", name: &name })
        else {
            return Ok(None);
        };
        if !accepted(&secret, &token, self.clock.now()) {
            return Ok(None);
        }
        let mut groups = vec![GROUP.to_owned()];
        for group in field(&secret, "auth-extra-groups").split(',').filter(|group| !group.is_empty()) {
            if !group.starts_with("system:bootstrappers:") {
                return Err(AuthnError(format!(
                    "bootstrap group {group:?} is invalid (must match \
                     \\Asystem:bootstrappers:[a-z0-9:-]{{0,255}}[a-z0-9]\\z)"
                )));
            }
            groups.push(group.to_owned());
        }
        let user = UserInfo { name: format!("system:bootstrap:{}", token.id), groups, ..UserInfo::default() };
        Ok(Some(Authenticated { user, audiences: audiences.to_vec() }))
    }
}
