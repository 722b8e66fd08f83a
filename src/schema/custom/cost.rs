//! The estimated cost of a schema's rules, before anything runs: collections and texts are as large as the schema lets
//! them be.
//!
//! Every part is counted at least as low as cel-go's estimator counts it, so a rule that is refused here is refused
//! upstream too; one a little beyond the bound may pass and meets the bounds at run time.

use cel::syntax::{Access, Expr, Kind, Macro};
use cel::value::Val;
use cel::{Program, types::Ty};
use serde_json::Value;

use super::node::{Additional, Node, Type};
use super::rules::escaped;
use crate::read;
use crate::validate::error::FieldError;

/// Upstream's `StaticEstimatedCostLimit` and `StaticEstimatedCRDCostLimit`.
const RULE_MAX: u64 = 10_000_000;
const ALL_MAX: u64 = 100_000_000;
/// How large a request may be.
const REQUEST_BYTES: u64 = 3 * 1024 * 1024;
/// Of the rules that cost too much together, those that cost most are named.
const NAMED_MAX: usize = 4;

/// The errors about rules that may cost too much; `path` is where the schema stands.
pub fn problems(schema: &Value, path: &str) -> Vec<FieldError> {
    let mut rules = Vec::new();
    walk(schema, path, Some(1), &mut rules);
    let mut errors: Vec<FieldError> = rules
        .iter()
        .filter(|(_, cost)| *cost > RULE_MAX)
        .map(|(at, cost)| FieldError::forbidden(at.as_str(), excess("estimated rule cost", *cost, RULE_MAX)))
        .collect();
    let total = rules.iter().fold(0u64, |sum, (_, cost)| sum.saturating_add(*cost));
    if total > ALL_MAX {
        rules.retain(|(_, cost)| *cost >= ALL_MAX / 100);
        rules.sort_by_key(|(_, cost)| std::cmp::Reverse(*cost));
        let why = "contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3 schema";
        errors.extend(rules.iter().take(NAMED_MAX).map(|(at, _)| FieldError::forbidden(at.as_str(), why)));
        let what = "x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema";
        errors.push(FieldError::forbidden(path, excess(what, total, ALL_MAX)));
    }
    errors
}

#[expect(clippy::cast_precision_loss, reason = "shown with one digit")]
fn excess(what: &str, cost: u64, max: u64) -> String {
    let times = cost as f64 / max as f64;
    let factor = match times {
        t if t > 100.0 => "more than 100x".to_owned(),
        t if t < 1.5 => format!("{t:.6}x"),
        t => format!("{t:.1}x"),
    };
    format!(
        "{what} exceeds budget by factor of {factor} (try simplifying the rule, or adding maxItems, maxProperties, and \
         maxLength where arrays, maps, and strings are declared)"
    )
}

/// Collects where each rule stands and what it costs. `times` is how often the schema's values may occur; `None`:
/// nothing bounds it.
fn walk(schema: &Value, path: &str, times: Option<u64>, out: &mut Vec<(String, u64)>) {
    let rules = read::list(schema, "x-kubernetes-validations");
    if !rules.is_empty() {
        let node = Node::compile(schema);
        let often = times.unwrap_or(REQUEST_BYTES / (least(&node) + 1));
        for (idx, rule) in rules.iter().enumerate() {
            let names = [("self".to_owned(), Ty::Dyn), ("oldSelf".to_owned(), Ty::Dyn)];
            // What does not compile is told elsewhere.
            let Ok(program) = Program::compile(read::text(rule, "rule").trim(), &names) else { continue };
            let old = if read::flag(rule, "optionalOldSelf") { None } else { Some(&node) };
            let mut scope = vec![("self".to_owned(), Some(&node)), ("oldSelf".to_owned(), old)];
            let (cost, _) = Walk { scope: &mut scope }.of(program.expr());
            out.push((format!("{path}.x-kubernetes-validations[{idx}].rule"), cost.saturating_mul(often)));
        }
    }
    for (key, child) in schema["properties"].as_object().into_iter().flatten() {
        walk(child, &format!("{path}.properties[{key}]"), times, out);
    }
    let many = |field: &str| times.and_then(|t| Some(t.saturating_mul(schema[field].as_u64()?)));
    if schema["items"].is_object() {
        walk(&schema["items"], &format!("{path}.items"), many("maxItems"), out);
    }
    if schema["additionalProperties"].is_object() {
        walk(&schema["additionalProperties"], &format!("{path}.additionalProperties"), many("maxProperties"), out);
    }
}

/// The fewest bytes in which a value can be sent; rather too many than too few.
fn least(node: &Node) -> u64 {
    match node.kind {
        Some(Type::Boolean) => 4,
        Some(Type::String) if node.bounds.format.is_some() => 30,
        Some(Type::Object) if !matches!(node.additional, Additional::Each(_)) => {
            let needed =
                node.properties.iter().filter(|(name, child)| node.required.contains(name) && child.default.is_none());
            2 + needed.map(|(name, child)| name.len() as u64 + least(child) + 4).sum::<u64>()
        }
        Some(Type::Integer | Type::Number) => 1,
        _ => 2,
    }
}

/// How many items, entries or bytes a value may have; 0 if that is not known here.
fn most(node: &Node) -> u64 {
    if node.int_or_string {
        return 0;
    }
    match (node.kind, &node.items, &node.additional) {
        (Some(Type::Array), Some(item), _) => node.bounds.items.1.unwrap_or((REQUEST_BYTES - 2) / (least(item) + 1)),
        (Some(Type::Object), _, Additional::Each(value)) => {
            node.bounds.properties.1.unwrap_or((REQUEST_BYTES - 2) / (least(value) + 6))
        }
        (Some(Type::String), ..) if node.bounds.format.is_some() => 0,
        (Some(Type::String), ..) => match (node.bounds.length.1, node.enums.is_empty()) {
            (Some(chars), _) => chars.saturating_mul(4),
            (None, false) => 0,
            (None, true) => REQUEST_BYTES - 2,
        },
        _ => 0,
    }
}

/// A tenth of a step for each byte, as for all that walks through texts.
fn traversal(bytes: u64) -> u64 {
    bytes.div_ceil(10)
}

struct Walk<'a, 'n> {
    scope: &'a mut Vec<(String, Option<&'n Node>)>,
}

impl<'n> Walk<'_, 'n> {
    /// The cost of an expression, and the schema of what it makes, if it has one.
    fn of(&mut self, expr: &Expr) -> (u64, Option<&'n Node>) {
        match &expr.kind {
            Kind::Literal(_) => (0, None),
            Kind::Ident(name) => (1, self.scope.iter().rev().find(|(n, _)| n == name).and_then(|(_, node)| *node)),
            Kind::Select { of, field, how } => {
                let (cost, node) = self.of(of);
                let child = node.and_then(|n| member(n, field)).filter(|_| *how != Access::Optional);
                (cost.saturating_add(u64::from(*how == Access::Plain)), child)
            }
            Kind::Call { name, target, args } => self.call(name, target.as_deref(), args),
            Kind::Chain(first, rest) => {
                let rest = rest.iter().map(|(.., e)| self.of(e).0).fold(0, u64::saturating_add);
                (self.of(first).0.saturating_add(rest), None)
            }
            Kind::List(items) => (self.sum(items.iter().map(|(e, _)| e)).saturating_add(10), None),
            Kind::Map(entries) => (self.sum(entries.iter().flat_map(|(k, v, _)| [k, v])).saturating_add(30), None),
            Kind::Struct { fields, .. } => (self.sum(fields.iter().map(|(_, _, v, _)| v)).saturating_add(40), None),
            Kind::Macro(m) => self.repeated(m),
        }
    }

    fn sum<'e>(&mut self, all: impl Iterator<Item = &'e Expr>) -> u64 {
        all.map(|e| self.of(e).0).fold(0, u64::saturating_add)
    }

    fn call(&mut self, name: &str, target: Option<&Expr>, args: &[Expr]) -> (u64, Option<&'n Node>) {
        let (on_cost, on) = target.map_or((0, None), |t| self.of(t));
        if let ("_?_:_", [condition, yes, no]) = (name, args) {
            let (condition, (yes, node), (no, _)) = (self.of(condition).0, self.of(yes), self.of(no));
            return (condition.saturating_add(yes.max(no)), node);
        }
        let parts: Vec<(u64, Option<&'n Node>)> = args.iter().map(|arg| self.of(arg)).collect();
        let cost = parts.iter().map(|(cost, _)| *cost).fold(on_cost, u64::saturating_add);
        let text = args.first().and_then(|arg| {
            if let Kind::Literal(Val::Text(text)) = &arg.kind { Some(text.len() as u64) } else { None }
        });
        let bytes = on.map_or(0, most);
        let own = match (name, text) {
            ("matches", Some(pattern)) => traversal(bytes.saturating_add(1)).saturating_mul(pattern.div_ceil(4)),
            ("contains", Some(part)) => traversal(bytes).saturating_mul(traversal(part)),
            ("@in", _) => {
                let list = parts.get(1).and_then(|(_, node)| *node).filter(|n| n.kind == Some(Type::Array));
                list.map_or(0, most)
            }
            _ => 0,
        };
        let node = if name == "_[_]" { parts.first().and_then(|(_, node)| *node).and_then(element) } else { None };
        (cost.saturating_add(own), node)
    }

    fn repeated(&mut self, m: &Macro) -> (u64, Option<&'n Node>) {
        let (range_cost, range) = self.of(&m.range);
        let loops = matches!(
            m.name,
            "all"
                | "exists"
                | "exists_one"
                | "existsOne"
                | "filter"
                | "map"
                | "transformList"
                | "transformMap"
                | "transformMapEntry"
        );
        let times = range.map_or(0, most);
        let is_list = range.is_some_and(|n| n.kind == Some(Type::Array));
        let before = self.scope.len();
        for (idx, name) in m.vars.iter().enumerate() {
            // Of a map the first name is a key, of a list with two names an index.
            let value = if m.vars.len() == 2 { idx == 1 } else { is_list };
            let node = if loops { range.filter(|_| value).and_then(element) } else { range };
            self.scope.push((name.clone(), node));
        }
        let body = self.sum(m.body.iter());
        self.scope.truncate(before);
        if !loops {
            return (range_cost.saturating_add(body), None);
        }
        let own = match m.name {
            "all" | "exists" | "exists_one" | "existsOne" => 2,
            _ => 10,
        };
        let made = range.filter(|_| m.name == "filter");
        (range_cost.saturating_add(times.saturating_mul(body.saturating_add(own))), made)
    }
}

/// A property, by the name that expressions use, or a value of a map.
fn member<'n>(node: &'n Node, field: &str) -> Option<&'n Node> {
    match &node.additional {
        Additional::Each(value) => Some(value),
        _ => node.properties.iter().find(|(name, _)| escaped(name).as_deref() == Some(field)).map(|(_, child)| child),
    }
}

/// An item of a list or a value of a map.
fn element(node: &Node) -> Option<&Node> {
    match (&node.items, &node.additional) {
        (Some(item), _) => Some(item),
        (None, Additional::Each(value)) => Some(value),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn schema(rule: &str, max: Option<u64>) -> Value {
        let mut list =
            json!({"type": "array", "items": {"type": "array", "items": {"type": "string", "maxLength": 5}}});
        if let Some(max) = max {
            list["maxItems"] = json!(max);
            list["items"]["maxItems"] = json!(max);
        }
        json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {"x": list},
            "x-kubernetes-validations": [{"rule": rule}]}}})
    }

    fn said(schema: &Value) -> Vec<String> {
        problems(schema, "s").iter().map(ToString::to_string).collect()
    }

    #[test]
    fn loops_over_unbounded_lists_cost_too_much() {
        let nested = "self.x.all(x, x.all(y, self.x.exists(z, z.exists(w, w == y))))";
        let refused = said(&schema(nested, None));
        let start = "s.properties[spec].x-kubernetes-validations[0].rule: Forbidden: estimated rule cost exceeds \
            budget by factor of more than 100x (try";
        assert!(refused[0].starts_with(start), "{refused:?}");
        assert!(
            refused
                .last()
                .unwrap()
                .starts_with("s: Forbidden: x-kubernetes-validations estimated rule cost total for entire"),
            "{refused:?}"
        );
        assert!(said(&schema(nested, Some(10))).is_empty());
        assert!(said(&schema("self.x.all(x, size(x) > 0)", None)).is_empty());
    }

    #[test]
    fn a_rule_below_an_unbounded_list_counts_for_each_item() {
        let item = json!({"type": "object", "properties": {"t": {"type": "string"}},
            "x-kubernetes-validations": [{"rule": "self.t.matches('^a+$')"}]});
        let list = |max: Value| {
            let mut list = json!({"type": "array", "items": item});
            if !max.is_null() {
                list["maxItems"] = max;
                list["items"]["properties"]["t"]["maxLength"] = json!(20);
            }
            json!({"type": "object", "properties": {"l": list}})
        };
        assert!(!said(&list(Value::Null)).is_empty());
        assert!(said(&list(json!(100))).is_empty());
    }
}
