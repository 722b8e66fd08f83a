//! Certificate signing requests: reading them, judging them by the signer's profile, signing them.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;
use rcgen::{KeyUsagePurpose, SubjectPublicKeyInfo};
use rustls_pki_types::CertificateSigningRequestDer;
use rustls_pki_types::pem::PemObject as _;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::extensions::ParsedExtension;
use x509_parser::prelude::FromDer as _;

use crate::authority::{Authority, LEAF_LIFE, Start, params_for};
use crate::error::PkiError;
use crate::leaf::{Usage, san_types};
use crate::{identity, pem, resign};

/// Upstream's built-in signers (`certificates.k8s.io`), by what they demand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// `kubernetes.io/kube-apiserver-client`: any client but not of `system:masters`.
    Client,
    /// `kubernetes.io/kube-apiserver-client-kubelet`: a node's own client certificate.
    KubeletClient,
    /// `kubernetes.io/kubelet-serving`: a node's serving certificate.
    KubeletServing,
}

/// Contents of a certificate request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// CN.
    pub common_name: String,
    /// O, every one.
    pub organizations: Vec<String>,
    /// DNS names and addresses.
    pub sans: BTreeSet<String>,
    /// Names of other kinds (mail, URI) were asked for.
    pub other_sans: bool,
    /// The whole subject, DER: it is signed as it was asked for, with attributes that nobody here knows.
    subject: Vec<u8>,
    /// The public key with its algorithm, DER.
    key: Vec<u8>,
}

/// The DER of a request in PEM form.
pub fn der_from_pem(text: &[u8]) -> Result<Vec<u8>, PkiError> {
    let der = CertificateSigningRequestDer::from_pem_slice(text).map_err(|_| {
        PkiError::malformed("certificate signing request", "PEM block type must be CERTIFICATE REQUEST")
    })?;
    Ok(der.to_vec())
}

/// Beginnings of names that this program gives to its own parts: whoever has such a name is taken for one of them.
const OWN_NAMES: [&str; 2] = ["system:kedge-", "kedge-"];

/// Reads a request and checks that it is signed by its own key.
///
/// Errors: also for a subject with text that nobody here can read (BMPString, T61String and the like): it is signed
/// byte for byte, and others that trust the authority would read a group in it that nobody here has judged.
pub fn parse(der: &[u8]) -> Result<Request, PkiError> {
    let refused = |why: &str| PkiError::malformed("certificate signing request", why);
    let (_, csr) = X509CertificationRequest::from_der(der).map_err(|err| refused(&err.to_string()))?;
    let subject = &csr.certification_request_info.subject;
    csr.verify_signature().map_err(|_| refused("it is not signed by its own key"))?;
    if subject.iter().any(|rdn| rdn.iter().next().is_none()) {
        return Err(refused("a part of its subject is empty"));
    }
    if subject.iter_attributes().any(|attribute| attribute.as_str().is_err()) {
        return Err(refused("its subject has text that is neither UTF8String nor PrintableString nor IA5String"));
    }
    let mut request = Request {
        common_name: identity::attributes(subject, "2.5.4.3").into_iter().next_back().unwrap_or_default(),
        organizations: identity::attributes(subject, "2.5.4.10"),
        sans: BTreeSet::new(),
        other_sans: false,
        subject: subject.as_raw().to_vec(),
        key: csr.certification_request_info.subject_pki.raw.to_vec(),
    };
    for extension in csr.requested_extensions().into_iter().flatten() {
        if let ParsedExtension::SubjectAlternativeName(names) = extension {
            for name in &names.general_names {
                match identity::general_name(name) {
                    Some(name) => drop(request.sans.insert(name)),
                    None => request.other_sans = true,
                }
            }
        }
    }
    Ok(request)
}

/// Whether `profile` may sign `request`. The texts are upstream's.
pub fn check(request: &Request, profile: Profile) -> Result<(), PkiError> {
    let refused = |why: &str| Err(PkiError::Refused(why.to_owned()));
    let node_group = request.organizations.len() == 1 && request.organizations[0] == "system:nodes";
    let node_name = request.common_name.strip_prefix("system:node:").is_some_and(|name| !name.is_empty());
    match profile {
        Profile::Client if request.organizations.iter().any(|o| o == "system:masters") => {
            refused("use of kubernetes.io/kube-apiserver-client signer with system:masters group is not allowed")
        }
        Profile::Client if OWN_NAMES.iter().any(|own| request.common_name.starts_with(own)) => refused(
            "use of kubernetes.io/kube-apiserver-client signer with a common name of the system's own parts is not \
             allowed",
        ),
        Profile::Client => Ok(()),
        _ if !node_group => refused("subject organization is not system:nodes"),
        _ if !node_name => refused("subject common name does not begin with system:node:"),
        Profile::KubeletClient if !request.sans.is_empty() || request.other_sans => {
            refused("DNS, IP, email and URI subjectAltNames are not allowed")
        }
        Profile::KubeletServing if request.other_sans => refused("email and URI subjectAltNames are not allowed"),
        Profile::KubeletServing if request.sans.is_empty() => {
            refused("at least one of DNS Names or IP Addresses subjectAltNames is required")
        }
        Profile::KubeletClient | Profile::KubeletServing => Ok(()),
    }
}

impl Authority {
    /// Signs a request that fits `profile`; `life` is cut to one year. Gives back PEM: the leaf, then this authority's
    /// intermediates.
    ///
    /// Only the key, the subject and the names are taken from the request; uses and life are ours.
    pub fn sign_csr(
        &self,
        der: &[u8],
        profile: Profile,
        life: Option<Duration>,
        start: Start,
    ) -> Result<String, PkiError> {
        self.sign_csr_for(der, profile, &["digital signature", "key encipherment"], life, start)
    }

    /// The same for a key that is used for `usages` only, as a CertificateSigningRequest names them; those of the whole
    /// certificate (`client auth`, `server auth`) are the profile's.
    pub fn sign_csr_for(
        &self,
        der: &[u8],
        profile: Profile,
        usages: &[&str],
        life: Option<Duration>,
        start: Start,
    ) -> Result<String, PkiError> {
        let request = parse(der)?;
        check(&request, profile)?;
        let refused = |source| PkiError::Issue { subject: request.common_name.clone(), source };
        let key = SubjectPublicKeyInfo::from_der(&request.key).map_err(refused)?;
        let life = life.map_or(self.leaf_life(), |life| life.clamp(Duration::from_secs(600), LEAF_LIFE));
        let mut params = params_for(&request.common_name, &[], start, life);
        params.subject_alt_names = san_types(&request.sans).map_err(refused)?;
        self.finish(&mut params, if profile == Profile::KubeletServing { Usage::Server } else { Usage::Client });
        let wanted = |names: &[&str]| usages.iter().any(|usage| names.contains(usage));
        params.key_usages.clear();
        params
            .key_usages
            .extend(wanted(&["digital signature", "signing"]).then_some(KeyUsagePurpose::DigitalSignature));
        params.key_usages.extend(wanted(&["key encipherment"]).then_some(KeyUsagePurpose::KeyEncipherment));
        let cert = params.signed_by(&key, self.issuer()).map_err(refused)?;
        let cert = resign::with_subject(cert.der(), &request.subject, self.issuer().key())
            .ok_or_else(|| PkiError::malformed("certificate", "it cannot be given its subject"))?;
        // As upstream, without the root: who trusts it has it.
        Ok(format!("{}{}", pem::encode("CERTIFICATE", &cert), self.intermediates()))
    }
}

/// A new P-256 key (PEM) and the request (DER) for a certificate of this subject and these names.
pub fn create(spec: &crate::leaf::LeafSpec) -> Result<(String, Vec<u8>), PkiError> {
    let refused = |source| PkiError::Issue { subject: spec.common_name.clone(), source };
    let key = rcgen::KeyPair::generate().map_err(refused)?;
    let mut params = params_for(&spec.common_name, &spec.organizations, Start::Epoch(Timestamp::UNIX_EPOCH), LEAF_LIFE);
    params.subject_alt_names = spec.san_types().map_err(refused)?;
    let request = params.serialize_request(&key).map_err(refused)?.der().to_vec();
    // rcgen writes one organization alone.
    let request = match spec.organizations.len() {
        0 | 1 => request,
        _ => resign::request_with_subject(&request, &resign::subject_of(spec), &key)
            .ok_or_else(|| PkiError::malformed("certificate signing request", "it cannot be given its subject"))?,
    };
    Ok((key.serialize_pem(), request))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bundle::Bundle;
    use crate::certstore::Pair;
    use crate::leaf::{LeafSpec, kubelet_serving_spec};

    fn spec(common_name: &str, organization: &str) -> LeafSpec {
        let organizations = vec![organization.to_owned()];
        LeafSpec { common_name: common_name.to_owned(), organizations, sans: BTreeSet::new(), usage: Usage::Client }
    }

    #[test]
    fn a_node_gets_a_client_certificate_that_the_authority_vouches_for() {
        let now = "2026-11-21T00:00:00Z".parse().unwrap();
        let (ca, _) = Authority::create("ca", now).unwrap();
        let (key, der) = create(&spec("system:node:n1", "system:nodes")).unwrap();
        let cert = ca.sign_csr(&der, Profile::KubeletClient, None, Start::Epoch(now)).unwrap();
        let pair = Pair::from_pem(&cert, &key).unwrap();
        Bundle::from_pem(ca.bundle()).unwrap().verify_client(pair.chain(), now).unwrap();
        let who = identity::parse(&pair.chain()[0]).unwrap();
        assert_eq!((who.common_name.as_str(), who.organizations), ("system:node:n1", vec!["system:nodes".to_owned()]));
    }

    #[test]
    fn a_key_is_good_for_what_was_asked_for_and_no_more() {
        use x509_parser::prelude::X509Certificate;
        let now = "2026-11-21T00:00:00Z".parse().unwrap();
        let (ca, _) = Authority::create("ca", now).unwrap();
        let (_, der) = create(&spec("bob", "devs")).unwrap();
        let encipher = |usages: &[&str]| {
            let cert = ca.sign_csr_for(&der, Profile::Client, usages, None, Start::Epoch(now)).unwrap();
            let der = crate::pem::certificates(cert.as_bytes()).unwrap().remove(0);
            let (_, cert) = X509Certificate::from_der(&der).unwrap();
            let usage = cert.key_usage().unwrap().unwrap().value;
            (usage.digital_signature(), usage.key_encipherment())
        };
        assert_eq!(encipher(&["client auth", "digital signature"]), (true, false));
        assert_eq!(encipher(&["client auth", "signing", "key encipherment"]), (true, true));
    }

    #[test]
    fn nobody_gets_masters_or_a_name_that_is_no_node() {
        let now = "2026-11-21T00:00:00Z".parse().unwrap();
        let (ca, _) = Authority::create("ca", now).unwrap();
        let sign = |spec: &LeafSpec, profile| {
            ca.sign_csr(&create(spec).unwrap().1, profile, None, Start::Epoch(now)).map(drop).map_err(|e| e.to_string())
        };
        assert!(sign(&spec("eve", "system:masters"), Profile::Client).unwrap_err().contains("system:masters"));
        for name in ["system:kedge-supervisor", "system:kedge-helm", "kedge-peer"] {
            assert!(
                sign(&spec(name, "dev"), Profile::Client)
                    .unwrap_err()
                    .contains("common name of the system's own parts")
            );
        }
        assert!(sign(&spec("eve", "system:nodes"), Profile::KubeletClient).unwrap_err().contains("common name"));
        assert!(sign(&spec("system:node:n", "other"), Profile::KubeletServing).unwrap_err().contains("organization"));
        assert!(
            sign(&spec("system:node:n", "system:nodes"), Profile::KubeletServing).unwrap_err().contains("required")
        );
        assert!(sign(&kubelet_serving_spec("n", &[]), Profile::KubeletClient).unwrap_err().contains("not allowed"));
        assert!(sign(&kubelet_serving_spec("n", &[]), Profile::KubeletServing).is_ok());
    }

    #[test]
    fn every_organization_is_signed_and_life_begins_five_minutes_ago() {
        let now: Timestamp = "2026-11-21T12:00:00Z".parse().unwrap();
        let (ca, _) = Authority::create("ca", now).unwrap();
        let (key, der) = create(&spec("bob", "dev")).unwrap();
        // Two more organizations, as Go writes them: all in one part of the name.
        let pair = rcgen::KeyPair::from_pem(&key).unwrap();
        let der =
            resign::tests::request_with_subject(&der, &resign::tests::subject("bob", &["dev", "ops", "qa"]), &pair);
        let cert = ca.sign_csr(&der, Profile::Client, Some(Duration::from_secs(3600)), Start::Backdated(now)).unwrap();
        let pair = Pair::from_pem(&cert, &key).unwrap();
        Bundle::from_pem(ca.bundle()).unwrap().verify_client(pair.chain(), now).unwrap();
        let who = identity::parse(&pair.chain()[0]).unwrap();
        assert_eq!(
            (who.common_name.as_str(), who.organizations),
            ("bob", vec!["dev".to_owned(), "ops".to_owned(), "qa".to_owned()])
        );
        let times = (who.not_before.to_string(), who.not_after.to_string());
        assert_eq!(times, ("2026-11-21T11:55:00Z".to_owned(), "2026-11-21T13:00:00Z".to_owned()));
        let long = ca.sign_csr(&der, Profile::Client, None, Start::Backdated(now)).unwrap();
        let long = identity::parse(&Pair::from_pem(&long, &key).unwrap().chain()[0]).unwrap();
        assert_eq!(long.not_after.to_string(), "2027-11-21T11:55:00Z");
    }

    #[test]
    fn a_subject_that_others_could_read_otherwise_is_refused() {
        let (key, der) = create(&spec("bob", "dev")).unwrap();
        let pair = rcgen::KeyPair::from_pem(&key).unwrap();
        let utf16: Vec<u8> = "system:masters".encode_utf16().flat_map(u16::to_be_bytes).collect();
        // BMPString, T61String, UniversalString.
        for (tag, text) in [(0x1e, utf16.as_slice()), (0x14, b"system:masters"), (0x1c, b"system:masters  ")] {
            let subject = resign::tests::subject_tagged("bob", tag, text);
            let der = resign::tests::request_with_subject(&der, &subject, &pair);
            assert!(parse(&der).unwrap_err().to_string().contains("its subject has text"), "{tag:#x}");
        }
    }

    #[test]
    fn a_certificate_with_a_group_that_cannot_be_read_is_nobodys() {
        let now = "2026-11-21T00:00:00Z".parse().unwrap();
        let (ca, _) = Authority::create("ca", now).unwrap();
        let cert =
            ca.sign_csr(&create(&spec("bob", "dev")).unwrap().1, Profile::Client, None, Start::Epoch(now)).unwrap();
        let der = crate::pem::certificates(cert.as_bytes()).unwrap().remove(0);
        assert_eq!(identity::parse(&der).unwrap().organizations, ["dev"]);
        let odd =
            resign::with_subject(&der, &resign::tests::subject_tagged("bob", 0x1e, b"\0d\0e\0v"), ca.issuer().key())
                .unwrap();
        assert!(identity::parse(&odd.into()).is_err());
    }

    #[test]
    fn a_tampered_request_is_refused() {
        let now = "2026-11-21T00:00:00Z".parse().unwrap();
        let (ca, _) = Authority::create("ca", now).unwrap();
        let (_, mut der) = create(&spec("bob", "dev")).unwrap();
        let at = der.windows(3).position(|w| w == b"bob").unwrap();
        der[at] = b'r';
        assert!(ca.sign_csr(&der, Profile::Client, None, Start::Epoch(now)).is_err());
        assert!(parse(b"junk").is_err());
    }
}
