//! Members of the store's Raft group: who they are, how they reach each other, how the group grows and shrinks.
//!
//! A member is known by its number, drawn once; its address may change. A new one comes in as a learner, which counts
//! in no majority, is brought up to date, and then becomes a voter by itself (`raft/grow`).

use std::io;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

/// The start of a store whose directory is empty. A directory that holds a store already goes on with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bootstrap {
    /// A cluster of its own: member 1, alone, leading at once.
    First,
    /// Nothing yet: it waits until the leader of a cluster adds it.
    Joining,
}

/// State of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreState {
    /// No store, or one in which nothing ever happened.
    Empty,
    /// One that was about to join a cluster and was not taken in yet.
    Waiting,
    /// A member of a cluster, maybe its only one.
    Member,
}

/// How this member is reached and how it reaches others.
#[derive(Clone)]
pub struct Network {
    /// Name for people and for removal with the Node, e.g. the node's name.
    pub name: String,
    /// `host:port` under which the others reach [`crate::store::Store::peer_handler`].
    pub address: String,
    /// Opens connections to the others.
    pub dial: std::sync::Arc<dyn Dial>,
}

impl std::fmt::Debug for Network {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Network").field("name", &self.name).field("address", &self.address).finish_non_exhaustive()
    }
}

/// Opens connections between members. The other end serves [`crate::store::Store::peer_handler`] over HTTP/2.
#[async_trait]
pub trait Dial: Send + Sync + 'static {
    /// Connects to a member; both ends have proved with certificates of the peers' authority who they are.
    async fn dial(&self, address: &str) -> io::Result<Box<dyn wire::dial::Stream>>;
}

/// Dials with TLS: both sides show certificates of the peers' authority.
pub struct MutualTls {
    /// Trusts the peers' authority and shows this member's certificate.
    pub tls: std::sync::Arc<rustls::ClientConfig>,
    /// The name that every member's certificate shows, as addresses change.
    pub server_name: String,
}

#[async_trait]
impl Dial for MutualTls {
    async fn dial(&self, address: &str) -> io::Result<Box<dyn wire::dial::Stream>> {
        let bad = || io::Error::new(io::ErrorKind::InvalidInput, format!("'{address}' is not host:port"));
        let (host, port) = address.rsplit_once(':').ok_or_else(bad)?;
        let (host, port) = (host.trim_start_matches('[').trim_end_matches(']'), port.parse().map_err(|_| bad())?);
        wire::dial::tcp(host, port, &self.server_name, Some(std::sync::Arc::clone(&self.tls)))
            .await
            .map_err(io::Error::other)
    }
}

/// A member's entry in the group's membership; travels in Raft's log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peer {
    /// `host:port`; empty for a member that never had another.
    pub addr: String,
    /// Its name.
    #[serde(default)]
    pub name: String,
}

/// A member as this one sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Its number.
    pub id: u64,
    /// Its name; empty if it never had one.
    pub name: String,
    /// Its address; empty if it never had one.
    pub address: String,
    /// Whether it counts in majorities. A learner is still being brought up to date.
    pub voter: bool,
    /// Entries that it lacks, as the leader knows it; `None` if nothing is known of it, e.g. it cannot be reached.
    pub lag_entries: Option<u64>,
}

/// The leader, as this member knows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Leadership {
    /// The leader's number; `None` while there is none.
    pub leader: Option<u64>,
    /// Whether this member leads *and* has heard from a majority lately: what must run once in a cluster runs while
    /// this holds.
    pub is_me: bool,
    /// Counts elections.
    pub term: u64,
}

/// A change of the group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change {
    /// Takes in a learner, or sets the address and name of a member.
    Add {
        /// The member.
        id: u64,
        /// How to reach it.
        peer: Peer,
    },
    /// Makes a learner a voter.
    Promote {
        /// The learner.
        id: u64,
    },
    /// Lets a member go.
    Remove {
        /// The member.
        id: u64,
    },
}
