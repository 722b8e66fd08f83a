//! The memtable: changes that are applied and not in the database yet. They are durable in the log already; readers
//! find them here.

use std::collections::BTreeMap;

use base::sync::{RwLock, RwLockReadGuard};
use base::time::Stopwatch;
use bytes::Bytes;

use crate::mvcc::index::{POSITION_BITS, Version};

/// A row of `history` to be.
#[derive(Clone, Debug)]
pub struct Row {
    /// Its numbers.
    pub version: Version,
    /// The Raft entry that made it: index and term.
    pub entry: (u64, u64),
    /// The key.
    pub key: Bytes,
    /// The value.
    pub value: Bytes,
}

/// Rows of the newest revisions by their ids: all rows that are not in the database, and no others for longer than a
/// commit takes.
#[derive(Debug, Default)]
pub struct Memtable(RwLock<BTreeMap<u64, Row>>);

impl Memtable {
    /// The rows.
    pub fn rows(&self) -> RwLockReadGuard<'_, BTreeMap<u64, Row>> {
        self.0.read()
    }

    /// The value of a row, if it is here.
    pub fn value(&self, id: u64) -> Option<Bytes> {
        self.rows().get(&id).map(|row| row.value.clone())
    }

    /// The rows up to a revision. To be asked before the database is, so that a row which moves meanwhile is seen once
    /// at least.
    pub fn until(&self, revision: u64) -> Vec<Row> {
        self.rows().range(..(revision + 1) << POSITION_BITS).map(|(_, row)| row.clone()).collect()
    }

    /// Adds a row.
    pub fn push(&self, row: Row) {
        self.0.write().insert(row.version.id, row);
    }

    /// Forgets all rows: they are in the database, or another one took its place.
    pub fn clear(&self) {
        self.0.write().clear();
    }
}

/// Other state that the database lacks.
#[derive(Debug, Default)]
pub struct Unsaved {
    /// Leases that came, with their lives, and those that went.
    pub leases: BTreeMap<u64, Option<u64>>,
    /// The floor, and the revision when it was set.
    pub floor: Option<(u64, u64)>,
    /// Bytes of it all, roughly.
    pub bytes: usize,
    /// How long the oldest of it waits.
    pub since: Option<Stopwatch>,
}

impl Unsaved {
    /// Counts what was added.
    pub fn add(&mut self, bytes: usize) {
        self.bytes += bytes;
        self.since.get_or_insert_with(Stopwatch::start);
    }
}
