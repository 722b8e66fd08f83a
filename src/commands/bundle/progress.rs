//! Progress of long work, where there is a terminal.

use std::io::{IsTerminal as _, Write as _, stderr};

/// A line on standard error that says how far a step is. Without a terminal nothing is written.
pub(super) struct Progress {
    doing: &'static str,
    whole: u64,
    done: u64,
    shown: Option<u64>,
}

impl Progress {
    pub(super) fn new(doing: &'static str, whole: u64) -> Progress {
        Progress { doing, whole, done: 0, shown: stderr().is_terminal().then_some(u64::MAX) }
    }

    /// More bytes are done.
    pub(super) fn step(&mut self, bytes: u64) {
        self.done = self.done.saturating_add(bytes);
        let percent = (u128::from(self.done) * 100 / u128::from(self.whole.max(1))).min(100);
        let percent = u64::try_from(percent).unwrap_or(100);
        if self.shown.is_some_and(|shown| shown != percent) {
            self.shown = Some(percent);
            // A terminal that went away is told nothing.
            let _gone = write!(stderr(), "\r{}: {percent:>3} %", self.doing).and_then(|()| stderr().flush());
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.shown.is_some() {
            let _gone = write!(stderr(), "\r\x1b[K");
        }
    }
}
