//! Answers that are kept in memory until their reader has taken them: how much of them a user may have, and for how
//! long.
//!
//! A request's seat is free again when its answer is made, and a client of HTTP/2 decides by its window when the answer
//! leaves. So an answer that the handler keeps in memory (a list, a document, the beginning of a watch) has a [`Hold`]:
//! its bytes are counted until they are with the kernel, and it is let go of when something was ready for a minute and
//! nothing was taken. A stream that passes the
//! bytes of others through (a log, an exec) has none, and its reader may pause for as long as it likes.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use base::sync::{Mutex, MutexGuard};
use bytes::Bytes;
use http_body::{Body as _, Frame, SizeHint};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::body::{Body, BodyError};

/// Bytes of answers that readers have not taken yet. Beyond them more are refused; one answer may be larger, when it is
/// the only one.
const BYTES_MAX: usize = 192 << 20;
/// The same for one user.
const USER_BYTES_MAX: usize = 64 << 20;
/// How long readers are waited for.
#[derive(Clone, Copy, Debug)]
struct Patience {
    /// A reader that takes nothing for so long, while something is ready for it, loses its answer.
    stalled: Duration,
    /// The same where there is no room for another answer; and between two searches for room.
    crowded: Duration,
    /// A reader that does not even take the end of an answer that it has lost loses its connection after this.
    lost: Duration,
    /// Between two looks at the answers of a connection.
    look: Duration,
}

/// The first is that of other servers (nginx's `send_timeout`): the kernel hands a slow link's client hundreds of
/// kilobytes at once.
const PATIENCE: Patience = Patience {
    stalled: Duration::from_secs(60),
    crowded: Duration::from_secs(5),
    lost: Duration::from_secs(15),
    look: Duration::from_secs(5),
};

/// Bytes that are handed on at once: a stalled reader has as much in HTTP/2's buffers, twice, whatever its answer's
/// length.
const PIECE_BYTES: usize = 32 * 1024;
/// Of a longer chunk pieces are copies: one that is stuck must not keep the whole.
const SHARED_BYTES_MAX: usize = 128 * 1024;

/// How much of their answers users have not taken.
pub struct Accounts {
    patience: Patience,
    begun: Instant,
    books: Mutex<Books>,
}

#[derive(Default)]
struct Books {
    all: usize,
    by_user: BTreeMap<Arc<str>, User>,
    last_id: u64,
    holds: BTreeMap<u64, (Arc<str>, Weak<Hold>)>,
    /// When room was last searched for among all.
    searched: Option<Instant>,
}

#[derive(Default)]
struct User {
    bytes: usize,
    /// When room was last searched for among its own.
    searched: Option<Instant>,
}

/// An answer's entry in the accounts: it counts until it is dropped.
pub struct Hold {
    accounts: Arc<Accounts>,
    user: Arc<str>,
    id: u64,
    bytes: AtomicU64,
    /// Since when something has been ready for the reader, in milliseconds of the accounts; `NOTHING` while nothing is.
    ready_at: AtomicU64,
    answer: Mutex<Weak<Answer>>,
}

const NOTHING: u64 = u64::MAX;

impl Default for Accounts {
    fn default() -> Accounts {
        Accounts::new(PATIENCE)
    }
}

impl Accounts {
    fn new(patience: Patience) -> Accounts {
        Accounts { patience, begun: Instant::now(), books: Mutex::default() }
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock()
    }

    fn now(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(NOTHING)
    }

    /// Room for an answer of so many bytes. `None`: the user, or all users, have taken too little of those that they
    /// have got.
    pub fn take(self: &Arc<Accounts>, user: &str, bytes: usize) -> Option<Arc<Hold>> {
        if !self.books().has_room(user, bytes) {
            self.make_room(user, bytes);
        }
        let mut books = self.books();
        books.has_room(user, bytes).then(|| self.enter(&mut books, user, bytes))
    }

    /// The same for an answer that cannot be refused any more.
    pub fn note(self: &Arc<Accounts>, user: &str, bytes: usize) -> Arc<Hold> {
        self.enter(&mut self.books(), user, bytes)
    }

    fn enter(self: &Arc<Accounts>, books: &mut Books, user: &str, bytes: usize) -> Arc<Hold> {
        let user = books.by_user.get_key_value(user).map_or_else(|| Arc::from(user), |(known, _)| Arc::clone(known));
        books.all += bytes;
        books.by_user.entry(Arc::clone(&user)).or_default().bytes += bytes;
        books.last_id += 1;
        let id = books.last_id;
        let bytes = AtomicU64::new(u64::try_from(bytes).unwrap_or(u64::MAX));
        let (accounts, whose) = (Arc::clone(self), Arc::clone(&user));
        let hold = Hold { accounts, user, id, bytes, ready_at: AtomicU64::new(NOTHING), answer: Mutex::default() };
        let hold = Arc::new(hold);
        books.holds.insert(id, (whose, Arc::downgrade(&hold)));
        hold
    }

    /// Lets go of what was not taken for some seconds: of the user's own, or, where all users together have too much,
    /// of everybody's.
    fn make_room(&self, user: &str, bytes: usize) {
        // The last clone of a hold must not be dropped under the lock, which it takes.
        let mut stalled: Vec<Arc<Hold>> = {
            let mut books = self.books();
            let books = &mut *books;
            let is_of_all = books.all + bytes >= BYTES_MAX;
            let searched = if is_of_all {
                &mut books.searched
            } else {
                &mut books.by_user.entry(Arc::from(user)).or_default().searched
            };
            if searched.is_some_and(|at| at.elapsed() < self.patience.crowded) {
                return;
            }
            *searched = Some(Instant::now());
            let wanted = books.holds.values().filter(|(whose, _)| is_of_all || **whose == *user);
            wanted.filter_map(|(_, hold)| hold.upgrade()).collect()
        };
        stalled.retain(|hold| hold.is_stalled(self.patience.crowded));
        for hold in stalled {
            let answer = hold.answer.lock().upgrade();
            if let Some(answer) = answer {
                answer.cut();
            }
        }
    }
}

impl Books {
    fn has_room(&self, user: &str, bytes: usize) -> bool {
        match self.by_user.get(user).map_or(0, |own| own.bytes) {
            0 => self.all < BYTES_MAX,
            own => own + bytes <= USER_BYTES_MAX && self.all + bytes <= BYTES_MAX,
        }
    }
}

impl Hold {
    /// Nothing of it is kept in memory any more, though the answer goes on.
    pub fn release(&self) {
        let bytes = usize::try_from(self.bytes.swap(0, Ordering::Relaxed)).unwrap_or(usize::MAX);
        if bytes == 0 {
            return;
        }
        let mut books = self.accounts.books();
        books.all -= bytes;
        if let Some(own) = books.by_user.get_mut(&self.user) {
            own.bytes -= bytes;
            if own.bytes == 0 {
                books.by_user.remove(&self.user);
            }
        }
    }

    fn is_ready(&self, ready: bool) {
        self.ready_at.store(if ready { self.accounts.now() } else { NOTHING }, Ordering::Relaxed);
    }

    fn is_stalled(&self, limit: Duration) -> bool {
        let since = self.ready_at.load(Ordering::Relaxed);
        since != NOTHING && u128::from(self.accounts.now().saturating_sub(since)) >= limit.as_millis()
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.release();
        self.accounts.books().holds.remove(&self.id);
    }
}

/// An answer on its way to its reader. It can be taken from the reader while nobody polls it.
pub(crate) struct Answer {
    hold: Arc<Hold>,
    inner: Mutex<Inner>,
}

struct Inner {
    /// `None`: the reader has lost it.
    body: Option<Body>,
    /// The rest of a chunk.
    rest: Bytes,
    is_copied: bool,
    /// Bytes until the end, where the answer says how many they are.
    left: Option<usize>,
    lost_at: Option<Instant>,
}

impl Answer {
    pub(crate) fn new(body: Body, len: Option<usize>, hold: Arc<Hold>) -> Arc<Answer> {
        hold.is_ready(true);
        let inner = Inner { body: Some(body), rest: Bytes::new(), is_copied: false, left: len, lost_at: None };
        let answer = Arc::new(Answer { hold: Arc::clone(&hold), inner: Mutex::new(inner) });
        *hold.answer.lock() = Arc::downgrade(&answer);
        answer
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock()
    }

    pub(crate) fn hold(&self) -> &Arc<Hold> {
        &self.hold
    }

    /// Asked when there is room for more: hyper asks for the next frame only when the one before has begun to leave.
    pub(crate) fn poll(&self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let mut inner = self.inner();
        if inner.rest.is_empty() {
            let Some(body) = &mut inner.body else {
                return Poll::Ready(Some(Err("the answer was let go of: its reader took nothing for too long".into())));
            };
            let frame = Pin::new(body).poll_frame(context);
            self.hold.is_ready(frame.is_ready());
            match frame {
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(chunk) if !chunk.is_empty() => {
                        (inner.is_copied, inner.rest) = (chunk.len() > SHARED_BYTES_MAX, chunk)
                    }
                    Ok(chunk) => return Poll::Ready(Some(Ok(Frame::data(chunk)))),
                    Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                },
                other => return other,
            }
        }
        self.hold.is_ready(true);
        Poll::Ready(Some(Ok(Frame::data(inner.piece()))))
    }

    pub(crate) fn is_end_stream(&self) -> bool {
        let inner = self.inner();
        inner.rest.is_empty() && inner.body.as_ref().is_some_and(http_body::Body::is_end_stream)
    }

    pub(crate) fn size_hint(&self) -> SizeHint {
        let inner = self.inner();
        let Some(body) = &inner.body else { return SizeHint::default() };
        let (hint, more) = (body.size_hint(), inner.rest.len() as u64);
        match hint.exact() {
            Some(exact) => SizeHint::with_exact(exact + more),
            None => SizeHint::default(),
        }
    }

    /// Takes it from its reader, with everything that it keeps.
    fn cut(&self) {
        let kept = {
            let mut inner = self.inner();
            inner.lost_at.get_or_insert_with(Instant::now);
            (inner.body.take(), std::mem::take(&mut inner.rest))
        };
        drop(kept);
        self.hold.release();
    }

    /// Whether the reader has lost it, and not heard of that for too long.
    fn is_left_alone(&self, patience: Patience) -> bool {
        // One that moves is not waited for: it may be making its next piece.
        if !self.hold.is_stalled(patience.crowded) {
            return false;
        }
        if self.hold.is_stalled(patience.stalled) && self.inner().body.is_some() {
            self.cut();
        }
        self.inner().lost_at.is_some_and(|at| at.elapsed() >= patience.lost)
    }
}

impl Inner {
    fn piece(&mut self) -> Bytes {
        let all = self.rest.len();
        // The last byte is a piece of its own: hyper asks for it when those before it have left, and not before it the
        // answer has ended.
        let len = if all > PIECE_BYTES {
            PIECE_BYTES
        } else if self.left == Some(all) && all > 1 {
            all - 1
        } else {
            all
        };
        self.left = self.left.map(|left| left.saturating_sub(len));
        let piece = self.rest.split_to(len);
        if self.is_copied { Bytes::copy_from_slice(&piece) } else { piece }
    }
}

/// The answers of one connection.
pub(crate) struct Readers {
    patience: Patience,
    answers: Mutex<Vec<Weak<Answer>>>,
    /// Those that have ended, and whose last bytes may be in the connection's own buffers.
    unflushed: Mutex<Vec<Arc<Hold>>>,
    is_unflushed: AtomicBool,
    /// Whether the socket took no more when it was asked last.
    is_blocked: AtomicBool,
    n_written: AtomicU64,
    begun: Notify,
}

impl Default for Readers {
    fn default() -> Readers {
        Readers::new(PATIENCE)
    }
}

impl Readers {
    fn new(patience: Patience) -> Readers {
        Readers {
            patience,
            answers: Mutex::default(),
            unflushed: Mutex::default(),
            is_unflushed: AtomicBool::default(),
            is_blocked: AtomicBool::default(),
            n_written: AtomicU64::default(),
            begun: Notify::new(),
        }
    }

    fn answers(&self) -> MutexGuard<'_, Vec<Weak<Answer>>> {
        self.answers.lock()
    }

    fn unflushed(&self) -> MutexGuard<'_, Vec<Arc<Hold>>> {
        self.unflushed.lock()
    }

    pub(crate) fn begins(&self, answer: &Arc<Answer>) {
        self.answers().push(Arc::downgrade(answer));
        self.begun.notify_one();
    }

    pub(crate) fn ends(&self, answer: &Answer) {
        self.unflushed().push(Arc::clone(answer.hold()));
        self.is_unflushed.store(true, Ordering::Release);
        self.begun.notify_one();
    }

    pub(crate) fn written(&self, n: usize) {
        self.is_blocked.store(false, Ordering::Relaxed);
        self.n_written.fetch_add(n as u64, Ordering::Relaxed);
    }

    pub(crate) fn blocked(&self) {
        self.is_blocked.store(true, Ordering::Relaxed);
    }

    pub(crate) fn flushed(&self) {
        self.is_blocked.store(false, Ordering::Relaxed);
        if self.is_unflushed.swap(false, Ordering::AcqRel) {
            let flushed = std::mem::take(&mut *self.unflushed());
            drop(flushed);
        }
    }

    /// Resolves when the connection's client takes nothing any more. What single streams leave is let go of meanwhile.
    pub(crate) async fn stalled(&self) {
        let mut moved = (Instant::now(), 0);
        loop {
            let is_quiet = self.answers().is_empty() && !self.is_unflushed.load(Ordering::Acquire);
            if is_quiet {
                self.begun.notified().await;
                moved = (Instant::now(), self.n_written.load(Ordering::Relaxed));
            }
            tokio::time::sleep(self.patience.look).await;
            let answers: Vec<Arc<Answer>> = self.answers().iter().filter_map(Weak::upgrade).collect();
            if answers.iter().any(|answer| answer.is_left_alone(self.patience)) {
                return;
            }
            drop(answers);
            self.answers().retain(|answer| answer.strong_count() > 0);
            // Hyper writes until the socket takes no more: when it takes, nothing is left, whoever flushed last.
            if !self.is_blocked.load(Ordering::Relaxed) {
                self.flushed();
            }
            let written = self.n_written.load(Ordering::Relaxed);
            if written != moved.1 || !self.is_unflushed.load(Ordering::Acquire) {
                moved = (Instant::now(), written);
            }
            if moved.0.elapsed() >= self.patience.stalled {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;
    use crate::body;

    const MB: usize = 1 << 20;

    fn next(answer: &Answer) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        answer.poll(&mut Context::from_waker(Waker::noop()))
    }

    fn bytes(frame: Poll<Option<Result<Frame<Bytes>, BodyError>>>) -> Bytes {
        let Poll::Ready(Some(Ok(frame))) = frame else { panic!("no frame") };
        frame.into_data().unwrap()
    }

    #[tokio::test]
    async fn an_answer_comes_in_pieces_and_its_last_byte_comes_last() {
        let accounts: Arc<Accounts> = Arc::default();
        let whole: Vec<u8> = (0..MB).map(|n| u8::try_from(n % 251).unwrap()).collect();
        let answer = Answer::new(body::full(whole.clone()), Some(MB), accounts.take("a", MB).unwrap());
        assert_eq!(answer.size_hint().exact(), Some(MB as u64));
        let (mut all, mut last) = (Vec::new(), 0);
        while !answer.is_end_stream() {
            let piece = bytes(next(&answer));
            assert!(piece.len() <= PIECE_BYTES);
            last = piece.len();
            all.extend_from_slice(&piece);
        }
        assert!(all == whole && last == 1);
        assert!(matches!(next(&answer), Poll::Ready(None)));
    }

    const SHORT: Patience = Patience {
        stalled: Duration::from_millis(1500),
        crowded: Duration::from_secs(1),
        lost: Duration::from_millis(300),
        look: Duration::from_millis(20),
    };

    fn short() -> (Arc<Accounts>, Readers) {
        (Arc::new(Accounts::new(SHORT)), Readers::new(SHORT))
    }

    fn megabyte(accounts: &Arc<Accounts>, user: &str) -> Option<Arc<Answer>> {
        Some(Answer::new(body::full(vec![0; MB]), Some(MB), accounts.take(user, MB)?))
    }

    // issue 12: 2,500 lists with a window of nothing were 2.5 GB for as long as their reader liked.
    #[tokio::test]
    async fn a_reader_that_takes_nothing_loses_its_answer_and_then_its_connection() {
        let (accounts, readers) = short();
        let [left, slow] = ["a", "b"].map(|user| megabyte(&accounts, user).unwrap());
        readers.begins(&left);
        readers.begins(&slow);
        assert_eq!(bytes(next(&left)).len(), PIECE_BYTES);
        let reads = async {
            for _ in 0..30 {
                tokio::time::sleep(SHORT.stalled / 8).await;
                assert_eq!(bytes(next(&slow)).len(), PIECE_BYTES);
            }
        };
        tokio::select! {
            () = reads => panic!("the connection was kept"),
            () = readers.stalled() => {}
        }
        assert!(left.inner().body.is_none() && slow.inner().body.is_some());
        assert!(matches!(next(&left), Poll::Ready(Some(Err(_)))));
        assert_eq!(accounts.books().all, MB);
        drop((left, slow));
        assert!(accounts.books().by_user.is_empty() && accounts.books().holds.is_empty());
    }

    #[tokio::test]
    async fn an_answer_with_nothing_to_take_waits_for_as_long_as_it_likes() {
        let (accounts, readers) = short();
        let silent = body::stream(futures_util::stream::pending::<Result<Bytes, std::io::Error>>());
        let watch = Answer::new(silent, None, accounts.take("a", 0).unwrap());
        readers.begins(&watch);
        assert!(next(&watch).is_pending());
        assert!(tokio::time::timeout(2 * SHORT.stalled, readers.stalled()).await.is_err());
        assert!(watch.inner().body.is_some());
    }

    #[tokio::test]
    async fn what_stays_in_the_connections_buffers_counts_until_it_is_flushed() {
        let (accounts, readers) = short();
        let answer = Answer::new(body::full("x"), Some(1), accounts.take("a", 1).unwrap());
        readers.blocked();
        readers.ends(&answer);
        drop(answer);
        assert_eq!(accounts.books().all, 1);
        // As long as bytes move the client is slow, and no more than that.
        let slowly = async {
            for _ in 0..20 {
                tokio::time::sleep(SHORT.stalled / 8).await;
                readers.written(1);
                readers.blocked();
            }
        };
        tokio::select! {
            () = slowly => {}
            () = readers.stalled() => panic!("a slow client was cut off"),
        }
        tokio::time::timeout(20 * SHORT.stalled, readers.stalled()).await.unwrap();
        readers.flushed();
        assert_eq!(accounts.books().all, 0);
        assert!(tokio::time::timeout(2 * SHORT.stalled, readers.stalled()).await.is_err());
    }

    #[tokio::test]
    async fn a_user_with_too_much_is_refused_and_nobody_else() {
        let (accounts, _) = short();
        let held: Vec<Arc<Answer>> = std::iter::from_fn(|| megabyte(&accounts, "greedy")).collect();
        assert_eq!(held.len(), USER_BYTES_MAX / MB);
        assert!(megabyte(&accounts, "other").is_some());
        // One alone may be larger than the room.
        drop(accounts.take("large", 2 * BYTES_MAX).unwrap());
        // What is being taken stays; what is not makes room for more.
        tokio::time::sleep(2 * SHORT.crowded).await;
        assert_eq!(bytes(next(&held[0])).len(), PIECE_BYTES);
        let more = megabyte(&accounts, "greedy");
        assert!(more.is_some());
        assert_eq!(bytes(next(&held[0])).len(), PIECE_BYTES);
        assert!(matches!(next(&held[1]), Poll::Ready(Some(Err(_)))));
        // Many users fill the whole together, and no more.
        let crowd: Vec<_> = (0..1000).map_while(|n| megabyte(&accounts, &n.to_string())).collect();
        assert!(accounts.books().all <= BYTES_MAX && crowd.len() > 100);
    }
}
