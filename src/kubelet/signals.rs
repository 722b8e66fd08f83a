//! Signs of trouble of the machine, between the task that sees them and those that tell of them or keep pods away.

use std::time::Duration;

use base::sync::Mutex;
use base::time::Stopwatch;

/// Pressure, and the silence of the runtime.
#[derive(Default)]
pub(crate) struct Signals {
    /// Types of the conditions of pressure that hold now, e.g. `MemoryPressure`.
    pressure: Mutex<Vec<String>>,
    /// Since the runtime's last answer.
    runtime: Mutex<Option<Stopwatch>>,
}

impl Signals {
    /// Types of the conditions of pressure that hold.
    pub(crate) fn pressure(&self) -> Vec<String> {
        self.pressure.lock().clone()
    }

    /// Sets the conditions of pressure that hold.
    pub(crate) fn set_pressure(&self, conditions: Vec<String>) {
        *self.pressure.lock() = conditions;
    }

    /// Notes that the runtime has answered.
    pub(crate) fn note_runtime(&self) {
        *self.runtime.lock() = Some(Stopwatch::start());
    }

    /// For how long the runtime has been silent; `None` if it has never answered.
    pub(crate) fn runtime_silence(&self) -> Option<Duration> {
        self.runtime.lock().as_ref().map(Stopwatch::elapsed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_runtime_that_never_answered_is_not_silent_for_any_time() {
        let signals = Signals::default();
        assert_eq!(signals.runtime_silence(), None);
        signals.note_runtime();
        assert!(signals.runtime_silence().is_some_and(|silence| silence < Duration::from_secs(60)));
    }
}
