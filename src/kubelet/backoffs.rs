//! Upstream's back-off of crash loops and image pulls: 10 s doubling to 5 minutes, forgotten after 10 quiet minutes.

use std::collections::BTreeMap;

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
#[derive(Clone, Debug, Default)]
pub(crate) struct Backoffs(BTreeMap<String, Entry>);

impl Backoffs {
    /// Counts a restart at `now` of what ended at `ended`.
    pub(crate) fn next(&mut self, key: &str, ended: Timestamp, now: Timestamp) {
        let secs = match self.0.get(key) {
            Some(entry) if !expired(entry, ended) => (entry.secs * 2).min(MAX_SECS),
            _ => FIRST_SECS,
        };
        self.0.insert(key.to_owned(), Entry { secs, updated: now, why: String::new() });
    }

    /// Until when the thing that ended at `ended` must wait, and how long the wait is in all. What ended later than
    /// `now` did so by a clock that was set back since: it has waited enough.
    pub(crate) fn wait(&self, key: &str, ended: Timestamp, now: Timestamp) -> Option<(Timestamp, i64)> {
        let entry = self.0.get(key).filter(|entry| !expired(entry, ended) && ended <= now)?;
        let until = ended.checked_add(SignedDuration::from_secs(entry.secs)).ok()?;
        (now < until).then_some((until, entry.secs))
    }

    /// Counts a failure now; returns when to try again.
    pub(crate) fn fail(&mut self, key: &str, now: Timestamp, why: &str) -> Timestamp {
        self.next(key, now, now);
        let secs = self.0.get_mut(key).map_or(FIRST_SECS, |entry| {
            entry.why = why.to_owned();
            entry.secs
        });
        now.checked_add(SignedDuration::from_secs(secs)).unwrap_or(now)
    }

    /// Whether an earlier failure still forbids another try, until when and why.
    pub(crate) fn blocked_until(&self, key: &str, now: Timestamp) -> Option<(Timestamp, String)> {
        let entry = self.0.get(key).filter(|entry| entry.updated <= now)?;
        let until = entry.updated.checked_add(SignedDuration::from_secs(entry.secs)).ok()?;
        (now < until).then(|| (until, entry.why.clone()))
    }

    /// Forgets keys that begin with `prefix`.
    pub(crate) fn forget(&mut self, prefix: &str) {
        self.0.retain(|key, _| !key.starts_with(prefix));
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
