//! A work queue: keys that need attention, each once, one worker at a time, with delays and back-off after failures.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::hash::Hash;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

/// Back-off of a key after failures: first, and bound (upstream's item limiter: 5 ms doubled, with a closer bound).
const BACKOFF_FIRST: Duration = Duration::from_millis(5);
const BACKOFF_MAX: Duration = Duration::from_secs(120);

struct State<K> {
    ready: VecDeque<K>,
    /// Keys in `ready`, and keys to run again after the worker that has them.
    wanted: BTreeSet<K>,
    working: BTreeSet<K>,
    delayed: BTreeMap<(Instant, K), ()>,
    failures: HashMap<K, u32>,
}

/// Keys to work on. Shared by reference or in an `Arc`.
pub struct Queue<K> {
    state: Mutex<State<K>>,
    changed: Notify,
}

impl<K: Clone + Ord + Hash> Default for Queue<K> {
    fn default() -> Queue<K> {
        let state = State {
            ready: VecDeque::new(),
            wanted: BTreeSet::new(),
            working: BTreeSet::new(),
            delayed: BTreeMap::new(),
            failures: HashMap::new(),
        };
        Queue { state: Mutex::new(state), changed: Notify::new() }
    }
}

impl<K: Clone + Ord + Hash> Queue<K> {
    fn lock(&self) -> MutexGuard<'_, State<K>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks for `key` to be worked on. One that waits already is not added again; one that is being worked on runs once more.
    pub fn add(&self, key: K) {
        self.lock().add(key);
        self.changed.notify_one();
    }

    /// The same, not before `delay` has passed.
    pub fn add_after(&self, key: K, delay: Duration) {
        if delay.is_zero() {
            return self.add(key);
        }
        self.lock().delayed.insert((Instant::now() + delay, key), ());
        self.changed.notify_one();
    }

    /// Asks again after a failure, later each time.
    pub fn retry(&self, key: K) {
        let failures = {
            let mut state = self.lock();
            let failures = state.failures.entry(key.clone()).or_default();
            *failures = failures.saturating_add(1);
            *failures
        };
        self.add_after(key, BACKOFF_FIRST.saturating_mul(1 << failures.saturating_sub(1).min(20)).min(BACKOFF_MAX));
    }

    /// The key went well: its next failure waits briefly again.
    pub fn forget(&self, key: &K) {
        self.lock().failures.remove(key);
    }

    /// The next key to work on; `done` must be called for it. Cancel safe.
    pub async fn next(&self) -> K {
        loop {
            let wake = {
                let mut state = self.lock();
                state.ripen(Instant::now());
                if let Some(key) = state.take() {
                    if !state.ready.is_empty() {
                        self.changed.notify_one();
                    }
                    return key;
                }
                state.delayed.keys().next().map(|(at, _)| *at)
            };
            match wake {
                Some(at) => {
                    tokio::select! {
                        () = self.changed.notified() => {}
                        () = tokio::time::sleep_until(at) => {}
                    }
                }
                None => self.changed.notified().await,
            }
        }
    }

    /// The worker has finished with `key`.
    pub fn done(&self, key: &K) {
        let mut state = self.lock();
        state.working.remove(key);
        if state.wanted.contains(key) {
            state.ready.push_back(key.clone());
            drop(state);
            self.changed.notify_one();
        }
    }
}

impl<K: Clone + Ord + Hash> State<K> {
    fn add(&mut self, key: K) {
        if self.wanted.insert(key.clone()) && !self.working.contains(&key) {
            self.ready.push_back(key);
        }
    }

    fn ripen(&mut self, now: Instant) {
        while let Some(entry) = self.delayed.first_entry().filter(|entry| entry.key().0 <= now) {
            let ((_, key), ()) = entry.remove_entry();
            self.add(key);
        }
    }

    fn take(&mut self) -> Option<K> {
        let key = self.ready.pop_front()?;
        self.wanted.remove(&key);
        self.working.insert(key.clone());
        Some(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_key_waits_once_and_runs_again_if_asked_while_worked_on() {
        let queue = Queue::default();
        queue.add("a");
        queue.add("a");
        queue.add("b");
        assert_eq!(queue.next().await, "a");
        queue.add("a");
        assert_eq!(queue.next().await, "b");
        assert!(queue.lock().ready.is_empty());
        queue.done(&"a");
        assert_eq!(queue.next().await, "a");
    }

    #[tokio::test]
    async fn failures_wait_longer_each_time_until_forgotten() {
        let queue = Queue::default();
        let delay = |queue: &Queue<&'static str>| {
            let now = Instant::now();
            queue.retry("a");
            let ((at, _), ()) = queue.lock().delayed.pop_last().unwrap();
            at - now
        };
        let (first, second) = (delay(&queue), delay(&queue));
        assert!(second >= first + BACKOFF_FIRST / 2, "{first:?} {second:?}");
        queue.forget(&"a");
        assert!(delay(&queue) < second);
    }
}
