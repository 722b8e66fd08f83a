//! Reading the past for a watch: the rows from its first revision to where its live part begins, page by page.

use std::sync::Arc;

use bytes::Bytes;
use rusqlite::{Connection, OptionalExtension as _, params};

use crate::error::Error;
use crate::mvcc::index::{POSITION_BITS, Version, covers};
use crate::mvcc::read::Reader;
use crate::{Event, EventBatch, EventKind, KeyValue, Revision, WatchRequest};

/// Rows looked at per page.
const PAGE_ROWS: usize = 512;

/// Pages through the history of a range.
#[derive(Debug)]
pub struct Past {
    reader: Arc<Reader>,
    request: Arc<WatchRequest>,
    next: u64,
    until: u64,
}

impl Past {
    /// The revisions `request.start..=until`.
    pub fn new(reader: Arc<Reader>, request: WatchRequest, until: u64) -> Past {
        Past { next: request.start.0, reader, request: Arc::new(request), until }
    }

    /// The next page, which may be empty; `None` at the end.
    ///
    /// Cancel safety: dropped, it reads the same page again.
    pub(crate) async fn page(&mut self) -> Result<Option<Vec<EventBatch>>, Error> {
        if self.next > self.until {
            return Ok(None);
        }
        let (request, next, until) = (Arc::clone(&self.request), self.next, self.until);
        let (batches, after) = self.reader.with_connection(move |conn| page(conn, &request, next, until)).await?;
        // Asked after reading: rows were complete if the floor has not passed them meanwhile.
        let floor = self.reader.floor();
        if next < floor {
            return Err(Error::Compacted { asked: Revision(next), floor: Revision(floor) });
        }
        self.next = after;
        Ok(Some(batches))
    }
}

/// Batches of whole revisions from `next` on, and the first revision not looked at.
pub fn page(conn: &Connection, request: &WatchRequest, next: u64, until: u64) -> rusqlite::Result<(Vec<EventBatch>, u64)> {
    let mut statement =
        conn.prepare_cached("SELECT id, created, version, lease, key, value FROM history WHERE id >= ? AND id < ? ORDER BY id")?;
    let mut rows = statement.query(params![next << POSITION_BITS, (until + 1) << POSITION_BITS])?;
    let mut batches: Vec<(u64, Vec<Event>)> = Vec::new();
    let (mut n_rows, mut last) = (0, next);
    while let Some(row) = rows.next()? {
        let version = Version { id: row.get(0)?, create: row.get(1)?, version: row.get(2)?, lease: row.get(3)? };
        // A page ends between revisions, never inside one.
        if n_rows >= PAGE_ROWS && version.revision() != last {
            return Ok((whole(batches), version.revision()));
        }
        (n_rows, last) = (n_rows + 1, version.revision());
        let key = row.get_ref(4)?.as_blob()?;
        if !covers(&request.key, &request.range_end, key) {
            continue;
        }
        let key = Bytes::copy_from_slice(key);
        let prev = if request.prev_kv { before(conn, &key, version.id)? } else { None };
        let event = event(&key, version, Bytes::copy_from_slice(row.get_ref(5)?.as_blob()?), prev);
        match batches.last_mut() {
            Some((revision, events)) if *revision == last => events.push(event),
            _ => batches.push((last, vec![event])),
        }
    }
    Ok((whole(batches), until + 1))
}

fn whole(batches: Vec<(u64, Vec<Event>)>) -> Vec<EventBatch> {
    batches.into_iter().map(|(revision, events)| EventBatch { revision: Revision(revision), events: events.into() }).collect()
}

/// The event of a row.
pub fn event(key: &Bytes, version: Version, value: Bytes, prev: Option<KeyValue>) -> Event {
    if version.is_live() {
        return Event { kind: EventKind::Put, kv: version.with(key, value), prev };
    }
    let kv = KeyValue { key: key.clone(), mod_revision: Revision(version.revision()), ..KeyValue::default() };
    Event { kind: EventKind::Delete, kv, prev }
}

// Walks back from the row: rows are ordered by revision, not by key, so it costs the distance to the version before.
// Only watches that ask for `prev_kv` of the past pay it.
fn before(conn: &Connection, key: &Bytes, id: u64) -> rusqlite::Result<Option<KeyValue>> {
    let mut statement =
        conn.prepare_cached("SELECT id, created, version, lease, value FROM history WHERE id < ? AND key = ? ORDER BY id DESC LIMIT 1")?;
    let found = statement
        .query_row(params![id, &key[..]], |row| {
            let version = Version { id: row.get(0)?, create: row.get(1)?, version: row.get(2)?, lease: row.get(3)? };
            Ok(version.with(key, Bytes::copy_from_slice(row.get_ref(4)?.as_blob()?)))
        })
        .optional()?;
    Ok(found.filter(|kv| kv.version > 0))
}
