//! etcd's v3 API: the messages of its Cluster and Maintenance services.

use prost::{Message, Oneof};

use crate::etcd::{
    DeleteRangeRequest, DeleteRangeResponse, Empty, PutRequest, PutResponse, RangeRequest, RangeResponse,
    ResponseHeader, TxnRequest, TxnResponse, WatchCancelRequest, WatchCreateRequest,
};

/// A member.
#[derive(Clone, PartialEq, Message)]
pub struct Member {
    #[prost(uint64, tag = "1")]
    pub id: u64,
    #[prost(string, tag = "2")]
    pub name: String,
    #[prost(string, repeated, tag = "3")]
    pub peer_urls: Vec<String>,
    #[prost(string, repeated, tag = "4")]
    pub client_urls: Vec<String>,
    #[prost(bool, tag = "5")]
    pub is_learner: bool,
}

/// Takes in a member.
#[derive(Clone, PartialEq, Message)]
pub struct MemberAddRequest {
    #[prost(string, repeated, tag = "1")]
    pub peer_urls: Vec<String>,
    #[prost(bool, tag = "2")]
    pub is_learner: bool,
}

/// Names a member: to remove or promote it, or to make it the leader.
#[derive(Clone, PartialEq, Message)]
pub struct MemberIdRequest {
    #[prost(uint64, tag = "1")]
    pub id: u64,
}

/// Moves a member.
#[derive(Clone, PartialEq, Message)]
pub struct MemberUpdateRequest {
    #[prost(uint64, tag = "1")]
    pub id: u64,
    #[prost(string, repeated, tag = "2")]
    pub peer_urls: Vec<String>,
}

/// The members after a change, or as they are.
#[derive(Clone, PartialEq, Message)]
pub struct MembersResponse {
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
    #[prost(message, repeated, tag = "2")]
    pub members: Vec<Member>,
}

/// Asks for alarms.
#[derive(Clone, PartialEq, Message)]
pub struct AlarmRequest {
    #[prost(int32, tag = "1")]
    pub action: i32,
    #[prost(uint64, tag = "2")]
    pub member_id: u64,
    #[prost(int32, tag = "3")]
    pub alarm: i32,
}

/// An alarm.
#[derive(Clone, PartialEq, Message)]
pub struct AlarmMember {
    #[prost(uint64, tag = "1")]
    pub member_id: u64,
    #[prost(int32, tag = "2")]
    pub alarm: i32,
}

/// The alarms.
#[derive(Clone, PartialEq, Message)]
pub struct AlarmResponse {
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
    #[prost(message, repeated, tag = "2")]
    pub alarms: Vec<AlarmMember>,
}

/// How a member is.
#[derive(Clone, PartialEq, Message)]
pub struct StatusResponse {
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
    #[prost(string, tag = "2")]
    pub version: String,
    #[prost(int64, tag = "3")]
    pub db_size: i64,
    #[prost(uint64, tag = "4")]
    pub leader: u64,
    #[prost(uint64, tag = "5")]
    pub raft_index: u64,
    #[prost(uint64, tag = "6")]
    pub raft_term: u64,
    #[prost(uint64, tag = "7")]
    pub raft_applied_index: u64,
    #[prost(string, repeated, tag = "8")]
    pub errors: Vec<String>,
    #[prost(int64, tag = "9")]
    pub db_size_in_use: i64,
    #[prost(bool, tag = "10")]
    pub is_learner: bool,
}

/// Steps.
pub mod request_op {
    /// One of them.
    #[derive(Clone, PartialEq, super::Oneof)]
    pub enum Request {
        #[prost(message, tag = "1")]
        Range(super::RangeRequest),
        #[prost(message, tag = "2")]
        Put(super::PutRequest),
        #[prost(message, tag = "3")]
        DeleteRange(super::DeleteRangeRequest),
        #[prost(message, tag = "4")]
        Txn(super::TxnRequest),
    }
}

/// Answers to steps.
pub mod response_op {
    /// One of them.
    #[derive(Clone, PartialEq, super::Oneof)]
    pub enum Response {
        #[prost(message, tag = "1")]
        Range(super::RangeResponse),
        #[prost(message, tag = "2")]
        Put(super::PutResponse),
        #[prost(message, tag = "3")]
        DeleteRange(super::DeleteRangeResponse),
        #[prost(message, tag = "4")]
        Txn(super::TxnResponse),
    }
}

/// The operand of a condition.
pub mod compare {
    /// One of them.
    #[derive(Clone, PartialEq, super::Oneof)]
    pub enum TargetUnion {
        #[prost(int64, tag = "4")]
        Version(i64),
        #[prost(int64, tag = "5")]
        CreateRevision(i64),
        #[prost(int64, tag = "6")]
        ModRevision(i64),
        #[prost(bytes = "bytes", tag = "7")]
        Value(::prost::bytes::Bytes),
        #[prost(int64, tag = "8")]
        Lease(i64),
    }
}

/// Requests of a client on a stream of watches.
pub mod watch_request {
    /// One of them.
    #[derive(Clone, PartialEq, super::Oneof)]
    pub enum Request {
        #[prost(message, tag = "1")]
        Create(super::WatchCreateRequest),
        #[prost(message, tag = "2")]
        Cancel(super::WatchCancelRequest),
        #[prost(message, tag = "3")]
        Progress(super::Empty),
    }
}
