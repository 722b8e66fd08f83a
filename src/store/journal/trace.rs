//! For tests: what was done to the files of a log, in its order, so that a power cut can be played at any moment of it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// What was done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    /// A file of zeros was made and synced.
    Make { path: PathBuf, bytes: usize },
    /// A file got another name, which is durable at the next `SyncDir`.
    Rename { from: PathBuf, to: PathBuf },
    /// A file was removed, which is durable at the next `SyncDir`.
    Remove { path: PathBuf },
    /// The names are durable.
    SyncDir,
    /// A record is on its way to the disk.
    Begin { path: PathBuf, at: usize, bytes: Vec<u8> },
    /// It is there.
    End,
    /// The database's own log is on the disk as it is now.
    Synced,
    /// The test's: a write was acknowledged.
    Acknowledged(u64),
}

/// An op, and how long the database's own log was then.
pub(crate) type Step = (Op, u64);

static FOLLOWED: Mutex<BTreeMap<PathBuf, Vec<Step>>> = Mutex::new(BTreeMap::new());

/// Begins to follow the log in this folder.
pub(crate) fn follow(dir: &Path) {
    FOLLOWED.lock().unwrap_or_else(PoisonError::into_inner).insert(dir.to_owned(), Vec::new());
}

/// Ends following it.
pub(crate) fn followed(dir: &Path) -> Vec<Step> {
    FOLLOWED.lock().unwrap_or_else(PoisonError::into_inner).remove(dir).unwrap_or_default()
}

/// Notes what was done in this folder, if it is followed.
pub(crate) fn note(dir: &Path, op: impl FnOnce() -> Op) {
    if let Some(steps) = FOLLOWED.lock().unwrap_or_else(PoisonError::into_inner).get_mut(dir) {
        let wal = dir.parent().unwrap_or(dir).join("state.db-wal");
        steps.push((op(), std::fs::metadata(wal).map_or(0, |meta| meta.len())));
    }
}

/// Notes that a record is written to this file.
pub(crate) fn begin(path: &Path, at: usize, bytes: &[u8]) {
    note(path.parent().unwrap_or(path), || Op::Begin { path: path.to_owned(), at, bytes: bytes.to_vec() });
}

/// Notes that it was written.
pub(crate) fn end(path: &Path) {
    note(path.parent().unwrap_or(path), || Op::End);
}
