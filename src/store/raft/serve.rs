//! Answering the other members.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use http::{Request, Response, StatusCode};
use openraft::Snapshot;
use openraft::raft::AppendEntriesResponse;
use tokio::io::AsyncWriteExt as _;
use tracing::{info, warn};
use wire::body::{self, Body};
use wire::{ConnInfo, Handler};

use crate::codec::{decode, encode};
use crate::error::Error;
use crate::lease::Lessor;
use crate::raft::node::Node;
use crate::raft::peers::collect;
use crate::raft::report::Reporter;
use crate::raft::rpc::{
    ADDRESS, Append, Ballot, CLUSTER, Call, KeepAlive, LeaseLeft, MEMBER, Members, Poll, Propose, ProposeReply,
    ReadIndex, Refusal, Reshape, SNAPSHOT, SnapshotAnswer, SnapshotHead, Stand, Status, Yield,
};
use crate::raft::types::{Image, TypeConfig};

/// Bytes of a snapshot's head at most.
const HEAD_BYTES_MAX: usize = 1024 * 1024;

/// The handler behind [`crate::store::Store::peer_handler`].
pub struct Inbox {
    node: Arc<Node>,
    lessor: Arc<Lessor>,
    reporter: Reporter,
    /// The cluster whose member was turned away last: it calls again and again, and is told of once.
    foreign: AtomicU64,
}

#[async_trait]
impl Handler for Inbox {
    async fn handle(&self, req: Request<Body>, conn: Arc<ConnInfo>) -> Response<Body> {
        // The TLS set-up of this port asks for a certificate of the peers' authority; a port without one must not get
        // here.
        if conn.client_certs.is_empty() && conn.identity.is_none() {
            return refuse(StatusCode::UNAUTHORIZED, "members show a certificate");
        }
        if let Err(foreign) = self.greet(&req) {
            return refuse(StatusCode::CONFLICT, &foreign.to_string());
        }
        if self.let_go(&req) {
            return refuse(StatusCode::GONE, "the caller is no member of this cluster any more");
        }
        match self.dispatch(req).await {
            Ok(bytes) => Response::new(body::full(bytes)),
            Err(err) => refuse(StatusCode::BAD_REQUEST, &err.to_string()),
        }
    }
}

/// A caller of another cluster.
#[derive(Debug, thiserror::Error)]
#[error("this member is of cluster {ours:x}, the caller of cluster {theirs:x}")]
struct Foreign {
    ours: u64,
    theirs: u64,
}

fn refuse(status: StatusCode, why: &str) -> Response<Body> {
    let mut answer = Response::new(body::full(why.to_owned()));
    *answer.status_mut() = status;
    answer
}

impl Inbox {
    /// Answers for a member.
    pub fn new(lessor: Arc<Lessor>, reporter: Reporter) -> Inbox {
        Inbox { node: reporter.node.clone(), lessor, reporter, foreign: AtomicU64::new(0) }
    }

    /// Learns where the caller is; turns away one of another cluster.
    fn greet(&self, req: &Request<Body>) -> Result<(), Foreign> {
        let header = |name| req.headers().get(name).and_then(|value| value.to_str().ok());
        let peers = &self.node.peers;
        let theirs: Option<u64> = header(CLUSTER).and_then(|text| text.parse().ok());
        if let (Some(theirs), Some(ours)) = (theirs, peers.cluster())
            && theirs != ours
        {
            let peer = header(ADDRESS).unwrap_or_default();
            if self.foreign.swap(theirs, Ordering::Relaxed) != theirs {
                warn!(
                    peer,
                    "a member of another cluster is turned away: its store is from before a reset or restore, or of \
                     other servers"
                );
            }
            return Err(Foreign { ours, theirs });
        }
        if let (Some(id), Some(address)) = (header(MEMBER).and_then(|text| text.parse().ok()), header(ADDRESS))
            && peers.learn(id, address)
        {
            info!(peer = id, addr = %address, "member found");
        }
        Ok(())
    }

    /// Whether the caller was a member and is none any more. Only the leader can tell: others may have old news, and a
    /// new member calls nobody before it is in.
    fn let_go(&self, req: &Request<Body>) -> bool {
        let node = &self.node;
        let caller =
            req.headers().get(MEMBER).and_then(|value| value.to_str().ok()).and_then(|text| text.parse::<u64>().ok());
        let of_this = req.headers().contains_key(CLUSTER);
        caller.is_some_and(|caller| of_this && node.leadership().is_me && !node.knows(caller))
    }

    async fn dispatch(&self, req: Request<Body>) -> Result<Vec<u8>, Error> {
        let (parts, body) = req.into_parts();
        let path = parts.uri.path();
        if path == SNAPSHOT {
            return encode(&self.snapshot(body).await?);
        }
        let bytes = collect(body).await.map_err(Error::io("a member's message broke off"))?;
        let node = &self.node;
        let raft = &node.raft;
        match path {
            Append::PATH => encode(&self.append(decode(&bytes)?).await),
            Poll::PATH => encode(&node.would_vote(decode::<Poll>(&bytes)?.0)),
            Ballot::PATH => encode(&raft.vote(decode::<Ballot>(&bytes)?.0).await.ok()),
            Propose::PATH => encode(&self.propose(decode(&bytes)?).await),
            ReadIndex::PATH => encode(&node.confirmed_index().await.map_err(Refusal::from)),
            Reshape::PATH => encode(&self.reshape(decode(&bytes)?).await.map_err(Refusal::from)),
            Yield::PATH => encode(&node.yield_to(decode::<Yield>(&bytes)?.0).await.ok()),
            Stand::PATH => encode(&raft.trigger().elect().await.ok()),
            KeepAlive::PATH => {
                encode(&self.lessor.keep_alive_here(decode::<KeepAlive>(&bytes)?.0).map_err(Refusal::from))
            }
            LeaseLeft::PATH => encode(&self.lessor.left_here(decode::<LeaseLeft>(&bytes)?.0).map_err(Refusal::from)),
            Members::PATH => encode(&if self.leads() { Ok(node.members_seen()) } else { Err(Refusal::NotLeader) }),
            Status::PATH => encode(&self.reporter.status()),
            other => Err(Error::Io {
                doing: "cannot answer a member",
                why: format!("this kedge does not know the call {other}"),
            }),
        }
    }

    async fn append(&self, Append(request): Append) -> Option<AppendEntriesResponse<u64>> {
        let node = &self.node;
        let answer = node.raft.append_entries(request).await.ok()?;
        if !matches!(answer, AppendEntriesResponse::HigherVote(_)) {
            node.last_contact.heard_leader();
        }
        Some(answer)
    }

    fn leads(&self) -> bool {
        let node = &self.node;
        node.leader().0 == Some(node.id)
    }

    async fn reshape(&self, Reshape(change): Reshape) -> Result<(), Error> {
        if !self.leads() {
            return Err(Error::NotLeader { leader: None });
        }
        self.node.reshape(&change).await
    }

    async fn propose(&self, Propose(batch): Propose) -> ProposeReply {
        let node = &self.node;
        let (leader, term) = node.leader();
        if leader != Some(node.id) || term != batch.origin.term {
            return ProposeReply::Refused;
        }
        if !node.proposed.is_first(&batch.origin) {
            // The answer to the first try was lost on its way.
            return ProposeReply::Taken;
        }
        match node.raft.client_write_ff(batch).await {
            // Whether it is agreed upon the caller learns from its own log.
            Ok(answer) => {
                node.unread.keep(answer);
                ProposeReply::Taken
            }
            Err(_) => ProposeReply::Refused,
        }
    }

    async fn snapshot(&self, mut body: Body) -> Result<SnapshotAnswer, Error> {
        let (head, file) = self.receive(&mut body).await?;
        info!(n = head.bytes, "snapshot received from the leader");
        let snapshot = Snapshot::<TypeConfig> { meta: head.meta, snapshot: Box::new(Image { received: Some(file) }) };
        self.node.last_contact.heard_leader();
        let installed = self.node.raft.install_full_snapshot(head.vote, snapshot).await;
        Ok(installed.inspect_err(|err| warn!(err = %err, "snapshot not installed")).ok())
    }

    async fn receive(&self, body: &mut Body) -> Result<(SnapshotHead, tempfile::TempPath), Error> {
        use http_body_util::BodyExt as _;
        let broken = || Error::Io { doing: "cannot receive a snapshot", why: "it broke off".to_owned() };
        let io = |err: std::io::Error| Error::io("cannot store a snapshot")(err);
        let dir = &self.reporter.dir;
        let file = tempfile::Builder::new().prefix("copy-").suffix(".db").tempfile_in(dir).map_err(io)?;
        let (file, path) = file.into_parts();
        let mut file = tokio::fs::File::from_std(file);
        let (mut start, mut head, mut n_bytes) = (Vec::new(), None::<SnapshotHead>, 0_u64);
        while let Some(frame) = body.frame().await {
            let Ok(bytes) = frame.map_err(|_| broken())?.into_data() else { continue };
            if head.is_some() {
                n_bytes += bytes.len() as u64;
                file.write_all(&bytes).await.map_err(io)?;
                continue;
            }
            start.extend_from_slice(&bytes);
            let Some((length, rest)) = start.split_first_chunk::<4>() else { continue };
            let length = u32::from_be_bytes(*length) as usize;
            if length > HEAD_BYTES_MAX {
                return Err(broken());
            }
            if let Some((text, rest)) = rest.split_at_checked(length) {
                head = Some(decode(text)?);
                n_bytes += rest.len() as u64;
                file.write_all(rest).await.map_err(io)?;
            }
        }
        let head = head.filter(|head| head.bytes == n_bytes).ok_or_else(broken)?;
        file.sync_all().await.map_err(io)?;
        Ok((head, path))
    }
}
