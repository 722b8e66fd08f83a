//! Replacing a cluster's authorities while it runs: the new ones are vouched for by the old ones, and the old ones stay
//! trusted, until somebody drops them. So servers and nodes that have the new set already, and those that do not yet,
//! understand each other.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use base::files::{self, FileError};
use base::hex;
use base::rng::Rng;
use jiff::{SignedDuration, Timestamp};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, DnValue, IsCa, KeyIdMethod, KeyUsagePurpose,
};
use rustls_pki_types::CertificateDer;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use x509_parser::extensions::ParsedExtension;
use x509_parser::prelude::{FromDer as _, X509Certificate};

use crate::authority::{Authority, LEAF_LIFE, common_name};
use crate::error::PkiError;
use crate::folder;
use crate::identity;
use crate::leaf::Ca;
use crate::pem;
use crate::seal::{AmongServers, Purpose};

/// Context to which the sealed set is bound.
const PURPOSE: Purpose = Purpose { name: "authorities", context: "kedge authorities" };

/// The files of all authorities: certificates and key of each by its stem.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Authorities(BTreeMap<String, Files>);

#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Files {
    certs: String,
    key: String,
}

/// A set that is on its way to servers.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Replacement {
    /// Which sets it may replace, by their fingerprints.
    pub replaces: Vec<String>,
    /// The new set.
    pub set: Authorities,
}

impl Files {
    fn authority(&self) -> Result<Authority, PkiError> {
        Authority::from_pem(self.certs.as_bytes(), self.key.as_bytes())
    }
}

fn read(dir: &Path, stem: &str) -> Result<Option<Files>, PkiError> {
    let text = |path: PathBuf| {
        Ok::<_, FileError>(files::read_if_exists(&path)?.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
    };
    match (text(folder::certificate(dir, stem))?, text(folder::key(dir, stem))?) {
        (Some(certs), Some(key)) => Ok(Some(Files { certs, key })),
        (None, None) => Ok(None),
        (Some(_), None) => Err(PkiError::malformed("authority", format!("{stem}.crt has no {stem}.key beside it"))),
        (None, Some(_)) => Err(PkiError::malformed("authority", format!("{stem}.key has no {stem}.crt beside it"))),
    }
}

impl Authorities {
    /// Those of a server; `dir` is its `server/tls`.
    pub fn load(dir: &Path) -> Result<Authorities, PkiError> {
        let found = Ca::ALL.iter().map(|ca| {
            let files = read(dir, ca.stem())?
                .ok_or_else(|| PkiError::malformed("authority", format!("{}.crt is missing", ca.stem())))?;
            Ok((ca.stem().to_owned(), files))
        });
        Ok(Authorities(found.collect::<Result<_, PkiError>>()?))
    }

    /// Which set this is: SHA-256 over all its certificates, hex.
    pub fn fingerprint(&self) -> Result<String, PkiError> {
        let mut hash = Sha256::new();
        for (stem, files) in &self.0 {
            hash.update(stem.as_bytes());
            for cert in pem::certificates(files.certs.as_bytes())? {
                hash.update(Sha256::digest(&cert));
            }
        }
        Ok(hex::encode(&hash.finalize()))
    }

    /// This set with the authorities replaced that `dir` holds (named as in `server/tls`); without a folder all are
    /// made anew.
    ///
    /// Errors: a file that cannot be used, or, unless forced, one that ends before what it signs would.
    pub fn replaced_by(&self, dir: Option<&Path>, force: bool, now: Timestamp) -> Result<Authorities, PkiError> {
        let mut set = self.clone();
        let mut n = 0;
        for ca in Ca::ALL {
            let given = match dir {
                Some(dir) => read(dir, ca.stem())?,
                None => {
                    let (made, key) = Authority::create(ca.subject(), self.moment(ca, now)?)?;
                    Some(Files { certs: made.bundle().to_owned(), key })
                }
            };
            let (Some(given), Some(old)) = (given, self.0.get(ca.stem())) else { continue };
            let named = |err: PkiError| {
                PkiError::malformed("authority", format!("{}: {}", ca.stem(), base::chain::Chain(&err)))
            };
            let (old, new) = (old.authority()?, given.authority().map_err(named)?);
            check(&new, force, now).map_err(named)?;
            let certs = joined(&old, &new).map_err(named)?;
            n += usize::from(old.chain()[0] != new.chain()[0]);
            set.0.insert(ca.stem().to_owned(), Files { certs, key: given.key });
        }
        if n == 0 {
            let place = dir.map(|dir| dir.display().to_string()).unwrap_or_default();
            return Err(PkiError::malformed(
                "authority",
                format!("{place} holds no authority that is not in use already"),
            ));
        }
        Ok(set)
    }

    /// The moment that a new authority is named after: `now`, or the next that none of those in use is named after.
    fn moment(&self, ca: Ca, now: Timestamp) -> Result<Timestamp, PkiError> {
        let Some(old) = self.0.get(ca.stem()) else { return Ok(now) };
        let names = old
            .authority()?
            .chain()
            .iter()
            .map(|cert| Ok(identity::parse(cert)?.common_name))
            .collect::<Result<Vec<_>, PkiError>>()?;
        let mut moment = now;
        while names.contains(&common_name(ca.subject(), moment)) {
            moment =
                moment.checked_add(SignedDuration::from_secs(1)).map_err(|err| PkiError::malformed("clock", err))?;
        }
        Ok(moment)
    }

    /// This set with nothing trusted but what signs, and what is above it.
    pub fn without_old(&self) -> Result<Authorities, PkiError> {
        let own =
            |files: &Files| Ok::<_, PkiError>(Files { certs: own_chain(&files.authority()?)?, key: files.key.clone() });
        Ok(Authorities(
            self.0.iter().map(|(stem, files)| Ok((stem.clone(), own(files)?))).collect::<Result<_, PkiError>>()?,
        ))
    }

    /// The certificates of servers' authority, PEM.
    pub fn servers(&self) -> &str {
        self.0.get(Ca::Server.stem()).map_or("", |files| &files.certs)
    }

    /// Writes the files below `dir`, readable for the owner alone.
    pub fn write(&self, dir: &Path) -> Result<(), PkiError> {
        for ca in Ca::ALL {
            let Some(files) = self.0.get(ca.stem()) else { continue };
            // Nothing is written that could not be read back.
            files.authority()?;
            files::write_atomic(&folder::key(dir, ca.stem()), files.key.as_bytes(), 0o600)?;
            files::write_atomic(&folder::certificate(dir, ca.stem()), files.certs.as_bytes(), 0o600)?;
        }
        Ok(())
    }
}

impl Replacement {
    /// For a place where more people read than may have keys; `service_key` is a text that all servers, and they alone,
    /// hold.
    pub fn seal(&self, service_key: &str, rng: &Rng) -> Result<Vec<u8>, PkiError> {
        let plain = serde_json::to_vec(self).map_err(|err| PkiError::malformed("authority", err))?;
        among(service_key).seal(&plain, rng).ok_or(PkiError::Sign)
    }

    /// The reverse; `None` if it was sealed in another cluster, or is not whole.
    pub fn open(sealed: &[u8], service_key: &str) -> Option<Replacement> {
        serde_json::from_slice(&among(service_key).open(sealed)?).ok()
    }
}

fn among(service_key: &str) -> AmongServers {
    AmongServers::new(PURPOSE, service_key)
}

/// Whether an authority can do its work.
fn check(new: &Authority, force: bool, now: Timestamp) -> Result<(), PkiError> {
    let left = new.not_after()?.as_second() - now.as_second();
    if !force && left < i64::try_from(LEAF_LIFE.as_secs()).unwrap_or(i64::MAX) {
        let why = format!("it ends at {}, before what it signs would: --force takes it nevertheless", new.not_after()?);
        return Err(PkiError::malformed("certificate", why));
    }
    own_chain(new).map(drop)
}

/// The bundle that is served and trusted from now on: the new chain, the new signer as the old one vouches for it, and
/// the old chain.
fn joined(old: &Authority, new: &Authority) -> Result<String, PkiError> {
    let (was, is) = (identity::parse(&old.chain()[0])?, identity::parse(&new.chain()[0])?);
    let same_key = old.issuer().key().public_key_raw() == new.issuer().key().public_key_raw();
    if was.subject == is.subject && !same_key {
        let why =
            format!("its subject CN={} is that of the authority which it replaces: choose another", is.common_name);
        return Err(PkiError::malformed("certificate", why));
    }
    let mut all: Vec<CertificateDer<'static>> = new.chain().to_vec();
    let known = new.chain().iter().any(|cert| old.chain().contains(cert));
    if !known && !same_key {
        all.push(vouched(old, new)?);
    }
    for cert in old.chain() {
        if !all.contains(cert) {
            all.push(cert.clone());
        }
    }
    Ok(all.iter().map(|der| pem::encode("CERTIFICATE", der)).collect())
}

/// From the signer up to a certificate that signed itself.
fn own_chain(authority: &Authority) -> Result<String, PkiError> {
    let all = authority.chain();
    let seen = all.iter().map(identity::parse).collect::<Result<Vec<_>, _>>()?;
    let mut chain = vec![0];
    let mut at = 0;
    while seen[at].issuer != seen[at].subject {
        let above: Vec<usize> =
            (0..all.len()).filter(|&n| seen[n].subject == seen[at].issuer && !chain.contains(&n)).collect();
        // One that an older authority vouches for has the same name as the one that needs nobody.
        let Some(&next) = above.iter().find(|&&n| seen[n].issuer == seen[n].subject).or(above.first()) else {
            return Err(PkiError::malformed("certificate", "the file holds no root for its first certificate"));
        };
        chain.push(next);
        at = next;
    }
    Ok(chain.iter().map(|&n| pem::encode("CERTIFICATE", &all[n])).collect())
}

/// The new authority's certificate as the old one signs it: same subject, same key.
fn vouched(old: &Authority, new: &Authority) -> Result<CertificateDer<'static>, PkiError> {
    let unread = |why: &dyn std::fmt::Display| PkiError::malformed("certificate", why);
    let (_, cert) = X509Certificate::from_der(&new.chain()[0]).map_err(|err| unread(&err))?;
    let mut name = DistinguishedName::new();
    for attribute in cert.subject().iter_attributes() {
        let oid = attribute.attr_type().iter().ok_or_else(|| unread(&"its subject has an unknown attribute"))?;
        let text = attribute.as_str().map_err(|err| unread(&err))?;
        let printable = attribute.attr_value().tag().0 == PRINTABLE_STRING;
        let value = match printable {
            true => DnValue::PrintableString(text.try_into().map_err(|err: rcgen::Error| unread(&err))?),
            false => DnValue::Utf8String(text.to_owned()),
        };
        name.push(DnType::CustomDnType(oid.collect()), value);
    }
    let mut params = CertificateParams::default();
    params.distinguished_name = name;
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.use_authority_key_identifier_extension = true;
    let id = cert.iter_extensions().find_map(|extension| match extension.parsed_extension() {
        ParsedExtension::SubjectKeyIdentifier(id) => Some(id.0.to_vec()),
        _ => None,
    });
    params.key_identifier_method = id.map_or(KeyIdMethod::Sha256, KeyIdMethod::PreSpecified);
    let end = new.not_after()?.min(old.not_after()?).as_second();
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    params.not_before = epoch;
    params.not_after = epoch + std::time::Duration::from_secs(u64::try_from(end).unwrap_or(0));
    let made = params.signed_by(new.issuer().key(), old.issuer());
    let made = made.map_err(|source| PkiError::Issue { subject: "cross-signed authority".to_owned(), source })?;
    let der = made.der().clone();
    if identity::parse(&der)?.subject != cert.subject().as_raw() {
        return Err(unread(
            &"its subject is written in a way that cannot be repeated: use PrintableString or UTF8String",
        ));
    }
    Ok(der)
}

/// ASN.1's tag.
const PRINTABLE_STRING: u32 = 19;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bundle::Bundle;
    use crate::leaf::{LeafSpec, Usage};

    fn now() -> Timestamp {
        "2026-11-21T00:00:00Z".parse().unwrap()
    }

    fn old() -> Authorities {
        let made = Ca::ALL.iter().map(|ca| {
            let (made, key) = Authority::create(ca.subject(), Timestamp::UNIX_EPOCH).unwrap();
            (ca.stem().to_owned(), Files { certs: made.bundle().to_owned(), key })
        });
        Authorities(made.collect())
    }

    /// Whether a new leaf of `signer` is good for somebody who trusts what `trusting` holds.
    fn understood(signer: &Authorities, trusting: &Authorities) -> bool {
        let stem = Ca::Client.stem();
        let spec = LeafSpec {
            common_name: "a".to_owned(),
            organizations: vec![],
            sans: Default::default(),
            usage: Usage::Client,
        };
        let leaf = signer.0[stem].authority().unwrap().issue(&spec, now()).unwrap();
        let chain = pem::certificates(leaf.cert_pem.as_bytes()).unwrap();
        Bundle::from_pem(&trusting.0[stem].certs).unwrap().verify_client(&chain, now()).is_ok()
    }

    #[test]
    fn old_and_new_understand_each_other_until_the_old_is_dropped() {
        let old = old();
        let both = old.replaced_by(None, false, now()).unwrap();
        let new = both.without_old().unwrap();
        assert!(understood(&both, &old) && understood(&old, &both) && understood(&both, &both));
        assert!(understood(&new, &both) && understood(&both, &new) && understood(&new, &new));
        assert!(!understood(&new, &old) && !understood(&old, &new));
        assert_eq!(pem::certificates(new.servers().as_bytes()).unwrap().len(), 1);
        // Twice is once more.
        let third = both.replaced_by(None, false, "2026-11-22T00:00:00Z".parse().unwrap()).unwrap();
        assert!(understood(&third, &both) && understood(&third, &old) && understood(&old, &third));
        // In the same second, too.
        let hasty = both.replaced_by(None, false, now()).unwrap();
        assert!(understood(&hasty, &both) && understood(&both, &hasty));
    }

    #[test]
    fn a_folder_replaces_what_it_holds_and_nothing_else() {
        let (old, dir) = (old(), tempfile::tempdir().unwrap());
        let refused = |dir: &Path| old.replaced_by(Some(dir), false, now()).err().unwrap().to_string();
        assert!(refused(dir.path()).contains("holds no authority"));
        let (made, key) = Authority::create("mine", now()).unwrap();
        std::fs::write(dir.path().join("client-ca.crt"), made.bundle()).unwrap();
        assert!(refused(dir.path()).contains("client-ca.key"));
        std::fs::write(dir.path().join("client-ca.key"), &old.0["server-ca"].key).unwrap();
        assert!(refused(dir.path()).contains("does not belong"));
        std::fs::write(dir.path().join("client-ca.key"), key).unwrap();
        let set = old.replaced_by(Some(dir.path()), false, now()).unwrap();
        assert!(set.0["server-ca"] == old.0["server-ca"] && set.0["client-ca"] != old.0["client-ca"]);
        let late = "2036-10-01T00:00:00Z".parse().unwrap();
        assert!(old.replaced_by(Some(dir.path()), false, late).err().unwrap().to_string().contains("--force"));
        assert!(old.replaced_by(Some(dir.path()), true, late).is_ok());
    }

    #[test]
    fn only_who_holds_the_clusters_key_opens_a_set() {
        let set = old();
        let sent = Replacement { replaces: vec![set.fingerprint().unwrap()], set };
        let sealed = sent.seal("key", &Rng::from_seed(1)).unwrap();
        assert!(Replacement::open(&sealed, "key\n").unwrap() == sent);
        assert!(Replacement::open(&sealed, "other").is_none());
    }
}
