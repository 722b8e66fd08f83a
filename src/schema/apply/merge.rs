//! Values compared, merged and cut along their types: structured-merge-diff's rules.

use serde_json::{Map, Value};

use crate::apply::set::{Set, Step};
use crate::apply::typing::{Node, Part, View, parts};

/// The fields that changed between two objects.
#[derive(Clone, Debug, Default)]
pub struct Comparison {
    /// Only in the new one.
    pub added: Set,
    /// In both, with another value.
    pub modified: Set,
    /// Only in the old one.
    pub removed: Set,
}

impl Comparison {
    fn put(&mut self, step: &Step, child: Comparison) {
        self.added.put(step.clone(), child.added);
        self.modified.put(step.clone(), child.modified);
        self.removed.put(step.clone(), child.removed);
    }

    /// The rest of each set that `keep` leaves.
    #[must_use]
    pub fn map(&self, keep: impl Fn(&Set) -> Set) -> Comparison {
        Comparison { added: keep(&self.added), modified: keep(&self.modified), removed: keep(&self.removed) }
    }
}

fn is_empty(value: Option<&Value>) -> bool {
    match value {
        None | Some(Value::Null) => true,
        Some(Value::Object(m)) => m.is_empty(),
        Some(Value::Array(l)) => l.is_empty(),
        Some(_) => false,
    }
}

/// A container compared with nothing keeps its kind; two containers of different kinds are leaves.
fn shared_node<'a>(view: View<'a>, old: Option<&Value>, new: Option<&Value>) -> Node<'a> {
    let node = |v: Option<&Value>| v.filter(|v| !v.is_null()).map(|v| view.node(v));
    match (node(old), node(new)) {
        _ if is_empty(old) && is_empty(new) => Node::Leaf,
        (Some(Node::Leaf), _) | (_, Some(Node::Leaf)) | (None, None) => Node::Leaf,
        (Some(node), _) | (None, Some(node)) => node,
    }
}

fn parts_of<'a, 'v>(node: Node<'a>, value: Option<&'v Value>) -> Vec<Part<'a, 'v>> {
    value.map(|v| parts(node, v)).unwrap_or_default()
}

/// The difference from `old` to `new`.
pub fn compare(view: View<'_>, old: Option<&Value>, new: Option<&Value>) -> Comparison {
    let mut out = Comparison::default();
    let node = shared_node(view, old, new);
    if matches!(node, Node::Leaf) {
        match (old, new) {
            (None, Some(_)) => out.added.insert(),
            (Some(_), None) => out.removed.insert(),
            (Some(a), Some(b)) if a != b => out.modified.insert(),
            _ => {}
        }
        return out;
    }
    let (olds, news) = (index(parts_of(node, old)), index(parts_of(node, new)));
    for (step, (child_view, child)) in &news {
        out.put(step, compare(*child_view, olds.get(step).map(|o| o.1), Some(child)));
    }
    for (step, (child_view, child)) in olds.iter().filter(|(step, _)| !news.contains_key(*step)) {
        out.put(step, compare(*child_view, Some(child), None));
    }
    match (old, new) {
        (None, Some(_)) => out.added.insert(),
        (Some(_), None) => out.removed.insert(),
        _ => {}
    }
    out
}

type Index<'a, 'v> = std::collections::BTreeMap<Step, (View<'a>, &'v Value)>;

fn index<'a, 'v>(parts: Vec<Part<'a, 'v>>) -> Index<'a, 'v> {
    let mut index = Index::new();
    for (step, view, value) in parts {
        index.entry(step).or_insert((view, value));
    }
    index
}

/// The fields that `new` adds to `old` or changes in it.
pub fn merge(view: View<'_>, old: Option<&Value>, new: Option<&Value>) -> Value {
    let (Some(old), Some(new)) = (old, new) else { return old.or(new).cloned().unwrap_or(Value::Null) };
    match shared_node(view, Some(old), Some(new)) {
        Node::Leaf => new.clone(),
        node @ (Node::Fields(_) | Node::Entries(_)) => {
            let mut out = old.as_object().cloned().unwrap_or_default();
            for (step, child_view, child) in parts(node, new) {
                if let Step::Field(name) = step {
                    let merged = merge(child_view, out.get(&name), Some(child));
                    out.insert(name, merged);
                }
            }
            Value::Object(out)
        }
        node => Value::Array(merge_lists(node, old, new)),
    }
}

/// Both orders are kept as far as they agree: new items stand where `new` has them, old ones before what followed them.
fn merge_lists(node: Node<'_>, old: &Value, new: &Value) -> Vec<Value> {
    let (olds, news) = (parts(node, old), parts(node, new));
    let (old_index, new_index) = (index(olds.clone()), index(news.clone()));
    let mut shared: std::collections::VecDeque<&Step> =
        news.iter().map(|p| &p.0).filter(|step| old_index.contains_key(*step)).collect();
    let mut next_shared = shared.pop_front();
    let mut merged = std::collections::BTreeSet::new();
    let mut out = Vec::new();
    let (mut o, mut n) = (0, 0);
    while o < olds.len() || n < news.len() {
        if let (Some((old_step, ..)), Some((new_step, view, child))) = (olds.get(o), news.get(n)) {
            if old_step == new_step {
                out.push(merge(*view, old_index.get(old_step).map(|p| p.1), Some(child)));
                merged.insert(old_step);
                (o, n) = (o + 1, n + 1);
                next_shared = shared.pop_front();
                continue;
            }
            // A shared item, but not the one whose turn it is: it will come from `new`.
            if new_index.contains_key(old_step) && next_shared.is_some_and(|next| next != old_step) {
                o += 1;
                continue;
            }
        }
        if let Some((old_step, _, child)) = olds.get(o) {
            if !new_index.contains_key(old_step) {
                out.push((*child).clone());
                o += 1;
                continue;
            }
            if merged.contains(old_step) {
                o += 1;
            }
        }
        if let Some((step, view, child)) = news.get(n) {
            merged.insert(step);
            out.push(merge(*view, old_index.get(step).map(|p| p.1), Some(child)));
            n += 1;
            if next_shared == Some(step) {
                next_shared = shared.pop_front();
            }
        }
    }
    out
}

/// The value without the members of `gone`; None when nothing is left of a container that had something.
pub fn remove_items(view: View<'_>, value: &Value, gone: &Set) -> Option<Value> {
    let node = view.node(value);
    if matches!(node, Node::Leaf) {
        return Some(value.clone());
    }
    let keep = |step: &Step, child_view: View<'_>, child: &Value| match gone.child(step) {
        None => Some(child.clone()),
        Some(set) if set.is_member() => None,
        Some(set) => remove_items(child_view, child, set),
    };
    let before = parts(node, value);
    if let Value::Array(_) = value {
        let items: Vec<Value> = before.iter().filter_map(|(step, v, child)| keep(step, *v, child)).collect();
        return (!items.is_empty() || before.is_empty()).then_some(Value::Array(items));
    }
    let mut out = Map::new();
    for (step, child_view, child) in &before {
        if let (Step::Field(name), Some(kept)) = (step, keep(step, *child_view, child)) {
            out.insert(name.clone(), kept);
        }
    }
    (!out.is_empty() || before.is_empty()).then_some(Value::Object(out))
}
