//! Shared informers: one watch and one cache per kind and process, many readers. The only list/watch in the tree.

use std::any::{Any, TypeId};
use std::collections::{BTreeMap, HashMap};
use std::fmt::Debug;
use std::sync::Arc;

use base::sync::{Mutex, RwLock};
use base::task::Group;
use kube::api::{ApiResource, DynamicObject};
use kube::core::PartialObjectMeta;
use kube::{Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use tokio::sync::watch;

use crate::changes::{Subscriber, Subscribers};
use crate::index::{GroupOf, Grouping};
use crate::reflector::{self, Sink, Source};
use crate::typed::typed;

/// Namespace (empty for cluster-wide objects) and name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// Namespace, empty if the kind has none.
    pub namespace: String,
    /// Name.
    pub name: String,
}

impl Key {
    /// The key of an object.
    pub fn of<K: Resource>(object: &K) -> Key {
        Key { namespace: object.namespace().unwrap_or_default(), name: object.name_any() }
    }

    /// A key from its parts.
    pub fn new(namespace: &str, name: &str) -> Key {
        Key { namespace: namespace.to_owned(), name: name.to_owned() }
    }
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.namespace.is_empty() { f.write_str(&self.name) } else { write!(f, "{}/{}", self.namespace, self.name) }
    }
}

/// A change of an object, told after the cache shows it.
#[derive(Clone, Debug)]
pub enum Change<K> {
    /// It is new.
    Added(Arc<K>),
    /// It was replaced; it is the same object by its uid.
    Modified {
        /// As it was when this subscriber last heard of it.
        old: Arc<K>,
        /// As it is.
        new: Arc<K>,
    },
    /// It is gone; this was its last state.
    Deleted(Arc<K>),
}

/// The bounds that kinds of the API share, as `kube` asks for them.
pub trait Kind: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static {}
impl<K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static> Kind for K {}

/// The metadata alone of an object of any kind.
pub type Metadata = PartialObjectMeta<DynamicObject>;

/// All informers of one process.
#[derive(Clone)]
pub struct Informers {
    client: kube::Client,
    group: Group,
    running: Arc<Mutex<HashMap<(TypeId, String), Arc<dyn Any + Send + Sync>>>>,
}

impl Informers {
    /// Watches through `client`; the watches live in `group`.
    pub fn new(client: kube::Client, group: &Group) -> Informers {
        Informers { client, group: group.child("informers"), running: Arc::default() }
    }

    /// The informer of all objects of a kind; started at the first call.
    pub fn get<K: Kind>(&self) -> Informer<K> {
        self.selected("")
    }

    /// An informer of the metadata of all objects of any kind, built-in or custom, without labels and annotations. It
    /// is not shared, and watched until `group` ends: for kinds that come and go.
    pub fn metadata_within(&self, resource: &ApiResource, group: &Group) -> Informer<Metadata> {
        let shared = Arc::new(Shared::bare());
        self.follow_metadata(resource, group, Arc::clone(&shared) as Arc<dyn Sink>);
        Informer(shared)
    }

    /// Tells `sink` of the metadata of all objects of any kind until `group` ends: for who keeps what it needs of them
    /// itself.
    pub fn follow_metadata(&self, resource: &ApiResource, group: &Group, sink: Arc<dyn Sink>) {
        group.spawn(
            "watch",
            reflector::follow(self.client.clone(), metadata_source(resource), sink, group.rng().clone()),
        );
    }

    /// The informer of the objects that a field selector picks, e.g. `spec.nodeName=edge-1`.
    pub fn selected<K: Kind>(&self, fields: &str) -> Informer<K> {
        let mut running = self.running.lock();
        let slot = (TypeId::of::<K>(), fields.to_owned());
        if let Some(informer) = running.get(&slot).and_then(|any| Arc::clone(any).downcast::<Shared<K>>().ok()) {
            return Informer(informer);
        }
        let shared = Arc::new(Shared::default());
        running.insert(slot, Arc::clone(&shared) as Arc<dyn Any + Send + Sync>);
        let source = Source {
            kind: K::plural(&()).into_owned(),
            path: K::url_path(&(), None),
            fields: fields.to_owned(),
            metadata: false,
        };
        self.follow(source, &shared);
        Informer(shared)
    }

    /// The metadata of one object, watched by itself until `group` ends. For clients that may read objects by name only
    /// (a node's ConfigMaps and Secrets). Not shared; `path` is the collection's, e.g.
    /// `/api/v1/namespaces/default/secrets`.
    pub fn one(client: &kube::Client, path: &str, name: &str, group: &Group) -> Informer<Metadata> {
        let shared = Arc::new(Shared::default());
        let source = Source {
            kind: path.to_owned(),
            path: path.to_owned(),
            fields: format!("metadata.name={name}"),
            metadata: true,
        };
        group.spawn(
            "watch-one",
            reflector::follow(client.clone(), source, Arc::clone(&shared) as Arc<dyn Sink>, group.rng().clone()),
        );
        Informer(shared)
    }

    fn follow<K: Resource + Clone + DeserializeOwned + Send + Sync + 'static>(
        &self,
        source: Source,
        shared: &Arc<Shared<K>>,
    ) {
        let name = format!("watch-{}{}", if source.metadata { "metadata-" } else { "" }, source.kind);
        self.group.spawn(
            &name,
            reflector::follow(
                self.client.clone(),
                source,
                Arc::clone(shared) as Arc<dyn Sink>,
                self.group.rng().clone(),
            ),
        );
    }
}

fn metadata_source(resource: &ApiResource) -> Source {
    let path = match resource.group.as_str() {
        "" => format!("/api/{}/{}", resource.version, resource.plural),
        group => format!("/apis/{group}/{}/{}", resource.version, resource.plural),
    };
    Source { kind: resource.plural.clone(), path, fields: String::new(), metadata: true }
}

/// One kind's cache. Clones are the same cache.
pub struct Informer<K>(Arc<Shared<K>>);

impl<K> Clone for Informer<K> {
    fn clone(&self) -> Informer<K> {
        Informer(Arc::clone(&self.0))
    }
}

/// The objects, and the groupings that somebody asked for.
struct Objects<K> {
    by_key: BTreeMap<Key, Arc<K>>,
    groupings: Vec<Grouping<K>>,
}

struct Shared<K> {
    objects: RwLock<Objects<K>>,
    /// A list that is not whole yet.
    fresh: Mutex<Option<BTreeMap<Key, Arc<K>>>>,
    synced: watch::Sender<bool>,
    changes: Subscribers<K>,
    /// Labels and annotations are not kept: each is a map, and maps are most of what metadata takes in memory.
    bare: bool,
}

impl<K: Clone> Default for Shared<K> {
    fn default() -> Shared<K> {
        Shared {
            objects: RwLock::new(Objects { by_key: BTreeMap::new(), groupings: Vec::new() }),
            fresh: Mutex::default(),
            synced: watch::Sender::new(false),
            changes: Subscribers::default(),
            bare: false,
        }
    }
}

impl<K: Clone> Shared<K> {
    fn bare() -> Shared<K> {
        Shared { bare: true, ..Shared::default() }
    }
}

impl<K: Clone> Informer<K> {
    /// Waits until the first list is in the cache.
    pub async fn synced(&self) {
        // The sender lives in the cache that we hold.
        let mut synced = self.0.synced.subscribe();
        let _held = synced.wait_for(|synced| *synced).await;
    }

    /// Whether the first list is in the cache.
    pub fn is_synced(&self) -> bool {
        *self.0.synced.borrow()
    }

    /// One object.
    pub fn get(&self, namespace: &str, name: &str) -> Option<Arc<K>> {
        self.read(|objects| objects.get(&Key::new(namespace, name)).cloned())
    }

    /// All objects, by namespace and name.
    pub fn list(&self) -> Vec<Arc<K>> {
        self.read(|objects| objects.values().cloned().collect())
    }

    /// The objects of one namespace, by name.
    pub fn list_in(&self, namespace: &str) -> Vec<Arc<K>> {
        self.read(|objects| {
            let from = objects.range(Key::new(namespace, "")..);
            from.take_while(|(key, _)| key.namespace == namespace).map(|(_, object)| Arc::clone(object)).collect()
        })
    }

    /// How many objects there are.
    pub fn len(&self) -> usize {
        self.read(BTreeMap::len)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.read(BTreeMap::is_empty)
    }

    /// Changes from now on. Subscribe first and list then: a change in between is seen twice, never missed.
    pub fn changes(&self) -> Changes<K> {
        Changes(self.0.changes.subscribe())
    }

    fn read<T>(&self, look: impl FnOnce(&BTreeMap<Key, Arc<K>>) -> T) -> T {
        look(&self.0.objects.read().by_key)
    }
}

impl<K: Resource> Informer<K> {
    /// The same objects in groups. Who asks with the same function shares them.
    pub fn group_by(&self, of: GroupOf<K>) -> Groups<K> {
        let mut objects = self.0.objects.write();
        let at = objects.groupings.iter().position(|grouping| grouping.is(of)).unwrap_or_else(|| {
            let mut grouping = Grouping::new(of);
            objects.by_key.values().for_each(|object| grouping.insert(object));
            objects.groupings.push(grouping);
            objects.groupings.len() - 1
        });
        Groups { shared: Arc::clone(&self.0), at }
    }
}

/// The objects of an informer in groups.
pub struct Groups<K> {
    shared: Arc<Shared<K>>,
    at: usize,
}

impl<K: Resource> Groups<K> {
    /// The objects of one group, by namespace and name.
    pub fn get(&self, group: &Key) -> Vec<Arc<K>> {
        self.shared.objects.read().groupings[self.at].members(group)
    }
}

/// A subscription to changes. No deletion is lost, however slowly it is read, and each comes before the next object of
/// its name.
pub struct Changes<K>(Arc<Subscriber<K>>);

impl<K> Changes<K> {
    /// The next change. Never ends while the process runs. Cancel safe.
    pub async fn next(&mut self) -> Change<K> {
        self.0.next().await
    }

    /// Skips what waits, for a reader that looks at the whole cache next.
    pub fn drain(&mut self) {
        self.0.drain();
    }
}

impl<K: Resource + Clone + DeserializeOwned + Send + Sync + 'static> Sink for Shared<K> {
    fn begin(&self) {
        *self.fresh.lock() = Some(BTreeMap::new());
    }

    fn applied(&self, json: &str) -> Result<Option<String>, serde_json::Error> {
        let object: K = slim(read(json)?, self.bare);
        let version = object.resource_version();
        let mut fresh = self.fresh.lock();
        match &mut *fresh {
            Some(fresh) => drop(fresh.insert(Key::of(&object), Arc::new(object))),
            None => self.apply(object),
        }
        Ok(version)
    }

    fn deleted(&self, json: &str) -> Result<Option<String>, serde_json::Error> {
        let object: K = slim(read(json)?, self.bare);
        let version = object.resource_version();
        let mut fresh = self.fresh.lock();
        match &mut *fresh {
            Some(fresh) => drop(fresh.remove(&Key::of(&object))),
            None => self.delete(object),
        }
        Ok(version)
    }

    fn listed(&self) {
        let fresh = self.fresh.lock().take();
        self.replace(fresh.unwrap_or_default());
        self.synced.send_replace(true);
    }
}

/// Reads an object; a condition in its status that lacks what Go would read as zero values is no reason to lose the
/// whole of it.
fn read<K: DeserializeOwned>(json: &str) -> Result<K, serde_json::Error> {
    serde_json::from_str(json).or_else(|why| {
        let mut object: serde_json::Value = serde_json::from_str(json)?;
        let Some(conditions) = object.pointer_mut("/status/conditions").and_then(|c| c.as_array_mut()) else {
            return Err(why);
        };
        for condition in conditions.iter_mut().filter_map(|c| c.as_object_mut()) {
            for (field, zero) in [("lastTransitionTime", "1970-01-01T00:00:00Z"), ("message", ""), ("reason", "")] {
                if condition.get(field).is_none_or(serde_json::Value::is_null) {
                    condition.insert(field.to_owned(), zero.into());
                }
            }
        }
        typed(&object)
    })
}

/// Nobody reads managedFields from a cache, and they are half of many objects.
fn slim<K: Resource>(mut object: K, bare: bool) -> K {
    let meta = object.meta_mut();
    meta.managed_fields = None;
    if bare {
        (meta.labels, meta.annotations) = (None, None);
    }
    object
}

impl<K: Resource> Objects<K> {
    fn insert(&mut self, key: Key, object: &Arc<K>) -> Option<Arc<K>> {
        let old = self.by_key.insert(key, Arc::clone(object));
        for grouping in &mut self.groupings {
            if let Some(old) = &old {
                grouping.remove(old);
            }
            grouping.insert(object);
        }
        old
    }

    fn remove(&mut self, key: &Key) -> Option<Arc<K>> {
        let old = self.by_key.remove(key)?;
        self.groupings.iter_mut().for_each(|grouping| grouping.remove(&old));
        Some(old)
    }

    /// Gives what was there.
    fn replace(&mut self, fresh: BTreeMap<Key, Arc<K>>) -> BTreeMap<Key, Arc<K>> {
        for grouping in &mut self.groupings {
            grouping.clear();
            fresh.values().for_each(|object| grouping.insert(object));
        }
        std::mem::replace(&mut self.by_key, fresh)
    }
}

impl<K: Resource + Clone> Shared<K> {
    fn apply(&self, object: K) {
        let (key, new) = (Key::of(&object), Arc::new(object));
        let old = self.objects.write().insert(key.clone(), &new);
        self.changes.tell(
            &key,
            &match old {
                Some(old) if old.resource_version() == new.resource_version() => return,
                Some(old) => Change::Modified { old, new },
                None => Change::Added(new),
            },
        );
    }

    fn delete(&self, object: K) {
        let key = Key::of(&object);
        if self.objects.write().remove(&key).is_some() {
            self.changes.tell(&key, &Change::Deleted(Arc::new(object)));
        }
    }

    /// A new list: what differs from the cache becomes changes.
    fn replace(&self, fresh: BTreeMap<Key, Arc<K>>) {
        let old = self.objects.write().replace(fresh.clone());
        for (key, gone) in &old {
            if !fresh.contains_key(key) {
                self.changes.tell(key, &Change::Deleted(Arc::clone(gone)));
            }
        }
        for (key, new) in fresh {
            match old.get(&key) {
                Some(old) if old.resource_version() == new.resource_version() => {}
                Some(old) => self.changes.tell(&key, &Change::Modified { old: Arc::clone(old), new }),
                None => self.changes.tell(&key, &Change::Added(new)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::ConfigMap;

    #[test]
    fn a_condition_without_its_time_does_not_hide_a_service() {
        let json =
            r#"{"metadata":{"name":"s"},"status":{"conditions":[{"type":"Ready","status":"True","message":"m"}]}}"#;
        let service: k8s_openapi::api::core::v1::Service = read(json).unwrap();
        assert_eq!(service.status.unwrap().conditions.unwrap()[0].message, "m");
        assert!(read::<ConfigMap>(r#"{"metadata":{"name":1}}"#).is_err());
    }

    fn map(name: &str, rv: &str) -> ConfigMap {
        let mut map = ConfigMap::default();
        map.metadata.name = Some(name.to_owned());
        map.metadata.namespace = Some("default".to_owned());
        map.metadata.resource_version = Some(rv.to_owned());
        map
    }

    #[tokio::test]
    async fn a_new_list_becomes_the_changes_that_were_missed() {
        let informer = Informer(Arc::new(Shared::<ConfigMap>::default()));
        for name in ["gone", "same", "newer"] {
            informer.0.apply(map(name, "1"));
        }
        let mut changes = informer.changes();
        let fresh = [map("same", "1"), map("newer", "2"), map("new", "3")];
        informer.0.replace(fresh.into_iter().map(|object| (Key::of(&object), Arc::new(object))).collect());
        let mut seen = Vec::new();
        for _ in 0..3 {
            seen.push(match changes.next().await {
                Change::Added(object) => format!("added {}", object.name_any()),
                Change::Modified { new, .. } => format!("modified {}", new.name_any()),
                Change::Deleted(object) => format!("deleted {}", object.name_any()),
            });
        }
        assert_eq!(seen, ["deleted gone", "added new", "modified newer"]);
        assert_eq!(informer.list_in("default").len(), 3);
    }

    #[test]
    fn groups_follow_what_objects_say_of_themselves() {
        let labelled = |name: &str, rv: &str, group: Option<&str>| {
            let mut map = map(name, rv);
            map.metadata.labels = group.map(|group| [("group".to_owned(), group.to_owned())].into());
            map
        };
        let of = |map: &ConfigMap| Some(Key::new("", map.metadata.labels.as_ref()?.get("group")?));
        let informer = Informer(Arc::new(Shared::<ConfigMap>::default()));
        informer.0.apply(labelled("early", "1", Some("a")));
        let groups = informer.group_by(of);
        let names = |group: &str| groups.get(&Key::new("", group)).iter().map(|map| map.name_any()).collect::<Vec<_>>();
        informer.0.apply(labelled("b", "2", Some("a")));
        informer.0.apply(labelled("none", "3", None));
        assert_eq!(names("a"), ["b", "early"]);
        informer.0.apply(labelled("b", "4", Some("c")));
        assert_eq!((names("a"), names("c")), (vec!["early".to_owned()], vec!["b".to_owned()]));
        informer.0.delete(map("b", "5"));
        assert!(names("c").is_empty());
        informer.0.apply(labelled("none", "6", Some("a")));
        assert_eq!(informer.group_by(of).get(&Key::new("", "a")).len(), 2);
        let fresh = [labelled("new", "7", Some("a")), labelled("none", "6", Some("a"))];
        informer.0.replace(fresh.into_iter().map(|object| (Key::of(&object), Arc::new(object))).collect());
        assert_eq!(names("a"), ["new", "none"]);
    }
}
