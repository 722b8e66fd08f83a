//! Waiting for a job on a thread of its own, for no longer than until something else is due.

use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

use base::time::Stopwatch;
use tokio::sync::mpsc;

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.unpark();
    }
}

/// Why the waiting ended.
#[derive(Debug, PartialEq, Eq)]
pub enum Came<T> {
    /// With a job.
    Job(T),
    /// Without one, in time.
    Nothing,
    /// Nobody can send any more.
    End,
}

/// Waits for a job; `at_most` so long, or for as long as it takes: then nothing wakes the thread but a job.
pub fn recv<T>(jobs: &mut mpsc::Receiver<T>, at_most: Option<Duration>) -> Came<T> {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let (mut context, clock) = (Context::from_waker(&waker), Stopwatch::start());
    loop {
        match jobs.poll_recv(&mut context) {
            Poll::Ready(Some(job)) => return Came::Job(job),
            Poll::Ready(None) => return Came::End,
            Poll::Pending => {}
        }
        // A wake-up without a job is no harm: the queue is looked at again.
        match at_most.map(|at_most| at_most.checked_sub(clock.elapsed())) {
            None => std::thread::park(),
            Some(Some(left)) if !left.is_zero() => std::thread::park_timeout(left),
            Some(_) => return Came::Nothing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_a_pause_and_the_end_are_told_apart() {
        let (tx, mut rx) = mpsc::channel(1);
        assert_eq!(recv(&mut rx, Some(Duration::from_millis(1))), Came::<u8>::Nothing);
        let sender = std::thread::spawn(move || tx.blocking_send(7).unwrap());
        assert_eq!(recv(&mut rx, None), Came::Job(7));
        sender.join().unwrap();
        assert_eq!(recv(&mut rx, None), Came::End);
    }
}
