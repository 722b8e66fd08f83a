//! Credentials for joining: the cluster's passwords and its bootstrap tokens.

use std::sync::Arc;

use base::chain::Chain;
use base::secret::Secret;
use base::sync::RwLock;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret as KubeSecret;
use kube::Api;
use model::secret::text;
use pki::token::BootstrapToken;
use sha2::{Digest as _, Sha256};

use crate::protocol::Role;
use crate::refusal::Refusal;

/// The group that a bootstrap token must name for a node to join by it.
pub const NODE_GROUP: &str = "system:bootstrappers:kedge:default-node-token";

/// The passwords in the join tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Passwords {
    /// Makes servers and agents.
    pub server: Secret<String>,
    /// Makes agents, and nothing else.
    pub agent: Secret<String>,
}

/// The passwords as they are now; clones see the same.
#[derive(Clone)]
pub struct Credentials {
    passwords: Arc<RwLock<Passwords>>,
    client: kube::Client,
}

/// The `Authorization` header, taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shown {
    /// None.
    Nothing,
    /// HTTP Basic.
    Password {
        /// `server` or `node`.
        user: String,
        /// The secret half.
        password: Secret<String>,
    },
    /// HTTP Bearer.
    Bootstrap(BootstrapToken),
}

impl Shown {
    /// Reads the header's value.
    pub fn parse(header: Option<&str>) -> Result<Shown, Refusal> {
        let Some((scheme, credential)) = header.and_then(|text| text.trim().split_once(' ')) else {
            return Ok(Shown::Nothing);
        };
        if scheme.eq_ignore_ascii_case("basic") {
            let text = STANDARD.decode(credential.trim()).ok().and_then(|bytes| String::from_utf8(bytes).ok());
            let (user, password) = text.as_deref().and_then(|text| text.split_once(':')).ok_or(Refusal::WrongToken)?;
            return Ok(Shown::Password { user: user.to_owned(), password: Secret::new(password.to_owned()) });
        }
        if scheme.eq_ignore_ascii_case("bearer") {
            return BootstrapToken::parse(credential.trim()).map(Shown::Bootstrap).map_err(|_| Refusal::WrongToken);
        }
        Err(Refusal::WrongToken)
    }
}

/// Compares in a time that tells nothing about where two secrets differ.
fn same(a: &str, b: &str) -> bool {
    let (a, b) = (Sha256::digest(a), Sha256::digest(b));
    a.iter().zip(b).fold(0, |differs, (x, y)| differs | (x ^ y)) == 0
}

/// A user and its password, as they were shown.
struct Login<'a> {
    /// Empty: a short token names none.
    user: &'a str,
    password: &'a str,
}

/// Whether a password makes a machine of this role.
fn judge_password(known: &Passwords, shown: Login<'_>, role: Role) -> Result<(), Refusal> {
    let is = |password: &Secret<String>| same(password.expose(), shown.password);
    let (server, agent) = (is(&known.server), is(&known.agent));
    match role {
        // A machine with the servers' password may do what an agent may.
        Role::Agent if agent || server => Ok(()),
        Role::Server if server && shown.user != "node" => Ok(()),
        Role::Server if agent || server => Err(Refusal::AgentToken),
        _ => Err(Refusal::WrongToken),
    }
}

/// Whether a bootstrap token's Secret lets a node in.
fn judge_bootstrap(secret: &KubeSecret, token: &BootstrapToken, now: Timestamp) -> Result<(), Refusal> {
    let id = token.id.clone();
    let right_type = secret.type_.as_deref() == Some("bootstrap.kubernetes.io/token")
        && secret.metadata.deletion_timestamp.is_none();
    if !right_type
        || text(secret, "token-id") != token.id
        || !same(&text(secret, "token-secret"), token.secret.expose())
    {
        return Err(Refusal::UnknownToken { id });
    }
    let expires = text(secret, "expiration");
    if !expires.is_empty() && !expires.parse::<Timestamp>().is_ok_and(|end| now < end) {
        return Err(Refusal::ExpiredToken { id, at: expires });
    }
    if text(secret, "usage-bootstrap-authentication") != "true" {
        return Err(Refusal::UselessToken { id, lacks: "its usages lack authentication".to_owned() });
    }
    if !text(secret, "auth-extra-groups").split(',').any(|group| group == NODE_GROUP) {
        return Err(Refusal::UselessToken { id, lacks: format!("its groups lack {NODE_GROUP}") });
    }
    Ok(())
}

impl Credentials {
    /// `client` reads the Secrets of bootstrap tokens.
    pub fn new(passwords: Passwords, client: kube::Client) -> Credentials {
        Credentials { passwords: Arc::new(RwLock::new(passwords)), client }
    }

    /// The passwords as they are now.
    pub fn passwords(&self) -> Passwords {
        self.passwords.read().clone()
    }

    /// Other passwords from now on.
    pub fn replace(&self, passwords: Passwords) {
        *self.passwords.write() = passwords;
    }

    /// Whether what was shown makes a machine of this role.
    pub async fn judge(&self, shown: &Shown, role: Role, now: Timestamp) -> Result<(), Refusal> {
        match shown {
            Shown::Nothing => Err(Refusal::NoToken),
            Shown::Password { user, password } => {
                judge_password(&self.passwords(), Login { user, password: password.expose() }, role)
            }
            Shown::Bootstrap(_) if role == Role::Server => Err(Refusal::AgentToken),
            Shown::Bootstrap(token) => {
                let api: Api<KubeSecret> = Api::namespaced(self.client.clone(), "kube-system");
                match api.get_opt(&format!("bootstrap-token-{}", token.id)).await {
                    Ok(Some(secret)) => judge_bootstrap(&secret, token, now),
                    // A password may look like a bootstrap token.
                    Ok(None) => judge_password(&self.passwords(), Login { user: "", password: &token.expose() }, role)
                        .map_err(|_| Refusal::UnknownToken { id: token.id.clone() }),
                    Err(err) => Err(Refusal::NotReady { why: format!("it cannot read tokens: {}", Chain(&err)) }),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::ByteString;

    fn passwords() -> Passwords {
        Passwords { server: Secret::new("big".to_owned()), agent: Secret::new("small".to_owned()) }
    }

    #[test]
    fn an_agents_password_makes_no_server() {
        let judge = |user, password, role| judge_password(&passwords(), Login { user, password }, role);
        assert_eq!(judge("node", "small", Role::Agent), Ok(()));
        assert_eq!(judge("server", "big", Role::Agent), Ok(()));
        assert_eq!(judge("", "big", Role::Server), Ok(()));
        assert_eq!(judge("node", "small", Role::Server), Err(Refusal::AgentToken));
        assert_eq!(judge("server", "nothing", Role::Agent), Err(Refusal::WrongToken));
        assert_eq!(judge("server", "", Role::Server), Err(Refusal::WrongToken));
    }

    fn secret(fields: &[(&str, &str)]) -> KubeSecret {
        let all = [
            ("token-id", "abc123"),
            ("token-secret", "0123456789abcdef"),
            ("usage-bootstrap-authentication", "true"),
            ("auth-extra-groups", NODE_GROUP),
        ];
        let data =
            all.iter().chain(fields).map(|(k, v)| ((*k).to_owned(), ByteString(v.as_bytes().to_vec()))).collect();
        KubeSecret {
            data: Some(data),
            type_: Some("bootstrap.kubernetes.io/token".to_owned()),
            ..KubeSecret::default()
        }
    }

    #[test]
    fn every_way_in_which_a_bootstrap_token_fails_has_its_reason() {
        let now = "2026-11-21T00:00:00Z".parse().unwrap();
        let token = BootstrapToken::parse("abc123.0123456789abcdef").unwrap();
        let judge = |fields: &[(&str, &str)]| judge_bootstrap(&secret(fields), &token, now);
        assert_eq!(judge(&[]), Ok(()));
        assert_eq!(judge(&[("expiration", "2027-01-01T00:00:00Z")]), Ok(()));
        assert!(matches!(judge(&[("expiration", "2026-01-01T00:00:00Z")]), Err(Refusal::ExpiredToken { .. })));
        assert!(matches!(judge(&[("token-secret", "xxxxxxxxxxxxxxxx")]), Err(Refusal::UnknownToken { .. })));
        assert!(matches!(judge(&[("usage-bootstrap-authentication", "false")]), Err(Refusal::UselessToken { .. })));
        assert!(matches!(judge(&[("auth-extra-groups", "")]), Err(Refusal::UselessToken { .. })));
    }

    // docs/security.md: the bootstrap token may not make a server.
    #[tokio::test]
    async fn a_bootstrap_token_makes_agents_and_no_server() {
        let kept = serde_json::to_vec(&secret(&[])).unwrap();
        let answer = move |_: http::Request<kube::client::Body>| {
            let kept = kept.clone();
            async move { Ok::<_, std::io::Error>(http::Response::new(kube::client::Body::from(kept))) }
        };
        let credentials = Credentials::new(passwords(), kube::Client::new(tower::service_fn(answer), "default"));
        let now = "2026-11-21T00:00:00Z".parse().unwrap();
        let judge = async |header: &str, role| credentials.judge(&Shown::parse(Some(header)).unwrap(), role, now).await;
        let token = "abc123.0123456789abcdef";
        assert_eq!(judge(&format!("Bearer {token}"), Role::Agent).await, Ok(()));
        assert_eq!(judge(&format!("Bearer {token}"), Role::Server).await, Err(Refusal::AgentToken));
        for user in ["server", "node", ""] {
            let as_password = format!("Basic {}", STANDARD.encode(format!("{user}:{token}")));
            assert_eq!(judge(&as_password, Role::Server).await, Err(Refusal::WrongToken), "{user}");
        }
    }

    #[test]
    fn the_header_is_read_in_both_forms() {
        let basic = format!("Basic {}", STANDARD.encode("server:a:b"));
        assert_eq!(
            Shown::parse(Some(&basic)).unwrap(),
            Shown::Password { user: "server".to_owned(), password: Secret::new("a:b".to_owned()) }
        );
        assert!(matches!(Shown::parse(Some("Bearer abc123.0123456789abcdef")), Ok(Shown::Bootstrap(_))));
        assert_eq!(Shown::parse(None), Ok(Shown::Nothing));
        assert_eq!(Shown::parse(Some("Bearer junk")), Err(Refusal::WrongToken));
    }

    #[test]
    fn a_header_that_cannot_be_read_is_a_wrong_token_and_none_is_none() {
        let basic = |text: &str| format!("Basic {}", STANDARD.encode(text));
        assert_eq!(Shown::parse(Some("Bearer")), Ok(Shown::Nothing));
        assert_eq!(Shown::parse(Some("")), Ok(Shown::Nothing));
        for header in ["Basic %", "Digest x", "Bearer ", "Bearer abc123.tooshort", &basic("no colon")] {
            assert!(
                !matches!(Shown::parse(Some(header)), Ok(Shown::Password { .. } | Shown::Bootstrap(_))),
                "{header}"
            );
        }
        assert_eq!(Shown::parse(Some("Digest x")), Err(Refusal::WrongToken));
        let empty = Shown::parse(Some(&basic("node:"))).unwrap();
        assert_eq!(empty, Shown::Password { user: "node".to_owned(), password: Secret::new(String::new()) });
        assert!(matches!(
            Shown::parse(Some(&format!("basic   {}", STANDARD.encode("a:b")))),
            Ok(Shown::Password { .. })
        ));
    }

    #[test]
    fn a_secret_that_is_no_bootstrap_token_or_goes_lets_nobody_in() {
        let now = "2026-11-21T00:00:00Z".parse().unwrap();
        let token = BootstrapToken::parse("abc123.0123456789abcdef").unwrap();
        let unknown = Err(Refusal::UnknownToken { id: "abc123".to_owned() });
        let mut goes = secret(&[]);
        goes.metadata.deletion_timestamp = serde_json::from_value("2026-11-20T00:00:00Z".into()).ok();
        let opaque = KubeSecret { type_: Some("Opaque".to_owned()), ..secret(&[]) };
        for refused in [goes, opaque, KubeSecret { data: None, ..secret(&[]) }, secret(&[("token-id", "abc124")])] {
            assert_eq!(judge_bootstrap(&refused, &token, now), unknown, "{refused:?}");
        }
        let at = |end: &str| judge_bootstrap(&secret(&[("expiration", end)]), &token, now);
        for end in ["2026-11-21T00:00:00Z", "soon"] {
            let want = Err(Refusal::ExpiredToken { id: "abc123".to_owned(), at: end.to_owned() });
            assert_eq!(at(end), want, "{end}");
        }
        assert_eq!(at("2026-11-21T00:00:01Z"), Ok(()));
        let groups = format!("system:bootstrappers:other,{NODE_GROUP}");
        assert_eq!(judge_bootstrap(&secret(&[("auth-extra-groups", &groups)]), &token, now), Ok(()));
    }
}
