//! A work queue: keys that need attention, each once, one worker at a time, with delays and back-off after failures.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::hash::Hash;
use std::sync::OnceLock;
use std::time::Duration;

use base::exposition::Metric;
use base::metrics;
use base::sync::{Mutex, MutexGuard};
use tokio::sync::Notify;
use tokio::time::Instant;

/// Back-off of a key after failures: first, and bound (upstream's item limiter: 5 ms doubled, with a closer bound).
const BACKOFF_FIRST: Duration = Duration::from_millis(5);
const BACKOFF_MAX: Duration = Duration::from_secs(120);

const ADDS: Metric = Metric { name: "workqueue_adds_total", help: "Keys added to a work queue." };
const DEPTH: Metric = Metric { name: "workqueue_depth", help: "Keys that wait in a work queue." };
const RETRIES: Metric = Metric { name: "workqueue_retries_total", help: "Keys added again after a failure." };
const WAITED: Metric = Metric { name: "workqueue_queue_duration_seconds", help: "How long keys waited for a worker." };
const WORKED: Metric = Metric { name: "workqueue_work_duration_seconds", help: "How long workers took for a key." };

struct State<K> {
    /// With the moment since which they wait.
    ready: VecDeque<(K, Instant)>,
    /// Keys in `ready`, and keys to run again after the worker that has them.
    wanted: BTreeSet<K>,
    working: BTreeMap<K, Instant>,
    /// By the moment from which they are wanted; a key once.
    delayed: BTreeSet<(Instant, K)>,
    /// The moment of each key in `delayed`.
    due: HashMap<K, Instant>,
    failures: HashMap<K, u32>,
}

/// Keys to work on. Shared by reference or in an `Arc`.
pub struct Queue<K> {
    /// Under which it is counted; without one it is not.
    name: OnceLock<&'static str>,
    state: Mutex<State<K>>,
    changed: Notify,
}

impl<K: Clone + Ord + Hash> Default for Queue<K> {
    fn default() -> Queue<K> {
        let state = State {
            ready: VecDeque::new(),
            wanted: BTreeSet::new(),
            working: BTreeMap::new(),
            delayed: BTreeSet::new(),
            due: HashMap::new(),
            failures: HashMap::new(),
        };
        Queue { name: OnceLock::new(), state: Mutex::new(state), changed: Notify::new() }
    }
}

impl<K: Clone + Ord + Hash> Queue<K> {
    fn lock(&self) -> MutexGuard<'_, State<K>> {
        self.state.lock()
    }

    /// Counts what goes through it under this name, from now on.
    pub fn named(&self, name: &'static str) {
        let _first_name_stays = self.name.set(name);
    }

    fn measure(&self, n_added: usize, depth: usize) {
        let Some(name) = self.name.get() else { return };
        if n_added > 0 {
            metrics::count(ADDS, &[("name", name)], n_added as u64);
        }
        metrics::set(DEPTH, &[("name", name)], depth as f64);
    }

    /// Asks for `key` to be worked on. One that waits already is not added again; one that is being worked on runs once
    /// more.
    pub fn add(&self, key: K) {
        let (added, depth) = {
            let mut state = self.lock();
            (state.add(key), state.ready.len())
        };
        self.measure(usize::from(added), depth);
        self.changed.notify_one();
    }

    /// The same, not before `delay` has passed. A key waits for one moment only, the soonest that was asked for: who
    /// asks again after each look has one timer, and not one more for each event (upstream's `delayingType.insert`).
    pub fn add_after(&self, key: K, delay: Duration) {
        if delay.is_zero() {
            return self.add(key);
        }
        self.lock().delay(key, Instant::now() + delay);
        self.changed.notify_one();
    }

    /// Asks for every key that waits for its moment now: delays are spans of time, and those that were measured by a
    /// clock which was set since then end at a wrong one.
    pub fn add_delayed(&self) {
        let (n_added, depth) = {
            let mut state = self.lock();
            let last = state.delayed.last().map(|(at, _)| *at);
            (last.map_or(0, |at| state.ripen(at)), state.ready.len())
        };
        self.measure(n_added, depth);
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
        if let Some(name) = self.name.get() {
            metrics::count(RETRIES, &[("name", name)], 1);
        }
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
                let n_ripe = state.ripen(Instant::now());
                if let Some((key, since)) = state.take() {
                    let depth = state.ready.len();
                    if depth > 0 {
                        self.changed.notify_one();
                    }
                    drop(state);
                    self.measure(n_ripe, depth);
                    if let Some(name) = self.name.get() {
                        metrics::observe(WAITED, &[("name", name)], since.elapsed());
                    }
                    return key;
                }
                state.delayed.first().map(|(at, _)| *at)
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
        let began = state.working.remove(key);
        let again = state.wanted.contains(key);
        if again {
            state.ready.push_back((key.clone(), Instant::now()));
        }
        drop(state);
        if again {
            self.changed.notify_one();
        }
        if let (Some(name), Some(began)) = (self.name.get(), began) {
            metrics::observe(WORKED, &[("name", name)], began.elapsed());
        }
    }
}

impl<K: Clone + Ord + Hash> State<K> {
    /// Whether it was not wanted already.
    fn add(&mut self, key: K) -> bool {
        let new = self.wanted.insert(key.clone());
        if new && !self.working.contains_key(&key) {
            self.ready.push_back((key, Instant::now()));
        }
        new
    }

    fn delay(&mut self, key: K, at: Instant) {
        if let Some(known) = self.due.get(&key) {
            if *known <= at {
                return;
            }
            let _was_there = self.delayed.remove(&(*known, key.clone()));
        }
        self.due.insert(key.clone(), at);
        self.delayed.insert((at, key));
    }

    /// How many keys' time has come.
    fn ripen(&mut self, now: Instant) -> usize {
        let mut n_added = 0;
        while self.delayed.first().is_some_and(|(at, _)| *at <= now) {
            let Some((_, key)) = self.delayed.pop_first() else { break };
            self.due.remove(&key);
            n_added += usize::from(self.add(key));
        }
        n_added
    }

    fn take(&mut self) -> Option<(K, Instant)> {
        let (key, since) = self.ready.pop_front()?;
        self.wanted.remove(&key);
        self.working.insert(key.clone(), Instant::now());
        Some((key, since))
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

    // Semantics H5: each look of a periodic controller added a timer of its own, and each timer one more look.
    #[test]
    fn a_key_has_one_timer_and_the_sooner_one() {
        let (queue, start) = (Queue::default(), Instant::now());
        for secs in [300, 200, 400, 200] {
            queue.add_after("a", Duration::from_secs(secs));
        }
        let mut state = queue.lock();
        assert_eq!((state.delayed.len(), state.due.len()), (1, 1));
        assert_eq!(state.ripen(start + Duration::from_secs(199)), 0);
        assert_eq!(state.ripen(start + Duration::from_secs(201)), 1);
        assert!(state.delayed.is_empty() && state.due.is_empty());
    }

    // The machine's clock went back an hour and then ahead a day: what waited for an hour by the first one was asked
    // for by nobody.
    #[test]
    fn a_clock_that_was_set_ends_every_wait() {
        let queue = Queue::default();
        for (key, secs) in [("a", 3_600), ("b", 60)] {
            queue.add_after(key, Duration::from_secs(secs));
        }
        queue.add_delayed();
        let mut state = queue.lock();
        let ready: Vec<_> = std::iter::from_fn(|| state.take()).map(|(key, _)| key).collect();
        assert_eq!((ready, state.delayed.len(), state.due.len()), (vec!["b", "a"], 0, 0));
    }

    #[tokio::test]
    async fn failures_wait_longer_each_time_until_forgotten() {
        let queue = Queue::default();
        let delay = |queue: &Queue<&'static str>| {
            let now = Instant::now();
            queue.retry("a");
            let mut state = queue.lock();
            let (at, key) = state.delayed.pop_last().unwrap();
            state.due.remove(key);
            at - now
        };
        let (first, second) = (delay(&queue), delay(&queue));
        assert!(second >= first + BACKOFF_FIRST / 2, "{first:?} {second:?}");
        queue.forget(&"a");
        assert!(delay(&queue) < second);
    }
}
