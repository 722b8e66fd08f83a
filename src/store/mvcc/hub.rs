//! Watchers, their ranges, and the delivery of events. A watcher that does not keep up is let go; nobody waits for it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use base::limits;
use base::sync::Mutex;
use tokio::sync::mpsc::{self, error::TrySendError};

use crate::error::Error;
use crate::kv::{EventBatch, Revision};
use crate::mvcc::index::covers;
use crate::storage::WatchRequest;
use crate::watch::{CloseReason, WatchStream, progress_mark};

#[derive(Debug)]
struct Watcher {
    request: WatchRequest,
    tx: mpsc::Sender<EventBatch>,
    close_reason: CloseReason,
}

#[derive(Debug, Default)]
struct Watchers {
    all: BTreeMap<u64, Watcher>,
    last: u64,
    closed: bool,
}

/// Events that watchers are told.
#[derive(Debug, Default)]
pub struct Told {
    /// The changes, a batch a revision.
    pub batches: Vec<EventBatch>,
    /// Whether the events carry the keys as they were before.
    pub has_prev: bool,
}

/// The watchers and the newest revision.
#[derive(Debug, Default)]
pub struct Hub {
    watchers: Mutex<Watchers>,
    revision: AtomicU64,
    wanting_prev: AtomicUsize,
}

impl Hub {
    /// The newest revision applied.
    pub fn revision(&self) -> u64 {
        self.revision.load(Ordering::Acquire)
    }

    /// Where the store stands at opening.
    pub fn start_at(&self, revision: u64) {
        self.revision.store(revision, Ordering::Release);
    }

    /// Whether any watcher wants keys as they were before.
    pub fn wants_prev(&self) -> bool {
        self.wanting_prev.load(Ordering::Relaxed) > 0
    }

    /// Adds a watcher. It hears of every revision after the one returned.
    pub fn register(&self, request: WatchRequest) -> Result<(WatchStream, u64), Error> {
        // Full means the reader is too slow: it is let go and must list again.
        let (tx, rx) = mpsc::channel(limits::STORE_WATCH_BACKLOG_BATCHES);
        let close_reason = CloseReason::default();
        let stream = WatchStream::live(rx, close_reason.clone());
        let mut watchers = self.watchers.lock();
        if watchers.closed {
            return Err(Error::Closed);
        }
        // Readers that went away without an event since: nothing else would notice them.
        watchers.all.retain(|_, watcher| !watcher.tx.is_closed());
        let prev = watchers.all.values().filter(|w| w.request.prev_kv).count() + usize::from(request.prev_kv);
        self.wanting_prev.store(prev, Ordering::Relaxed);
        watchers.last += 1;
        let id = watchers.last;
        watchers.all.insert(id, Watcher { request, tx, close_reason });
        // Under the lock that `publish` holds, so no revision falls between the past and the live part.
        Ok((stream, self.revision()))
    }

    /// Publishes `revision` first, then tells the batches: a watcher that reads after an event must find it. The lock
    /// keeps readers out between the two steps.
    ///
    /// A watcher that wants keys as they were before may have come since the batches were begun without them: then
    /// `with_prev` makes them anew, or says why it cannot, and the watchers are let go with that.
    pub fn publish(&self, told: Told, revision: u64, with_prev: impl FnOnce() -> Result<Vec<EventBatch>, Error>) {
        let mut watchers = self.watchers.lock();
        self.revision.store(revision, Ordering::Release);
        let lacks_prev = !told.has_prev && watchers.all.values().any(|watcher| watcher.request.prev_kv);
        let batches = match if lacks_prev { with_prev() } else { Ok(told.batches) } {
            Ok(batches) => batches,
            Err(err) => return self.let_all_go(&mut watchers, &err),
        };
        for batch in &batches {
            self.send(&mut watchers, |request| matching(request, batch));
        }
    }

    /// Sends everybody a progress mark.
    pub fn progress(&self) {
        let mut watchers = self.watchers.lock();
        let mark = progress_mark(Revision(self.revision()));
        self.send(&mut watchers, |_| Some(mark.clone()));
    }

    /// Lets everybody go for this reason; who comes later is served.
    pub fn let_go(&self, why: &Error) {
        self.let_all_go(&mut self.watchers.lock(), why);
    }

    fn let_all_go(&self, watchers: &mut Watchers, why: &Error) {
        for watcher in std::mem::take(&mut watchers.all).into_values() {
            *watcher.close_reason.lock() = Some(why.clone());
        }
        self.wanting_prev.store(0, Ordering::Relaxed);
    }

    /// Lets everybody go.
    pub fn close(&self) {
        let mut watchers = self.watchers.lock();
        watchers.closed = true;
        watchers.all.clear();
    }

    fn send(&self, watchers: &mut Watchers, batch: impl Fn(&WatchRequest) -> Option<EventBatch>) {
        watchers.all.retain(|_, watcher| {
            let Some(batch) = batch(&watcher.request) else { return true };
            let keep = match watcher.tx.try_send(batch) {
                Ok(()) => true,
                Err(TrySendError::Full(_)) => {
                    *watcher.close_reason.lock() = Some(Error::SlowWatcher);
                    false
                }
                Err(TrySendError::Closed(_)) => false,
            };
            if !keep && watcher.request.prev_kv {
                self.wanting_prev.fetch_sub(1, Ordering::Relaxed);
            }
            keep
        });
    }
}

/// The part of a batch that a watch asked for.
fn matching(request: &WatchRequest, batch: &EventBatch) -> Option<EventBatch> {
    if batch.revision < request.start {
        return None;
    }
    let wanted = |key: &[u8]| covers(&request.key, &request.range_end, key);
    let n = batch.events.iter().filter(|e| wanted(&e.kv.key)).count();
    if n == 0 {
        return None;
    }
    let strip = !request.prev_kv && batch.events.iter().any(|e| e.prev.is_some());
    if n == batch.events.len() && !strip {
        return Some(batch.clone());
    }
    let mut events: Vec<_> = batch.events.iter().filter(|e| wanted(&e.kv.key)).cloned().collect();
    if strip {
        events.iter_mut().for_each(|e| e.prev = None);
    }
    Some(EventBatch { revision: batch.revision, events: events.into() })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::task::{Context, Wake, Waker};

    use bytes::Bytes;

    use super::*;
    use crate::kv::{Event, EventKind, KeyValue};

    /// Looks at the current revision at the moment a watcher is woken.
    struct Look {
        hub: Arc<Hub>,
        seen: AtomicU64,
    }

    impl Wake for Look {
        fn wake(self: Arc<Self>) {
            self.seen.store(self.hub.revision(), Ordering::Release);
        }
    }

    /// A server that reads its keys when it is told of a change would take the old ones for the new, and never look
    /// again.
    #[test]
    fn who_is_told_of_a_change_can_read_it() {
        let hub = Arc::new(Hub::default());
        let all = WatchRequest {
            key: Bytes::from_static(&[0]),
            range_end: Bytes::from_static(&[0]),
            ..WatchRequest::default()
        };
        let (mut stream, _) = hub.register(all).unwrap();
        let look = Arc::new(Look { hub: Arc::clone(&hub), seen: AtomicU64::new(0) });
        let waker = Waker::from(Arc::clone(&look));
        let next = std::pin::pin!(stream.next());
        assert!(next.poll(&mut Context::from_waker(&waker)).is_pending());
        let kv = KeyValue { key: Bytes::from_static(b"k"), ..KeyValue::default() };
        let event = Event { kind: EventKind::Put, kv, prev: None };
        let batches = vec![EventBatch { revision: Revision(7), events: vec![event].into() }];
        hub.publish(Told { batches, has_prev: true }, 7, || unreachable!());
        assert_eq!(look.seen.load(Ordering::Acquire), 7);
    }

    /// security.md S6: its selector would not see that the object left it.
    #[tokio::test]
    async fn a_watcher_that_comes_while_a_batch_is_made_gets_keys_as_they_were_too() {
        let hub = Hub::default();
        let has_prev = hub.wants_prev();
        assert!(!has_prev);
        // It comes after the batch was begun, and is told of it.
        let all = WatchRequest { key: Bytes::from_static(b"k"), prev_kv: true, ..WatchRequest::default() };
        let (mut stream, _) = hub.register(all).unwrap();
        let kv =
            |value| KeyValue { key: Bytes::from_static(b"k"), value: Bytes::from_static(value), ..KeyValue::default() };
        let batch = |prev| {
            let event = Event { kind: EventKind::Put, kv: kv(b"new"), prev };
            vec![EventBatch { revision: Revision(7), events: vec![event].into() }]
        };
        hub.publish(Told { batches: batch(None), has_prev }, 7, || Ok(batch(Some(kv(b"old")))));
        assert_eq!(stream.next().await.unwrap().events[0].prev, Some(kv(b"old")));
        hub.publish(Told { batches: batch(None), has_prev }, 8, || Err(Error::Closed));
        assert!(matches!(stream.next().await, Err(Error::Closed)));
    }

    /// Revision 7: `a` and `b` changed, with what was before.
    fn two() -> EventBatch {
        let kv = |key: &'static str| KeyValue { key: key.into(), ..KeyValue::default() };
        let event = |key| Event { kind: EventKind::Put, kv: kv(key), prev: Some(kv(key)) };
        EventBatch { revision: Revision(7), events: vec![event("a"), event("b")].into() }
    }

    #[test]
    fn a_watcher_is_told_of_its_keys_from_its_revision_on() {
        let check = |key: &'static str, range_end: &'static str, start: u64| {
            let request =
                WatchRequest { key: key.into(), range_end: range_end.into(), start: Revision(start), prev_kv: true };
            let part = matching(&request, &two())?;
            assert_eq!(part.revision, Revision(7));
            Some(part.events.iter().map(|event| String::from_utf8_lossy(&event.kv.key).into_owned()).collect())
        };
        for (key, range_end, start, want) in [
            ("a", "", 0, Some("a")),
            ("a", "", 7, Some("a")),
            ("a", "", 8, None),
            ("x", "", 0, None),
            ("", "\0", 0, Some("ab")),
            ("a", "b", 0, Some("a")),
            ("b", "\0", 0, Some("b")),
            ("b", "a", 0, None),
        ] {
            let told: Option<String> = check(key, range_end, start);
            assert_eq!(told.as_deref(), want, "{key} {range_end:?} {start}");
        }
    }

    #[test]
    fn a_watcher_that_did_not_ask_for_keys_as_they_were_gets_none() {
        let request = |prev_kv| WatchRequest { range_end: "\0".into(), prev_kv, ..WatchRequest::default() };
        let with = matching(&request(true), &two()).unwrap();
        assert!(with.events.iter().all(|event| event.prev.is_some()));
        let without = matching(&request(false), &two()).unwrap();
        assert_eq!(without.events.len(), 2);
        assert!(without.events.iter().all(|event| event.prev.is_none()));
    }

    #[test]
    fn keys_as_they_were_are_kept_while_somebody_wants_them() {
        let hub = Hub::default();
        let watch = |prev_kv| hub.register(WatchRequest { prev_kv, ..WatchRequest::default() }).unwrap().0;
        let _plain = watch(false);
        assert!(!hub.wants_prev());
        let wants = watch(true);
        assert!(hub.wants_prev());
        drop(wants);
        // Its end is found out when somebody comes or something is told.
        let _other = watch(false);
        assert!(!hub.wants_prev());
    }

    #[tokio::test]
    async fn a_hub_that_is_closed_takes_nobody_and_one_that_lets_go_does() {
        let hub = Hub::default();
        let mut first = hub.register(WatchRequest::default()).unwrap().0;
        hub.let_go(&Error::TimedOut);
        assert!(matches!(first.next().await, Err(Error::TimedOut)));
        let mut second = hub.register(WatchRequest::default()).unwrap().0;
        hub.close();
        assert!(matches!(second.next().await, Err(Error::Closed)));
        assert!(matches!(hub.register(WatchRequest::default()), Err(Error::Closed)));
    }
}
