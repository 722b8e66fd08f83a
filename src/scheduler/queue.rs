//! Pods that wait: those to try now, those that failed lately, and those that nothing but a change in the cluster can
//! help.
//!
//! Spec: upstream's scheduling queue (active, backoff, unschedulable), without its timers: a pod moves when an event or
//! its own back-off says so. As upstream's (SchedulerPopFromBackoffQ), a pod that an event has woken is not kept
//! waiting by its back-off when no other is to be tried.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

/// First back-off of a pod, and its bound; doubled with each attempt (upstream's defaults).
const BACKOFF_FIRST: Duration = Duration::from_secs(1);
const BACKOFF_MAX: Duration = Duration::from_secs(10);
/// A pod that no event has helped is tried again after this long, in case an event was missed.
const UNSCHEDULABLE_MAX: Duration = Duration::from_secs(300);
/// Attempts of a pod that events alone may bring about; from then on its back-off holds, or a busy cluster would try in
/// vain for ever.
const EARLY_ATTEMPTS: u32 = 5;

/// Key of a pod: `namespace/name`.
pub type Key = String;

#[derive(Clone, Copy, Debug)]
enum State {
    Active,
    /// Something happened that may help: not before this instant, unless there is nothing else to do.
    Woken(Instant),
    /// Not before this instant.
    Backoff(Instant),
    /// Since this instant.
    Unschedulable(Instant),
}

#[derive(Clone, Debug)]
struct Entry {
    priority: i32,
    /// Order of arrival.
    seq: u64,
    attempts: u32,
    state: State,
}

/// The waiting pods. Time is passed in, so tests own it.
#[derive(Debug, Default)]
pub struct Queue {
    entries: BTreeMap<Key, Entry>,
    next_seq: u64,
}

fn backoff(attempts: u32) -> Duration {
    BACKOFF_FIRST.saturating_mul(1 << attempts.saturating_sub(1).min(10)).min(BACKOFF_MAX)
}

impl Queue {
    /// A pod without a node was seen; one that waits already keeps its place.
    pub fn add(&mut self, key: Key, priority: i32) {
        let seq = self.next_seq;
        self.next_seq += 1;
        self.entries.entry(key).or_insert(Entry { priority, seq, attempts: 0, state: State::Active }).priority =
            priority;
    }

    /// The pod itself has changed in a way that may help: its back-off still holds.
    pub fn updated(&mut self, key: &str, now: Instant) {
        if let Some(entry) = self.entries.get_mut(key) {
            entry.wake(now);
        }
    }

    /// The pod has a node or is gone.
    pub fn remove(&mut self, key: &str) {
        self.entries.remove(key);
    }

    /// Something changed in the cluster: every unschedulable pod deserves another try, after its back-off.
    pub fn wake_all(&mut self, now: Instant) {
        for entry in self.entries.values_mut() {
            entry.wake(now);
        }
    }

    /// The pod to try next: highest priority, then first come. It stays until `remove` or `failed`.
    pub fn pop(&mut self, now: Instant) -> Option<Key> {
        for entry in self.entries.values_mut() {
            entry.ripen(now);
        }
        let first = |wanted: fn(&Entry) -> bool| {
            let ready = self.entries.iter().filter(|(_, entry)| wanted(entry));
            ready.min_by_key(|(_, entry)| (std::cmp::Reverse(entry.priority), entry.seq)).map(|(key, _)| key.clone())
        };
        let is_early = |entry: &Entry| matches!(entry.state, State::Woken(_)) && entry.attempts <= EARLY_ATTEMPTS;
        first(|entry| matches!(entry.state, State::Active)).or_else(|| first(is_early))
    }

    /// The pod found no node: it waits for a change in the cluster.
    pub fn unschedulable(&mut self, key: &str, now: Instant) {
        if let Some(entry) = self.entries.get_mut(key) {
            entry.attempts = entry.attempts.saturating_add(1);
            entry.state = State::Unschedulable(now);
        }
    }

    /// The attempt failed for another reason (a lost request): try again after the back-off.
    pub fn failed(&mut self, key: &str, now: Instant) {
        if let Some(entry) = self.entries.get_mut(key) {
            entry.attempts = entry.attempts.saturating_add(1);
            entry.state = State::Backoff(now + backoff(entry.attempts));
        }
    }

    /// When a waiting pod becomes ready by itself; `None` if none ever will.
    pub fn next_wake(&self) -> Option<Instant> {
        let at = |entry: &Entry| match entry.state {
            State::Active => None,
            State::Woken(until) | State::Backoff(until) => Some(until),
            State::Unschedulable(since) => Some(since + UNSCHEDULABLE_MAX),
        };
        self.entries.values().filter_map(at).min()
    }
}

impl Entry {
    fn wake(&mut self, now: Instant) {
        if let State::Unschedulable(since) = self.state {
            let until = since + backoff(self.attempts);
            self.state = if until <= now { State::Active } else { State::Woken(until) };
        }
    }

    fn ripen(&mut self, now: Instant) {
        let ripe = match self.state {
            State::Active => false,
            State::Woken(until) | State::Backoff(until) => until <= now,
            State::Unschedulable(since) => since + UNSCHEDULABLE_MAX <= now,
        };
        if ripe {
            self.state = State::Active;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unschedulable_pod_waits_for_an_event_and_for_all_that_are_not_in_their_backoff() {
        let (mut queue, start) = (Queue::default(), Instant::now());
        queue.add("default/a".to_owned(), 0);
        assert_eq!(queue.pop(start).as_deref(), Some("default/a"));
        queue.unschedulable("default/a", start);
        assert_eq!(queue.pop(start + Duration::from_secs(60)), None);
        queue.wake_all(start);
        queue.add("default/b".to_owned(), -1);
        assert_eq!(queue.pop(start).as_deref(), Some("default/b"));
        assert_eq!(queue.pop(start + BACKOFF_FIRST).as_deref(), Some("default/a"));
        queue.remove("default/b");
        assert_eq!(queue.pop(start).as_deref(), Some("default/a"));
    }

    #[test]
    fn after_some_attempts_the_backoff_holds_against_events() {
        let (mut queue, start) = (Queue::default(), Instant::now());
        queue.add("default/a".to_owned(), 0);
        let mut early = 0;
        while queue.pop(start).is_some() {
            early += 1;
            queue.unschedulable("default/a", start);
            queue.wake_all(start);
        }
        assert_eq!((early, queue.next_wake()), (EARLY_ATTEMPTS + 1, Some(start + BACKOFF_MAX)));
    }

    #[test]
    fn a_lost_request_waits_out_its_backoff() {
        let (mut queue, start) = (Queue::default(), Instant::now());
        queue.add("default/a".to_owned(), 0);
        queue.failed("default/a", start);
        queue.wake_all(start);
        assert_eq!((queue.pop(start), queue.next_wake()), (None, Some(start + BACKOFF_FIRST)));
        assert_eq!(queue.pop(start + BACKOFF_FIRST).as_deref(), Some("default/a"));
    }

    #[test]
    fn priority_goes_before_age() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        queue.add("default/old".to_owned(), 0);
        queue.add("default/urgent".to_owned(), 10);
        assert_eq!(queue.pop(now).as_deref(), Some("default/urgent"));
        queue.remove("default/urgent");
        assert_eq!(queue.pop(now).as_deref(), Some("default/old"));
    }
}
