//! Protocol among members: the calls, their paths and their bytes.
//!
//! One call is one POST over HTTP/2. Its body is postcard behind a byte that names the form, so that a member of a
//! later version can tell. Who calls stands in headers.

use openraft::raft::{AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, VoteRequest, VoteResponse};
use openraft::{LogId, SnapshotMeta, Vote};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::command::Batch;
use crate::error::Error;
use crate::member::{Change, Member, Peer};
use crate::raft::types::TypeConfig;

/// Bytes of one call, but for snapshots.
pub const CALL_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Header with the caller's number.
pub const MEMBER: &str = "kedge-member";
/// Header with the address under which the caller is reached.
pub const ADDRESS: &str = "kedge-address";
/// Header with the caller's cluster; absent from one that is not in a cluster yet.
pub const CLUSTER: &str = "kedge-cluster";

/// A call: its path, what it carries, what it answers.
pub trait Call: Serialize + DeserializeOwned + Send {
    /// Path of the request.
    const PATH: &'static str;
    /// The answer.
    type Answer: Serialize + DeserializeOwned + Send;
}

macro_rules! call {
    ($(#[$doc:meta])* $name:ident($inner:ty) -> $answer:ty, $path:literal) => {
        $(#[$doc])*
        #[derive(Serialize, Deserialize)]
        pub struct $name(
            /// The message inside.
            pub $inner,
        );
        impl Call for $name {
            const PATH: &'static str = concat!("/kedge.store/", $path);
            type Answer = $answer;
        }
    };
}

call!(/// Raft's AppendEntries. `None`: that member cannot answer, e.g. it is stopping.
    Append(AppendEntriesRequest<TypeConfig>) -> Option<AppendEntriesResponse<u64>>, "append");
call!(/// Raft's RequestVote.
    Ballot(VoteRequest<u64>) -> Option<VoteResponse<u64>>, "vote");
call!(/// Asks whether the called would vote for a member whose log ends there. Nothing is promised or changed by it.
    Poll(Option<LogId<u64>>) -> bool, "poll");
call!(/// Commands for the leader.
    Propose(Batch) -> ProposeReply, "propose");
call!(/// Asks the leader how far a member must have applied for a linearizable read.
    ReadIndex(()) -> Result<Option<u64>, Refusal>, "read-index");
call!(/// A change of the group, for the leader.
    Reshape(Change) -> Result<(), Refusal>, "reshape");
call!(/// Vote for that candidate and no longer for the leader, which asks for it as it is about to leave.
    Yield(Vote<u64>) -> Option<()>, "yield");
call!(/// Stand for election now.
    Stand(()) -> Option<()>, "stand");
call!(/// Asks the leader to give a lease its whole life again.
    KeepAlive(u64) -> Result<u64, Refusal>, "keep-alive");
call!(/// Asks the leader what is left of a lease's life, in seconds.
    LeaseLeft(u64) -> Result<i64, Refusal>, "lease-left");
call!(/// Asks the leader for the members.
    Members(()) -> Result<Vec<Member>, Refusal>, "members");
call!(/// Asks a member about itself.
    Status(()) -> MemberStatus, "status");

/// Path of the stream of a snapshot.
pub const SNAPSHOT: &str = "/kedge.store/snapshot";

/// Header before the bytes of a snapshot.
#[derive(Debug, Serialize, Deserialize)]
pub struct SnapshotHead {
    /// Of the leader that sends it.
    pub vote: Vote<u64>,
    /// Position and membership of the snapshot.
    pub meta: SnapshotMeta<u64, Peer>,
    /// Bytes that follow.
    pub bytes: u64,
}

/// Answer to a snapshot.
pub type SnapshotAnswer = Option<SnapshotResponse<u64>>;

/// Outcome of a proposal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ProposeReply {
    /// It is in the leader's log.
    Taken,
    /// It is not, and will not be.
    Refused,
}

/// Status of a member.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MemberStatus {
    /// Newest revision that it has applied.
    pub revision: u64,
    /// Last entry that it has applied.
    pub applied: u64,
    /// Its term.
    pub term: u64,
    /// Whom it takes for the leader.
    pub leader: Option<u64>,
    /// Bytes of its database.
    pub db_bytes: u64,
    /// Was a fingerprint of all keys; 0 now, and still here as members of before read it.
    pub hash: u64,
}

/// An error that travels between members.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refusal {
    /// That member does not lead.
    NotLeader,
    /// There is no such member.
    MemberNotFound(u64),
    /// A learner lacks too much.
    NotCaughtUp(u64),
    /// It is the only voter.
    LastMember,
    /// Nobody answers at that address.
    MemberUnreachable(String),
    /// There is no such lease.
    LeaseNotFound(u64),
    /// The leader has no network.
    NoNetwork,
    /// The group did not agree in time.
    TimedOut,
    /// Something else, in words.
    Other(String),
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Error {
        match refusal {
            Refusal::NotLeader => Error::NotLeader { leader: None },
            Refusal::MemberNotFound(id) => Error::MemberNotFound { id },
            Refusal::NotCaughtUp(id) => Error::NotCaughtUp { id },
            Refusal::LastMember => Error::LastMember,
            Refusal::MemberUnreachable(address) => Error::MemberUnreachable { address },
            Refusal::LeaseNotFound(id) => Error::LeaseNotFound { id },
            Refusal::NoNetwork => Error::NoNetwork,
            Refusal::TimedOut => Error::TimedOut,
            Refusal::Other(why) => Error::Io { doing: "the leader refused", why },
        }
    }
}

impl From<Error> for Refusal {
    fn from(err: Error) -> Refusal {
        match err {
            Error::NotLeader { .. } => Refusal::NotLeader,
            Error::MemberNotFound { id } => Refusal::MemberNotFound(id),
            Error::NotCaughtUp { id } => Refusal::NotCaughtUp(id),
            Error::LastMember => Refusal::LastMember,
            Error::MemberUnreachable { address } => Refusal::MemberUnreachable(address),
            Error::LeaseNotFound { id } => Refusal::LeaseNotFound(id),
            Error::NoNetwork => Refusal::NoNetwork,
            Error::TimedOut => Refusal::TimedOut,
            other => Refusal::Other(other.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::{decode, encode};
    use crate::kv::Revision;

    #[test]
    fn a_refusal_is_the_same_error_at_the_other_member() {
        for err in [
            Error::NotLeader { leader: None },
            Error::MemberNotFound { id: 7 },
            Error::NotCaughtUp { id: 7 },
            Error::LastMember,
            Error::MemberUnreachable { address: "a:1".to_owned() },
            Error::LeaseNotFound { id: 9 },
            Error::NoNetwork,
            Error::TimedOut,
        ] {
            let sent = encode(&Refusal::from(err.clone())).unwrap();
            let came = Error::from(decode::<Refusal>(&sent).unwrap());
            assert_eq!(came.to_string(), err.to_string());
        }
        let other = Error::Future { asked: Revision(9), current: Revision(7) };
        let words = "the leader refused: revision 9 is in the future, the current one is 7";
        assert_eq!(Error::from(Refusal::from(other)).to_string(), words);
    }
}
