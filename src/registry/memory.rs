//! Objects in memory that can be looked up: what tests of authorizers and admission plugins judge by.

use std::collections::BTreeMap;
use std::sync::Arc;

use model::meta;
use model::reference::{GroupResource, NamespacedName};
use serde_json::Value;
use tokio::sync::watch;

use crate::cache::entry::{Entry, Form};
use crate::keys;
use crate::lookup::{Lookup, Mark, News, Since};
use crate::status::Status;

/// A [`Lookup`] over a map.
pub struct Objects {
    objects: BTreeMap<(String, String, String, String), Arc<Value>>,
    change: watch::Sender<u64>,
}

impl Default for Objects {
    fn default() -> Objects {
        Objects { objects: BTreeMap::new(), change: watch::channel(1).0 }
    }
}

impl Objects {
    pub fn of(list: impl IntoIterator<Item = (&'static str, &'static str, Value)>) -> Objects {
        let mut objects = Objects::default();
        for (group, resource, object) in list {
            objects.put(GroupResource { group, resource }, object);
        }
        objects
    }

    pub fn put(&mut self, of: GroupResource<'_>, object: Value) {
        let key = (
            of.group.to_owned(),
            of.resource.to_owned(),
            meta::namespace(&object).to_owned(),
            meta::name(&object).to_owned(),
        );
        self.objects.insert(key, Arc::new(object));
        self.change.send_modify(|n| *n += 1);
    }
}

#[async_trait::async_trait]
impl Lookup for Objects {
    async fn load(&self, _of: GroupResource<'_>) {}

    fn get(&self, of: GroupResource<'_>, named: NamespacedName<'_>) -> Option<Arc<Value>> {
        let key = [of.group, of.resource, named.namespace, named.name].map(str::to_owned);
        self.objects.get(&key.into()).cloned()
    }

    fn list(&self, of: GroupResource<'_>, namespace: Option<&str>) -> Vec<Arc<Value>> {
        let hit = |key: &(String, String, String, String)| {
            key.0 == of.group && key.1 == of.resource && namespace.is_none_or(|ns| ns == key.2)
        };
        self.objects.iter().filter(|(key, _)| hit(key)).map(|(_, object)| object.clone()).collect()
    }

    fn since(
        &self,
        of: GroupResource<'_>,
        namespace: &str,
        _mark: Option<&Mark>,
        names: &[&str],
    ) -> Result<Since, Status> {
        let entry = |object: Arc<Value>| {
            let local = keys::local(NamespacedName { namespace: meta::namespace(&object), name: meta::name(&object) });
            let entry = Entry::build(&local, object.to_string().as_bytes(), 1, &Form::default());
            entry.map(Arc::new).map_err(Status::internal)
        };
        let all = self.list(of, Some(namespace)).into_iter().map(entry).collect::<Result<_, _>>()?;
        let one = |name: &&str| self.get(of, NamespacedName { namespace, name }).map(entry).transpose();
        let named = names.iter().map(one).collect::<Result<_, _>>()?;
        Ok(Since { mark: None, news: News::All(all), named })
    }

    fn count(&self, of: GroupResource<'_>) -> usize {
        self.list(of, None).len()
    }

    fn changed(&self, _of: GroupResource<'_>) -> watch::Receiver<u64> {
        self.change.subscribe()
    }
}

/// Built-in versions alone.
#[async_trait::async_trait]
impl crate::lookup::InVersion for Objects {
    async fn in_version(
        &self,
        object: Value,
        from: &schema::table::Resource,
        to: &schema::table::Resource,
    ) -> Result<Value, Status> {
        crate::forms::convert(object, from, to)
    }
}
