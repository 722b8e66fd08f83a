//! Waiting longer after each failure: doubled delays with a bound and jitter.

use std::time::Duration;

use crate::rng::Rng;

/// Delays `first, 2·first, 4·first, …` up to `max`, each with up to a tenth added.
#[derive(Clone, Debug)]
pub struct Backoff {
    first: Duration,
    max: Duration,
    failures: u32,
}

impl Backoff {
    /// Starts at `first`, never waits longer than `max` plus a tenth.
    pub fn new(first: Duration, max: Duration) -> Backoff {
        Backoff { first, max, failures: 0 }
    }

    /// The next delay; each call counts as one more failure.
    pub fn next(&mut self, rng: &Rng) -> Duration {
        let delay =
            self.first.saturating_mul(1u32.checked_shl(self.failures.min(30)).unwrap_or(u32::MAX)).min(self.max);
        self.failures = self.failures.saturating_add(1);
        rng.jitter(delay, 10)
    }

    /// Failures since the last success.
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// A success: the next delay is the first again.
    pub fn reset(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_the_bound() {
        let rng = Rng::from_seed(1);
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_millis(350));
        let delays: Vec<u64> = (0..4).map(|_| backoff.next(&rng).as_millis() as u64).collect();
        for (delay, floor) in delays.iter().zip([100, 200, 350, 350]) {
            assert!((floor..=floor + floor / 10).contains(delay), "{delays:?}");
        }
    }
}
