//! Where the members' network is plugged in. A Raft of one has nobody to talk to.

use openraft::error::{InstallSnapshotError, RPCError, RaftError, Unreachable};
use openraft::network::{RPCOption, RaftNetwork, RaftNetworkFactory};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, InstallSnapshotRequest, InstallSnapshotResponse, VoteRequest, VoteResponse,
};
use openraft::{AnyError, BasicNode};

use crate::raft::TypeConfig;

/// Reaches nobody: the factory until members can join.
#[derive(Clone, Debug)]
pub struct Alone;

/// A peer that cannot be reached.
#[derive(Clone, Debug)]
pub struct NoPeer(u64);

impl NoPeer {
    fn unreachable(&self) -> Unreachable {
        Unreachable::new(&AnyError::error(format!("member {} cannot be reached: this store runs alone", self.0)))
    }
}

impl RaftNetworkFactory<TypeConfig> for Alone {
    type Network = NoPeer;

    async fn new_client(&mut self, target: u64, _node: &BasicNode) -> NoPeer {
        NoPeer(target)
    }
}

type Rpc<E = openraft::error::Infallible> = RPCError<u64, BasicNode, RaftError<u64, E>>;

impl RaftNetwork<TypeConfig> for NoPeer {
    async fn append_entries(
        &mut self,
        _rpc: AppendEntriesRequest<TypeConfig>,
        _option: RPCOption,
    ) -> Result<AppendEntriesResponse<u64>, Rpc> {
        Err(RPCError::Unreachable(self.unreachable()))
    }

    async fn install_snapshot(
        &mut self,
        _rpc: InstallSnapshotRequest<TypeConfig>,
        _option: RPCOption,
    ) -> Result<InstallSnapshotResponse<u64>, Rpc<InstallSnapshotError>> {
        Err(RPCError::Unreachable(self.unreachable()))
    }

    async fn vote(&mut self, _rpc: VoteRequest<u64>, _option: RPCOption) -> Result<VoteResponse<u64>, Rpc> {
        Err(RPCError::Unreachable(self.unreachable()))
    }
}
