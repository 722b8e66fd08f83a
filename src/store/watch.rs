//! The reader's end of a watch: first the past, page by page from the database, then what the hub sends.

use std::collections::VecDeque;
use std::sync::Arc;

use async_trait::async_trait;
use base::sync::Mutex;
use tokio::sync::mpsc;

use crate::error::Error;
use crate::kv::{EventBatch, Revision};

/// Why the hub let go of a watcher, if it said so.
pub type CloseReason = Arc<Mutex<Option<Error>>>;

/// The past of a watch, page by page.
#[async_trait]
pub trait Pages: std::fmt::Debug + Send {
    /// The next page, which may be empty; `None` at the end.
    ///
    /// Errors: `Compacted` if the past was forgotten while it was read.
    /// Cancel safety: dropped, it reads the same page again.
    async fn page(&mut self) -> Result<Option<Vec<EventBatch>>, Error>;
}

/// A stream of batches in revision order. Dropping it ends the watch.
#[derive(Debug)]
pub struct WatchStream {
    past: Option<Box<dyn Pages>>,
    ready: VecDeque<EventBatch>,
    live: mpsc::Receiver<EventBatch>,
    close_reason: CloseReason,
    transform: Option<Transform>,
}

/// Changes every batch on its way out, e.g. opens sealed values.
#[derive(Clone)]
pub struct Transform(pub Arc<dyn Fn(EventBatch) -> EventBatch + Send + Sync>);

impl std::fmt::Debug for Transform {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Transform")
    }
}

impl WatchStream {
    /// A watch that shows only what `live` brings; when its sender is gone, `farewell` or `Closed` is the error.
    pub fn live(live: mpsc::Receiver<EventBatch>, close_reason: CloseReason) -> WatchStream {
        WatchStream { past: None, ready: VecDeque::new(), live, close_reason, transform: None }
    }

    /// The same with a past to be told first; it ends where `live` begins.
    pub(crate) fn with_past(mut self, past: Box<dyn Pages>) -> WatchStream {
        self.past = Some(past);
        self
    }

    /// The same, each batch changed by `transform`.
    pub fn transformed(mut self, transform: Transform) -> WatchStream {
        self.transform = Some(transform);
        self
    }

    /// The next batch.
    ///
    /// Errors: `Compacted` if the past was forgotten while it was read, `SlowWatcher` if the reader fell behind,
    /// `Closed` when the store stops. After an error the stream is of no more use.
    /// Cancel safety: a dropped future loses nothing.
    pub async fn next(&mut self) -> Result<EventBatch, Error> {
        let batch = self.plain().await?;
        Ok(match &self.transform {
            Some(transform) => (transform.0)(batch),
            None => batch,
        })
    }

    async fn plain(&mut self) -> Result<EventBatch, Error> {
        loop {
            if let Some(batch) = self.ready.pop_front() {
                return Ok(batch);
            }
            match &mut self.past {
                Some(past) => match past.page().await? {
                    Some(batches) => self.ready.extend(batches),
                    None => self.past = None,
                },
                None => break,
            }
        }
        match self.live.recv().await {
            Some(batch) => Ok(batch),
            None => Err(self.close_reason.lock().clone().unwrap_or(Error::Closed)),
        }
    }
}

/// A progress mark: nothing up to `revision` is still to come.
pub fn progress_mark(revision: Revision) -> EventBatch {
    EventBatch { revision, events: Arc::new([]) }
}
