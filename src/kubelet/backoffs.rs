//! Upstream's back-off of crash loops and image pulls: 10 s doubling to 5 minutes, forgotten after 10 quiet minutes.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

const FIRST_SECS: i64 = 10;
const MAX_SECS: i64 = 300;

#[derive(Clone, Debug)]
struct Entry {
    secs: i64,
    updated: Timestamp,
    why: String,
}

/// Back-offs by key.
#[derive(Clone, Debug)]
pub(crate) struct Backoffs {
    entries: BTreeMap<String, Entry>,
    max_secs: i64,
}

impl Default for Backoffs {
    fn default() -> Backoffs {
        Backoffs { entries: BTreeMap::new(), max_secs: MAX_SECS }
    }
}

impl Backoffs {
    /// Back-offs that are never longer, as `crashLoopBackOff.maxContainerRestartPeriod` says.
    pub(crate) fn up_to(max: Duration) -> Backoffs {
        let max_secs = i64::try_from(max.as_secs()).unwrap_or(MAX_SECS).clamp(1, MAX_SECS);
        Backoffs { entries: BTreeMap::new(), max_secs }
    }

    /// Counts a restart at `now` of what ended at `ended`.
    pub(crate) fn next(&mut self, key: &str, ended: Timestamp, now: Timestamp) {
        let secs = match self.entries.get(key) {
            Some(entry) if !expired(entry, ended) => (entry.secs * 2).min(self.max_secs),
            _ => FIRST_SECS.min(self.max_secs),
        };
        self.entries.insert(key.to_owned(), Entry { secs, updated: now, why: String::new() });
    }

    /// Until when the thing that ended at `ended` must wait, and how long the wait is in all. What ended later than
    /// `now` did so by a clock that was set back since: it has waited enough.
    pub(crate) fn wait(&self, key: &str, ended: Timestamp, now: Timestamp) -> Option<(Timestamp, i64)> {
        let entry = self.entries.get(key).filter(|entry| !expired(entry, ended) && ended <= now)?;
        let until = ended.checked_add(SignedDuration::from_secs(entry.secs)).ok()?;
        (now < until).then_some((until, entry.secs))
    }

    /// Counts a failure now; returns when to try again.
    pub(crate) fn fail(&mut self, key: &str, now: Timestamp, why: &str) -> Timestamp {
        self.next(key, now, now);
        let secs = self.entries.get_mut(key).map_or(FIRST_SECS, |entry| {
            entry.why = why.to_owned();
            entry.secs
        });
        now.checked_add(SignedDuration::from_secs(secs)).unwrap_or(now)
    }

    /// Whether an earlier failure still forbids another try, until when and why.
    pub(crate) fn blocked_until(&self, key: &str, now: Timestamp) -> Option<(Timestamp, String)> {
        let entry = self.entries.get(key).filter(|entry| entry.updated <= now)?;
        let until = entry.updated.checked_add(SignedDuration::from_secs(entry.secs)).ok()?;
        (now < until).then(|| (until, entry.why.clone()))
    }

    /// Forgets keys that begin with `prefix`.
    pub(crate) fn forget(&mut self, prefix: &str) {
        self.entries.retain(|key, _| !key.starts_with(prefix));
    }
}

fn expired(entry: &Entry, ended: Timestamp) -> bool {
    ended.duration_since(entry.updated).as_secs() > 2 * MAX_SECS
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(secs: i64) -> Timestamp {
        Timestamp::from_second(secs).unwrap()
    }

    #[test]
    fn a_clock_that_is_set_back_ends_a_wait() {
        let mut backoffs = Backoffs::default();
        assert_eq!(backoffs.fail("i", at(1000), "no"), at(1010));
        assert!(backoffs.blocked_until("i", at(1009)).is_some() && backoffs.blocked_until("i", at(10)).is_none());
        backoffs.next("c", at(1000), at(1000));
        assert!(backoffs.wait("c", at(1001), at(1001)).is_some() && backoffs.wait("c", at(1001), at(10)).is_none());
    }

    #[test]
    fn waits_double_up_to_five_minutes_and_a_long_run_resets_them() {
        let mut backoffs = Backoffs::default();
        assert_eq!(backoffs.wait("c", at(0), at(0)), None, "the first restart is at once");
        let mut now = 0;
        for expected in [10, 20, 40, 80, 160, 300, 300] {
            backoffs.next("c", at(now), at(now));
            assert_eq!(backoffs.wait("c", at(now + 1), at(now + 1)), Some((at(now + 1 + expected), expected)));
            now += 1 + expected;
        }
        backoffs.next("c", at(now + 1000), at(now + 1000));
        assert_eq!(backoffs.wait("c", at(now + 1000), at(now + 1000)).unwrap().1, 10);
    }

    // KEP-4603: the first wait is no longer than the longest.
    #[test]
    fn waits_are_never_longer_than_the_node_says() {
        let mut short = Backoffs::up_to(Duration::from_secs(15));
        let wait = |secs: i64, backoffs: &mut Backoffs| {
            backoffs.next("c", at(secs), at(secs));
            backoffs.wait("c", at(secs), at(secs)).unwrap().1
        };
        assert_eq!((wait(0, &mut short), wait(1, &mut short), wait(2, &mut short)), (10, 15, 15));
        assert_eq!(wait(0, &mut Backoffs::up_to(Duration::from_secs(1))), 1);
    }

    #[test]
    fn a_failure_blocks_with_its_reason_until_it_is_forgotten() {
        let mut backoffs = Backoffs::default();
        assert_eq!(backoffs.blocked_until("u/image", at(0)), None);
        assert_eq!(
            (backoffs.fail("u/image", at(0), "no"), backoffs.fail("u/image", at(10), "never")),
            (at(10), at(30))
        );
        assert_eq!(backoffs.blocked_until("u/image", at(29)), Some((at(30), "never".to_owned())));
        assert_eq!(backoffs.blocked_until("u/image", at(30)), None);
        backoffs.fail("v/image", at(10), "no");
        backoffs.forget("u/");
        assert_eq!(backoffs.blocked_until("u/image", at(29)), None);
        assert!(backoffs.blocked_until("v/image", at(19)).is_some());
    }
}
