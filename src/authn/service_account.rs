//! Service-account tokens: a good signature, the right audience and time, and everything the token is bound to still
//! there.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use base::time::Clock;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use model::meta;
use model::reference::{GroupResource, NamespacedName};
use pki::jwt::{Verifier, unverified_claims};
use registry::lookup::Lookup;
use registry::user::UserInfo;
use serde_json::Value;

use super::AuthnError;
use super::basic::same_secret;
use super::chain::{Authenticated, TokenAuthenticator};
use super::legacy::{INVALID_SINCE, Uses};

/// Issuer of the tokens in Secrets of type `kubernetes.io/service-account-token`.
pub const LEGACY_ISSUER: &str = "kubernetes/serviceaccount";

/// Why a service account's token is no good, in upstream's words where it has them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum Invalid {
    #[error("service account token has expired")]
    Expired,
    #[error("service account token is not valid yet")]
    NotYet,
    #[error("the token's subject is not its service account")]
    Subject,
    /// The object that it is bound to is gone.
    #[error("service account token has been invalidated")]
    Bound,
    #[error("serviceaccounts {name:?} not found")]
    NoAccount { name: String },
    #[error("service account {account} has been deleted")]
    AccountDeleted { account: String },
    #[error("service account UID ({stored}) does not match claim ({claimed})")]
    OtherAccount { stored: String, claimed: String },
    #[error("Token has been invalidated")]
    NoSecret,
    #[error("Token does not match server's copy")]
    OtherToken,
    #[error(
        "the token in secret {secret} for service account {account} has been marked invalid. Use tokens from the \
         TokenRequest API or manually created secret-based tokens, or remove the '{INVALID_SINCE}' label from the \
         secret to temporarily allow use of this token"
    )]
    Marked { secret: String, account: String },
}

/// Authenticates service-account tokens.
pub struct ServiceAccounts {
    verifier: Verifier,
    issuers: Vec<String>,
    clock: Clock,
    lookup: Arc<dyn Lookup>,
    legacy_uses: Arc<Uses>,
}

/// The user of a service account.
pub fn user_of(namespace: &str, name: &str, uid: &str) -> UserInfo {
    UserInfo {
        name: format!("system:serviceaccount:{namespace}:{name}"),
        uid: uid.to_owned(),
        groups: vec!["system:serviceaccounts".to_owned(), format!("system:serviceaccounts:{namespace}")],
        extra: BTreeMap::new(),
    }
}

/// Namespace and name of a service account's user.
pub fn split_user(user: &str) -> Option<(&str, &str)> {
    user.strip_prefix("system:serviceaccount:")?
        .split_once(':')
        .filter(|(namespace, name)| !namespace.is_empty() && !name.is_empty())
}

impl ServiceAccounts {
    /// Accepts tokens of `issuers` and the old ones in Secrets, whose uses it notes.
    pub fn new(
        verifier: Verifier,
        issuers: Vec<String>,
        clock: Clock,
        lookup: Arc<dyn Lookup>,
        legacy_uses: Arc<Uses>,
    ) -> ServiceAccounts {
        ServiceAccounts { verifier, issuers, clock, lookup, legacy_uses }
    }

    fn bound(&self, claims: &Value) -> Result<UserInfo, Invalid> {
        check_times(claims, self.clock.now())?;
        let private = &claims["kubernetes.io"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (namespace, account) = (text(&private["namespace"]), &private["serviceaccount"]);
        let (name, uid) = (text(&account["name"]), text(&account["uid"]));
        if claims["sub"] != format!("system:serviceaccount:{namespace}:{name}") {
            return Err(Invalid::Subject);
        }
        self.account(&namespace, &name, &uid)?;
        let mut user = user_of(&namespace, &name, &uid);
        for (claim, resource, ns) in
            [("secret", "secrets", namespace.as_str()), ("pod", "pods", &namespace), ("node", "nodes", "")]
        {
            let bound = &private[claim];
            if !bound.is_object() {
                continue;
            }
            // A token of a pod names the pod's node for information; it is bound to the node only if there is no pod.
            if claim != "node" || private["pod"].is_null() {
                self.still_there(resource, ns, bound)?;
            }
            if claim != "secret" {
                user.extra.insert(format!("authentication.kubernetes.io/{claim}-name"), vec![text(&bound["name"])]);
                user.extra.insert(format!("authentication.kubernetes.io/{claim}-uid"), vec![text(&bound["uid"])]);
            }
        }
        if let Some(id) = claims["jti"].as_str().filter(|id| !id.is_empty()) {
            user.extra.insert("authentication.kubernetes.io/credential-id".to_owned(), vec![format!("JTI={id}")]);
        }
        Ok(user)
    }

    fn still_there(&self, resource: &str, namespace: &str, bound: &Value) -> Result<(), Invalid> {
        let name = bound["name"].as_str().unwrap_or_default();
        let object =
            self.lookup.get(GroupResource::core(resource), NamespacedName { namespace, name }).ok_or(Invalid::Bound)?;
        let ends = |object: &Value| {
            object["metadata"]["deletionTimestamp"].as_str().and_then(|at| at.parse::<Timestamp>().ok())
        };
        // The time of deletion already counts the grace period; one minute more for those who watch it go.
        let gone = ends(&object).is_some_and(|at| self.clock.now().as_second() > at.as_second() + 60);
        if gone || bound["uid"] != meta::uid(&object) { Err(Invalid::Bound) } else { Ok(()) }
    }

    fn account(&self, namespace: &str, name: &str, uid: &str) -> Result<(), Invalid> {
        let account = self
            .lookup
            .get(GroupResource::core("serviceaccounts"), NamespacedName { namespace, name })
            .ok_or_else(|| Invalid::NoAccount { name: name.to_owned() })?;
        if meta::deletion_timestamp(&account).is_some() {
            return Err(Invalid::AccountDeleted { account: format!("{namespace}/{name}") });
        }
        let stored = meta::uid(&account);
        if uid != stored {
            return Err(Invalid::OtherAccount { stored: stored.to_owned(), claimed: uid.to_owned() });
        }
        Ok(())
    }

    fn legacy(&self, claims: &Value, token: &str) -> Result<UserInfo, Invalid> {
        let text = |field: &str| {
            claims[format!("kubernetes.io/serviceaccount/{field}")].as_str().unwrap_or_default().to_owned()
        };
        let (namespace, name, uid, secret) =
            (text("namespace"), text("service-account.name"), text("service-account.uid"), text("secret.name"));
        if claims["sub"] != format!("system:serviceaccount:{namespace}:{name}") {
            return Err(Invalid::Subject);
        }
        let object = self
            .lookup
            .get(GroupResource::core("secrets"), NamespacedName { namespace: &namespace, name: &secret })
            .ok_or(Invalid::NoSecret)?;
        let stored = object["data"]["token"].as_str().and_then(|text| STANDARD.decode(text).ok()).unwrap_or_default();
        if meta::deletion_timestamp(&object).is_some() || !same_secret(&String::from_utf8_lossy(&stored), token) {
            return Err(Invalid::OtherToken);
        }
        self.account(&namespace, &name, &uid)?;
        // A try is a use, too: a token that somebody still needs is not deleted.
        self.legacy_uses.note(&object, self.clock.now());
        if meta::label(&object, INVALID_SINCE).is_some_and(|since| !since.is_empty()) {
            let (secret, account) = (format!("{namespace}/{secret}"), format!("{namespace}/{name}"));
            return Err(Invalid::Marked { secret, account });
        }
        Ok(user_of(&namespace, &name, &uid))
    }
}

fn check_times(claims: &Value, now: Timestamp) -> Result<(), Invalid> {
    let now = now.as_second();
    let time = |field: &str| claims[field].as_i64().or_else(|| claims[field].as_f64().map(|secs| secs as i64));
    if time("exp").is_none_or(|end| now >= end) {
        return Err(Invalid::Expired);
    }
    // One minute of leeway, as clocks of two servers differ.
    if time("nbf").is_some_and(|start| now + 60 < start) {
        return Err(Invalid::NotYet);
    }
    Ok(())
}

fn audiences_of(claims: &Value) -> Vec<String> {
    match &claims["aud"] {
        Value::String(one) => vec![one.clone()],
        Value::Array(many) => many.iter().filter_map(|aud| aud.as_str().map(str::to_owned)).collect(),
        _ => Vec::new(),
    }
}

fn quoted(list: &[String]) -> String {
    format!("[{}]", list.iter().map(|word| format!("{word:?}")).collect::<Vec<_>>().join(" "))
}

#[async_trait]
impl TokenAuthenticator for ServiceAccounts {
    async fn token(&self, token: &str, accepted: &[String]) -> Result<Option<Authenticated>, AuthnError> {
        let issuer = unverified_claims(token).and_then(|claims| claims["iss"].as_str().map(str::to_owned));
        if !issuer.is_some_and(|issuer| issuer == LEGACY_ISSUER || self.issuers.contains(&issuer)) {
            return Ok(None);
        }
        let claims = self.verifier.verify(token).map_err(|err| AuthnError(err.to_string()))?;
        if claims["iss"] == LEGACY_ISSUER {
            let user = self.legacy(&claims, token).map_err(|why| AuthnError(why.to_string()))?;
            return Ok(Some(Authenticated { user, audiences: accepted.to_vec() }));
        }
        let audiences = audiences_of(&claims);
        let common: Vec<String> = accepted.iter().filter(|aud| audiences.contains(aud)).cloned().collect();
        if common.is_empty() {
            let (has, wants) = (quoted(&audiences), quoted(accepted));
            return Err(AuthnError(format!("token audiences {has} is invalid for the target audiences {wants}")));
        }
        let user = self.bound(&claims).map_err(|why| AuthnError(why.to_string()))?;
        Ok(Some(Authenticated { user, audiences: common }))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_token_holds_between_its_times_with_a_minute_before() {
        for (claims, wanted) in [
            (json!({"exp": 1001}), Ok(())),
            (json!({"exp": 1000}), Err(Invalid::Expired)),
            (json!({"exp": 1001.5}), Ok(())),
            (json!({"exp": "1001"}), Err(Invalid::Expired)),
            (json!({}), Err(Invalid::Expired)),
            (json!({"exp": 2000, "nbf": 1060}), Ok(())),
            (json!({"exp": 2000, "nbf": 1061}), Err(Invalid::NotYet)),
        ] {
            assert_eq!(check_times(&claims, Timestamp::from_second(1000).unwrap()), wanted, "{claims}");
        }
    }

    #[test]
    fn a_service_accounts_user_has_its_namespace_and_name_and_nothing_else() {
        let user = user_of("default", "web", "u");
        assert_eq!(split_user(&user.name), Some(("default", "web")));
        assert_eq!(user.groups, ["system:serviceaccounts", "system:serviceaccounts:default"]);
        for name in ["bob", "system:serviceaccount:", "system:serviceaccount:a", "system:serviceaccount::a"] {
            assert_eq!(split_user(name), None, "{name}");
        }
        assert_eq!(split_user("system:serviceaccount:a:"), None);
    }

    #[test]
    fn an_audience_is_a_text_or_a_list_of_texts() {
        for (aud, wanted) in
            [(json!("a"), &["a"][..]), (json!(["a", "b", 3]), &["a", "b"]), (json!(null), &[]), (json!(7), &[])]
        {
            assert_eq!(audiences_of(&json!({ "aud": aud })), wanted);
        }
        assert_eq!(quoted(&["a".to_owned(), "b".to_owned()]), r#"["a" "b"]"#);
    }
}
