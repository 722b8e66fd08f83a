//! The store's requests as etcd's messages, and etcd's answers as the store's.

use bytes::Bytes;

use super::*;
use crate::etcd::convert;
use crate::kv::{Event, EventKind, KeyValue};

#[test]
fn a_transaction_is_read_by_etcds_face_as_it_was() {
    let ops = [CompareOp::Equal, CompareOp::NotEqual, CompareOp::Greater, CompareOp::Less];
    let key = Bytes::from_static(b"k");
    let compare = ops.into_iter().flat_map(|op| {
        let (key, revision) = (key.clone(), Revision(7));
        [
            Compare::ModRevision { key: key.clone(), op, revision },
            Compare::CreateRevision { key: key.clone(), op, revision },
            Compare::Version { key: key.clone(), op, version: 3 },
            Compare::Value { key: key.clone(), op, value: "v".into() },
            Compare::Lease { key, op, lease: 9 },
        ]
    });
    let range = RangeRequest {
        key: "a".into(),
        range_end: "b".into(),
        limit: 5,
        revision: Some(Revision(4)),
        keys_only: true,
        count_only: true,
        serializable: true,
    };
    let all = RangeRequest { range_end: Bytes::from_static(&[0]), ..RangeRequest::default() };
    let inner = Txn { failure: vec![Op::Range(range)], ..Txn::default() };
    let txn = Txn {
        compare: compare.collect(),
        success: vec![
            Op::Put { key: "k".into(), value: "v".into(), lease: 9, prev_kv: true },
            Op::Delete { key: "a".into(), range_end: "b".into(), prev_kv: true },
            Op::Delete { key: Bytes::new(), range_end: Bytes::from_static(&[0]), prev_kv: false },
            Op::Txn(Box::new(inner)),
        ],
        failure: vec![Op::Range(all)],
    };
    assert_eq!(convert::txn(&txn_request(txn.clone())).unwrap(), txn);
}

#[test]
fn errors_of_etcd_are_the_stores() {
    let check = |code: Code, text: &str| error(&Status::new(code, text)).to_string();
    for (code, text, want) in [
        (
            Code::OutOfRange,
            "etcdserver: mvcc: required revision has been compacted",
            "revision 0 has been compacted, the oldest kept is 0",
        ),
        (
            Code::OutOfRange,
            "etcdserver: mvcc: required revision is a future revision",
            "revision 0 is in the future, the current one is 0",
        ),
        (Code::Unavailable, "etcdserver: no leader", "etcd is not available: etcdserver: no leader"),
        (Code::DeadlineExceeded, "late", "etcd is not available: late"),
        (
            Code::ResourceExhausted,
            "etcdserver: mvcc: database space exceeded",
            "no space left on the device that holds the external etcd",
        ),
        (Code::ResourceExhausted, "etcdserver: too many requests", "etcd refused: etcdserver: too many requests"),
        (Code::InvalidArgument, "etcdserver: key is not provided", "etcd refused: etcdserver: key is not provided"),
        (Code::Unauthenticated, "etcdserver: invalid auth token", "etcd refused: etcdserver: invalid auth token"),
    ] {
        assert_eq!(check(code, text), want);
    }
    let large = error(&Status::invalid_argument("etcdserver: request is too large"));
    assert!(matches!(large, Error::TooLarge { .. }), "{large}");
}

#[test]
fn an_answer_of_a_watch_is_a_batch_for_each_revision() {
    let kv = |key: &'static str, revision| KeyValue {
        key: key.into(),
        mod_revision: Revision(revision),
        ..KeyValue::default()
    };
    let event = |key, revision| Event { kind: EventKind::Put, kv: kv(key, revision), prev: None };
    let header = |revision| Some(pb::ResponseHeader { revision, ..Default::default() });
    let told = [event("a", 7), event("b", 7), event("a", 9)];
    let answer = pb::WatchResponse {
        header: header(9),
        events: told.iter().map(convert::event).collect(),
        ..Default::default()
    };
    let [a, b, later] = told;
    let want = [
        EventBatch { revision: Revision(7), events: vec![a, b].into() },
        EventBatch { revision: Revision(9), events: vec![later].into() },
    ];
    assert_eq!(batches(answer), want);
    let mark = pb::WatchResponse { header: header(12), ..Default::default() };
    assert_eq!(batches(mark), [crate::watch::progress_mark(Revision(12))]);
    let created = pb::WatchResponse { header: header(12), created: true, ..Default::default() };
    assert_eq!(batches(created), []);
}
