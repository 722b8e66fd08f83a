//! Reading the past for a watch: the rows from its first revision to where its live part begins, page by page.

use std::sync::Arc;

use async_trait::async_trait;
use base::sync::RwLock;
use bytes::Bytes;
use rusqlite::{Connection, OptionalExtension as _, params};

use crate::error::Error;
use crate::kv::{Event, EventBatch, EventKind, KeyValue, Revision};
use crate::mvcc::index::{Index, POSITION_BITS, Version, covers};
use crate::mvcc::memtable::{Memtable, Row};
use crate::mvcc::read::Reader;
use crate::storage::WatchRequest;
use crate::watch::Pages;

/// Rows looked at per page.
const PAGE_ROWS: usize = 512;

/// Pages through the history of a range.
#[derive(Debug)]
pub struct History {
    reader: Arc<Reader>,
    request: Arc<WatchRequest>,
    next: u64,
    until: u64,
}

impl History {
    /// The revisions `request.start..=until`.
    pub fn new(reader: Arc<Reader>, request: WatchRequest, until: u64) -> History {
        History { next: request.start.0, reader, request: Arc::new(request), until }
    }
}

#[async_trait]
impl Pages for History {
    async fn page(&mut self) -> Result<Option<Vec<EventBatch>>, Error> {
        if self.next > self.until {
            return Ok(None);
        }
        let (request, next, until) = (Arc::clone(&self.request), self.next, self.until);
        let (index, memtable) = (self.reader.index(), self.reader.memtable());
        let (batches, after) =
            self.reader.with_connection(move |conn| page(conn, (&index, &memtable), &request, next, until)).await?;
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
pub fn page(
    conn: &Connection,
    (index, memtable): (&RwLock<Index>, &Memtable),
    request: &WatchRequest,
    next: u64,
    until: u64,
) -> rusqlite::Result<(Vec<EventBatch>, u64)> {
    // Before the database: what is committed in between is seen twice then, and not missed.
    let memtable = memtable.until(until);
    let mut page = Page { request, index, memtable: &memtable, batches: Vec::new(), n_rows: 0, last: next };
    let mut statement = conn.prepare_cached(
        "SELECT id, created, version, lease, key, value FROM history WHERE id >= ? AND id < ? ORDER BY id",
    )?;
    let mut rows = statement.query(params![next << POSITION_BITS, (until + 1) << POSITION_BITS])?;
    let mut last_id = 0;
    while let Some(row) = rows.next()? {
        let version = Version { id: row.get(0)?, create: row.get(1)?, version: row.get(2)?, lease: row.get(3)? };
        last_id = version.id;
        if page.ends_before(version) {
            return Ok((whole(page.batches), version.revision()));
        }
        let key = row.get_ref(4)?.as_blob()?;
        if covers(&request.key, &request.range_end, key) {
            page.push(conn, &Bytes::copy_from_slice(key), version, Bytes::copy_from_slice(row.get_ref(5)?.as_blob()?))?;
        }
    }
    // Rows leave in the order of their ids: those behind are the newer ones.
    for row in memtable.iter().filter(|row| row.version.id > last_id && row.version.revision() >= next) {
        if page.ends_before(row.version) {
            return Ok((whole(page.batches), row.version.revision()));
        }
        if covers(&request.key, &request.range_end, &row.key) {
            page.push(conn, &row.key, row.version, row.value.clone())?;
        }
    }
    Ok((whole(page.batches), until + 1))
}

/// All that happened in the revisions `from..=until`, keys as they were before included.
pub fn everything(
    conn: &Connection,
    known: (&RwLock<Index>, &Memtable),
    from: u64,
    until: u64,
) -> rusqlite::Result<Vec<EventBatch>> {
    let all = Bytes::from_static(&[0]);
    let request = WatchRequest { key: all.clone(), range_end: all, prev_kv: true, ..WatchRequest::default() };
    let (mut batches, mut next) = (Vec::new(), from);
    while next <= until {
        let (more, after) = page(conn, known, &request, next, until)?;
        batches.extend(more);
        next = after;
    }
    Ok(batches)
}

struct Page<'a> {
    request: &'a WatchRequest,
    index: &'a RwLock<Index>,
    memtable: &'a [Row],
    batches: Vec<(u64, Vec<Event>)>,
    n_rows: usize,
    last: u64,
}

impl Page<'_> {
    /// Counts a row; true if it begins the next page. A page ends between revisions, never inside one.
    fn ends_before(&mut self, version: Version) -> bool {
        let ends = self.n_rows >= PAGE_ROWS && version.revision() != self.last;
        (self.n_rows, self.last) = (self.n_rows + 1, version.revision());
        ends
    }

    fn push(&mut self, conn: &Connection, key: &Bytes, version: Version, value: Bytes) -> rusqlite::Result<()> {
        let prev = if self.request.prev_kv { self.before(conn, key, version.id)? } else { None };
        let event = event(key, version, value, prev);
        match self.batches.last_mut() {
            Some((revision, events)) if *revision == version.revision() => events.push(event),
            _ => self.batches.push((version.revision(), vec![event])),
        }
        Ok(())
    }

    /// The key as it was before the row `id`. The index says which row that is: the table is ordered by revision, and
    /// to walk back in it costs the whole history for a key that was not there.
    fn before(&self, conn: &Connection, key: &Bytes, id: u64) -> rusqlite::Result<Option<KeyValue>> {
        let before = self.index.read().before(key, id);
        let Some(version) = before.filter(Version::is_live) else { return Ok(None) };
        if let Some(row) = self.memtable.iter().rev().find(|row| row.version.id == version.id) {
            return Ok(Some(version.with(key, row.value.clone())));
        }
        let mut statement = conn.prepare_cached("SELECT value FROM history WHERE id = ?")?;
        let value =
            statement.query_row(params![version.id], |row| Ok(Bytes::copy_from_slice(row.get_ref(0)?.as_blob()?)));
        Ok(value.optional()?.map(|value| version.with(key, value)))
    }
}

fn whole(batches: Vec<(u64, Vec<Event>)>) -> Vec<EventBatch> {
    batches
        .into_iter()
        .map(|(revision, events)| EventBatch { revision: Revision(revision), events: events.into() })
        .collect()
}

/// The event of a row.
pub fn event(key: &Bytes, version: Version, value: Bytes, prev: Option<KeyValue>) -> Event {
    if version.is_live() {
        return Event { kind: EventKind::Put, kv: version.with(key, value), prev };
    }
    let kv = KeyValue { key: key.clone(), mod_revision: Revision(version.revision()), ..KeyValue::default() };
    Event { kind: EventKind::Delete, kv, prev }
}
