//! Which images were pulled with whose credentials: a pod of another tenant must show that it may have them, too.
//!
//! Spec: the gate KubeletEnsureSecretPulledImages with its policy NeverVerifyPreloadedImages, pkg/kubelet/images/pullmanager v1.36. The
//! record is a file in the kubelet's folder. It holds no credentials: a key is a salted hash of them. An image that is not in it was
//! brought in by the operator, or pulled before there was a record; every pod may have it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use base::chain::Chain;
use base::files::{read_if_exists, write_atomic};
use base::rng::Rng;
use base::task::Group;
use k8s_cri::v1 as cri;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use tracing::warn;

/// Keys kept of one image and repository; when there are more an arbitrary one makes room, and its pods pull once more.
const KEYS_MAX: usize = 64;

/// A salted hash of credentials.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct Key(String);

/// Who may have one image.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Access {
    /// It was to be had without credentials of a pod.
    anyone: bool,
    /// By repository: whose credentials fetched it.
    keys: BTreeMap<String, BTreeSet<Key>>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Record {
    salt: String,
    /// By the image's id.
    images: BTreeMap<String, Access>,
    /// Repositories from which a pull with a pod's credentials began and was not noted: what is here of them may be secret.
    begun: BTreeSet<String>,
}

/// The record.
pub(crate) struct Pulled {
    path: PathBuf,
    record: Mutex<Record>,
    /// One write at a time, each of the newest state.
    writing: tokio::sync::Mutex<()>,
}

impl Pulled {
    /// Reads the record in the kubelet's folder, or begins one. One that cannot be read is begun anew, and the log says so.
    pub(crate) fn open(root_dir: &Path, rng: &Rng) -> Pulled {
        let path = root_dir.join("image-pulls.json");
        let read = || -> Result<Option<Record>, String> {
            let Some(text) = read_if_exists(&path).map_err(|err| Chain(&err).to_string())? else { return Ok(None) };
            serde_json::from_slice(&text).map(Some).map_err(|err| err.to_string())
        };
        let record = read().unwrap_or_else(|why| {
            warn!(path = %path.display(), why, "cannot read which images were pulled with credentials");
            None
        });
        let record = record.unwrap_or_else(|| Record { salt: rng.hex(16), ..Record::default() });
        Pulled { path, record: Mutex::new(record), writing: tokio::sync::Mutex::default() }
    }

    /// The key that stands for credentials.
    pub(super) fn key(&self, auth: &cri::AuthConfig) -> Key {
        let mut hash = Sha256::new();
        let record = self.lock();
        for part in [&record.salt, &auth.username, &auth.password, &auth.auth, &auth.identity_token, &auth.registry_token] {
            hash.update(part.len().to_le_bytes());
            hash.update(part);
        }
        Key(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// Whether a pod with these credentials may have an image that is here.
    pub(super) fn allows(&self, id: &str, repository: &str, keys: &[Key]) -> bool {
        let record = self.lock();
        match record.images.get(id) {
            None => !record.begun.contains(repository),
            Some(access) => access.anyone || access.keys.get(repository).is_some_and(|known| keys.iter().any(|key| known.contains(key))),
        }
    }

    /// A pull with a pod's credentials begins. `here` are the ids of the repository's images that are here already: what is not noted
    /// of them was brought in by the operator, and stays everybody's however the pull ends.
    pub(super) async fn begin(&self, repository: &str, here: &[String]) {
        let is_new = {
            let mut record = self.lock();
            let is_new = record.begun.insert(repository.to_owned());
            for id in here.iter().filter(|_| is_new) {
                record.images.entry(id.clone()).or_insert_with(|| Access { anyone: true, ..Access::default() });
            }
            is_new
        };
        if is_new {
            self.save().await;
        }
    }

    /// An image came: with the credentials of `key`, or with none that a pod gave.
    pub(super) async fn came(&self, id: &str, repository: &str, key: Option<Key>) {
        {
            let mut record = self.lock();
            record.begun.remove(repository);
            let access = record.images.entry(id.to_owned()).or_default();
            match key {
                None => access.anyone = true,
                Some(key) => {
                    let keys = access.keys.entry(repository.to_owned()).or_default();
                    if keys.len() >= KEYS_MAX {
                        keys.pop_first();
                    }
                    keys.insert(key);
                }
            }
        }
        self.save().await;
    }

    /// A pull that had begun did not succeed: nothing came of it.
    pub(super) async fn failed(&self, repository: &str) {
        if self.lock().begun.remove(repository) {
            self.save().await;
        }
    }

    /// Forgets images that are gone.
    pub(super) async fn keep(&self, ids: &BTreeSet<String>) {
        let gone = {
            let mut record = self.lock();
            let before = record.images.len();
            record.images.retain(|id, _| ids.contains(id));
            before != record.images.len()
        };
        if gone {
            self.save().await;
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Record> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn save(&self) {
        let _alone = self.writing.lock().await;
        let (path, record) = (self.path.clone(), self.lock().clone());
        let written = Group::blocking(move || {
            let text = serde_json::to_vec(&record).unwrap_or_default();
            write_atomic(&path, &text, 0o600)
        });
        match written.await {
            Ok(Ok(())) => {}
            Ok(Err(err)) => warn!(err = %Chain(&err), "cannot note which images were pulled with credentials"),
            Err(err) => warn!(err = %Chain(&err), "cannot note which images were pulled with credentials"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // review security-2.md F13
    #[tokio::test]
    async fn an_image_that_was_pulled_with_credentials_is_for_those_who_have_them() {
        let dir = tempfile::tempdir().unwrap();
        let pulled = Pulled::open(dir.path(), &Rng::from_seed(1));
        let key = |password: &str| pulled.key(&cri::AuthConfig { password: password.to_owned(), ..Default::default() });
        let (own, other) = (key("a"), key("b"));
        assert!(pulled.allows("preloaded", "r.io/x", &[]));
        pulled.begin("r.io/a", &["older".to_owned()]).await;
        assert!(pulled.allows("older", "r.io/a", &[]), "nobody's pull takes from others what the operator gave");
        assert!(!Pulled::open(dir.path(), &Rng::from_seed(2)).allows("new", "r.io/a", &[]), "the kubelet ended amid the pull");
        pulled.came("secret", "r.io/a", Some(own.clone())).await;
        pulled.came("public", "r.io/b", None).await;
        let again = Pulled::open(dir.path(), &Rng::from_seed(3));
        for record in [&pulled, &again] {
            assert!(record.allows("secret", "r.io/a", &[other.clone(), own.clone()]));
            assert!(!record.allows("secret", "r.io/a", std::slice::from_ref(&other)));
            assert!(!record.allows("secret", "docker.io/library/sha256", std::slice::from_ref(&own)), "nor under another name");
            assert!(record.allows("public", "r.io/b", &[]));
        }
        again.came("secret", "r.io/a", None).await;
        assert!(again.allows("secret", "r.io/a", &[]), "it is public now");
        again.begin("r.io/a", &["secret".to_owned(), "later".to_owned()]).await;
        again.begin("r.io/a", &["latest".to_owned()]).await;
        assert!(!again.allows("latest", "r.io/a", &[]), "it came while a pull had begun");
        again.keep(&BTreeSet::new()).await;
        assert!(!String::from_utf8(std::fs::read(dir.path().join("image-pulls.json")).unwrap()).unwrap().contains("secret"));
    }
}
