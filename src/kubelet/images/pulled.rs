//! Which images were pulled with whose credentials: a pod of another tenant must show that it may have them, too.
//!
//! Spec: the gate KubeletEnsureSecretPulledImages with its policy NeverVerifyPreloadedImages,
//! pkg/kubelet/images/pullmanager v1.36. The record is a file in the kubelet's folder. It holds no credentials: a key
//! is a salted hash of them. An image that is not in it was brought in by the operator, or pulled before there was a
//! record; every pod may have it.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use base::chain::Chain;
use base::files::{read_if_exists, write_atomic};
use base::rng::Rng;
use base::sync::Mutex;
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

/// The pods that may have one image.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Access {
    /// It was to be had without credentials of a pod.
    anyone: bool,
    /// By repository: whose credentials fetched it.
    keys: BTreeMap<String, BTreeSet<Key>>,
    /// When this was noted last, by the count of all notes.
    #[serde(skip)]
    noted: u64,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Record {
    salt: String,
    /// By the image's id.
    images: BTreeMap<String, Access>,
    /// Repositories from which a pull with a pod's credentials began and was not noted: what is here of them may be
    /// secret.
    begun: BTreeSet<String>,
    /// How many such pulls of each repository go on now.
    #[serde(skip)]
    going_on: BTreeMap<String, u32>,
    /// Repositories of which one was broken off: what came of it nobody knows.
    #[serde(skip)]
    doubtful: BTreeSet<String>,
    #[serde(skip)]
    notes: u64,
}

impl Record {
    /// The entry of an image, noted now.
    fn note(&mut self, id: &str) -> &mut Access {
        self.notes += 1;
        let access = self.images.entry(id.to_owned()).or_default();
        access.noted = self.notes;
        access
    }

    /// One pull of a repository less. Returns whether nothing is left to doubt.
    fn ended(&mut self, repository: &str) -> bool {
        let left = self.going_on.get_mut(repository).map_or(0, |count| {
            *count = count.saturating_sub(1);
            *count
        });
        if left == 0 {
            self.going_on.remove(repository);
        }
        left == 0 && !self.doubtful.contains(repository) && self.begun.remove(repository)
    }
}

/// A pull with a pod's credentials that goes on. Dropped before its end it leaves a doubt about what came of it.
pub(super) struct Begun<'p> {
    pulled: &'p Pulled,
    repository: String,
    has_ended: bool,
}

impl Begun<'_> {
    /// The pull ends: the image that came is noted, or none came.
    pub(super) async fn end(mut self) {
        self.has_ended = true;
        let is_over = self.pulled.lock().ended(&self.repository);
        if is_over {
            self.pulled.save().await;
        }
    }
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        if !self.has_ended {
            let mut record = self.pulled.lock();
            record.doubtful.insert(self.repository.clone());
            record.ended(&self.repository);
        }
    }
}

/// An image under a name that it was pulled by.
#[derive(Clone, Copy, Debug)]
pub(super) struct PulledImage<'a> {
    pub(super) id: &'a str,
    pub(super) repository: &'a str,
}

/// The record.
pub(crate) struct Pulled {
    path: PathBuf,
    record: Mutex<Record>,
    /// One write at a time, each of the newest state.
    writing: tokio::sync::Mutex<()>,
}

impl Pulled {
    /// Reads the record in the kubelet's folder, or begins one. One that cannot be read is begun anew, and the log says
    /// so.
    pub(crate) fn open(root_dir: &Path, rng: &Rng) -> Pulled {
        let path = root_dir.join("image-pulls.json");
        let read = || -> io::Result<Option<Record>> {
            let Some(text) = read_if_exists(&path).map_err(io::Error::other)? else { return Ok(None) };
            serde_json::from_slice(&text).map(Some).map_err(io::Error::other)
        };
        let record = read().unwrap_or_else(|err| {
            warn!(path = %path.display(), err = %Chain(&err), "cannot read which images were pulled with credentials");
            None
        });
        let record = record.unwrap_or_else(|| Record { salt: rng.hex(16), ..Record::default() });
        Pulled { path, record: Mutex::new(record), writing: tokio::sync::Mutex::default() }
    }

    /// The key that stands for credentials.
    pub(super) fn key(&self, auth: &cri::AuthConfig) -> Key {
        let mut hash = Sha256::new();
        let record = self.lock();
        for part in
            [&record.salt, &auth.username, &auth.password, &auth.auth, &auth.identity_token, &auth.registry_token]
        {
            hash.update(part.len().to_le_bytes());
            hash.update(part);
        }
        Key(base::hex::encode(&hash.finalize()))
    }

    /// Whether a pod with these credentials may have an image that is here.
    pub(super) fn allows(&self, image: PulledImage<'_>, keys: &[Key]) -> bool {
        let PulledImage { id, repository } = image;
        let record = self.lock();
        match record.images.get(id) {
            None => !record.begun.contains(repository),
            Some(access) => {
                access.anyone
                    || access.keys.get(repository).is_some_and(|known| keys.iter().any(|key| known.contains(key)))
            }
        }
    }

    /// A pull with a pod's credentials begins. `here` are the ids of the repository's images that are here already:
    /// what is not noted of them was brought in by the operator, and stays everybody's however the pull ends. If one
    /// was broken off before, they are nobody's until they are pulled again.
    pub(super) async fn begin(&self, repository: &str, here: &[String]) -> Begun<'_> {
        let is_first = {
            let mut record = self.lock();
            let count = record.going_on.entry(repository.to_owned()).or_default();
            *count = count.saturating_add(1);
            let is_first = *count == 1;
            if is_first {
                record.doubtful.remove(repository);
                let anyone = record.begun.insert(repository.to_owned());
                for id in here {
                    if !record.images.contains_key(id) {
                        record.note(id).anyone = anyone;
                    }
                }
            }
            is_first
        };
        let begun = Begun { pulled: self, repository: repository.to_owned(), has_ended: false };
        if is_first {
            self.save().await;
        }
        begun
    }

    /// An image came: with the credentials of `key`, or with none that a pod gave.
    pub(super) async fn came(&self, image: PulledImage<'_>, key: Option<Key>) {
        let PulledImage { id, repository } = image;
        {
            let mut record = self.lock();
            let access = record.note(id);
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

    /// The count of all notes: those that follow are of later.
    pub(super) fn now(&self) -> u64 {
        self.lock().notes
    }

    /// Forgets images that are gone. `ids` are those that were here after `until`; what was noted since stays, too.
    pub(super) async fn keep(&self, ids: &BTreeSet<String>, until: u64) {
        let gone = {
            let mut record = self.lock();
            let before = record.images.len();
            record.images.retain(|id, access| ids.contains(id) || access.noted > until);
            before != record.images.len()
        };
        if gone {
            self.save().await;
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Record> {
        self.record.lock()
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

    fn image(id: &'static str, repository: &'static str) -> PulledImage<'static> {
        PulledImage { id, repository }
    }

    // review security-2.md F13
    #[tokio::test]
    async fn an_image_that_was_pulled_with_credentials_is_for_those_who_have_them() {
        let dir = tempfile::tempdir().unwrap();
        let pulled = Pulled::open(dir.path(), &Rng::from_seed(1));
        let key = |password: &str| pulled.key(&cri::AuthConfig { password: password.to_owned(), ..Default::default() });
        let (own, other) = (key("a"), key("b"));
        assert!(pulled.allows(image("preloaded", "r.io/x"), &[]));
        let begun = pulled.begin("r.io/a", &["older".to_owned()]).await;
        assert!(pulled.allows(image("older", "r.io/a"), &[]), "nobody's pull takes from others what the operator gave");
        assert!(
            !Pulled::open(dir.path(), &Rng::from_seed(2)).allows(image("new", "r.io/a"), &[]),
            "the kubelet ended amid the pull"
        );
        pulled.came(image("secret", "r.io/a"), Some(own.clone())).await;
        begun.end().await;
        assert!(pulled.allows(image("new", "r.io/a"), &[]), "nothing goes on any more");
        pulled.came(image("public", "r.io/b"), None).await;
        let again = Pulled::open(dir.path(), &Rng::from_seed(3));
        for record in [&pulled, &again] {
            assert!(record.allows(image("secret", "r.io/a"), &[other.clone(), own.clone()]));
            assert!(!record.allows(image("secret", "r.io/a"), std::slice::from_ref(&other)));
            assert!(
                !record.allows(image("secret", "docker.io/library/sha256"), std::slice::from_ref(&own)),
                "nor under another name"
            );
            assert!(record.allows(image("public", "r.io/b"), &[]));
        }
        again.came(image("secret", "r.io/a"), None).await;
        assert!(again.allows(image("secret", "r.io/a"), &[]), "it is public now");
        let _first = again.begin("r.io/a", &["secret".to_owned(), "later".to_owned()]).await;
        let _second = again.begin("r.io/a", &["latest".to_owned()]).await;
        assert!(!again.allows(image("latest", "r.io/a"), &[]), "it came while a pull had begun");
        again.keep(&BTreeSet::new(), again.now()).await;
        assert!(
            !String::from_utf8(std::fs::read(dir.path().join("image-pulls.json")).unwrap()).unwrap().contains("secret")
        );
    }

    // another pod's pull of the same repository that failed made everybody's what the first one was about to note
    #[tokio::test]
    async fn a_pull_that_goes_on_keeps_its_repository_from_others_whoever_else_fails() {
        let dir = tempfile::tempdir().unwrap();
        let pulled = Pulled::open(dir.path(), &Rng::from_seed(1));
        let first = pulled.begin("r.io/a", &[]).await;
        // The first one's image has landed and is not noted.
        let second = pulled.begin("r.io/a", &["landed".to_owned()]).await;
        second.end().await;
        pulled.came(image("other", "r.io/a"), None).await;
        assert!(!pulled.allows(image("landed", "r.io/a"), &[]));
        assert!(
            !Pulled::open(dir.path(), &Rng::from_seed(2)).allows(image("landed", "r.io/a"), &[]),
            "nor after an end of the kubelet"
        );
        // Broken off: a doubt remains, whoever else ends well.
        drop(first);
        assert!(!pulled.allows(image("landed", "r.io/a"), &[]));
        pulled.begin("r.io/a", &["landed".to_owned()]).await.end().await;
        assert!(!pulled.allows(image("landed", "r.io/a"), &[]), "it is nobody's until it is pulled again");
        assert!(pulled.allows(image("brought in later", "r.io/a"), &[]));
    }

    // the list of images was older than the record
    #[tokio::test]
    async fn what_was_noted_after_the_look_is_not_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let pulled = Pulled::open(dir.path(), &Rng::from_seed(1));
        let key = pulled.key(&cri::AuthConfig { password: "a".to_owned(), ..Default::default() });
        pulled.came(image("gone", "r.io/a"), Some(key.clone())).await;
        let until = pulled.now();
        pulled.came(image("secret", "r.io/a"), Some(key)).await;
        pulled.keep(&BTreeSet::new(), until).await;
        assert!(!pulled.allows(image("secret", "r.io/a"), &[]));
        assert!(pulled.allows(image("gone", "r.io/a"), &[]), "of this nothing is here");
    }
}
