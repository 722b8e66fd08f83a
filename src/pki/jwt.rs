//! Signed tokens of service accounts: ES256 JSON Web Tokens and the documents with which others verify them.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED, ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _, UnparsedPublicKey};
use rustls_pki_types::pem::SectionKind;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::error::PkiError;
use crate::pem;

/// DER in front of an uncompressed P-256 point: together a SubjectPublicKeyInfo.
const SPKI_PREFIX: [u8; 26] = [
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01,
    0x07, 0x03, 0x42, 0x00,
];
const POINT_BYTES: usize = 65;

/// Bytes of a token that is looked at at all; upstream's are around 1 KB.
pub const TOKEN_BYTES_MAX: usize = 64 * 1024;

/// Why a token was not accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JwtError {
    /// Not three base64url parts with JSON in them.
    #[error("token is not a signed JSON Web Token")]
    Malformed,
    /// Signed with another algorithm than ES256.
    #[error("unexpected signature algorithm {0:?}")]
    Algorithm(String),
    /// Signed by nobody we know.
    #[error("no key verifies the token's signature")]
    Signature,
}

/// Signs tokens with the first key of a file.
pub struct Signer {
    key: EcdsaKeyPair,
    kid: String,
    random: SystemRandom,
}

impl Signer {
    /// `text` holds a P-256 key in PKCS #8 form; of several the first signs.
    pub fn from_pem(text: &str) -> Result<Signer, PkiError> {
        let key = key_pair(pem::pkcs8_key(text.as_bytes())?.secret_pkcs8_der())?;
        let kid = key_id(key.public_key().as_ref());
        Ok(Signer { key, kid, random: SystemRandom::new() })
    }

    /// Id of the signing key: SHA-256 of its public key (SubjectPublicKeyInfo), base64url, as upstream derives it.
    pub fn kid(&self) -> &str {
        &self.kid
    }

    /// The token with these claims.
    pub fn sign(&self, claims: &Value) -> Result<String, PkiError> {
        let header = json!({"alg": "ES256", "kid": self.kid}).to_string();
        let body = format!("{}.{}", URL_SAFE_NO_PAD.encode(header), URL_SAFE_NO_PAD.encode(claims.to_string()));
        let signature = self.key.sign(&self.random, body.as_bytes()).map_err(|_| PkiError::Sign)?;
        Ok(format!("{body}.{}", URL_SAFE_NO_PAD.encode(signature)))
    }
}

/// Verifies tokens with every key of a file.
#[derive(Clone, Debug)]
pub struct Verifier {
    keys: Vec<PublicKey>,
}

#[derive(Clone, Debug)]
struct PublicKey {
    kid: String,
    point: Vec<u8>,
}

impl Verifier {
    /// `text` holds private or public P-256 keys; all of them verify, so that keys can be rotated.
    pub fn from_pem(text: &str) -> Result<Verifier, PkiError> {
        let mut keys = Vec::new();
        for (kind, der) in pem::sections(text.as_bytes())? {
            let point = match kind {
                SectionKind::PrivateKey => key_pair(&der)?.public_key().as_ref().to_vec(),
                SectionKind::PublicKey => match der.strip_prefix(&SPKI_PREFIX) {
                    Some(point) if point.len() == POINT_BYTES => point.to_vec(),
                    _ => return Err(PkiError::malformed("public key", "it is not a P-256 key")),
                },
                _ => continue,
            };
            keys.push(PublicKey { kid: key_id(&point), point });
        }
        if keys.is_empty() { Err(PkiError::malformed("key", "no key in it")) } else { Ok(Verifier { keys }) }
    }

    /// The claims of a token whose signature is good. Times and audiences are the caller's to judge.
    pub fn verify(&self, token: &str) -> Result<Value, JwtError> {
        let (header, claims) = decode(token)?;
        match header["alg"].as_str() {
            Some("ES256") => {}
            other => return Err(JwtError::Algorithm(other.unwrap_or_default().to_owned())),
        }
        let (body, signature) = token.rsplit_once('.').ok_or(JwtError::Malformed)?;
        let signature = URL_SAFE_NO_PAD.decode(signature).map_err(|_| JwtError::Malformed)?;
        let kid = header["kid"].as_str().filter(|kid| !kid.is_empty());
        let good = self
            .keys
            .iter()
            .filter(|key| kid.is_none_or(|kid| kid == key.kid))
            .any(|key| UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, &key.point).verify(body.as_bytes(), &signature).is_ok());
        if good { Ok(claims) } else { Err(JwtError::Signature) }
    }

    /// The JSON Web Key Set that `/openid/v1/jwks` serves.
    pub fn jwks(&self) -> Value {
        let keys = self.keys.iter().map(|key| {
            let (x, y) = key.point[1..].split_at(32);
            json!({"use": "sig", "kty": "EC", "kid": key.kid, "crv": "P-256", "alg": "ES256",
                   "x": URL_SAFE_NO_PAD.encode(x), "y": URL_SAFE_NO_PAD.encode(y)})
        });
        json!({ "keys": keys.collect::<Vec<_>>() })
    }
}

/// The document that `/.well-known/openid-configuration` serves.
pub fn openid_configuration(issuer: &str, jwks_uri: &str) -> Value {
    json!({"issuer": issuer, "jwks_uri": jwks_uri, "response_types_supported": ["id_token"],
           "subject_types_supported": ["public"], "id_token_signing_alg_values_supported": ["ES256"]})
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

fn key_pair(pkcs8: &[u8]) -> Result<EcdsaKeyPair, PkiError> {
    EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, pkcs8, &SystemRandom::new())
        .map_err(|err| PkiError::malformed("private key", format!("it is not a P-256 key ({err})")))
}

fn key_id(point: &[u8]) -> String {
    let digest = Sha256::new().chain_update(SPKI_PREFIX).chain_update(point).finalize();
    URL_SAFE_NO_PAD.encode(digest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> rcgen::KeyPair {
        rcgen::KeyPair::generate().unwrap()
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
}
