//! Sets of field paths and their wire form, `FieldsV1`: `{"f:spec":{"f:replicas":{}}}`.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::{Map, Value};

/// One step of a path.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// A member of a struct or map: `f:name`.
    Field(String),
    /// An item of a keyed list: `k:{"name":"web"}`; the JSON text of the keys, sorted.
    Key(String),
    /// An item of a set: `v:"x"`; the JSON text of the item.
    Item(String),
    /// An item by position: `i:0`.
    Index(u64),
}

impl Step {
    fn parse(text: &str) -> Option<Step> {
        let (tag, rest) = text.split_once(':')?;
        let json = || serde_json::from_str::<Value>(rest).ok();
        match tag {
            "f" => Some(Step::Field(rest.to_owned())),
            "k" => json().filter(Value::is_object).map(|v| Step::Key(v.to_string())),
            "v" => json().map(|v| Step::Item(v.to_string())),
            "i" => rest.parse().ok().map(Step::Index),
            _ => None,
        }
    }

    fn wire(&self) -> String {
        match self {
            Step::Field(name) => format!("f:{name}"),
            Step::Key(keys) => format!("k:{keys}"),
            Step::Item(item) => format!("v:{item}"),
            Step::Index(idx) => format!("i:{idx}"),
        }
    }
}

impl fmt::Display for Step {
    /// As conflicts show it: `.spec`, `[name="web"]`, `[="x"]`, `[0]`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::Field(name) => write!(f, ".{name}"),
            Step::Item(item) => write!(f, "[={item}]"),
            Step::Index(idx) => write!(f, "[{idx}]"),
            Step::Key(keys) => {
                let keys: Map<String, Value> = serde_json::from_str(keys).unwrap_or_default();
                let keys = keys.iter().map(|(k, v)| format!("{k}={v}")).collect::<Vec<_>>().join(",");
                write!(f, "[{keys}]")
            }
        }
    }
}

/// A tree of steps; a node may be a member itself (`.` on the wire), a way to members, or both.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Set {
    member: bool,
    children: BTreeMap<Step, Set>,
}

impl Set {
    /// Reads `FieldsV1`; None if it is malformed.
    pub fn parse(fields: &Value) -> Option<Set> {
        let mut set = Set::default();
        for (key, value) in fields.as_object()? {
            if key == "." {
                set.member = true;
                continue;
            }
            let mut child = Set::parse(value)?;
            child.member |= child.children.is_empty();
            set.children.insert(Step::parse(key)?, child);
        }
        Some(set)
    }

    /// The wire form.
    pub fn to_value(&self) -> Value {
        let mut map = Map::new();
        if self.member && !self.children.is_empty() {
            map.insert(".".to_owned(), Value::Object(Map::new()));
        }
        for (step, child) in &self.children {
            map.insert(step.wire(), child.to_value());
        }
        Value::Object(map)
    }

    /// A set of whole fields: `["spec", "replicas"]` is `.spec.replicas`.
    pub fn of_fields(paths: &[&[&str]]) -> Set {
        let mut set = Set::default();
        for path in paths {
            let mut at = &mut set;
            for name in *path {
                at = at.child_mut(Step::Field((*name).to_owned()));
            }
            at.member = true;
        }
        set
    }

    /// No member at all.
    pub fn is_empty(&self) -> bool {
        !self.member && self.children.values().all(Set::is_empty)
    }

    /// Whether this very node is a member.
    pub fn is_member(&self) -> bool {
        self.member
    }

    /// Makes this very node a member.
    pub fn insert(&mut self) {
        self.member = true;
    }

    /// The subtree below a step.
    pub fn child(&self, step: &Step) -> Option<&Set> {
        self.children.get(step)
    }

    /// The subtree below a step, made when missing.
    pub fn child_mut(&mut self, step: Step) -> &mut Set {
        self.children.entry(step).or_default()
    }

    /// All subtrees.
    pub fn children(&self) -> impl Iterator<Item = (&Step, &Set)> {
        self.children.iter()
    }

    /// Members of either.
    #[must_use]
    pub fn union(&self, other: &Set) -> Set {
        let mut out = self.clone();
        out.absorb(other);
        out
    }

    /// Takes the members of another set in. It costs what the other one has, however much is here already.
    pub fn absorb(&mut self, other: &Set) {
        self.member |= other.member;
        for (step, child) in &other.children {
            self.children.entry(step.clone()).or_default().absorb(child);
        }
    }

    /// Members of both.
    #[must_use]
    pub fn intersection(&self, other: &Set) -> Set {
        let mut out = Set { member: self.member && other.member, children: BTreeMap::new() };
        for (step, child) in &self.children {
            if let Some(there) = other.children.get(step) {
                out.put(step.clone(), child.intersection(there));
            }
        }
        out
    }

    /// Members of this that are no members of the other.
    #[must_use]
    pub fn difference(&self, other: &Set) -> Set {
        let mut out = Set { member: self.member && !other.member, children: BTreeMap::new() };
        for (step, child) in &self.children {
            let kept = other.children.get(step).map_or_else(|| child.clone(), |there| child.difference(there));
            out.put(step.clone(), kept);
        }
        out
    }

    /// Members of this that are neither members of the other nor below one.
    #[must_use]
    pub fn without_subtrees(&self, other: &Set) -> Set {
        if other.member {
            return Set::default();
        }
        let mut out = Set { member: self.member, children: BTreeMap::new() };
        for (step, child) in &self.children {
            let kept = other.children.get(step).map_or_else(|| child.clone(), |there| child.without_subtrees(there));
            out.put(step.clone(), kept);
        }
        out
    }

    /// The part that is at or below one of these paths; `*` is any step.
    #[must_use]
    pub fn only(&self, paths: &[&[&str]]) -> Set {
        if paths.iter().any(|path| path.is_empty()) {
            return self.clone();
        }
        let mut out = Set::default();
        for (step, child) in &self.children {
            let leads = |name: &str| name == "*" || *step == Step::Field(name.to_owned());
            let rest: Vec<&[&str]> =
                paths.iter().filter(|p| p.first().is_some_and(|name| leads(name))).map(|p| &p[1..]).collect();
            if !rest.is_empty() {
                out.put(step.clone(), child.only(&rest));
            }
        }
        out
    }

    /// Hangs a subtree below a step, unless it is empty.
    pub fn put(&mut self, step: Step, child: Set) {
        if !child.is_empty() {
            self.children.insert(step, child);
        }
    }

    /// The text of every member's path, in order.
    pub fn paths(&self) -> Vec<String> {
        let mut out = Vec::new();
        self.collect("", &mut out);
        out
    }

    fn collect(&self, prefix: &str, out: &mut Vec<String>) {
        if self.member {
            out.push(prefix.to_owned());
        }
        for (step, child) in &self.children {
            child.collect(&format!("{prefix}{step}"), out);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn wire_form_round_trips() {
        let wire = json!({"f:metadata": {"f:labels": {".": {}, "f:app": {}}},
            "f:spec": {"f:containers": {"k:{\"name\":\"a\"}": {".": {}, "f:image": {}}}, "f:replicas": {}},
            "f:set": {"v:\"x\"": {}, "i:3": {}}});
        let set = Set::parse(&wire).unwrap();
        assert_eq!(set.to_value(), wire);
        assert!(set.paths().contains(&".spec.containers[name=\"a\"].image".to_owned()));
        assert!(Set::parse(&json!({"x:y": {}})).is_none());
    }

    #[test]
    fn set_operations_keep_members_apart_from_ways() {
        let a = Set::parse(&json!({"f:a": {".": {}, "f:b": {}}})).unwrap();
        let b = Set::parse(&json!({"f:a": {}})).unwrap();
        assert_eq!(a.difference(&b).to_value(), json!({"f:a": {"f:b": {}}}));
        assert_eq!(a.intersection(&b).to_value(), json!({"f:a": {}}));
        assert!(a.without_subtrees(&b).is_empty());
        assert_eq!(b.union(&a), a);
    }
}
