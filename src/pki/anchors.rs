//! A bundle of trust anchors that somebody wrote: what is wrong with it, entry by entry.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use x509_parser::prelude::{FromDer as _, X509Certificate};

/// One block of PEM text.
struct Block {
    label: String,
    has_headers: bool,
    der: Vec<u8>,
}

/// Everything wrong with `text` as a list of authorities' certificates; text outside of PEM blocks is skipped.
pub fn faults(text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    let mut seen: BTreeMap<Vec<u8>, Vec<usize>> = BTreeMap::new();
    for (idx, block) in blocks(text).into_iter().enumerate() {
        match fault(&block) {
            Some(why) => faults.push(format!("entry {idx} {why}")),
            None => seen.entry(block.der).or_default().push(idx),
        }
    }
    if !faults.is_empty() {
        return faults;
    }
    if seen.is_empty() {
        faults.push("at least one trust anchor must be provided".to_owned());
    }
    for places in seen.into_values().filter(|places| places.len() > 1) {
        let places: Vec<String> = places.iter().map(usize::to_string).collect();
        faults.push(format!("duplicate trust anchor (indices [{}])", places.join(" ")));
    }
    faults
}

fn fault(block: &Block) -> Option<String> {
    if block.label != "CERTIFICATE" {
        return Some(format!("has bad block type: {}", block.label));
    }
    if block.has_headers {
        return Some("has PEM block headers".to_owned());
    }
    let cert = X509Certificate::from_der(&block.der).ok().filter(|(rest, _)| rest.is_empty());
    let Some((_, cert)) = cert else { return Some("does not parse as X.509".to_owned()) };
    (!cert.is_ca()).then(|| "does not have the CA bit set".to_owned())
}

/// The well-formed blocks; one that never ends or holds no base64 is passed over.
fn blocks(text: &str) -> Vec<Block> {
    let mut out = Vec::new();
    let mut lines = text.lines().map(str::trim_end);
    while let Some(line) = lines.next() {
        let Some(label) = line.strip_prefix("-----BEGIN ").and_then(|rest| rest.strip_suffix("-----")) else {
            continue;
        };
        let end = format!("-----END {label}-----");
        let mut rest = lines.clone();
        let inside: Vec<&str> = rest.by_ref().take_while(|line| *line != end).collect();
        if !lines.clone().any(|line| line == end) {
            continue;
        }
        let body: String = inside.iter().filter(|line| !line.contains(':')).copied().collect();
        if let Ok(der) = STANDARD.decode(body) {
            out.push(Block { label: label.to_owned(), has_headers: inside.iter().any(|line| line.contains(':')), der });
        }
        lines = rest;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_entry_is_an_authoritys_certificate_and_no_other_is_like_it() {
        let mut params = rcgen::CertificateParams::new(vec!["a".to_owned()]).unwrap();
        let key = rcgen::KeyPair::generate().unwrap();
        let leaf = params.self_signed(&key).unwrap().pem();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let ca = params.self_signed(&key).unwrap().pem();
        assert!(faults(&ca).is_empty());
        assert_eq!(faults(&leaf), ["entry 0 does not have the CA bit set"]);
        assert_eq!(faults(&format!("{ca}\nwords\n{ca}")), ["duplicate trust anchor (indices [0 1])"]);
        assert_eq!(faults("words"), ["at least one trust anchor must be provided"]);
        assert_eq!(
            faults("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"),
            ["entry 0 does not parse as X.509"]
        );
        assert_eq!(faults("-----BEGIN KEY-----\nAAAA\n-----END KEY-----\n"), ["entry 0 has bad block type: KEY"]);
        assert_eq!(faults(&ca.replacen("-----\n", "-----\nA: b\n", 1)), ["entry 0 has PEM block headers"]);
    }
}
