//! A disk that is full, or about to be: what etcd calls the alarm NOSPACE.
//!
//! Below a reserve new values are refused while deletions and compactions, which lead out of it, still have room. A
//! member of several whose disk takes nothing at all waits: the others take it for one that cannot be reached, and
//! elect if it led.

use std::sync::atomic::{AtomicBool, Ordering};

use tracing::error;

use crate::command::Command;
use crate::txn::{Op, Txn};

/// Bytes that new values leave free: two segments of the log, what is behind the database, and a WAL of it.
pub const RESERVE_BYTES: u64 = 16 * 1024 * 1024;

/// How this member's disk is.
#[derive(Debug, Default)]
pub struct Space {
    is_low: AtomicBool,
    is_closing: AtomicBool,
    is_damaged: AtomicBool,
}

impl Space {
    /// Whether new values are refused.
    pub fn is_low(&self) -> bool {
        self.is_low.load(Ordering::Acquire)
    }

    /// Notes how it is. Says whether that is news.
    pub fn note(&self, is_low: bool) -> bool {
        self.is_low.swap(is_low, Ordering::AcqRel) != is_low
    }

    /// Notes that the database contradicts itself: the alarm CORRUPT, until a process starts that finds it whole.
    pub fn note_damage(&self) {
        if !self.is_damaged.swap(true, Ordering::AcqRel) {
            error!("alarm CORRUPT: the database is damaged, restore a snapshot or let this member join anew");
        }
    }

    /// Whether it was seen to.
    pub fn is_damaged(&self) -> bool {
        self.is_damaged.load(Ordering::Acquire)
    }

    /// Ends waiting for room: the store closes.
    pub fn close(&self) {
        self.is_closing.store(true, Ordering::Release);
    }

    /// Whether the store closes.
    pub fn is_closing(&self) -> bool {
        self.is_closing.load(Ordering::Acquire)
    }
}

/// Whether a command adds values, as etcd judges it: what only deletes, reads or compacts is served on a full disk as
/// well.
pub fn adds(command: &Command) -> bool {
    match command {
        Command::Txn(txn) => txn_adds(txn),
        Command::LeaseGrant { .. } => true,
        Command::Compact { .. } | Command::LeaseRevoke { .. } => false,
    }
}

fn txn_adds(txn: &Txn) -> bool {
    txn.success.iter().chain(&txn.failure).any(|op| match op {
        Op::Put { .. } => true,
        Op::Txn(txn) => txn_adds(txn),
        Op::Delete { .. } | Op::Range(_) => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv::Revision;

    #[test]
    fn what_leads_out_of_a_full_disk_adds_nothing() {
        let put = Op::Put { key: "k".into(), value: "v".into(), lease: 0, prev_kv: false };
        let delete = Op::Delete { key: "k".into(), range_end: "".into(), prev_kv: false };
        let txn = |op: Op| Command::Txn(Txn { failure: vec![op], ..Txn::default() });
        assert!(adds(&txn(put.clone())));
        assert!(adds(&txn(Op::Txn(Box::new(Txn { success: vec![put], ..Txn::default() })))));
        assert!(!adds(&txn(delete)));
        assert!(!adds(&Command::Compact { at: Revision(1) }));
        assert!(!adds(&Command::LeaseRevoke { id: 1 }));
    }

    #[test]
    fn only_a_change_is_news() {
        let space = Space::default();
        assert_eq!([space.note(true), space.note(true), space.note(false)], [true, false, true]);
    }
}
