//! Objects that this scheduler has written and that have not come back through the watch: without them the next pod
//! would be promised the same volume. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use client::informer::Key;
use kube::{Resource, ResourceExt as _};

/// Objects that were written, by key, with the version that each replaced.
pub(crate) struct Assumed<K>(BTreeMap<Key, (Option<String>, Arc<K>)>);

impl<K> Default for Assumed<K> {
    fn default() -> Assumed<K> {
        Assumed(BTreeMap::new())
    }
}

impl<K: Resource> Assumed<K> {
    /// `before` has become `now`.
    pub(crate) fn wrote(&mut self, before: &K, now: K) {
        // Written twice in a row: the cache shows what was there before the first.
        let key = Key::of(before);
        let seen = self.0.remove(&key).filter(|(_, last)| last.resource_version() == before.resource_version());
        let version = seen.map_or_else(|| before.resource_version(), |(version, _)| version);
        self.0.insert(key, (version, Arc::new(now)));
    }

    /// `cached` as it will be. An object that the cache shows in another version than the one that was replaced is
    /// newer there.
    pub(crate) fn over(&mut self, cached: Vec<Arc<K>>) -> Vec<Arc<K>> {
        if self.0.is_empty() {
            return cached;
        }
        let mut still = BTreeMap::new();
        let over = cached.into_iter().map(|object| {
            let key = Key::of(&*object);
            match self.0.remove(&key) {
                Some((version, now)) if version == object.resource_version() => {
                    still.insert(key, (version, Arc::clone(&now)));
                    now
                }
                _ => object,
            }
        });
        let over = over.collect();
        self.0 = still;
        over
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::PersistentVolume;
    use serde_json::json;

    use super::*;

    fn volume(name: &str, version: &str) -> PersistentVolume {
        serde_json::from_value(json!({"metadata": {"name": name, "resourceVersion": version}})).unwrap()
    }

    fn versions(assumed: &mut Assumed<PersistentVolume>, cached: &[(&str, &str)]) -> Vec<String> {
        let cached = cached.iter().map(|(name, version)| Arc::new(volume(name, version))).collect();
        assumed.over(cached).iter().map(|volume| volume.resource_version().unwrap()).collect()
    }

    #[test]
    fn what_was_written_counts_until_the_cache_has_it() {
        let mut assumed = Assumed::default();
        assumed.wrote(&volume("a", "1"), volume("a", "5"));
        assert_eq!(versions(&mut assumed, &[("a", "1"), ("b", "2")]), ["5", "2"]);
        assumed.wrote(&volume("a", "5"), volume("a", "6"));
        assert_eq!(versions(&mut assumed, &[("a", "1")]), ["6"]);
        assert_eq!(versions(&mut assumed, &[("a", "7")]), ["7"]);
        assert_eq!(versions(&mut assumed, &[("a", "1")]), ["1"]);
    }

    #[test]
    fn what_is_gone_is_forgotten() {
        let mut assumed = Assumed::default();
        assumed.wrote(&volume("a", "1"), volume("a", "5"));
        assert!(versions(&mut assumed, &[]).is_empty());
        assert_eq!(versions(&mut assumed, &[("a", "1")]), ["1"]);
    }
}
