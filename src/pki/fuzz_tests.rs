//! Seeded fuzzing of what strangers show: tokens, certificates, requests for certificates, signatures. Nothing may
//! panic, and nothing that was damaged may be signed for somebody else.

use std::collections::BTreeSet;

use base::fuzz::{self, mutated, mutated_text, rounds};
use base::secret::Secret;
use rustls_pki_types::CertificateDer;
use serde_json::json;

use crate::authority::{Authority, Start};
use crate::bundle::Bundle;
use crate::csr::{self, Profile};
use crate::leaf::{LeafSpec, Usage};
use crate::seal::{AmongServers, Purpose};
use crate::token::{self, JoinToken};
use crate::{identity, jwk, jwt, node_key};

const ROUNDS: u64 = 600;

fn spec() -> LeafSpec {
    LeafSpec {
        common_name: "system:node:n1".to_owned(),
        organizations: vec!["system:nodes".to_owned()],
        sans: BTreeSet::new(),
        usage: Usage::Client,
    }
}

#[test]
fn tokens_of_any_bytes_are_read_or_refused() {
    let rng = fuzz::rng(1);
    let (ca, _) = Authority::create("ca", jiff::Timestamp::UNIX_EPOCH).unwrap();
    let full = JoinToken::full(ca.bundle().as_bytes(), "server", &Secret::new("a:b".to_owned())).unwrap();
    for round in rounds(ROUNDS) {
        for text in [full.as_str(), "abc123.0123456789abcdef", "hunter2"] {
            let text = String::from_utf8_lossy(&mutated(&rng, text.as_bytes())).into_owned();
            let read = JoinToken::parse(&text);
            let pinned = read.ok().and_then(|token| token.ca_hash);
            assert!(pinned.is_none_or(|hash| hash.len() == 64), "round {round}: {text:?}");
        }
        let bundle = mutated(&rng, ca.bundle().as_bytes());
        if let Ok(vouched) = token::vouched_for(&bundle, &token::ca_hash(ca.bundle().as_bytes()).unwrap()) {
            assert!(
                vouched.is_empty() || vouched == ca.bundle(),
                "round {round}: another authority passes for the pinned one"
            );
        }
        let _refused = Bundle::from_pem(&String::from_utf8_lossy(&bundle));
    }
}

#[test]
fn damaged_certificates_are_nobodys() {
    let (rng, now) = (fuzz::rng(2), "2026-11-21T00:00:00Z".parse().unwrap());
    let (ca, _) = Authority::create("ca", now).unwrap();
    let issued = ca.issue(&spec(), now).unwrap();
    let der = crate::pem::certificates(issued.cert_pem.as_bytes()).unwrap().remove(0);
    let trust = Bundle::from_pem(ca.bundle()).unwrap();
    for round in rounds(ROUNDS) {
        let damaged = CertificateDer::from(mutated(&rng, &der));
        let _read = identity::parse(&damaged);
        let passes = trust.verify_client(std::slice::from_ref(&damaged), now).is_ok();
        assert!(!passes || damaged == der, "round {round}: a damaged certificate passes");
    }
}

#[test]
fn damaged_requests_are_refused_or_say_what_they_said() {
    let (rng, now) = (fuzz::rng(3), "2026-11-21T00:00:00Z".parse().unwrap());
    let (ca, _) = Authority::create("ca", now).unwrap();
    let (_, der) = csr::create(&spec()).unwrap();
    let whole = csr::parse(&der).unwrap();
    for round in rounds(ROUNDS) {
        let damaged = mutated(&rng, &der);
        if let Ok(read) = csr::parse(&damaged) {
            assert_eq!(
                (&read.common_name, &read.organizations),
                (&whole.common_name, &whole.organizations),
                "round {round}"
            );
        }
        let _refused = ca.sign_csr(&damaged, Profile::KubeletClient, None, Start::Epoch(now));
    }
}

#[test]
fn signatures_and_sealed_texts_do_not_survive_damage() {
    let rng = fuzz::rng(4);
    let dir = tempfile::tempdir().unwrap();
    let key = node_key::NodeKey::load_or_create(&dir.path().join("key"), "m").unwrap();
    let (message, public) = (b"a join request", key.public());
    let signature = key.sign(message).unwrap();
    let seal = AmongServers::new(Purpose { name: "tokens", context: "a purpose" }, "key");
    let sealed = seal.seal(b"value", &rng).unwrap();
    for round in rounds(ROUNDS) {
        let other = mutated(&rng, message);
        assert!(other == message || !node_key::verify(&public, &other, &signature), "round {round}");
        let text = |text: &str| String::from_utf8_lossy(&mutated(&rng, text.as_bytes())).into_owned();
        let _refused = node_key::verify(&text(&public), message, &text(&signature));
        let damaged = mutated(&rng, &sealed);
        assert!(damaged == sealed || seal.open(&damaged).is_none(), "round {round}");
    }
}

#[test]
fn web_tokens_and_key_sets_of_any_bytes_are_nobodys() {
    let rng = fuzz::rng(5);
    let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap().serialize_pem();
    let (signer, verifier) = (jwt::Signer::from_pem(&key).unwrap(), jwt::Verifier::from_pem(&key).unwrap());
    let token = signer.sign(&json!({"sub": "system:serviceaccount:n:a", "aud": ["a"], "exp": 1, "nbf": 0})).unwrap();
    let keys = verifier.jwks().to_string();
    let allowed = ["ES256", "RS256", "PS512", "none"].map(str::to_owned);
    for round in rounds(ROUNDS) {
        let other = mutated_text(&rng, &token, &[".", "e30", "eyJhbGciOiJub25lIn0", "=", "_"]);
        // The last character of base64 may have bits that mean nothing: the same signature, spelt otherwise.
        let (left, right) = (other.as_bytes(), token.as_bytes());
        let same = left.len() == right.len() && left[..left.len() - 1] == right[..right.len() - 1];
        assert!(same || verifier.verify(&other).is_err(), "round {round}: {other}");
        let _claims = jwt::unverified_claims(&other);
        if let Ok(set) =
            serde_json::from_str(&mutated_text(&rng, &keys, &["\"RSA\"", "\"P-384\"", "AQAB", "\"\"", "null", "[]"]))
        {
            let _any = jwk::verify(&token, &set, &allowed);
        }
    }
}
