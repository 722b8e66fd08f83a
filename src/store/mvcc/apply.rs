//! Commands become rows: the semantics of etcd's transactions, leases and floor, in memory; `flush` brings it to the
//! database.

use std::collections::{BTreeMap, BTreeSet};

use base::sync::RwLock;
use bytes::Bytes;
use rusqlite::Connection;

use crate::command::{Command, Outcome};
use crate::error::Error;
use crate::kv::{Event, EventBatch, KeyValue, Revision};
use crate::mvcc::database;
use crate::mvcc::history::event;
use crate::mvcc::index::{CHANGES_MAX, Index, POSITION_BITS, Version, covers};
use crate::mvcc::memtable::{Memtable, Row, Unsaved};
use crate::mvcc::read::select;
use crate::txn::{Compare, CompareOp, Op, OpReply, RangeReply, RangeRequest, Txn, TxnReply};

/// Steps of one transaction, as etcd's `--max-txn-ops`.
const TXN_OPS_MAX: usize = 128;

/// Bytes of one transaction, as etcd's `--max-request-bytes`.
const TXN_BYTES_MAX: usize = 1536 * 1024;

/// About what a row takes beside its key and value.
const ROW_BYTES: usize = 64;

/// A lease and the keys that hang on it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lease {
    /// How long it lives without a keep-alive.
    pub ttl_secs: u64,
    /// Its keys.
    pub keys: BTreeSet<Bytes>,
}

/// All leases by id.
pub type Leases = BTreeMap<u64, Lease>;

/// The state while entries are applied: what is pushed here becomes visible when the hub tells of it.
pub struct Pass<'a> {
    /// Where values are that are not behind.
    pub conn: &'a Connection,
    /// The rows that are not in the database yet.
    pub memtable: &'a Memtable,
    /// Other state that the database lacks.
    pub unsaved: &'a mut Unsaved,
    /// The versions.
    pub index: &'a RwLock<Index>,
    /// The leases.
    pub leases: &'a mut Leases,
    /// The newest revision, with those of this pass.
    pub revision: u64,
    /// The Raft entry at work: index and term.
    pub entry: (u64, u64),
    /// Whether events carry the key as it was.
    pub want_prev: bool,
    /// Batches for the watchers.
    pub told: Vec<EventBatch>,
    /// Changes so far in the revision being made.
    pub events: Vec<Event>,
}

/// Refuses what no state could make valid.
pub fn check(txn: &Txn) -> Result<(), Error> {
    let size = txn.bytes();
    if size > TXN_BYTES_MAX {
        return Err(Error::TooLarge { what: "bytes of a transaction", size, max: TXN_BYTES_MAX });
    }
    check_branches(txn)
}

fn check_branches(txn: &Txn) -> Result<(), Error> {
    for branch in [&txn.success, &txn.failure] {
        let size = branch.len().max(txn.compare.len());
        if size > TXN_OPS_MAX {
            return Err(Error::TooLarge { what: "operations of a transaction", size, max: TXN_OPS_MAX });
        }
        let mut puts = BTreeSet::new();
        for op in branch {
            match op {
                Op::Put { key, .. } if key.is_empty() => return Err(Error::Invalid { why: "key is not provided" }),
                Op::Put { key, .. } if !puts.insert(key) => {
                    return Err(Error::Invalid { why: "duplicate key given in txn request" });
                }
                Op::Txn(txn) => check_branches(txn)?,
                _ => {}
            }
        }
        let deleted_too =
            |op: &Op| matches!(op, Op::Delete { key, range_end, .. } if puts.iter().any(|p| covers(key, range_end, p)));
        if branch.iter().any(deleted_too) {
            return Err(Error::Invalid { why: "duplicate key given in txn request" });
        }
    }
    Ok(())
}

/// Error that stops a pass: a value cannot be read.
type Broken = rusqlite::Error;

impl Pass<'_> {
    /// Applies a command. `Err` breaks the batch, an inner error is the command's answer and changed nothing.
    pub fn command(&mut self, command: &Command) -> Result<Outcome, Broken> {
        match command {
            Command::Txn(txn) => self.txn(txn),
            Command::Compact { at } => Ok(self.compact(at.0)),
            Command::LeaseGrant { id, ttl_secs } => Ok(self.grant(*id, *ttl_secs)),
            Command::LeaseRevoke { id } => self.revoke(*id),
        }
    }

    fn index(&self) -> std::sync::RwLockReadGuard<'_, Index> {
        self.index.read()
    }

    fn reply(&self, succeeded: bool, replies: Vec<OpReply>) -> TxnReply {
        TxnReply { succeeded, revision: Revision(self.revision), replies }
    }

    fn txn(&mut self, txn: &Txn) -> Result<Outcome, Broken> {
        // All conditions, those of inner transactions too, are judged on the state before the first step.
        let mut verdicts = Vec::new();
        self.judge(txn, &mut verdicts)?;
        let mut verdicts = verdicts.into_iter();
        if let Err(err) = self.refuse(txn, &mut verdicts.clone()) {
            return Ok(Err(err));
        }
        let mut reply = self.steps(txn, &mut verdicts)?;
        self.finish_revision();
        reply.revision = Revision(self.revision);
        Ok(Ok(reply))
    }

    /// The revision's changes are complete: the next one counts on.
    fn finish_revision(&mut self) {
        if !self.events.is_empty() {
            self.revision += 1;
            let events = std::mem::take(&mut self.events).into();
            self.told.push(EventBatch { revision: Revision(self.revision), events });
        }
    }

    fn judge(&self, txn: &Txn, verdicts: &mut Vec<bool>) -> Result<(), Broken> {
        let mut holds = true;
        for compare in &txn.compare {
            holds = holds && self.holds(compare)?;
        }
        verdicts.push(holds);
        for op in if holds { &txn.success } else { &txn.failure } {
            if let Op::Txn(inner) = op {
                self.judge(inner, verdicts)?;
            }
        }
        Ok(())
    }

    fn holds(&self, compare: &Compare) -> Result<bool, Broken> {
        let newest = |key: &Bytes| self.index().newest(key);
        let number = |op, stored: u64, given: u64| ordered(op, stored.cmp(&given));
        Ok(match compare {
            Compare::ModRevision { key, op, revision } => {
                number(*op, newest(key).map_or(0, |v| v.revision()), revision.0)
            }
            Compare::CreateRevision { key, op, revision } => {
                number(*op, newest(key).map_or(0, |v| v.create), revision.0)
            }
            Compare::Version { key, op, version } => number(*op, newest(key).map_or(0, |v| v.version), *version),
            Compare::Lease { key, op, lease } => number(*op, newest(key).map_or(0, |v| v.lease), *lease),
            Compare::Value { key, op, value } => match newest(key) {
                None => false,
                Some(version) => ordered(*op, self.value(version)?.cmp(value)),
            },
        })
    }

    /// Refuses a transaction that the state does not allow, before anything is changed.
    fn refuse(&self, txn: &Txn, verdicts: &mut impl Iterator<Item = bool>) -> Result<(), Error> {
        for op in branch(txn, verdicts) {
            match op {
                Op::Put { lease, .. } if *lease != 0 && !self.leases.contains_key(lease) => {
                    return Err(Error::LeaseNotFound { id: *lease });
                }
                Op::Range(RangeRequest { revision: Some(revision), .. }) if revision.0 > 0 => {
                    self.index().check(revision.0, self.revision)?;
                }
                Op::Delete { key, range_end, .. } => {
                    let size = self.index().range(key, range_end, u64::MAX >> POSITION_BITS).count();
                    if size as u64 > CHANGES_MAX / 2 {
                        return Err(Error::TooLarge {
                            what: "keys of one delete",
                            size,
                            max: (CHANGES_MAX / 2) as usize,
                        });
                    }
                }
                Op::Txn(inner) => self.refuse(inner, verdicts)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn steps(&mut self, txn: &Txn, verdicts: &mut std::vec::IntoIter<bool>) -> Result<TxnReply, Broken> {
        let succeeded = verdicts.as_slice().first().copied().unwrap_or(true);
        let mut replies = Vec::new();
        for op in branch(txn, verdicts) {
            replies.push(match op {
                Op::Put { key, value, lease, prev_kv } => {
                    OpReply::Put { prev: self.put(key, value, *lease, *prev_kv)? }
                }
                Op::Delete { key, range_end, prev_kv } => {
                    let prev = self.delete(key, range_end, *prev_kv)?;
                    OpReply::Delete { deleted: prev.0, prev: prev.1 }
                }
                Op::Range(range) => OpReply::Range(self.range(range)?),
                Op::Txn(inner) => OpReply::Txn(Box::new(self.steps(inner, verdicts)?)),
            });
        }
        let at = self.revision + u64::from(!self.events.is_empty());
        Ok(TxnReply { revision: Revision(at), ..self.reply(succeeded, replies) })
    }

    fn value(&self, version: Version) -> Result<Bytes, Broken> {
        if let Some(value) = self.memtable.value(version.id) {
            return Ok(value);
        }
        database::value(self.conn, version.id)?.ok_or(rusqlite::Error::QueryReturnedNoRows)
    }

    fn put(&mut self, key: &Bytes, value: &Bytes, lease: u64, prev_kv: bool) -> Result<Option<KeyValue>, Broken> {
        let old = self.index().newest(key);
        let prev = self.prev(key, old, prev_kv)?;
        let create = old.map_or(self.revision + 1, |v| v.create);
        self.row(key, value, create, old.map_or(1, |v| v.version + 1), lease, prev.clone());
        self.attach(key, old.map_or(0, |v| v.lease), lease);
        Ok(prev.filter(|_| prev_kv))
    }

    fn delete(&mut self, key: &Bytes, range_end: &Bytes, prev_kv: bool) -> Result<(u64, Vec<KeyValue>), Broken> {
        let doomed: Vec<(Bytes, Version)> =
            self.index().range(key, range_end, u64::MAX >> POSITION_BITS).map(|(key, v)| (key.clone(), v)).collect();
        let mut gone = Vec::new();
        for (key, old) in &doomed {
            let prev = self.prev(key, Some(*old), prev_kv)?;
            self.row(key, &Bytes::new(), 0, 0, 0, prev.clone());
            self.attach(key, old.lease, 0);
            gone.extend(prev.filter(|_| prev_kv));
        }
        Ok((doomed.len() as u64, gone))
    }

    fn prev(&self, key: &Bytes, old: Option<Version>, asked: bool) -> Result<Option<KeyValue>, Broken> {
        match old {
            Some(old) if asked || self.want_prev => Ok(Some(old.with(key, self.value(old)?))),
            _ => Ok(None),
        }
    }

    fn row(&mut self, key: &Bytes, value: &Bytes, create: u64, version: u64, lease: u64, prev: Option<KeyValue>) {
        let id = (self.revision + 1) << POSITION_BITS | self.events.len() as u64;
        let version = Version { id, create, version, lease };
        self.memtable.push(Row { version, entry: self.entry, key: key.clone(), value: value.clone() });
        self.unsaved.add(ROW_BYTES + key.len() + value.len());
        self.index.write().push(key, version);
        self.events.push(event(key, version, value.clone(), prev));
    }

    fn attach(&mut self, key: &Bytes, old: u64, new: u64) {
        if old == new {
            return;
        }
        if let Some(lease) = self.leases.get_mut(&old) {
            lease.keys.remove(key);
        }
        if let Some(lease) = self.leases.get_mut(&new) {
            lease.keys.insert(Bytes::copy_from_slice(key));
        }
    }

    fn range(&self, request: &RangeRequest) -> Result<RangeReply, Broken> {
        let newest = u64::MAX >> POSITION_BITS;
        let at = request.revision.filter(|r| r.0 > 0).map_or(newest, |r| r.0);
        let (rows, count) = select(&self.index(), request, at);
        let mut kvs = Vec::with_capacity(rows.len());
        for (key, version) in &rows {
            kvs.push(version.with(key, if request.keys_only { Bytes::new() } else { self.value(*version)? }));
        }
        let revision = Revision(self.revision + u64::from(!self.events.is_empty()));
        Ok(RangeReply { revision, more: !request.count_only && (kvs.len() as u64) < count, kvs, count })
    }

    fn compact(&mut self, at: u64) -> Outcome {
        let floor = self.index().floor;
        if at <= floor {
            return Err(Error::Compacted { asked: Revision(at), floor: Revision(floor) });
        }
        if at > self.revision {
            return Err(Error::Future { asked: Revision(at), current: Revision(self.revision) });
        }
        self.unsaved.floor = Some((at, self.revision));
        self.unsaved.add(ROW_BYTES);
        self.index.write().floor = at;
        Ok(self.reply(true, Vec::new()))
    }

    fn grant(&mut self, id: u64, ttl_secs: u64) -> Outcome {
        if self.leases.contains_key(&id) {
            return Err(Error::LeaseExists { id });
        }
        self.unsaved.leases.insert(id, Some(ttl_secs));
        self.unsaved.add(ROW_BYTES);
        self.leases.insert(id, Lease { ttl_secs, keys: BTreeSet::new() });
        Ok(self.reply(true, Vec::new()))
    }

    fn revoke(&mut self, id: u64) -> Result<Outcome, Broken> {
        let Some(lease) = self.leases.get(&id).cloned() else { return Ok(Err(Error::LeaseNotFound { id })) };
        for key in &lease.keys {
            self.delete(key, &Bytes::new(), false)?;
        }
        self.finish_revision();
        self.unsaved.leases.insert(id, None);
        self.unsaved.add(ROW_BYTES);
        self.leases.remove(&id);
        Ok(Ok(self.reply(true, Vec::new())))
    }
}

fn branch<'t>(txn: &'t Txn, verdicts: &mut impl Iterator<Item = bool>) -> &'t [Op] {
    // `judge` made a verdict for every transaction that runs, in this order.
    if verdicts.next().unwrap_or(true) { &txn.success } else { &txn.failure }
}

fn ordered(op: CompareOp, ordering: std::cmp::Ordering) -> bool {
    match op {
        CompareOp::Equal => ordering.is_eq(),
        CompareOp::NotEqual => ordering.is_ne(),
        CompareOp::Greater => ordering.is_gt(),
        CompareOp::Less => ordering.is_lt(),
    }
}

/// Refuses a command that no state could make valid, before it is proposed.
pub fn check_command(command: &Command) -> Result<(), Error> {
    match command {
        Command::Txn(txn) => check(txn),
        Command::LeaseGrant { id: 0, .. } => Err(Error::Invalid { why: "lease id 0 means no lease" }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(key: &'static str) -> Op {
        Op::Put { key: key.into(), value: Bytes::new(), lease: 0, prev_kv: false }
    }

    fn delete(key: &'static str, range_end: &'static str) -> Op {
        Op::Delete { key: key.into(), range_end: range_end.into(), prev_kv: false }
    }

    fn inner(success: Vec<Op>) -> Op {
        Op::Txn(Box::new(Txn { success, ..Txn::default() }))
    }

    /// The error's words for operations that stand in either branch; empty if they are fine.
    fn check_both(ops: &[Op]) -> String {
        let verdict = |txn: Txn| check(&txn).err().map(|err| err.to_string()).unwrap_or_default();
        let success = verdict(Txn { success: ops.to_vec(), ..Txn::default() });
        assert_eq!(success, verdict(Txn { failure: ops.to_vec(), ..Txn::default() }));
        success
    }

    // Spec: etcd v3.6, server/etcdserver/api/v3rpc/key.go, checkTxnRequest and checkIntervals.
    #[test]
    fn a_transaction_changes_each_key_once() {
        let twice = "invalid request: duplicate key given in txn request";
        for (ops, want) in [
            (vec![put("a"), put("b")], ""),
            (vec![put("a"), put("a")], twice),
            (vec![put("b"), delete("a", "c")], twice),
            (vec![delete("b", ""), put("b")], twice),
            (vec![put("z"), delete("a", "\0")], twice),
            (vec![put("c"), delete("a", "c")], ""),
            (vec![delete("a", "c"), delete("b", "")], ""),
            (vec![put("a"), inner(vec![put("b"), put("b")])], twice),
            (vec![put("")], "invalid request: key is not provided"),
            (vec![inner(vec![put("")])], "invalid request: key is not provided"),
        ] {
            assert_eq!(check_both(&ops), want, "{ops:?}");
        }
        // Only one of the branches runs.
        let either = Txn { success: vec![put("a")], failure: vec![put("a")], ..Txn::default() };
        assert!(check(&either).is_ok());
    }

    #[test]
    fn a_transaction_has_a_bound_of_operations_conditions_and_bytes() {
        let reads = |n: usize| vec![Op::Range(RangeRequest { key: "k".into(), ..RangeRequest::default() }); n];
        let too_many = format!("request is too large: operations of a transaction {}, at most 128 allowed", 129);
        assert_eq!(check_both(&reads(128)), "");
        assert_eq!(check_both(&reads(129)), too_many);
        assert_eq!(check_both(&[inner(reads(129))]), too_many);
        let condition = Compare::Version { key: "k".into(), op: CompareOp::Equal, version: 0 };
        let conditions = |n: usize| check(&Txn { compare: vec![condition.clone(); n], ..Txn::default() });
        assert!(conditions(128).is_ok() && matches!(conditions(129), Err(Error::TooLarge { size: 129, .. })));
        let value = |n: usize| Op::Put { key: "k".into(), value: vec![0; n].into(), lease: 0, prev_kv: false };
        assert_eq!(check_both(&[value(TXN_BYTES_MAX - 1)]), "");
        assert!(check_both(&[value(TXN_BYTES_MAX)]).starts_with("request is too large: bytes of a transaction"));
        assert!(!check_both(&[inner(vec![value(TXN_BYTES_MAX)])]).is_empty(), "those inside count, too");
    }

    #[test]
    fn comparisons_are_of_the_stored_with_the_given() {
        use CompareOp::{Equal, Greater, Less, NotEqual};
        for (op, less, equal, greater) in [
            (Equal, false, true, false),
            (NotEqual, true, false, true),
            (Greater, false, false, true),
            (Less, true, false, false),
        ] {
            assert_eq!([1, 2, 3].map(|stored: u64| ordered(op, stored.cmp(&2))), [less, equal, greater], "{op:?}");
        }
    }

    #[test]
    fn a_lease_of_the_id_zero_is_refused_before_it_is_proposed() {
        assert!(check_command(&Command::LeaseGrant { id: 0, ttl_secs: 1 }).is_err());
        assert!(check_command(&Command::LeaseGrant { id: 1, ttl_secs: 1 }).is_ok());
        assert!(check_command(&Command::LeaseRevoke { id: 0 }).is_ok(), "the state says that there is none");
    }
}
