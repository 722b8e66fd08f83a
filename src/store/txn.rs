//! Transactions and reads, with their answers.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::kv::{KeyValue, Revision};

/// How a [`Compare`] compares: `stored OP given`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CompareOp {
    /// `=`
    Equal,
    /// `!=`
    NotEqual,
    /// `>`
    Greater,
    /// `<`
    Less,
}

/// A condition of a transaction on one key. A key that is not there has revisions and version 0; its value
/// equals nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Compare {
    /// On the revision of the last change; 0 means "is not there".
    ModRevision {
        /// The key.
        key: Bytes,
        /// How.
        op: CompareOp,
        /// With what.
        revision: Revision,
    },
    /// On the revision of the creation.
    CreateRevision {
        /// The key.
        key: Bytes,
        /// How.
        op: CompareOp,
        /// With what.
        revision: Revision,
    },
    /// On the number of changes since creation.
    Version {
        /// The key.
        key: Bytes,
        /// How.
        op: CompareOp,
        /// With what.
        version: u64,
    },
    /// On the bytes.
    Value {
        /// The key.
        key: Bytes,
        /// How.
        op: CompareOp,
        /// With what.
        value: Bytes,
    },
    /// On the lease.
    Lease {
        /// The key.
        key: Bytes,
        /// How.
        op: CompareOp,
        /// With what.
        lease: u64,
    },
}

/// One step of a transaction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Op {
    /// Creates or changes a key.
    Put {
        /// The key.
        key: Bytes,
        /// Its new bytes.
        value: Bytes,
        /// The lease to hang it on; 0 is none.
        lease: u64,
        /// Whether the reply carries the key as it was.
        prev_kv: bool,
    },
    /// Deletes a key, or all keys in `key..range_end`.
    Delete {
        /// The key, or the first of the range.
        key: Bytes,
        /// Empty: `key` alone. `[0]`: all keys from `key` on. Else the first key that is not meant any more.
        range_end: Bytes,
        /// Whether the reply carries the keys as they were.
        prev_kv: bool,
    },
    /// Reads; sees the steps before it.
    Range(RangeRequest),
    /// A transaction inside: its conditions are judged before any step of the whole runs.
    Txn(#[serde(deserialize_with = "nested")] Box<Txn>),
}

/// Transactions inside of each other that are decoded, as many as prost takes of etcd's clients.
const TXN_DEPTH_MAX: usize = 100;

/// Reads an inner transaction. The decoder calls itself for each: without a bound a few bytes each would end the
/// process.
fn nested<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Box<Txn>, D::Error> {
    thread_local!(static DEPTH: std::cell::Cell<usize> = const { std::cell::Cell::new(0) });
    let depth = DEPTH.get();
    if depth >= TXN_DEPTH_MAX {
        return Err(serde::de::Error::custom("too many transactions inside of each other"));
    }
    DEPTH.set(depth + 1);
    let txn = Box::<Txn>::deserialize(deserializer);
    DEPTH.set(depth);
    txn
}

/// Steps that happen together, at one revision, if all conditions hold; other steps if not.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Txn {
    /// The conditions; none is true.
    pub compare: Vec<Compare>,
    /// Steps when all hold.
    pub success: Vec<Op>,
    /// Steps when one does not.
    pub failure: Vec<Op>,
}

/// Answer of one operation of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OpReply {
    /// Of [`Op::Put`].
    Put {
        /// The key as it was, if asked for and there.
        prev: Option<KeyValue>,
    },
    /// Of [`Op::Delete`].
    Delete {
        /// Keys deleted.
        deleted: u64,
        /// The keys as they were, if asked for.
        prev: Vec<KeyValue>,
    },
    /// Of [`Op::Range`].
    Range(RangeReply),
    /// Of [`Op::Txn`].
    Txn(Box<TxnReply>),
}

/// Answer of a transaction, once it is durable and applied.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TxnReply {
    /// Whether the conditions held.
    pub succeeded: bool,
    /// The store's revision after it: its own if it changed something.
    pub revision: Revision,
    /// One answer per step that ran.
    pub replies: Vec<OpReply>,
}

/// Range, order and limit of a read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RangeRequest {
    /// The key, or the first of the range.
    pub key: Bytes,
    /// As in [`Op::Delete`]; [`prefix_end`] makes it from a prefix.
    pub range_end: Bytes,
    /// Keys to return at most; 0 is no limit.
    pub limit: u64,
    /// As of when; `None` is now.
    pub revision: Option<Revision>,
    /// Leave the values out.
    pub keys_only: bool,
    /// Leave the keys out too.
    pub count_only: bool,
    /// May be answered from this member's own state, however old.
    pub serializable: bool,
}

/// Result of a read; all of it as of one revision.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RangeReply {
    /// The store's revision when it answered. With `RangeRequest::revision = None` the keys are as of it, so a watch
    /// from `revision + 1` misses nothing and repeats nothing.
    pub revision: Revision,
    /// The keys in their order.
    pub kvs: Vec<KeyValue>,
    /// Whether the limit cut keys off.
    pub more: bool,
    /// Keys in the range, whatever the limit.
    pub count: u64,
}

/// The end of the range of all keys that start with `prefix`, for `range_end`.
pub fn prefix_end(prefix: &[u8]) -> Bytes {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < 0xff {
            end.push(last + 1);
            return Bytes::from(end);
        }
    }
    // Only 0xff bytes, or nothing: every key from the prefix on.
    Bytes::from_static(&[0])
}

impl Txn {
    /// About how many bytes its steps carry.
    pub fn bytes(&self) -> usize {
        let op = |op: &Op| match op {
            Op::Put { key, value, .. } => key.len() + value.len(),
            Op::Delete { key, range_end, .. } => key.len() + range_end.len(),
            Op::Range(range) => range.key.len() + range.range_end.len(),
            Op::Txn(txn) => txn.bytes(),
        };
        self.success.iter().chain(&self.failure).map(op).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_ends_before_the_first_key_that_does_not_begin_with_it() {
        let cases: [(&[u8], &[u8]); 7] = [
            (b"a", b"b"),
            (b"/registry/", b"/registry0"),
            (b"a\xff", b"b"),
            (b"a\xff\xff", b"b"),
            (b"\xff", b"\0"),
            (b"\xff\xff", b"\0"),
            (b"", b"\0"),
        ];
        for (prefix, end) in cases {
            assert_eq!(prefix_end(prefix), end, "{prefix:?}");
        }
    }

    #[test]
    fn bytes_of_a_transaction_are_those_of_both_branches_and_of_all_inside() {
        let put = |key: &'static str, value: &'static str| Op::Put {
            key: key.into(),
            value: value.into(),
            lease: 0,
            prev_kv: false,
        };
        let inner = Txn { success: vec![put("kk", "v")], failure: vec![put("k", "")], ..Txn::default() };
        let delete = Op::Delete { key: "a".into(), range_end: "bb".into(), prev_kv: false };
        let range = Op::Range(RangeRequest { key: "aaa".into(), range_end: "b".into(), ..RangeRequest::default() });
        let whole = Txn {
            success: vec![put("k", "vvv"), delete],
            failure: vec![range, Op::Txn(Box::new(inner))],
            ..Txn::default()
        };
        assert_eq!(whole.bytes(), 4 + 3 + 4 + 3 + 1);
    }
}
