//! Every way to say who one is, in the order in which they are tried.

use std::sync::Arc;

use async_trait::async_trait;
use base::time::Clock;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::request::Parts;
use pki::bundle::Bundle;
use pki::jwt::Verifier;
use registry::lookup::Lookup;
use registry::user::{GROUP_AUTHENTICATED, GROUP_UNAUTHENTICATED, UserInfo};

use super::basic::{Basic, BasicUser};
use super::bootstrap_token::BootstrapTokens;
use super::front_proxy::FrontProxy;
use super::legacy::Uses;
use super::records::Records;
use super::service_account::ServiceAccounts;
use super::x509::ClientCerts;
use super::{Authenticator, AuthnError};

/// Configuration of the chain.
pub struct Config {
    /// Wall time.
    pub clock: Clock,
    /// Vouches for users.
    pub client_ca: Bundle,
    /// Vouches for front proxies.
    pub request_header_ca: Bundle,
    /// Common names of certificates that may speak for others; empty is every one the CA vouches for.
    pub front_proxy_names: Vec<String>,
    /// Checks signatures of service-account tokens.
    pub verifier: Verifier,
    /// Whose service-account tokens are taken: `https://kubernetes.default.svc.<domain>`.
    pub issuers: Vec<String>,
    /// Audiences of the API server itself; the first is given to tokens that ask for none.
    pub audiences: Vec<String>,
    /// Users with a password, for joining machines.
    pub basic: Vec<BasicUser>,
    /// Notes uses of old tokens.
    pub legacy_uses: Arc<Uses>,
}

/// A user, and for which audiences its credential is good (empty: those of the API server).
pub struct Authenticated {
    /// Who.
    pub user: UserInfo,
    /// Audiences of a token.
    pub audiences: Vec<String>,
}

/// Takes a bearer token apart.
#[async_trait]
pub trait TokenAuthenticator: Send + Sync + 'static {
    /// `Ok(None)`: not a token of this kind. `audiences` are those that the asker accepts.
    async fn token(&self, token: &str, audiences: &[String]) -> Result<Option<Authenticated>, AuthnError>;
}

/// Tries, in order: a caller in this process, front proxy, client certificate, password, bearer token.
pub struct Chain {
    certs: ClientCerts,
    front_proxy: FrontProxy,
    basic: Basic,
    tokens: Vec<Arc<dyn TokenAuthenticator>>,
    audiences: Vec<String>,
    records: Arc<Records>,
}

impl Chain {
    /// Objects that tokens are bound to are read through `lookup`.
    pub fn new(config: Config, lookup: Arc<dyn Lookup>) -> Chain {
        let accounts = ServiceAccounts::new(
            config.verifier,
            config.issuers,
            config.clock.clone(),
            lookup.clone(),
            config.legacy_uses,
        );
        let records = Arc::new(Records::new(Arc::clone(&lookup)));
        let boot = BootstrapTokens::new(config.clock.clone(), lookup);
        Chain {
            certs: ClientCerts::new(config.client_ca, config.clock.clone(), Arc::clone(&records)),
            front_proxy: FrontProxy::new(config.request_header_ca, config.front_proxy_names, config.clock),
            basic: Basic(config.basic),
            tokens: vec![Arc::new(accounts), Arc::new(boot)],
            audiences: config.audiences,
            records,
        }
    }

    /// The same with further ways to read a token: `first` before our own, `last` behind them.
    pub fn with(mut self, first: Vec<Arc<dyn TokenAuthenticator>>, last: Vec<Arc<dyn TokenAuthenticator>>) -> Chain {
        self.tokens.splice(0..0, first);
        self.tokens.extend(last);
        self
    }

    /// The records of people's certificates.
    pub fn records(&self) -> Arc<Records> {
        Arc::clone(&self.records)
    }

    /// The audiences of the API server.
    pub fn audiences(&self) -> &[String] {
        &self.audiences
    }

    /// The user of a bearer token, for one of `audiences`.
    pub async fn token(&self, token: &str, audiences: &[String]) -> Result<Option<Authenticated>, AuthnError> {
        let mut errors: Vec<String> = Vec::new();
        for authenticator in &self.tokens {
            match authenticator.token(token, audiences).await {
                Ok(Some(mut found)) => {
                    found.user = completed(found.user);
                    return Ok(Some(found));
                }
                Ok(None) => {}
                Err(err) => errors.push(err.0),
            }
        }
        if errors.is_empty() {
            Ok(None)
        } else {
            Err(AuthnError(format!("[invalid bearer token, {}]", errors.join(", "))))
        }
    }
}

#[async_trait]
impl Authenticator for Chain {
    async fn authenticate(&self, parts: &Parts, conn: &wire::ConnInfo) -> Result<Option<UserInfo>, AuthnError> {
        if let Some(identity) = &conn.identity {
            // Somebody else's type in there would be a bug of ours: better nobody than anybody.
            let user = Arc::clone(identity)
                .downcast::<UserInfo>()
                .map_err(|_| AuthnError("in-process caller of unknown type".to_owned()))?;
            return Ok(Some(completed((*user).clone())));
        }
        if let Some(user) = self.front_proxy.authenticate(parts, conn)? {
            return Ok(Some(completed(user)));
        }
        // A certificate that is no good does not spoil a token that is: the next ways are tried, and it is blamed if
        // none leads in.
        let blamed = match self.certs.authenticate(conn).await {
            Ok(Some(user)) => return Ok(Some(completed(user))),
            Ok(None) => None,
            Err(err) => Some(err),
        };
        match self.header(parts).await? {
            None => blamed.map_or(Ok(None), Err),
            found => Ok(found),
        }
    }
}

impl Chain {
    async fn bearer(&self, token: &str) -> Result<Option<UserInfo>, AuthnError> {
        let found = self.token(token, &self.audiences).await?;
        found.map(|found| Some(found.user)).ok_or_else(|| AuthnError("invalid bearer token".to_owned()))
    }

    /// The user of the `Authorization` header.
    async fn header(&self, parts: &Parts) -> Result<Option<UserInfo>, AuthnError> {
        let Some(header) = parts.headers.get(http::header::AUTHORIZATION) else {
            return match websocket_token(parts) {
                Some(token) => self.bearer(&token).await,
                None => Ok(None),
            };
        };
        let header = header.to_str().map_err(|_| AuthnError("the Authorization header is not text".to_owned()))?.trim();
        let (scheme, credential) = header.split_once(' ').unwrap_or((header, ""));
        if scheme.eq_ignore_ascii_case("bearer") && !credential.trim().is_empty() {
            return self.bearer(credential.trim()).await;
        }
        if scheme.eq_ignore_ascii_case("basic") {
            return self.basic.authenticate(credential.trim()).map(|user| user.map(completed));
        }
        Ok(None)
    }
}

/// The token that a WebSocket client put among its subprotocols, for browsers cannot set headers.
fn websocket_token(parts: &Parts) -> Option<String> {
    const PREFIX: &str = "base64url.bearer.authorization.k8s.io.";
    let mut protocols =
        parts.headers.get_all(http::header::SEC_WEBSOCKET_PROTOCOL).iter().filter_map(|value| value.to_str().ok());
    let encoded =
        protocols.find_map(|list| list.split(',').find_map(|protocol| protocol.trim().strip_prefix(PREFIX)))?;
    let bytes = URL_SAFE_NO_PAD.decode(encoded.trim_end_matches('=')).ok()?;
    String::from_utf8(bytes).ok().filter(|token| !token.is_empty())
}

/// The user with the group of all who proved themselves.
fn completed(mut user: UserInfo) -> UserInfo {
    if !user.in_group(GROUP_AUTHENTICATED) && !user.in_group(GROUP_UNAUTHENTICATED) {
        user.groups.push(GROUP_AUTHENTICATED.to_owned());
    }
    user
}

#[cfg(test)]
#[path = "chain_tests.rs"]
mod tests;
