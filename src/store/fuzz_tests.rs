//! Bytes of no meaning, and bytes that nearly have one, to every decoder that others reach: calls of members, records
//! of the log, etcd's requests, images of snapshots, and what becomes of keys and values in a bbolt file. Nothing
//! panics, hangs or is taken for something else. Seeded: see `base::fuzz`.

use std::path::Path;

use base::fuzz::{self, below, mutated, rounds};
use base::rng::Rng;
use prost::Message as _;
use proto::etcd as pb;

use crate::codec::{decode, encode};
use crate::command::{Batch, Command, Origin};
use crate::error::Error;
use crate::etcd::convert;
use crate::journal::record;
use crate::kv::Revision;
use crate::mvcc::apply;
use crate::raft::rpc::{
    Append, Ballot, Call, KeepAlive, LeaseLeft, MemberStatus, Poll, Propose, Refusal, Reshape, SnapshotHead, Yield,
};
use crate::txn::{Compare, CompareOp, Op, RangeRequest, Txn};

const ROUNDS: u64 = 3000;

fn some_bytes(rng: &Rng, max: usize) -> Vec<u8> {
    let mut bytes = vec![0; below(rng, max + 1)];
    rng.fill(&mut bytes);
    bytes
}

fn txn(rng: &Rng, depth: u64) -> Txn {
    let key = || some_bytes(rng, 6).into();
    let ops = || {
        let op = |_| match rng.below(if depth > 0 { 4 } else { 3 }) {
            0 => Op::Put {
                key: key(),
                value: some_bytes(rng, 30).into(),
                lease: rng.below(3),
                prev_kv: rng.below(2) == 0,
            },
            1 => Op::Delete { key: key(), range_end: key(), prev_kv: rng.below(2) == 0 },
            2 => {
                Op::Range(RangeRequest { key: key(), range_end: key(), limit: rng.below(9), ..RangeRequest::default() })
            }
            _ => Op::Txn(Box::new(txn(rng, depth - 1))),
        };
        (0..rng.below(4)).map(op).collect()
    };
    let compare = vec![Compare::ModRevision { key: key(), op: CompareOp::Less, revision: Revision(rng.below(99)) }];
    Txn { compare, success: ops(), failure: ops() }
}

fn batch(rng: &Rng) -> Batch {
    let command = |_| match rng.below(4) {
        0 => Command::Compact { at: Revision(rng.below(99)) },
        1 => Command::LeaseGrant { id: rng.below(9), ttl_secs: rng.below(99) },
        2 => Command::LeaseRevoke { id: rng.below(9) },
        _ => Command::Txn(txn(rng, 3)),
    };
    Batch { origin: Origin::default(), commands: std::sync::Arc::new((0..rng.below(4)).map(command).collect()) }
}

/// A message decoded from bent bytes can be sent on and is the same then.
fn call<C: Call>(bytes: &[u8]) {
    if let Ok(read) = decode::<C>(bytes) {
        let again = encode(&read).unwrap();
        assert_eq!(encode(&decode::<C>(&again).unwrap()).unwrap(), again);
    }
    let _answer = decode::<C::Answer>(bytes);
}

#[test]
fn calls_of_members_are_decoded_or_refused() {
    let rng = fuzz::rng(1);
    for _ in rounds(ROUNDS) {
        let whole = encode(&Propose(batch(&rng))).unwrap();
        assert_eq!(encode(&decode::<Propose>(&whole).unwrap()).unwrap(), whole);
        let bytes = if rng.below(4) == 0 { some_bytes(&rng, 80) } else { mutated(&rng, &whole) };
        call::<Propose>(&bytes);
        call::<Append>(&bytes);
        call::<Ballot>(&bytes);
        call::<Poll>(&bytes);
        call::<Reshape>(&bytes);
        call::<Yield>(&bytes);
        call::<KeepAlive>(&bytes);
        call::<LeaseLeft>(&bytes);
        let _head = decode::<SnapshotHead>(&bytes);
        let _status = (decode::<MemberStatus>(&bytes), decode::<Refusal>(&bytes));
    }
}

/// A transaction inside of a transaction inside …: a decoder that calls itself would end the process, not the call.
#[test]
fn a_call_of_transactions_in_transactions_ends_no_process() {
    let nested = |depth| {
        (0..depth).fold(Txn::default(), |inner, _| Txn { success: vec![Op::Txn(Box::new(inner))], ..Txn::default() })
    };
    let call =
        |txn| encode(&Propose(Batch { origin: Origin::default(), commands: vec![Command::Txn(txn)].into() })).unwrap();
    // A level more is three bytes in front and one behind.
    let shallow = call(Txn::default());
    let deepest = move |depth: usize| {
        [&shallow[..shallow.len() - 3], &[0, 1, 3].repeat(depth), &[0; 3], &vec![0; depth][..]].concat()
    };
    assert_eq!(deepest(3), call(nested(3)), "it is built as the encoder builds it");
    assert!(decode::<Propose>(&deepest(3)).is_ok());
    let decoding = std::thread::Builder::new().stack_size(2 * 1024 * 1024).spawn(move || {
        assert!(decode::<Propose>(&deepest(100_000)).is_err());
    });
    decoding.unwrap().join().unwrap();
}

#[test]
fn records_of_the_log_are_read_or_refused() {
    let rng = fuzz::rng(2);
    for n in rounds(ROUNDS) {
        let payload = crate::mvcc::entry::Payload::Normal(batch(&rng));
        let entry = crate::mvcc::entry::Entry { log_id: crate::journal::frame::EntryId::new(1, 1, n), payload };
        let head = record::Head::Entries { prev: None, last: entry.log_id };
        let body = record::body(&head, &[entry.frame().unwrap()]).unwrap();
        let body = if rng.below(2) == 0 { mutated(&rng, &body) } else { body };
        // With sums that are right, so that what is behind them is looked at.
        let mut bytes = vec![0; record::bytes(body.len())];
        record::seal(&mut bytes, record::Mark { salt: 7, segment: 1, number: n }, &body).unwrap();
        let bytes = if rng.below(2) == 0 { mutated(&rng, &bytes) } else { bytes };
        let _rotten = record::is_rotten(&bytes, 7, 1);
        if let Some(record) = record::read(&bytes) {
            let _said = record.head();
            let frames = record.entries().unwrap_or_default();
            let _read: Vec<_> = frames.iter().map(crate::mvcc::entry::Entry::read).collect();
        }
    }
}

#[test]
fn requests_of_etcd_are_converted_or_refused() {
    let rng = fuzz::rng(3);
    let kv = |rng: &Rng| some_bytes(rng, 12);
    for _ in rounds(ROUNDS) {
        let put = pb::PutRequest { key: kv(&rng).into(), value: kv(&rng).into(), ..pb::PutRequest::default() };
        let range = pb::RangeRequest {
            key: kv(&rng).into(),
            range_end: kv(&rng).into(),
            limit: -1,
            ..pb::RangeRequest::default()
        };
        for whole in [put.encode_to_vec(), range.encode_to_vec()] {
            let bytes = if rng.below(4) == 0 { some_bytes(&rng, 60) } else { mutated(&rng, &whole) };
            if let Ok(request) = pb::RangeRequest::decode(&bytes[..]) {
                let _converted = convert::range(&request);
            }
            if let Ok(request) = pb::TxnRequest::decode(&bytes[..]) {
                let _converted = convert::txn(&request).map(|txn| apply::check(&txn));
            }
            let _others = (
                pb::PutRequest::decode(&bytes[..]),
                pb::WatchRequest::decode(&bytes[..]),
                pb::AlarmRequest::decode(&bytes[..]),
            );
        }
    }
}

/// A file that is no database, or was one: it is refused, and never ends the process.
#[test]
fn images_of_snapshots_are_whole_or_refused() {
    let (rng, dir) = (fuzz::rng(4), tempfile::tempdir().unwrap());
    let whole = image(dir.path());
    for n in rounds(ROUNDS / 20) {
        let path = dir.path().join(format!("{n}.db"));
        let mut bytes = if rng.below(8) == 0 { some_bytes(&rng, 9000) } else { whole.clone() };
        for _ in 0..rng.below(20) {
            let at = below(&rng, bytes.len());
            if let Some(byte) = bytes.get_mut(at) {
                *byte = u8::try_from(rng.below(256)).unwrap();
            }
        }
        if rng.below(4) == 0 {
            bytes.truncate(below(&rng, bytes.len()));
        }
        std::fs::write(&path, bytes).unwrap();
        match crate::backup::look(&path) {
            Ok(contents) => assert!(contents.revision >= 1),
            Err(Error::Corrupt { .. } | Error::Io { .. } | Error::NewerSchema { .. } | Error::NoSpace { .. }) => {}
            Err(err) => panic!("{err}"),
        }
        std::fs::remove_file(&path).unwrap();
    }
}

/// A database with some rows.
fn image(dir: &Path) -> Vec<u8> {
    let path = dir.join("whole.db");
    let conn = crate::mvcc::database::open_writer(&crate::disk::SystemDisk, &path, &Rng::from_seed(1)).unwrap();
    for n in 2..60_u64 {
        let value = vec![7_u8; usize::try_from(n * 17 % 900).unwrap()];
        conn.execute(
            "INSERT INTO history VALUES (?, ?, 1, 0, ?, 1, ?, ?)",
            rusqlite::params![n << 20, n, n, format!("/k/{n}").into_bytes(), value],
        )
        .unwrap();
    }
    conn.pragma_update(None, "journal_mode", "DELETE").unwrap();
    drop(conn);
    std::fs::read(path).unwrap()
}
