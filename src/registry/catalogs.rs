//! The resources that are served now: the built-in ones and those of established definitions.
//!
//! A request works on the catalog as it was when it came in. A changed definition makes a new catalog; what did not
//! change is taken over as it is, so schemas and rules compile once.

use std::sync::Arc;

use base::sync::RwLock;
use model::reference::GroupResource;
use schema::catalog::Catalog;
use schema::table::{Name, Resource};
use serde_json::Value;
use tokio::sync::watch;

use crate::cache::entry::{Form, Normal};

/// The present catalog.
pub struct Catalogs {
    now: RwLock<Arc<Catalog>>,
    changed: watch::Sender<u64>,
}

impl Default for Catalogs {
    fn default() -> Catalogs {
        Catalogs { now: RwLock::new(Arc::new(Catalog::with(Vec::new()))), changed: watch::Sender::new(0) }
    }
}

impl Catalogs {
    /// Every resource that is served now.
    pub fn now(&self) -> Arc<Catalog> {
        Arc::clone(&self.now.read())
    }

    /// Moves after each change.
    pub fn changed(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// Serves these definitions' resources from now on. Returns the group and plural of each whose rows are new, other
    /// or gone.
    pub fn serve(&self, definitions: &[Arc<Value>]) -> Vec<(String, String)> {
        let before = self.now();
        let custom = |catalog: &Catalog| catalog.resources().iter().filter(|r| r.custom).cloned().collect::<Vec<_>>();
        let old = custom(&before);
        let mut rows: Vec<Arc<Resource>> = Vec::new();
        for definition in definitions {
            let kept = old.iter().filter(|r| is_same(r, definition)).cloned();
            let kept: Vec<_> = kept.collect();
            if kept.is_empty() {
                rows.extend(schema::custom::resources(definition).into_iter().map(Arc::new));
            } else {
                rows.extend(kept);
            }
        }
        let differs = |a: &[Arc<Resource>], b: &[Arc<Resource>]| {
            let missing = a.iter().filter(|r| !b.iter().any(|o| Arc::ptr_eq(r, o)));
            missing.map(|r| (r.group.to_string(), r.plural.to_string())).collect::<Vec<_>>()
        };
        let mut moved = [differs(&old, &rows), differs(&rows, &old)].concat();
        moved.sort();
        moved.dedup();
        if !moved.is_empty() {
            *self.now.write() = Arc::new(Catalog::with(rows));
            self.changed.send_modify(|n| *n += 1);
        }
        moved
    }

    /// How the stored objects of a resource are read.
    pub fn form(&self, of: GroupResource<'_>) -> Form {
        let catalog = self.now();
        let rows: Vec<&Arc<Resource>> = catalog.resources().iter().filter(|r| r.group_resource() == of).collect();
        let Some(stored) = rows.iter().find(|r| r.storage_version == r.version).or(rows.first()) else {
            return Form::default();
        };
        if !stored.custom {
            return Form { selectable: stored.selectable.as_slice().into(), normal: None };
        }
        let mut selectable: Vec<Name> = rows.iter().flat_map(|r| r.selectable.iter().cloned()).collect();
        selectable.sort();
        selectable.dedup();
        let stored = Arc::clone(stored);
        let normal: Arc<Normal> = Arc::new(move |bytes: &[u8]| normal(&stored, bytes));
        Form { selectable: selectable.into(), normal: Some(normal) }
    }
}

/// Whether a row was made from this very definition.
fn is_same(row: &Resource, definition: &Value) -> bool {
    let Some(made_from) = &row.definition else { return false };
    made_from.uid == model::meta::uid(definition)
        && made_from.stamp == schema::custom::stamp(definition)
        && made_from.terminating == model::meta::deletion_timestamp(definition).is_some()
}

/// Objects that were written under an older definition, in today's form; `None` if they are in it.
fn normal(stored: &Resource, bytes: &[u8]) -> Option<Vec<u8>> {
    let mut object: Value = serde_json::from_slice(bytes).ok()?;
    let definition = stored.definition.as_ref()?;
    let version = stored.api_version();
    // Another version's object waits for the webhook; only without one the versions differ in name alone.
    if model::meta::api_version(&object) != version && definition.webhook.is_some() {
        return None;
    }
    let before = object.clone();
    object["apiVersion"] = version.into();
    definition.normalize(&mut object);
    if object == before { None } else { serde_json::to_vec(&object).ok() }
}
