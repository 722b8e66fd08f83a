//! Places: how many of something are under way, for each key and in all. One that is asked for beyond that is refused
//! at once; a place is given back when it is dropped.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::sync::{Mutex, MutexGuard};

/// Places by key.
pub struct Places<K> {
    per_key_max: usize,
    all_max: usize,
    taken: Mutex<Taken<K>>,
}

struct Taken<K> {
    /// Keys with at least one place; no others, as strangers choose the keys.
    by_key: BTreeMap<K, usize>,
    n: usize,
}

/// Why there is no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    /// The key has all that one may have.
    Key,
    /// All keys together have all that there are.
    All,
}

/// One place; given back when it is dropped.
pub struct Place<K: Ord> {
    key: K,
    places: Arc<Places<K>>,
}

impl<K: Ord + Clone> Places<K> {
    /// So many places for one key, and so many in all.
    pub fn new(per_key_max: usize, all_max: usize) -> Arc<Places<K>> {
        Arc::new(Places { per_key_max, all_max, taken: Mutex::new(Taken { by_key: BTreeMap::new(), n: 0 }) })
    }

    /// A place for `key`. A refusal leaves nothing behind.
    pub fn take(self: &Arc<Places<K>>, key: K) -> Result<Place<K>, Full> {
        let mut taken = self.lock();
        let own = taken.by_key.get(&key).copied().unwrap_or(0);
        if own >= self.per_key_max {
            return Err(Full::Key);
        }
        if taken.n >= self.all_max {
            return Err(Full::All);
        }
        taken.by_key.insert(key.clone(), own + 1);
        taken.n += 1;
        Ok(Place { key, places: Arc::clone(self) })
    }
}

impl<K> Places<K> {
    /// How many keys have a place.
    pub fn n_keys(&self) -> usize {
        self.lock().by_key.len()
    }

    fn lock(&self) -> MutexGuard<'_, Taken<K>> {
        self.taken.lock()
    }
}

impl<K: Ord> Drop for Place<K> {
    fn drop(&mut self) {
        let mut taken = self.places.lock();
        taken.n -= 1;
        if let Some(own) = taken.by_key.get_mut(&self.key) {
            *own -= 1;
            if *own == 0 {
                taken.by_key.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_has_its_share_and_a_refusal_leaves_nothing_behind() {
        let places = Places::new(2, 3);
        let held = [places.take("a").unwrap(), places.take("a").unwrap()];
        assert_eq!(places.take("a").err(), Some(Full::Key));
        let other = places.take("b").unwrap();
        assert_eq!(places.take("c").err(), Some(Full::All));
        assert_eq!(places.n_keys(), 2);
        drop(held);
        assert!(places.take("c").is_ok());
        drop(other);
        assert_eq!(places.n_keys(), 0);
    }
}
