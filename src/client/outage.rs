//! All watches of a process go over few connections: when one breaks, each of them notices. It is one event, told once,
//! and so is its end.

use std::time::Duration;

use base::sync::Mutex;
use tokio::time::Instant;

/// Watches notice the same break within this.
const SAME_EVENT: Duration = Duration::from_secs(5);

/// Whether the API server can be reached, as far as the watches know.
#[derive(Debug)]
pub(crate) struct Outage(Mutex<State>);

#[derive(Debug)]
struct State {
    down: bool,
    told: Option<Instant>,
}

impl Outage {
    pub(crate) const fn none() -> Outage {
        Outage(Mutex::new(State { down: false, told: None }))
    }

    /// A watch broke. Says whether it is the first of its event, which a person is told.
    pub(crate) fn broke(&self, now: Instant) -> bool {
        let mut state = self.0.lock();
        let same = state.down || state.told.is_some_and(|told| now < told + SAME_EVENT);
        state.down = true;
        if !same {
            state.told = Some(now);
        }
        !same
    }

    /// A watch has begun. Says whether that ends an outage.
    pub(crate) fn over(&self) -> bool {
        std::mem::replace(&mut self.0.lock().down, false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watches_that_break_together_are_one_event() {
        let (outage, now) = (Outage::none(), Instant::now());
        assert!(!outage.over(), "nothing to tell at a start");
        assert_eq!([outage.broke(now), outage.broke(now)], [true, false]);
        assert!(outage.over() && !outage.over());
        // A third watch notices late what two others have behind them.
        assert!(!outage.broke(now));
        let later = now + SAME_EVENT;
        assert!(!outage.broke(later), "still the same outage");
        assert!(outage.over());
        assert!(outage.broke(later), "another one");
    }
}
