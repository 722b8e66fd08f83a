//! Task groups: every task has an owner, a name, and an end that somebody waits for.
//!
//! A long-lived task that ends by itself is a bug, so the group reports it as fatal and the role ends the process.

use std::future::Future;
use std::sync::Arc;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{Instrument as _, error};

use crate::limits;

/// Why the process must end: a long-lived task ended or panicked.
#[derive(Debug, thiserror::Error)]
#[error("task {task} {how}")]
pub struct Fatal {
    /// Name of the task, with its group's path.
    pub task: String,
    /// What happened to it.
    pub how: &'static str,
}

/// Owns, names, cancels and joins tasks. Clones are the same group.
#[derive(Clone, Debug)]
pub struct Group {
    name: Arc<str>,
    tracker: TaskTracker,
    stop: CancellationToken,
    fatal: mpsc::Sender<Fatal>,
}

impl Group {
    /// The root of all groups, and the receiver on which the role learns that a task ended against the plan.
    pub fn root(name: &str) -> (Group, mpsc::Receiver<Fatal>) {
        // One report is enough to end the process; later ones are dropped when the slot is full.
        let (fatal, reports) = mpsc::channel(limits::FATAL_REPORTS);
        (Group { name: name.into(), tracker: TaskTracker::new(), stop: CancellationToken::new(), fatal }, reports)
    }

    /// A group that stops with this one, or alone by its own [`Group::shutdown`].
    pub fn child(&self, name: &str) -> Group {
        Group {
            name: format!("{}/{name}", self.name).into(),
            tracker: TaskTracker::new(),
            stop: self.stop.child_token(),
            fatal: self.fatal.clone(),
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
        let (stop, fatal) = (self.stop.clone(), self.fatal.clone());
        let task = tokio::spawn(task.in_current_span());
        self.tracker.spawn(async move {
            let abort = task.abort_handle();
            let how = tokio::select! {
                ended = task => match ended {
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
                    abort.abort();
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
        let (stop, fatal) = (self.stop.clone(), self.fatal.clone());
        let task = tokio::spawn(task.in_current_span());
        self.tracker.spawn(async move {
            let how = match task.await {
                Err(err) if err.is_panic() => "panicked",
                _ => "ended before its group",
            };
            if !stop.is_cancelled() {
                let _already_ending = fatal.try_send(Fatal { task: full, how });
            }
        });
    }

    /// Tells every task to stop and waits until all have ended.
    pub async fn shutdown(&self) {
        self.stop.cancel();
        self.tracker.close();
        self.tracker.wait().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_lasting_task_that_ends_is_fatal() {
        let (group, mut reports) = Group::root("test");
        group.spawn("short-lived", async {});
        let fatal = reports.recv().await.unwrap();
        assert_eq!(fatal.to_string(), "task test/short-lived ended before its group");
    }

    #[tokio::test]
    async fn shutdown_ends_tasks_of_children_too() {
        let (group, mut reports) = Group::root("test");
        let child = group.child("child");
        child.spawn("forever", std::future::pending());
        group.shutdown().await;
        child.shutdown().await;
        assert!(reports.try_recv().is_err());
    }
}
