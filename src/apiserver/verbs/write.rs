//! Changing one object in the store: read, change, judge, compare and put; again if somebody was faster.

use model::meta;
use model::reference::{GroupKind, NamespacedName};
use registry::attributes::Attributes;
use registry::conversion;
use registry::status::{Cause, Status};
use schema::apply::versions::Versions;
use schema::behaviour::Version;
use schema::table::Resource;
use serde_json::Value;

use super::delete::is_held;
use super::judge::{self, Change, Part, attributes_for};
use super::retry::Retry;
use super::{Call, managers, versions};

/// How an update ended.
pub enum Written {
    /// The object is new.
    Created(Value),
    /// It was changed (or was so already).
    Updated(Value),
    /// The update took the last finalizer away: the object is gone.
    Deleted(Value),
}

impl Written {
    /// The object, whatever happened.
    pub fn into_object(self) -> Value {
        match self {
            Written::Created(v) | Written::Updated(v) | Written::Deleted(v) => v,
        }
    }
}

/// Makes the new object (storage version) from the stored one; `None`: there is none and it may be created.
pub type Make<'m> = dyn FnMut(Option<&Value>) -> Result<Value, Status> + Send + 'm;

/// In which version the new object is made.
pub enum Maker<'m> {
    /// From the stored version into it.
    Stored(&'m mut Make<'m>),
    /// From the version of the request into it, for what the client wrote with that one in mind: a patch.
    Requested(&'m mut Make<'m>),
    /// The same, by who looks at managers of fields, too: an apply.
    Applied(&'m mut Apply<'m>),
}

/// Makes the new object as [`Make`] does, with its forms in other versions at hand.
pub type Apply<'m> = dyn FnMut(Option<&Value>, &mut dyn Versions) -> Result<Value, Status> + Send + 'm;

impl Maker<'_> {
    async fn make(&mut self, call: &Call<'_, '_>, old: Option<&Value>) -> Result<Value, Status> {
        if let Maker::Stored(make) = self {
            return make(old);
        }
        let shown = match old {
            Some(old) => Some(call.to_requested(old.clone()).await?),
            None => None,
        };
        let made = match self {
            Maker::Stored(make) | Maker::Requested(make) => make(shown.as_ref())?,
            Maker::Applied(apply) => versions::with(call, &mut |versions| apply(shown.as_ref(), versions)).await??,
        };
        call.to_stored(made).await
    }
}

/// Changes the object `name` by `make` and stores it. `tracked` is the manager to record, `None` if `make` did that.
pub async fn update(
    call: &mut Call<'_, '_>,
    name: &str,
    part: Part,
    create: bool,
    tracked: Option<&str>,
    mut maker: Maker<'_>,
) -> Result<Written, Status> {
    let dry_run = call.dry_run()?;
    let mut retry = Retry::new(&call.x.server.objects.rng);
    loop {
        let old =
            call.x.server.objects.read(&call.stored, NamespacedName { namespace: call.namespace(), name }).await?;
        let Some(old) = old else {
            if !create {
                return Err(call.not_found(name));
            }
            may_create(call, name).await?;
            let new = maker.make(call, None).await?;
            match super::create::store(call, new, tracked, dry_run).await {
                // Somebody made it meanwhile: now it is there to be changed.
                Err(status) if status.reason == "AlreadyExists" => retry.pause().await,
                made => return made.map(Written::Created),
            }
            continue;
        };
        let rv = old.rv;
        call.x.weight.add(old.json.len()).await;
        // What an older definition stored may be in another version.
        let old = conversion::one(&call.x.server.objects.converter, old.value(), &call.stored, &call.stored).await?;
        let mut new = maker.make(call, Some(&old)).await?;
        if call.x.attributes.verb == "update"
            && meta::resource_version(&new).is_empty()
            && call.stored.behaviour.owners.version == Version::Required
        {
            return Err(unversioned(&call.resource, name));
        }
        unmoved(&call.resource, name, &new, &old, call.x.attributes.verb == "update")?;
        let change = Change { part, old: Some(&old), creator: None, dry_run };
        let judged = judge::judge(call, &change, &mut new).await?;
        if let Some(manager) = tracked {
            managers::track(call, manager, Some(&old), &mut new).await?;
        }
        if ends(&call.stored, &new, &old) {
            if dry_run
                || call
                    .x
                    .server
                    .objects
                    .remove(&call.stored, NamespacedName { namespace: call.namespace(), name }, rv)
                    .await?
                    .is_some()
            {
                return Ok(Written::Deleted(new));
            }
        } else if dry_run || unchanged(&new, &old) {
            return Ok(Written::Updated(if dry_run { new } else { old }));
        } else if let Some(at) = judged.put(call, name, &mut new, rv).await? {
            meta::set_resource_version(&mut new, &at.to_string());
            return Ok(Written::Updated(new));
        }
        // Somebody was faster. A version that the client named no longer fits and ends the next round; a patch is laid
        // on what is there now.
        drop(judged);
        retry.pause().await;
    }
}

/// A client that creates an object by an update or an apply needs the right to create it as well.
///
/// Errors: 403. Spec: `withAuthorization` of upstream's apiserver/pkg/endpoints/handlers/update.go (v1.36.2); asked
/// earlier than there, before any plugin of admission.
async fn may_create(call: &Call<'_, '_>, name: &str) -> Result<(), Status> {
    let attributes = Attributes {
        verb: "create".to_owned(),
        ..attributes_for(&call.x.attributes, NamespacedName { namespace: call.namespace(), name })
    };
    call.x.server.access.require(&attributes).await
}

/// Upstream names the resource here, not the kind.
fn unversioned(resource: &Resource, name: &str) -> Status {
    let cause = Cause {
        reason: "FieldValueInvalid".to_owned(),
        message: "Invalid value: 0: must be specified for an update".to_owned(),
        field: "metadata.resourceVersion".to_owned(),
    };
    Status::invalid(GroupKind { group: &resource.group, kind: &resource.plural }, name, vec![cause])
}

/// Checks the version that the client may have sent, and the uid if it sent the whole object: a patch of it is refused
/// as a change.
fn unmoved(resource: &Resource, name: &str, new: &Value, old: &Value, is_update: bool) -> Result<(), Status> {
    let (sent, have) = (meta::uid(new), meta::uid(old));
    if is_update && !sent.is_empty() && sent != have {
        let why = format!("Precondition failed: UID in precondition: {sent}, UID in object meta: {have}");
        return Err(Status::conflict(resource.group_resource(), name, &why));
    }
    let (sent, have) = (meta::resource_version(new), meta::resource_version(old));
    if sent.is_empty() || sent == "0" || sent == have {
        Ok(())
    } else {
        Err(Status::modified(resource.group_resource(), name))
    }
}

/// Equal but for the times in managedFields: writing it would only wake everybody.
fn unchanged(new: &Value, old: &Value) -> bool {
    if new == old {
        return true;
    }
    let timeless = |v: &Value| -> Vec<Value> {
        let strip = |entry: &Value| {
            let mut entry = entry.clone();
            if let Value::Object(map) = &mut entry {
                map.remove("time");
            }
            entry
        };
        meta::managed_fields(v).iter().map(strip).collect()
    };
    if timeless(new) != timeless(old) {
        return false;
    }
    let bare = |v: &Value| {
        let mut v = v.clone();
        meta::set_managed_fields(&mut v, Vec::new());
        v
    };
    bare(new) == bare(old)
}

/// Whether the update takes away the last thing that holds a dying object.
fn ends(stored: &Resource, new: &Value, old: &Value) -> bool {
    meta::deletion_timestamp(old).is_some()
        && meta::deletion_grace_period_seconds(old).unwrap_or(0) == 0
        && !is_held(stored, new)
}
