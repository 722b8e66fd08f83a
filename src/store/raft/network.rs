//! Raft's own calls: openraft's network over [`Peers`].

use std::future::Future;
use std::sync::Arc;

use openraft::error::{Fatal, NetworkError, RPCError, RaftError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::{Backoff, RPCOption, RaftNetwork, RaftNetworkFactory};
use openraft::raft::{AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, VoteRequest, VoteResponse};
use openraft::{AnyError, Snapshot, Vote};
use tokio::time::Instant;

use crate::error::Error;
use crate::member::Peer;
use crate::raft::image::{self, ImageSource};
use crate::raft::last_contact::LastContact;
use crate::raft::peers::Peers;
use crate::raft::rpc::{Append, Ballot};
use crate::raft::types::TypeConfig;

/// After a member could not be reached, before the next try; heartbeats try anyway.
const PAUSE: std::time::Duration = std::time::Duration::from_millis(250);

/// Makes a [`Way`] to each member.
#[derive(Clone)]
pub struct Ways {
    /// The members.
    pub peers: Arc<Peers>,
    /// Where snapshots come from.
    pub images: ImageSource,
    /// Times at which members were last heard.
    pub last_contact: Arc<LastContact>,
}

/// The way to one member.
pub struct Way {
    to: u64,
    ways: Ways,
}

impl RaftNetworkFactory<TypeConfig> for Ways {
    type Network = Way;

    async fn new_client(&mut self, target: u64, node: &Peer) -> Way {
        self.peers.suggest(target, &node.addr);
        Way { to: target, ways: self.clone() }
    }
}

type Rpc = RPCError<u64, Peer, RaftError<u64>>;

fn failed(err: &Error) -> Rpc {
    match err {
        Error::MemberUnreachable { .. } | Error::NoNetwork => RPCError::Unreachable(Unreachable::new(err)),
        other => RPCError::Network(NetworkError::new(other)),
    }
}

fn silent() -> Rpc {
    RPCError::Network(NetworkError::new(&AnyError::error("that member cannot answer")))
}

impl RaftNetwork<TypeConfig> for Way {
    async fn append_entries(
        &mut self,
        rpc: AppendEntriesRequest<TypeConfig>,
        _option: RPCOption,
    ) -> Result<AppendEntriesResponse<u64>, Rpc> {
        let (term, sent) = (rpc.vote.leader_id().term, Instant::now());
        let answer =
            self.ways.peers.call(self.to, &Append(rpc)).await.map_err(|err| failed(&err))?.ok_or_else(silent)?;
        if !matches!(answer, AppendEntriesResponse::HigherVote(_)) {
            self.ways.last_contact.acknowledged(self.to, term, sent);
        }
        Ok(answer)
    }

    async fn vote(&mut self, rpc: VoteRequest<u64>, option: RPCOption) -> Result<VoteResponse<u64>, Rpc> {
        let answer = tokio::time::timeout(option.hard_ttl(), self.ways.peers.call(self.to, &Ballot(rpc)))
            .await
            .unwrap_or(Err(Error::TimedOut));
        answer.map_err(|err| failed(&err))?.ok_or_else(silent)
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote<u64>,
        snapshot: Snapshot<TypeConfig>,
        cancel: impl Future<Output = ReplicationClosed> + Send + 'static,
        _option: RPCOption,
    ) -> Result<SnapshotResponse<u64>, StreamingError<TypeConfig, Fatal<u64>>> {
        let sent = image::send((&self.ways.images, &self.ways.peers), self.to, vote, &snapshot.meta);
        let silent = || NetworkError::new(&AnyError::error("that member cannot answer"));
        tokio::select! {
            closed = cancel => Err(StreamingError::Closed(closed)),
            answer = sent => match answer {
                Ok(Some(answer)) => Ok(answer),
                Ok(None) => Err(StreamingError::Network(silent())),
                Err(err @ (Error::MemberUnreachable { .. } | Error::NoNetwork)) => {
                    Err(StreamingError::Unreachable(Unreachable::new(&err)))
                }
                Err(err) => Err(StreamingError::Network(NetworkError::new(&err))),
            },
        }
    }

    fn backoff(&self) -> Backoff {
        Backoff::new(std::iter::repeat(PAUSE))
    }
}
