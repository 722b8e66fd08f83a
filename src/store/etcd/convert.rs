//! Between etcd's messages and the store's words, errors included.

use bytes::Bytes;
use proto::etcd as pb;
use tonic::Status;

use crate::error::Error;
use crate::kv::{Event, EventKind, KeyValue, Revision};
use crate::txn::{Compare, CompareOp, Op, RangeRequest, Txn};

/// A count or revision on the wire.
pub fn signed(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

/// The other way; negative counts as none.
pub fn unsigned(n: i64) -> u64 {
    u64::try_from(n).unwrap_or(0)
}

/// A key on the wire. Lease ids are 64 bits, signed there and unsigned here.
pub fn key_value(kv: KeyValue) -> pb::KeyValue {
    pb::KeyValue {
        key: kv.key,
        create_revision: signed(kv.create_revision.0),
        mod_revision: signed(kv.mod_revision.0),
        version: signed(kv.version),
        value: kv.value,
        lease: signed(kv.lease),
    }
}

/// A key from the wire.
pub fn from_key_value(kv: pb::KeyValue) -> KeyValue {
    KeyValue {
        key: kv.key,
        value: kv.value,
        create_revision: Revision(unsigned(kv.create_revision)),
        mod_revision: Revision(unsigned(kv.mod_revision)),
        version: unsigned(kv.version),
        lease: unsigned(kv.lease),
    }
}

/// An event on the wire.
pub fn event(event: &Event) -> pb::Event {
    let kind = if event.kind == EventKind::Put { pb::EventType::Put } else { pb::EventType::Delete };
    pb::Event { r#type: kind.into(), kv: Some(key_value(event.kv.clone())), prev_kv: event.prev.clone().map(key_value) }
}

/// An event from the wire.
pub fn from_event(event: pb::Event) -> Event {
    let kind = if event.r#type == i32::from(pb::EventType::Put) { EventKind::Put } else { EventKind::Delete };
    Event { kind, kv: event.kv.map(from_key_value).unwrap_or_default(), prev: event.prev_kv.map(from_key_value) }
}

/// Whether keys are ordered or sifted after reading, so that no limit may cut them off before.
pub fn is_worked_over(request: &pb::RangeRequest) -> bool {
    let by_key = request.sort_target == i32::from(pb::SortTarget::Key)
        && request.sort_order != i32::from(pb::SortOrder::Descend);
    let sorted =
        request.sort_order != i32::from(pb::SortOrder::None) || request.sort_target != i32::from(pb::SortTarget::Key);
    let bounds =
        [request.min_mod_revision, request.max_mod_revision, request.min_create_revision, request.max_create_revision];
    (sorted && !by_key) || bounds.iter().any(|bound| *bound != 0)
}

/// Converts a range request. Errors: an unknown order.
pub fn range(request: &pb::RangeRequest) -> Result<RangeRequest, Status> {
    if request.key.is_empty() {
        return Err(Status::invalid_argument("etcdserver: key is not provided"));
    }
    if pb::SortOrder::try_from(request.sort_order).is_err() || pb::SortTarget::try_from(request.sort_target).is_err() {
        return Err(Status::invalid_argument("etcdserver: invalid sort option"));
    }
    let by_value = request.sort_target == i32::from(pb::SortTarget::Value);
    Ok(RangeRequest {
        key: start(&request.key, &request.range_end),
        range_end: request.range_end.clone(),
        limit: if is_worked_over(request) { 0 } else { unsigned(request.limit) },
        revision: (request.revision > 0).then_some(Revision(unsigned(request.revision))),
        keys_only: request.keys_only && !by_value,
        count_only: request.count_only,
        serializable: request.serializable,
    })
}

// etcd clients say "all keys" as key [0] with range_end [0].
fn start(key: &Bytes, range_end: &Bytes) -> Bytes {
    if key[..] == [0] && range_end[..] == [0] { Bytes::new() } else { key.clone() }
}

/// A lease on the wire, where ids are signed; 0 is none, and no negative one was ever granted here.
pub fn lease(id: i64) -> Result<u64, Status> {
    u64::try_from(id).map_err(|_| status(&Error::LeaseNotFound { id: id.cast_unsigned() }))
}

/// A put as a step. `ignore_value` and `ignore_lease` are for the caller to fill in.
pub fn put(request: &pb::PutRequest) -> Result<Op, Status> {
    if request.key.is_empty() {
        return Err(Status::invalid_argument("etcdserver: key is not provided"));
    }
    Ok(Op::Put {
        key: request.key.clone(),
        value: request.value.clone(),
        lease: lease(request.lease)?,
        prev_kv: request.prev_kv,
    })
}

/// A delete as a step.
pub fn delete(request: &pb::DeleteRangeRequest) -> Result<Op, Status> {
    if request.key.is_empty() {
        return Err(Status::invalid_argument("etcdserver: key is not provided"));
    }
    Ok(Op::Delete {
        key: start(&request.key, &request.range_end),
        range_end: request.range_end.clone(),
        prev_kv: request.prev_kv,
    })
}

/// A transaction.
pub fn txn(request: &pb::TxnRequest) -> Result<Txn, Status> {
    let steps = |ops: &[pb::RequestOp]| ops.iter().map(op).collect::<Result<Vec<_>, _>>();
    let compare = request.compare.iter().map(condition).collect::<Result<_, _>>()?;
    Ok(Txn { compare, success: steps(&request.success)?, failure: steps(&request.failure)? })
}

fn op(op: &pb::RequestOp) -> Result<Op, Status> {
    use pb::request_op::Request;
    match &op.request {
        Some(Request::Range(request)) => Ok(Op::Range(range(request)?)),
        Some(Request::Put(request)) if request.ignore_value || request.ignore_lease => Err(Status::unimplemented(
            "etcdserver: ignore_value and ignore_lease inside a transaction are not served by kedge",
        )),
        Some(Request::Put(request)) => put(request),
        Some(Request::DeleteRange(request)) => delete(request),
        Some(Request::Txn(request)) => Ok(Op::Txn(Box::new(txn(request)?))),
        None => Err(Status::invalid_argument("etcdserver: key is not provided")),
    }
}

fn condition(compare: &pb::Compare) -> Result<Compare, Status> {
    use pb::compare::TargetUnion;
    if !compare.range_end.is_empty() {
        return Err(Status::unimplemented("etcdserver: comparing a range of keys is not served by kedge"));
    }
    let op = match pb::CompareResult::try_from(compare.result) {
        Ok(pb::CompareResult::Equal) => CompareOp::Equal,
        Ok(pb::CompareResult::Greater) => CompareOp::Greater,
        Ok(pb::CompareResult::Less) => CompareOp::Less,
        Ok(pb::CompareResult::NotEqual) => CompareOp::NotEqual,
        Err(_) => return Err(Status::invalid_argument("etcdserver: unknown comparison")),
    };
    let (key, given) = (compare.key.clone(), compare.target_union.clone());
    let number = |given: Option<TargetUnion>| match given {
        Some(
            TargetUnion::Version(n)
            | TargetUnion::CreateRevision(n)
            | TargetUnion::ModRevision(n)
            | TargetUnion::Lease(n),
        ) => unsigned(n),
        _ => 0,
    };
    Ok(match pb::CompareTarget::try_from(compare.target) {
        Ok(pb::CompareTarget::Version) => Compare::Version { key, op, version: number(given) },
        Ok(pb::CompareTarget::Create) => Compare::CreateRevision { key, op, revision: Revision(number(given)) },
        Ok(pb::CompareTarget::Mod) => Compare::ModRevision { key, op, revision: Revision(number(given)) },
        Ok(pb::CompareTarget::Lease) => Compare::Lease { key, op, lease: number(given) },
        Ok(pb::CompareTarget::Value) => {
            let value = if let Some(TargetUnion::Value(value)) = given { value } else { Bytes::new() };
            Compare::Value { key, op, value }
        }
        Err(_) => return Err(Status::invalid_argument("etcdserver: unknown comparison")),
    })
}

/// etcd's code and words for an error.
pub fn status(err: &Error) -> Status {
    match err {
        Error::Compacted { .. } => Status::out_of_range("etcdserver: mvcc: required revision has been compacted"),
        Error::Future { .. } => Status::out_of_range("etcdserver: mvcc: required revision is a future revision"),
        Error::NoSpace { .. } => Status::resource_exhausted("etcdserver: mvcc: database space exceeded"),
        Error::LeaseNotFound { .. } => Status::not_found("etcdserver: requested lease not found"),
        Error::LeaseExists { .. } => Status::failed_precondition("etcdserver: lease already exists"),
        Error::TooLarge { what: "operations of a transaction", .. } => {
            Status::invalid_argument("etcdserver: too many operations in txn request")
        }
        Error::TooLarge { .. } => Status::invalid_argument("etcdserver: request is too large"),
        Error::Invalid { why } => Status::invalid_argument(format!("etcdserver: {why}")),
        Error::NotLeader { .. } => Status::unavailable("etcdserver: no leader"),
        Error::TimedOut => Status::unavailable("etcdserver: request timed out"),
        Error::MemberNotFound { .. } => Status::not_found("etcdserver: member not found"),
        Error::NotCaughtUp { .. } => {
            Status::failed_precondition("etcdserver: can only promote a learner member which is in sync with leader")
        }
        Error::LastMember => {
            Status::failed_precondition("etcdserver: re-configuration failed due to not enough started members")
        }
        Error::MemberUnreachable { .. } => Status::unavailable("etcdserver: unhealthy cluster"),
        Error::Closed => Status::unavailable("etcdserver: server stopped"),
        other => Status::unknown(format!("etcdserver: {other}")),
    }
}

#[cfg(test)]
#[path = "convert_tests.rs"]
mod tests;
