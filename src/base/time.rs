//! Wall time, the only place that reads it. Durations and timers come from `tokio::time`, which tests can pause.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use crate::sync::Mutex;

/// A source of wall time: the system's, or one that a test sets.
#[derive(Clone, Debug, Default)]
pub struct Clock {
    fixed: Option<Arc<Mutex<Timestamp>>>,
}

impl Clock {
    /// The machine's clock.
    pub fn system() -> Clock {
        Clock { fixed: None }
    }

    /// A clock that stands still at `at` until a test moves it with [`Clock::advance`].
    pub fn fixed(at: Timestamp) -> Clock {
        Clock { fixed: Some(Arc::new(Mutex::new(at))) }
    }

    /// Now, with the full resolution of the clock. Kubernetes' `Time` wants whole seconds: see [`rfc3339_secs`].
    #[allow(clippy::disallowed_methods, reason = "this is the place the ban points to")]
    pub fn now(&self) -> Timestamp {
        match &self.fixed {
            Some(at) => *at.lock(),
            None => Timestamp::now(),
        }
    }

    /// Moves a fixed clock; the system's clock is not ours to move, so there it does nothing.
    pub fn advance(&self, by: SignedDuration) {
        if let Some(at) = &self.fixed {
            let mut at = at.lock();
            *at = at.checked_add(by).unwrap_or(*at);
        }
    }
}

/// The time zone of this machine, UTC if it has none.
pub fn local_zone() -> jiff::tz::TimeZone {
    jiff::tz::TimeZone::try_system().unwrap_or(jiff::tz::TimeZone::UTC)
}

/// `2026-11-21T04:12:00Z`: the wire form of `metav1.Time`, whole seconds in UTC.
pub fn rfc3339_secs(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// `2026-11-21T04:12:00.123456Z`: the wire form of `metav1.MicroTime`.
pub fn rfc3339_micros(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()
}

/// A monotonic instant for measuring how long something took; the one that was started first is the least. Never
/// compared across processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stopwatch(std::time::Instant);

impl Stopwatch {
    /// Starts measuring.
    #[allow(clippy::disallowed_methods, reason = "this is the place the ban points to")]
    pub fn start() -> Stopwatch {
        Stopwatch(std::time::Instant::now())
    }

    /// Time since the start.
    pub fn elapsed(&self) -> std::time::Duration {
        self.0.elapsed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wire_forms_have_the_resolution_of_their_type() {
        let at: Timestamp = "2026-11-21T04:12:00.123456789Z".parse().unwrap();
        assert_eq!(rfc3339_secs(at), "2026-11-21T04:12:00Z");
        assert_eq!(rfc3339_micros(at), "2026-11-21T04:12:00.123456Z");
    }

    #[test]
    fn a_fixed_clock_moves_only_when_told() {
        let clock = Clock::fixed(Timestamp::UNIX_EPOCH);
        clock.advance(SignedDuration::from_secs(5));
        assert_eq!(clock.now().as_second(), 5);
    }
}
