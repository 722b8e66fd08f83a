//! Seats: how many connections a listener bears, from whom, and for how long.
//!
//! A connection is a stranger's until its client has shown who it is: by its certificate, or by a request that the
//! handler vouches for (`ConnInfo::vouch`). Strangers have few seats, lose the oldest when there are too many, and
//! never stay long. So nobody without credentials takes descriptors and memory from those who have some.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base::sync::Mutex;
use tokio_util::sync::CancellationToken;

/// How many connections a listener bears.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Strangers of one address; another one takes the place of the oldest.
    pub(crate) strangers_per_peer_max: usize,
    /// Strangers of all addresses; another one takes the place of the oldest of the address that has most.
    pub(crate) strangers_max: usize,
    /// Connections of one address, strangers or not; another one is refused. Many machines may be behind one address.
    pub(crate) per_peer_max: usize,
    /// A stranger's connection is ended after this, whatever happens on it.
    pub(crate) stranger_age_max: Duration,
}

/// Limits of a listener that says nothing else: 2048 strangers hold about 100 MB at the worst.
pub(crate) const LIMITS: Limits = Limits {
    strangers_per_peer_max: 256,
    strangers_max: 2048,
    per_peer_max: 16_384,
    stranger_age_max: Duration::from_secs(300),
};

/// The seats of one listener.
pub(crate) struct Seats {
    limits: Limits,
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    last_id: u64,
    n_strangers: usize,
    by_peer: BTreeMap<IpAddr, Peer>,
}

#[derive(Default)]
struct Peer {
    /// By their age: ids grow.
    strangers: BTreeMap<u64, CancellationToken>,
    n_known: usize,
}

/// A connection's seat; given back when it is dropped.
pub struct Seat {
    id: u64,
    peer: IpAddr,
    seats: Arc<Seats>,
    known: AtomicBool,
    cut: CancellationToken,
}

impl Seats {
    pub(crate) fn new(limits: Limits) -> Arc<Seats> {
        Arc::new(Seats { limits, table: Mutex::default() })
    }

    fn with<T>(&self, look: impl FnOnce(&mut Table) -> T) -> T {
        look(&mut self.table.lock())
    }

    /// A seat for a new connection, a stranger's; `None`: its address has too many connections.
    pub(crate) fn take(self: &Arc<Seats>, ip: IpAddr) -> Option<Arc<Seat>> {
        let (peer, limits, cut) = (who(ip), self.limits, CancellationToken::new());
        let id = self.with(|table| {
            let own = table.by_peer.get(&peer);
            if own.is_some_and(|own| own.n_known + own.strangers.len() >= limits.per_peer_max) {
                return None;
            }
            if own.is_some_and(|own| own.strangers.len() >= limits.strangers_per_peer_max) {
                table.drop_oldest(peer);
            } else if table.n_strangers >= limits.strangers_max {
                let most = table.by_peer.iter().max_by_key(|(_, peer)| peer.strangers.len()).map(|(ip, _)| *ip);
                most.into_iter().for_each(|ip| table.drop_oldest(ip));
            }
            table.last_id += 1;
            table.n_strangers += 1;
            table.by_peer.entry(peer).or_default().strangers.insert(table.last_id, cut.clone());
            Some(table.last_id)
        })?;
        Some(Arc::new(Seat { id, peer, seats: Arc::clone(self), known: AtomicBool::new(false), cut }))
    }

    #[cfg(test)]
    fn n_strangers(&self) -> usize {
        self.with(|table| table.n_strangers)
    }
}

impl Table {
    fn drop_oldest(&mut self, peer: IpAddr) {
        let oldest = self.by_peer.get_mut(&peer).and_then(|peer| peer.strangers.pop_first());
        if let Some((_, cut)) = oldest {
            self.n_strangers -= 1;
            cut.cancel();
        }
    }

    /// Whether it was there: one that lost its seat is not.
    fn remove_stranger(&mut self, peer: IpAddr, id: u64) -> bool {
        let was = self.by_peer.get_mut(&peer).is_some_and(|peer| peer.strangers.remove(&id).is_some());
        self.n_strangers -= usize::from(was);
        was
    }

    fn forget_if_empty(&mut self, peer: IpAddr) {
        if self.by_peer.get(&peer).is_some_and(|peer| peer.n_known == 0 && peer.strangers.is_empty()) {
            self.by_peer.remove(&peer);
        }
    }
}

impl Seat {
    /// The client has shown who it is: from now on this is no stranger's connection.
    pub(crate) fn vouch(&self) {
        if self.known.load(Ordering::Relaxed) {
            return;
        }
        self.seats.with(|table| {
            // One that has lost its seat already is about to end.
            if !self.known.load(Ordering::Relaxed) && table.remove_stranger(self.peer, self.id) {
                self.known.store(true, Ordering::Relaxed);
                table.by_peer.entry(self.peer).or_default().n_known += 1;
            }
        });
    }

    /// Resolves when a stranger has to go: somebody else needs the seat, or it has been there for too long.
    pub(crate) async fn lost(&self) {
        tokio::select! {
            () = self.cut.cancelled() => {}
            () = tokio::time::sleep(self.seats.limits.stranger_age_max) => {
                if self.known.load(Ordering::Relaxed) {
                    std::future::pending::<()>().await;
                }
            }
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let (peer, id, known) = (self.peer, self.id, *self.known.get_mut());
        self.seats.with(|table| {
            if known {
                if let Some(peer) = table.by_peer.get_mut(&peer) {
                    peer.n_known -= 1;
                }
            } else {
                let _was_cut_before = table.remove_stranger(peer, id);
            }
            table.forget_if_empty(peer);
        });
    }
}

/// The client that an address stands for: a client with one IPv6 address has all of its /64.
pub fn who(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & !u128::from(u64::MAX))),
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FEW: Limits = Limits {
        strangers_per_peer_max: 2,
        strangers_max: 4,
        per_peer_max: 3,
        stranger_age_max: Duration::from_secs(300),
    };

    fn ip(n: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, n])
    }

    #[test]
    fn an_address_with_too_many_strangers_loses_its_own_oldest() {
        let seats = Seats::new(FEW);
        let [first, second, third] = [(); 3].map(|()| seats.take(ip(1)).unwrap());
        assert!(first.cut.is_cancelled() && !second.cut.is_cancelled() && !third.cut.is_cancelled());
        let other = seats.take(ip(2)).unwrap();
        assert!(!other.cut.is_cancelled());
        // Who has shown who it is keeps its seat; and one that lost it cannot have it back.
        second.vouch();
        first.vouch();
        let more: Vec<_> = (0..2).map(|_| seats.take(ip(1))).collect();
        assert!(!second.cut.is_cancelled() && more[0].is_some());
        // The oldest of the address is cut, so one more fits; the known one counts.
        assert_eq!((seats.n_strangers(), more[1].is_some()), (3, false));
        drop((first, second, third, other, more));
        assert_eq!(seats.n_strangers(), 0);
        assert!(seats.with(|table| table.by_peer.is_empty()));
    }

    #[test]
    fn when_all_seats_are_taken_the_greediest_address_makes_room() {
        let seats = Seats::new(Limits { strangers_per_peer_max: 3, ..FEW });
        let greedy = [(); 3].map(|()| seats.take(ip(1)).unwrap());
        let honest = seats.take(ip(2)).unwrap();
        let newcomer = seats.take(ip(3)).unwrap();
        assert!(greedy[0].cut.is_cancelled() && !honest.cut.is_cancelled() && !newcomer.cut.is_cancelled());
        assert_eq!(seats.n_strangers(), 4);
    }

    #[test]
    fn a_network_of_ipv6_is_one_peer() {
        let at = |text: &str| who(text.parse().unwrap());
        assert_eq!(at("2001:db8::1"), at("2001:db8::ffff:1"));
        assert_ne!(at("2001:db8::1"), at("2001:db8:0:1::1"));
        assert_eq!(at("::ffff:10.0.0.1"), ip(1));
    }

    #[tokio::test]
    async fn a_stranger_goes_after_its_time_and_a_known_client_stays() {
        let seats = Seats::new(Limits { stranger_age_max: Duration::from_millis(30), ..FEW });
        let (stranger, known) = (seats.take(ip(1)).unwrap(), seats.take(ip(1)).unwrap());
        known.vouch();
        tokio::time::timeout(Duration::from_secs(10), stranger.lost()).await.unwrap();
        tokio::time::timeout(Duration::from_millis(100), known.lost()).await.unwrap_err();
    }
}
