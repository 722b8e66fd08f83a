//! Reading a certificate: whose it is, which names it covers, when it ends.

use std::collections::BTreeSet;
use std::net::IpAddr;

use base::hex;
use jiff::Timestamp;
use rustls_pki_types::CertificateDer;
use sha2::{Digest as _, Sha256};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::x509::X509Name;

use crate::error::PkiError;

/// OID of the subject attribute that carries a user's uid (Kubernetes' own arc).
const UID_OID: &str = "1.3.6.1.4.1.57683.2";

/// The group of certificates that the API server alone lets in, and only while they are not revoked: it has their
/// records.
pub const REGISTERED: &str = "kedge:registered";

/// The holder of a certificate, as it says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// CN: the user's name.
    pub common_name: String,
    /// O, every one, in order: the user's groups.
    pub organizations: Vec<String>,
    /// The uid attribute, if there is one.
    pub uid: Option<String>,
    /// DNS names and addresses.
    pub sans: BTreeSet<String>,
    /// The issuer's subject, DER.
    pub issuer: Vec<u8>,
    /// The subject, DER.
    pub subject: Vec<u8>,
    /// SHA-256 of the whole certificate, lower-case hex: upstream's credential id after `X509SHA256=`.
    pub sha256_hex: String,
    /// Its usages: `ServerAuth`, `ClientAuth`, `CertSign`.
    pub usages: Vec<&'static str>,
    /// Whether it is an authority's.
    pub is_ca: bool,
    /// Start of its life.
    pub not_before: Timestamp,
    /// End of its life.
    pub not_after: Timestamp,
}

impl Identity {
    /// Whether one of its groups is `group`.
    pub fn is_in(&self, group: &str) -> bool {
        self.organizations.iter().any(|organization| organization == group)
    }
}

/// Reads a certificate.
pub fn parse(der: &CertificateDer<'_>) -> Result<Identity, PkiError> {
    let (_, cert) = x509_parser::parse_x509_certificate(der).map_err(|err| PkiError::malformed("certificate", err))?;
    // A group that cannot be read is no reason to take its holder for somebody without it.
    let said = |oid: &str| {
        cert.subject().iter_attributes().filter(|attribute| attribute.attr_type().to_id_string() == oid).count()
    };
    if ["2.5.4.3", "2.5.4.10", UID_OID].into_iter().any(|oid| said(oid) != attributes(cert.subject(), oid).len()) {
        return Err(PkiError::malformed("certificate", "a name in its subject is text of a type that is not known"));
    }
    let uids: Vec<String> = attributes(cert.subject(), UID_OID);
    if uids.len() > 1 {
        return Err(PkiError::malformed("certificate", "more than one uid in its subject"));
    }
    Ok(Identity {
        common_name: attributes(cert.subject(), "2.5.4.3").into_iter().next_back().unwrap_or_default(),
        organizations: attributes(cert.subject(), "2.5.4.10"),
        uid: uids.into_iter().next(),
        sans: subject_alt_names(&cert),
        issuer: cert.issuer().as_raw().to_vec(),
        subject: cert.subject().as_raw().to_vec(),
        sha256_hex: hex::encode(&Sha256::digest(der)),
        usages: usages(&cert),
        is_ca: cert.is_ca(),
        not_before: timestamp(cert.validity().not_before.timestamp()),
        not_after: timestamp(cert.validity().not_after.timestamp()),
    })
}

/// Values of every attribute of the type `oid` in a name, in order.
pub(crate) fn attributes(name: &X509Name<'_>, oid: &str) -> Vec<String> {
    name.iter_attributes()
        .filter(|attribute| attribute.attr_type().to_id_string() == oid)
        .filter_map(|attribute| attribute.as_str().ok().map(str::to_owned))
        .collect()
}

fn usages(cert: &X509Certificate<'_>) -> Vec<&'static str> {
    let extended = cert.extended_key_usage().ok().flatten();
    let has = |of: fn(&x509_parser::extensions::ExtendedKeyUsage<'_>) -> bool| {
        extended.as_ref().is_some_and(|usage| of(usage.value))
    };
    let all = [
        ("ServerAuth", has(|usage| usage.server_auth)),
        ("ClientAuth", has(|usage| usage.client_auth)),
        ("CertSign", cert.is_ca()),
    ];
    all.into_iter().filter(|(_, has)| *has).map(|(name, _)| name).collect()
}

fn timestamp(secs: i64) -> Timestamp {
    Timestamp::from_second(secs).unwrap_or(if secs < 0 { Timestamp::MIN } else { Timestamp::MAX })
}

fn subject_alt_names(cert: &X509Certificate<'_>) -> BTreeSet<String> {
    let Ok(Some(names)) = cert.subject_alternative_name() else { return BTreeSet::new() };
    names.value.general_names.iter().filter_map(general_name).collect()
}

/// A DNS name or an address as text; other kinds of names are none.
pub(crate) fn general_name(name: &GeneralName<'_>) -> Option<String> {
    match name {
        GeneralName::DNSName(name) => Some((*name).to_owned()),
        GeneralName::IPAddress(bytes) => match bytes.len() {
            4 => <[u8; 4]>::try_from(*bytes).ok().map(|b| IpAddr::from(b).to_string()),
            16 => <[u8; 16]>::try_from(*bytes).ok().map(|b| IpAddr::from(b).to_string()),
            _ => None,
        },
        _ => None,
    }
}
