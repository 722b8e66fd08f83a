//! Calling the other members: one HTTP/2 connection to each, made when it is needed and again after it broke.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use base::sync::Mutex;
use base::task::Group;
use bytes::Bytes;
use tracing::{info, warn};
use wire::Body;

use crate::codec::{decode, encode};
use crate::command::Batch;
use crate::error::Error;
use crate::member::{Network, Peer};
use crate::raft::link::Link;
use crate::raft::rpc::{ADDRESS, CALL_BYTES_MAX, CLUSTER, Call, MEMBER, Propose, ProposeReply};

/// A call that is not Raft's own ends by then.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(5);

/// Purpose of a connection: the bytes of a snapshot must not stand before a heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lane {
    /// Short calls.
    Calls,
    /// Snapshots.
    Bulk,
}

/// The other members and the connections to them.
pub struct Peers {
    id: u64,
    cluster: Arc<dyn Fn() -> Option<u64> + Send + Sync>,
    network: Option<Network>,
    /// Where this member is reached.
    own: tokio::sync::watch::Sender<String>,
    /// Where members said they are: newer than what the membership says.
    book: Mutex<BTreeMap<u64, String>>,
    links: Mutex<BTreeMap<(u64, Lane), Arc<Link>>>,
    /// Members that did not answer lately.
    silent: Mutex<BTreeSet<u64>>,
    /// Whether the leader said that this member is none any more.
    removed: tokio::sync::watch::Sender<bool>,
    group: Group,
}

impl Peers {
    /// None yet. `cluster` says which cluster this member is in, if any.
    pub fn new(
        id: u64,
        cluster: Arc<dyn Fn() -> Option<u64> + Send + Sync>,
        network: Option<Network>,
        group: &Group,
    ) -> Peers {
        Peers {
            id,
            cluster,
            own: tokio::sync::watch::Sender::new(
                network.as_ref().map(|network| network.address.clone()).unwrap_or_default(),
            ),
            network,
            book: Mutex::default(),
            links: Mutex::default(),
            silent: Mutex::default(),
            removed: tokio::sync::watch::Sender::new(false),
            group: group.clone(),
        }
    }

    /// This member's entry in the membership as it should be, if it has a network.
    pub fn own(&self) -> Option<Peer> {
        self.network.as_ref().map(|network| Peer { addr: self.own.borrow().clone(), name: network.name.clone() })
    }

    /// Tells when this member has another address.
    pub fn moves(&self) -> tokio::sync::watch::Receiver<String> {
        self.own.subscribe()
    }

    /// This member is reached elsewhere from now on: it says so in its next calls, over new connections.
    pub fn moved(&self, address: &str) {
        let news = self.own.send_if_modified(|own| {
            let news = own != address;
            address.clone_into(own);
            news
        });
        if news {
            // Connections from the old address hang.
            self.links.lock().clear();
        }
    }

    /// Whether the leader said that this member is none any more.
    pub fn is_removed(&self) -> bool {
        *self.removed.borrow()
    }

    /// Resolves when the leader says so.
    pub async fn removed(&self) {
        // The sender lives as long as this.
        let mut removed = self.removed.subscribe();
        let _held = removed.wait_for(|removed| *removed).await;
    }

    /// Which cluster this member is in.
    pub fn cluster(&self) -> Option<u64> {
        (self.cluster)()
    }

    /// Notes where a member is. Says whether that is news.
    pub fn learn(&self, id: u64, address: &str) -> bool {
        if id == self.id || address.is_empty() {
            return false;
        }
        let before = self.book.lock().insert(id, address.to_owned());
        if before.as_deref() == Some(address) {
            return false;
        }
        // A connection to the old address may hang for long.
        self.links.lock().retain(|(to, _), _| *to != id);
        true
    }

    /// Notes where the membership says a member is, unless the member itself said something.
    pub fn suggest(&self, id: u64, address: &str) {
        if !address.is_empty() {
            self.book.lock().entry(id).or_insert_with(|| address.to_owned());
        }
    }

    /// Where a member is.
    pub fn address(&self, id: u64) -> Option<String> {
        self.book.lock().get(&id).cloned()
    }

    /// Forgets a member.
    pub fn forget(&self, id: u64) {
        self.book.lock().remove(&id);
        self.links.lock().retain(|(to, _), _| *to != id);
    }

    /// Calls a member and waits for its answer, for as long as the caller has patience.
    ///
    /// Cancel safety: a dropped call may or may not have reached it.
    pub async fn call<C: Call>(&self, to: u64, call: &C) -> Result<C::Answer, Error> {
        let answer = self.post(to, Lane::Calls, C::PATH, wire::body::full(encode(call)?)).await?;
        decode(&answer)
    }

    /// The same, with an end after [`CALL_TIMEOUT`].
    pub async fn ask<C: Call>(&self, to: u64, call: &C) -> Result<C::Answer, Error> {
        tokio::time::timeout(CALL_TIMEOUT, self.call(to, call)).await.unwrap_or(Err(Error::TimedOut))
    }

    /// Hands commands to the leader.
    pub async fn propose(&self, to: u64, batch: &Batch) -> Result<ProposeReply, Error> {
        self.ask(to, &Propose(batch.clone())).await
    }

    /// Posts a body and reads the answer's. A connection that failed is made again by the next call.
    pub async fn post(&self, to: u64, lane: Lane, path: &'static str, body: Body) -> Result<Bytes, Error> {
        let answer = self.post_quietly(to, lane, path, body).await;
        let mut silent = self.silent.lock();
        match &answer {
            Err(Error::MemberUnreachable { address }) if silent.insert(to) => {
                warn!(peer = to, addr = %address, "a member does not answer")
            }
            Ok(_) if silent.remove(&to) => info!(peer = to, "the member answers again"),
            Ok(_) | Err(_) => {}
        }
        answer
    }

    async fn post_quietly(&self, to: u64, lane: Lane, path: &'static str, body: Body) -> Result<Bytes, Error> {
        let network = self.network.as_ref().ok_or(Error::NoNetwork)?;
        let address = self
            .address(to)
            .ok_or_else(|| Error::MemberUnreachable { address: "an address not known yet".to_owned() })?;
        let unreachable = || Error::MemberUnreachable { address: address.clone() };
        let link = Arc::clone(self.links.lock().entry((to, lane)).or_default());
        let sender = link.sender(&network.dial, &address, &self.group).await.ok_or_else(unreachable)?;
        let own = self.own.borrow().clone();
        let mut request =
            http::Request::post(format!("http://{address}{path}")).header(MEMBER, self.id).header(ADDRESS, own);
        if let Some(cluster) = self.cluster() {
            request = request.header(CLUSTER, cluster);
        }
        let request = request.body(body).map_err(Error::io("cannot call a member"))?;
        let guard = BreakOnDrop { link: &link, armed: true };
        let answer = sender.send(request).await.map_err(|_| unreachable())?;
        let (parts, body) = answer.into_parts();
        let bytes = collect(body).await.map_err(Error::io("a member's message broke off"))?;
        guard.disarm();
        link.answered();
        if parts.status == http::StatusCode::OK {
            return Ok(bytes);
        }
        if parts.status == http::StatusCode::GONE {
            self.removed.send_replace(true);
            return Err(Error::Removed);
        }
        Err(Error::Io { doing: "a member refused a call", why: String::from_utf8_lossy(&bytes).into_owned() })
    }
}

/// Reads a whole message. Boxed, as the compiler cannot see through the body's error type across rooms.
pub fn collect(body: Body) -> Pin<Box<dyn Future<Output = Result<Bytes, wire::body::CollectError>> + Send>> {
    Box::pin(wire::body::collect(body, CALL_BYTES_MAX))
}

/// A call that was given up says that its connection may be dead.
struct BreakOnDrop<'a> {
    link: &'a Link,
    armed: bool,
}

impl BreakOnDrop<'_> {
    fn disarm(mut self) {
        self.armed = false;
    }
}

impl Drop for BreakOnDrop<'_> {
    fn drop(&mut self) {
        if self.armed {
            self.link.given_up();
        }
    }
}
