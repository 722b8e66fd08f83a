//! The type of a value as apply needs it: is it one leaf, or owned by its parts?

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::apply::set::{Set, Step};
use crate::table::{Field, ListType, Name, Shape, TypeDef};

/// A place in the type of an object. Unknown places are deduced: maps by entry, lists as one.
#[derive(Clone, Copy)]
pub enum View<'a> {
    /// The object itself.
    Root(&'a TypeDef),
    /// A declared field.
    Field(&'a Field),
    /// An item or entry without markers of its own.
    Shape(&'a Shape),
    /// Nothing is known.
    Unknown,
}

/// How a value is owned.
#[derive(Clone, Copy)]
pub enum Node<'a> {
    /// As one.
    Leaf,
    /// By its declared fields.
    Fields(&'a TypeDef),
    /// By its entries.
    Entries(View<'a>),
    /// By its items, which are told apart by their value.
    Items,
    /// By its items, which are told apart by these fields.
    Keyed(&'a [Name], View<'a>),
}

impl<'a> View<'a> {
    /// How `value` is owned at this place.
    pub fn node(self, value: &Value) -> Node<'a> {
        let node = match self {
            View::Root(t) => Node::Fields(t),
            View::Field(f) if f.atomic => Node::Leaf,
            View::Field(f) => match (&f.shape, &f.list) {
                (Shape::List(_), ListType::Set) => Node::Items,
                (Shape::List(item), ListType::Map(keys)) => Node::Keyed(keys, View::Shape(item)),
                (Shape::List(_), ListType::Atomic) => Node::Leaf,
                (shape, _) => of_shape(shape),
            },
            View::Shape(shape) => of_shape(shape),
            View::Unknown => Node::Entries(View::Unknown),
        };
        match (&node, value) {
            (Node::Fields(_) | Node::Entries(_), Value::Object(_))
            | (Node::Items | Node::Keyed(..), Value::Array(_)) => node,
            _ => Node::Leaf,
        }
    }
}

fn of_shape(shape: &Shape) -> Node<'_> {
    match shape {
        Shape::Struct(t) if t.get().atomic => Node::Leaf,
        Shape::Struct(t) => Node::Fields(t.get()),
        Shape::Map(entry) => Node::Entries(View::Shape(entry)),
        Shape::Any => Node::Entries(View::Unknown),
        _ => Node::Leaf,
    }
}

/// The place of a member of a struct.
pub fn field_view<'a>(t: &'a TypeDef, name: &str) -> View<'a> {
    t.field(name).map_or(View::Unknown, View::Field)
}

/// Which item this is in a keyed list; None if it names no key at all. Missing keys take the schema's default
/// (protocol: TCP).
pub fn item_step(keys: &[Name], item_view: View<'_>, item: &Value) -> Option<Step> {
    let item = item.as_object()?;
    let mut found = Map::new();
    for key in keys {
        let value = item.get(key.as_ref()).cloned().or_else(|| key_default(item_view, key));
        if let Some(value) = value {
            found.insert(key.to_string(), value);
        }
    }
    (!found.is_empty()).then(|| Step::Key(Value::Object(found).to_string()))
}

fn key_default(item_view: View<'_>, key: &str) -> Option<Value> {
    match item_view {
        View::Shape(Shape::Struct(t)) => t.get().field(key)?.default.clone(),
        _ => None,
    }
}

/// The step of a set's item.
pub fn value_step(item: &Value) -> Step {
    Step::Item(item.to_string())
}

/// One part of a value: its step, its place in the type, itself.
pub type Part<'a, 'v> = (Step, View<'a>, &'v Value);

/// The parts of a value that is no leaf.
pub fn parts<'a, 'v>(node: Node<'a>, value: &'v Value) -> Vec<Part<'a, 'v>> {
    let members = value.as_object().into_iter().flatten();
    let items = value.as_array().into_iter().flatten();
    match node {
        Node::Leaf => Vec::new(),
        Node::Fields(t) => members.map(|(k, v)| (Step::Field(k.clone()), field_view(t, k), v)).collect(),
        Node::Entries(view) => members.map(|(k, v)| (Step::Field(k.clone()), view, v)).collect(),
        Node::Items => items.map(|v| (value_step(v), View::Unknown, v)).collect(),
        Node::Keyed(keys, view) => items.filter_map(|v| Some((item_step(keys, view, v)?, view, v))).collect(),
    }
}

/// All paths that an object sets: what its author owns.
pub fn field_set(view: View<'_>, value: &Value) -> Set {
    let mut set = Set::default();
    let node = view.node(value);
    if matches!(node, Node::Leaf) {
        set.insert();
        return set;
    }
    for (step, child_view, child) in parts(node, value) {
        let mut child_set = field_set(child_view, child);
        let declared = match (node, &step) {
            (Node::Fields(t), Step::Field(name)) => t.field(name).is_some(),
            _ => false,
        };
        if !declared || child.is_null() || child.as_object().is_some_and(Map::is_empty) {
            child_set.insert();
        }
        set.put(step, child_set);
    }
    set
}

/// Makes declared fields on the way to members members too: a struct whose last member goes, goes as well.
pub fn with_named_fields(view: View<'_>, value: Option<&Value>, set: &Set) -> Set {
    let mut out = Set::default();
    if set.is_member() {
        out.insert();
    }
    let node = value.map_or(Node::Leaf, |v| view.node(v));
    let mut known = BTreeMap::new();
    for (step, view, part) in value.map(|v| parts(node, v)).unwrap_or_default() {
        known.entry(step).or_insert((view, part));
    }
    for (step, child) in set.children() {
        let part = known.get(step);
        let mut child = with_named_fields(part.map_or(View::Unknown, |p| p.0), part.map(|p| p.1), child);
        if let (Node::Fields(t), Step::Field(name)) = (node, step)
            && t.field(name).is_some()
        {
            child.insert();
        }
        out.put(step.clone(), child);
    }
    out
}

/// The type of a place, as far as it is declared.
fn shape_of(view: View<'_>) -> Option<&Shape> {
    match view {
        View::Field(f) => Some(&f.shape),
        View::Shape(s) => Some(s),
        View::Root(_) | View::Unknown => None,
    }
}

/// A value of another kind than its place holds, in structured-merge-diff's words.
fn mismatch(shape: &Shape, value: &Value) -> Option<String> {
    let go = || match value {
        Value::Object(_) => "map[string]interface {}",
        Value::Array(_) => "[]interface {}",
        Value::String(_) => "string",
        Value::Bool(_) => "bool",
        Value::Number(n) if n.is_i64() => "int64",
        Value::Number(_) => "float64",
        Value::Null => "<nil>",
    };
    match (shape, value) {
        (_, Value::Null) => None,
        (Shape::Bool, v) if !v.is_boolean() => {
            Some(format!("expected boolean, got &value.valueUnstructured{{Value:{v}}}"))
        }
        (Shape::Int32 | Shape::Int64 | Shape::Float, v) if !v.is_number() => {
            Some(format!("expected numeric (int or float), got {}", go()))
        }
        (Shape::String | Shape::Bytes, v) if !v.is_string() => {
            Some(format!("expected string, got &value.valueUnstructured{{Value:{v}}}"))
        }
        (Shape::List(_), v) if !v.is_array() => Some(format!("expected list, got &{{{}}}", crate::patch::go_text(v))),
        (Shape::Map(_) | Shape::Struct(_), v) if !v.is_object() => {
            Some(format!("expected map, got &{{{}}}", crate::patch::go_text(v)))
        }
        _ => None,
    }
}

/// Checks what is owned as one all the same: fields below it are declared and of their kind.
fn check_leaf(shape: &Shape, value: &Value, path: &str, errors: &mut Vec<String>) {
    match (shape, value) {
        (Shape::List(item), Value::Array(items)) => {
            for (idx, child) in items.iter().enumerate() {
                check(View::Shape(item), child, &format!("{path}[{idx}]"), errors);
            }
        }
        (Shape::Map(entry), Value::Object(map)) => {
            for (key, child) in map {
                check(View::Shape(entry), child, &format!("{path}.{key}"), errors);
            }
        }
        (Shape::Struct(t), Value::Object(map)) => {
            undeclared(t.get(), map, path, false, errors);
            for (key, child) in map {
                check(field_view(t.get(), key), child, &format!("{path}.{key}"), errors);
            }
        }
        _ => {}
    }
}

/// An object itself has apiVersion, kind and metadata, whatever its schema names.
fn undeclared(t: &TypeDef, map: &Map<String, Value>, path: &str, root: bool, errors: &mut Vec<String>) {
    let implied = |key: &str| (root || t.embedded) && matches!(key, "apiVersion" | "kind" | "metadata");
    let stray = map.keys().filter(|key| !t.open && !implied(key) && t.field(key).is_none());
    errors.extend(stray.map(|key| format!("{path}.{key}: field not declared in schema")));
}

/// Refuses what cannot be applied: undeclared fields, values of a wrong kind, keyed items without a key, and the same
/// item twice.
pub fn check(view: View<'_>, value: &Value, path: &str, errors: &mut Vec<String>) {
    if let Some(why) = shape_of(view).and_then(|shape| mismatch(shape, value)) {
        errors.push(format!("{path}: {why}"));
        return;
    }
    let node = view.node(value);
    match (node, value) {
        (Node::Fields(t), Value::Object(map)) => undeclared(t, map, path, matches!(view, View::Root(_)), errors),
        (Node::Leaf, _) => {
            if let Some(shape) = shape_of(view) {
                check_leaf(shape, value, path, errors);
            }
            return;
        }
        _ => {}
    }
    if let (Node::Keyed(keys, item_view), Some(items)) = (node, value.as_array()) {
        for (idx, item) in items.iter().enumerate() {
            let has = |k: &&Name| item.get(k.as_ref()).is_some() || key_default(item_view, k).is_some();
            // One key of several may be missing as long as another is there.
            if item_step(keys, item_view, item).is_none() {
                let key = keys.iter().find(|k| !has(k)).map_or("", |k| k.as_ref());
                errors.push(format!(
                    "{path}: element {idx}: associative list with keys has an element that omits key field {key:?} \
                    (and doesn't have default value)"
                ));
            }
        }
    }
    let mut seen = std::collections::BTreeSet::new();
    for (step, child_view, child) in parts(node, value) {
        let here = format!("{path}{step}");
        if !seen.insert(step.clone()) {
            errors.push(format!("{path}: duplicate entries for key {step}"));
        }
        check(child_view, child, &here, errors);
    }
}
