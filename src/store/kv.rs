//! Keys, values, revisions, and the events that tell of their changes.

use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// A point in the store's history: the number of the transaction that made it. An empty store stands at 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Revision(pub u64);

/// One key as it stood at some revision.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyValue {
    /// The key.
    pub key: Bytes,
    /// Its bytes; empty when only keys were asked for.
    pub value: Bytes,
    /// The revision that created this generation of the key.
    pub create_revision: Revision,
    /// The revision that last changed it.
    pub mod_revision: Revision,
    /// Changes since its creation; 1 is fresh.
    pub version: u64,
    /// The lease it hangs on; 0 is none.
    pub lease: u64,
}

/// Kind of a key's change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// Created or changed.
    Put,
    /// Deleted.
    Delete,
}

/// One change of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Put or delete.
    pub kind: EventKind,
    /// The key after it; for a delete only `key` and `mod_revision` (of the delete) are set.
    pub kv: KeyValue,
    /// The key before it, when the watch asked for it and it is not compacted away.
    pub prev: Option<KeyValue>,
}

/// The events of one revision that a watch asked for, in their order. Empty: a progress mark, nothing up to
/// `revision` is still to come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventBatch {
    /// The revision of all events in it.
    pub revision: Revision,
    /// The changes.
    pub events: Arc<[Event]>,
}
