//! Hearing that the machine's clock was set: a board without a battery found a time server, a person corrected the
//! date.

use std::io;

use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use tokio::io::unix::AsyncFd;

/// A timer that never rings, but tells when its clock is set.
pub struct ClockSet(AsyncFd<OwnedFd>);

impl ClockSet {
    /// Begins to listen. Must be called within a tokio runtime. Errors: the kernel has no timers for this process.
    pub fn listen() -> io::Result<ClockSet> {
        let fd = timerfd_create(TimerfdClockId::Realtime, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
        arm(&fd)?;
        Ok(ClockSet(crate::sys::watched(fd)?))
    }

    /// Waits until the clock jumped. Cancel safe.
    ///
    /// Spec: `timerfd_create(2)`, `TFD_TIMER_CANCEL_ON_SET`.
    pub async fn next(&self) -> io::Result<()> {
        loop {
            let mut ready = self.0.readable().await?;
            match rustix::io::read(self.0.get_ref(), &mut [0; 8]) {
                Err(Errno::AGAIN) => ready.clear_ready(),
                Err(Errno::CANCELED) | Ok(_) => {
                    ready.clear_ready();
                    arm(self.0.get_ref())?;
                    return Ok(());
                }
                Err(err) => return Err(err.into()),
            }
        }
    }

    /// Waits for a jump as long as there is somebody to hear it from; without one for ever.
    pub async fn next_if(listening: &io::Result<ClockSet>) {
        if let Ok(clock) = listening
            && clock.next().await.is_ok()
        {
            return;
        }
        std::future::pending().await
    }
}

fn arm(fd: &OwnedFd) -> io::Result<()> {
    // The last second of a signed 64-bit nanosecond clock, far enough for everybody.
    let never = Timespec { tv_sec: i64::MAX / 1_000_000_000, tv_nsec: 0 };
    let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
    let wanted = Itimerspec { it_interval: zero, it_value: never };
    timerfd_settime(fd, TimerfdTimerFlags::ABSTIME | TimerfdTimerFlags::CANCEL_ON_SET, &wanted)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn a_clock_that_nobody_sets_says_nothing() {
        let clock = ClockSet::listen().unwrap();
        assert!(tokio::time::timeout(Duration::from_millis(20), clock.next()).await.is_err());
    }
}
