//! The state that the writer's thread shares with the rest of the store.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use base::sync::{Mutex, RwLock};

use crate::mvcc::applied_index::AppliedIndex;
use crate::mvcc::apply::Leases;
use crate::mvcc::hub::Hub;
use crate::mvcc::index::Index;
use crate::mvcc::memtable::Memtable;
use crate::mvcc::space::Space;
use crate::pending::Pending;

/// State that the thread shares with the rest of the store.
#[derive(Clone, Debug)]
pub struct Shared {
    /// The versions.
    pub index: Arc<RwLock<Index>>,
    /// The leases.
    pub leases: Arc<Mutex<Leases>>,
    /// The watchers.
    pub hub: Arc<Hub>,
    /// The callers that wait.
    pub pending: Arc<Pending>,
    /// Whether this member is the only one and applies at once.
    pub alone: Arc<AtomicBool>,
    /// Woken when leases come or go.
    pub leases_changed: Arc<tokio::sync::Notify>,
    /// The cluster's number; a snapshot brings another to a member that joins.
    pub cluster_id: Arc<AtomicU64>,
    /// Facts of the log that openraft reads without asking the thread.
    pub applied_index: Arc<AppliedIndex>,
    /// Changes that are applied and not in the database yet.
    pub memtable: Arc<Memtable>,
    /// Whether the disk is full.
    pub space: Arc<Space>,
}
