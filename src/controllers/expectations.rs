//! Bridges the time between a write and its echo in the cache, so that nothing is created or deleted twice.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use base::sync::Mutex;
use client::informer::Key;
use tokio::time::Instant;

/// An echo that has not come by then never will (upstream's `ExpectationsTimeout`).
const TIMEOUT: Duration = Duration::from_secs(300);

#[derive(Default)]
struct Pending {
    created: BTreeSet<String>,
    deleted: BTreeSet<String>,
    since: Option<Instant>,
}

/// Uids of written objects that the cache does not show yet, by owner.
#[derive(Default)]
pub(crate) struct Expectations(Mutex<HashMap<Key, Pending>>);

impl Expectations {
    fn with<T>(&self, look: impl FnOnce(&mut HashMap<Key, Pending>) -> T) -> T {
        look(&mut self.0.lock())
    }

    /// `owner` has created the object `uid`.
    pub(crate) fn created(&self, owner: &Key, uid: String) {
        self.with(|all| {
            let pending = all.entry(owner.clone()).or_default();
            pending.created.insert(uid);
            pending.since = Some(Instant::now());
        });
    }

    /// `owner` has deleted the object `uid`.
    pub(crate) fn deleted(&self, owner: &Key, uid: String) {
        self.with(|all| {
            let pending = all.entry(owner.clone()).or_default();
            pending.deleted.insert(uid);
            pending.since = Some(Instant::now());
        });
    }

    /// The watch has shown the deletion of `uid`: neither its creation nor its deletion is awaited any more.
    pub(crate) fn gone(&self, owner: &Key, uid: &str) {
        self.with(|all| {
            if let Some(pending) = all.get_mut(owner) {
                pending.created.remove(uid);
                pending.deleted.remove(uid);
            }
        });
    }

    /// Whether the cache, which shows `present` and has seen `leaving` being deleted, has caught up with `owner`'s
    /// writes.
    pub(crate) fn met(&self, owner: &Key, present: &BTreeSet<String>, leaving: &BTreeSet<String>) -> bool {
        self.with(|all| {
            let Some(pending) = all.get_mut(owner) else { return true };
            pending.created.retain(|uid| !present.contains(uid));
            pending.deleted.retain(|uid| present.contains(uid) && !leaving.contains(uid));
            let expired = pending.since.is_some_and(|since| since.elapsed() > TIMEOUT);
            let met = expired || pending.created.is_empty() && pending.deleted.is_empty();
            if met {
                all.remove(owner);
            }
            met
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(uids: &[&str]) -> BTreeSet<String> {
        uids.iter().map(|uid| (*uid).to_owned()).collect()
    }

    #[test]
    fn writes_are_awaited_until_the_cache_shows_them() {
        let (expectations, owner) = (Expectations::default(), Key::new("default", "web"));
        expectations.created(&owner, "a".to_owned());
        expectations.deleted(&owner, "b".to_owned());
        assert!(!expectations.met(&owner, &set(&["b"]), &set(&[])));
        assert!(!expectations.met(&owner, &set(&["a", "b"]), &set(&[])));
        assert!(expectations.met(&owner, &set(&["a", "b"]), &set(&["b"])));
        assert!(expectations.met(&owner, &set(&[]), &set(&[])));
    }

    #[test]
    fn an_object_that_came_and_went_unseen_is_not_awaited() {
        let (expectations, owner) = (Expectations::default(), Key::new("default", "web"));
        expectations.created(&owner, "a".to_owned());
        expectations.gone(&owner, "a");
        assert!(expectations.met(&owner, &set(&[]), &set(&[])));
    }
}
