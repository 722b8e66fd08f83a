//! A real etcd as the store: [`Storage`] over its protocol.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use base::limits;
use base::sync::Mutex;
use base::task::Group;
use proto::etcd as pb;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status};

use crate::bounds::Bounds;
use crate::error::Error;
use crate::etcd::client::{Client, Endpoint};
use crate::etcd::convert::{from_event, from_key_value, signed, unsigned};
use crate::kv::{EventBatch, Revision};
use crate::storage::{Storage, WatchRequest};
use crate::txn::{Compare, CompareOp, Op, OpReply, RangeReply, RangeRequest, Txn, TxnReply};
use crate::watch::{CloseReason, WatchStream};

/// The store on somebody else's etcd.
pub struct External {
    client: Client,
    group: Group,
    /// Newest revision that any answer showed.
    revision: AtomicU64,
    /// Where open watches take requests for progress.
    watches: Mutex<Vec<mpsc::Sender<pb::WatchRequest>>>,
    /// Longest that one call may take.
    call_timeout: Duration,
}

impl External {
    /// Connects and reads where the store stands.
    ///
    /// `tls` is for endpoints with https. Errors: `EtcdUnreachable` with what each endpoint or the network said.
    pub async fn open(
        endpoints: Vec<Endpoint>,
        tls: Option<Arc<rustls::ClientConfig>>,
        bounds: Bounds,
        group: &Group,
    ) -> Result<Arc<External>, Error> {
        let (began, servers) =
            (Instant::now(), endpoints.iter().map(Endpoint::to_string).collect::<Vec<_>>().join(","));
        let client = Client::new(endpoints, tls, group);
        let external = External {
            client,
            group: group.child("external-etcd"),
            revision: AtomicU64::new(0),
            watches: Mutex::default(),
            call_timeout: bounds.write_timeout,
        };
        match external.read_index().await {
            Ok(_) => Ok(Arc::new(external)),
            Err(Error::Io { why, .. }) => Err(Error::EtcdUnreachable { servers, secs: began.elapsed().as_secs(), why }),
            Err(Error::TimedOut) => Err(Error::EtcdUnreachable {
                servers,
                secs: began.elapsed().as_secs(),
                why: "the call timed out".to_owned(),
            }),
            Err(other) => Err(other),
        }
    }

    async fn call<Q: prost::Message + Default + 'static, A: prost::Message + Default + 'static>(
        &self,
        path: &'static str,
        message: Q,
    ) -> Result<A, Error> {
        match tokio::time::timeout(self.call_timeout, self.client.call(path, message)).await {
            Ok(answer) => answer.map_err(|status| error(&status)),
            Err(_) => Err(Error::TimedOut),
        }
    }

    fn seen(&self, header: Option<&pb::ResponseHeader>) -> Revision {
        let revision = header.map_or(0, |header| unsigned(header.revision));
        self.revision.fetch_max(revision, Ordering::AcqRel);
        Revision(revision)
    }

    fn reply(&self, answer: pb::TxnResponse) -> TxnReply {
        let revision = self.seen(answer.header.as_ref());
        let replies = answer
            .responses
            .into_iter()
            .filter_map(|response| response.response)
            .map(|response| self.op_reply(response))
            .collect();
        TxnReply { succeeded: answer.succeeded, revision, replies }
    }

    fn op_reply(&self, response: pb::response_op::Response) -> OpReply {
        use pb::response_op::Response;
        match response {
            Response::Put(put) => OpReply::Put { prev: put.prev_kv.map(from_key_value) },
            Response::DeleteRange(delete) => OpReply::Delete {
                deleted: unsigned(delete.deleted),
                prev: delete.prev_kvs.into_iter().map(from_key_value).collect(),
            },
            Response::Range(range) => OpReply::Range(self.range_reply(range)),
            Response::Txn(txn) => OpReply::Txn(Box::new(self.reply(txn))),
        }
    }

    fn range_reply(&self, range: pb::RangeResponse) -> RangeReply {
        let revision = self.seen(range.header.as_ref());
        RangeReply {
            revision,
            kvs: range.kvs.into_iter().map(from_key_value).collect(),
            more: range.more,
            count: unsigned(range.count),
        }
    }
}

/// Converts an error of etcd.
fn error(status: &Status) -> Error {
    let text = status.message();
    match status.code() {
        Code::OutOfRange if text.contains("compacted") => Error::Compacted { asked: Revision(0), floor: Revision(0) },
        Code::OutOfRange if text.contains("future") => Error::Future { asked: Revision(0), current: Revision(0) },
        Code::Unavailable | Code::DeadlineExceeded => {
            Error::Io { doing: "etcd is not available", why: text.to_owned() }
        }
        Code::ResourceExhausted if text.contains("space") => Error::NoSpace { path: "the external etcd".into() },
        Code::InvalidArgument if text.contains("too large") => {
            Error::TooLarge { what: "bytes of a transaction", size: 0, max: limits::REQUEST_BODY_BYTES_MAX / 2 }
        }
        _ => Error::Io { doing: "etcd refused", why: text.to_owned() },
    }
}

/// etcd wants a first key: the least is a zero byte.
fn first(key: bytes::Bytes) -> bytes::Bytes {
    if key.is_empty() { bytes::Bytes::from_static(&[0]) } else { key }
}

fn range_request(request: RangeRequest) -> pb::RangeRequest {
    pb::RangeRequest {
        key: first(request.key),
        range_end: request.range_end,
        limit: signed(request.limit),
        revision: request.revision.map_or(0, |revision| signed(revision.0)),
        keys_only: request.keys_only,
        count_only: request.count_only,
        serializable: request.serializable,
        ..pb::RangeRequest::default()
    }
}

fn txn_request(txn: Txn) -> pb::TxnRequest {
    let steps = |ops: Vec<Op>| ops.into_iter().map(|op| pb::RequestOp { request: Some(step(op)) }).collect();
    pb::TxnRequest {
        compare: txn.compare.into_iter().map(condition).collect(),
        success: steps(txn.success),
        failure: steps(txn.failure),
    }
}

fn step(op: Op) -> pb::request_op::Request {
    use pb::request_op::Request;
    match op {
        Op::Put { key, value, lease, prev_kv } => {
            Request::Put(pb::PutRequest { key, value, lease: signed(lease), prev_kv, ..Default::default() })
        }
        Op::Delete { key, range_end, prev_kv } => {
            Request::DeleteRange(pb::DeleteRangeRequest { key: first(key), range_end, prev_kv })
        }
        Op::Range(range) => Request::Range(range_request(range)),
        Op::Txn(txn) => Request::Txn(txn_request(*txn)),
    }
}

fn condition(compare: Compare) -> pb::Compare {
    use pb::CompareTarget as Target;
    use pb::compare::TargetUnion;
    let (key, op, target, given) = match compare {
        Compare::ModRevision { key, op, revision } => {
            (key, op, Target::Mod, TargetUnion::ModRevision(signed(revision.0)))
        }
        Compare::CreateRevision { key, op, revision } => {
            (key, op, Target::Create, TargetUnion::CreateRevision(signed(revision.0)))
        }
        Compare::Version { key, op, version } => (key, op, Target::Version, TargetUnion::Version(signed(version))),
        Compare::Value { key, op, value } => (key, op, Target::Value, TargetUnion::Value(value)),
        Compare::Lease { key, op, lease } => (key, op, Target::Lease, TargetUnion::Lease(signed(lease))),
    };
    let result = match op {
        CompareOp::Equal => pb::CompareResult::Equal,
        CompareOp::NotEqual => pb::CompareResult::NotEqual,
        CompareOp::Greater => pb::CompareResult::Greater,
        CompareOp::Less => pb::CompareResult::Less,
    };
    pb::Compare {
        result: result.into(),
        target: target.into(),
        key,
        range_end: bytes::Bytes::new(),
        target_union: Some(given),
    }
}

/// Follows one watch until its reader is gone or etcd ends it.
async fn follow(
    mut answers: tonic::Streaming<pb::WatchResponse>,
    tx: mpsc::Sender<EventBatch>,
    close_reason: CloseReason,
    _open: mpsc::Sender<pb::WatchRequest>,
) {
    let end = |why: Error| *close_reason.lock() = Some(why);
    loop {
        let answer = tokio::select! {
            answer = answers.message() => answer,
            () = tx.closed() => return,
        };
        let answer = match answer {
            Ok(Some(answer)) => answer,
            Ok(None) => return end(Error::Closed),
            Err(status) => return end(error(&status)),
        };
        if answer.canceled {
            let floor = Revision(unsigned(answer.compact_revision));
            return end(if floor.0 > 0 { Error::Compacted { asked: Revision(0), floor } } else { Error::Closed });
        }
        for batch in batches(answer) {
            // Waiting here makes etcd wait: it keeps what a slow reader has not taken.
            if tx.send(batch).await.is_err() {
                return;
            }
        }
    }
}

/// One batch for each revision of an answer; an answer without events is a progress mark.
fn batches(answer: pb::WatchResponse) -> Vec<EventBatch> {
    let at = answer.header.as_ref().map_or(0, |header| unsigned(header.revision));
    if answer.created {
        return Vec::new();
    }
    if answer.events.is_empty() {
        return vec![EventBatch { revision: Revision(at), events: Arc::new([]) }];
    }
    let mut batches: Vec<(Revision, Vec<crate::kv::Event>)> = Vec::new();
    for event in answer.events.into_iter().map(from_event) {
        match batches.last_mut() {
            Some((revision, events)) if *revision == event.kv.mod_revision => events.push(event),
            _ => batches.push((event.kv.mod_revision, vec![event])),
        }
    }
    batches.into_iter().map(|(revision, events)| EventBatch { revision, events: events.into() }).collect()
}

#[async_trait]
impl Storage for External {
    async fn range(&self, request: RangeRequest) -> Result<RangeReply, Error> {
        let asked = request.revision;
        let answer = self.call("/etcdserverpb.KV/Range", range_request(request)).await;
        answer.map(|answer| self.range_reply(answer)).map_err(|err| match err {
            Error::Compacted { floor, .. } => Error::Compacted { asked: asked.unwrap_or_default(), floor },
            Error::Future { .. } => {
                Error::Future { asked: asked.unwrap_or_default(), current: self.current_revision() }
            }
            other => other,
        })
    }

    async fn txn(&self, txn: Txn) -> Result<TxnReply, Error> {
        self.call("/etcdserverpb.KV/Txn", txn_request(txn)).await.map(|answer| self.reply(answer))
    }

    async fn watch(&self, request: WatchRequest) -> Result<WatchStream, Error> {
        let create = pb::WatchCreateRequest {
            key: first(request.key),
            range_end: request.range_end,
            start_revision: signed(request.start.0),
            prev_kv: request.prev_kv,
            ..Default::default()
        };
        // Full means that etcd does not read: a request for progress is dropped then.
        let (requests, queue) = mpsc::channel(limits::STORE_ETCD_STREAM);
        let first = pb::WatchRequest { request: Some(pb::watch_request::Request::Create(create)) };
        requests.try_send(first).map_err(|_| Error::Closed)?;
        let mut answers = self
            .client
            .stream("/etcdserverpb.Watch/Watch", ReceiverStream::new(queue))
            .await
            .map_err(|status| error(&status))?;
        let created: Option<pb::WatchResponse> = answers.message().await.map_err(|status| error(&status))?;
        let created = created.ok_or(Error::Closed)?;
        self.seen(created.header.as_ref());
        if created.canceled {
            return Err(Error::Compacted { asked: request.start, floor: Revision(unsigned(created.compact_revision)) });
        }
        let (tx, rx) = mpsc::channel(limits::STORE_WATCH_BACKLOG_BATCHES);
        let close_reason = CloseReason::default();
        self.group.spawn_short("watch", follow(answers, tx, close_reason.clone(), requests.clone()));
        let mut watches = self.watches.lock();
        watches.retain(|watch| !watch.is_closed());
        watches.push(requests);
        Ok(WatchStream::live(rx, close_reason))
    }

    async fn progress(&self) -> Result<(), Error> {
        let ask = pb::WatchRequest { request: Some(pb::watch_request::Request::Progress(pb::Empty {})) };
        self.watches.lock().retain(|watch| {
            let _full = watch.try_send(ask.clone());
            !watch.is_closed()
        });
        Ok(())
    }

    async fn compact(&self, at: Revision) -> Result<(), Error> {
        let request = pb::CompactionRequest { revision: signed(at.0), physical: false };
        let answer: pb::HeaderOnly = self.call("/etcdserverpb.KV/Compact", request).await?;
        self.seen(answer.header.as_ref());
        Ok(())
    }

    async fn read_index(&self) -> Result<Revision, Error> {
        let read = RangeRequest { key: bytes::Bytes::from_static(&[0]), count_only: true, ..RangeRequest::default() };
        self.range(read).await.map(|reply| reply.revision)
    }

    fn current_revision(&self) -> Revision {
        Revision(self.revision.load(Ordering::Acquire))
    }

    async fn grant_lease(&self, id: u64, ttl_secs: u64) -> Result<(), Error> {
        let request = pb::LeaseGrantRequest { ttl: signed(ttl_secs), id: signed(id) };
        let answer: Result<pb::LeaseGrantResponse, Error> = self.call("/etcdserverpb.Lease/LeaseGrant", request).await;
        answer.map(drop)
    }

    async fn keep_lease(&self, id: u64) -> Result<(), Error> {
        let once = tokio_stream::once(pb::LeaseIdRequest { id: signed(id) });
        let kept = async {
            let mut answers = self.client.stream("/etcdserverpb.Lease/LeaseKeepAlive", once).await?;
            let answer: Option<pb::LeaseKeepAliveResponse> = answers.message().await?;
            Ok(answer.map_or(0, |answer| answer.ttl))
        };
        match tokio::time::timeout(self.call_timeout, kept).await {
            Ok(Ok(ttl)) if ttl > 0 => Ok(()),
            Ok(Ok(_)) => Err(Error::LeaseNotFound { id }),
            Ok(Err(status)) => Err(error(&status)),
            Err(_) => Err(Error::TimedOut),
        }
    }
}

#[cfg(test)]
#[path = "external_tests.rs"]
mod tests;
