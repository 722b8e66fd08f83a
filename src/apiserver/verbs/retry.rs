//! Lost races: a write whose object somebody else changed meanwhile is made again, after a pause, until the request's
//! time is over.
//!
//! A group commit lets one of all writers of an object win, so the number of rounds is the number of writers: it is no
//! bound. The deadline of every request (`pipeline`) ends the loop. Spec: upstream's `GuaranteedUpdate`.

use std::time::Duration;

use base::rng::Rng;

/// Longest pause between two tries; the first follows at once.
const PAUSE_MS_MAX: u64 = 64;

/// Counts the tries of one write.
pub struct Retry<'s> {
    rng: &'s Rng,
    n_lost: u32,
}

impl<'s> Retry<'s> {
    /// Before the first try.
    pub fn new(rng: &'s Rng) -> Retry<'s> {
        Retry { rng, n_lost: 0 }
    }

    /// Waits before the next try: any time up to a bound that doubles, so that writers who lost together do not meet
    /// again.
    ///
    /// Cancel safety: dropping it forgets one lost race.
    pub async fn pause(&mut self) {
        let bound_ms = 1u64.checked_shl(self.n_lost).unwrap_or(PAUSE_MS_MAX).min(PAUSE_MS_MAX);
        if self.n_lost > 0 {
            tokio::time::sleep(Duration::from_millis(self.rng.below(bound_ms) + 1)).await;
        }
        self.n_lost = self.n_lost.saturating_add(1);
    }
}
