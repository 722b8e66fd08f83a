//! Tokens of others: signatures checked with the keys of a JSON Web Key Set.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, RSA_PKCS1_2048_8192_SHA256, RSA_PKCS1_2048_8192_SHA384,
    RSA_PKCS1_2048_8192_SHA512, RSA_PSS_2048_8192_SHA256, RSA_PSS_2048_8192_SHA384, RSA_PSS_2048_8192_SHA512,
    RsaParameters, RsaPublicKeyComponents, UnparsedPublicKey,
};
use serde_json::Value;

use crate::jwt::{self, JwtError};

/// The claims of a token that one of the set's keys signed, with one of the `allowed` algorithms.
/// Issuer, times and audiences are the caller's to judge.
pub fn verify(token: &str, jwks: &Value, allowed: &[String]) -> Result<Value, JwtError> {
    let (header, claims) = jwt::decode(token)?;
    let algorithm = header["alg"].as_str().unwrap_or_default();
    if !allowed.iter().any(|a| a == algorithm) {
        return Err(JwtError::Algorithm(algorithm.to_owned()));
    }
    let (body, signature) = token.rsplit_once('.').ok_or(JwtError::Malformed)?;
    let signature = URL_SAFE_NO_PAD.decode(signature).map_err(|_| JwtError::Malformed)?;
    let kid = header["kid"].as_str().filter(|kid| !kid.is_empty());
    let keys = jwks["keys"].as_array().into_iter().flatten();
    let mut fitting = keys.filter(|key| kid.is_none_or(|kid| key["kid"] == kid) && key["use"] != "enc");
    if fitting.any(|key| signed_by(key, algorithm, body.as_bytes(), &signature)) {
        Ok(claims)
    } else {
        Err(JwtError::Signature)
    }
}

fn signed_by(key: &Value, algorithm: &str, body: &[u8], signature: &[u8]) -> bool {
    let part = |field: &str| {
        key[field].as_str().and_then(|text| URL_SAFE_NO_PAD.decode(text.trim_end_matches('=')).ok()).unwrap_or_default()
    };
    let rsa = |parameters: &'static RsaParameters| {
        key["kty"] == "RSA"
            && RsaPublicKeyComponents { n: part("n"), e: part("e") }.verify(parameters, body, signature).is_ok()
    };
    let point = || [vec![4], part("x"), part("y")].concat();
    match algorithm {
        "RS256" => rsa(&RSA_PKCS1_2048_8192_SHA256),
        "RS384" => rsa(&RSA_PKCS1_2048_8192_SHA384),
        "RS512" => rsa(&RSA_PKCS1_2048_8192_SHA512),
        "PS256" => rsa(&RSA_PSS_2048_8192_SHA256),
        "PS384" => rsa(&RSA_PSS_2048_8192_SHA384),
        "PS512" => rsa(&RSA_PSS_2048_8192_SHA512),
        "ES256" => {
            key["crv"] == "P-256"
                && UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point()).verify(body, signature).is_ok()
        }
        "ES384" => {
            key["crv"] == "P-384"
                && UnparsedPublicKey::new(&ECDSA_P384_SHA384_FIXED, point()).verify(body, signature).is_ok()
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_published_key_verifies_and_another_algorithm_does_not() {
        let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap().serialize_pem();
        let signer = jwt::Signer::from_pem(&key).unwrap();
        let jwks = jwt::Verifier::from_pem(&key).unwrap().jwks();
        let token = signer.sign(&json!({ "sub": "bob" })).unwrap();
        assert_eq!(verify(&token, &jwks, &["ES256".into()]).unwrap()["sub"], "bob");
        assert_eq!(verify(&token, &jwks, &["RS256".into()]), Err(JwtError::Algorithm("ES256".into())));
        let other = jwt::Verifier::from_pem(
            &rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap().serialize_pem(),
        )
        .unwrap();
        assert_eq!(verify(&token, &other.jwks(), &["ES256".into()]), Err(JwtError::Signature));
    }
}
