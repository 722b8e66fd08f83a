//! Lays what a mutation's expression made on the object: an apply configuration, or a JSON patch. Pure.

use cel::value::Val;
use schema::apply::merge::merge;
use schema::apply::typing::{Node, View, check, field_view, parts};
use schema::patch::OperationsError;
use schema::table::{ListType, TypeDef};
use serde_json::{Map, Value, json};

/// Why a mutation's result cannot be laid on the object, in upstream's words.
#[derive(Debug, thiserror::Error)]
pub enum PatchError {
    /// An expression made a value of this type.
    #[error("unsupported return type from ApplyConfiguration expression: {0}")]
    NoConfiguration(String),
    /// Initialisers stand where they do not belong.
    #[error("type mismatch: {}", .0.join("\n"))]
    Misnamed(Vec<String>),
    /// A configuration of this type has no form in JSON.
    #[error("invalid return type: {0}")]
    NotJson(String),
    /// The schema has no such fields.
    #[error("error applying patch: failed to convert patch object to typed object: {}", one_or_list(.0))]
    Untyped(Vec<String>),
    /// These are replaced as one.
    #[error(
        "error applying patch: invalid ApplyConfiguration: may not mutate atomic arrays, maps or structs: {}",
        .0.join(", ")
    )]
    Atomic(Vec<String>),
    /// A JSON patch is a list.
    #[error("type mismatch: JSONPatchType.expression should evaluate to array")]
    NoList,
    /// A list with a value of this type.
    #[error("type mismatch: JSONPatchType.expression should evaluate to array of JSONPatch, got element of {0}")]
    NoOperation(String),
    /// A value of an operation.
    #[error("JSONPath valueExpression evaluated to a type that could not marshal to JSON")]
    ValueNotJson,
    /// A field of an operation has a value of another type.
    #[error("unexpected type {found} for JSONPatchType '{field}' field")]
    FieldType { field: String, found: String },
    /// Operations that do not apply.
    #[error(transparent)]
    Inapplicable(#[from] OperationsError),
}

fn one_or_list(errors: &[String]) -> String {
    if let [one] = errors { one.clone() } else { format!("errors:\n  {}", errors.join("\n  ")) }
}

/// The object with an apply configuration merged in, as server-side apply would; nobody comes to own the fields.
///
/// Errors: it is no such configuration.
pub fn configured(of: &TypeDef, object: &Value, made: &Val) -> Result<Value, PatchError> {
    let Val::Struct(parts) = made else { return Err(PatchError::NoConfiguration(made.type_name().to_owned())) };
    let mut wrong = Vec::new();
    misnamed(made, "Object", &mut wrong);
    if !wrong.is_empty() {
        return Err(PatchError::Misnamed(wrong));
    }
    let mut config = made.to_json().ok_or_else(|| PatchError::NotJson(parts.0.clone()))?;
    for field in ["apiVersion", "kind"] {
        config[field] = object[field].clone();
    }
    let mut errors = Vec::new();
    check(View::Root(of), &config, "", &mut errors);
    if !errors.is_empty() {
        return Err(PatchError::Untyped(errors));
    }
    let mut atomics = Vec::new();
    find_atomics(View::Root(of), &config, "", &mut atomics);
    if !atomics.is_empty() {
        return Err(PatchError::Atomic(atomics));
    }
    Ok(merge(View::Root(of), Some(object), Some(&config)))
}

/// Initialisers name the place where they stand: `Object.spec{…}` belongs into the field `spec` of `Object{…}`.
fn misnamed(value: &Val, path: &str, wrong: &mut Vec<String>) {
    match value {
        Val::Struct(parts) => {
            if parts.0 != path {
                let (found, wanted) = (&parts.0, path);
                wrong.push(format!(
                    "unexpected type name {found:?}, expected {wanted:?}, which matches field name path from root \
                     Object type"
                ));
            }
            for (field, child) in &parts.1 {
                misnamed(child, &format!("{path}.{field}"), wrong);
            }
        }
        Val::List(items) => items.iter().for_each(|item| misnamed(item, path, wrong)),
        Val::Map(map) => map.values().for_each(|item| misnamed(item, path, wrong)),
        Val::Optional(Some(inner)) => misnamed(inner, path, wrong),
        _ => {}
    }
}

/// A field that is replaced as one cannot be merged into: its author would lose what he does not name.
fn find_atomics(view: View<'_>, value: &Value, path: &str, found: &mut Vec<String>) {
    if is_atomic(view, value) {
        found.push(path.to_owned());
    }
    match view.node(value) {
        Node::Fields(t) => {
            for (name, child) in value.as_object().into_iter().flatten() {
                find_atomics(field_view(t, name), child, &format!("{path}.{name}"), found);
            }
        }
        node => {
            for (step, child_view, child) in parts(node, value) {
                find_atomics(child_view, child, &format!("{path}{step}"), found);
            }
        }
    }
}

fn is_atomic(view: View<'_>, value: &Value) -> bool {
    match (view, value) {
        (View::Field(f), Value::Object(_)) => f.atomic || f.shape.as_struct().is_some_and(|t| t.atomic),
        (View::Field(f), Value::Array(_)) => f.atomic || matches!(f.list, ListType::Atomic),
        (View::Shape(shape), Value::Object(_)) => shape.as_struct().is_some_and(|t| t.atomic),
        _ => false,
    }
}

/// The object after a list of `JSONPatch{…}`; as it was if a `test` in it failed.
pub fn patched(object: &Value, made: &Val) -> Result<Value, PatchError> {
    let Val::List(items) = made else { return Err(PatchError::NoList) };
    let operations = items.iter().map(operation).collect::<Result<Vec<_>, _>>()?;
    let out = schema::patch::operations(object, Value::Array(operations));
    Ok(out?.unwrap_or_else(|| object.clone()))
}

/// One `JSONPatch{…}` as an operation of RFC 6902.
fn operation(item: &Val) -> Result<Value, PatchError> {
    let Val::Struct(parts) = item else { return Err(PatchError::NoOperation(item.type_name().to_owned())) };
    let mut operation = Map::new();
    for (field, value) in &parts.1 {
        let value = match (field.as_str(), value) {
            ("op" | "path" | "from", Val::Text(text)) => json!(text.as_ref()),
            ("value", value) => {
                let mut wrong = Vec::new();
                if let Val::Struct(parts) = value {
                    misnamed(value, &parts.0, &mut wrong);
                }
                if !wrong.is_empty() {
                    return Err(PatchError::Misnamed(wrong));
                }
                value.to_json().ok_or(PatchError::ValueNotJson)?
            }
            (_, value) => {
                return Err(PatchError::FieldType { field: field.clone(), found: value.type_name().to_owned() });
            }
        };
        operation.insert(field.clone(), value);
    }
    Ok(Value::Object(operation))
}

#[cfg(test)]
mod tests {
    use cel::admission::{Extras, names};
    use cel::syntax::Dialect;
    use cel::{OBJECT_BUDGET, Program, Surroundings};
    use schema::catalog::Catalog;

    use super::*;

    fn made(text: &str) -> Val {
        let program = Program::compile_in(Dialect::Patches, text, &names(Extras::default())).unwrap();
        program.run(&Surroundings::default(), &std::cell::Cell::new(OBJECT_BUDGET)).unwrap()
    }

    fn pod() -> Value {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "labels": {"a": "b"}},
            "spec": {"containers": [{"name": "c", "image": "i", "args": ["x"]}]}})
    }

    fn configure(text: &str) -> Result<Value, String> {
        let of = Catalog::builtin().resource(schema::table::GroupVersion::CORE, "pods").unwrap().type_def();
        configured(of, &pod(), &made(text)).map_err(|err| err.to_string())
    }

    #[test]
    fn a_configuration_is_merged_by_the_keys_of_lists() {
        let text = "Object{metadata: Object.metadata{labels: {'c': 'd'}}, spec: Object.spec{containers: \
                    [Object.spec.containers{name: 'c', imagePullPolicy: 'Always'}, Object.spec.containers{name: 'e', \
                    image: 'j'}]}}";
        let out = configure(text).unwrap();
        assert_eq!(out["metadata"]["labels"], json!({"a": "b", "c": "d"}));
        assert_eq!(
            out["spec"]["containers"][0],
            json!({"name": "c", "image": "i", "args": ["x"], "imagePullPolicy": "Always"})
        );
        assert_eq!(out["spec"]["containers"][1]["name"], "e");
    }

    #[test]
    fn what_is_replaced_as_one_may_not_be_configured() {
        let text = "Object{spec: Object.spec{containers: [Object.spec.containers{name: 'c', args: ['y']}]}}";
        let why = configure(text).unwrap_err();
        assert!(
            why.starts_with(
                "error applying patch: invalid ApplyConfiguration: may not mutate atomic arrays, maps or structs: \
                 .spec.containers"
            ),
            "{why}"
        );
        let why = configure("Object{spec: Object.wrong{}}").unwrap_err();
        assert_eq!(
            why,
            "type mismatch: unexpected type name \"Object.wrong\", expected \"Object.spec\", which matches field name \
             path from root Object type"
        );
        assert!(
            configure("Object{spec: Object.spec{nothing: 1}}")
                .unwrap_err()
                .contains(".spec.nothing: field not declared in schema")
        );
    }

    #[test]
    fn a_test_that_fails_leaves_the_object_as_it_was() {
        let out = patched(
            &pod(),
            &made(
                "[JSONPatch{op: 'test', path: '/metadata/name', value: 'q'}, JSONPatch{op: 'remove', path: '/spec'}]",
            ),
        );
        assert_eq!(out.unwrap(), pod());
        let out = patched(
            &pod(),
            &made("[JSONPatch{op: 'add', path: '/metadata/labels/' + jsonpatch.escapeKey('x/y'), value: 'z'}]"),
        );
        assert_eq!(out.unwrap()["metadata"]["labels"]["x/y"], "z");
        assert!(
            patched(&pod(), &made("[JSONPatch{op: 'remove', path: '/nothing/here'}]"))
                .unwrap_err()
                .to_string()
                .starts_with("JSON Patch: ")
        );
    }

    #[test]
    fn a_value_that_is_no_patch_is_refused_in_upstreams_words() {
        let configured = |text: &str| configure(text).unwrap_err();
        assert_eq!(configured("[1]"), "unsupported return type from ApplyConfiguration expression: list");
        let patched = |text: &str| patched(&pod(), &made(text)).unwrap_err().to_string();
        for (text, wanted) in [
            ("'x'", "type mismatch: JSONPatchType.expression should evaluate to array"),
            (
                "[1]",
                "type mismatch: JSONPatchType.expression should evaluate to array of JSONPatch, got element of int",
            ),
        ] {
            assert_eq!(patched(text), wanted, "{text}");
        }
    }
}
