//! Schemas of custom resources: what their definitions say, with what every object has.

use serde_json::{Map, Value, json};

use super::Dialect;
use crate::custom::definition::Definition;
use crate::table::Resource;

const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1";
const API_VERSION: &str = "APIVersion defines the versioned schema of this representation of an object. Servers should \
    convert recognized schemas to the latest internal value, and may reject unrecognized values. More info: \
        https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#resources";
const KIND: &str = "Kind is a string value representing the REST resource this object represents. Servers may infer \
    this from the endpoint the client submits requests to. Cannot be updated. In CamelCase. More info: \
        https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#types-kinds";
const METADATA: &str = "Standard object's metadata. More info: \
    https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#metadata";
const LIST_METADATA: &str = "Standard list metadata. More info: \
    https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#types-kinds";

/// The schema of this name, if it is the object or the list of one of the rows.
pub(super) fn schema(rows: &[&Resource], name: &str, dialect: Dialect, needs: &mut Vec<String>) -> Option<Value> {
    rows.iter().find_map(|r| {
        let definition = r.definition.as_ref()?;
        let own = r.type_ref.name();
        if name == own {
            needs.push(format!("{META}.ObjectMeta"));
            Some(object(r, definition, dialect))
        } else if name.strip_suffix("List") == Some(own) {
            needs.extend([own.to_owned(), format!("{META}.ListMeta")]);
            Some(list(r, dialect))
        } else {
            None
        }
    })
}

fn text(description: &str) -> Value {
    json!({"type": "string", "description": description})
}

fn reference(dialect: Dialect, name: &str, description: &str) -> Value {
    let mut at = dialect.reference(name);
    // Beside a $ref other keys are ignored in v3, so it is wrapped there as upstream does.
    if dialect == Dialect::V3 {
        at = json!({"allOf": [at]});
    }
    at["description"] = description.into();
    at
}

fn object(r: &Resource, definition: &Definition, dialect: Dialect) -> Value {
    let mut schema = definition.openapi.clone();
    if dialect == Dialect::V2 {
        simplify(&mut schema);
    }
    // A root that keeps everything is no more than an object in v2: kubectl would take what properties it has for the
    // only ones.
    if !schema.is_object() || dialect == Dialect::V2 && definition.schema.preserve {
        schema = json!({"type": "object"});
    } else {
        let properties = &mut schema["properties"];
        if !properties.is_object() {
            *properties = json!({});
        }
        properties["apiVersion"] = text(API_VERSION);
        properties["kind"] = text(KIND);
        properties["metadata"] = reference(dialect, &format!("{META}.ObjectMeta"), METADATA);
    }
    schema["x-kubernetes-group-version-kind"] = json!([{"group": r.group, "version": r.version, "kind": r.kind}]);
    schema
}

fn list(r: &Resource, dialect: Dialect) -> Value {
    let item = match dialect {
        Dialect::V2 => dialect.reference(r.type_ref.name()),
        Dialect::V3 => dialect.reference(r.type_ref.name()),
    };
    let about = format!(
        "List of {}. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md",
        r.plural
    );
    json!({
        "type": "object", "description": format!("{} is a list of {}", r.list_kind, r.kind), "required": ["items"],
        "properties": {
            "apiVersion": text(API_VERSION), "kind": text(KIND),
                "metadata": reference(dialect, &format!("{META}.ListMeta"), LIST_METADATA),
            "items": {"type": "array", "description": about, "items": item},
        },
        "x-kubernetes-group-version-kind": [{"group": r.group, "version": r.version, "kind": r.list_kind}],
    })
}

/// Fields that v2 cannot say are left out, as upstream leaves them out.
fn simplify(schema: &mut Value) {
    let Some(map) = schema.as_object_mut() else { return };
    for key in ["allOf", "anyOf", "oneOf", "not", "x-kubernetes-validations"] {
        map.remove(key);
    }
    if map.remove("nullable") == Some(Value::Bool(true)) {
        for key in ["type", "items", "properties"] {
            map.remove(key);
        }
    }
    if map.get("x-kubernetes-preserve-unknown-fields") == Some(&Value::Bool(true)) {
        map.remove("items");
        map.remove("properties");
    }
    for key in ["items", "additionalProperties"] {
        if let Some(inner) = map.get_mut(key) {
            simplify(inner);
        }
    }
    let properties = map.get_mut("properties").and_then(Value::as_object_mut);
    properties.into_iter().flat_map(Map::values_mut).for_each(simplify);
}
