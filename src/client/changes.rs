//! Changes that a subscriber of an informer has still to be told. What happens to one object while nobody reads becomes
//! one change, except for what a reader could not find out any more: that an object ended, and an owner or a label that
//! it had in between.
//!
//! No end of an object is ever dropped, and it is told before the begin of the next one under the same name: whoever
//! counts on an object, or keeps something for it, hears that it is gone. So a reader that does not read keeps one
//! change for each object that ended meanwhile, and at most [`CHANGES_OF_ONE_MAX`] others a name, however often the
//! objects change.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Weak};

use base::sync::{Mutex, MutexGuard};
use kube::Resource;
use tokio::sync::Notify;

use crate::informer::{Change, Key};

/// Changes under one name that wait because they cannot be told as one. Beyond it only ends of objects are kept apart;
/// an owner or a label that an object had in between is not told of.
const CHANGES_OF_ONE_MAX: usize = 16;

/// Objects for which a subscriber keeps room while nothing waits.
const KEPT_ROOM: usize = 64;

/// Changes by object, in the order of the first one of each.
struct Waiting<K> {
    order: VecDeque<Key>,
    by_key: HashMap<Key, VecDeque<Change<K>>>,
}

pub(crate) struct Subscriber<K> {
    waiting: Mutex<Waiting<K>>,
    news: Notify,
}

impl<K> Subscriber<K> {
    fn lock(&self) -> MutexGuard<'_, Waiting<K>> {
        self.waiting.lock()
    }

    /// The next change. Cancel safe.
    pub(crate) async fn next(&self) -> Change<K> {
        loop {
            if let Some(change) = self.take() {
                return change;
            }
            self.news.notified().await;
        }
    }

    fn take(&self) -> Option<Change<K>> {
        let mut waiting = self.lock();
        let key = waiting.order.pop_front()?;
        let changes = waiting.by_key.get_mut(&key)?;
        let change = changes.pop_front();
        if changes.is_empty() {
            waiting.by_key.remove(&key);
        } else {
            waiting.order.push_front(key);
        }
        // A burst is over: what it took is given back, as there is a subscriber for each kind in each controller.
        if waiting.order.is_empty() && waiting.by_key.capacity() > KEPT_ROOM {
            *waiting = Waiting { order: VecDeque::new(), by_key: HashMap::new() };
        }
        change
    }

    /// Forgets what waits.
    pub(crate) fn drain(&self) {
        let mut waiting = self.lock();
        waiting.order = VecDeque::new();
        waiting.by_key = HashMap::new();
    }
}

/// Subscribers, which are told of changes.
pub(crate) struct Subscribers<K>(Mutex<Vec<Weak<Subscriber<K>>>>);

impl<K> Default for Subscribers<K> {
    fn default() -> Subscribers<K> {
        Subscribers(Mutex::default())
    }
}

impl<K> Subscribers<K> {
    pub(crate) fn subscribe(&self) -> Arc<Subscriber<K>> {
        let waiting = Waiting { order: VecDeque::new(), by_key: HashMap::new() };
        let subscriber = Arc::new(Subscriber { waiting: Mutex::new(waiting), news: Notify::new() });
        self.0.lock().push(Arc::downgrade(&subscriber));
        subscriber
    }
}

impl<K: Resource> Subscribers<K> {
    /// Another object under the same name is the end of one and the begin of another.
    pub(crate) fn tell(&self, key: &Key, change: &Change<K>) {
        let each: Vec<Change<K>> = match change {
            Change::Modified { old, new } if old.meta().uid != new.meta().uid => {
                vec![Change::Deleted(Arc::clone(old)), Change::Added(Arc::clone(new))]
            }
            change => vec![copy(change)],
        };
        self.0.lock().retain(|subscriber| {
            let Some(subscriber) = subscriber.upgrade() else { return false };
            let mut waiting = subscriber.lock();
            each.iter().for_each(|change| waiting.push(key, copy(change)));
            drop(waiting);
            subscriber.news.notify_one();
            true
        });
    }
}

fn copy<K>(change: &Change<K>) -> Change<K> {
    match change {
        Change::Added(object) => Change::Added(Arc::clone(object)),
        Change::Modified { old, new } => Change::Modified { old: Arc::clone(old), new: Arc::clone(new) },
        Change::Deleted(object) => Change::Deleted(Arc::clone(object)),
    }
}

impl<K: Resource> Waiting<K> {
    fn push(&mut self, key: &Key, change: Change<K>) {
        let changes = self.by_key.entry(key.clone()).or_default();
        if changes.is_empty() {
            self.order.push_back(key.clone());
        }
        let full = changes.len() >= CHANGES_OF_ONE_MAX;
        match changes.pop_back() {
            Some(last) => match merged(last, change, full) {
                (first, None) => changes.push_back(first),
                (first, Some(second)) => changes.extend([first, second]),
            },
            None => changes.push_back(change),
        }
    }
}

/// One change that tells what two do, or both: an owner or a label that the object had in between must be heard of, and
/// so must be each object that ended.
fn merged<K: Resource>(first: Change<K>, second: Change<K>, must: bool) -> (Change<K>, Option<Change<K>>) {
    let same = |a: &K, b: &K| {
        must || (&a.meta().owner_references, &a.meta().labels) == (&b.meta().owner_references, &b.meta().labels)
    };
    match (first, second) {
        (Change::Added(mid), Change::Modified { new, .. }) if same(&mid, &new) => (Change::Added(new), None),
        (Change::Added(mid), Change::Deleted(last)) if same(&mid, &last) => (Change::Deleted(last), None),
        (Change::Modified { old, new: mid }, Change::Modified { new, .. }) if same(&mid, &old) || same(&mid, &new) => {
            (Change::Modified { old, new }, None)
        }
        (Change::Modified { old, new: mid }, Change::Deleted(last)) if same(&old, &last) && same(&mid, &last) => {
            (Change::Deleted(last), None)
        }
        (first, second) => (first, Some(second)),
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;

    use super::*;

    fn map(name: &str, uid: &str, label: &str) -> Arc<ConfigMap> {
        let meta = serde_json::json!({"name": name, "uid": uid, "labels": {"l": label}});
        Arc::new(serde_json::from_value(serde_json::json!({"metadata": meta})).unwrap())
    }

    fn waiting(changes: &Subscriber<ConfigMap>) -> Vec<String> {
        let text = |object: &ConfigMap| {
            let meta = &object.metadata;
            format!(
                "{}/{}/{}",
                meta.name.as_deref().unwrap(),
                meta.uid.as_deref().unwrap(),
                meta.labels.as_ref().unwrap()["l"]
            )
        };
        std::iter::from_fn(|| changes.take())
            .map(|change| match change {
                Change::Added(object) => format!("+{}", text(&object)),
                Change::Modified { old, new } => format!("{}>{}", text(&old), text(&new)),
                Change::Deleted(object) => format!("-{}", text(&object)),
            })
            .collect()
    }

    fn tell(subscribers: &Subscribers<ConfigMap>, change: Change<ConfigMap>) {
        let name = match &change {
            Change::Added(object) | Change::Deleted(object) | Change::Modified { new: object, .. } => {
                object.metadata.name.clone()
            }
        };
        subscribers.tell(&Key::new("", &name.unwrap()), &change);
    }

    // Semantics H9: a reader that missed 128 changes was told to look at what exists, and never heard of what did not
    // any more.
    #[test]
    fn no_deletion_is_lost_however_many_changes_wait() {
        let subscribers = Subscribers::default();
        let changes = subscribers.subscribe();
        for n in 0..5000 {
            tell(&subscribers, Change::Added(map(&format!("m{n}"), "1", "x")));
        }
        for n in 0..5000 {
            tell(&subscribers, Change::Deleted(map(&format!("m{n}"), "1", "x")));
        }
        let told = waiting(&changes);
        assert_eq!((told.len(), told.iter().filter(|change| change.starts_with('-')).count()), (5000, 5000));
    }

    #[test]
    fn what_happens_to_one_object_meanwhile_becomes_one_change() {
        let subscribers = Subscribers::default();
        let changes = subscribers.subscribe();
        for _ in 0..1000 {
            tell(&subscribers, Change::Modified { old: map("a", "1", "x"), new: map("a", "1", "x") });
        }
        tell(&subscribers, Change::Added(map("b", "1", "x")));
        assert_eq!(waiting(&changes), ["a/1/x>a/1/x", "+b/1/x"]);
        tell(&subscribers, Change::Added(map("c", "1", "x")));
        changes.drain();
        assert!(waiting(&changes).is_empty());
    }

    #[test]
    fn an_object_made_anew_under_its_name_has_ended_first() {
        let subscribers = Subscribers::default();
        let changes = subscribers.subscribe();
        tell(&subscribers, Change::Deleted(map("a", "1", "x")));
        tell(&subscribers, Change::Added(map("a", "2", "x")));
        tell(&subscribers, Change::Modified { old: map("a", "2", "x"), new: map("a", "3", "x") });
        assert_eq!(waiting(&changes), ["-a/1/x", "-a/2/x", "+a/3/x"]);
    }

    #[test]
    fn a_label_that_came_and_went_is_heard_of() {
        let subscribers = Subscribers::default();
        let changes = subscribers.subscribe();
        tell(&subscribers, Change::Modified { old: map("a", "1", "x"), new: map("a", "1", "y") });
        tell(&subscribers, Change::Modified { old: map("a", "1", "y"), new: map("a", "1", "z") });
        tell(&subscribers, Change::Deleted(map("a", "1", "z")));
        assert_eq!(waiting(&changes), ["a/1/x>a/1/y", "a/1/y>a/1/z", "-a/1/z"]);
    }

    #[test]
    fn each_end_of_a_name_is_told_before_the_next_begin() {
        let subscribers = Subscribers::default();
        let changes = subscribers.subscribe();
        for n in 0..1000 {
            tell(&subscribers, Change::Added(map("a", &n.to_string(), "x")));
            tell(
                &subscribers,
                Change::Modified { old: map("a", &n.to_string(), "x"), new: map("a", &n.to_string(), "y") },
            );
            tell(&subscribers, Change::Deleted(map("a", &n.to_string(), "y")));
        }
        tell(&subscribers, Change::Added(map("a", "last", "x")));
        let told = waiting(&changes);
        let ends: Vec<&String> = told.iter().filter(|change| change.starts_with('-')).collect();
        let expected: Vec<String> = (0..1000).map(|n| format!("-a/{n}/y")).collect();
        assert_eq!(ends, expected.iter().collect::<Vec<_>>());
        assert_eq!(told.last().unwrap(), "+a/last/x");
        assert!(told.len() <= 1000 + CHANGES_OF_ONE_MAX, "{}", told.len());
    }

    #[test]
    fn changes_of_one_object_that_nobody_reads_are_bounded() {
        let subscribers = Subscribers::default();
        let changes = subscribers.subscribe();
        for n in 0..1000 {
            tell(
                &subscribers,
                Change::Modified { old: map("a", "1", &n.to_string()), new: map("a", "1", &(n + 1).to_string()) },
            );
        }
        let told = waiting(&changes);
        assert!(told.len() <= CHANGES_OF_ONE_MAX && told.last().unwrap().ends_with("a/1/1000"), "{told:?}");
        drop(changes);
        tell(&subscribers, Change::Added(map("a", "1", "x")));
        assert!(subscribers.0.lock().is_empty());
    }
}
