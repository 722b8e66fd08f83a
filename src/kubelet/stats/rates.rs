//! Rates of CPU from counters that only grow.

use std::collections::HashMap;
use std::time::Duration;

use base::sync::Mutex;
use base::time::Stopwatch;

/// Rates need two looks that are at least this far apart.
const RATE_TIME_MIN: Duration = Duration::from_millis(500);

/// CPU counters at an earlier look, by the key of what they count: for rates. Time is measured, not read: the machine's
/// clock may be set.
pub(crate) struct Rates {
    began: Stopwatch,
    samples: Mutex<HashMap<String, Sample>>,
}

#[derive(Clone, Copy)]
struct Sample {
    at: Duration,
    nanos: u64,
    pub(super) rate: Option<u64>,
}

impl Default for Rates {
    fn default() -> Rates {
        Rates { began: Stopwatch::start(), samples: Mutex::default() }
    }
}

impl Rates {
    /// Nanoseconds of CPU per second since the look before. A question right after another gets the same answer.
    pub(super) fn rate(&self, key: &str, nanos: u64) -> Option<u64> {
        self.rate_at(self.began.elapsed(), key, nanos)
    }

    fn rate_at(&self, now: Duration, key: &str, nanos: u64) -> Option<u64> {
        let mut map = self.samples.lock();
        let before = map.get(key).copied();
        let passed = before.map_or(Duration::ZERO, |b| now.saturating_sub(b.at));
        if let Some(before) = before.filter(|_| passed < RATE_TIME_MIN) {
            return before.rate;
        }
        let grown = before.and_then(|b| nanos.checked_sub(b.nanos));
        let rate = grown
            .map(|grown| grown.saturating_mul(1000) / u64::try_from(passed.as_millis()).unwrap_or(u64::MAX).max(1));
        map.insert(key.to_owned(), Sample { at: now, nanos, rate });
        rate
    }

    pub(super) fn keep(&self, wanted: impl Fn(&str) -> bool) {
        self.samples.lock().retain(|key, _| wanted(key));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_needs_two_looks_and_a_hurried_one_gets_the_last_answer() {
        let rates = Rates::default();
        let rate = |millis: u64, nanos: u64| rates.rate_at(Duration::from_millis(millis), "c", nanos);
        assert_eq!(rate(0, 0), None);
        assert_eq!(rate(2000, 1_000_000_000), Some(500_000_000));
        assert_eq!(rate(2001, 9_000_000_000), Some(500_000_000));
        assert_eq!(rate(4000, 5), None, "a counter that began anew says nothing");
    }
}
