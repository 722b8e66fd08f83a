//! The seats of one priority level: some requests at once, the others in queues that take turns.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::Value;
use tokio::sync::oneshot;

/// A request waits no longer than this for a seat: a quarter of the request's own time, as upstream.
pub const WAIT_MAX: Duration = Duration::from_secs(15);

/// What a level's configuration says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Everybody is let in.
    Exempt,
    /// A share of the server; those beyond it wait in queues, or are refused when there are none.
    Limited {
        /// Share of all seats.
        shares: u64,
        /// Queues, queues that one flow is dealt, and places in each.
        queues: Option<(usize, usize, usize)>,
    },
}

impl Kind {
    /// Reads `spec`.
    pub fn of(spec: &Value) -> Kind {
        if spec["type"] != "Limited" {
            return Kind::Exempt;
        }
        let limited = &spec["limited"];
        let queuing = &limited["limitResponse"]["queuing"];
        let number = |field: &str, otherwise: usize| {
            queuing[field].as_u64().and_then(|n| usize::try_from(n).ok()).filter(|n| *n > 0).unwrap_or(otherwise)
        };
        let queues = (limited["limitResponse"]["type"] == "Queue")
            .then(|| (number("queues", 64), number("handSize", 8), number("queueLengthLimit", 50)));
        Kind::Limited { shares: limited["nominalConcurrencyShares"].as_u64().unwrap_or(30), queues }
    }

    /// Shares of the whole.
    pub fn shares(&self) -> u64 {
        match self {
            Kind::Exempt => 0,
            Kind::Limited { shares, .. } => *shares,
        }
    }
}

/// Why a request was not let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// `queue-full`
    QueueFull,
    /// `concurrency-limit`
    NoQueue,
    /// `time-out`
    TimedOut,
}

impl Refusal {
    /// As metrics name it.
    pub fn reason(self) -> &'static str {
        match self {
            Refusal::QueueFull => "queue-full",
            Refusal::NoQueue => "concurrency-limit",
            Refusal::TimedOut => "time-out",
        }
    }
}

struct State {
    kind: Kind,
    seats: u64,
    taken: u64,
    queues: Vec<VecDeque<oneshot::Sender<Seat>>>,
    waiting: usize,
    /// Where the next free seat looks first.
    turn: usize,
}

/// One level.
pub struct Level {
    state: Mutex<State>,
    wait_max: Duration,
}

/// A place among those being answered; free again when dropped.
pub struct Seat(Option<Arc<Level>>);

impl Drop for Seat {
    fn drop(&mut self) {
        if let Some(level) = self.0.take() {
            level.freed();
        }
    }
}

impl Level {
    /// With `seats` places, for which a request waits at most `wait_max`.
    pub fn new(kind: Kind, seats: u64, wait_max: Duration) -> Arc<Level> {
        let level = Level {
            wait_max,
            state: Mutex::new(State { kind: Kind::Exempt, seats: 0, taken: 0, queues: Vec::new(), waiting: 0, turn: 0 }),
        };
        level.set(kind, seats);
        Arc::new(level)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a changed configuration over. Those who wait keep waiting.
    pub fn set(&self, kind: Kind, seats: u64) {
        let mut state = self.state();
        if let Kind::Limited { queues: Some((n, ..)), .. } = &kind
            && state.queues.len() < *n
        {
            state.queues.resize_with(*n, VecDeque::new);
        }
        (state.kind, state.seats) = (kind, seats);
    }

    /// How many are answered at once.
    pub fn seats(&self) -> u64 {
        self.state().seats
    }

    /// Requests being answered, and waiting.
    pub fn counts(&self) -> (u64, usize) {
        let state = self.state();
        (state.taken, state.waiting)
    }

    /// Waits for a seat. `flow` tells flows apart: each is dealt a hand of queues and joins the shortest.
    ///
    /// Cancel safety: a seat that comes too late goes to the next.
    pub async fn seat(self: &Arc<Level>, flow: &str) -> Result<Seat, Refusal> {
        let waiting = {
            let mut state = self.state();
            let (queues, hand, most) = match &state.kind {
                Kind::Exempt => return Ok(Seat(None)),
                Kind::Limited { queues, .. } => queues.unwrap_or((0, 0, 0)),
            };
            if state.taken < state.seats && state.waiting == 0 {
                state.taken += 1;
                return Ok(Seat(Some(Arc::clone(self))));
            }
            if queues == 0 {
                return Err(Refusal::NoQueue);
            }
            let shortest = dealt(flow, queues, hand).into_iter().min_by_key(|at| state.queues[*at].len()).unwrap_or(0);
            if state.queues[shortest].len() >= most {
                return Err(Refusal::QueueFull);
            }
            let (tell, told) = oneshot::channel();
            state.queues[shortest].push_back(tell);
            state.waiting += 1;
            told
        };
        match tokio::time::timeout(self.wait_max, waiting).await {
            Ok(Ok(seat)) => Ok(seat),
            // One that gave up stays in its queue until its turn, and is passed over then.
            Ok(Err(_)) | Err(_) => Err(Refusal::TimedOut),
        }
    }

    /// Gives a free seat to the next queue in turn, one request of each.
    fn freed(self: Arc<Level>) {
        loop {
            let next = {
                let mut state = self.state();
                let n = state.queues.len();
                let from = state.turn;
                let at = (0..n).map(|step| (from + step) % n).find(|at| !state.queues[*at].is_empty());
                let next = at.and_then(|at| {
                    state.turn = (at + 1) % n;
                    state.queues[at].pop_front()
                });
                match next {
                    Some(next) if state.taken <= state.seats => {
                        state.waiting -= 1;
                        next
                    }
                    // Fewer seats than before: this one is not given on.
                    Some(next) => {
                        let at = at.unwrap_or(0);
                        state.queues[at].push_front(next);
                        state.taken -= 1;
                        return;
                    }
                    None => {
                        state.taken -= 1;
                        return;
                    }
                }
            };
            match next.send(Seat(Some(Arc::clone(&self)))) {
                Ok(()) => return,
                // It gave up. Its seat is still ours to give: forgetting it keeps the count.
                Err(mut seat) => drop(seat.0.take()),
            }
        }
    }
}

/// The queues that a flow may join: `hand` different ones out of `queues`, by the flow's hash (shuffle sharding).
fn dealt(flow: &str, queues: usize, hand: usize) -> Vec<usize> {
    let mut hasher = DefaultHasher::new();
    flow.hash(&mut hasher);
    let mut rest = hasher.finish();
    let mut deck: Vec<usize> = (0..queues).collect();
    (0..hand.min(queues))
        .map(|_| {
            let n = u64::try_from(deck.len()).unwrap_or(1);
            let at = usize::try_from(rest % n).unwrap_or(0);
            rest /= n;
            deck.swap_remove(at)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_millis(20);

    fn limited(queues: Option<(usize, usize, usize)>) -> Kind {
        Kind::Limited { shares: 1, queues }
    }

    #[tokio::test]
    async fn beyond_its_seats_a_level_queues_refuses_or_gives_up() {
        let level = Level::new(limited(Some((1, 1, 1))), 1, SHORT);
        let first = level.seat("a").await.ok().unwrap();
        let meanwhile = async {
            tokio::task::yield_now().await;
            assert_eq!(level.counts(), (1, 1));
            assert_eq!(level.seat("c").await.err(), Some(Refusal::QueueFull));
            drop(first);
        };
        let (waited, ()) = tokio::join!(level.seat("b"), meanwhile);
        drop(waited.ok().unwrap());
        assert_eq!(level.counts(), (0, 0));
        let _held = level.seat("a").await.ok().unwrap();
        assert_eq!(level.seat("b").await.err(), Some(Refusal::TimedOut));
        let none = Level::new(limited(None), 1, SHORT);
        let _held = none.seat("a").await.ok().unwrap();
        assert_eq!(none.seat("a").await.err(), Some(Refusal::NoQueue));
    }

    #[tokio::test]
    async fn a_seat_passes_over_who_gave_up() {
        let level = Level::new(limited(Some((4, 4, 10))), 1, SHORT);
        let held = level.seat("a").await.ok().unwrap();
        assert_eq!(level.seat("b").await.err(), Some(Refusal::TimedOut));
        drop(held);
        assert_eq!(level.counts(), (0, 0));
        assert!(level.seat("c").await.is_ok());
    }

    #[test]
    fn a_hand_has_different_queues() {
        let mut hand = dealt("bob", 64, 6);
        hand.sort_unstable();
        hand.dedup();
        assert_eq!(hand.len(), 6);
    }
}
