//! Requests of etcd's protocol become the store's, and the store's errors become etcd's codes and words.
//!
//! Spec: etcd v3.6, `server/etcdserver/api/v3rpc/key.go` (checks of requests) and `api/v3rpc/rpctypes/error.go`
//! (errors).

use proto::etcd as pb;
use tonic::Code;

use super::*;
use crate::kv::EventKind;

/// The code and the words of a refusal.
fn refused<T: std::fmt::Debug>(answer: Result<T, Status>) -> (Code, String) {
    let status = answer.unwrap_err();
    (status.code(), status.message().to_owned())
}

fn bytes(text: &'static str) -> Bytes {
    Bytes::from_static(text.as_bytes())
}

#[test]
fn counts_and_revisions_saturate_on_the_wire_and_negative_ones_are_none() {
    for (n, wire) in [(0, 0), (7, 7), (u64::MAX >> 1, i64::MAX), (u64::MAX, i64::MAX)] {
        assert_eq!(signed(n), wire);
    }
    for (wire, n) in [(0, 0), (7, 7), (i64::MAX, u64::MAX >> 1), (-1, 0), (i64::MIN, 0)] {
        assert_eq!(unsigned(wire), n);
    }
}

#[test]
fn a_range_names_its_keys_its_revision_and_its_form() {
    let asked = |change: fn(&mut pb::RangeRequest)| {
        let mut request = pb::RangeRequest { key: bytes("k"), ..Default::default() };
        change(&mut request);
        range(&request).unwrap()
    };
    let one = RangeRequest { key: bytes("k"), ..RangeRequest::default() };
    let cases: [(fn(&mut pb::RangeRequest), RangeRequest); 10] = [
        (|_| {}, one.clone()),
        (|r| r.range_end = bytes("l"), RangeRequest { range_end: bytes("l"), ..one.clone() }),
        (|r| r.limit = 5, RangeRequest { limit: 5, ..one.clone() }),
        (|r| r.limit = -5, one.clone()),
        (|r| r.revision = 9, RangeRequest { revision: Some(Revision(9)), ..one.clone() }),
        (|r| r.revision = 0, one.clone()),
        (|r| r.revision = -1, one.clone()),
        (|r| r.keys_only = true, RangeRequest { keys_only: true, ..one.clone() }),
        (|r| r.count_only = true, RangeRequest { count_only: true, ..one.clone() }),
        (|r| r.serializable = true, RangeRequest { serializable: true, ..one.clone() }),
    ];
    for (change, want) in cases {
        assert_eq!(asked(change), want);
    }
}

#[test]
fn all_keys_are_the_range_from_zero_to_zero() {
    let zero = Bytes::from_static(&[0]);
    let all = range(&pb::RangeRequest { key: zero.clone(), range_end: zero.clone(), ..Default::default() }).unwrap();
    assert_eq!((all.key, all.range_end), (Bytes::new(), zero.clone()));
    let from = range(&pb::RangeRequest { key: bytes("k"), range_end: zero.clone(), ..Default::default() }).unwrap();
    assert_eq!((from.key, from.range_end), (bytes("k"), zero.clone()));
    let deleted = delete(&pb::DeleteRangeRequest { key: zero.clone(), range_end: zero.clone(), prev_kv: true });
    assert_eq!(deleted.unwrap(), Op::Delete { key: Bytes::new(), range_end: zero, prev_kv: true });
}

#[test]
fn an_order_other_than_that_of_the_keys_is_made_of_all_of_them() {
    let limited = |order: pb::SortOrder, target: pb::SortTarget| {
        let request = pb::RangeRequest {
            key: bytes("k"),
            limit: 3,
            sort_order: order.into(),
            sort_target: target.into(),
            ..Default::default()
        };
        range(&request).unwrap().limit
    };
    use pb::{SortOrder as Order, SortTarget as Target};
    for (order, target, limit) in [
        (Order::None, Target::Key, 3),
        (Order::Ascend, Target::Key, 3),
        (Order::Descend, Target::Key, 0),
        (Order::None, Target::Mod, 0),
        (Order::Ascend, Target::Version, 0),
        (Order::Descend, Target::Value, 0),
    ] {
        assert_eq!(limited(order, target), limit, "{order:?} {target:?}");
    }
    let bounds: [fn(&mut pb::RangeRequest); 4] = [
        |r| r.min_mod_revision = 1,
        |r| r.max_mod_revision = 1,
        |r| r.min_create_revision = 1,
        |r| r.max_create_revision = 1,
    ];
    for bound in bounds {
        let mut request = pb::RangeRequest { key: bytes("k"), limit: 3, ..Default::default() };
        bound(&mut request);
        assert_eq!(range(&request).unwrap().limit, 0, "{request:?}");
    }
    // The values decide their order, though only keys are answered.
    let by_value = pb::RangeRequest {
        key: bytes("k"),
        keys_only: true,
        sort_target: pb::SortTarget::Value.into(),
        ..Default::default()
    };
    assert!(!range(&by_value).unwrap().keys_only);
}

#[test]
fn requests_without_a_key_or_with_an_unknown_order_are_refused() {
    let no_key = (Code::InvalidArgument, "etcdserver: key is not provided".to_owned());
    assert_eq!(refused(range(&pb::RangeRequest::default())), no_key);
    assert_eq!(refused(put(&pb::PutRequest::default())), no_key);
    assert_eq!(refused(delete(&pb::DeleteRangeRequest::default())), no_key);
    let empty = pb::TxnRequest { success: vec![pb::RequestOp { request: None }], ..Default::default() };
    assert_eq!(refused(txn(&empty)), no_key);
    let no_order = (Code::InvalidArgument, "etcdserver: invalid sort option".to_owned());
    let key = bytes("k");
    assert_eq!(refused(range(&pb::RangeRequest { key: key.clone(), sort_order: 3, ..Default::default() })), no_order);
    assert_eq!(refused(range(&pb::RangeRequest { key, sort_target: 5, ..Default::default() })), no_order);
}

#[test]
fn a_put_on_a_lease_that_cannot_be_is_refused() {
    let leased = |lease| put(&pb::PutRequest { key: bytes("k"), lease, ..Default::default() });
    assert!(matches!(leased(0), Ok(Op::Put { lease: 0, .. })));
    assert!(matches!(leased(i64::MAX), Ok(Op::Put { lease, .. }) if lease == u64::MAX >> 1));
    assert_eq!(refused(leased(-1)), (Code::NotFound, "etcdserver: requested lease not found".to_owned()));
}

#[test]
fn every_comparison_is_read() {
    use pb::compare::TargetUnion;
    let read = |target: i32, result: i32, given: Option<TargetUnion>| {
        let compare = pb::Compare { key: bytes("k"), target, result, target_union: given, ..Default::default() };
        condition(&compare)
    };
    let key = bytes("k");
    let results = [(0, CompareOp::Equal), (1, CompareOp::Greater), (2, CompareOp::Less), (3, CompareOp::NotEqual)];
    for (result, op) in results {
        for (target, given, want) in [
            (0, TargetUnion::Version(5), Compare::Version { key: key.clone(), op, version: 5 }),
            (
                1,
                TargetUnion::CreateRevision(5),
                Compare::CreateRevision { key: key.clone(), op, revision: Revision(5) },
            ),
            (2, TargetUnion::ModRevision(5), Compare::ModRevision { key: key.clone(), op, revision: Revision(5) }),
            (3, TargetUnion::Value(bytes("v")), Compare::Value { key: key.clone(), op, value: bytes("v") }),
            (4, TargetUnion::Lease(5), Compare::Lease { key: key.clone(), op, lease: 5 }),
        ] {
            assert_eq!(read(target, result, Some(given)).unwrap(), want);
        }
    }
    // Nothing to compare with is zero, or no bytes.
    let op = CompareOp::Equal;
    assert_eq!(read(2, 0, None).unwrap(), Compare::ModRevision { key: key.clone(), op, revision: Revision(0) });
    assert_eq!(read(3, 0, None).unwrap(), Compare::Value { key, op, value: Bytes::new() });
    for (target, result) in [(0, 4), (5, 0)] {
        assert_eq!(refused(read(target, result, None)).0, Code::InvalidArgument);
    }
    let of_range = pb::Compare { key: bytes("k"), range_end: bytes("l"), ..Default::default() };
    assert_eq!(refused(condition(&of_range)).0, Code::Unimplemented);
}

#[test]
fn a_transaction_holds_its_operations_in_their_order_and_others_inside() {
    use pb::request_op::Request;
    let step = |request| pb::RequestOp { request: Some(request) };
    let put = |key| Request::Put(pb::PutRequest { key: bytes(key), ..Default::default() });
    let inner = pb::TxnRequest { failure: vec![step(put("c"))], ..Default::default() };
    let whole = pb::TxnRequest {
        success: vec![step(put("a")), step(Request::Txn(inner)), step(put("b"))],
        ..Default::default()
    };
    let of = |key| Op::Put { key: bytes(key), value: Bytes::new(), lease: 0, prev_kv: false };
    let inner = Op::Txn(Box::new(Txn { failure: vec![of("c")], ..Txn::default() }));
    assert_eq!(txn(&whole).unwrap(), Txn { success: vec![of("a"), inner, of("b")], ..Txn::default() });
    for keeps in [
        pb::PutRequest { key: bytes("k"), ignore_value: true, ..Default::default() },
        pb::PutRequest { key: bytes("k"), ignore_lease: true, ..Default::default() },
    ] {
        let whole = pb::TxnRequest { success: vec![step(Request::Put(keeps))], ..Default::default() };
        assert_eq!(refused(txn(&whole)).0, Code::Unimplemented, "it is refused, not ignored");
    }
}

#[test]
fn keys_and_events_are_the_same_after_both_ways() {
    let kv = KeyValue {
        key: bytes("k"),
        value: bytes("v"),
        create_revision: Revision(3),
        mod_revision: Revision(7),
        version: 2,
        lease: 9,
    };
    assert_eq!(from_key_value(key_value(kv.clone())), kv);
    for kind in [EventKind::Put, EventKind::Delete] {
        for prev in [None, Some(kv.clone())] {
            let told = Event { kind, kv: kv.clone(), prev };
            assert_eq!(from_event(event(&told)), told);
        }
    }
}

#[test]
fn errors_have_the_codes_and_words_of_etcd() {
    let (asked, floor, current) = (Revision(1), Revision(5), Revision(9));
    let too_large = |what| Error::TooLarge { what, size: 2, max: 1 };
    for (err, code, words) in [
        (Error::Compacted { asked, floor }, Code::OutOfRange, "mvcc: required revision has been compacted"),
        (Error::Future { asked, current }, Code::OutOfRange, "mvcc: required revision is a future revision"),
        (Error::NoSpace { path: "/db".into() }, Code::ResourceExhausted, "mvcc: database space exceeded"),
        (Error::LeaseNotFound { id: 1 }, Code::NotFound, "requested lease not found"),
        (Error::LeaseExists { id: 1 }, Code::FailedPrecondition, "lease already exists"),
        (too_large("operations of a transaction"), Code::InvalidArgument, "too many operations in txn request"),
        (too_large("bytes of a transaction"), Code::InvalidArgument, "request is too large"),
        (
            Error::Invalid { why: "duplicate key given in txn request" },
            Code::InvalidArgument,
            "duplicate key given in txn request",
        ),
        (Error::NotLeader { leader: Some("a:1".to_owned()) }, Code::Unavailable, "no leader"),
        (Error::TimedOut, Code::Unavailable, "request timed out"),
        (Error::MemberNotFound { id: 1 }, Code::NotFound, "member not found"),
        (
            Error::NotCaughtUp { id: 1 },
            Code::FailedPrecondition,
            "can only promote a learner member which is in sync with leader",
        ),
        (Error::LastMember, Code::FailedPrecondition, "re-configuration failed due to not enough started members"),
        (Error::MemberUnreachable { address: "a:1".to_owned() }, Code::Unavailable, "unhealthy cluster"),
        (Error::Closed, Code::Unavailable, "server stopped"),
        (Error::Removed, Code::Unknown, "this member was removed from the cluster"),
    ] {
        let status = status(&err);
        assert_eq!((status.code(), status.message()), (code, format!("etcdserver: {words}").as_str()));
    }
}
