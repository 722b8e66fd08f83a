//! Strategic merge: objects merge by member, lists by merge key, with directives `$patch`, `$retainKeys`,
//! `$deleteFromPrimitiveList/…` and `$setElementOrder/…`. Spec: apimachinery's strategicpatch.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use crate::patch::{PatchError, go_text};
use crate::table::{Field, Shape, TypeDef};

const DIRECTIVE: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const DELETE_FROM: &str = "$deleteFromPrimitiveList/";
const SET_ORDER: &str = "$setElementOrder/";

/// The type of a value.
#[derive(Clone, Copy)]
pub(super) enum TypeAt<'a> {
    Struct(&'a TypeDef),
    Shape(&'a Shape),
    Unknown,
}

impl<'a> TypeAt<'a> {
    fn field(self, name: &str) -> Option<&'a Field> {
        match self {
            TypeAt::Struct(t) => t.field(name),
            TypeAt::Shape(shape) => shape.as_struct()?.field(name),
            TypeAt::Unknown => None,
        }
    }

    /// The type of a member of an object here.
    fn member(self, name: &str) -> TypeAt<'a> {
        match self {
            TypeAt::Shape(Shape::Map(entry)) => TypeAt::Shape(entry),
            _ => self.field(name).map_or(TypeAt::Unknown, |f| TypeAt::Shape(&f.shape)),
        }
    }

    fn item(self) -> TypeAt<'a> {
        match self {
            TypeAt::Shape(shape) => shape.element().map_or(TypeAt::Unknown, TypeAt::Shape),
            _ => TypeAt::Unknown,
        }
    }
}

/// Whether an object is part of the live object or comes in whole with the patch.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Depth {
    Object,
    New,
}

fn rejected(text: impl Into<String>) -> PatchError {
    PatchError::Unmergeable(text.into())
}

fn text_of<'v>(map: &'v Map<String, Value>, name: &str) -> Option<&'v str> {
    map.get(name).and_then(Value::as_str)
}

/// Merges `patch` into `original`.
pub(super) fn merge_maps(
    type_at: TypeAt<'_>,
    mut original: Map<String, Value>,
    patch: &Map<String, Value>,
    depth: Depth,
    purse: &Purse,
) -> Result<Map<String, Value>, PatchError> {
    match patch.get(DIRECTIVE) {
        None => {}
        Some(Value::String(d)) if d == "replace" => {
            let mut patch = patch.clone();
            patch.remove(DIRECTIVE);
            return Ok(patch);
        }
        Some(Value::String(d)) if d == "delete" => return Ok(Map::new()),
        Some(Value::String(d)) if d == "merge" => {}
        Some(other) => {
            return Err(rejected(format!(
                "unknown patch type: {} in map: {}",
                show(other),
                go_text(&Value::Object(patch.clone()))
            )));
        }
    }
    if let Some(retain) = patch.get(RETAIN_KEYS) {
        retain_keys(&mut original, patch, retain)?;
    }
    for (key, value) in patch {
        if key == DIRECTIVE || key == RETAIN_KEYS {
            continue;
        }
        if let Some(name) = key.strip_prefix(DELETE_FROM) {
            delete_from(&mut original, name, value)?;
            continue;
        }
        if let Some(name) = key.strip_prefix(SET_ORDER) {
            // With a patch of the list the order is applied together with it, below.
            if !patch.contains_key(name) {
                order_only(type_at, &mut original, name, value)?;
            }
            continue;
        }
        if value.is_null() {
            original.remove(key);
            continue;
        }
        let merged = merge_member(type_at, original.remove(key), key, value, patch, (depth, purse))?;
        if let Some(merged) = merged {
            original.insert(key.clone(), merged);
        }
    }
    Ok(original)
}

fn show(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn merge_member(
    type_at: TypeAt<'_>,
    original: Option<Value>,
    key: &str,
    value: &Value,
    patch: &Map<String, Value>,
    (depth, purse): (Depth, &Purse),
) -> Result<Option<Value>, PatchError> {
    let field = type_at.field(key);
    let child = type_at.member(key);
    match (original, value) {
        (Some(Value::Object(_)), Value::Object(_)) if field.is_some_and(|f| f.patch.replace) => Ok(Some(value.clone())),
        (Some(Value::Object(old)), Value::Object(new)) => {
            merge_maps(child, old, new, depth, purse).map(|m| Some(Value::Object(m)))
        }
        (Some(Value::Array(old)), Value::Array(new)) if field.is_some_and(|f| f.patch.merge) => {
            let order = patch.get(&format!("{SET_ORDER}{key}")).and_then(Value::as_array);
            let key = field.and_then(|f| f.merge_key.as_deref());
            if let Some(order) = order {
                fits_order(new, order, key)?;
            }
            merge_lists(child.item(), old, new, key, order, purse).map(|l| Some(Value::Array(l)))
        }
        // New here: directives inside must not be stored.
        (None, Value::Object(new)) => {
            if text_of(new, DIRECTIVE) == Some("delete") {
                return Ok(None);
            }
            merge_maps(child, Map::new(), new, Depth::New, purse).map(|m| Some(Value::Object(m)))
        }
        (None, Value::Array(new)) if field.is_some_and(|f| f.patch.merge) => {
            let key = field.and_then(|f| f.merge_key.as_deref());
            let merged = merge_lists(child.item(), Vec::new(), new, key, None, purse)?;
            Ok((!merged.is_empty() || new.is_empty()).then_some(Value::Array(merged)))
        }
        (_, Value::Object(new)) => {
            merge_maps(child, Map::new(), new, Depth::New, purse).map(|m| Some(Value::Object(m)))
        }
        (_, other) => Ok(Some(other.clone())),
    }
}

fn retain_keys(
    original: &mut Map<String, Value>,
    patch: &Map<String, Value>,
    retain: &Value,
) -> Result<(), PatchError> {
    let bad = || PatchError::BadRequest("invalid patch format of retainKeys".to_owned());
    let retain = retain.as_array().ok_or_else(bad)?;
    let keys: HashSet<&str> = retain.iter().filter_map(Value::as_str).collect();
    let named = |k: &String| k.starts_with('$') || keys.contains(k.as_str());
    if patch.iter().any(|(k, v)| !v.is_null() && !named(k)) {
        return Err(bad());
    }
    original.retain(|k, _| keys.contains(k.as_str()));
    Ok(())
}

fn delete_from(original: &mut Map<String, Value>, name: &str, gone: &Value) -> Result<(), PatchError> {
    let gone =
        gone.as_array().ok_or_else(|| PatchError::BadRequest("invalid patch format of primitive list".to_owned()))?;
    if let Some(Value::Array(list)) = original.get_mut(name) {
        let gone: HashSet<&Value> = gone.iter().collect();
        list.retain(|item| !gone.contains(item));
    }
    Ok(())
}

fn order_only(
    type_at: TypeAt<'_>,
    original: &mut Map<String, Value>,
    name: &str,
    order: &Value,
) -> Result<(), PatchError> {
    let order = order
        .as_array()
        .ok_or_else(|| PatchError::BadRequest("invalid patch format of setElementOrder list".to_owned()))?;
    let key = type_at.field(name).and_then(|f| f.merge_key.as_deref());
    if let Some(Value::Array(list)) = original.get_mut(name) {
        let old = std::mem::take(list);
        let before = ids(&old, key);
        *list = in_order(old, &before, order, key);
    }
    Ok(())
}

/// The identity of an item: its value at the merge key, or, without one, itself.
fn id<'v>(item: &'v Value, key: Option<&str>) -> Option<&'v Value> {
    key.map_or(Some(item), |key| item.get(key))
}

/// The identities of a list's items; items without a key have none.
fn ids(list: &[Value], key: Option<&str>) -> Vec<Value> {
    list.iter().filter_map(|item| id(item, key)).cloned().collect()
}

/// Where each id stands first: a client chooses how long its lists are, so nothing here looks for an item by walking
/// one.
fn places<'v>(ids: impl Iterator<Item = &'v Value>) -> HashMap<&'v Value, usize> {
    let mut places = HashMap::new();
    for (at, id) in ids.enumerate() {
        places.entry(id).or_insert(at);
    }
    places
}

/// Whether the items of a patch stand as its own list of order says: an item that is not in that list has no place.
fn fits_order(patch: &[Value], order: &[Value], key: Option<&str>) -> Result<(), PatchError> {
    let kept = |item: &&Value| item.get(DIRECTIVE).is_none();
    let mut wanted = patch.iter().filter(kept).peekable();
    for place in order {
        if wanted.peek().is_some_and(|item| id(item, key) == id(place, key)) {
            wanted.next();
        }
    }
    if order.is_empty() || wanted.peek().is_none() {
        return Ok(());
    }
    let show = |list: &[Value]| go_text(&Value::Array(list.to_vec()));
    Err(rejected(format!(
        "The order in patch list:\n{}\n doesn't match $setElementOrder list:\n{}\n",
        show(patch),
        show(order)
    )))
}

/// Merges by key, or as a set when the items are scalars.
fn merge_lists(
    item_type: TypeAt<'_>,
    original: Vec<Value>,
    patch: &[Value],
    key: Option<&str>,
    order: Option<&Vec<Value>>,
    purse: &Purse,
) -> Result<Vec<Value>, PatchError> {
    purse.pay(&original)?;
    purse.pay(patch)?;
    let objects = original.iter().chain(patch).any(Value::is_object);
    if !objects {
        let before = original.clone();
        let mut seen: HashSet<&Value> = before.iter().collect();
        let mut merged = original;
        merged.extend(patch.iter().filter(|item| seen.insert(item)).cloned());
        return Ok(in_order(merged, &before, order.map_or(patch, Vec::as_slice), None));
    }
    let key = key.ok_or_else(|| rejected("cannot merge lists without merge key for type"))?;
    let before = ids(&original, Some(key));
    let (mut merged, patch, replaced) = list_directives(original, patch, key)?;
    if replaced {
        return Ok(patch);
    }
    let kept = ids(&merged, Some(key));
    // Positions among the items, not among the ids: an item without a key has a place, too.
    let with_id = merged.iter().enumerate().filter_map(|(at, item)| item.get(key).is_some().then_some(at));
    let mut at_id: HashMap<&Value, usize> = HashMap::new();
    for (id, at) in kept.iter().zip(with_id) {
        at_id.entry(id).or_insert(at);
    }
    for item in &patch {
        let Value::Object(item) = item else { return Err(rejected(format!("expected object in list, got {item}"))) };
        let id = item.get(key).ok_or_else(|| {
            rejected(format!(
                "map: {} does not contain declared merge key: {key}",
                go_text(&Value::Object(item.clone()))
            ))
        })?;
        match at_id.get(id).copied() {
            Some(at) => {
                let old = if let Value::Object(old) = &mut merged[at] { std::mem::take(old) } else { Map::new() };
                merged[at] = Value::Object(merge_maps(item_type, old, item, Depth::Object, purse)?);
                if merged[at].get(key) != Some(id) {
                    at_id.remove(id);
                }
            }
            None => {
                let made = Value::Object(merge_maps(item_type, Map::new(), item, Depth::New, purse)?);
                if made.get(key) == Some(id) {
                    at_id.insert(id, merged.len());
                }
                merged.push(made);
            }
        }
    }
    Ok(in_order(merged, &before, order.map_or(patch.as_slice(), Vec::as_slice), Some(key)))
}

/// Carries out `$patch: delete` and finds `$patch: replace`; the third value says that the list is replaced by the
/// second.
fn list_directives(
    mut original: Vec<Value>,
    patch: &[Value],
    key: &str,
) -> Result<(Vec<Value>, Vec<Value>, bool), PatchError> {
    let mut rest = Vec::new();
    let mut gone: HashSet<&Value> = HashSet::new();
    let mut replaced = false;
    for item in patch {
        match item.get(DIRECTIVE) {
            None => rest.push(item.clone()),
            Some(Value::String(d)) if d == "delete" => {
                let id = item.get(key).ok_or_else(|| {
                    rejected(format!("map: {} does not contain declared merge key: {key}", go_text(item)))
                })?;
                gone.insert(id);
            }
            Some(Value::String(d)) if d == "replace" => replaced = true,
            Some(Value::String(d)) if d == "merge" => {
                return Err(rejected("merging lists cannot yet be specified in the patch"));
            }
            Some(other) => {
                return Err(rejected(format!("unknown patch type: {} in map: {}", show(other), go_text(item))));
            }
        }
    }
    original.retain(|item| item.get(key).is_none_or(|id| !gone.contains(id)));
    Ok((original, rest, replaced))
}

/// Sorts by the wanted order; items that only the server has keep their place relative to their neighbours before the
/// merge. `before` are the ids of the list before the merge.
fn in_order(merged: Vec<Value>, before: &[Value], order: &[Value], key: Option<&str>) -> Vec<Value> {
    let wanted = places(order.iter().filter_map(|item| id(item, key)));
    let before = places(before.iter());
    let (mut patched, mut server_only) = (Vec::new(), Vec::new());
    // Each place is looked up once: an item may be as long as a whole body.
    for item in merged {
        let old = id(&item, key).and_then(|id| before.get(id).copied());
        match id(&item, key).and_then(|id| wanted.get(id).copied()) {
            Some(at) => patched.push((at, old, item)),
            None => server_only.push((old, item)),
        }
    }
    patched.sort_by_key(|(at, ..)| *at);
    let mut out = Vec::with_capacity(patched.len() + server_only.len());
    let mut left = server_only.into_iter().peekable();
    for (_, old, item) in patched {
        // An item that is new in the patch has no old place: it goes first, as upstream's mergeSortedSlice has it.
        while left.peek().is_some_and(|(l, _)| l.zip(old).is_some_and(|(l, r)| l < r)) {
            out.extend(left.next().map(|(_, item)| item));
        }
        out.push(item);
    }
    out.extend(left.map(|(_, item)| item));
    out
}

/// The steps that merging lists may take altogether. Each list of an object is merged once, unless a patch names an
/// item again and again: then the lists in that item are merged each time, and the cost is the square of the patch.
pub(super) struct Purse {
    left: Cell<usize>,
}

/// More than the items of the largest object and the largest body together, as each of them has at least four bytes.
const ITEMS_MAX: usize = 2 << 20;
/// An id that is as long as this costs as much as another item.
const ID_BYTES: usize = 64;

impl Purse {
    pub(super) fn new() -> Purse {
        Purse { left: Cell::new(ITEMS_MAX) }
    }

    fn pay(&self, list: &[Value]) -> Result<(), PatchError> {
        let cost_of = |value: &Value| value.as_str().map_or(0, |text| text.len() / ID_BYTES);
        let cost: usize = list
            .iter()
            .map(|item| 1 + item.as_object().map_or_else(|| cost_of(item), |map| map.values().map(cost_of).sum()))
            .sum();
        let left =
            self.left.get().checked_sub(cost).ok_or_else(|| rejected("the patch names items of lists too often"))?;
        self.left.set(left);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::{PatchStrategy, TypeRef};
    use serde_json::json;

    fn list(name: &'static str, item: Shape, key: Option<&'static str>) -> Field {
        Field {
            merge_key: key.map(Into::into),
            patch: PatchStrategy { merge: true, ..PatchStrategy::default() },
            ..Field::new(name, Shape::List(Box::new(item)))
        }
    }

    fn type_def() -> TypeDef {
        let env = TypeDef {
            fields: vec![Field::new("name", Shape::String), Field::new("value", Shape::String)],
            ..TypeDef::default()
        };
        let container = TypeDef {
            fields: vec![
                list("env", Shape::Struct(TypeRef::of(env)), Some("name")),
                Field::new("image", Shape::String),
                Field::new("name", Shape::String),
            ],
            ..TypeDef::default()
        };
        TypeDef {
            fields: vec![
                Field::new("args", Shape::List(Box::new(Shape::String))),
                list("containers", Shape::Struct(TypeRef::of(container)), Some("name")),
                list("finalizers", Shape::String, None),
                Field::new("labels", Shape::Map(Box::new(Shape::String))),
                Field::new("strategy", Shape::Any),
            ],
            ..TypeDef::default()
        }
    }

    fn check(object: Value, patch: Value, want: Value) {
        assert_eq!(crate::patch::strategic(&type_def(), &object, &patch).unwrap(), want, "{patch}");
    }

    #[test]
    fn keyed_lists_merge_and_plain_lists_are_replaced() {
        check(
            json!({"containers": [{"name": "a", "image": "1", "env": [{"name": "x", "value": "1"}]}, {"name": "b"}],
                "args": ["1"]}),
            json!({"containers": [{"name": "a", "env": [{"name": "y", "value": "2"}]}, {"name": "c"}], "args": ["2"]}),
            json!({"containers": [{"name": "a", "image": "1",
                "env": [{"name": "y", "value": "2"}, {"name": "x", "value": "1"}]}, {"name": "c"}, {"name": "b"}],
                    "args": ["2"]}),
        );
    }

    #[test]
    fn directives_delete_replace_and_retain() {
        check(
            json!({"containers": [{"name": "a"}, {"name": "b"}]}),
            json!({"containers": [{"$patch": "delete", "name": "a"}]}),
            json!({"containers": [{"name": "b"}]}),
        );
        check(
            json!({"containers": [{"name": "a"}]}),
            json!({"containers": [{"$patch": "replace"}, {"name": "z"}]}),
            json!({"containers": [{"name": "z"}]}),
        );
        check(
            json!({"labels": {"a": "1"}}),
            json!({"labels": {"$patch": "replace", "b": "2"}}),
            json!({"labels": {"b": "2"}}),
        );
        check(
            json!({"strategy": {"type": "RollingUpdate", "rollingUpdate": {"x": 1}}}),
            json!({"strategy": {"$retainKeys": ["type"], "type": "Recreate"}}),
            json!({"strategy": {"type": "Recreate"}}),
        );
        check(
            json!({"finalizers": ["a", "b"]}),
            json!({"$deleteFromPrimitiveList/finalizers": ["a"], "finalizers": ["c"]}),
            json!({"finalizers": ["c", "b"]}),
        );
        check(
            json!({}),
            json!({"containers": [{"$patch": "delete", "name": "a"}], "labels": {"x": null, "y": "1"}}),
            json!({"labels": {"y": "1"}}),
        );
    }

    #[test]
    fn the_wanted_order_is_kept_and_server_items_stay() {
        check(
            json!({"containers": [{"name": "a"}, {"name": "s"}, {"name": "b"}]}),
            json!({"$setElementOrder/containers": [{"name": "b"}, {"name": "n"}, {"name": "a"}],
                "containers": [{"name": "n"}]}),
            json!({"containers": [{"name": "s"}, {"name": "b"}, {"name": "n"}, {"name": "a"}]}),
        );
    }

    /// Spec: upstream v1.36 `validatePatchWithSetOrderList`.
    #[test]
    fn a_patch_whose_items_have_no_place_in_its_own_order_is_refused() {
        let live = json!({"containers": [{"name": "a"}, {"name": "b"}]});
        let patched = |order: Value, items: Value| {
            let patch = json!({"$setElementOrder/containers": order, "containers": items});
            crate::patch::strategic(&type_def(), &live, &patch).map_err(|err| err.to_string())
        };
        let names = |list: &[&str]| Value::from(list.iter().map(|name| json!({"name": name})).collect::<Vec<_>>());
        let why = patched(names(&["b"]), json!([{"name": "a", "image": "x"}])).unwrap_err();
        assert_eq!(
            why,
            "The order in patch list:\n[map[image:x name:a]]\n doesn't match $setElementOrder list:\n[map[name:b]]\n"
        );
        assert!(patched(names(&["b", "a"]), json!([{"name": "a", "image": "x"}])).is_ok());
        assert!(patched(names(&["b"]), json!([{"name": "a", "$patch": "delete"}])).is_ok());
        assert!(patched(names(&["a", "b"]), json!([{"name": "b"}, {"name": "a"}])).is_err());
    }

    #[test]
    fn what_cannot_be_merged_is_refused() {
        let patch = json!({"containers": [{"image": "x"}]});
        assert!(matches!(
            crate::patch::strategic(&type_def(), &json!({"containers": []}), &patch),
            Err(PatchError::Unmergeable(_))
        ));
        let patch = json!({"labels": {"$patch": "bad"}});
        assert!(matches!(
            crate::patch::strategic(&type_def(), &json!({"labels": {}}), &patch),
            Err(PatchError::Unmergeable(_))
        ));
    }
}
