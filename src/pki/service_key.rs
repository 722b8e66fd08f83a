//! Keys that sign tokens, in every form in which openssl writes them: RSA and elliptic, PKCS #8 and what was before it.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING, EcdsaKeyPair, EcdsaSigningAlgorithm,
    KeyPair as _, RSA_PKCS1_SHA256, RsaKeyPair,
};
use rustls_pki_types::pem::SectionKind;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use x509_parser::prelude::{FromDer as _, X509Certificate};
use x509_parser::public_key::PublicKey;
use x509_parser::x509::SubjectPublicKeyInfo;

use crate::error::PkiError;

/// AlgorithmIdentifier of each kind of key, DER.
const EC_P256: &[u8] =
    &[0x30, 0x13, 6, 7, 0x2a, 0x86, 0x48, 0xce, 0x3d, 2, 1, 6, 8, 0x2a, 0x86, 0x48, 0xce, 0x3d, 3, 1, 7];
const EC_P384: &[u8] = &[0x30, 0x10, 6, 7, 0x2a, 0x86, 0x48, 0xce, 0x3d, 2, 1, 6, 5, 0x2b, 0x81, 4, 0, 0x22];
const RSA: &[u8] = &[0x30, 0x0d, 6, 9, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 1, 5, 0];
const SEQUENCE: u8 = 0x30;
const OCTET_STRING: u8 = 0x04;
const BIT_STRING: u8 = 0x03;

/// A private key.
pub(crate) enum Private {
    P256(EcdsaKeyPair),
    P384(EcdsaKeyPair),
    Rsa(Box<RsaKeyPair>),
}

impl Private {
    /// A PEM section that holds a private key.
    pub(crate) fn read(kind: SectionKind, der: &[u8]) -> Result<Private, PkiError> {
        let elliptic = |pkcs8: &[u8], algorithm: &'static EcdsaSigningAlgorithm| {
            EcdsaKeyPair::from_pkcs8(algorithm, pkcs8, &SystemRandom::new()).ok()
        };
        let any = |of_p256: &[u8], of_p384: &[u8]| {
            let p256 = elliptic(of_p256, &ECDSA_P256_SHA256_FIXED_SIGNING).map(Private::P256);
            p256.or_else(|| elliptic(of_p384, &ECDSA_P384_SHA384_FIXED_SIGNING).map(Private::P384))
        };
        let rsa = |key: Result<RsaKeyPair, ring::error::KeyRejected>| key.map(|key| Private::Rsa(Box::new(key)));
        let refused = |why: String| {
            PkiError::malformed("private key", format!("want RSA of 2048 to 4096 bits, P-256 or P-384 ({why})"))
        };
        match kind {
            SectionKind::PrivateKey => match any(der, der) {
                Some(key) => Ok(key),
                None => rsa(RsaKeyPair::from_pkcs8(der)).map_err(|err| refused(err.to_string())),
            },
            SectionKind::RsaPrivateKey => rsa(RsaKeyPair::from_der(der)).map_err(|err| refused(err.to_string())),
            SectionKind::EcPrivateKey => any(&in_pkcs8(EC_P256, der), &in_pkcs8(EC_P384, der))
                .ok_or_else(|| refused("of another curve, or malformed".to_owned())),
            other => Err(refused(format!("it is a {other:?}"))),
        }
    }

    /// Its public half as a SubjectPublicKeyInfo.
    pub(crate) fn spki(&self) -> Vec<u8> {
        let (algorithm, key) = match self {
            Private::P256(key) => (EC_P256, key.public_key().as_ref()),
            Private::P384(key) => (EC_P384, key.public_key().as_ref()),
            Private::Rsa(key) => (RSA, key.public_key().as_ref()),
        };
        tlv(SEQUENCE, &[algorithm, &tlv(BIT_STRING, &[&[0], key].concat())].concat())
    }

    /// As the header of a token names it.
    pub(crate) fn algorithm(&self) -> &'static str {
        match self {
            Private::P256(_) => "ES256",
            Private::P384(_) => "ES384",
            Private::Rsa(_) => "RS256",
        }
    }

    /// The signature of a token's first two parts.
    pub(crate) fn sign(&self, random: &SystemRandom, body: &[u8]) -> Result<Vec<u8>, PkiError> {
        match self {
            Private::P256(key) | Private::P384(key) => {
                key.sign(random, body).map(|signature| signature.as_ref().to_vec()).map_err(|_| PkiError::Sign)
            }
            Private::Rsa(key) => {
                let mut signature = vec![0; key.public().modulus_len()];
                key.sign(&RSA_PKCS1_SHA256, random, body, &mut signature).map_err(|_| PkiError::Sign)?;
                Ok(signature)
            }
        }
    }
}

/// The SubjectPublicKeyInfo of a PEM section, if it is about a key at all.
pub(crate) fn public(kind: SectionKind, der: &[u8]) -> Result<Option<Vec<u8>>, PkiError> {
    match kind {
        SectionKind::PrivateKey | SectionKind::RsaPrivateKey | SectionKind::EcPrivateKey => {
            Ok(Some(Private::read(kind, der)?.spki()))
        }
        SectionKind::PublicKey => Ok(Some(der.to_vec())),
        SectionKind::Certificate => {
            let (_, cert) = X509Certificate::from_der(der).map_err(|err| PkiError::malformed("certificate", err))?;
            Ok(Some(cert.public_key().raw.to_vec()))
        }
        _ => Ok(None),
    }
}

/// Upstream's id of a key: SHA-256 of its SubjectPublicKeyInfo, base64url.
pub(crate) fn id(spki: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(Sha256::digest(spki))
}

/// A public key as a JSON Web Key.
pub(crate) fn jwk(spki: &[u8]) -> Result<Value, PkiError> {
    let (_, info) = SubjectPublicKeyInfo::from_der(spki).map_err(|err| PkiError::malformed("public key", err))?;
    let key = info.parsed().map_err(|err| PkiError::malformed("public key", err))?;
    let text = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
    // Big numbers have no zero in front on the wire.
    let number = |bytes: &[u8]| text(&bytes[bytes.iter().take_while(|b| **b == 0).count()..]);
    match key {
        PublicKey::RSA(key) => Ok(json!({"use": "sig", "kty": "RSA", "kid": id(spki), "alg": "RS256",
                                         "n": number(key.modulus), "e": number(key.exponent)})),
        PublicKey::EC(point) => {
            let (curve, algorithm) = match point.data() {
                data if data.len() == 65 => ("P-256", "ES256"),
                data if data.len() == 97 => ("P-384", "ES384"),
                _ => return Err(PkiError::malformed("public key", "want an uncompressed point of P-256 or P-384")),
            };
            let (x, y) = point.data()[1..].split_at(point.data().len() / 2);
            Ok(json!({
                "use": "sig", "kty": "EC", "kid": id(spki), "crv": curve, "alg": algorithm, "x": text(x), "y": text(y),
            }))
        }
        _ => Err(PkiError::malformed("public key", "want RSA, P-256 or P-384")),
    }
}

/// An ECPrivateKey in the wrapping of PKCS #8.
fn in_pkcs8(algorithm: &[u8], key: &[u8]) -> Vec<u8> {
    tlv(SEQUENCE, &[&[2, 1, 0], algorithm, &tlv(OCTET_STRING, key)].concat())
}

fn tlv(tag: u8, content: &[u8]) -> Vec<u8> {
    let length = content.len().to_be_bytes();
    let length = &length[length.iter().take_while(|b| **b == 0).count()..];
    let mut out = vec![tag];
    match u8::try_from(content.len()) {
        Ok(short) if short < 0x80 => out.push(short),
        // At most eight bytes of length.
        _ => {
            out.push(0x80 | u8::try_from(length.len()).unwrap_or(8));
            out.extend(length);
        }
    }
    out.extend(content);
    out
}
