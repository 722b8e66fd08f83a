//! Stored objects: reading, putting and removing one, each write in one transaction that nobody was faster than.
//!
//! Nothing here asks whether somebody may, or whether an object is right: that is what the verbs do first.

use std::sync::Arc;

use async_trait::async_trait;
use base::rng::Rng;
use base::time::{Clock, Stopwatch};
use bytes::Bytes;
use model::meta;
use model::reference::NamespacedName;
use schema::table::{GroupVersion, Resource};
use serde_json::Value;
use store::{Compare, Op, RangeRequest, Revision, Txn};

use crate::cache::Cache;
use crate::cache::entry::Entry;
use crate::catalogs::Catalogs;
use crate::conversion::{self, Converter};
use crate::forms;
use crate::keys::{self, unchanged_since};
use crate::lookup::InVersion;
use crate::status::Status;

#[async_trait]
impl InVersion for Objects {
    async fn in_version(&self, object: Value, from: &Resource, to: &Resource) -> Result<Value, Status> {
        conversion::one(&self.converter, object, from, to).await
    }
}

/// The objects of a cluster, as one server reads and writes them.
pub struct Objects {
    pub cache: Arc<Cache>,
    /// Every resource that is served, built in and custom.
    pub catalogs: Arc<Catalogs>,
    /// Brings custom objects into another version.
    pub converter: Arc<Converter>,
    pub clock: Clock,
    pub rng: Rng,
}

impl Objects {
    /// The row by which an object of this `apiVersion` and `kind` is stored.
    ///
    /// Errors: 404, there is no such kind.
    pub fn row_of(&self, object: &Value) -> Result<Arc<Resource>, Status> {
        let catalog = self.catalogs.now();
        let row = catalog.by_kind(GroupVersion::parse(meta::api_version(object)), meta::kind(object));
        row.map(|r| Arc::clone(catalog.storage_of(r))).ok_or_else(Status::no_such_resource)
    }

    /// Reads the newest state of one object: from its cache if somebody watches it already, else from the store alone.
    ///
    /// Errors: the store does not answer in time.
    pub async fn read(&self, stored: &Resource, named: NamespacedName<'_>) -> Result<Option<Arc<Entry>>, Status> {
        let kind = self.cache.kind(stored.group_resource());
        let local = keys::local(named);
        if kind.is_ready() {
            self.cache.wait_for_now().await?;
            if let Some(found) = kind.now(&local) {
                return Ok(found);
            }
        }
        let key = format!("{}{local}", kind.prefix);
        let reply = self.cache.storage().range(RangeRequest { key: key.into(), ..RangeRequest::default() }).await?;
        let Some(kv) = reply.kvs.first() else { return Ok(None) };
        let entry = Entry::build(&local, &kv.value, kv.mod_revision.0, kind.form()).map_err(Status::internal)?;
        Ok(Some(Arc::new(entry)))
    }

    /// Stores the object if its key still is at `rv` (0: is not there). `None`: somebody was faster.
    ///
    /// Errors: the store fails.
    pub async fn put(
        &self,
        stored: &Resource,
        named: NamespacedName<'_>,
        object: &mut Value,
        rv: u64,
    ) -> Result<Option<u64>, Status> {
        self.put_within(Txn::default(), stored, named, object, rv).await
    }

    /// The same in a transaction that has conditions and writes of its own; `None` also if one of those does not hold.
    pub async fn put_within(
        &self,
        mut txn: Txn,
        stored: &Resource,
        named: NamespacedName<'_>,
        object: &mut Value,
        rv: u64,
    ) -> Result<Option<u64>, Status> {
        let key = Bytes::from(keys::object(stored.group_resource(), named));
        meta::set_resource_version(object, "");
        let value = Bytes::from(serde_json::to_vec(object).map_err(Status::internal)?);
        txn.compare.insert(0, unchanged_since(&key, rv));
        txn.success.insert(0, Op::Put { key, value, lease: 0, prev_kv: false });
        self.commit(txn).await
    }

    /// Writes a stored value anew, unchanged, if nobody has changed it since it was read.
    ///
    /// Errors: the store fails.
    pub async fn put_as_it_is(&self, kv: store::KeyValue) -> Result<bool, Status> {
        let compare = vec![unchanged_since(&kv.key, kv.mod_revision.0)];
        let put = Op::Put { key: kv.key, value: kv.value, lease: kv.lease, prev_kv: false };
        Ok(self.commit(Txn { compare, success: vec![put], failure: Vec::new() }).await?.is_some())
    }

    /// Deletes the object if its key still is at `rv`. `None`: somebody was faster.
    ///
    /// Errors: the store fails.
    pub async fn remove(&self, stored: &Resource, named: NamespacedName<'_>, rv: u64) -> Result<Option<u64>, Status> {
        let key = Bytes::from(keys::object(stored.group_resource(), named));
        let delete = Op::Delete { key: key.clone(), range_end: Bytes::new(), prev_kv: false };
        self.commit(Txn { compare: vec![unchanged_since(&key, rv)], success: vec![delete], failure: Vec::new() }).await
    }

    async fn commit(&self, txn: Txn) -> Result<Option<u64>, Status> {
        let is_new = txn.compare.iter().any(|c| matches!(c, Compare::ModRevision { revision: Revision(0), .. }));
        let watch = Stopwatch::start();
        let reply = self.cache.storage().txn(txn).await;
        crate::metrics::stored(if is_new { "create" } else { "update" }, watch.elapsed());
        let reply = reply?;
        if !reply.succeeded {
            return Ok(None);
        }
        // The writer and everybody it tells must find the write in the cache.
        self.cache.wait_for(reply.revision.0).await;
        Ok(Some(reply.revision.0))
    }

    /// The metadata that every new object gets.
    pub fn stamp(&self, object: &mut Value) {
        meta::set_uid(object, &self.rng.uuid());
        meta::set_creation_timestamp(object, &base::time::rfc3339_secs(self.clock.now()));
        for field in ["resourceVersion", "selfLink", "deletionTimestamp"] {
            meta::set_text(object, field, "");
        }
        meta::set_deletion_grace_period_seconds(object, None);
    }

    /// Creates an object of this server's own, of a kind that needs no addresses, if there is none of its name; true if
    /// it did. No admission.
    ///
    /// Errors: unknown kind, invalid object, the store.
    pub async fn ensure(&self, object: Value) -> Result<bool, Status> {
        self.ensure_within(Txn::default(), object, |_| Ok(())).await
    }

    /// The same in a transaction that has conditions and writes of its own; `complete` fills in what the kind needs.
    pub async fn ensure_within(
        &self,
        txn: Txn,
        mut object: Value,
        complete: impl FnOnce(&mut Value) -> Result<(), Status> + Send,
    ) -> Result<bool, Status> {
        let resource = self.row_of(&object)?;
        let (namespace, name) = (meta::namespace(&object).to_owned(), meta::name(&object).to_owned());
        if self.read(&resource, NamespacedName { namespace: &namespace, name: &name }).await?.is_some() {
            return Ok(false);
        }
        self.stamp(&mut object);
        schema::defaults::apply(&resource, &mut object);
        complete(&mut object)?;
        forms::verdict(&resource, &name, schema::validate::create(&resource, &object))?;
        Ok(self
            .put_within(txn, &resource, NamespacedName { namespace: &namespace, name: &name }, &mut object, 0)
            .await?
            .is_some())
    }
}
