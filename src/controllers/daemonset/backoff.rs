//! How long a failed daemon pod stays before it is made anew on its node: a kubelet that refuses it does so as fast as
//! it is asked.
//!
//! Spec: upstream's `failedPodsBackoff` (1.36.2, pkg/controller/daemon): 1 s, doubled with each failure, up to 15
//! minutes, and anew after twice that time without one. Pure; time is passed in.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

const FIRST: Duration = Duration::from_secs(1);
const MAX: Duration = Duration::from_secs(15 * 60);

/// A set at one generation of its spec, and a node.
pub(super) type Slot = (String, Option<i64>, String);

/// The waits of all sets and nodes on which pods failed lately.
#[derive(Debug, Default)]
pub(super) struct Failures(BTreeMap<Slot, (Instant, Duration)>);

impl Failures {
    /// The rest of the wait before the failed pod may go.
    pub(super) fn left(&self, slot: &Slot, now: Instant) -> Option<Duration> {
        let (since, wait) = self.0.get(slot)?;
        wait.checked_sub(now.duration_since(*since)).filter(|left| !left.is_zero())
    }

    /// A failed pod goes now: the next one waits longer.
    pub(super) fn gone(&mut self, slot: Slot, now: Instant) {
        self.0.retain(|_, (since, _)| now.duration_since(*since) <= MAX * 2);
        let wait = self.0.get(&slot).map_or(FIRST, |(_, wait)| (*wait * 2).min(MAX));
        self.0.insert(slot, (now, wait));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Semantics H11.
    #[test]
    fn a_daemon_pod_that_fails_again_and_again_waits_longer_each_time() {
        let (mut failures, start, slot) =
            (Failures::default(), Instant::now(), ("u".to_owned(), Some(1), "n".to_owned()));
        assert_eq!(failures.left(&slot, start), None);
        for n in 0..12 {
            failures.gone(slot.clone(), start);
            assert_eq!(failures.left(&slot, start), Some(FIRST * (1 << n)).map(|wait| wait.min(MAX)));
        }
        assert_eq!(failures.left(&slot, start + MAX), None);
        let other = ("u".to_owned(), Some(2), "n".to_owned());
        assert_eq!(failures.left(&other, start), None);
        failures.gone(slot.clone(), start + MAX * 3);
        assert_eq!(failures.left(&slot, start + MAX * 3), Some(FIRST));
    }
}
