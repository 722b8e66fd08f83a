//! Work on files that may never come back: a hard NFS mount whose server is away keeps a thread until it returns.
//!
//! The thread cannot be ended, so their number is bounded, for each path and in all: what waits behind them is refused.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use crate::permits::{Full, Permit, Permits};
use crate::task::Group;

/// Operations that may be under way at one path; one more is refused until one of them has ended.
const PER_PATH_MAX: usize = 4;
/// Operations under way at all paths; the runtime has 512 threads for blocking work, the store's among them.
const IN_ALL_MAX: usize = 128;

static UNDER_WAY: LazyLock<Arc<Permits<PathBuf>>> = LazyLock::new(|| Permits::new(PER_PATH_MAX, IN_ALL_MAX));

/// A permit among the operations under way, given back when the work itself has ended.
fn turn(all: &Arc<Permits<PathBuf>>, path: &Path) -> io::Result<Permit<PathBuf>> {
    all.take(path.to_owned()).map_err(|full| {
        let path = path.display();
        let text = match full {
            Full::Key => format!("{path}: {PER_PATH_MAX} earlier operations there have not come back"),
            Full::All => format!("{path}: not tried, as {IN_ALL_MAX} operations elsewhere have not come back"),
        };
        io::Error::new(io::ErrorKind::ResourceBusy, text)
    })
}

/// Runs work on the files at `path` outside the async threads, and waits for it no longer than `limit`.
///
/// Errors: the work's own, `TimedOut` when it takes longer (it goes on, unheard), `ResourceBusy` when too much earlier
/// work still hangs, there or everywhere.
/// Cancel safety: dropping the future leaves the work running to its end.
pub async fn within<T, F>(path: &Path, limit: Duration, work: F) -> io::Result<T>
where
    T: Send + 'static,
    F: FnOnce() -> io::Result<T> + Send + 'static,
{
    let turn = turn(&UNDER_WAY, path)?;
    let running = Group::blocking(move || {
        let _until_the_end = turn;
        work()
    });
    match tokio::time::timeout(limit, running).await {
        Ok(Ok(done)) => done,
        Ok(Err(fatal)) => Err(io::Error::other(fatal)),
        Err(_) => {
            let text = format!("{}: no answer from the file system within {} s", path.display(), limit.as_secs());
            Err(io::Error::new(io::ErrorKind::TimedOut, text))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn a_path_that_is_refused_for_the_sake_of_others_is_told_so_and_not_kept() {
        let all = Permits::new(PER_PATH_MAX, 1);
        let held = turn(&all, Path::new("/hung")).unwrap();
        let why = turn(&all, Path::new("/innocent")).err().unwrap();
        assert!(why.kind() == io::ErrorKind::ResourceBusy && why.to_string().contains("elsewhere"), "{why}");
        assert_eq!(all.n_keys(), 1);
        drop(held);
        assert_eq!(all.n_keys(), 0);
    }

    #[tokio::test]
    async fn a_file_system_that_hangs_costs_a_few_threads_and_no_more() {
        let path = Path::new("/hung/volume");
        let mut ends = Vec::new();
        for _ in 0..PER_PATH_MAX {
            let (end, hung) = mpsc::channel::<()>();
            let work = move || hung.recv().map_err(io::Error::other);
            assert_eq!(within(path, Duration::from_millis(1), work).await.unwrap_err().kind(), io::ErrorKind::TimedOut);
            ends.push(end);
        }
        assert_eq!(
            within(path, Duration::from_secs(60), || Ok(())).await.unwrap_err().kind(),
            io::ErrorKind::ResourceBusy
        );
        assert_eq!(within(Path::new("/other"), Duration::from_secs(60), || Ok(7)).await.unwrap(), 7);
        drop(ends);
        // The threads end by themselves; the next turn is free as soon as one has.
        while within(path, Duration::from_secs(60), || Ok(())).await.is_err() {
            tokio::task::yield_now().await;
        }
    }
}
