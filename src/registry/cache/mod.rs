//! The watch cache: every resource that somebody reads, kept in memory by one watch of the store.
//!
//! A resource is read from the store when it is first asked for. After that the store is not read again: one stored
//! event becomes bytes once, and all lists and watches share them.

pub mod change;
pub mod entry;
pub mod filter;
pub mod kind;
pub mod lookup;
pub mod stream;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use base::chain::Chain;
use base::limits;
use base::sync::RwLock;
use base::task::Group;
use model::reference::GroupResource;
use store::{Event, RangeReply, RangeRequest, Revision, Storage, WatchRequest};
use tokio::sync::watch;
use tracing::warn;

use crate::catalogs::Catalogs;
use crate::keys;

pub use kind::Kind;

/// How long a read waits for a revision that the client has seen elsewhere, as upstream's `blockTimeout`.
const WAIT_FOR_REVISION: Duration = Duration::from_secs(3);
/// After the store's watch failed, before it is opened again.
const REOPEN_PAUSE: Duration = Duration::from_millis(200);

/// Group and plural name.
type ResourceKey = (String, String);

fn key_of(of: GroupResource<'_>) -> ResourceKey {
    (of.group.to_owned(), of.resource.to_owned())
}

/// All resources' caches.
pub struct Cache {
    storage: Arc<dyn Storage>,
    kinds: RwLock<HashMap<ResourceKey, Arc<Kind>>>,
    /// Everything up to this revision has been applied.
    seen: watch::Sender<u64>,
    catalogs: Arc<Catalogs>,
}

impl Cache {
    /// A cold cache and the task that feeds it.
    pub fn start(storage: Arc<dyn Storage>, catalogs: Arc<Catalogs>, group: &Group) -> Arc<Cache> {
        let seen = watch::Sender::new(0);
        let cache = Arc::new(Cache { storage, kinds: RwLock::default(), seen, catalogs });
        let (feeder, tasks) = (Arc::clone(&cache), group.clone());
        group.spawn("watch-cache", async move { feeder.feed(&tasks).await });
        cache
    }

    /// The store behind it.
    pub fn storage(&self) -> &Arc<dyn Storage> {
        &self.storage
    }

    async fn feed(self: &Arc<Self>, tasks: &Group) {
        let mut lost: BTreeSet<ResourceKey> = BTreeSet::new();
        loop {
            let current = self.storage.current_revision();
            // All keys, not only ours: a revision that touches other keys must move `seen` too.
            let request = WatchRequest {
                key: bytes::Bytes::from_static(&[0]),
                range_end: bytes::Bytes::from_static(&[0]),
                start: Revision(current.0 + 1),
                prev_kv: false,
            };
            match self.storage.watch(request).await {
                Ok(mut stream) => {
                    self.seen.send_replace(current.0);
                    if !lost.is_empty() {
                        // Nobody else may ask for them soon, and admission goes by what they knew last until they are
                        // filled.
                        let (cache, kinds) = (Arc::clone(self), lost.clone());
                        tasks.spawn_short("watch-cache-filling", async move { cache.fill_again(&kinds).await });
                    }
                    loop {
                        match stream.next().await {
                            Ok(batch) => {
                                self.apply(&batch.events);
                                self.seen.send_replace(batch.revision.0);
                            }
                            Err(err) => {
                                warn!(err = %Chain(&err), "watch of the store ended, caches start anew");
                                break;
                            }
                        }
                    }
                }
                Err(err) => warn!(err = %Chain(&err), "cannot watch the store"),
            }
            for (key, kind) in self.kinds.read().iter() {
                if kind.is_ready() {
                    lost.insert(key.clone());
                }
                kind.reset();
            }
            tokio::time::sleep(REOPEN_PAUSE).await;
        }
    }

    /// Fills again what was filled before the watch of the store ended; tries until it is.
    async fn fill_again(&self, kinds: &BTreeSet<ResourceKey>) {
        for (group, plural) in kinds {
            let of = GroupResource { group, resource: plural };
            while self.known(of).is_some() {
                match self.ready(of).await {
                    Ok(_) => break,
                    Err(err) => warn!(group, plural, err = %Chain(&err), "cannot fill the cache again"),
                }
                tokio::time::sleep(REOPEN_PAUSE).await;
            }
        }
    }

    fn apply(&self, events: &[Event]) {
        let mut by_kind: Vec<(Arc<Kind>, Vec<&Event>)> = Vec::new();
        for event in events {
            let Ok(key) = std::str::from_utf8(&event.kv.key) else { continue };
            let Some((group, resource, _)) = keys::parse(key) else { continue };
            let Some(kind) = self.known(GroupResource { group, resource }) else { continue };
            match by_kind.iter_mut().find(|(k, _)| Arc::ptr_eq(k, &kind)) {
                Some((_, list)) => list.push(event),
                None => by_kind.push((kind, vec![event])),
            }
        }
        for (kind, events) in by_kind {
            kind.apply(&events);
        }
    }

    fn known(&self, of: GroupResource<'_>) -> Option<Arc<Kind>> {
        self.kinds.read().get(&key_of(of)).cloned()
    }

    /// The cache of a resource, cold or not.
    pub fn kind(&self, of: GroupResource<'_>) -> Arc<Kind> {
        if let Some(kind) = self.known(of) {
            return kind;
        }
        let mut kinds = self.kinds.write();
        let new = || Arc::new(Kind::new(keys::prefix(of), self.catalogs.form(of)));
        Arc::clone(kinds.entry(key_of(of)).or_insert_with(new))
    }

    /// Forgets a resource whose definition has changed: who watches it ends and lists again, in the new form.
    pub fn forget(&self, of: GroupResource<'_>) {
        let mut kinds = self.kinds.write();
        if let Some(kind) = kinds.remove(&key_of(of)) {
            kind.reset();
        }
    }

    /// The cache of a resource, filled.
    ///
    /// Errors: the store cannot be read. Cancel safety: a filling that is dropped starts anew for the next caller.
    pub async fn ready(&self, of: GroupResource<'_>) -> Result<Arc<Kind>, store::error::Error> {
        let kind = self.kind(of);
        if kind.is_ready() {
            return Ok(kind);
        }
        let turn = kind.filling.lock().await;
        while !kind.is_ready() {
            // The feeder must be ahead of the reading, or events between the two would be missed.
            self.wait_for(1).await;
            kind.begin_filling();
            let (read, at) = self.read_all(&kind.prefix, None).await?;
            kind.finish_filling(read, at);
        }
        drop(turn);
        Ok(kind)
    }

    /// Reads all keys under a prefix, as of a revision or of now, in pages of one moment.
    pub async fn read_all(
        &self,
        prefix: &str,
        at: Option<Revision>,
    ) -> Result<(Vec<store::KeyValue>, u64), store::error::Error> {
        let mut all = Vec::new();
        let mut revision = at;
        let mut key = bytes::Bytes::copy_from_slice(prefix.as_bytes());
        loop {
            let page = self.read_page(prefix, key, revision, limits::CACHE_FILL_PAGE_KEYS).await?;
            let at = *revision.get_or_insert(page.revision);
            all.extend(page.kvs);
            let Some(last) = all.last().filter(|_| page.more) else { return Ok((all, at.0)) };
            key = [&last.key[..], &[0]].concat().into();
        }
    }

    /// Reads at most `limit` keys under a prefix, from `key` on.
    pub async fn read_page(
        &self,
        prefix: &str,
        key: impl Into<bytes::Bytes>,
        revision: Option<Revision>,
        limit: u64,
    ) -> Result<RangeReply, store::error::Error> {
        let range_end = store::prefix_end(prefix.as_bytes());
        let request = RangeRequest { key: key.into(), range_end, limit, revision, ..RangeRequest::default() };
        let watch = base::time::Stopwatch::start();
        let page = self.storage.range(request).await;
        crate::metrics::stored("list", watch.elapsed());
        page
    }

    /// The newest revision up to which every change has been applied.
    pub fn seen(&self) -> u64 {
        *self.seen.borrow()
    }

    /// Waits until everything up to `revision` has been applied; false if that takes too long.
    pub async fn wait_for(&self, revision: u64) -> bool {
        if self.seen() >= revision {
            return true;
        }
        let mut seen = self.seen.subscribe();
        matches!(tokio::time::timeout(WAIT_FOR_REVISION, seen.wait_for(|at| *at >= revision)).await, Ok(Ok(_)))
    }

    /// Waits until everything that had been written before the call, through whichever server, is visible.
    ///
    /// Errors: `TimedOut` if the store finds no leader and majority in time.
    pub async fn wait_for_now(&self) -> Result<(), store::error::Error> {
        let now = self.storage.read_index().await?;
        if self.wait_for(now.0).await { Ok(()) } else { Err(store::error::Error::TimedOut) }
    }

    /// Lets go of the changes up to a revision. Without it a resource that nobody writes any more kept its last
    /// changes, before and after each, for as long as the server lives.
    pub fn forget_until(&self, until: u64) {
        let kinds = self.kinds.read();
        kinds.values().for_each(|kind| kind.forget(until));
    }

    /// How many objects each filled resource holds, by its qualified name.
    pub fn counts(&self) -> Vec<(String, usize)> {
        let kinds = self.kinds.read();
        let mut counts: Vec<(String, usize)> = kinds
            .iter()
            .filter(|(_, kind)| kind.is_ready())
            .map(|((group, resource), kind)| (GroupResource { group, resource }.to_string(), kind.len()))
            .collect();
        counts.sort();
        counts
    }
}

#[cfg(test)]
mod tests;
