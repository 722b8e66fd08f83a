//! Join tokens: the long form that pins the cluster's authority, the short form, and bootstrap tokens.

use std::fmt;

use base::hex;
use base::rng::Rng;
use base::secret::Secret;
use rustls_pki_types::CertificateDer;
use sha2::{Digest as _, Sha256};

use crate::error::PkiError;
use crate::identity;
use crate::{pem, seal};

const FULL_PREFIX: &str = "K10";
const HASH_HEX: usize = 64;

/// The token that a joining machine was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinToken {
    /// SHA-256 that `/cacerts` must have, hex; without one the first answer is trusted.
    pub ca_hash: Option<String>,
    /// The one that joins, and the proof.
    pub credential: Credential,
}

/// The secret part of a [`JoinToken`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Credential {
    /// `server` or `node` with its password (HTTP Basic); a short token names no user.
    Password { user: Option<String>, password: Secret<String> },
    /// A bootstrap token (HTTP Bearer).
    Bootstrap(BootstrapToken),
}

impl JoinToken {
    /// Reads any of `K10<hash>::<user>:<password>`, `K10<hash>::<id>.<secret>`, `<id>.<secret>`, `<password>`.
    pub fn parse(text: &str) -> Result<JoinToken, PkiError> {
        let text = text.trim();
        let refused = |why: &str| Err(PkiError::malformed("token", why));
        let Some(rest) = text.strip_prefix(FULL_PREFIX) else {
            if text.is_empty() {
                return refused("it is empty");
            }
            let password = || Credential::Password { user: None, password: Secret::new(text.to_owned()) };
            let credential = BootstrapToken::parse(text).map_or_else(|_| password(), Credential::Bootstrap);
            return Ok(JoinToken { ca_hash: None, credential });
        };
        let Some((hash, credential)) = rest.split_once("::") else {
            return refused("no :: after the hash of the authority");
        };
        if hash.len() != HASH_HEX || !hash.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')) {
            return refused("the hash of the authority is not 64 hex digits");
        }
        let credential = match credential.split_once(':') {
            Some((user, password)) if !password.is_empty() => {
                Credential::Password { user: Some(user.to_owned()), password: Secret::new(password.to_owned()) }
            }
            Some(_) => return refused("the password is empty"),
            None => Credential::Bootstrap(BootstrapToken::parse(credential)?),
        };
        Ok(JoinToken { ca_hash: Some(hash.to_owned()), credential })
    }

    /// `K10<hash>::<user>:<password>` for the bundle that `/cacerts` serves.
    pub fn full(ca_bundle: &[u8], user: &str, password: &Secret<String>) -> Result<String, PkiError> {
        Ok(format!("{FULL_PREFIX}{}::{user}:{}", ca_hash(ca_bundle)?, password.expose()))
    }
}

/// The hash in a full token: of the file's bytes for one certificate, of the root's DER for a chain (k3s's rule).
pub fn ca_hash(ca_bundle: &[u8]) -> Result<String, PkiError> {
    let certs = pem::certificates(ca_bundle)?;
    if certs.len() == 1 {
        return Ok(hex::encode(&Sha256::digest(ca_bundle)));
    }
    Ok(hex::encode(&Sha256::digest(root_of(&certs)?)))
}

/// Those certificates of a bundle that a hash in a full token stands for, PEM; empty if it is for another cluster.
/// Nothing else of the bundle may be trusted for the token's sake: whoever answers chose the rest.
pub fn vouched_for(ca_bundle: &[u8], hash: &str) -> Result<String, PkiError> {
    let certs = pem::certificates(ca_bundle)?;
    let whole = certs.len() == 1 && hex::encode(&Sha256::digest(ca_bundle)) == hash;
    let texts = certs.iter().map(|der| (pem::encode("CERTIFICATE", der), hex::encode(&Sha256::digest(der))));
    let named = texts.filter(|(text, of_der)| whole || of_der == hash || hex::encode(&Sha256::digest(text)) == hash);
    Ok(named.map(|(text, _)| text).collect())
}

/// Those certificates of a bundle that are in another one, PEM.
pub fn shared(ca_bundle: &[u8], known: &[u8]) -> Result<String, PkiError> {
    let known = pem::certificates(known)?;
    Ok(pem::certificates(ca_bundle)?
        .iter()
        .filter(|der| known.contains(der))
        .map(|der| pem::encode("CERTIFICATE", der))
        .collect())
}

/// Follows issuers from the first certificate to one that issued itself.
fn root_of<'a>(certs: &'a [CertificateDer<'static>]) -> Result<&'a CertificateDer<'static>, PkiError> {
    let seen = certs.iter().map(identity::parse).collect::<Result<Vec<_>, _>>()?;
    let mut at = 0;
    for _ in 0..certs.len() {
        if seen[at].issuer == seen[at].subject {
            return Ok(&certs[at]);
        }
        match seen.iter().position(|other| other.subject == seen[at].issuer) {
            Some(above) => at = above,
            None => break,
        }
    }
    Err(PkiError::malformed("certificate", "the bundle holds no root for its first certificate"))
}

/// A new password for the `server` or `node` user: 16 random bytes, hex.
pub fn new_password(rng: &Rng) -> Secret<String> {
    Secret::new(rng.hex(16))
}

/// The agents' password of a cluster that never had one of its own: every server derives the same from the servers'
/// password, and nobody gets from it to that one without guessing it.
pub fn derived_password(server: &Secret<String>) -> Secret<String> {
    let key = seal::key_from_password("agents", server, b"kedge agent token");
    Secret::new(hex::encode(&key.secret.expose()[..16]))
}

/// `[a-z0-9]{6}.[a-z0-9]{16}`.
#[derive(Clone, PartialEq, Eq)]
pub struct BootstrapToken {
    /// Public half: the Secret is named `bootstrap-token-<id>`.
    pub id: String,
    /// Secret half.
    pub secret: Secret<String>,
}

impl fmt::Debug for BootstrapToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BootstrapToken({})", self.id)
    }
}

impl BootstrapToken {
    /// Reads `id.secret`.
    pub fn parse(text: &str) -> Result<BootstrapToken, PkiError> {
        let good = |part: &str, len: usize| {
            part.len() == len && part.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
        };
        match text.split_once('.') {
            Some((id, secret)) if good(id, 6) && good(secret, 16) => {
                Ok(BootstrapToken { id: id.to_owned(), secret: Secret::new(secret.to_owned()) })
            }
            _ => Err(PkiError::malformed("bootstrap token", "it is not of the form \"[a-z0-9]{6}.[a-z0-9]{16}\"")),
        }
    }

    /// A new random one.
    pub fn generate(rng: &Rng) -> BootstrapToken {
        let draw = |n: usize| {
            (0..n)
                .map(|_| char::from(b"abcdefghijklmnopqrstuvwxyz0123456789"[rng.below(36) as usize]))
                .collect::<String>()
        };
        BootstrapToken { id: draw(6), secret: Secret::new(draw(16)) }
    }

    /// `id.secret`, to hand out.
    pub fn expose(&self) -> String {
        format!("{}.{}", self.id, self.secret.expose())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HASH: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    #[test]
    fn every_form_of_token_is_read() {
        let full = JoinToken::parse(&format!("K10{HASH}::server:a:b")).unwrap();
        assert_eq!(full.ca_hash.as_deref(), Some(HASH));
        let Credential::Password { user, password } = full.credential else { panic!() };
        assert_eq!((user.as_deref(), password.expose().as_str()), (Some("server"), "a:b"));
        let boot = JoinToken::parse(&format!("K10{HASH}::abc123.0123456789abcdef")).unwrap();
        assert!(matches!(boot.credential, Credential::Bootstrap(t) if t.id == "abc123"));
        assert!(matches!(JoinToken::parse("abc123.0123456789abcdef\n").unwrap().credential, Credential::Bootstrap(_)));
        assert!(matches!(JoinToken::parse("hunter2").unwrap().credential, Credential::Password { user: None, .. }));
    }

    #[test]
    fn all_servers_derive_the_same_password_for_agents() {
        let derived = |text: &str| derived_password(&Secret::new(text.to_owned()));
        assert_eq!(derived("hunter2"), derived("hunter2"));
        assert_ne!(derived("hunter2"), derived("hunter3"));
        assert_eq!(derived("hunter2").expose().len(), 32);
    }

    #[test]
    fn broken_tokens_say_what_is_wrong() {
        let why = |text: &str| JoinToken::parse(text).unwrap_err().to_string();
        assert_eq!(why(" "), "no usable token: it is empty");
        assert_eq!(why("K10abc::server:x"), "no usable token: the hash of the authority is not 64 hex digits");
        assert_eq!(why("K10abc"), "no usable token: no :: after the hash of the authority");
        assert_eq!(why(&format!("K10{HASH}::server:")), "no usable token: the password is empty");
    }

    #[test]
    fn one_certificate_is_hashed_as_file_and_a_chain_by_its_root() {
        let (root, _) = crate::authority::Authority::create("root", jiff::Timestamp::UNIX_EPOCH).unwrap();
        let one = ca_hash(root.bundle().as_bytes()).unwrap();
        assert_eq!(one, hex::encode(&Sha256::digest(root.bundle())));
        let other = crate::authority::Authority::create("other", jiff::Timestamp::UNIX_EPOCH).unwrap().0;
        let two = format!("{}{}", root.bundle(), other.bundle());
        assert_eq!(ca_hash(two.as_bytes()).unwrap(), hex::encode(&Sha256::digest(&root.chain()[0])));
        // A token from before another authority came is good, and vouches for its own alone.
        assert_eq!(vouched_for(two.as_bytes(), &one).unwrap(), root.bundle());
        assert_eq!(vouched_for(two.as_bytes(), &ca_hash(two.as_bytes()).unwrap()).unwrap(), root.bundle());
        assert_eq!(vouched_for(other.bundle().as_bytes(), &one).unwrap(), "");
        assert_eq!(shared(two.as_bytes(), other.bundle().as_bytes()).unwrap(), other.bundle());
    }
}
