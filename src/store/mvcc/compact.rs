//! Compaction: freeing what keys hold below the floor, a slice at a time, so that no write waits for more than one.

use std::sync::Arc;

use base::chain::Chain;
use base::sync::RwLock;
use bytes::Bytes;
use tracing::warn;

use crate::error::Error;
use crate::mvcc::index::Index;

/// Keys that one slice looks at; a slice runs when no job waits, or after this many jobs.
const SLICE_KEYS: usize = 2048;
const SLICE_EVERY_JOBS: usize = 16;

/// The compaction at work, if any.
#[derive(Debug)]
pub(super) struct Compactor {
    index: Arc<RwLock<Index>>,
    /// The floor, and the last key looked at.
    at: Option<(u64, Option<Bytes>)>,
    /// Jobs that were done since the last slice.
    n_jobs: usize,
}

impl Compactor {
    pub(super) fn new(index: Arc<RwLock<Index>>) -> Compactor {
        Compactor { index, at: None, n_jobs: 0 }
    }

    /// Begins anew, with a floor; zero is none.
    pub(super) fn begin(&mut self, floor: u64) {
        self.at = (floor > 0).then_some((floor, None));
    }

    /// Whether something is left to be done.
    pub(super) fn is_at_work(&self) -> bool {
        self.at.is_some()
    }

    /// Whether a job that waits comes before the next slice.
    pub(super) fn lets_jobs_go_first(&self) -> bool {
        self.n_jobs < SLICE_EVERY_JOBS
    }

    /// Notes that a job was done.
    pub(super) fn note_job(&mut self) {
        self.n_jobs += 1;
    }

    /// Frees what one slice of keys holds below the floor, by `delete_rows`. Not synced: the floor is durable, so it
    /// can be done again.
    pub(super) fn slice(&mut self, delete_rows: impl FnOnce(&[u64]) -> Result<(), Error>) {
        self.n_jobs = 0;
        let Some((floor, after)) = self.at.take() else { return };
        let (ids, until) = self.index.read().superseded(after.as_ref(), SLICE_KEYS, floor);
        let Some(until) = until else { return };
        if !ids.is_empty()
            && let Err(err) = delete_rows(&ids)
        {
            // Rows that stay are only space; the next compaction finds them again.
            warn!(err = %Chain(&err), "compaction stopped");
            return;
        }
        self.index.write().forget(after.as_ref(), &until, floor);
        self.at = Some((floor, Some(until)));
    }
}
