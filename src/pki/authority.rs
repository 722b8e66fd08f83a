//! A certificate authority: makes its own certificate once, then signs leaves.

use std::path::Path;
use std::time::Duration;

use jiff::Timestamp;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use rustls_pki_types::CertificateDer;

use crate::error::PkiError;
use crate::leaf::{LeafSpec, Usage};
use crate::{identity, pem};

/// How long an authority's own certificate lasts: ten years.
pub const CA_LIFE: Duration = Duration::from_secs(3650 * DAY_SECS);
/// How long a leaf lasts: one year.
pub const LEAF_LIFE: Duration = Duration::from_secs(365 * DAY_SECS);
const DAY_SECS: u64 = 24 * 60 * 60;

// Machines without a battery clock boot in 1970 and jump forward when they find a time server. Certificates made before
// the jump must outlive it, so their life is counted from here at the earliest. 2026-01-01T00:00:00Z.
const EARLIEST_SANE_SECS: i64 = 1_767_225_600;

/// A key pair that signs certificates, with its own certificate (and those above it, for an intermediate).
pub struct Authority {
    bundle: String,
    chain: Vec<CertificateDer<'static>>,
    issuer: Issuer<'static, KeyPair>,
    /// How long what it signs lasts.
    leaf_life: Duration,
}

/// A freshly signed certificate with its key, both PEM; the certificate is followed by the authority's own.
pub struct Issued {
    /// Leaf first, then the authority's bundle.
    pub cert_pem: String,
    /// PKCS #8.
    pub key_pem: String,
}

/// Common name of an authority that is made at `now`.
pub(crate) fn common_name(name: &str, now: Timestamp) -> String {
    format!("{name}@{}", now.as_second())
}

impl Authority {
    /// Makes a new self-signed P-256 authority with the common name `name@<unix seconds>`; gives back its key as PEM
    /// too.
    pub fn create(name: &str, now: Timestamp) -> Result<(Authority, String), PkiError> {
        let subject = common_name(name, now);
        let refused = |source| PkiError::Issue { subject: subject.clone(), source };
        let key = KeyPair::generate().map_err(refused)?;
        let mut params = params_for(&subject, &[], Start::Epoch(now), CA_LIFE);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages =
            vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::KeyEncipherment];
        let cert = params.self_signed(&key).map_err(refused)?;
        let key_pem = key.serialize_pem();
        Ok((Authority::from_pem(cert.pem().as_bytes(), key_pem.as_bytes())?, key_pem))
    }

    /// Takes an authority from its certificate (bundle) and PKCS #8 key. The first certificate is the one that signs.
    pub fn from_pem(cert: &[u8], key: &[u8]) -> Result<Authority, PkiError> {
        let chain = pem::certificates(cert)?;
        let pkcs8 = pem::pkcs8_key(key)?;
        let key = KeyPair::try_from(&pkcs8).map_err(|err| PkiError::malformed("private key", err))?;
        let (_, parsed) =
            x509_parser::parse_x509_certificate(&chain[0]).map_err(|err| PkiError::malformed("certificate", err))?;
        if !parsed.is_ca() {
            return Err(PkiError::malformed(
                "certificate",
                "it is not an authority's (basicConstraints CA is not set)",
            ));
        }
        if parsed.public_key().subject_public_key.data.as_ref() != key.public_key_raw() {
            return Err(PkiError::malformed("private key", "it does not belong to the certificate beside it"));
        }
        let issuer = Issuer::from_ca_cert_der(&chain[0], key).map_err(|err| PkiError::malformed("certificate", err))?;
        let bundle = chain.iter().map(|der| pem::encode("CERTIFICATE", der)).collect();
        Ok(Authority { bundle, chain, issuer, leaf_life: LEAF_LIFE })
    }

    /// Reads an authority from its two files.
    pub fn load(cert: &Path, key: &Path) -> Result<Authority, PkiError> {
        let read = |path: &Path| std::fs::read(path).map_err(base::files::FileError::at("cannot read", path));
        let (cert_pem, key_pem) = (read(cert)?, read(key)?);
        Authority::from_pem(&cert_pem, &key_pem).map_err(|err| match &err {
            PkiError::Malformed { what: "private key", .. } => err.in_file(key),
            _ => err.in_file(cert),
        })
    }

    /// The same authority, whose leaves last `life` and no longer than [`LEAF_LIFE`].
    pub fn with_leaf_life(self, life: Duration) -> Authority {
        Authority { leaf_life: life.min(LEAF_LIFE), ..self }
    }

    /// How long its leaves last.
    pub fn leaf_life(&self) -> Duration {
        self.leaf_life
    }

    /// The certificate bundle that others must trust, PEM.
    pub fn bundle(&self) -> &str {
        &self.bundle
    }

    /// The certificates of the bundle, the signing one first.
    pub fn chain(&self) -> &[CertificateDer<'static>] {
        &self.chain
    }

    /// Those of the bundle that are no roots, PEM: what goes with a leaf, so that who trusts the root alone can follow
    /// it.
    pub fn intermediates(&self) -> String {
        let is_root = |der: &CertificateDer<'_>| {
            x509_parser::parse_x509_certificate(der).is_ok_and(|(_, cert)| cert.subject() == cert.issuer())
        };
        self.chain.iter().filter(|der| !is_root(der)).map(|der| pem::encode("CERTIFICATE", der)).collect()
    }

    /// When the signing certificate ends.
    pub fn not_after(&self) -> Result<Timestamp, PkiError> {
        Ok(identity::parse(&self.chain[0])?.not_after)
    }

    /// Signs a new leaf with a new P-256 key.
    pub fn issue(&self, spec: &LeafSpec, now: Timestamp) -> Result<Issued, PkiError> {
        self.issue_for(spec, now, self.leaf_life)
    }

    /// The same for a life of its own.
    pub fn issue_for(&self, spec: &LeafSpec, now: Timestamp, life: Duration) -> Result<Issued, PkiError> {
        let refused = |source| PkiError::Issue { subject: spec.common_name.clone(), source };
        let key = KeyPair::generate().map_err(refused)?;
        let mut params = params_for(&spec.common_name, &spec.organizations, Start::Epoch(now), life);
        params.subject_alt_names = spec.san_types().map_err(refused)?;
        self.finish(&mut params, spec.usage);
        let cert = params.signed_by(&key, &self.issuer).map_err(refused)?;
        Ok(Issued { cert_pem: format!("{}{}", cert.pem(), self.bundle), key_pem: key.serialize_pem() })
    }

    pub(crate) fn issuer(&self) -> &Issuer<'static, KeyPair> {
        &self.issuer
    }

    pub(crate) fn finish(&self, params: &mut CertificateParams, usage: Usage) {
        params.is_ca = IsCa::NoCa;
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
        params.extended_key_usages = match usage {
            Usage::Client => vec![ExtendedKeyUsagePurpose::ClientAuth],
            Usage::Server => vec![ExtendedKeyUsagePurpose::ServerAuth],
            Usage::Both => vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth],
        };
    }
}

/// When a certificate's life begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// In 1970; the end is counted from this time. Kedge's own: a machine that wakes up with its clock at zero must
    /// still be able to talk to itself.
    Epoch(Timestamp),
    /// Five minutes before this time, as upstream's signers do for machines whose clocks differ.
    Backdated(Timestamp),
}

/// How far upstream's signers date back, and the life up to which they take nothing off its end for that.
const BACKDATE: Duration = Duration::from_secs(300);
const SHORT_LIFE: Duration = Duration::from_secs(8 * 60 * 60);

impl Start {
    /// Seconds since 1970 of begin and end.
    fn span(self, life: Duration) -> (Duration, Duration) {
        let secs = |at: Timestamp| Duration::from_secs(u64::try_from(at.as_second()).unwrap_or(0));
        match self {
            Start::Backdated(now) if now.as_second() >= EARLIEST_SANE_SECS => {
                let begin = secs(now).saturating_sub(BACKDATE);
                (begin, if life < SHORT_LIFE { secs(now) + life } else { begin + life })
            }
            Start::Epoch(now) | Start::Backdated(now) => {
                let from = u64::try_from(now.as_second().max(EARLIEST_SANE_SECS)).unwrap_or(0);
                (Duration::ZERO, Duration::from_secs(from) + life)
            }
        }
    }
}

/// Subject and life of a certificate.
pub(crate) fn params_for(
    common_name: &str,
    organizations: &[String],
    start: Start,
    life: Duration,
) -> CertificateParams {
    let mut params = CertificateParams::default();
    let mut name = DistinguishedName::new();
    // One attribute of a type is all that rcgen can write; every name of ours has at most one organization.
    if let Some(organization) = organizations.first() {
        name.push(DnType::OrganizationName, organization.clone());
    }
    name.push(DnType::CommonName, common_name);
    params.distinguished_name = name;
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    let (begin, end) = start.span(life);
    params.not_before = epoch + begin;
    params.not_after = epoch + end;
    params
}
