//! The role `pause`: the first process of a pod's sandbox. It holds the namespaces, reaps orphans, and ends when told.

use nix::sys::signal::{SigSet, Signal};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};

/// Waits for SIGINT or SIGTERM and reaps on SIGCHLD. Returns the exit code, 0.
pub(crate) fn main() -> i32 {
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGINT);
    signals.add(Signal::SIGTERM);
    signals.add(Signal::SIGCHLD);
    if let Err(err) = signals.thread_block() {
        eprintln!("pause: cannot block signals: {err}");
        return 1;
    }
    loop {
        match signals.wait() {
            Ok(Signal::SIGCHLD) => reap(),
            Ok(_) => return 0,
            Err(err) => {
                eprintln!("pause: cannot wait for signals: {err}");
                return 1;
            }
        }
    }
}

/// Takes the exit status of every orphan that has ended.
fn reap() {
    while let Ok(status) = waitpid(None, Some(WaitPidFlag::WNOHANG)) {
        if status == WaitStatus::StillAlive {
            return;
        }
    }
}
