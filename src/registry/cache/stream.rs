//! The body of a watch response: frames for one watcher, taken from the shared changes.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::Stream;
use futures_util::future::BoxFuture;
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::Cache;
use super::change::{Change, EventType, Framing};
use super::entry::Entry;
use super::kind::Delivery;
use crate::selection::Selection;
use crate::status::Status;

/// Between two bookmarks of a quiet watch, as upstream.
const BOOKMARK_PERIOD: Duration = Duration::from_secs(60);
/// Frames that are ready go out in one write up to about this size.
const WRITE_BYTES: usize = 32 * 1024;

/// Turns stored JSON into what one watcher asked for (another version, a Table row).
pub type Encode = Arc<dyn Fn(&Bytes) -> Result<Bytes, Status> + Send + Sync>;

/// Brings stored JSON into the version that one watcher asked for, by a webhook.
pub type Convert = Arc<dyn Fn(&Bytes) -> BoxFuture<'static, Result<Bytes, Status>> + Send + Sync>;

/// Everything a watch needs besides its changes.
pub struct Options {
    /// Kind and apiVersion of the objects, for bookmarks.
    pub api_version: String,
    /// Kind.
    pub kind: String,
    /// Whether bookmarks are sent.
    pub bookmarks: bool,
    /// Whether bookmarks go through `encode` as objects do: a Table of one row.
    pub bookmark_rows: bool,
    /// Whether the initial events end with a marked bookmark at this revision.
    pub initial_end: Option<u64>,
    /// When the watch ends.
    pub deadline: Instant,
    /// The conversion that comes before `encode`.
    pub convert: Option<Convert>,
    /// Terms of the selector that are judged on converted objects.
    pub selection: Option<Selection>,
    /// `None`: the form as it is.
    pub encode: Option<Encode>,
    /// Where its first objects count until they are sent.
    pub hold: Option<Arc<wire::held::Hold>>,
    /// Framing of an event on the wire.
    pub framing: Framing,
}

enum Step {
    Initial,
    Marker(u64),
    Past,
    Live,
    Over,
}

struct Watcher {
    cache: Arc<Cache>,
    options: Options,
    initial: std::vec::IntoIter<Arc<Entry>>,
    past: std::vec::IntoIter<Delivery>,
    live: mpsc::Receiver<Delivery>,
    step: Step,
    bookmark_at: Instant,
}

/// Initial objects as ADDED, then remembered changes, then live ones, until the deadline or until the reader is too
/// slow.
pub fn frames(
    cache: Arc<Cache>,
    initial: Vec<Arc<Entry>>,
    past: Vec<Delivery>,
    live: mpsc::Receiver<Delivery>,
    options: Options,
) -> impl Stream<Item = Result<Bytes, std::convert::Infallible>> + Send {
    let bookmark_at = Instant::now() + BOOKMARK_PERIOD;
    let (initial, past) = (initial.into_iter(), past.into_iter());
    let watcher = Watcher { cache, options, initial, past, live, step: Step::Initial, bookmark_at };
    futures_util::stream::unfold(watcher, |mut watcher| async move {
        watcher.next().await.map(|bytes| (Ok(bytes), watcher))
    })
}

impl Watcher {
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            match self.step {
                Step::Initial => {
                    let chunk = self.initial_chunk().await;
                    if !chunk.is_empty() {
                        return Some(chunk);
                    }
                    self.step = self.options.initial_end.map_or(Step::Past, Step::Marker);
                }
                Step::Marker(rv) => {
                    self.step = Step::Past;
                    return Some(self.bookmark(rv, true));
                }
                Step::Past => {
                    let mut out = Vec::new();
                    while out.len() < WRITE_BYTES
                        && let Some(delivery) = self.past.next()
                    {
                        self.add(&mut out, &delivery).await;
                    }
                    if !out.is_empty() {
                        return Some(out.into());
                    }
                    if let Some(hold) = self.options.hold.take() {
                        hold.release();
                    }
                    self.step = Step::Live;
                }
                Step::Live => match self.live_chunk().await {
                    // Events that this watcher does not see.
                    Some(bytes) if bytes.is_empty() => {}
                    chunk => return chunk,
                },
                Step::Over => return None,
            }
        }
    }

    async fn initial_chunk(&mut self) -> Bytes {
        let mut out = Vec::new();
        while out.len() < WRITE_BYTES
            && let Some(entry) = self.initial.next()
        {
            match self.shown(&entry.json).await {
                Ok(None) => {}
                Ok(Some(object)) => out.extend_from_slice(&self.options.framing.frame("ADDED", &object)),
                Err(status) => out.extend_from_slice(&self.fail(&status)),
            }
        }
        out.into()
    }

    async fn live_chunk(&mut self) -> Option<Bytes> {
        // Read before the wait: every change up to it is in the channel by the time the channel is seen empty.
        let wake =
            if self.options.bookmarks { self.bookmark_at.min(self.options.deadline) } else { self.options.deadline };
        let first = tokio::select! {
            delivery = self.live.recv() => match delivery {
                Some(delivery) => delivery,
                None => return self.dropped(),
            },
            () = tokio::time::sleep_until(wake) => {
                if Instant::now() >= self.options.deadline {
                    return None;
                }
                self.bookmark_at = Instant::now() + BOOKMARK_PERIOD;
                let seen = self.cache.seen();
                match self.live.try_recv() {
                    Ok(delivery) => delivery,
                    Err(mpsc::error::TryRecvError::Empty) => return Some(self.bookmark(seen, false)),
                    Err(mpsc::error::TryRecvError::Disconnected) => return self.dropped(),
                }
            }
        };
        if self.is_plain() && self.live.is_empty() {
            // The usual case: one event, no copy.
            return Some(first.1.frame(first.0));
        }
        let mut out = Vec::new();
        self.add(&mut out, &first).await;
        while out.len() < WRITE_BYTES
            && let Ok(delivery) = self.live.try_recv()
        {
            self.add(&mut out, &delivery).await;
        }
        Some(out.into())
    }

    /// The cache let go of a reader that was too slow, or starts anew. The stream ends without a word: the client
    /// resumes from the last version that it saw, and is told to list again only if that is too old by then.
    ///
    /// Spec: upstream v1.36 `cacheWatcher.add`, which closes the channel.
    fn dropped(&mut self) -> Option<Bytes> {
        self.step = Step::Over;
        None
    }

    async fn add(&mut self, out: &mut Vec<u8>, (event, change): &Delivery) {
        if self.is_plain() {
            return out.extend_from_slice(&change.frame(*event));
        }
        match self.seen(*event, change).await {
            Ok(None) => {}
            Ok(Some((event, object))) => out.extend_from_slice(&self.options.framing.frame(event.name(), &object)),
            Err(status) => out.extend_from_slice(&self.fail(&status)),
        }
    }

    /// Whether the shared frames are what this watcher wants.
    fn is_plain(&self) -> bool {
        self.options.encode.is_none() && self.options.convert.is_none()
    }

    /// An object that is there at the beginning, as the watcher wants it; nothing if it does not see it.
    async fn shown(&self, json: &Bytes) -> Result<Option<Bytes>, Status> {
        match &self.options.selection {
            Some(selection) => selection.judge(json).await?.map(|json| self.encoded(json)).transpose(),
            None => self.converted(json).await.map(Some),
        }
    }

    async fn seen(&self, event: EventType, change: &Change) -> Result<Option<(EventType, Bytes)>, Status> {
        let Some(selection) = &self.options.selection else {
            return Ok(Some((event, self.converted(&change.object(event)).await?)));
        };
        let Some((event, json)) = selection.see(event, change).await? else { return Ok(None) };
        Ok(Some((event, self.encoded(json)?)))
    }

    async fn converted(&self, json: &Bytes) -> Result<Bytes, Status> {
        let json = match &self.options.convert {
            Some(convert) => convert(json).await?,
            None => json.clone(),
        };
        self.encoded(json)
    }

    fn encoded(&self, json: Bytes) -> Result<Bytes, Status> {
        self.options.encode.as_ref().map_or_else(|| Ok(json.clone()), |encode| encode(&json))
    }

    fn fail(&mut self, status: &Status) -> Bytes {
        self.step = Step::Over;
        error_frame(status, self.options.framing)
    }

    fn bookmark(&mut self, rv: u64, initial_end: bool) -> Bytes {
        let mut object = json!({
            "kind": self.options.kind, "apiVersion": self.options.api_version,
            "metadata": { "resourceVersion": rv.to_string() },
        });
        if initial_end {
            object["metadata"]["annotations"] = json!({ "k8s.io/initial-events-end": "true" });
        }
        if !self.options.bookmark_rows {
            return self.options.framing.frame_of("BOOKMARK", &object);
        }
        match self.encoded(object.to_string().into()) {
            Ok(table) => self.options.framing.frame("BOOKMARK", &table),
            Err(status) => self.fail(&status),
        }
    }
}

/// The last frame of a watch that failed.
pub fn error_frame(status: &Status, framing: Framing) -> Bytes {
    framing.frame_of("ERROR", &status.to_value())
}
