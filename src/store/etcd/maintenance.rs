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

use super::convert::{self, signed};
use super::{Inner, VERSION};
use crate::error::Error;

/// Bytes of one piece of a snapshot.
const PIECE_BYTES: usize = 32 * 1024;

fn failed(err: Error) -> Status {
    convert::status(&err)
}

/// There are no alarms: a full disk is an error of the write that meets it.
pub async fn alarm(inner: Arc<Inner>, _request: pb::AlarmRequest) -> Result<pb::AlarmResponse, Status> {
    Ok(pb::AlarmResponse { header: inner.header(None), alarms: Vec::new() })
}

/// How this member is.
pub async fn status(inner: Arc<Inner>, _request: pb::Empty) -> Result<pb::StatusResponse, Status> {
    let status = inner.store.status();
    let is_learner = inner.store.node().members_seen().iter().any(|member| member.id == inner.store.member_id() && !member.voter);
    let errors = if status.leader.is_none() { vec!["etcdserver: no leader".to_owned()] } else { Vec::new() };
    Ok(pb::StatusResponse {
        header: inner.header(None),
        version: VERSION.to_owned(),
        db_size: signed(status.db_bytes),
        leader: status.leader.unwrap_or(0),
        raft_index: status.applied,
        raft_term: status.term,
        raft_applied_index: status.applied,
        errors,
        db_size_in_use: signed(status.db_bytes),
        is_learner,
    })
}

/// Nothing to do: SQLite uses freed pages again.
pub async fn defragment(inner: Arc<Inner>, _request: pb::Empty) -> Result<pb::HeaderOnly, Status> {
    Ok(pb::HeaderOnly { header: inner.header(None) })
}

/// A fingerprint of the keys as they are.
pub async fn hash(inner: Arc<Inner>, _request: pb::Empty) -> Result<pb::HashResponse, Status> {
    let (hash, revision) = inner.store.hash();
    Ok(pb::HashResponse { header: inner.header(Some(revision)), hash: folded(hash) })
}

/// The same at a revision; only the newest is known.
pub async fn hash_kv(inner: Arc<Inner>, request: pb::HashKvRequest) -> Result<pb::HashKvResponse, Status> {
    let (hash, revision) = inner.store.hash();
    if request.revision != 0 && convert::unsigned(request.revision) != revision.0 {
        return Err(Status::unimplemented("etcdserver: kedge hashes the newest revision only: leave the revision out"));
    }
    Ok(pb::HashKvResponse { header: inner.header(Some(revision)), hash: folded(hash), compact_revision: signed(inner.store.floor().0) })
}

fn folded(hash: u64) -> u32 {
    let bytes = (hash ^ (hash >> 32)).to_be_bytes();
    u32::from_be_bytes([bytes[4], bytes[5], bytes[6], bytes[7]])
}

/// Hands the leadership over. The store chooses the voter that lacks least; another wish is refused.
pub async fn move_leader(inner: Arc<Inner>, request: pb::MemberIdRequest) -> Result<pb::HeaderOnly, Status> {
    let node = inner.store.node();
    if node.leader().0 != Some(node.id) {
        return Err(Status::failed_precondition("etcdserver: not leader"));
    }
    let known = inner.store.members().await.map_err(failed)?;
    if !known.iter().any(|member| member.id == request.id && member.voter) {
        return Err(Status::failed_precondition("etcdserver: bad leader transferee"));
    }
    node.hand_over_to(request.id).await.map_err(failed)?;
    Ok(pb::HeaderOnly { header: inner.header(None) })
}

/// Streams the store as a database of etcd, and its SHA-256 behind it, as `etcdctl snapshot save` expects.
pub async fn snapshot(inner: Arc<Inner>, req: Request<Body>) -> Response<Body> {
    let service = tower::service_fn(move |_req: tonic::Request<pb::Empty>| {
        let inner = Arc::clone(&inner);
        async move {
            let copy = inner.store.etcd_copy().await.map_err(failed)?;
            // Full means that the client reads slowly: the file waits.
            let (tx, rx) = mpsc::channel(limits::STORE_ETCD_STREAM);
            let group = inner.group.clone();
            group.spawn_short("snapshot", async move {
                if let Err(err) = stream_file(&inner, &copy, &tx).await {
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
    inner: &Inner,
    path: &std::path::Path,
    tx: &mpsc::Sender<Result<pb::SnapshotResponse, Status>>,
) -> std::io::Result<()> {
    let mut file = tokio::fs::File::open(path).await?;
    let mut left = file.metadata().await?.len();
    let (mut hash, mut piece) = (Sha256::new(), vec![0; PIECE_BYTES]);
    loop {
        let n = file.read(&mut piece).await?;
        let blob = if n == 0 { bytes::Bytes::copy_from_slice(&hash.finalize_reset()) } else { bytes::Bytes::copy_from_slice(&piece[..n]) };
        hash.update(&piece[..n]);
        left = left.saturating_sub(n as u64);
        let answer = pb::SnapshotResponse { header: inner.header(None), remaining_bytes: left, blob };
        if tx.send(Ok(answer)).await.is_err() || n == 0 {
            return Ok(());
        }
    }
}
