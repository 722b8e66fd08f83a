//! Everything a server keeps under `<data-dir>/server/tls`: made on the first start, checked on each later one, renewed
//! in between.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base::files::{create_private_dir, read_if_exists, write_atomic};
use base::sync::Mutex;
use base::time::Clock;
use jiff::Timestamp;
use tracing::info;

use crate::authority::Authority;
use crate::bundle::Bundle;
use crate::certstore::{CertStore, Pair};
use crate::error::PkiError;
use crate::folder;
use crate::identity::{self, Identity};
use crate::jwt::{Signer, Verifier};
use crate::kubeconfig::Kubeconfig;
use crate::leaf::{Ca, Leaf, LeafSpec};

/// Settings on which the certificates depend.
#[derive(Clone, Debug)]
pub struct Options {
    /// Wall time.
    pub clock: Clock,
    /// How long a leaf lasts.
    pub leaf_life: Duration,
    /// Name of this node.
    pub node_name: String,
    /// Addresses of this node.
    pub node_ips: Vec<IpAddr>,
    /// First address of each service range: the `kubernetes` Service.
    pub service_ips: Vec<IpAddr>,
    /// `cluster.local`.
    pub cluster_domain: String,
    /// More names for the API server (`--tls-san`).
    pub tls_sans: Vec<String>,
}

/// Authorities, leaves and the service-account key of one server.
pub struct Pki {
    dir: PathBuf,
    options: Options,
    authorities: BTreeMap<Ca, Authority>,
    leaves: BTreeMap<Leaf, Arc<CertStore>>,
    service_key: String,
    /// Another key that signs tokens, and keys that verify them, PEM.
    foreign: (Option<String>, Option<String>),
    /// The node's addresses, if they have changed since the start.
    moved_to: Mutex<Option<Vec<IpAddr>>>,
}

impl Pki {
    /// Opens `dir` (`<data-dir>/server/tls`); what is missing, out of date or about to be is made anew.
    ///
    /// Authorities and the service-account key are never replaced: a broken one is an error that names its file.
    pub fn load_or_create(dir: &Path, options: Options) -> Result<Pki, PkiError> {
        create_private_dir(dir)?;
        create_private_dir(&folder::etcd(dir))?;
        let now = options.clock.now();
        let mut authorities = BTreeMap::new();
        for ca in Ca::ALL {
            authorities.insert(ca, load_or_create_ca(dir, ca, now)?.with_leaf_life(options.leaf_life));
        }
        let service_key = load_or_create_service_key(dir)?;
        let mut pki = Pki {
            dir: dir.to_owned(),
            options,
            authorities,
            leaves: BTreeMap::new(),
            service_key,
            foreign: (None, None),
            moved_to: Mutex::default(),
        };
        for leaf in Leaf::ALL {
            let pair = pki.load_leaf(leaf, now)?;
            pki.leaves.insert(leaf, CertStore::new(pair));
        }
        Ok(pki)
    }

    /// Settings for which the certificates were made.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// The node has these addresses from now on: [`Pki::renew`] makes the certificates that name them anew.
    pub fn set_node_ips(&self, ips: Vec<IpAddr>) {
        *self.moved_to.lock() = Some(ips);
    }

    fn spec(&self, leaf: Leaf) -> LeafSpec {
        let moved_to = self.moved_to.lock().clone();
        match moved_to {
            Some(node_ips) => leaf.spec(&Options { node_ips, ..self.options.clone() }),
            None => leaf.spec(&self.options),
        }
    }

    /// One of the authorities.
    pub fn authority(&self, ca: Ca) -> &Authority {
        &self.authorities[&ca]
    }

    /// One of the leaves; the store stays the same over renewals.
    pub fn leaf(&self, leaf: Leaf) -> &Arc<CertStore> {
        &self.leaves[&leaf]
    }

    /// Authorities that clients must trust to talk to this server.
    pub fn server_bundle(&self) -> Result<Bundle, PkiError> {
        Bundle::from_pem(self.authority(Ca::Server).bundle())
    }

    /// Trusts users' certificates alone: for ports that know no front proxy.
    pub fn user_bundle(&self) -> Result<Bundle, PkiError> {
        Bundle::from_pem(self.authority(Ca::Client).bundle())
    }

    /// Authorities that the API server's port accepts at the handshake: users' and front proxies' certificates.
    pub fn client_bundle(&self) -> Result<Bundle, PkiError> {
        Bundle::from_pems([self.authority(Ca::Client).bundle(), self.authority(Ca::RequestHeader).bundle()])
    }

    /// Signs service-account tokens.
    pub fn signer(&self) -> Result<Signer, PkiError> {
        Signer::from_pem(self.foreign.0.as_ref().unwrap_or(&self.service_key))
    }

    /// Verifies service-account tokens.
    pub fn verifier(&self) -> Result<Verifier, PkiError> {
        Verifier::from_pem(self.foreign.1.as_ref().unwrap_or(&self.service_key))
    }

    /// Takes keys of others for service-account tokens: `signing` signs in place of this server's own, `verifying`
    /// verify. Where only one of the two is given, the server's own key goes on verifying.
    ///
    /// Errors: a key that cannot be used, or one that signs what none verifies.
    pub fn set_service_keys(&mut self, signing: Option<String>, verifying: Vec<String>) -> Result<(), PkiError> {
        if signing.is_none() && verifying.is_empty() {
            return Ok(());
        }
        let own = (signing.is_none() || verifying.is_empty()).then(|| self.service_key.clone());
        let signs = if verifying.is_empty() { signing.clone() } else { None };
        let all: Vec<String> = verifying.into_iter().chain(signs).chain(own).collect();
        self.foreign = (signing, Some(all.join("\n")));
        let (signer, verifier) = (self.signer()?, self.verifier()?);
        match verifier.knows(signer.kid()) {
            true => Ok(()),
            false => Err(PkiError::malformed("set of keys", "none of them verifies what the signing key signs")),
        }
    }

    /// A kubeconfig for the person who owns the machine.
    pub fn admin_kubeconfig(&self, server_url: &str) -> String {
        let admin = self.leaf(Leaf::ClientAdmin).current();
        let kubeconfig = Kubeconfig {
            server_url,
            ca_pem: self.authority(Ca::Server).bundle(),
            cert_pem: &admin.cert_pem,
            key_pem: admin.key_pem.expose(),
        };
        kubeconfig.text()
    }

    /// Reissues every leaf that has less than a third of its life left, or whose files were taken away, and swaps it
    /// in; says which.
    pub fn renew(&self) -> Result<Vec<Leaf>, PkiError> {
        let now = self.options.clock.now();
        let mut renewed = Vec::new();
        for (leaf, store) in &self.leaves {
            let seen = identity::parse(&store.current().chain()[0])?;
            let gone =
                !folder::certificate(&self.dir, leaf.stem()).exists() || !folder::key(&self.dir, leaf.stem()).exists();
            let stale = reissue_because(&seen, &self.spec(*leaf), self.authority(leaf.ca()), now)?;
            if let Some(why) = stale.or(gone.then_some("its files were taken away")) {
                store.swap(self.issue_leaf(*leaf, why, now)?);
                renewed.push(*leaf);
            }
        }
        Ok(renewed)
    }

    /// When [`Pki::renew`] will next have something to do, if nothing else changes.
    pub fn next_renewal(&self) -> Timestamp {
        let third = |leaf: &Leaf| i64::try_from(self.authority(leaf.ca()).leaf_life().as_secs() / 3).unwrap_or(0);
        let due = self.leaves.iter().map(|(leaf, store)| store.current().not_after.as_second() - third(leaf));
        due.min().and_then(|secs| Timestamp::from_second(secs).ok()).unwrap_or(Timestamp::MAX)
    }

    /// The end of each certificate by its file's name, those of authorities included.
    pub fn ends(&self) -> Result<BTreeMap<&'static str, Timestamp>, PkiError> {
        let mut ends: BTreeMap<_, _> =
            self.leaves.iter().map(|(leaf, store)| (leaf.stem(), store.current().not_after)).collect();
        for (ca, authority) in &self.authorities {
            ends.insert(ca.stem(), authority.not_after()?);
        }
        Ok(ends)
    }

    fn load_leaf(&self, leaf: Leaf, now: Timestamp) -> Result<Pair, PkiError> {
        let cert = read_if_exists(&folder::certificate(&self.dir, leaf.stem()))?;
        let key = read_if_exists(&folder::key(&self.dir, leaf.stem()))?;
        let (Some(cert), Some(key)) = (cert, key) else { return self.issue_leaf(leaf, "it was missing", now) };
        // A leaf is cheap: one that cannot be read, or whose two files were not written together, is made again.
        let Ok(pair) = Pair::from_pem(&String::from_utf8_lossy(&cert), &String::from_utf8_lossy(&key)) else {
            return self.issue_leaf(leaf, "it was not readable", now);
        };
        let seen = identity::parse(&pair.chain()[0])?;
        match reissue_because(&seen, &self.spec(leaf), self.authority(leaf.ca()), now)? {
            Some(why) => self.issue_leaf(leaf, why, now),
            None => Ok(pair),
        }
    }

    fn issue_leaf(&self, leaf: Leaf, why: &'static str, now: Timestamp) -> Result<Pair, PkiError> {
        let issued = self.authority(leaf.ca()).issue(&self.spec(leaf), now)?;
        let pair = Pair::from_pem(&issued.cert_pem, &issued.key_pem)?;
        write_atomic(&folder::key(&self.dir, leaf.stem()), issued.key_pem.as_bytes(), 0o600)?;
        write_atomic(&folder::certificate(&self.dir, leaf.stem()), issued.cert_pem.as_bytes(), 0o600)?;
        info!(name = leaf.stem(), why, "certificate issued");
        Ok(pair)
    }
}

/// Why a leaf must be made again, if it must.
fn reissue_because(
    seen: &Identity,
    want: &LeafSpec,
    ca: &Authority,
    now: Timestamp,
) -> Result<Option<&'static str>, PkiError> {
    let signer = identity::parse(&ca.chain()[0])?;
    let third = Duration::from_secs(ca.leaf_life().as_secs() / 3);
    let left_secs = seen.not_after.as_second() - now.as_second();
    Ok(if seen.issuer != signer.subject {
        Some("its authority changed")
    } else if seen.common_name != want.common_name || seen.organizations != want.organizations {
        Some("its subject changed")
    } else if seen.sans != want.sans {
        Some("its names changed")
    } else if left_secs <= 0 {
        Some("it had expired")
    } else if u64::try_from(left_secs).unwrap_or(0) < third.as_secs() {
        Some("less than a third of its life was left")
    } else {
        None
    })
}

fn load_or_create_ca(dir: &Path, ca: Ca, now: Timestamp) -> Result<Authority, PkiError> {
    let (cert, key) = (folder::certificate(dir, ca.stem()), folder::key(dir, ca.stem()));
    // The certificate is written last: a key without one is the trace of a power cut during the first start.
    if cert.exists() {
        return Authority::load(&cert, &key);
    }
    let (authority, key_pem) = Authority::create(ca.subject(), now)?;
    write_atomic(&key, key_pem.as_bytes(), 0o600)?;
    write_atomic(&cert, authority.bundle().as_bytes(), 0o600)?;
    info!(name = ca.stem(), "certificate authority created");
    Ok(authority)
}

fn load_or_create_service_key(dir: &Path) -> Result<String, PkiError> {
    let path = folder::service_key(dir);
    if let Some(text) = read_if_exists(&path)? {
        let text = String::from_utf8_lossy(&text).into_owned();
        return Signer::from_pem(&text).map(|_| text).map_err(|err| err.in_file(&path));
    }
    let refused = |source| PkiError::Issue { subject: "service-account key".to_owned(), source };
    let text = rcgen::KeyPair::generate().map_err(refused)?.serialize_pem();
    write_atomic(&path, text.as_bytes(), 0o600)?;
    Ok(text)
}

#[cfg(test)]
#[path = "server_tests.rs"]
mod tests;
