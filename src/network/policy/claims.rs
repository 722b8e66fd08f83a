//! Which sandbox of this node holds which addresses, as the CNI plugin told: known before the API server hears of it,
//! and true whatever anybody writes into a pod.
//!
//! Kept in a file of the run folder, because status may not tell yet when kedge starts again.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::files::{self, FileError};
use serde::{Deserialize, Serialize};

use crate::policy::model::Facts;
use crate::policy::pod_ref::PodRef;

/// One sandbox's addresses.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Claim {
    /// The pod, as the runtime names it.
    #[serde(flatten)]
    pub(crate) pod: PodRef,
    pub(crate) ips: Vec<IpAddr>,
    /// The sandbox's network namespace: without that file nothing uses the addresses. Claims of an earlier kedge do not
    /// tell it.
    #[serde(default)]
    pub(crate) netns: Option<PathBuf>,
    /// The pod's object as it was last: its policies hold until the sandbox is gone, also when the object goes first.
    #[serde(skip)]
    pub(crate) seen: Option<Arc<Facts>>,
}

/// All of them, by the sandbox's id.
#[derive(Clone, Debug, Default)]
pub(crate) struct Claims {
    path: Option<PathBuf>,
    by_sandbox: BTreeMap<String, Claim>,
}

impl Claims {
    /// Reads what an earlier run wrote; a torn or strange file counts as none.
    pub(crate) fn load(path: &Path) -> Result<Claims, FileError> {
        let bytes = files::read_if_exists(path)?.unwrap_or_default();
        Ok(Claims { path: Some(path.to_owned()), by_sandbox: serde_json::from_slice(&bytes).unwrap_or_default() })
    }

    /// Notes a new sandbox's addresses. Whoever had them before has them no more.
    pub(crate) fn add(&mut self, sandbox: &str, claim: Claim) -> Result<(), FileError> {
        self.by_sandbox.retain(|_, old| !old.ips.iter().any(|ip| claim.ips.contains(ip)));
        self.by_sandbox.insert(sandbox.to_owned(), claim);
        self.save()
    }

    /// Forgets a sandbox; says whether it was known.
    pub(crate) fn remove(&mut self, sandbox: &str) -> Result<bool, FileError> {
        let known = self.by_sandbox.remove(sandbox).is_some();
        if known {
            self.save()?;
        }
        Ok(known)
    }

    /// Forgets the sandboxes for which `lives` says no.
    pub(crate) fn keep(&mut self, lives: impl Fn(&Claim) -> bool) -> Result<(), FileError> {
        let before = self.by_sandbox.len();
        self.by_sandbox.retain(|_, claim| lives(claim));
        if self.by_sandbox.len() == before { Ok(()) } else { self.save() }
    }

    /// Notes what the pods' objects say now.
    pub(crate) fn note(&mut self, find: impl Fn(&PodRef) -> Option<Arc<Facts>>) {
        for claim in self.by_sandbox.values_mut() {
            if let Some(facts) = find(&claim.pod) {
                claim.seen = Some(facts);
            }
        }
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Claim> {
        self.by_sandbox.values()
    }

    /// Whether the sandbox holds all of these addresses.
    pub(crate) fn holds(&self, sandbox: &str, ips: &[IpAddr]) -> bool {
        self.by_sandbox.get(sandbox).is_some_and(|claim| ips.iter().all(|ip| claim.ips.contains(ip)))
    }

    fn save(&self) -> Result<(), FileError> {
        let Some(path) = &self.path else { return Ok(()) };
        files::write_atomic(path, &serde_json::to_vec(&self.by_sandbox).unwrap_or_default(), 0o600)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(uid: &str, ip: IpAddr) -> Claim {
        Claim { pod: PodRef { ns: "a".into(), name: "p".into(), uid: uid.into() }, ips: vec![ip], ..Claim::default() }
    }

    #[test]
    fn an_address_belongs_to_the_newest_sandbox_and_survives_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("claims.json");
        let ip: IpAddr = "10.42.0.5".parse().unwrap();
        let mut claims = Claims::load(&path).unwrap();
        claims.add("s1", claim("old", ip)).unwrap();
        claims.add("s2", claim("new", ip)).unwrap();
        // A late DEL of the first sandbox must not free the second's address.
        assert!(!claims.remove("s1").unwrap());
        let again = Claims::load(&path).unwrap();
        assert_eq!(again.all().map(|claim| claim.pod.uid.as_str()).collect::<Vec<_>>(), ["new"]);
        assert!(again.holds("s2", &[ip]) && !again.holds("s1", &[ip]));
    }

    #[test]
    fn claims_of_an_earlier_kedge_can_be_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("claims.json");
        std::fs::write(&path, r#"{"s1":{"uid":"u","ips":["10.42.0.5"]}}"#).unwrap();
        let claims = Claims::load(&path).unwrap();
        assert!(claims.all().all(|claim| claim.pod.uid == "u" && claim.pod.ns.is_empty()));
        assert_eq!(claims.all().count(), 1);
    }
}
