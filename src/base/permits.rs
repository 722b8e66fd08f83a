//! Permits: how many of something are under way, for each key and in all. One that is asked for beyond that is refused
//! at once; a permit is given back when it is dropped.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::sync::{Mutex, MutexGuard};

/// Permits by key.
pub struct Permits<K> {
    per_key_max: usize,
    all_max: usize,
    taken: Mutex<Taken<K>>,
}

struct Taken<K> {
    /// Keys with at least one permit; no others, as strangers choose the keys.
    by_key: BTreeMap<K, usize>,
    n: usize,
}

/// Why there is no permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    /// The key has all that one may have.
    Key,
    /// All keys together have all that there are.
    All,
}

/// One permit; given back when it is dropped.
pub struct Permit<K: Ord> {
    key: K,
    permits: Arc<Permits<K>>,
}

impl<K: Ord + Clone> Permits<K> {
    /// So many permits for one key, and so many in all.
    pub fn new(per_key_max: usize, all_max: usize) -> Arc<Permits<K>> {
        Arc::new(Permits { per_key_max, all_max, taken: Mutex::new(Taken { by_key: BTreeMap::new(), n: 0 }) })
    }

    /// A permit for `key`. A refusal leaves nothing behind.
    pub fn take(self: &Arc<Permits<K>>, key: K) -> Result<Permit<K>, Full> {
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
        Ok(Permit { key, permits: Arc::clone(self) })
    }
}

impl<K> Permits<K> {
    /// How many keys have a permit.
    pub fn n_keys(&self) -> usize {
        self.lock().by_key.len()
    }

    fn lock(&self) -> MutexGuard<'_, Taken<K>> {
        self.taken.lock()
    }
}

impl<K: Ord> Drop for Permit<K> {
    fn drop(&mut self) {
        let mut taken = self.permits.lock();
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
        let permits = Permits::new(2, 3);
        let held = [permits.take("a").unwrap(), permits.take("a").unwrap()];
        assert_eq!(permits.take("a").err(), Some(Full::Key));
        let other = permits.take("b").unwrap();
        assert_eq!(permits.take("c").err(), Some(Full::All));
        assert_eq!(permits.n_keys(), 2);
        drop(held);
        assert!(permits.take("c").is_ok());
        drop(other);
        assert_eq!(permits.n_keys(), 0);
    }
}
