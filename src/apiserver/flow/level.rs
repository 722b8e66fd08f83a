//! The seats of one priority level: some requests at once, the others in queues that take turns. What a level does not
//! use it lends.

use std::collections::{BTreeMap, VecDeque};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base::sync::{Mutex, MutexGuard};
use serde_json::Value;
use tokio::sync::oneshot;

/// A request waits no longer than this for a seat: a quarter of the request's own time, as upstream.
pub const WAIT_MAX: Duration = Duration::from_secs(15);
/// No request takes more seats than these, however much it reads (apiserver `flowcontrol/request/config.go`, 1.36.2).
const WIDTH_MAX: u64 = 10;

/// Configuration of a level.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Everybody is let in.
    Exempt,
    /// A share of the server; those beyond it wait in queues, or are refused when there are none.
    Limited {
        /// Share of all seats.
        shares: u64,
        /// Percent of its seats that others may use while it does not.
        lendable: u64,
        /// Percent of its seats that it may borrow beside them; nothing: as many as there are.
        borrows: Option<u64>,
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
        Kind::Limited {
            shares: limited["nominalConcurrencyShares"].as_u64().unwrap_or(30),
            lendable: limited["lendablePercent"].as_u64().unwrap_or(0).min(100),
            borrows: limited["borrowingLimitPercent"].as_u64(),
            queues,
        }
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

struct Waiter {
    width: u64,
    tell: oneshot::Sender<Seat>,
}

struct State {
    kind: Kind,
    /// Its nominal part of the server.
    seats: u64,
    taken: u64,
    /// Those that somebody waits in: a configuration may name ten million.
    queues: BTreeMap<usize, VecDeque<Waiter>>,
    waiting: usize,
    /// Where the next free seat looks first.
    turn: usize,
}

impl State {
    /// Seats that it never lends.
    fn kept(&self) -> u64 {
        match &self.kind {
            Kind::Exempt => 0,
            Kind::Limited { lendable, .. } => self.seats - self.seats * lendable / 100,
        }
    }

    /// As many as it may have, with those that it borrows.
    fn most(&self) -> u64 {
        match &self.kind {
            Kind::Limited { borrows: Some(percent), .. } => {
                self.seats.saturating_add(self.seats.saturating_mul(*percent) / 100)
            }
            _ => u64::MAX,
        }
    }

    /// The queue whose turn it is, if anybody waits. Those who gave up are let go of.
    fn next(&mut self) -> Option<usize> {
        let waiting = &mut self.waiting;
        self.queues.retain(|_, queue| {
            while queue.front().is_some_and(|waiter| waiter.tell.is_closed()) {
                queue.pop_front();
                *waiting -= 1;
            }
            !queue.is_empty()
        });
        self.queues.range(self.turn..).chain(self.queues.range(..self.turn)).map(|(at, _)| *at).next()
    }
}

/// All levels of a server: what one does not use another may.
#[derive(Default)]
pub struct Pool {
    levels: Mutex<BTreeMap<u64, State>>,
    /// Levels so far: a seat of one that is gone is no seat of the next.
    made: AtomicU64,
}

/// Whether the level `id` may have `width` seats more: what it keeps for itself always, more if it is nobody else's.
fn may_take(levels: &BTreeMap<u64, State>, id: u64, width: u64) -> bool {
    let Some(level) = levels.get(&id) else { return true };
    let after = level.taken + width;
    if after <= level.kept() {
        return true;
    }
    let all: u64 = levels.values().map(|level| level.seats).sum();
    let others: u64 =
        levels.iter().filter(|(other, _)| **other != id).map(|(_, level)| level.taken.max(level.kept())).sum();
    // A level without a neighbour to lend it anything still has its own.
    after <= level.most() && after + others <= all
}

impl Pool {
    fn levels(&self) -> MutexGuard<'_, BTreeMap<u64, State>> {
        self.levels.lock()
    }

    /// Gives seats that are free to those who wait: one of each queue in turn, those of levels below their own part
    /// first.
    fn give(self: &Arc<Pool>) {
        loop {
            let mut given = Vec::new();
            {
                let mut levels = self.levels();
                let mut order: Vec<u64> =
                    levels.iter().filter(|(_, level)| level.waiting > 0).map(|(id, _)| *id).collect();
                order.sort_by_key(|id| levels.get(id).is_some_and(|level| level.taken >= level.seats));
                for id in order {
                    while let Some(at) = levels.get_mut(&id).and_then(State::next) {
                        let width = levels
                            .get(&id)
                            .and_then(|level| level.queues.get(&at)?.front())
                            .map_or(1, |waiter| waiter.width);
                        if !may_take(&levels, id, width) {
                            break;
                        }
                        let Some(level) = levels.get_mut(&id) else { break };
                        level.turn = at + 1;
                        if let Some(waiter) = level.queues.get_mut(&at).and_then(VecDeque::pop_front) {
                            level.waiting -= 1;
                            level.taken += width;
                            given.push((waiter, id));
                        }
                    }
                }
            }
            // Told outside of the lock: a seat that nobody takes any more wants it to go back.
            let mut returned = false;
            for (Waiter { width, tell }, id) in given {
                if let Err(mut seat) = tell.send(Seat(Some((Arc::clone(self), id, width)))) {
                    drop(seat.0.take());
                    self.back(id, width);
                    returned = true;
                }
            }
            if !returned {
                return;
            }
        }
    }

    fn back(&self, id: u64, width: u64) {
        if let Some(level) = self.levels().get_mut(&id) {
            level.taken -= width;
        }
    }
}

/// One level.
pub struct Level {
    pool: Arc<Pool>,
    id: u64,
    wait_max: Duration,
}

/// Places among those being answered; free again when dropped.
pub struct Seat(Option<(Arc<Pool>, u64, u64)>);

impl Drop for Seat {
    fn drop(&mut self) {
        if let Some((pool, id, width)) = self.0.take() {
            pool.back(id, width);
            pool.give();
        }
    }
}

impl Drop for Level {
    fn drop(&mut self) {
        // Who waits hears of it: the other end of its channel is gone.
        let gone = self.pool.levels().remove(&self.id);
        drop(gone);
        self.pool.give();
    }
}

impl Level {
    /// With `seats` places of `pool`, for which a request waits at most `wait_max`.
    pub fn new(pool: &Arc<Pool>, kind: Kind, seats: u64, wait_max: Duration) -> Arc<Level> {
        let id = pool.made.fetch_add(1, Ordering::Relaxed);
        let empty = State { kind: Kind::Exempt, seats: 0, taken: 0, queues: BTreeMap::new(), waiting: 0, turn: 0 };
        pool.levels().insert(id, empty);
        let level = Level { pool: Arc::clone(pool), id, wait_max };
        level.set(kind, seats);
        Arc::new(level)
    }

    fn with<T>(&self, read: impl FnOnce(&mut State) -> T) -> Option<T> {
        self.pool.levels().get_mut(&self.id).map(read)
    }

    /// Takes a changed configuration over. Those who wait keep waiting.
    pub fn set(&self, kind: Kind, seats: u64) {
        self.with(|state| (state.kind, state.seats) = (kind, seats));
        self.pool.give();
    }

    /// Its own part of the server.
    pub fn seats(&self) -> u64 {
        self.with(|state| state.seats).unwrap_or(0)
    }

    /// Seats that are taken, and requests waiting.
    pub fn counts(&self) -> (u64, usize) {
        self.with(|state| (state.taken, state.waiting)).unwrap_or_default()
    }

    /// Waits for seats. `flow` tells flows apart: each is dealt a hand of queues and joins the shortest. `width` is how
    /// many a request wants; it gets no more than 15 % of the level's own, nor more than lets each queue of a hand have
    /// its turn.
    ///
    /// Cancel safety: a seat that comes too late goes to the next.
    pub async fn seat(&self, flow: &str, width: u64) -> Result<Seat, Refusal> {
        let waiting = {
            let mut levels = self.pool.levels();
            let Some(state) = levels.get(&self.id) else { return Ok(Seat(None)) };
            let (queues, hand, most) = match &state.kind {
                Kind::Exempt => return Ok(Seat(None)),
                Kind::Limited { queues, .. } => queues.unwrap_or((0, 1, 0)),
            };
            let hands = state.seats / u64::try_from(hand.max(1)).unwrap_or(u64::MAX);
            let width = width.min(WIDTH_MAX).min((state.seats * 15).div_ceil(100)).min(hands).max(1);
            if state.waiting == 0 && may_take(&levels, self.id, width) {
                levels.entry(self.id).and_modify(|state| state.taken += width);
                return Ok(Seat(Some((Arc::clone(&self.pool), self.id, width))));
            }
            if queues == 0 {
                return Err(Refusal::NoQueue);
            }
            let Some(state) = levels.get_mut(&self.id) else { return Ok(Seat(None)) };
            let length = |at: usize| state.queues.get(&at).map_or(0, VecDeque::len);
            let shortest = dealt(flow, queues, hand).into_iter().min_by_key(|at| length(*at)).unwrap_or(0);
            if length(shortest) >= most {
                return Err(Refusal::QueueFull);
            }
            let (tell, told) = oneshot::channel();
            state.queues.entry(shortest).or_default().push_back(Waiter { width, tell });
            state.waiting += 1;
            told
        };
        // Whoever stood before it may have given up.
        self.pool.give();
        match tokio::time::timeout(self.wait_max, waiting).await {
            Ok(Ok(seat)) => Ok(seat),
            // One that gave up stays in its queue until the next look at it.
            Ok(Err(_)) | Err(_) => Err(Refusal::TimedOut),
        }
    }
}

/// The queues that a flow may join: `hand` different ones out of `queues`, by the flow's hash (shuffle sharding). As if
/// dealt from a deck of them all, whose last card takes the place of the one that is dealt; only cards that lie
/// elsewhere than at first are written down.
fn dealt(flow: &str, queues: usize, hand: usize) -> Vec<usize> {
    let mut hasher = DefaultHasher::new();
    flow.hash(&mut hasher);
    let mut rest = hasher.finish();
    let mut moved: BTreeMap<usize, usize> = BTreeMap::new();
    let card = |moved: &BTreeMap<usize, usize>, at: usize| moved.get(&at).copied().unwrap_or(at);
    (0..hand.min(queues))
        .map(|n_dealt| {
            let left = queues - n_dealt;
            let n = u64::try_from(left).unwrap_or(u64::MAX);
            let at = usize::try_from(rest % n).unwrap_or(0);
            rest /= n;
            let (dealt, last) = (card(&moved, at), card(&moved, left - 1));
            moved.insert(at, last);
            dealt
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_millis(20);

    fn limited(queues: Option<(usize, usize, usize)>) -> Kind {
        Kind::Limited { shares: 1, lendable: 0, borrows: None, queues }
    }

    fn alone(kind: Kind, seats: u64) -> Arc<Level> {
        Level::new(&Arc::default(), kind, seats, SHORT)
    }

    #[tokio::test]
    async fn beyond_its_seats_a_level_queues_refuses_or_gives_up() {
        let level = alone(limited(Some((1, 1, 1))), 1);
        let first = level.seat("a", 1).await.ok().unwrap();
        let meanwhile = async {
            tokio::task::yield_now().await;
            assert_eq!(level.counts(), (1, 1));
            assert_eq!(level.seat("c", 1).await.err(), Some(Refusal::QueueFull));
            drop(first);
        };
        let (waited, ()) = tokio::join!(level.seat("b", 1), meanwhile);
        drop(waited.ok().unwrap());
        assert_eq!(level.counts(), (0, 0));
        let _held = level.seat("a", 1).await.ok().unwrap();
        assert_eq!(level.seat("b", 1).await.err(), Some(Refusal::TimedOut));
        let none = alone(limited(None), 1);
        let _held = none.seat("a", 1).await.ok().unwrap();
        assert_eq!(none.seat("a", 1).await.err(), Some(Refusal::NoQueue));
    }

    #[tokio::test]
    async fn a_seat_passes_over_who_gave_up() {
        let level = alone(limited(Some((4, 4, 10))), 1);
        let held = level.seat("a", 1).await.ok().unwrap();
        assert_eq!(level.seat("b", 1).await.err(), Some(Refusal::TimedOut));
        drop(held);
        assert_eq!(level.counts(), (0, 0));
        assert!(level.seat("c", 1).await.is_ok());
    }

    #[tokio::test]
    async fn what_a_level_does_not_use_it_lends_and_what_it_keeps_is_always_there() {
        let pool = Arc::default();
        let lender = Kind::Limited { shares: 1, lendable: 50, borrows: None, queues: None };
        let lender = Level::new(&pool, lender, 10, SHORT);
        let borrower = Level::new(&pool, limited(None), 2, SHORT);
        // Two of its own and five that are lent.
        let mut held = Vec::new();
        for _ in 0..7 {
            held.push(borrower.seat("a", 1).await.ok().unwrap());
        }
        assert_eq!(borrower.seat("a", 1).await.err(), Some(Refusal::NoQueue));
        for _ in 0..5 {
            held.push(lender.seat("b", 1).await.ok().unwrap());
        }
        assert_eq!(lender.seat("b", 1).await.err(), Some(Refusal::NoQueue));
        drop(held);
        // Lent to somebody, they are the lender's again when he is done; a level that borrows within a bound borrows no
        // more.
        let all: Vec<Seat> =
            futures_util::future::join_all((0..10).map(|_| lender.seat("b", 1))).await.into_iter().flatten().collect();
        assert_eq!(lender.counts(), (10, 0));
        borrower.set(Kind::Limited { shares: 1, lendable: 0, borrows: Some(50), queues: None }, 2);
        drop(all);
        let held: Vec<Seat> =
            futures_util::future::join_all((0..9).map(|_| borrower.seat("a", 1))).await.into_iter().flatten().collect();
        assert_eq!((held.len(), borrower.counts()), (3, (3, 0)));
    }

    #[tokio::test]
    async fn a_seat_that_another_level_gives_back_goes_to_who_waits() {
        let pool = Arc::default();
        let lendable = |queues| Kind::Limited { shares: 1, lendable: 100, borrows: None, queues };
        let (one, two) =
            (Level::new(&pool, lendable(None), 1, SHORT), Level::new(&pool, lendable(Some((1, 1, 5))), 1, WAIT_MAX));
        let held = [one.seat("a", 1).await.ok().unwrap(), one.seat("a", 1).await.ok().unwrap()];
        let meanwhile = async {
            tokio::task::yield_now().await;
            assert_eq!(two.counts(), (0, 1));
            drop(held);
        };
        let (waited, ()) = tokio::join!(two.seat("b", 1), meanwhile);
        assert!(waited.is_ok());
        assert_eq!((one.counts(), two.counts()), ((0, 0), (1, 0)));
    }

    #[tokio::test]
    async fn who_reads_much_takes_several_seats_and_never_all() {
        let level = alone(limited(Some((8, 4, 5))), 40);
        let wide = level.seat("a", 1_000).await.ok().unwrap();
        assert_eq!(level.counts().0, 6);
        drop(wide);
        assert_eq!(level.counts().0, 0);
        // A narrow level answers wide requests one by one.
        let narrow = alone(limited(None), 1);
        let _wide = narrow.seat("a", 10).await.ok().unwrap();
        assert_eq!(narrow.counts().0, 1);
    }

    #[test]
    fn a_hand_has_different_queues() {
        let mut hand = dealt("bob", 64, 6);
        hand.sort_unstable();
        hand.dedup();
        assert_eq!(hand.len(), 6);
    }

    // security-3 F14: a level of ten million queues took 320 MB, and 80 MB more for each request that waited.
    #[tokio::test]
    async fn queues_that_nobody_waits_in_cost_nothing() {
        let level = alone(limited(Some((10_000_000, 2, 1))), 1);
        let _held = level.seat("a", 1).await.ok().unwrap();
        let began = base::time::Stopwatch::start();
        for n in 0..20 {
            let _gave_up = tokio::time::timeout(Duration::ZERO, level.seat(&n.to_string(), 1)).await;
        }
        assert!(level.with(|state| state.queues.len()).unwrap() <= 20);
        assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    }

    #[test]
    fn a_hand_is_dealt_as_from_a_deck_of_all_queues() {
        let from_deck = |flow: &str, queues: usize, hand: usize| -> Vec<usize> {
            let mut hasher = DefaultHasher::new();
            flow.hash(&mut hasher);
            let (mut rest, mut deck) = (hasher.finish(), (0..queues).collect::<Vec<_>>());
            let deal = |_| {
                let n = deck.len() as u64;
                let at = usize::try_from(rest % n).unwrap();
                rest /= n;
                deck.swap_remove(at)
            };
            (0..hand).map(deal).collect()
        };
        for n in 0..500 {
            for (queues, hand) in [(1, 1), (2, 2), (8, 8), (64, 6), (1000, 3)] {
                assert_eq!(dealt(&n.to_string(), queues, hand), from_deck(&n.to_string(), queues, hand));
            }
        }
    }
}
