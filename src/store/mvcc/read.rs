//! Reading without ever blocking the writer: the index says which rows, what is behind the database or a few reader
//! connections fetch them.

use std::path::PathBuf;
use std::sync::Arc;

use base::sync::{Mutex, RwLock};
use base::task::Group;
use bytes::Bytes;
use rusqlite::Connection;
use tokio::sync::Semaphore;

use crate::disk::Disk;
use crate::error::Error;
use crate::kv::{KeyValue, Revision};
use crate::mvcc::database;
use crate::mvcc::hub::Hub;
use crate::mvcc::index::{Index, Version};
use crate::mvcc::memtable::Memtable;
use crate::mvcc::shared::Shared;
use crate::mvcc::space::Space;
use crate::txn::{RangeReply, RangeRequest};

/// Connections that read at one time; more readers wait for one.
const READERS: usize = 4;

/// Times that a read at "now" starts anew because a compaction took its rows; each needs a newer write and a
/// compaction.
const RETRIES: usize = 8;

/// Reads ranges.
#[derive(Debug)]
pub struct Reader {
    disk: Arc<dyn Disk>,
    path: PathBuf,
    index: Arc<RwLock<Index>>,
    hub: Arc<Hub>,
    memtable: Arc<Memtable>,
    space: Arc<Space>,
    permits: Semaphore,
    idle: Mutex<Vec<Connection>>,
}

/// Keys of a reply before their values are fetched.
struct Plan {
    revision: u64,
    rows: Vec<(Bytes, Version)>,
    more: bool,
    count: u64,
}

impl Reader {
    /// Reads what the hub has told.
    pub fn new(disk: Arc<dyn Disk>, path: PathBuf, shared: &Shared) -> Reader {
        let Shared { index, hub, memtable, space, .. } = shared.clone();
        Reader {
            disk,
            path,
            index,
            hub,
            memtable,
            space,
            permits: Semaphore::new(READERS),
            idle: Mutex::new(Vec::new()),
        }
    }

    /// Answers a range from this member's state.
    pub async fn range(self: &Arc<Self>, request: RangeRequest) -> Result<RangeReply, Error> {
        for _ in 0..RETRIES {
            let plan = self.plan(&request)?;
            let (revision, more, count) = (Revision(plan.revision), plan.more, plan.count);
            if let Some(kvs) = self.fetch(plan, request.keys_only).await? {
                return Ok(RangeReply { revision, kvs, more, count });
            }
            // A row is gone: the floor has passed. At a fixed revision the next plan says so, at "now" it finds newer
            // rows.
        }
        self.space.note_damage();
        Err(Error::Corrupt { path: self.path.clone(), why: "rows of live keys are missing".to_owned() })
    }

    fn plan(&self, request: &RangeRequest) -> Result<Plan, Error> {
        let index = self.index.read();
        let current = self.hub.revision();
        let at = request.revision.filter(|r| r.0 > 0).map_or(current, |r| r.0);
        index.check(at, current)?;
        let (rows, count) = select(&index, request, at);
        Ok(Plan { revision: current, more: (rows.len() as u64) < count && !request.count_only, rows, count })
    }

    async fn fetch(self: &Arc<Self>, plan: Plan, keys_only: bool) -> Result<Option<Vec<KeyValue>>, Error> {
        if keys_only || plan.rows.is_empty() {
            return Ok(Some(plan.rows.iter().map(|(key, v)| v.with(key, Bytes::new())).collect()));
        }
        let memtable = Arc::clone(&self.memtable);
        self.with_connection(move |conn| {
            let mut kvs = Vec::with_capacity(plan.rows.len());
            for (key, version) in &plan.rows {
                // A row that is not behind any more is committed, so the database is asked second.
                let found = memtable
                    .value(version.id)
                    .map_or_else(|| database::value(conn, version.id), |value| Ok(Some(value)))?;
                let Some(value) = found else { return Ok(None) };
                kvs.push(version.with(key, value));
            }
            Ok(Some(kvs))
        })
        .await
    }

    /// Runs `work` with a reader connection on a thread that may block.
    pub async fn with_connection<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, Error> {
        let _permit = self.permits.acquire().await.map_err(|_| Error::Closed)?;
        let reader = Arc::clone(self);
        Group::blocking(move || {
            let idle = reader.idle.lock().pop();
            let conn = idle.map_or_else(|| database::open_reader(&*reader.disk, &reader.path), Ok)?;
            let result = work(&conn).map_err(|err| database::sqlite(&reader.path, "cannot read the database", err));
            reader.idle.lock().push(conn);
            if matches!(result, Err(Error::Corrupt { .. })) {
                reader.space.note_damage();
            }
            result
        })
        .await
        .map_err(|_| Error::Closed)?
    }

    /// The versions of keys.
    pub fn index(&self) -> Arc<RwLock<Index>> {
        Arc::clone(&self.index)
    }

    /// The rows that are not in the database yet.
    pub fn memtable(&self) -> Arc<Memtable> {
        Arc::clone(&self.memtable)
    }

    /// Where the floor stands.
    pub fn floor(&self) -> u64 {
        self.index.read().floor
    }

    /// Ends reading: later reads are refused.
    pub fn close(&self) {
        self.permits.close();
    }
}

/// The rows of a request as of `at`, cut by its limit, and the number without the cut.
pub fn select(index: &Index, request: &RangeRequest, at: u64) -> (Vec<(Bytes, Version)>, u64) {
    let keep = match (request.count_only, request.limit) {
        (true, _) => 0,
        (false, 0) => u64::MAX,
        (false, limit) => limit,
    };
    let (mut rows, mut count) = (Vec::new(), 0);
    for (key, version) in index.range(&request.key, &request.range_end, at) {
        if count < keep {
            rows.push((key.clone(), version));
        }
        count += 1;
    }
    (rows, count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mvcc::index::POSITION_BITS;

    #[test]
    fn a_limit_cuts_the_rows_and_not_the_count() {
        let mut index = Index::at_floor(0);
        for (revision, key) in [(2, "/a"), (3, "/b"), (4, "/c")] {
            let version = Version { id: revision << POSITION_BITS, create: revision, version: 1, lease: 0 };
            index.push(&Bytes::from_static(key.as_bytes()), version);
        }
        let all = RangeRequest { key: "/".into(), range_end: Bytes::from_static(b"0"), ..RangeRequest::default() };
        let check = |request: &RangeRequest, at: u64| {
            let (rows, count) = select(&index, request, at);
            (rows.iter().map(|(key, _)| String::from_utf8_lossy(key).into_owned()).collect::<String>(), count)
        };
        for (limit, want) in [(0, "/a/b/c"), (1, "/a"), (3, "/a/b/c"), (9, "/a/b/c")] {
            assert_eq!(check(&RangeRequest { limit, ..all.clone() }, 9), (want.to_owned(), 3), "{limit}");
        }
        assert_eq!(check(&all, 3), ("/a/b".to_owned(), 2), "as of then");
        let counted = RangeRequest { count_only: true, limit: 1, ..all };
        assert_eq!(check(&counted, 9), (String::new(), 3));
    }
}
