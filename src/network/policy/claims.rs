//! Which sandbox of this node holds which addresses, as the CNI plugin told: known before the API server hears of it.
//!
//! Kept in a file of the run folder, because status may not tell yet when kedge starts again.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use base::files::{self, FileError};
use serde::{Deserialize, Serialize};

/// One sandbox's addresses.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Claim {
    pub(crate) uid: String,
    pub(crate) ips: Vec<IpAddr>,
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

    /// Forgets sandboxes of pods that are no more.
    pub(crate) fn keep(&mut self, lives: impl Fn(&str) -> bool) -> Result<(), FileError> {
        let before = self.by_sandbox.len();
        self.by_sandbox.retain(|_, claim| lives(&claim.uid));
        if self.by_sandbox.len() == before { Ok(()) } else { self.save() }
    }

    pub(crate) fn of_pod(&self, uid: &str) -> Vec<IpAddr> {
        self.by_sandbox.values().filter(|claim| claim.uid == uid).flat_map(|claim| claim.ips.iter().copied()).collect()
    }

    pub(crate) fn is_anothers(&self, ip: &IpAddr, uid: &str) -> bool {
        self.by_sandbox.values().any(|claim| claim.uid != uid && claim.ips.contains(ip))
    }

    fn save(&self) -> Result<(), FileError> {
        let Some(path) = &self.path else { return Ok(()) };
        files::write_atomic(path, &serde_json::to_vec(&self.by_sandbox).unwrap_or_default(), 0o600)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_belongs_to_the_newest_sandbox_and_survives_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("claims.json");
        let ip: IpAddr = "10.42.0.5".parse().unwrap();
        let mut claims = Claims::load(&path).unwrap();
        claims.add("s1", Claim { uid: "old".into(), ips: vec![ip] }).unwrap();
        claims.add("s2", Claim { uid: "new".into(), ips: vec![ip] }).unwrap();
        // A late DEL of the first sandbox must not free the second's address.
        assert!(!claims.remove("s1").unwrap());
        let again = Claims::load(&path).unwrap();
        assert_eq!(again.of_pod("new"), [ip]);
        assert!(again.is_anothers(&ip, "old") && again.of_pod("old").is_empty());
    }
}
