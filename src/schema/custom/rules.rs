//! `x-kubernetes-validations`: CEL rules of a schema, compiled into its nodes and asked about every object that fits
//! it.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;

use cel::moment::Moment;
use cel::run::Fault;
use cel::types::{self, Object, Ty};
use cel::value::Val;
use cel::{OBJECT_BUDGET, Program, Surroundings, time};
use serde_json::Value;

use super::node::{Additional, Node, Type};
use super::values::Partners;
use crate::read;
use crate::validate::error::{FieldError, Kind};

const OUT_OF_BUDGET: &str =
    "validation failed due to running out of cost budget, no further validation rules will be run";
const MESSAGE_BYTES_MAX: usize = 5120;
/// Words of the language that are no identifiers and not on the parser's list of reserved ones.
const KEYWORDS: [&str; 4] = ["true", "false", "null", "in"];

/// One rule.
#[derive(Debug)]
pub struct Rule {
    program: Program,
    message: Option<String>,
    message_program: Option<Program>,
    reason: Kind,
    /// Appended to the path of the node: `.spec.x`.
    field: String,
    optional_old: bool,
    /// It compares with what was before.
    transition: bool,
}

/// The name of a property in an expression; `None` if none can name it.
pub fn escaped(name: &str) -> Option<String> {
    if KEYWORDS.contains(&name) || cel::syntax::is_reserved(name) {
        return Some(format!("__{name}__"));
    }
    let mut chars = name.chars();
    let first = chars.next()?;
    if !(first.is_ascii_alphabetic() || "_./-".contains(first))
        || !chars.all(|c| c.is_ascii_alphanumeric() || "_./-".contains(c))
    {
        return None;
    }
    Some(
        name.replace("__", "__underscores__")
            .replace('.', "__dot__")
            .replace('-', "__dash__")
            .replace('/', "__slash__"),
    )
}

/// The type of what fits a node.
pub fn type_of(node: &Node, root: bool, name: &str) -> Ty {
    if node.int_or_string {
        return Ty::Dyn;
    }
    match node.kind {
        None => Ty::Dyn,
        Some(Type::Boolean) => types::BOOL,
        Some(Type::Integer) => types::INT,
        Some(Type::Number) => Ty::Named("double"),
        Some(Type::String) => match node.bounds.format.as_deref() {
            Some("byte") => Ty::Named("bytes"),
            Some("duration") => Ty::Named("duration"),
            Some("date" | "date-time") => Ty::Named("timestamp"),
            _ => types::TEXT,
        },
        Some(Type::Array) => {
            Ty::List(Box::new(node.items.as_ref().map_or(Ty::Dyn, |n| type_of(n, false, &format!("{name}.@idx")))))
        }
        Some(Type::Object) => match &node.additional {
            Additional::Each(each) => {
                Ty::Map(Box::new(types::TEXT), Box::new(type_of(each, false, &format!("{name}.@elem"))))
            }
            _ if node.properties.is_empty() && node.preserve && !root => Ty::Dyn,
            _ => {
                let mut fields: BTreeMap<String, Ty> = node
                    .properties
                    .iter()
                    .filter_map(|(key, n)| Some((escaped(key)?, type_of(n, false, &format!("{name}.{key}")))))
                    .collect();
                if root || node.embedded {
                    fields.insert("apiVersion".into(), types::TEXT);
                    fields.insert("kind".into(), types::TEXT);
                    let names = [("name".to_owned(), types::TEXT), ("generateName".to_owned(), types::TEXT)];
                    fields.insert(
                        "metadata".into(),
                        Ty::Object(Arc::new(Object { name: format!("{name}.metadata"), fields: names.into() })),
                    );
                }
                Ty::Object(Arc::new(Object { name: name.to_owned(), fields }))
            }
        },
    }
}

/// A value as the node's type sees it.
fn typed(node: &Node, value: &Value, root: bool) -> Val {
    match value {
        _ if node.int_or_string || node.kind.is_none() => Val::from_json(value),
        Value::Number(n) if node.kind == Some(Type::Number) => Val::Double(n.as_f64().unwrap_or(0.0)),
        Value::Number(n) => {
            n.as_i64().or_else(|| n.as_f64().map(|f| f as i64)).map_or_else(|| Val::from_json(value), Val::Int)
        }
        Value::String(text) => {
            let made = match node.bounds.format.as_deref() {
                Some("byte") => {
                    use base64::Engine as _;
                    base64::engine::general_purpose::STANDARD.decode(text).ok().map(|b| Val::Bytes(b.into()))
                }
                Some("duration") => time::read_duration(text).map(Val::Duration),
                Some("date-time") => Moment::read_field(text).map(Val::Time),
                Some("date") => Moment::read_field(&format!("{text}T00:00:00Z")).map(Val::Time),
                _ => None,
            };
            made.unwrap_or_else(|| Val::text(text))
        }
        Value::Array(items) => match &node.items {
            Some(of) => Val::list(items.iter().map(|item| typed(of, item, false)).collect()),
            None => Val::from_json(value),
        },
        Value::Object(map) => match &node.additional {
            Additional::Each(each) => Val::object(map.iter().map(|(k, v)| (k.clone(), typed(each, v, false)))),
            _ if node.properties.is_empty() && node.preserve && !root => Val::from_json(value),
            _ => {
                let implied = |key: &str| (root || node.embedded) && matches!(key, "apiVersion" | "kind" | "metadata");
                Val::object(map.iter().filter_map(|(key, v)| match node.properties.get(key) {
                    _ if implied(key) => Some((key.clone(), Val::from_json(v))),
                    Some(child) => Some((escaped(key)?, typed(child, v, false))),
                    None => None,
                }))
            }
        },
        other => Val::from_json(other),
    }
}

fn names(node: &Node, root: bool, optional_old: bool) -> Vec<(String, Ty)> {
    let ty = type_of(node, root, "selfType");
    let old = if optional_old { Ty::Optional(Box::new(ty.clone())) } else { ty.clone() };
    vec![("self".to_owned(), ty), ("oldSelf".to_owned(), old)]
}

fn compile(node: &Node, root: bool, rule: &Value) -> Result<Rule, FieldError> {
    let bad = |field: &str, why: String| FieldError::invalid(field, rule.clone(), why);
    let optional_old = read::flag(rule, "optionalOldSelf");
    let names = names(node, root, optional_old);
    let text = read::text(rule, "rule").trim();
    if text.is_empty() {
        return Err(FieldError::required("rule", "rule is not specified"));
    }
    let program = Program::compile(text, &names).map_err(|why| bad("rule", format!("compilation failed: {why}")))?;
    if !program.makes(&types::BOOL) {
        return Err(bad("rule", "compilation failed: cel expression must evaluate to a bool".to_owned()));
    }
    let transition = program.uses("oldSelf");
    if optional_old && !transition {
        return Err(bad("optionalOldSelf", "may not be set if oldSelf is not used in rule".to_owned()));
    }
    let message_program = match read::text(rule, "messageExpression").trim() {
        "" => None,
        text => {
            let program = Program::compile(text, &names)
                .map_err(|why| bad("messageExpression", format!("messageExpression compilation failed: {why}")))?;
            if !program.makes(&types::TEXT) {
                return Err(bad("messageExpression", "messageExpression must evaluate to a string".to_owned()));
            }
            Some(program)
        }
    };
    let reason = match read::text(rule, "reason") {
        "" | "FieldValueInvalid" => Kind::Invalid,
        "FieldValueRequired" => Kind::Required,
        "FieldValueForbidden" => Kind::Forbidden,
        "FieldValueDuplicate" => Kind::Duplicate,
        other => {
            return Err(FieldError::not_supported(
                "reason",
                other,
                &["FieldValueForbidden", "FieldValueInvalid", "FieldValueRequired", "FieldValueDuplicate"],
            ));
        }
    };
    let message = read::some_text(rule, "message");
    if let Some(text) = message
        && (text.trim().is_empty() || text.contains(['\n', '\r']))
    {
        let why = if text.trim().is_empty() {
            "message must be non-empty if specified"
        } else {
            "message must not contain line breaks"
        };
        return Err(FieldError::invalid("message", text, why));
    }
    if message.is_none() && text.contains('\n') && message_program.is_none() {
        return Err(FieldError::required("message", "message must be specified if rule contains line breaks"));
    }
    let field = field_of(node, read::text(rule, "fieldPath")).ok_or_else(|| {
        FieldError::invalid("fieldPath", read::text(rule, "fieldPath"), "fieldPath must be a valid path")
    })?;
    Ok(Rule {
        program,
        message: message.map(|m| m.trim().to_owned()),
        message_program,
        reason,
        field,
        optional_old,
        transition,
    })
}

/// `.a.b['c.d']` as a path below the node, if it leads to a field of its schema.
fn field_of(node: &Node, path: &str) -> Option<String> {
    let (mut at, mut rest, mut out) = (node, path.trim(), String::new());
    while !rest.is_empty() {
        let name;
        if let Some(quoted) = rest.strip_prefix("['") {
            (name, rest) = quoted.split_once("']")?;
        } else {
            let plain = rest.strip_prefix('.')?;
            let end = plain.find(['.', '[']).unwrap_or(plain.len());
            (name, rest) = plain.split_at(end);
        }
        at = at.child(name)?;
        out.push_str(&if at.properties.is_empty() && name.contains('.') {
            format!("[{name}]")
        } else {
            format!(".{name}")
        });
    }
    Some(out)
}

/// Compiles the rules of a schema into its nodes. Those that do not compile were refused when the definition was
/// written.
pub fn attach(node: &mut Node, schema: &Value) {
    attach_at(node, schema, true);
}

fn attach_at(node: &mut Node, schema: &Value, root: bool) {
    let rules = read::list(schema, "x-kubernetes-validations");
    node.rules = rules.iter().filter_map(|rule| compile(node, root, rule).ok()).collect();
    for (key, child) in &mut node.properties {
        attach_at(child, &schema["properties"][key.as_str()], false);
    }
    if let Some(items) = &mut node.items {
        attach_at(items, &schema["items"], false);
    }
    if let Additional::Each(each) = &mut node.additional {
        attach_at(each, &schema["additionalProperties"], false);
    }
}

/// Problems of the rules of a schema.
pub fn problems(schema: &Value, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    problems_at(schema, path, true, true, &mut errors);
    errors
}

fn problems_at(schema: &Value, path: &str, root: bool, correlates: bool, errors: &mut Vec<FieldError>) {
    let rules = read::list(schema, "x-kubernetes-validations");
    if !rules.is_empty() {
        let node = Node::compile(schema);
        for (idx, rule) in rules.iter().enumerate() {
            let at = format!("{path}.x-kubernetes-validations[{idx}]");
            match compile(&node, root, rule) {
                Err(mut error) => {
                    error.field = format!("{at}.{}", error.field);
                    errors.push(error);
                }
                Ok(rule) if rule.transition && !correlates => {
                    let why = "oldSelf cannot be used on the uncorrelatable portion of the schema";
                    errors.push(FieldError::invalid(format!("{at}.rule"), rule.program.text.as_str(), why));
                }
                Ok(_) => {}
            }
        }
    }
    for (key, child) in schema["properties"].as_object().into_iter().flatten() {
        problems_at(child, &format!("{path}.properties[{key}]"), false, correlates, errors);
    }
    if schema["items"].is_object() {
        let map = schema["x-kubernetes-list-type"] == "map";
        problems_at(&schema["items"], &format!("{path}.items"), false, correlates && map, errors);
    }
    if schema["additionalProperties"].is_object() {
        problems_at(
            &schema["additionalProperties"],
            &format!("{path}.additionalProperties"),
            false,
            correlates,
            errors,
        );
    }
}

/// Asks every rule about an object that fits its schema.
pub fn check(node: &Node, new: &Value, old: Option<&Value>, errors: &mut Vec<FieldError>) {
    if node.has_rules() {
        let budget = Cell::new(OBJECT_BUDGET);
        check_at(node, new, old, "", &budget, errors);
    }
}

fn check_at(
    node: &Node,
    new: &Value,
    old: Option<&Value>,
    path: &str,
    budget: &Cell<i64>,
    errors: &mut Vec<FieldError>,
) {
    if budget.get() <= 0 {
        return;
    }
    if !node.rules.is_empty() && !new.is_null() {
        ask(node, new, old, path, budget, errors);
    }
    match new {
        Value::Object(map) => {
            for (key, value) in map {
                let Some(child) = node.child(key).filter(|n| n.has_rules()) else { continue };
                let at = if path.is_empty() {
                    key.clone()
                } else if node.properties.contains_key(key) {
                    format!("{path}.{key}")
                } else {
                    format!("{path}[{key}]")
                };
                check_at(child, value, old.and_then(|o| o.get(key)), &at, budget, errors);
            }
        }
        Value::Array(items) => {
            if let Some(of) = node.items.as_ref().filter(|n| n.has_rules()) {
                let partners = Partners::of(node, old);
                for (idx, item) in items.iter().enumerate() {
                    check_at(of, item, partners.find(item), &format!("{path}[{idx}]"), budget, errors);
                }
            }
        }
        _ => {}
    }
}

fn ask(node: &Node, new: &Value, old: Option<&Value>, path: &str, budget: &Cell<i64>, errors: &mut Vec<FieldError>) {
    let root = path.is_empty();
    let this = typed(node, new, root);
    let before = old.filter(|o| !o.is_null()).map(|o| typed(node, o, root));
    // What has not changed is not judged again by rules that know no before.
    let unchanged = old == Some(new);
    let word = node.kind.map_or("", Type::word);
    let place = if root { "<nil>" } else { path };
    for rule in &node.rules {
        if rule.transition && before.is_none() && !rule.optional_old {
            continue;
        }
        let old_value = match (&before, rule.optional_old) {
            (before, true) => Val::Optional(before.clone().map(Arc::new)),
            (Some(before), false) => before.clone(),
            (None, false) => Val::Null,
        };
        let surroundings = Surroundings {
            values: vec![("self".into(), this.clone()), ("oldSelf".into(), old_value)],
            ..Surroundings::default()
        };
        let text = || rule.message.clone().unwrap_or_else(|| format!("failed rule: {}", rule.program.text));
        match rule.program.holds(&surroundings, budget) {
            Ok(true) => {}
            _ if unchanged && !rule.transition => {}
            Ok(false) => {
                let detail =
                    rule.message_program.as_ref().and_then(|p| said(p, &surroundings, budget)).unwrap_or_else(text);
                let field = format!("{}{}", if root { "" } else { path }, rule.field);
                let field = field.trim_start_matches('.');
                let bad_value = matches!(rule.reason, Kind::Invalid | Kind::Duplicate).then(|| word.into());
                errors.push(FieldError {
                    kind: rule.reason,
                    field: if field.is_empty() { place.to_owned() } else { field.to_owned() },
                    bad_value,
                    detail,
                });
            }
            Err(Fault::Budget) if budget.get() <= 0 => {
                errors.push(FieldError::invalid(place, word, OUT_OF_BUDGET));
                return;
            }
            Err(fault @ Fault::Budget) => {
                let about = &rule.program.text;
                errors.push(FieldError::invalid(
                    place,
                    word,
                    format!("{fault}: call cost exceeds limit for rule: {about}"),
                ));
                return;
            }
            Err(fault) => {
                let about = rule.message.clone().unwrap_or_else(|| rule.program.text.clone());
                errors.push(FieldError::invalid(place, word, format!("{fault} evaluating rule: {about}")));
            }
        }
    }
}

/// The text of a messageExpression, if it says something that can be shown.
fn said(program: &Program, surroundings: &Surroundings<'_>, budget: &Cell<i64>) -> Option<String> {
    match program.run(surroundings, budget) {
        Ok(Val::Text(text)) if !text.trim().is_empty() && !text.contains('\n') && text.len() <= MESSAGE_BYTES_MAX => {
            Some(text.trim().to_owned())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn verdict(schema: Value, new: Value, old: Option<Value>) -> Vec<String> {
        let mut node = Node::compile(&schema);
        attach(&mut node, &schema);
        let mut errors = Vec::new();
        check(&node, &new, old.as_ref(), &mut errors);
        errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn rules_refuse_with_their_own_words_and_transitions_need_a_before() {
        let schema = json!({"type": "object", "properties": {"spec": {"type": "object",
            "x-kubernetes-validations": [
                {"rule": "self.min <= self.max", "messageExpression": "'min ' + string(self.min) + ' is above max'",
                    "fieldPath": ".min"},
                {"rule": "self.min == oldSelf.min", "message": "min is fixed", "reason": "FieldValueForbidden"}],
            "properties": {"min": {"type": "integer"}, "max": {"type": "integer"}}}}});
        assert_eq!(
            verdict(schema.clone(), json!({"spec": {"min": 3, "max": 2}}), None),
            ["spec.min: Invalid value: \"object\": min 3 is above max"]
        );
        assert_eq!(
            verdict(schema.clone(), json!({"spec": {"min": 1, "max": 2}}), Some(json!({"spec": {"min": 0, "max": 2}}))),
            ["spec: Forbidden: min is fixed"]
        );
        assert!(
            verdict(schema, json!({"spec": {"min": 3, "max": 2}}), Some(json!({"spec": {"min": 3, "max": 2}})))
                .is_empty()
        );
    }

    #[test]
    fn rules_that_do_not_fit_the_schema_are_refused_when_they_are_written() {
        let schema = json!({"type": "object",
            "x-kubernetes-validations": [{"rule": "self.nope > 1"}, {"rule": "self.n"}],
                "properties": {"n": {"type": "integer"}}});
        let texts: Vec<String> = problems(&schema, "s").iter().map(ToString::to_string).collect();
        assert!(
            texts[0].contains("s.x-kubernetes-validations[0].rule: Invalid value")
                && texts[0].contains("undefined field 'nope'"),
            "{texts:?}"
        );
        assert!(texts[1].contains("must evaluate to a bool"), "{texts:?}");
    }
}
