//! Signed tokens of service accounts: JSON Web Tokens, ES256 with kedge's own keys, and the documents with which others
//! verify them.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rand::SystemRandom;
use rustls_pki_types::pem::SectionKind;
use serde_json::{Value, json};

use crate::error::PkiError;
use crate::service_key::{self, Private};
use crate::{jwk, pem};

/// Bytes of a token that is looked at at all; upstream's are around 1 KB.
pub const TOKEN_BYTES_MAX: usize = 64 * 1024;

/// Why a token was not accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JwtError {
    /// Not three base64url parts with JSON in them.
    #[error("token is not a signed JSON Web Token")]
    Malformed,
    /// Signed with an algorithm of none of our keys.
    #[error("unexpected signature algorithm {0:?}")]
    Algorithm(String),
    /// Signed by nobody we know.
    #[error("no key verifies the token's signature")]
    Signature,
}

/// Signs tokens with the first key of a file.
pub struct Signer {
    key: Private,
    kid: String,
    random: SystemRandom,
}

impl Signer {
    /// `text` holds a private key: RSA, P-256 or P-384; of several the first signs.
    pub fn from_pem(text: &str) -> Result<Signer, PkiError> {
        let is_key = |kind: SectionKind| {
            matches!(kind, SectionKind::PrivateKey | SectionKind::RsaPrivateKey | SectionKind::EcPrivateKey)
        };
        let first = pem::sections(text.as_bytes())?.into_iter().find(|(kind, _)| is_key(*kind));
        let (kind, der) = first.ok_or_else(|| PkiError::malformed("private key", "no private key in it"))?;
        let key = Private::read(kind, &der)?;
        let kid = service_key::id(&key.spki());
        Ok(Signer { key, kid, random: SystemRandom::new() })
    }

    /// Id of the signing key: SHA-256 of its public key (SubjectPublicKeyInfo), base64url, as upstream derives it.
    pub fn kid(&self) -> &str {
        &self.kid
    }

    /// The token with these claims.
    pub fn sign(&self, claims: &Value) -> Result<String, PkiError> {
        let header = json!({"alg": self.key.algorithm(), "kid": self.kid}).to_string();
        let body = format!("{}.{}", URL_SAFE_NO_PAD.encode(header), URL_SAFE_NO_PAD.encode(claims.to_string()));
        let signature = self.key.sign(&self.random, body.as_bytes())?;
        Ok(format!("{body}.{}", URL_SAFE_NO_PAD.encode(signature)))
    }
}

/// A signature over `content` with the secret of the bootstrap token `id`, the content left out of it (RFC 7515,
/// appendix F): a machine that has the token knows by it that `content` is this cluster's.
pub fn detached(content: &str, id: &str, secret: &str) -> String {
    let header = URL_SAFE_NO_PAD.encode(json!({"alg": "HS256", "kid": id}).to_string());
    let body = format!("{header}.{}", URL_SAFE_NO_PAD.encode(content));
    let tag = ring::hmac::sign(&ring::hmac::Key::new(ring::hmac::HMAC_SHA256, secret.as_bytes()), body.as_bytes());
    format!("{header}..{}", URL_SAFE_NO_PAD.encode(tag))
}

/// An issuer of tokens, as others find it.
#[derive(Clone, Copy, Debug)]
pub struct OpenIdIssuer<'a> {
    /// Its URL: the claim `iss`.
    pub issuer: &'a str,
    /// Where its keys are.
    pub jwks_uri: &'a str,
}

/// Verifies tokens with every key of a file.
#[derive(Clone, Debug)]
pub struct Verifier {
    /// A JSON Web Key Set.
    keys: Value,
    algorithms: Vec<String>,
}

impl Verifier {
    /// `text` holds private keys, public keys or certificates; all of them verify, so that keys can be rotated.
    pub fn from_pem(text: &str) -> Result<Verifier, PkiError> {
        let (mut keys, mut algorithms): (Vec<Value>, Vec<String>) = Default::default();
        for (kind, der) in pem::sections(text.as_bytes())? {
            let Some(spki) = service_key::public(kind, &der)? else { continue };
            let key = service_key::jwk(&spki)?;
            if keys.contains(&key) {
                continue;
            }
            algorithms.extend(key["alg"].as_str().map(str::to_owned).filter(|alg| !algorithms.contains(alg)));
            keys.push(key);
        }
        if keys.is_empty() {
            return Err(PkiError::malformed("key", "no key in it"));
        }
        Ok(Verifier { keys: json!({ "keys": keys }), algorithms })
    }

    /// The claims of a token whose signature is good. Times and audiences are the caller's to judge.
    pub fn verify(&self, token: &str) -> Result<Value, JwtError> {
        jwk::verify(token, &self.keys, &self.algorithms)
    }

    /// Whether it verifies what the key with this id signs.
    pub fn knows(&self, kid: &str) -> bool {
        self.keys["keys"].as_array().into_iter().flatten().any(|key| key["kid"] == kid)
    }

    /// The JSON Web Key Set that `/openid/v1/jwks` serves.
    pub fn jwks(&self) -> Value {
        self.keys.clone()
    }

    /// The document that `/.well-known/openid-configuration` serves.
    pub fn openid_configuration(&self, issuer: OpenIdIssuer<'_>) -> Value {
        let OpenIdIssuer { issuer, jwks_uri } = issuer;
        json!({"issuer": issuer, "jwks_uri": jwks_uri, "response_types_supported": ["id_token"],
               "subject_types_supported": ["public"], "id_token_signing_alg_values_supported": self.algorithms})
    }
}

/// Claims of a token without any check: good for choosing who should check it, never for trust.
pub fn unverified_claims(token: &str) -> Option<Value> {
    decode(token).ok().map(|(_, claims)| claims)
}

pub(crate) fn decode(token: &str) -> Result<(Value, Value), JwtError> {
    if token.len() > TOKEN_BYTES_MAX {
        return Err(JwtError::Malformed);
    }
    let mut parts = token.split('.');
    let (Some(header), Some(claims), Some(_), None) = (parts.next(), parts.next(), parts.next(), parts.next()) else {
        return Err(JwtError::Malformed);
    };
    let json = |part: &str| -> Result<Value, JwtError> {
        let bytes = URL_SAFE_NO_PAD.decode(part).map_err(|_| JwtError::Malformed)?;
        serde_json::from_slice(&bytes).map_err(|_| JwtError::Malformed)
    };
    Ok((json(header)?, json(claims)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> rcgen::KeyPair {
        rcgen::KeyPair::generate().unwrap()
    }

    // Known answers: upstream v1.36.2, staging/src/k8s.io/cluster-bootstrap/token/jws/jws_test.go.
    #[test]
    fn a_detached_signature_is_upstreams() {
        let content = "Hello from the other side. I must have called a thousand times.";
        for (content, secret, tag) in [
            (content, "my voice is my passcode", "VShe2taLd-YTrmWuRkcL_8QTNDHYxQIEBsAYYiIj1_8"),
            ("", "my voice is my passcode", "7Ui1ALizW4jXphVUB7xUqC9vLYLL9RZeOFfVLoB7Tgk"),
            (content, "", "UfkqvDGiIFxrMnFseDj9LYJOLNrvjW8aHhF71mvvAs8"),
        ] {
            assert_eq!(detached(content, "joshua", secret), format!("eyJhbGciOiJIUzI1NiIsImtpZCI6Impvc2h1YSJ9..{tag}"));
        }
    }

    #[test]
    fn a_signed_token_verifies_and_a_changed_one_does_not() {
        let pem = key().serialize_pem();
        let (signer, verifier) = (Signer::from_pem(&pem).unwrap(), Verifier::from_pem(&pem).unwrap());
        let token = signer.sign(&json!({"sub": "a"})).unwrap();
        assert_eq!(verifier.verify(&token).unwrap(), json!({"sub": "a"}));
        let (_, signature) = token.rsplit_once('.').unwrap();
        let header = token.split('.').next().unwrap();
        let forged = format!("{header}.{}.{signature}", URL_SAFE_NO_PAD.encode(r#"{"sub":"b"}"#));
        assert_eq!(verifier.verify(&forged), Err(JwtError::Signature));
        assert_eq!(Verifier::from_pem(&key().serialize_pem()).unwrap().verify(&token), Err(JwtError::Signature));
    }

    #[test]
    fn an_unsigned_token_is_refused() {
        let verifier = Verifier::from_pem(&key().serialize_pem()).unwrap();
        let token = format!("{}.{}.", URL_SAFE_NO_PAD.encode(r#"{"alg":"none"}"#), URL_SAFE_NO_PAD.encode("{}"));
        assert_eq!(verifier.verify(&token), Err(JwtError::Algorithm("none".to_owned())));
        for junk in ["", "a", "a.b", "a.b.c", "a.b.c.d", "...."] {
            assert_eq!(verifier.verify(junk), Err(JwtError::Malformed), "{junk}");
        }
    }

    #[test]
    fn old_keys_behind_the_first_still_verify() {
        let (old, new) = (key(), key());
        let token = Signer::from_pem(&old.serialize_pem()).unwrap().sign(&json!({})).unwrap();
        let both = format!("{}{}", new.serialize_pem(), old.public_key_pem());
        let verifier = Verifier::from_pem(&both).unwrap();
        assert_eq!(verifier.verify(&token), Ok(json!({})));
        assert_eq!(verifier.jwks()["keys"].as_array().unwrap().len(), 2);
        assert_eq!(Signer::from_pem(&both).unwrap().kid(), verifier.jwks()["keys"][0]["kid"]);
    }

    /// Keys as `openssl genrsa`, `openssl ecparam -genkey` and `openssl genpkey` write them, made once for this test.
    const OTHERS: [&str; 3] =
        [include_str!("testdata/rsa.pem"), include_str!("testdata/sec1.pem"), include_str!("testdata/p384.pem")];

    #[test]
    fn keys_of_other_makers_sign_and_verify() {
        for (text, algorithm) in OTHERS.into_iter().zip(["RS256", "ES256", "ES384"]) {
            let (signer, verifier) = (Signer::from_pem(text).unwrap(), Verifier::from_pem(text).unwrap());
            let token = signer.sign(&json!({"sub": "a"})).unwrap();
            assert_eq!(verifier.verify(&token).unwrap()["sub"], "a", "{algorithm}");
            assert!(verifier.knows(signer.kid()));
            let found = verifier.openid_configuration(OpenIdIssuer { issuer: "i", jwks_uri: "j" });
            assert_eq!(found["id_token_signing_alg_values_supported"], json!([algorithm]));
        }
        let mixed = Verifier::from_pem(&OTHERS.concat()).unwrap();
        assert_eq!(mixed.jwks()["keys"].as_array().unwrap().len(), 3);
    }
}
