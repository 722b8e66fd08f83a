//! The life of a role (`kedge server`, `kedge agent`): built, ready, at work until it is told to stop or a part of it
//! ends, stopped in order.

use std::io;
use std::time::Duration;

use base::task::{Fatal, Group};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tracing::{debug, info, warn};

/// At the end of the process, for blocking threads: a slow disk must not hold up the exit.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// For the tasks of one group to end: what holds one up longer (a disk, a call that blocks its thread) must not hold up
/// the groups after it.
const GROUP_ENDS: Duration = Duration::from_secs(10);

/// After the start, until what only starting needs is given back.
const SETTLED: Duration = Duration::from_secs(8);

/// Between two times that memory is given back which a burst took: the allocator does so only while it is asked for
/// more.
const GIVE_BACK_EVERY: Duration = Duration::from_secs(30);

/// Why a role did not begin, or ended by itself.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LifeError {
    #[error("cannot start the async runtime")]
    Runtime(#[source] io::Error),
    #[error("ended because a part of it did")]
    Fatal(#[from] Fatal),
}

/// Runs a role to its end on a runtime of its own.
pub(crate) fn block_on<E: From<LifeError>>(role: impl Future<Output = Result<(), E>>) -> Result<(), E> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .on_thread_park(base::sys::give_back_if_asked)
        .build()
        .map_err(LifeError::Runtime)?;
    let done = runtime.block_on(role);
    runtime.shutdown_timeout(LAST_WORDS);
    done
}

/// Runs what a command asks for on this thread, on a runtime that ends with it.
pub(crate) fn ask<T>(call: impl Future<Output = T>) -> Result<T, LifeError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(LifeError::Runtime)?;
    Ok(runtime.block_on(call))
}

/// Waits for `built`, says that the role is up, and works until SIGTERM, SIGINT or a fatal end of a part. Then
/// `stopped` end one after another, in their order, whatever happened. Pods keep running.
pub(crate) async fn live<E: From<LifeError>>(
    role: &str,
    built: impl Future<Output = Result<(), E>>,
    stopped: impl IntoIterator<Item = Group>,
    mut fatal: mpsc::Receiver<Fatal>,
) -> Result<(), E> {
    let mut terminate = signal(SignalKind::terminate()).map_err(LifeError::Runtime)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(LifeError::Runtime)?;
    let work = async {
        built.await?;
        notify("READY=1");
        info!(version = crate::process::version::VERSION, "{role} is up");
        match end_of_a_part(&mut fatal).await? {
            Some(fatal) => Err(LifeError::Fatal(fatal).into()),
            None => Ok(()),
        }
    };
    let outcome = tokio::select! {
        outcome = work => outcome,
        _ = terminate.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
    };
    notify("STOPPING=1");
    info!("stopping; pods keep running");
    stop(stopped, GROUP_ENDS).await;
    outcome
}

/// Stops groups one after another: the next one when no task of the last one, or of a child of it, is left, or not
/// `within` this time.
async fn stop(groups: impl IntoIterator<Item = Group>, within: Duration) {
    for group in groups {
        if tokio::time::timeout(within, group.shutdown()).await.is_err() {
            warn!(group = group.name(), "a task does not end: what it stands on is closed without waiting for it");
        }
    }
}

/// Waits for the end of a part; meanwhile the process takes no more memory than it uses.
async fn end_of_a_part(fatal: &mut mpsc::Receiver<Fatal>) -> Result<Option<Fatal>, LifeError> {
    if let Ok(ended) = tokio::time::timeout(SETTLED, fatal.recv()).await {
        return Ok(ended);
    }
    if let Err(err) = Group::blocking(base::sys::let_go_of_program_text).await? {
        debug!(err = %err, "the program's pages stay in memory");
    }
    loop {
        Group::blocking(base::sys::give_back_free_memory).await?;
        // This thread is none of the runtime's own.
        base::sys::give_back_if_asked();
        // Cancel safe: a report is received or stays in its channel.
        if let Ok(ended) = tokio::time::timeout(GIVE_BACK_EVERY, fatal.recv()).await {
            return Ok(ended);
        }
    }
}

/// Tells systemd, if it started us.
pub(crate) fn notify(state: &str) {
    if let Err(err) = base::sys::sd_notify(crate::flags::environment::notify_socket().as_deref(), state) {
        warn!(err = %err, "cannot tell systemd about our state");
    }
}

#[cfg(test)]
mod tests {
    use base::sync::Mutex;
    use std::sync::Arc;

    use super::*;

    #[tokio::test]
    async fn groups_end_one_after_another_and_a_task_that_does_not_end_holds_up_no_other() {
        let (root, _fatal) = Group::root("test");
        let ended = Arc::new(Mutex::new(Vec::new()));
        let groups = ["workers", "api", "store"].map(|name| root.child(name));
        for (group, takes) in groups.iter().zip([100, 3_600_000, 1]) {
            let (child, ended, name) = (group.child("child"), Arc::clone(&ended), group.name().to_owned());
            let stop = child.token();
            child.spawn_graceful("slow", async move {
                stop.cancelled().await;
                tokio::time::sleep(Duration::from_millis(takes)).await;
                ended.lock().push(name);
            });
        }
        stop(groups, Duration::from_millis(500)).await;
        assert_eq!(*ended.lock(), ["test/workers", "test/store"]);
    }
}
