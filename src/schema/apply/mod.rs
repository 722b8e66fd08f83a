//! The owners of fields: server-side apply, and the tracking of every other write in `metadata.managedFields`.

pub mod managers;
pub mod merge;
pub mod set;
pub mod typing;
pub mod versions;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use model::meta;
use serde_json::{Map, Value, json};

use crate::apply::managers::{ManagerId, Managers, Operation, Owned};
use crate::apply::merge::compare;
use crate::apply::set::Set;
use crate::apply::typing::{View, check, field_set};
use crate::apply::versions::{Changes, Forms, Versions};
use crate::table::{Empty, Shape, TypeDef};

/// Facts of the request that every entry point needs.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    /// Type of the object in the version of the request.
    pub type_def: &'a TypeDef,
    /// `apps/v1`: the version of the request, in which the paths are written.
    pub api_version: &'a str,
    /// `status`, `scale`, or empty.
    pub subresource: &'a str,
    /// Name of the manager: `fieldManager`, or derived from the user agent.
    pub manager: &'a str,
    /// Now, `base::time::rfc3339_secs`.
    pub now: &'a str,
    /// Paths that this road does not write, so that nobody comes to own them through it; see `strategy::owners`.
    pub reset: &'a [&'a [&'a str]],
    /// All that this road writes, where not everything; `*` is any item of a list.
    pub only: &'a [&'a [&'a str]],
}

impl Request<'_> {
    /// The part of a set that this road writes at all.
    fn written(&self, set: &Set) -> Set {
        let set = set.without_subtrees(&Set::of_fields(self.reset));
        if self.only.is_empty() { set } else { set.only(self.only) }
    }
}

/// One field that another manager owns with another value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// `"kubectl" using apps/v1`
    pub manager: String,
    /// `.spec.replicas`
    pub path: String,
}

/// Why an apply was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ApplyError {
    /// 409 with reason `Conflict`; causes are `FieldManagerConflict`: message `conflict with MANAGER`, field PATH.
    #[error("{}", conflict_text(.0))]
    Conflicts(Vec<Conflict>),
    /// 400: the request itself is wrong.
    #[error("{0}")]
    BadRequest(String),
    /// 500 upstream: the configuration does not fit the schema.
    #[error("{0}")]
    Schema(String),
}

fn conflict_text(conflicts: &[Conflict]) -> String {
    if let [one] = conflicts {
        return format!("Apply failed with 1 conflict: conflict with {}: {}", one.manager, one.path);
    }
    let mut of_manager: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for conflict in conflicts {
        of_manager.entry(&conflict.manager).or_default().push(&conflict.path);
    }
    let mut lines = Vec::new();
    for (manager, paths) in of_manager {
        lines.push(format!("conflicts with {manager}:"));
        lines.extend(paths.into_iter().map(|path| format!("- {path}")));
    }
    format!("Apply failed with {} conflicts: {}", conflicts.len(), lines.join("\n"))
}

/// Merges `config` into `live` (None: the object does not exist) as manager `request.manager`.
///
/// The result carries the new managedFields. Fields this manager applied before, no longer applies, and nobody else
/// owns are removed. With `force`, conflicting fields are taken from their owners. All objects are in the version of
/// the request; `versions` has their forms for managers that wrote in another.
pub fn apply(
    request: &Request<'_>,
    versions: &mut dyn Versions,
    live: Option<&Value>,
    config: &Value,
    force: bool,
) -> Result<Value, ApplyError> {
    if !meta::managed_fields(config).is_empty() {
        return Err(ApplyError::BadRequest("metadata.managedFields must be nil".to_owned()));
    }
    let config = without_nulls(config);
    fits(request.type_def, request.api_version, &config)?;
    let skeleton = new_object(&config);
    let live = live.unwrap_or(&skeleton);
    let mut managers = managers::decode(meta::managed_fields(live)).ok_or_else(|| {
        ApplyError::BadRequest("failed to decode managed fields: existing managedFields are malformed".to_owned())
    })?;
    let live = without_managed(live);
    if managers.is_empty() && meta::creation_timestamp(&live).is_some() {
        adopt_untracked(request, &live, &mut managers);
    }
    let mut forms = Forms::new(request, versions);
    let result = match apply_once(&mut forms, &live, &config, managers.clone(), force) {
        Err(ApplyError::Conflicts(conflicts)) if only_with_last_applied(request, &live, &conflicts) => {
            apply_once(&mut forms, &live, &config, managers, true)
        }
        other => other,
    };
    let (mut object, managers) = result?;
    if request.manager == "kubectl" && meta::annotation(&object, LAST_APPLIED).is_some() {
        meta::set_annotation(&mut object, LAST_APPLIED, &last_applied(&config));
    }
    meta::set_managed_fields(&mut object, managers::encode(&managers));
    Ok(object)
}

/// Whether a configuration can be applied to this type at all.
///
/// Errors: [`ApplyError::Schema`] names every undeclared field and wrong kind of value.
pub fn fits(type_def: &TypeDef, api_version: &str, config: &Value) -> Result<(), ApplyError> {
    let mut errors = Vec::new();
    check(View::Root(type_def), config, "", &mut errors);
    if errors.is_empty() {
        return Ok(());
    }
    let group = if api_version.contains('/') { "" } else { "/" };
    let object = format!(
        "{}/{}; {group}{api_version}, Kind={}",
        meta::namespace(config),
        meta::name(config),
        meta::kind(config)
    );
    let text = if let [one] = errors.as_slice() { one.clone() } else { format!("errors:\n  {}", errors.join("\n  ")) };
    Err(ApplyError::Schema(format!("failed to create typed patch object ({object}): {text}")))
}

const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
const LAST_APPLIED_BYTES_MAX: usize = 262_144;

/// The annotation that client-side apply reads; empty when too large, as upstream.
fn last_applied(config: &Value) -> String {
    let mut config = config.clone();
    if let Some(annotations) =
        config.get_mut("metadata").and_then(|m| m.get_mut("annotations")).and_then(Value::as_object_mut)
    {
        annotations.remove(LAST_APPLIED);
    }
    let text = format!("{config}\n");
    if text.len() > LAST_APPLIED_BYTES_MAX { String::new() } else { text }
}

/// kubectl moving from client-side to server-side apply may take over what its own annotation says it set.
fn only_with_last_applied(request: &Request<'_>, live: &Value, conflicts: &[Conflict]) -> bool {
    let Some(annotation) = meta::annotation(live, LAST_APPLIED).filter(|_| request.manager == "kubectl") else {
        return false;
    };
    let Ok(applied) = serde_json::from_str::<Value>(annotation) else { return false };
    let owned: BTreeSet<String> = field_set(View::Root(request.type_def), &applied).paths().into_iter().collect();
    conflicts.iter().all(|c| owned.contains(&c.path))
}

/// An existing object that nobody tracked: everything in it was there before the first apply.
fn adopt_untracked(request: &Request<'_>, live: &Value, managers: &mut Managers) {
    let mut set = compare(View::Root(request.type_def), Some(&new_object(live)), Some(live)).added;
    set = request.written(&strip(&set));
    let id = ManagerId {
        operation: Operation::Update,
        manager: "before-first-apply".to_owned(),
        api_version: request.api_version.to_owned(),
        subresource: String::new(),
    };
    managers.insert(id, Owned { api_version: request.api_version.to_owned(), time: Some(request.now.to_owned()), set });
}

fn apply_once(
    forms: &mut Forms<'_>,
    live: &Value,
    config: &Value,
    mut managers: Managers,
    force: bool,
) -> Result<(Value, Managers), ApplyError> {
    let request = forms.request;
    let view = View::Root(request.type_def);
    let id = manager_id(request, Operation::Apply);
    let merged = merge::merge(view, Some(live), Some(config));
    // Not stripped yet: the name in the configuration keeps `metadata` itself from being pruned.
    let claimed = request.written(&field_set(view, config));
    let set = strip(&claimed);
    let before = managers.insert(
        id.clone(),
        Owned { api_version: request.api_version.to_owned(), time: Some(request.now.to_owned()), set: claimed },
    );
    let object = match &before {
        Some(last) => versions::prune(forms, merged, &managers, last),
        None => merged,
    };
    let change = compare(view, Some(live), Some(&object)).map(|set| request.written(set));
    if let Some(owned) = managers.get_mut(&id) {
        owned.set = set.clone();
    }
    let changes = versions::changes(forms, change, Some(live), &object, &managers);
    resolve(&mut managers, &id, &changes, force)?;
    // Nothing changed: the time stays, so that applying twice writes nothing.
    if let Some(before) = before.filter(|b| b.set == set && b.api_version == request.api_version && object == *live)
        && let Some(owned) = managers.get_mut(&id)
    {
        owned.time = before.time;
    }
    Ok((object, managers))
}

fn manager_id(request: &Request<'_>, operation: Operation) -> ManagerId {
    ManagerId {
        operation,
        manager: request.manager.to_owned(),
        api_version: if operation == Operation::Update { request.api_version.to_owned() } else { String::new() },
        subresource: request.subresource.to_owned(),
    }
}

/// Takes changed fields from their owners: refused without `force`, removed fields always.
fn resolve(managers: &mut Managers, own: &ManagerId, changes: &Changes, force: bool) -> Result<(), ApplyError> {
    let mut conflicts = Vec::new();
    for (id, owned) in managers.iter().filter(|(id, _)| *id != own) {
        let Some(change) = changes.get(&owned.api_version) else { continue };
        for path in owned.set.intersection(&change.touched).paths() {
            conflicts.push(Conflict { manager: id.describe(), path });
        }
    }
    if !force && !conflicts.is_empty() {
        return Err(ApplyError::Conflicts(conflicts));
    }
    disown(managers, Some(own), changes);
    managers.retain(|_, owned| !owned.set.is_empty());
    Ok(())
}

/// Takes what changed from all managers but `own`. Those who wrote in a version that is no more own nothing.
fn disown(managers: &mut Managers, own: Option<&ManagerId>, changes: &Changes) {
    for (_, owned) in managers.iter_mut().filter(|(id, _)| Some(*id) != own) {
        owned.set = match changes.get(&owned.api_version) {
            Some(change) => owned.set.difference(&change.touched).difference(&change.removed),
            None => Set::default(),
        };
    }
}

/// Records in `new.metadata.managedFields` what a create, update or patch changed relative to `live` (None: create),
/// both in the version of the request; `versions` as in [`apply`].
///
/// A client that sends `managedFields: [{}]` wipes them. Objects that lost their managedFields are not tracked again
/// until the next apply.
pub fn track_update(request: &Request<'_>, versions: &mut dyn Versions, live: Option<&Value>, new: &mut Value) {
    let sent = meta::managed_fields(new);
    let wiped = matches!(sent, [Value::Object(entry)] if entry.is_empty());
    let of_live = || live.and_then(|l| managers::decode(meta::managed_fields(l))).unwrap_or_default();
    let mut managers = match managers::decode(sent) {
        _ if wiped => Managers::new(),
        _ if !request.subresource.is_empty() => of_live(),
        Some(sent) if !sent.is_empty() => sent,
        _ => of_live(),
    };
    meta::set_managed_fields(new, Vec::new());
    if managers.is_empty() && live.is_some_and(|l| meta::creation_timestamp(l).is_some()) {
        return;
    }
    let view = View::Root(request.type_def);
    let live = live.map(without_managed);
    let skeleton = live.is_none().then(|| skeleton_of(request.type_def, new));
    let change = compare(view, live.as_ref().or(skeleton.as_ref()), Some(new)).map(|set| request.written(set));
    let id = manager_id(request, Operation::Update);
    let touched = change.modified.union(&change.added);
    let changes = versions::changes(&mut Forms::new(request, versions), change, live.as_ref(), new, &managers);
    disown(&mut managers, None, &changes);
    let touched = strip(&touched);
    if !touched.is_empty() {
        let owned = managers.entry(id).or_insert_with(|| Owned {
            api_version: request.api_version.to_owned(),
            time: None,
            set: Set::default(),
        });
        owned.set = owned.set.union(&touched);
        owned.time = Some(request.now.to_owned());
    }
    managers.retain(|_, owned| !owned.set.is_empty());
    managers::cap(&mut managers);
    meta::set_managed_fields(new, managers::encode(&managers));
}

/// System fields belong to nobody.
fn strip(set: &Set) -> Set {
    set.difference(&Set::of_fields(&[
        &["apiVersion"],
        &["kind"],
        &["metadata"],
        &["metadata", "name"],
        &["metadata", "namespace"],
        &["metadata", "creationTimestamp"],
        &["metadata", "selfLink"],
        &["metadata", "uid"],
        &["metadata", "clusterName"],
        &["metadata", "generation"],
        &["metadata", "managedFields"],
        &["metadata", "resourceVersion"],
    ]))
}

/// The object that an apply to a missing one starts from.
fn new_object(of: &Value) -> Value {
    let mut object =
        json!({"apiVersion": meta::api_version(of), "kind": meta::kind(of), "metadata": {"name": meta::name(of)}});
    meta::set_namespace(&mut object, meta::namespace(of));
    object
}

/// An object with only what Go holds without a pointer: structs by value and lists that are written even when null.
/// They are there from the start, so nobody adds them.
fn skeleton_of(t: &TypeDef, value: &Value) -> Value {
    let mut out = Map::new();
    for (name, child) in value.as_object().into_iter().flatten() {
        let Some(field) = t.field(name).filter(|f| f.empty == Empty::Always || name == "metadata") else { continue };
        match (&field.shape, child) {
            (Shape::Struct(inner), Value::Object(_)) => out.insert(name.clone(), skeleton_of(inner.get(), child)),
            (Shape::List(_), Value::Array(_)) | (Shape::Map(_), Value::Object(_)) => {
                out.insert(name.clone(), Value::Null)
            }
            // A zero value that is always written is no news either.
            (shape, child) if shape.is_scalar() && *child == crate::decode::zero(shape) => {
                out.insert(name.clone(), child.clone())
            }
            _ => None,
        };
    }
    Value::Object(out)
}

fn without_managed(object: &Value) -> Value {
    let mut object = object.clone();
    meta::set_managed_fields(&mut object, Vec::new());
    object
}

/// In a configuration, null says nothing.
fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Object(map) => Value::Object(
            map.iter().filter(|(_, v)| !v.is_null()).map(|(k, v)| (k.clone(), without_nulls(v))).collect(),
        ),
        Value::Array(list) => Value::Array(list.iter().map(without_nulls).collect()),
        other => other.clone(),
    }
}
