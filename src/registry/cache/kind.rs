//! The cache of one resource: its objects, its recent changes, and who watches.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use base::chain::Chain;
use base::limits;
use base::sync::{Mutex, MutexGuard};
use model::reference::NamespacedName;
use store::{Event, EventKind, KeyValue};
use tokio::sync::{mpsc, watch};
use tracing::error;

use super::change::{Change, EventType};
use super::entry::{Entry, Form};
use super::filter::Filter;
use crate::keys;
use crate::lookup::News;

/// Item of a watcher's channel.
pub type Delivery = (EventType, Arc<Change>);

/// One resource.
pub struct Kind {
    /// Where its keys start.
    pub prefix: String,
    form: Form,
    state: Mutex<State>,
    /// Only one task fills the cache.
    pub(super) filling: tokio::sync::Mutex<()>,
    changed: watch::Sender<u64>,
}

#[derive(Default)]
struct State {
    phase: Phase,
    items: BTreeMap<Box<str>, Arc<Entry>>,
    /// Recent changes, oldest first; every change after `floor` is here.
    ring: VecDeque<Arc<Change>>,
    ring_bytes: usize,
    floor: u64,
    /// Revision of the newest change in `items`, at least that of the filling.
    newest: u64,
    sinks: Vec<Sink>,
}

#[derive(Default)]
enum Phase {
    #[default]
    Cold,
    /// Being read from the store; events that come meanwhile wait here.
    Filling(Vec<Event>),
    Ready,
}

struct Sink {
    filter: Arc<Filter>,
    events: mpsc::Sender<Delivery>,
    /// The cost of the changes that may still wait in the channel, oldest first, and all of them together.
    costs: VecDeque<usize>,
    cost: usize,
}

impl Sink {
    fn new(filter: &Arc<Filter>) -> (Sink, mpsc::Receiver<Delivery>) {
        let (events, rx) = mpsc::channel(limits::API_WATCH_BACKLOG_EVENTS);
        (Sink { filter: Arc::clone(filter), events, costs: VecDeque::new(), cost: 0 }, rx)
    }

    /// Hands a change to the watcher; false when too many, or too large ones, wait for it already.
    fn send(&mut self, event: EventType, change: &Arc<Change>) -> bool {
        let n_waiting = self.events.max_capacity() - self.events.capacity();
        while self.costs.len() > n_waiting {
            self.cost -= self.costs.pop_front().unwrap_or(0);
        }
        // However large it is, one fits.
        if self.cost > limits::API_WATCH_BACKLOG_BYTES {
            return false;
        }
        self.costs.push_back(change.cost());
        self.cost += change.cost();
        self.events.try_send((event, Arc::clone(change))).is_ok()
    }
}

/// Objects at one moment.
pub struct Snapshot {
    /// In key order.
    pub items: Vec<Arc<Entry>>,
    /// The newest change they hold.
    pub newest: u64,
    /// Whether these are all. If not, the cache has just lost its watch: they are what it knew last, and nothing may be
    /// said of the present.
    pub is_whole: bool,
}

impl Snapshot {
    /// The same, if these are all objects.
    ///
    /// Errors: `TimedOut` if the cache has to be filled anew first.
    pub fn whole(self) -> Result<Snapshot, store::error::Error> {
        if self.is_whole { Ok(self) } else { Err(store::error::Error::TimedOut) }
    }
}

impl Kind {
    pub fn new(prefix: String, form: Form) -> Kind {
        Kind {
            prefix,
            form,
            state: Mutex::default(),
            filling: tokio::sync::Mutex::default(),
            changed: watch::Sender::new(0),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Whether it holds all objects of the resource.
    pub fn is_ready(&self) -> bool {
        matches!(self.state().phase, Phase::Ready)
    }

    /// How its stored objects are read.
    pub fn form(&self) -> &Form {
        &self.form
    }

    pub fn begin_filling(&self) {
        self.state().phase = Phase::Filling(Vec::new());
    }

    /// Takes over what was read at `at` and the events that came meanwhile.
    pub fn finish_filling(&self, read: Vec<KeyValue>, at: u64) {
        let items: BTreeMap<_, _> = read.iter().filter_map(|kv| self.entry(kv)).map(|e| (e.key.clone(), e)).collect();
        let mut state = self.state();
        let Phase::Filling(waiting) = std::mem::take(&mut state.phase) else { return };
        state.items = items;
        state.ring.clear();
        state.ring_bytes = 0;
        (state.floor, state.newest) = (at, at);
        state.phase = Phase::Ready;
        for event in waiting {
            self.apply_one(&mut state, &event);
        }
        self.changed.send_replace(state.newest);
    }

    /// Changes may have been missed: watchers end and must list again. What was known last stays until the cache is
    /// filled anew: whoever judges by it (admission, authorization) would find no rule, no policy and no quota
    /// otherwise, and let everything pass.
    pub fn reset(&self) {
        let mut state = self.state();
        let items = std::mem::take(&mut state.items);
        *state = State { items, ..State::default() };
    }

    /// Applies the events of one revision.
    pub fn apply(&self, events: &[&Event]) {
        let mut state = self.state();
        match &mut state.phase {
            Phase::Cold => return,
            Phase::Filling(waiting) => return waiting.extend(events.iter().map(|e| (*e).clone())),
            Phase::Ready => {}
        }
        for event in events {
            self.apply_one(&mut state, event);
        }
        self.changed.send_replace(state.newest);
    }

    /// Lets go of the changes up to a revision, and of their room: a watcher that resumes from before it asks the
    /// store.
    pub fn forget(&self, until: u64) {
        let mut state = self.state();
        let old = state.ring.partition_point(|change| change.rv <= until);
        if let Some(last) = old.checked_sub(1).and_then(|last| state.ring.get(last)) {
            state.floor = last.rv;
            let forgotten: usize = state.ring.drain(..old).map(|change| change.cost()).sum();
            state.ring_bytes -= forgotten;
            state.ring.shrink_to_fit();
        }
    }

    fn apply_one(&self, state: &mut State, event: &Event) {
        let rv = event.kv.mod_revision.0;
        if rv <= state.floor {
            return; // The filling has seen it already.
        }
        let change = match event.kind {
            EventKind::Put => {
                let Some(after) = self.entry(&event.kv) else { return };
                let before = state.items.insert(after.key.clone(), Arc::clone(&after));
                Change::new(rv, before, Some(after))
            }
            EventKind::Delete => {
                let Some(before) = self.local_key(&event.kv).and_then(|key| state.items.remove(key)) else { return };
                Change::new(rv, Some(before), None)
            }
        };
        let change = Arc::new(change);
        state.newest = rv;
        // A watcher whose channel is full is dropped here: its stream ends and the client resumes.
        state.sinks.retain_mut(|sink| match change.seen_through(&sink.filter) {
            Some(event) => sink.send(event, &change),
            None => !sink.events.is_closed(),
        });
        state.ring_bytes += change.cost();
        state.ring.push_back(change);
        while (state.ring.len() > limits::WATCH_CACHE_RING || state.ring_bytes > limits::WATCH_CACHE_RING_BYTES)
            && let Some(oldest) = state.ring.pop_front()
        {
            state.ring_bytes -= oldest.cost();
            state.floor = oldest.rv;
        }
    }

    fn local_key<'k>(&self, kv: &'k KeyValue) -> Option<&'k str> {
        std::str::from_utf8(&kv.key).ok()?.strip_prefix(self.prefix.as_str())
    }

    fn entry(&self, kv: &KeyValue) -> Option<Arc<Entry>> {
        let key = self.local_key(kv)?;
        match Entry::build(key, &kv.value, kv.mod_revision.0, &self.form) {
            Ok(entry) => Some(Arc::new(entry)),
            Err(err) => {
                error!(key, prefix = %self.prefix, err = %Chain(&err), "stored object cannot be read");
                None
            }
        }
    }

    /// One object by its local key; the outer `None`: the cache has to be filled first.
    pub fn now(&self, local: &str) -> Option<Option<Arc<Entry>>> {
        let state = self.state();
        matches!(state.phase, Phase::Ready).then(|| state.items.get(local).cloned())
    }

    /// One object by its local key, as it was known last.
    pub fn get(&self, local: &str) -> Option<Arc<Entry>> {
        self.state().items.get(local).cloned()
    }

    /// How many objects there are.
    pub fn len(&self) -> usize {
        self.state().items.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All objects, or those of one namespace.
    pub fn snapshot(&self, namespace: Option<&str>) -> Snapshot {
        let state = self.state();
        let is_whole = matches!(state.phase, Phase::Ready);
        Snapshot { items: select(&state.items, namespace), newest: state.newest, is_whole }
    }

    /// Moves after each change.
    pub fn changed(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// Present state and every change after it, without a gap, if the state is whole.
    pub fn watch_from_now(&self, filter: &Arc<Filter>) -> (Snapshot, mpsc::Receiver<Delivery>) {
        let mut state = self.state();
        let mut items = select(&state.items, filter.namespace.as_deref());
        items.retain(|e| filter.matches(e));
        let (newest, is_whole) = (state.newest, matches!(state.phase, Phase::Ready));
        let (sink, rx) = Sink::new(filter);
        state.sinks.push(sink);
        (Snapshot { items, newest, is_whole }, rx)
    }

    /// Every change after `rv` until now, and the revision of the newest. `None`: too long ago, or the cache has begun
    /// anew.
    pub fn changes_after(&self, rv: u64) -> Option<(Vec<Arc<Change>>, u64)> {
        let state = self.state();
        if rv < state.floor || rv > state.newest {
            return None;
        }
        let start = state.ring.partition_point(|change| change.rv <= rv);
        Some((state.ring.range(start..).cloned().collect(), state.newest))
    }

    /// The changes in a namespace after `rv`, or all its objects if that is too long ago; the objects of some
    /// names; the revision of all that. `None`: the cache has to be filled first.
    pub fn since(
        &self,
        namespace: &str,
        rv: Option<u64>,
        names: &[&str],
    ) -> Option<(News, Vec<Option<Arc<Entry>>>, u64)> {
        let state = self.state();
        if !matches!(state.phase, Phase::Ready) {
            return None;
        }
        let named = names
            .iter()
            .map(|name| state.items.get(keys::local(NamespacedName { namespace, name }).as_str()).cloned())
            .collect();
        let news = match rv.filter(|rv| (state.floor..=state.newest).contains(rv)) {
            Some(rv) => {
                let start = state.ring.partition_point(|change| change.rv <= rv);
                News::Changes(
                    state.ring.range(start..).filter(|change| change.namespace() == namespace).cloned().collect(),
                )
            }
            None => News::All(select(&state.items, Some(namespace))),
        };
        Some((news, named, state.newest))
    }

    /// Every change after `rv`: those that are remembered, and the channel of those to come. `None`: too long ago, or
    /// the cache has to be filled first.
    pub fn watch_after(&self, rv: u64, filter: &Arc<Filter>) -> Option<(Vec<Delivery>, mpsc::Receiver<Delivery>)> {
        let mut state = self.state();
        if rv < state.floor || !matches!(state.phase, Phase::Ready) {
            return None;
        }
        let start = state.ring.partition_point(|change| change.rv <= rv);
        let past = state.ring.range(start..).filter_map(|c| Some((c.seen_through(filter)?, Arc::clone(c)))).collect();
        let (sink, rx) = Sink::new(filter);
        state.sinks.push(sink);
        Some((past, rx))
    }
}

fn select(items: &BTreeMap<Box<str>, Arc<Entry>>, namespace: Option<&str>) -> Vec<Arc<Entry>> {
    let Some(ns) = namespace else { return items.values().cloned().collect() };
    // '0' is the character after '/': the range holds the keys of this namespace only.
    let (from, to) = (format!("{ns}/"), format!("{ns}0"));
    let range = (Bound::Included(from.as_str()), Bound::Excluded(to.as_str()));
    items.range::<str, _>(range).map(|(_, e)| Arc::clone(e)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use store::Revision;

    fn event(kind: EventKind, name: &str, label: &str, rv: u64) -> Event {
        let value = format!(r#"{{"metadata":{{"labels":{{"l":"{label}"}},"name":"{name}","namespace":"n"}}}}"#);
        let kv = KeyValue {
            key: format!("/registry/core/pods/n/{name}").into(),
            value: if kind == EventKind::Put { value.into() } else { Default::default() },
            create_revision: Revision(rv),
            mod_revision: Revision(rv),
            version: 1,
            lease: 0,
        };
        Event { kind, kv, prev: None }
    }

    fn filled() -> Kind {
        let kind = Kind::new("/registry/core/pods/".into(), Form::default());
        kind.begin_filling();
        kind.apply(&[&event(EventKind::Put, "b", "x", 12)]);
        kind.finish_filling(vec![event(EventKind::Put, "a", "x", 10).kv], 11);
        kind
    }

    #[test]
    fn a_cache_that_lost_its_watch_shows_what_it_knew_last_and_says_so() {
        let kind = filled();
        assert!(kind.snapshot(None).is_whole && kind.now("n/a").is_some_and(|a| a.is_some()));
        kind.reset();
        let known = kind.snapshot(None);
        assert!(!known.is_whole && known.items.len() == 2 && kind.get("n/a").is_some());
        assert!(known.whole().is_err() && kind.now("n/a").is_none());
        assert!(kind.watch_after(12, &Arc::default()).is_none() && !kind.watch_from_now(&Arc::default()).0.is_whole);
        kind.begin_filling();
        assert_eq!(kind.len(), 2);
        kind.finish_filling(vec![event(EventKind::Put, "c", "x", 20).kv], 20);
        assert!(kind.snapshot(None).is_whole && kind.get("n/a").is_none() && kind.get("n/c").is_some());
    }

    #[test]
    fn events_during_the_filling_are_not_lost() {
        let names: Vec<_> = filled().snapshot(Some("n")).items.iter().map(|e| e.name().to_owned()).collect();
        assert_eq!(names, ["a", "b"]);
    }

    #[test]
    fn leaving_the_selector_is_a_delete_with_the_last_state_seen() {
        let kind = filled();
        let filter = Arc::new(Filter { labels: model::labels::Selector::parse("l=x").unwrap(), ..Filter::default() });
        let (now, mut rx) = kind.watch_from_now(&filter);
        assert_eq!(now.items.len(), 2);
        kind.apply(&[&event(EventKind::Put, "a", "y", 13)]);
        let (what, change) = rx.try_recv().unwrap();
        assert_eq!(what, EventType::Deleted);
        let frame = String::from_utf8(change.frame(what).to_vec()).unwrap();
        assert!(frame.contains(r#""l":"x""#) && frame.contains(r#""resourceVersion":"13""#), "{frame}");
    }

    #[test]
    fn what_was_forgotten_is_not_in_the_memory_and_the_rest_is() {
        let kind = filled();
        kind.apply(&[&event(EventKind::Put, "a", "y", 13)]);
        kind.forget(12);
        assert!(kind.watch_after(11, &Arc::default()).is_none());
        assert_eq!(kind.watch_after(12, &Arc::default()).unwrap().0.len(), 1);
        kind.forget(99);
        assert!(kind.watch_after(12, &Arc::default()).is_none());
        assert!(kind.watch_after(13, &Arc::default()).is_some());
    }

    // issue 12: 1100 writes of a megabyte each were a gigabyte, for up to ten minutes.
    #[test]
    fn what_is_remembered_and_what_waits_for_a_watcher_has_a_bound_in_bytes() {
        let kind = filled();
        let (_, mut slow) = kind.watch_from_now(&Arc::default());
        let (_, mut prompt) = kind.watch_from_now(&Arc::default());
        let large = "x".repeat(1 << 20);
        for rv in 13..40 {
            kind.apply(&[&event(EventKind::Put, "a", &large, rv)]);
            assert_eq!(prompt.try_recv().unwrap().1.rv, rv);
        }
        let n_waiting = std::iter::from_fn(|| slow.try_recv().ok()).count();
        assert!(n_waiting << 20 <= limits::API_WATCH_BACKLOG_BYTES, "{n_waiting} of a megabyte wait");
        assert!(slow.is_closed() && !prompt.is_closed());
        let remembered = (13..40).filter(|rv| kind.watch_after(*rv, &Arc::default()).is_some()).count();
        assert!((2..=8).contains(&remembered), "{remembered}");
        kind.forget(99);
        assert_eq!(kind.state().ring_bytes, 0);
        // A thousand of the usual size are remembered as before.
        for rv in 100..1200 {
            kind.apply(&[&event(EventKind::Put, "a", "y", rv)]);
        }
        assert_eq!(kind.state().ring.len(), limits::WATCH_CACHE_RING);
    }

    #[test]
    fn a_watch_from_before_the_memory_is_refused() {
        let kind = filled();
        assert!(kind.watch_after(10, &Arc::default()).is_none());
        let (past, _rx) = kind.watch_after(11, &Arc::default()).unwrap();
        assert_eq!(past.len(), 1);
    }
}
