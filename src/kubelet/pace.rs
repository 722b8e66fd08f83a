//! A pace: so many in a second, and so many at once. Upstream's token bucket.

use std::time::Duration;

use base::sync::Mutex;
use base::time::Stopwatch;

/// A rate of events, which callers share.
pub(crate) struct Pace {
    per_sec: f64,
    burst: f64,
    left: Mutex<Left>,
}

struct Left {
    tokens: f64,
    at: Stopwatch,
}

impl Pace {
    /// `per_sec` of 0 is no limit.
    pub(crate) fn new(per_sec: u32, burst: u32) -> Pace {
        let burst = f64::from(burst.max(1));
        let left = Left { tokens: burst, at: Stopwatch::start() };
        Pace { per_sec: f64::from(per_sec), burst, left: Mutex::new(left) }
    }

    /// Takes a turn; otherwise says how long it is until there is one.
    pub(crate) fn take(&self) -> Result<(), Duration> {
        if self.per_sec == 0.0 {
            return Ok(());
        }
        let mut left = self.left.lock();
        let now = (left.tokens + left.at.elapsed().as_secs_f64() * self.per_sec).min(self.burst);
        left.at = Stopwatch::start();
        left.tokens = now;
        if now < 1.0 {
            return Err(Duration::from_secs_f64((1.0 - now) / self.per_sec));
        }
        left.tokens = now - 1.0;
        Ok(())
    }

    /// Waits for a turn.
    pub(crate) async fn turn(&self) {
        while let Err(pause) = self.take() {
            // Not for no time at all: the clock may be coarser than the rest of a turn.
            tokio::time::sleep(pause.max(Duration::from_millis(1))).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_taken_at_once_and_then_the_pace_holds() {
        let pace = Pace::new(1, 3);
        assert_eq!((0..10).filter(|_| pace.take().is_ok()).count(), 3);
        let pause = pace.take().unwrap_err();
        assert!(pause > Duration::ZERO && pause <= Duration::from_secs(1));
        let free = Pace::new(0, 1);
        assert!((0..1000).all(|_| free.take().is_ok()));
        assert!(Pace::new(u32::MAX, 0).take().is_ok(), "one at once at least");
    }

    #[tokio::test]
    async fn a_turn_comes_when_it_is_waited_for() {
        let pace = Pace::new(1000, 1);
        pace.turn().await;
        tokio::time::timeout(Duration::from_secs(60), pace.turn()).await.unwrap();
    }
}
