//! Turns: how many machines ask to join at once, in all and from one address. Strangers ask, so nobody waits without an
//! end here, and nobody waits for those of another address longer than their requests take to be judged.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use base::permits::{Full, Permit, Permits};
use tokio::sync::{Semaphore, SemaphorePermit};
use wire::seats;

use crate::refusal::Refusal;

/// Requests of one address that are read, judged or paused at once: many machines may be behind one address.
const PER_PEER_MAX: usize = 32;
/// Requests of all addresses.
const ALL_MAX: usize = 512;
/// Requests that are judged at once; the others wait for their turn.
const JUDGED_MAX: usize = 16;
/// A request whose turn has not come by then is sent away; the machine asks again.
const TURN_TIMEOUT: Duration = Duration::from_secs(10);

/// The requests that are under way.
pub(crate) struct Turns {
    by_peer: Arc<Permits<IpAddr>>,
    judged: Semaphore,
}

fn busy(why: &str) -> Refusal {
    Refusal::NotReady { why: why.to_owned() }
}

impl Turns {
    pub(crate) fn new() -> Arc<Turns> {
        Arc::new(Turns { by_peer: Permits::new(PER_PEER_MAX, ALL_MAX), judged: Semaphore::new(JUDGED_MAX) })
    }

    /// A permit for a request that is not read yet; given back when it is dropped.
    ///
    /// Errors: `NotReady` if its address, or all of them, have too many.
    pub(crate) fn enter(&self, peer: IpAddr) -> Result<Permit<IpAddr>, Refusal> {
        self.by_peer.take(seats::who(peer)).map_err(|full| match full {
            Full::Key => busy("too many machines ask from this address"),
            Full::All => busy("too many machines ask at once"),
        })
    }

    /// The turn of a request that is read: held while it is judged, never while somebody is waited for.
    ///
    /// Errors: `NotReady` if it does not come in time. Cancel safety: the turn goes to the next.
    pub(crate) async fn turn(&self) -> Result<SemaphorePermit<'_>, Refusal> {
        self.turn_within(TURN_TIMEOUT).await
    }

    async fn turn_within(&self, limit: Duration) -> Result<SemaphorePermit<'_>, Refusal> {
        match tokio::time::timeout(limit, self.judged.acquire()).await {
            Ok(Ok(permit)) => Ok(permit),
            Ok(Err(_)) => Err(busy("it is stopping")),
            Err(_) => Err(busy("too many machines join at once")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_asks_too_often_is_sent_away_and_others_are_not() {
        let (turns, peer) = (Turns::new(), |n: u8| IpAddr::from([192, 0, 2, n]));
        let permits: Vec<_> = (0..PER_PEER_MAX).map(|_| turns.enter(peer(1)).unwrap()).collect();
        assert!(matches!(turns.enter(peer(1)), Err(Refusal::NotReady { .. })));
        drop(turns.enter(peer(2)).unwrap());
        drop(permits);
        assert!(turns.enter(peer(1)).is_ok() && turns.by_peer.n_keys() == 0);
    }

    #[tokio::test]
    async fn a_turn_that_does_not_come_is_not_waited_for() {
        let turns = Turns::new();
        let mut held = Vec::new();
        for _ in 0..JUDGED_MAX {
            held.push(turns.turn().await.unwrap());
        }
        assert!(matches!(turns.turn_within(Duration::from_millis(20)).await, Err(Refusal::NotReady { .. })));
        held.pop();
        assert!(turns.turn().await.is_ok());
    }
}
