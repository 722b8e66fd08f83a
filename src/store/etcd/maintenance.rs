//! Upkeep: Alarm, Status, Defragment, Hash, HashKV, Snapshot, MoveLeader.

use std::sync::Arc;

use base::chain::Chain;
use base::limits;
use http::{Request, Response};
use proto::etcd as pb;
use sha2::{Digest as _, Sha256};
use tokio::io::AsyncReadExt as _;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;
use tonic::server::Grpc;
use tonic_prost::ProstCodec;
use tracing::warn;
use wire::Body;

use super::context::{Context, VERSION};
use super::convert::{self, signed};
use crate::error::Error;
use crate::kv::Revision;

/// Bytes of one piece of a snapshot.
const PIECE_BYTES: usize = 32 * 1024;

fn failed(err: Error) -> Status {
    convert::status(&err)
}

/// etcd's numbers of what can be done with alarms, and of the alarms.
const DEACTIVATE: i32 = 2;
const GET: i32 = 0;
const NONE: i32 = 0;
const NOSPACE: i32 = 1;
const CORRUPT: i32 = 2;

/// The alarms of this member.
fn raised(context: &Context, asked: i32) -> Vec<pb::AlarmMember> {
    let space = context.store.space();
    let raised = [(NOSPACE, space.is_low()), (CORRUPT, space.is_damaged())];
    let member_id = context.store.member_id();
    let wanted = |alarm: i32| asked == NONE || asked == alarm;
    raised
        .into_iter()
        .filter(|(alarm, is_on)| *is_on && wanted(*alarm))
        .map(|(alarm, _)| pb::AlarmMember { member_id, alarm })
        .collect()
}

/// Lists this member's alarms. An alarm ends by itself when its cause is over; a request to end one has the cause
/// looked at now.
pub async fn alarm(context: Arc<Context>, request: pb::AlarmRequest) -> Result<pb::AlarmResponse, Status> {
    let before = raised(&context, request.alarm);
    let alarms = match request.action {
        GET => before,
        DEACTIVATE => {
            // A disk that is full still is an answer, and not an error of this call.
            let _full_still = context.store.look_for_space().await;
            let after = raised(&context, request.alarm);
            before.into_iter().filter(|alarm| !after.contains(alarm)).collect()
        }
        _ => return Err(Status::invalid_argument("etcdserver: kedge raises alarms by itself")),
    };
    Ok(pb::AlarmResponse { header: context.header(None), alarms })
}

/// How this member is.
pub async fn status(context: Arc<Context>, _request: pb::Empty) -> Result<pb::StatusResponse, Status> {
    let status = context.store.status();
    let is_learner = context
        .store
        .node()
        .members_seen()
        .iter()
        .any(|member| member.id == context.store.member_id() && !member.voter);
    let mut errors = if status.leader.is_none() { vec!["etcdserver: no leader".to_owned()] } else { Vec::new() };
    // As etcd prints an alarm.
    let name = |alarm: i32| if alarm == NOSPACE { "NOSPACE" } else { "CORRUPT" };
    errors.extend(
        raised(&context, NONE)
            .iter()
            .map(|raised| format!("memberID:{} alarm:{} ", raised.member_id, name(raised.alarm))),
    );
    let in_use = context.store.bytes_in_use().await.map_err(failed)?;
    Ok(pb::StatusResponse {
        header: context.header(None),
        version: VERSION.to_owned(),
        db_size: signed(status.db_bytes),
        leader: status.leader.unwrap_or(0),
        raft_index: status.applied,
        raft_term: status.term,
        raft_applied_index: status.applied,
        errors,
        // What the WAL holds is in no page yet.
        db_size_in_use: signed(in_use.min(status.db_bytes)),
        is_learner,
    })
}

/// Writes the database anew without its free pages.
pub async fn defragment(context: Arc<Context>, _request: pb::Empty) -> Result<pb::HeaderOnly, Status> {
    context.store.defragment().await.map_err(failed)?;
    Ok(pb::HeaderOnly { header: context.header(None) })
}

async fn hash_at(context: &Arc<Context>, at: Option<Revision>) -> Result<(u64, Revision), Status> {
    context.store.hash(at).await.map_err(failed)
}

/// A fingerprint of the keys and values as they are.
pub async fn hash(context: Arc<Context>, _request: pb::Empty) -> Result<pb::HashResponse, Status> {
    let (hash, revision) = hash_at(&context, None).await?;
    Ok(pb::HashResponse { header: context.header(Some(revision)), hash: folded(hash) })
}

/// The same of the keys as they were at a revision.
pub async fn hash_kv(context: Arc<Context>, request: pb::HashKvRequest) -> Result<pb::HashKvResponse, Status> {
    let (hash, _) = hash_at(&context, Some(Revision(convert::unsigned(request.revision)))).await?;
    Ok(pb::HashKvResponse {
        header: context.header(None),
        hash: folded(hash),
        compact_revision: signed(context.store.floor().0),
    })
}

fn folded(hash: u64) -> u32 {
    let bytes = (hash ^ (hash >> 32)).to_be_bytes();
    u32::from_be_bytes([bytes[4], bytes[5], bytes[6], bytes[7]])
}

/// Hands the leadership over. The store chooses the voter that lacks least; another wish is refused.
pub async fn move_leader(context: Arc<Context>, request: pb::MemberIdRequest) -> Result<pb::HeaderOnly, Status> {
    let node = context.store.node();
    if node.leader().0 != Some(node.id) {
        return Err(Status::failed_precondition("etcdserver: not leader"));
    }
    let known = context.store.members().await.map_err(failed)?;
    if !known.iter().any(|member| member.id == request.id && member.voter) {
        return Err(Status::failed_precondition("etcdserver: bad leader transferee"));
    }
    node.hand_over_to(request.id).await.map_err(failed)?;
    Ok(pb::HeaderOnly { header: context.header(None) })
}

/// Streams the store as a database of etcd, and its SHA-256 behind it, as `etcdctl snapshot save` expects.
pub async fn snapshot(context: Arc<Context>, req: Request<Body>) -> Response<Body> {
    let service = tower::service_fn(move |_req: tonic::Request<pb::Empty>| {
        let context = Arc::clone(&context);
        async move {
            let copy = context.store.etcd_copy().await.map_err(failed)?;
            // Full means that the client reads slowly: the file waits.
            let (tx, rx) = mpsc::channel(limits::STORE_ETCD_STREAM);
            let group = context.group.clone();
            group.spawn_short("snapshot", async move {
                if let Err(err) = stream_file(&context, &copy, &tx).await {
                    warn!(err = %Chain(&err), "snapshot for an etcd client broke off");
                    let _gone = tx.send(Err(Status::unavailable("etcdserver: snapshot broke off"))).await;
                }
            });
            Ok(tonic::Response::new(ReceiverStream::new(rx)))
        }
    });
    let mut grpc = Grpc::new(ProstCodec::<pb::SnapshotResponse, pb::Empty>::default());
    grpc.server_streaming(service, req).await.map(wire::body::from_http)
}

async fn stream_file(
    context: &Context,
    path: &std::path::Path,
    tx: &mpsc::Sender<Result<pb::SnapshotResponse, Status>>,
) -> std::io::Result<()> {
    let mut file = tokio::fs::File::open(path).await?;
    let mut left = file.metadata().await?.len();
    let (mut hash, mut piece) = (Sha256::new(), vec![0; PIECE_BYTES]);
    loop {
        let n = file.read(&mut piece).await?;
        let blob = if n == 0 {
            bytes::Bytes::copy_from_slice(&hash.finalize_reset())
        } else {
            bytes::Bytes::copy_from_slice(&piece[..n])
        };
        hash.update(&piece[..n]);
        left = left.saturating_sub(n as u64);
        let answer = pb::SnapshotResponse { header: context.header(None), remaining_bytes: left, blob };
        if tx.send(Ok(answer)).await.is_err() || n == 0 {
            return Ok(());
        }
    }
}
