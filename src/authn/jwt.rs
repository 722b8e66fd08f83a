//! ID tokens of issuers outside (OpenID Connect): verified with the keys that an issuer publishes, and turned into
//! users by rules that flags (`oidc-*`) or an AuthenticationConfiguration give.

mod error;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use base::chain::Chain;
use base::sync::Mutex;
use base::time::Clock;
use cel::value::Val;
use cel::{CALL_BUDGET, Program, Surroundings};
use pki::jwt::unverified_claims;
use registry::user::UserInfo;
use registry::webhook::call::Endpoint;
use registry::webhook::client::{Identity, Webhooks};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::AuthnError;
use super::chain::{Authenticated, TokenAuthenticator};
use crate::jwt::error::{ClaimsError, KeysError};
use crate::oidc::Oidc as Flags;

/// The issuer must answer within this.
const ANSWER: Duration = Duration::from_secs(10);
/// A key that is not known is looked for at the issuer this often at most.
const REFETCH: Duration = Duration::from_secs(10);
/// A token may be from this far ahead.
const LEEWAY_SECS: i64 = 300;

/// One issuer, and what its tokens say.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// As it stands in `iss`.
    pub issuer_url: String,
    /// Where the issuer describes itself, if that is not below its own address.
    pub discovery_url: Option<String>,
    /// Authorities that vouch for the issuer's server, PEM; empty: the system's.
    pub ca_pem: String,
    /// A token must be for one of them.
    pub audiences: Vec<String>,
    /// Algorithms that are taken.
    pub signing_algs: Vec<String>,
    /// Rules for claims.
    pub rules: Vec<Rule>,
    /// The name.
    pub username: Mapping,
    /// Groups.
    pub groups: Mapping,
    /// The id.
    pub uid: Mapping,
    /// Further facts, by key.
    pub extra: Vec<(String, Program)>,
    /// Rules for the user: expressions over `user`, each with what is said when it does not hold.
    pub user_rules: Vec<(Program, String)>,
}

/// Rule for one claim.
#[derive(Clone, Debug)]
pub enum Rule {
    /// A claim has this value.
    Value(String, String),
    /// An expression over `claims` holds; otherwise this is said.
    Expression(Program, String),
}

/// Where a fact about the user comes from.
#[derive(Clone, Debug, Default)]
pub enum Mapping {
    /// It is not known.
    #[default]
    None,
    /// A claim, behind a prefix.
    Claim(String, String),
    /// An expression over `claims`.
    Expression(Program),
}

impl Settings {
    /// The issuer of the `oidc-*` flags.
    pub fn of_flags(flags: &Flags) -> Settings {
        let claim = &flags.username_claim;
        // Upstream: names from other claims than email carry the issuer, unless somebody chose.
        let prefix = match flags.username_prefix.as_deref() {
            Some("-") => String::new(),
            Some(prefix) => prefix.to_owned(),
            None if claim == "email" => String::new(),
            None => format!("{}#", flags.issuer_url),
        };
        let groups = &flags.groups_claim;
        Settings {
            issuer_url: flags.issuer_url.clone(),
            ca_pem: flags.ca_pem.clone(),
            audiences: vec![flags.client_id.clone()],
            signing_algs: flags.signing_algs.clone(),
            rules: flags.required_claims.iter().map(|(k, v)| Rule::Value(k.clone(), v.clone())).collect(),
            username: Mapping::Claim(claim.clone(), prefix),
            groups: if groups.is_empty() {
                Mapping::None
            } else {
                Mapping::Claim(groups.clone(), flags.groups_prefix.clone())
            },
            ..Settings::default()
        }
    }

    /// The user of a token's claims.
    fn user(&self, claims: &Value, now: i64) -> Result<UserInfo, ClaimsError> {
        if !texts(&claims["aud"]).iter().any(|a| self.audiences.contains(a)) {
            return Err(ClaimsError::Audience { wanted: self.audiences.clone(), got: claims["aud"].clone() });
        }
        let time = |field: &str| claims[field].as_f64().map(|t| t as i64);
        if time("exp").is_none_or(|end| end <= now) {
            return Err(ClaimsError::Expired);
        }
        if time("nbf").is_some_and(|begin| begin > now + LEEWAY_SECS) {
            return Err(ClaimsError::NotYet);
        }
        let given = Val::from_json(claims);
        let name = self.name(claims, &given)?;
        for rule in &self.rules {
            match rule {
                Rule::Value(key, value) if claims[key] != value.as_str() => {
                    let (claim, got, wanted) = (key.clone(), claims[key].clone(), value.clone());
                    return Err(ClaimsError::Required { claim, got, wanted });
                }
                Rule::Expression(program, message) => holds(program, "claims", &given, message)?,
                Rule::Value(..) => {}
            }
        }
        let groups = match &self.groups {
            Mapping::None => Vec::new(),
            Mapping::Claim(claim, prefix) => {
                texts(&claims[claim]).into_iter().map(|g| format!("{prefix}{g}")).collect()
            }
            Mapping::Expression(program) => listed(&run(program, "claims", &given)?),
        };
        let uid = match &self.uid {
            Mapping::None => String::new(),
            Mapping::Claim(claim, _) => {
                claims[claim].as_str().ok_or_else(|| ClaimsError::NoUid { claim: claim.clone() })?.to_owned()
            }
            Mapping::Expression(program) => text_of(run(program, "claims", &given)?, "uid")?,
        };
        let mut extra = BTreeMap::new();
        for (key, program) in &self.extra {
            let values = listed(&run(program, "claims", &given)?);
            if !values.is_empty() {
                extra.insert(key.clone(), values);
            }
        }
        let user = UserInfo { name, uid, groups, extra };
        let shown = Val::from_json(
            &json!({ "username": user.name, "uid": user.uid, "groups": user.groups, "extra": user.extra }),
        );
        for (program, message) in &self.user_rules {
            holds(program, "user", &shown, message)?;
        }
        Ok(user)
    }

    fn name(&self, claims: &Value, given: &Val) -> Result<String, ClaimsError> {
        match &self.username {
            Mapping::Claim(claim, prefix) => {
                let name = claims[claim]
                    .as_str()
                    .filter(|n| !n.is_empty())
                    .ok_or_else(|| ClaimsError::NoName { claim: claim.clone() })?;
                match &claims["email_verified"] {
                    _ if claim != "email" => {}
                    Value::Null | Value::Bool(true) => {}
                    Value::Bool(false) => return Err(ClaimsError::EmailNotVerified(name.to_owned())),
                    // Some providers send texts: "false" must not pass for a claim that is not there.
                    other => return Err(ClaimsError::EmailVerified(other.clone())),
                }
                Ok(format!("{prefix}{name}"))
            }
            Mapping::Expression(program) => {
                let name = text_of(run(program, "claims", given)?, "username")?;
                if name.is_empty() { Err(ClaimsError::EmptyName) } else { Ok(name) }
            }
            Mapping::None => Err(ClaimsError::NoMapping),
        }
    }
}

/// A claim as a list of texts: one text, or several.
fn texts(v: &Value) -> Vec<String> {
    match v {
        Value::String(one) => vec![one.clone()],
        Value::Array(many) => many.iter().filter_map(|v| v.as_str().map(str::to_owned)).collect(),
        _ => Vec::new(),
    }
}

fn run(program: &Program, name: &str, value: &Val) -> Result<Val, ClaimsError> {
    let surroundings = Surroundings { values: vec![(name.to_owned(), value.clone())], ..Surroundings::default() };
    program
        .run(&surroundings, &Cell::new(CALL_BUDGET))
        .map_err(|fault| ClaimsError::Expression { expression: program.text.clone(), fault })
}

fn holds(program: &Program, name: &str, value: &Val, message: &str) -> Result<(), ClaimsError> {
    let expression = || program.text.clone();
    match run(program, name, value)? {
        Val::Bool(true) => Ok(()),
        _ if message.is_empty() => Err(ClaimsError::Rule { expression: expression() }),
        _ => Err(ClaimsError::RuleWithMessage { expression: expression(), message: message.to_owned() }),
    }
}

fn text_of(value: Val, what: &'static str) -> Result<String, ClaimsError> {
    match value {
        Val::Text(text) => Ok(text.to_string()),
        other => Err(ClaimsError::NotText { what, got: other.type_name().to_owned() }),
    }
}

/// Texts of a value: empty ones and null are none.
fn listed(value: &Val) -> Vec<String> {
    let texts = match value {
        Val::Text(_) => std::slice::from_ref(value),
        Val::List(items) => items.as_slice(),
        _ => &[],
    };
    texts
        .iter()
        .filter_map(|v| if let Val::Text(t) = v { Some(t.to_string()) } else { None })
        .filter(|t| !t.is_empty())
        .collect()
}

/// Keys of the issuer, as last seen.
#[derive(Default)]
struct Keys {
    jwks: Option<Arc<Value>>,
    fetched: Option<Instant>,
}

/// Authenticates ID tokens of one issuer.
pub struct Jwt {
    settings: Settings,
    webhooks: Arc<Webhooks>,
    clock: Clock,
    keys: Mutex<Keys>,
    /// Held while the keys are fetched.
    fetching: tokio::sync::Mutex<()>,
}

impl Jwt {
    /// Keys are fetched when the first token comes.
    pub fn new(settings: Settings, webhooks: Arc<Webhooks>, clock: Clock) -> Jwt {
        Jwt { settings, webhooks, clock, keys: Mutex::default(), fetching: tokio::sync::Mutex::default() }
    }

    async fn get(&self, url: &str) -> Result<Value, KeysError> {
        let address = Endpoint::from_url(url)?;
        let endpoint = Endpoint { ca_pem: self.settings.ca_pem.clone(), ..address };
        let (nobody, headers) = (Identity::default(), http::HeaderMap::new());
        let asked = self.webhooks.send_with(http::Method::GET, &endpoint, &nobody, headers, ANSWER);
        let answer = asked.await?;
        let url = url.to_owned();
        if !answer.status().is_success() {
            return Err(KeysError::Answer { url, status: answer.status() });
        }
        serde_json::from_slice(answer.body()).map_err(|source| KeysError::NotJson { url, source })
    }

    async fn fetch(&self) -> Result<Value, KeysError> {
        let issuer = &self.settings.issuer_url;
        let own = || format!("{}/.well-known/openid-configuration", issuer.trim_end_matches('/'));
        let discovery = self.get(&self.settings.discovery_url.clone().unwrap_or_else(own)).await?;
        if discovery["issuer"] != issuer.as_str() {
            return Err(KeysError::Issuer { expected: issuer.clone(), got: discovery["issuer"].clone() });
        }
        self.get(discovery["jwks_uri"].as_str().unwrap_or_default()).await
    }

    fn known(&self) -> Option<Arc<Value>> {
        self.keys.lock().jwks.clone()
    }

    /// Claims of a token whose signature is good. Tokens that the known keys signed wait for nobody.
    async fn verified(&self, token: &str) -> Result<Value, KeysError> {
        let checked = |jwks: &Value| pki::jwk::verify(token, jwks, &self.settings.signing_algs);
        if let Some(claims) = self.known().and_then(|jwks| checked(&jwks).ok()) {
            return Ok(claims);
        }
        // Others wait for the fetch that is on its way, and look at what it brought.
        let _one_at_a_time = self.fetching.lock().await;
        let is_due = {
            let mut keys = self.keys.lock();
            let is_due = keys.fetched.is_none_or(|at| at.elapsed() >= REFETCH);
            if is_due {
                keys.fetched = Some(Instant::now());
            }
            is_due
        };
        if is_due {
            let jwks = Arc::new(self.fetch().await?);
            self.keys.lock().jwks = Some(jwks);
        }
        let jwks = self.known().ok_or(KeysError::NoKeys)?;
        Ok(checked(&jwks)?)
    }
}

#[async_trait]
impl TokenAuthenticator for Jwt {
    async fn token(&self, token: &str, audiences: &[String]) -> Result<Option<Authenticated>, AuthnError> {
        // Not ours to judge: tokens of other issuers go to the next authenticator.
        if unverified_claims(token).is_none_or(|claims| claims["iss"] != self.settings.issuer_url.as_str()) {
            return Ok(None);
        }
        let claims = self.verified(token).await.map_err(|err| AuthnError(Chain(&err).to_string()))?;
        let user = self.settings.user(&claims, self.clock.now().as_second());
        let user = user.map_err(|err| AuthnError(err.to_string()))?;
        Ok(Some(Authenticated { user, audiences: audiences.to_vec() }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags() -> Flags {
        Flags {
            issuer_url: "https://i".into(),
            client_id: "c".into(),
            username_claim: "sub".into(),
            groups_claim: "groups".into(),
            groups_prefix: "oidc:".into(),
            ..Flags::default()
        }
    }

    #[test]
    fn a_name_carries_its_issuer_unless_somebody_chose_a_prefix() {
        let claims = json!({ "iss": "https://i", "aud": ["c"], "exp": 60, "sub": "bob", "groups": ["dev"] });
        let user = Settings::of_flags(&flags()).user(&claims, 0).unwrap();
        assert_eq!((user.name.as_str(), user.groups[0].as_str()), ("https://i#bob", "oidc:dev"));
        let chosen = Flags { username_prefix: Some("-".into()), ..flags() };
        assert_eq!(Settings::of_flags(&chosen).user(&claims, 0).unwrap().name, "bob");
        assert_eq!(Settings::of_flags(&flags()).user(&claims, 60), Err(ClaimsError::Expired));
        let other = json!({ "iss": "https://i", "aud": "d", "exp": 60, "sub": "bob" });
        let refused = Settings::of_flags(&flags()).user(&other, 0).unwrap_err();
        assert_eq!(refused.to_string(), r#"oidc: verify token: oidc: expected audience in ["c"] got "d""#);
    }

    #[tokio::test]
    async fn a_good_token_does_not_wait_for_keys_that_somebody_fetches() {
        let (group, _reports) = base::task::Group::root("test");
        let lookup = Arc::new(registry::memory::Objects::default());
        let webhooks = Arc::new(Webhooks::new(lookup, Arc::new(registry::connect::Unreachable), &group));
        let algorithms = ["RS256", "ES256", "ES384", "ES512"].map(str::to_owned).to_vec();
        let settings = Settings { signing_algs: algorithms, ..Settings::of_flags(&flags()) };
        let jwt = Jwt::new(settings, webhooks, Clock::system());
        let dir = tempfile::tempdir().unwrap();
        let options = pki::server::Options {
            clock: Clock::system(),
            node_name: "n1".to_owned(),
            node_ips: Vec::new(),
            service_ips: Vec::new(),
            cluster_domain: "cluster.local".to_owned(),
            tls_sans: Vec::new(),
            leaf_life: pki::authority::LEAF_LIFE,
        };
        let pki = pki::server::Pki::load_or_create(dir.path(), options).unwrap();
        let token = pki.signer().unwrap().sign(&json!({ "iss": "https://i" })).unwrap();
        jwt.keys.lock().jwks = Some(Arc::new(pki.verifier().unwrap().jwks()));
        let _somebody_fetches = jwt.fetching.lock().await;
        let soon = Duration::from_secs(1);
        assert_eq!(tokio::time::timeout(soon, jwt.verified(&token)).await.unwrap().unwrap()["iss"], "https://i");
        assert!(tokio::time::timeout(Duration::from_millis(50), jwt.verified("bogus")).await.is_err());
        group.shutdown().await;
    }

    #[test]
    fn an_address_counts_when_its_verification_is_true_or_not_spoken_of() {
        let settings = Settings::of_flags(&Flags { username_claim: "email".into(), ..flags() });
        let user = |verified: Value| {
            let mut claims = json!({ "iss": "https://i", "aud": ["c"], "exp": 60, "email": "bob@x" });
            if !verified.is_null() {
                claims["email_verified"] = verified;
            }
            settings.user(&claims, 0)
        };
        assert!(user(Value::Null).is_ok() && user(json!(true)).is_ok());
        for refused in [json!(false), json!("false"), json!("true"), json!(0)] {
            assert!(user(refused.clone()).is_err(), "{refused}");
        }
    }

    /// The texts of upstream's plugin/pkg/auth/authenticator/token/oidc/oidc.go (v1.36) and of go-oidc under it.
    #[test]
    fn claims_that_make_no_user_are_refused_in_upstreams_words() {
        let flags = Flags { required_claims: vec![("team".into(), "a".into())], ..flags() };
        let settings = Settings { uid: Mapping::Claim("id".into(), String::new()), ..Settings::of_flags(&flags) };
        let good = json!({ "aud": ["c"], "exp": 60, "sub": "bob", "team": "a", "id": "7" });
        let with = |field: &str, value: Value| {
            let mut claims = good.clone();
            claims[field] = value;
            settings.user(&claims, 0).map(|user| user.uid).map_err(|err| err.to_string())
        };
        assert_eq!(with("nbf", json!(LEEWAY_SECS)), Ok("7".to_owned()));
        for (field, value, wanted) in [
            ("exp", json!(0), "oidc: verify token: oidc: token is expired"),
            ("exp", json!("60"), "oidc: verify token: oidc: token is expired"),
            (
                "nbf",
                json!(LEEWAY_SECS + 1),
                "oidc: verify token: oidc: current time is before the nbf (not before) time",
            ),
            ("sub", json!(""), "oidc: parse username claims \"sub\": claim not present"),
            ("sub", json!(7), "oidc: parse username claims \"sub\": claim not present"),
            ("team", json!("b"), "oidc: required claim team value does not match. Got = \"b\", want = a"),
            ("id", json!(null), "oidc: parse uid claim \"id\": claim not present"),
        ] {
            assert_eq!(with(field, value), Err(wanted.to_owned()), "{field}");
        }
    }
}
