//! Which namespaces have policies, written down: a node that starts while its server is away knows then which pods it
//! must hold back, and static pods of all other namespaces start.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use base::chain::Chain;
use base::files::{self, FileError};
use tracing::warn;

/// The namespaces, as the API server told last.
#[derive(Debug)]
pub(crate) struct Walls {
    path: PathBuf,
    /// `None`: no server has told this node yet.
    namespaces: Option<BTreeSet<String>>,
}

impl Walls {
    /// Reads what an earlier run wrote. A file that cannot be read says nothing: every pod waits for the server then.
    pub(crate) fn load(path: &Path) -> Walls {
        let read =
            files::read_if_exists(path).map(|bytes| bytes.map(|bytes| serde_json::from_slice(&bytes)).transpose());
        let namespaces = match read {
            Ok(Ok(known)) => known,
            Ok(Err(err)) => {
                warn!(
                    path = %path.display(), err = %err,
                    "cannot read which namespaces had network policies: pods wait for the server"
                );
                None
            }
            Err(err) => {
                warn!(
                    err = %Chain(&err),
                    "cannot read which namespaces had network policies: pods wait for the server"
                );
                None
            }
        };
        Walls { path: path.to_owned(), namespaces }
    }

    /// Whether a policy may isolate pods of the namespace, by what is known.
    pub(crate) fn may_isolate(&self, ns: &str) -> bool {
        self.namespaces.as_ref().is_none_or(|namespaces| namespaces.contains(ns))
    }

    /// Notes what the API server says now. The disk is touched only when that has changed.
    pub(crate) fn note(&mut self, now: BTreeSet<String>) -> Result<(), FileError> {
        if self.namespaces.as_ref() == Some(&now) {
            return Ok(());
        }
        files::write_atomic(&self.path, &serde_json::to_vec(&now).unwrap_or_default(), 0o600)?;
        self.namespaces = Some(now);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_may_be_isolated() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("walls.json");
        assert!(Walls::load(&path).may_isolate("free"), "no server has told yet");
        Walls::load(&path).note(["walled".to_owned()].into()).unwrap();
        let walls = Walls::load(&path);
        assert!(walls.may_isolate("walled") && !walls.may_isolate("free"));
        std::fs::write(&path, "[\"wal").unwrap();
        assert!(Walls::load(&path).may_isolate("free"), "a torn file tells nothing");
    }
}
