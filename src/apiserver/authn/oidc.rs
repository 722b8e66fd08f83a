//! OpenID Connect: ID tokens of an issuer outside, verified with the keys that it publishes.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use base::time::Clock;
use pki::jwt::unverified_claims;
use serde_json::Value;
use tokio::time::Instant;

use super::AuthnError;
use super::chain::{Authenticated, TokenAuthenticator};
use crate::arguments::Oidc as Settings;
use crate::user::UserInfo;
use crate::webhook::call::Endpoint;
use crate::webhook::client::{Identity, Webhooks};

/// The issuer must answer within this.
const ANSWER: Duration = Duration::from_secs(10);
/// A key that is not known is looked for at the issuer this often at most.
const REFETCH: Duration = Duration::from_secs(10);

/// Keys of the issuer, as last seen.
#[derive(Default)]
struct Keys {
    jwks: Option<Arc<Value>>,
    fetched: Option<Instant>,
}

/// Authenticates ID tokens of one issuer.
pub struct Oidc {
    settings: Settings,
    webhooks: Arc<Webhooks>,
    clock: Clock,
    keys: tokio::sync::Mutex<Keys>,
}

impl Oidc {
    /// Keys are fetched when the first token comes.
    pub fn new(settings: Settings, webhooks: Arc<Webhooks>, clock: Clock) -> Oidc {
        Oidc { settings, webhooks, clock, keys: tokio::sync::Mutex::default() }
    }

    async fn get(&self, url: &str) -> Result<Value, String> {
        let endpoint = Endpoint { ca_pem: self.settings.ca_pem.clone(), ..Endpoint::from_url(url)? };
        let (nobody, headers) = (Identity::default(), http::HeaderMap::new());
        let asked = self.webhooks.send_with(http::Method::GET, &endpoint, &nobody, headers, ANSWER);
        let answer = asked.await.map_err(|err| err.to_string())?;
        if !answer.status().is_success() {
            return Err(format!("{url}: {}", answer.status()));
        }
        serde_json::from_slice(answer.body()).map_err(|err| format!("{url}: {err}"))
    }

    async fn fetch(&self) -> Result<Value, String> {
        let issuer = &self.settings.issuer_url;
        let discovery = self.get(&format!("{}/.well-known/openid-configuration", issuer.trim_end_matches('/'))).await?;
        if discovery["issuer"] != issuer.as_str() {
            return Err(format!(
                "oidc: issuer did not match the issuer returned by provider, expected {issuer:?} got {}",
                discovery["issuer"]
            ));
        }
        self.get(discovery["jwks_uri"].as_str().unwrap_or_default()).await
    }

    /// Claims of a token whose signature is good.
    async fn verified(&self, token: &str) -> Result<Value, String> {
        let mut keys = self.keys.lock().await;
        if let Some(jwks) = &keys.jwks
            && let Ok(claims) = pki::jwk::verify(token, jwks, &self.settings.signing_algs)
        {
            return Ok(claims);
        }
        if keys.fetched.is_none_or(|at| at.elapsed() >= REFETCH) {
            keys.fetched = Some(Instant::now());
            keys.jwks = Some(Arc::new(self.fetch().await?));
        }
        let jwks = keys.jwks.clone().ok_or("oidc: authenticator not initialized")?;
        pki::jwk::verify(token, &jwks, &self.settings.signing_algs).map_err(|err| format!("oidc: verify token: {err}"))
    }

    fn user(&self, claims: &Value) -> Result<UserInfo, String> {
        let settings = &self.settings;
        let texts = |v: &Value| -> Vec<String> {
            match v {
                Value::String(one) => vec![one.clone()],
                Value::Array(many) => many.iter().filter_map(|v| v.as_str().map(str::to_owned)).collect(),
                _ => Vec::new(),
            }
        };
        if !texts(&claims["aud"]).contains(&settings.client_id) {
            return Err(format!("oidc: verify token: oidc: expected audience {:?} got {}", settings.client_id, claims["aud"]));
        }
        let now = self.clock.now().as_second();
        let time = |field: &str| claims[field].as_f64().map(|t| t as i64);
        if time("exp").is_none_or(|end| end <= now) {
            return Err("oidc: verify token: oidc: token is expired".to_owned());
        }
        if time("nbf").is_some_and(|begin| begin > now + 300) {
            return Err("oidc: verify token: oidc: current time is before the nbf (not before) time".to_owned());
        }
        let claim = &settings.username_claim;
        let name = claims[claim]
            .as_str()
            .filter(|n| !n.is_empty())
            .ok_or_else(|| format!("oidc: parse username claims {claim:?}: claim not present"))?;
        if claim == "email" && claims["email_verified"] == false {
            return Err("oidc: email not verified".to_owned());
        }
        for (key, value) in &settings.required_claims {
            if claims[key] != value.as_str() {
                return Err(format!("oidc: required claim {key} value does not match. Got = {}, want = {value}", claims[key]));
            }
        }
        // Upstream: names from other claims than email carry the issuer, unless somebody chose.
        let prefix = match settings.username_prefix.as_deref() {
            Some("-") => String::new(),
            Some(prefix) => prefix.to_owned(),
            None if claim == "email" => String::new(),
            None => format!("{}#", settings.issuer_url),
        };
        let groups = if settings.groups_claim.is_empty() { Vec::new() } else { texts(&claims[&settings.groups_claim]) };
        let groups = groups.into_iter().map(|g| format!("{}{g}", settings.groups_prefix)).collect();
        Ok(UserInfo { name: format!("{prefix}{name}"), groups, ..UserInfo::default() })
    }
}

#[async_trait]
impl TokenAuthenticator for Oidc {
    async fn token(&self, token: &str, audiences: &[String]) -> Result<Option<Authenticated>, AuthnError> {
        // Not ours to judge: tokens of other issuers go to the next authenticator.
        if unverified_claims(token).is_none_or(|claims| claims["iss"] != self.settings.issuer_url.as_str()) {
            return Ok(None);
        }
        let claims = self.verified(token).await.map_err(AuthnError)?;
        let user = self.user(&claims).map_err(AuthnError)?;
        Ok(Some(Authenticated { user, audiences: audiences.to_vec() }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[tokio::test]
    async fn a_name_carries_its_issuer_unless_somebody_chose_a_prefix() {
        let (group, _fatal) = base::task::Group::root("test");
        let lookup = Arc::new(crate::authz::fixture::Objects::default());
        let webhooks = Arc::new(Webhooks::new(lookup, Arc::new(crate::connect::Unreachable), &group));
        let settings = Settings {
            issuer_url: "https://i".into(),
            client_id: "c".into(),
            username_claim: "sub".into(),
            groups_claim: "groups".into(),
            groups_prefix: "oidc:".into(),
            ..Settings::default()
        };
        let clock = Clock::fixed("2026-11-21T04:00:00Z".parse().unwrap());
        let end = clock.now().as_second() + 60;
        let mut oidc = Oidc::new(settings, webhooks, clock);
        let claims = json!({ "iss": "https://i", "aud": ["c"], "exp": end, "sub": "bob", "groups": ["dev"] });
        let user = oidc.user(&claims).unwrap();
        assert_eq!((user.name.as_str(), user.groups[0].as_str()), ("https://i#bob", "oidc:dev"));
        oidc.settings.username_prefix = Some("-".into());
        assert_eq!(oidc.user(&claims).unwrap().name, "bob");
        let late = json!({ "iss": "https://i", "aud": "c", "exp": end - 61, "sub": "bob" });
        assert!(oidc.user(&late).unwrap_err().contains("expired"));
    }
}
