//! Keys: Range, Put, DeleteRange, Txn, Compact.

use std::sync::Arc;

use proto::etcd as pb;
use tonic::Status;

use super::context::Context;
use super::convert::{self, key_value, signed, unsigned};
use crate::kv::{KeyValue, Revision};
use crate::storage::Storage as _;
use crate::txn::{Compare, CompareOp, Op, OpReply, RangeReply, RangeRequest, Txn, TxnReply};

/// Tries of a put that keeps the key's value or lease, when others change the key meanwhile.
const KEEP_TRIES: usize = 16;

fn failed(err: crate::error::Error) -> Status {
    convert::status(&err)
}

/// Reads keys.
pub async fn range(context: Arc<Context>, request: pb::RangeRequest) -> Result<pb::RangeResponse, Status> {
    let reply = context.store.range(convert::range(&request)?).await.map_err(failed)?;
    let revision = reply.revision;
    Ok(pb::RangeResponse { header: context.header(Some(revision)), ..worked_over(&request, reply) })
}

/// Sifts, orders and cuts what was read, as asked.
fn worked_over(request: &pb::RangeRequest, reply: RangeReply) -> pb::RangeResponse {
    let (mut kvs, mut more) = (reply.kvs, reply.more);
    if convert::is_worked_over(request) {
        let within =
            |n: Revision, min: i64, max: i64| (min == 0 || n.0 >= unsigned(min)) && (max == 0 || n.0 <= unsigned(max));
        kvs.retain(|kv| {
            within(kv.mod_revision, request.min_mod_revision, request.max_mod_revision)
                && within(kv.create_revision, request.min_create_revision, request.max_create_revision)
        });
        order(request, &mut kvs);
        let limit = usize::try_from(request.limit).unwrap_or(0);
        if limit > 0 && kvs.len() > limit {
            kvs.truncate(limit);
            more = true;
        }
    }
    if request.keys_only {
        kvs.iter_mut().for_each(|kv| kv.value = bytes::Bytes::new());
    }
    pb::RangeResponse { header: None, kvs: kvs.into_iter().map(key_value).collect(), more, count: signed(reply.count) }
}

fn order(request: &pb::RangeRequest, kvs: &mut [KeyValue]) {
    match pb::SortTarget::try_from(request.sort_target) {
        Ok(pb::SortTarget::Version) => kvs.sort_by_key(|kv| kv.version),
        Ok(pb::SortTarget::Create) => kvs.sort_by_key(|kv| kv.create_revision),
        Ok(pb::SortTarget::Mod) => kvs.sort_by_key(|kv| kv.mod_revision),
        Ok(pb::SortTarget::Value) => kvs.sort_by(|a, b| a.value.cmp(&b.value)),
        // They come in the order of their keys.
        Ok(pb::SortTarget::Key) | Err(_) => {}
    }
    if request.sort_order == i32::from(pb::SortOrder::Descend) {
        kvs.reverse();
    }
}

/// Writes a key.
pub async fn put(context: Arc<Context>, request: pb::PutRequest) -> Result<pb::PutResponse, Status> {
    if request.ignore_value && !request.value.is_empty() {
        return Err(Status::invalid_argument("etcdserver: value is provided"));
    }
    if request.ignore_lease && request.lease != 0 {
        return Err(Status::invalid_argument("etcdserver: lease is provided"));
    }
    let reply = if request.ignore_value || request.ignore_lease {
        keep(&context, &request).await?
    } else {
        context.store.txn(Txn { success: vec![convert::put(&request)?], ..Txn::default() }).await.map_err(failed)?
    };
    let revision = reply.revision;
    let prev_kv = match reply.replies.into_iter().next() {
        Some(OpReply::Put { prev }) => prev.map(key_value),
        _ => None,
    };
    Ok(pb::PutResponse { header: context.header(Some(revision)), prev_kv })
}

/// A put that keeps the value or the lease which the key has.
async fn keep(context: &Context, request: &pb::PutRequest) -> Result<TxnReply, Status> {
    for _ in 0..KEEP_TRIES {
        let read = RangeRequest { key: request.key.clone(), ..RangeRequest::default() };
        let now = context.store.range(read).await.map_err(failed)?.kvs.into_iter().next();
        let now = now.ok_or_else(|| Status::invalid_argument("etcdserver: key not found"))?;
        let value = if request.ignore_value { now.value } else { request.value.clone() };
        let lease = if request.ignore_lease { now.lease } else { convert::lease(request.lease)? };
        let put = Op::Put { key: now.key.clone(), value, lease, prev_kv: request.prev_kv };
        let unchanged = Compare::ModRevision { key: now.key, op: CompareOp::Equal, revision: now.mod_revision };
        let reply = context
            .store
            .txn(Txn { compare: vec![unchanged], success: vec![put], ..Txn::default() })
            .await
            .map_err(failed)?;
        if reply.succeeded {
            return Ok(reply);
        }
    }
    Err(Status::unavailable("etcdserver: too many requests"))
}

/// Deletes keys.
pub async fn delete(context: Arc<Context>, request: pb::DeleteRangeRequest) -> Result<pb::DeleteRangeResponse, Status> {
    let reply =
        context.store.txn(Txn { success: vec![convert::delete(&request)?], ..Txn::default() }).await.map_err(failed)?;
    let header = context.header(Some(reply.revision));
    match reply.replies.into_iter().next() {
        Some(OpReply::Delete { deleted, prev }) => Ok(pb::DeleteRangeResponse {
            header,
            deleted: signed(deleted),
            prev_kvs: prev.into_iter().map(key_value).collect(),
        }),
        _ => Ok(pb::DeleteRangeResponse { header, ..Default::default() }),
    }
}

/// Runs a transaction. One that only reads is a read.
pub async fn txn(context: Arc<Context>, request: pb::TxnRequest) -> Result<pb::TxnResponse, Status> {
    let reply = context.store.txn(convert::txn(&request)?).await.map_err(failed)?;
    Ok(answer(&context, &request, reply))
}

fn answer(context: &Context, request: &pb::TxnRequest, reply: TxnReply) -> pb::TxnResponse {
    use pb::request_op::Request;
    use pb::response_op::Response;
    let header = context.header(Some(reply.revision));
    let steps = if reply.succeeded { &request.success } else { &request.failure };
    let response = |(step, reply): (&pb::RequestOp, OpReply)| {
        let response = match (&step.request, reply) {
            (Some(Request::Range(request)), OpReply::Range(reply)) => Response::Range(pb::RangeResponse {
                header: context.header(Some(reply.revision)),
                ..worked_over(request, reply)
            }),
            (Some(Request::Txn(request)), OpReply::Txn(reply)) => Response::Txn(answer(context, request, *reply)),
            (_, OpReply::Put { prev }) => {
                Response::Put(pb::PutResponse { header: header.clone(), prev_kv: prev.map(key_value) })
            }
            (_, OpReply::Delete { deleted, prev }) => Response::DeleteRange(pb::DeleteRangeResponse {
                header: header.clone(),
                deleted: signed(deleted),
                prev_kvs: prev.into_iter().map(key_value).collect(),
            }),
            // Replies stand in the order of the steps, each of its kind.
            (_, OpReply::Range(_) | OpReply::Txn(_)) => return pb::ResponseOp { response: None },
        };
        pb::ResponseOp { response: Some(response) }
    };
    let responses = steps.iter().zip(reply.replies).map(response).collect();
    pb::TxnResponse { header: header.clone(), succeeded: reply.succeeded, responses }
}

/// Forgets old versions.
pub async fn compact(context: Arc<Context>, request: pb::CompactionRequest) -> Result<pb::HeaderOnly, Status> {
    context.store.compact(Revision(unsigned(request.revision))).await.map_err(failed)?;
    Ok(pb::HeaderOnly { header: context.header(None) })
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    /// A reply with keys in their order: name, value, creation, last change, version.
    fn reply() -> RangeReply {
        let rows = [("a", "z", 2, 8, 3), ("b", "y", 3, 5, 2), ("c", "x", 4, 9, 1), ("d", "w", 6, 6, 4)];
        let kv = |(key, value, create, modified, version): (&'static str, &'static str, u64, u64, u64)| KeyValue {
            key: Bytes::from_static(key.as_bytes()),
            value: Bytes::from_static(value.as_bytes()),
            create_revision: Revision(create),
            mod_revision: Revision(modified),
            version,
            lease: 0,
        };
        let kvs: Vec<KeyValue> = rows.into_iter().map(kv).collect();
        RangeReply { revision: Revision(9), count: kvs.len() as u64, kvs, more: false }
    }

    /// The keys of the answer to a request for all of [`reply`], and whether there are more.
    fn check(change: impl Fn(&mut pb::RangeRequest)) -> (String, bool) {
        let mut request = pb::RangeRequest::default();
        change(&mut request);
        let answer = worked_over(&request, reply());
        assert_eq!(answer.count, 4, "the count is of the range");
        (answer.kvs.iter().map(|kv| String::from_utf8_lossy(&kv.key).into_owned()).collect(), answer.more)
    }

    // Spec: etcd v3.6, server/etcdserver/txn/range.go (asembleRangeResponse and sorting).
    #[test]
    fn keys_are_ordered_by_each_target_both_ways() {
        use pb::{SortOrder as Order, SortTarget as Target};
        for (target, ascending) in [
            (Target::Key, "abcd"),
            (Target::Version, "cbad"),
            (Target::Create, "abcd"),
            (Target::Mod, "bdac"),
            (Target::Value, "dcba"),
        ] {
            let sorted = |order: Order| {
                check(|request| (request.sort_order, request.sort_target) = (order.into(), target.into())).0
            };
            assert_eq!(sorted(Order::Ascend), ascending, "{target:?}");
            assert_eq!(sorted(Order::None), ascending, "{target:?}: ascending is the default");
            assert_eq!(sorted(Order::Descend), ascending.chars().rev().collect::<String>(), "{target:?}");
        }
    }

    #[test]
    fn a_limit_cuts_after_the_order_is_made_and_says_so() {
        let newest = |limit: i64| {
            check(|request| {
                request.limit = limit;
                (request.sort_order, request.sort_target) = (pb::SortOrder::Descend.into(), pb::SortTarget::Mod.into());
            })
        };
        for (limit, keys, more) in [(1, "c", true), (3, "cad", true), (4, "cadb", false), (0, "cadb", false)] {
            assert_eq!(newest(limit), (keys.to_owned(), more), "{limit}");
        }
    }

    #[test]
    fn bounds_of_revisions_sift_keys_and_both_ends_count() {
        let changes: [(fn(&mut pb::RangeRequest), &str); 6] = [
            (|r| r.min_mod_revision = 8, "ac"),
            (|r| r.max_mod_revision = 6, "bd"),
            (|r| (r.min_mod_revision, r.max_mod_revision) = (6, 8), "ad"),
            (|r| r.min_create_revision = 4, "cd"),
            (|r| r.max_create_revision = 3, "ab"),
            (|r| (r.min_create_revision, r.max_mod_revision) = (3, 6), "bd"),
        ];
        for (change, keys) in changes {
            assert_eq!(check(change), (keys.to_owned(), false));
        }
    }

    #[test]
    fn values_that_were_read_for_their_order_are_left_out() {
        let request = pb::RangeRequest {
            keys_only: true,
            sort_target: pb::SortTarget::Value.into(),
            ..pb::RangeRequest::default()
        };
        let answer = worked_over(&request, reply());
        assert!(answer.kvs.iter().all(|kv| kv.value.is_empty()));
        assert_eq!(answer.kvs[0].key, "d");
    }
}
