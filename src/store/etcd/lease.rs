//! Leases: LeaseGrant, LeaseRevoke, LeaseKeepAlive, LeaseTimeToLive, LeaseLeases.

use std::sync::Arc;

use base::limits;
use futures_util::StreamExt as _;
use http::{Request, Response};
use proto::etcd as pb;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;
use tonic::server::Grpc;
use tonic_prost::ProstCodec;
use wire::Body;

use super::context::Context;
use super::convert::{self, signed, unsigned};
use crate::error::Error;

/// Longest life of a lease in seconds, as etcd's.
const TTL_SECS_MAX: i64 = 9_000_000_000;

fn failed(err: Error) -> Status {
    convert::status(&err)
}

/// Makes a lease; draws its id if the caller gave none.
pub async fn grant(context: Arc<Context>, request: pb::LeaseGrantRequest) -> Result<pb::LeaseGrantResponse, Status> {
    if request.ttl > TTL_SECS_MAX {
        return Err(Status::out_of_range("etcdserver: too large lease TTL"));
    }
    let ttl = request.ttl.max(1);
    let id = if request.id == 0 { context.rng.below(u64::MAX >> 1) + 1 } else { unsigned(request.id) };
    context.store.lessor().grant(id, unsigned(ttl)).await.map_err(failed)?;
    Ok(pb::LeaseGrantResponse { header: context.header(None), id: signed(id), ttl, error: String::new() })
}

/// Ends a lease.
pub async fn revoke(context: Arc<Context>, request: pb::LeaseIdRequest) -> Result<pb::HeaderOnly, Status> {
    let reply = context.store.lessor().revoke(unsigned(request.id)).await.map_err(failed)?;
    Ok(pb::HeaderOnly { header: context.header(Some(reply.revision)) })
}

/// Says what is left of a lease; -1 if there is none of that id.
pub async fn time_to_live(
    context: Arc<Context>,
    request: pb::LeaseTimeToLiveRequest,
) -> Result<pb::LeaseTimeToLiveResponse, Status> {
    let id = unsigned(request.id);
    let ttl = match context.store.lessor().left(id).await {
        Ok(left) => left,
        Err(Error::LeaseNotFound { .. }) => -1,
        Err(err) => return Err(failed(err)),
    };
    let granted = context
        .store
        .lessor()
        .all()
        .into_iter()
        .find(|(lease, _)| *lease == id)
        .map_or(0, |(_, granted)| signed(granted));
    let keys = if request.keys { context.store.lessor().keys(id).unwrap_or_default() } else { Vec::new() };
    Ok(pb::LeaseTimeToLiveResponse { header: context.header(None), id: request.id, ttl, granted_ttl: granted, keys })
}

/// Lists the leases.
pub async fn leases(context: Arc<Context>, _request: pb::Empty) -> Result<pb::LeaseLeasesResponse, Status> {
    let leases = context.store.lessor().all().into_iter().map(|(id, _)| pb::LeaseStatus { id: signed(id) }).collect();
    Ok(pb::LeaseLeasesResponse { header: context.header(None), leases })
}

/// Answers each keep-alive of a stream; a lease that is gone is answered with a life of 0.
pub async fn keep_alive(context: Arc<Context>, req: Request<Body>) -> Response<Body> {
    let service = tower::service_fn(move |req: tonic::Request<tonic::Streaming<pb::LeaseIdRequest>>| {
        let context = Arc::clone(&context);
        async move {
            // Full means that the client does not read: its keep-alives wait.
            let (tx, rx) = mpsc::channel(limits::STORE_ETCD_STREAM);
            let group = context.group.clone();
            group.spawn_short("keep-alive", answer_all(context, req.into_inner(), tx));
            Ok(tonic::Response::new(ReceiverStream::new(rx)))
        }
    });
    let mut grpc = Grpc::new(ProstCodec::<pb::LeaseKeepAliveResponse, pb::LeaseIdRequest>::default());
    grpc.streaming(service, req).await.map(wire::body::from_http)
}

async fn answer_all(
    context: Arc<Context>,
    mut requests: tonic::Streaming<pb::LeaseIdRequest>,
    tx: mpsc::Sender<Result<pb::LeaseKeepAliveResponse, Status>>,
) {
    while let Some(Ok(request)) = requests.next().await {
        let answer = match context.store.lessor().keep_alive(unsigned(request.id)).await {
            Ok(ttl) => Ok(signed(ttl)),
            Err(Error::LeaseNotFound { .. }) => Ok(0),
            Err(err) => Err(failed(err)),
        };
        let ends = answer.is_err();
        let answer = answer.map(|ttl| pb::LeaseKeepAliveResponse { header: context.header(None), id: request.id, ttl });
        if tx.send(answer).await.is_err() || ends {
            return;
        }
    }
}
