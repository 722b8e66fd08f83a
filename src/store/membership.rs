//! How the group of a store grows and shrinks.

use crate::error::Error;
use crate::member::{Change, Peer};
use crate::store::Store;

impl Store {
    /// Takes in a member as a learner; it becomes a voter by itself once it is up to date. Any member may be asked.
    ///
    /// `id` is what [`Store::member_id`] says over there. That store was opened with
    /// [`Joining`](crate::member::Bootstrap::Joining) and serves [`Store::peer_handler`] at the peer's address. Asked
    /// again for a member that is in, it sets the address and the name.
    ///
    /// Errors: `NoNetwork` if this store was opened without one, `MemberUnreachable` if nobody answers there,
    /// `TimedOut` if the group does not agree in time.
    pub async fn add_learner(&self, id: u64, peer: Peer) -> Result<(), Error> {
        self.change(Change::Add { id, peer }).await
    }

    /// Makes a learner a voter now. The leader does it by itself, so this is for people.
    ///
    /// Errors: `MemberNotFound`, `NotCaughtUp`, `TimedOut`.
    pub async fn promote(&self, id: u64) -> Result<(), Error> {
        self.change(Change::Promote { id }).await
    }

    /// This member is reached under another address (`host:port`) from now on: the others hear of it by its next calls.
    pub fn moved(&self, address: &str) {
        self.node().peers.moved(address);
    }

    /// Lets a member go. A leader that is let go hands over first.
    ///
    /// Errors: `MemberNotFound`, `LastMember`, `TimedOut` if no majority of the members is there to agree: then only
    /// [`crate::backup::reset`] helps.
    pub async fn remove(&self, id: u64) -> Result<(), Error> {
        self.change(Change::Remove { id }).await
    }
}
