//! Task groups: every task has an owner, a name, and an end that somebody waits for.
//!
//! A long-lived task that ends by itself is a bug, so the group reports it as fatal and the role ends the process.

use std::future::Future;
use std::sync::Arc;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;
use tracing::{Instrument as _, error};

use crate::limits;
use crate::rng::Rng;
use crate::time::Clock;

/// Why the process must end: a long-lived task ended or panicked.
#[derive(Debug, thiserror::Error)]
#[error("task {task} {how}")]
pub struct Fatal {
    /// Name of the task, with its group's path.
    pub task: String,
    /// How it ended.
    pub how: &'static str,
}

/// Owns, names, cancels and joins tasks, and hands them time and chance. Clones are the same group.
#[derive(Clone, Debug)]
pub struct Group {
    name: Arc<str>,
    tracker: TaskTracker,
    /// Those of the groups that this one is a child of: they end when its tasks have ended.
    above: Arc<[TaskTracker]>,
    stop: CancellationToken,
    fatal: mpsc::Sender<Fatal>,
    clock: Clock,
    rng: Rng,
}

impl Group {
    /// The root of all groups, and the receiver on which the role learns that a task ended against the plan.
    pub fn root(name: &str) -> (Group, mpsc::Receiver<Fatal>) {
        Group::root_by(name, Clock::system(), Rng::from_os())
    }

    /// The same with the time and the chance of a simulator.
    pub fn root_by(name: &str, clock: Clock, rng: Rng) -> (Group, mpsc::Receiver<Fatal>) {
        // One report is enough to end the process; later ones are dropped when the slot is full.
        let (fatal, reports) = mpsc::channel(limits::FATAL_REPORTS);
        let (tracker, stop) = (TaskTracker::new(), CancellationToken::new());
        (Group { name: name.into(), tracker, above: Arc::new([]), stop, fatal, clock, rng }, reports)
    }

    /// The clock of the tasks.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// The chance of the tasks.
    pub fn rng(&self) -> &Rng {
        &self.rng
    }

    /// A group that stops with this one, which waits for its tasks, or alone by its own [`Group::shutdown`].
    pub fn child(&self, name: &str) -> Group {
        Group {
            name: format!("{}/{name}", self.name).into(),
            tracker: TaskTracker::new(),
            above: self.above.iter().chain([&self.tracker]).cloned().collect(),
            stop: self.stop.child_token(),
            fatal: self.fatal.clone(),
            clock: self.clock.clone(),
            rng: self.rng.clone(),
        }
    }

    /// Runs a task that lasts as long as the group. Its early end, or a panic, is fatal for the process.
    pub fn spawn(&self, name: &str, task: impl Future<Output = ()> + Send + 'static) {
        self.start(name, task, true);
    }

    /// Runs a task that may end by itself (one connection, one pod). A panic ends the task alone and is logged.
    pub fn spawn_short(&self, name: &str, task: impl Future<Output = ()> + Send + 'static) {
        self.start(name, task, false);
    }

    #[allow(clippy::disallowed_methods, reason = "this is the place the ban points to")]
    fn start(&self, name: &str, task: impl Future<Output = ()> + Send + 'static, lasting: bool) {
        let full = format!("{}/{name}", self.name);
        let (stop, fatal, awaited) = (self.stop.clone(), self.fatal.clone(), self.awaited());
        let mut task = tokio::spawn(task.in_current_span());
        self.tracker.spawn(async move {
            let _awaited = awaited;
            let how = tokio::select! {
                ended = &mut task => match ended {
                    Ok(()) if lasting => "ended before its group",
                    Ok(()) => return,
                    Err(err) if err.is_panic() => {
                        error!(task = %full, "task panicked");
                        if !lasting {
                            return;
                        }
                        "panicked"
                    }
                    Err(_) => return,
                },
                () = stop.cancelled() => {
                    task.abort();
                    // It may be at work on another thread until it waits for something the next time.
                    let _ended = task.await;
                    return;
                }
            };
            if !stop.is_cancelled() {
                // A full slot means the process is ending already.
                let _already_ending = fatal.try_send(Fatal { task: full, how });
            }
        });
    }

    /// Runs work that blocks its thread (SQLite, file trees) outside the async threads.
    ///
    /// The work begins at once, before the answer is awaited.
    pub fn blocking<T, F>(work: F) -> impl Future<Output = Result<T, Fatal>> + use<T, F>
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        let running = tokio::task::spawn_blocking(work);
        async { running.await.map_err(|_| Fatal { task: "blocking work".to_owned(), how: "panicked" }) }
    }

    /// Resolves when the group is told to stop. Tasks are aborted then; those that must tidy up listen with
    /// [`Group::spawn_graceful`].
    pub async fn cancelled(&self) {
        self.stop.cancelled().await;
    }

    /// The token behind [`Group::cancelled`], for APIs that want one.
    pub fn token(&self) -> CancellationToken {
        self.stop.clone()
    }

    /// Runs a task that is not aborted on shutdown: it must watch [`Group::cancelled`] itself and then end.
    #[allow(clippy::disallowed_methods, reason = "this is the place the ban points to")]
    pub fn spawn_graceful(&self, name: &str, task: impl Future<Output = ()> + Send + 'static) {
        let full = format!("{}/{name}", self.name);
        let (stop, fatal, awaited) = (self.stop.clone(), self.fatal.clone(), self.awaited());
        let task = tokio::spawn(task.in_current_span());
        self.tracker.spawn(async move {
            let _awaited = awaited;
            let how = match task.await {
                Err(err) if err.is_panic() => "panicked",
                _ => "ended before its group",
            };
            if !stop.is_cancelled() {
                let _already_ending = fatal.try_send(Fatal { task: full, how });
            }
        });
    }

    /// Tokens that a task holds, for the groups above its own to wait for it.
    fn awaited(&self) -> Vec<TaskTrackerToken> {
        self.above.iter().map(TaskTracker::token).collect()
    }

    /// The group's name, with those of the groups above it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Tells every task to stop, those of children too, and waits until all have ended.
    pub async fn shutdown(&self) {
        self.stop.cancel();
        self.tracker.close();
        self.tracker.wait().await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn a_lasting_task_that_ends_is_fatal() {
        let (group, mut reports) = Group::root("test");
        group.spawn("short-lived", async {});
        let fatal = reports.recv().await.unwrap();
        assert_eq!(fatal.to_string(), "task test/short-lived ended before its group");
    }

    #[tokio::test]
    async fn shutdown_ends_tasks_of_children_too_and_waits_for_them() {
        let (group, mut reports) = Group::root("test");
        let grandchild = group.child("child").child("grandchild");
        grandchild.spawn("forever", std::future::pending());
        let (stop, ended) = (grandchild.token(), Arc::new(AtomicBool::new(false)));
        let end = Arc::clone(&ended);
        grandchild.spawn_graceful("tidies-up", async move {
            stop.cancelled().await;
            tokio::time::sleep(Duration::from_millis(50)).await;
            end.store(true, Ordering::SeqCst);
        });
        group.shutdown().await;
        assert!(ended.load(Ordering::SeqCst), "the group above was done first");
        assert!(reports.try_recv().is_err());
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn shutdown_waits_for_a_task_that_is_at_work() {
        let (group, _reports) = Group::root("test");
        let (begun, (tell, told)) = (Arc::new(tokio::sync::Notify::new()), std::sync::mpsc::channel::<()>());
        let (begin, ended) = (Arc::clone(&begun), Arc::new(AtomicBool::new(false)));
        let end = Arc::clone(&ended);
        group.spawn("busy", async move {
            begin.notify_one();
            let _nobody_tells = told.recv_timeout(Duration::from_millis(100));
            end.store(true, Ordering::SeqCst);
            std::future::pending().await
        });
        begun.notified().await;
        group.shutdown().await;
        drop(tell);
        assert!(ended.load(Ordering::SeqCst), "it was still at work");
    }
}
