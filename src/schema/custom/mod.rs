//! Custom resources: a CRD's schemas compiled once, so that custom objects get the same engine as built-in ones.

use std::sync::Arc;

use model::meta;
use serde_json::Value;

use crate::behaviour::{CUSTOM, CUSTOM_WITH_STATUS};
use crate::decode::{DecodeError, Decoded, FieldValidation, go_kind};
use crate::rows::types;
use crate::table::{Empty, Field, GroupVersion, Gvk, ListType, Name, Resource, Shape, Subresource, TypeDef, TypeRef};

pub mod cost;
pub mod definition;
pub mod node;
pub mod rules;
pub mod shape;
pub mod structural;
pub mod values;

use definition::{Definition, Scale};
use node::Node;

const VERBS: [&str; 8] = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];

impl Definition {
    fn of(crd: &Value, version: &Value) -> Definition {
        let schema = &version["schema"]["openAPIV3Schema"];
        let paths = &version["subresources"]["scale"];
        let path = |field: &str| {
            paths[field].as_str().map(|p| p.trim_start_matches('.').split('.').map(str::to_owned).collect::<Vec<_>>())
        };
        let scale = path("specReplicasPath").zip(path("statusReplicasPath"));
        let (group, kind) = (&crd["spec"]["group"], &crd["spec"]["names"]["kind"]);
        let default = || format!("{}/{} {} is deprecated", text(group), text(&version["name"]), text(kind));
        let warning = (version["deprecated"] == true)
            .then(|| version["deprecationWarning"].as_str().map_or_else(default, str::to_owned));
        let mut node = Node::compile(schema);
        rules::attach(&mut node, schema);
        Definition {
            crd: meta::name(crd).to_owned(),
            uid: meta::uid(crd).to_owned(),
            schema: node,
            openapi: schema.clone(),
            columns: crate::print::custom::or_default(crate::read::list(version, "additionalPrinterColumns")),
            scale: scale.map(|(spec, status)| Scale { spec, status, selector: path("labelSelectorPath") }),
            warning,
            webhook: (crd["spec"]["conversion"]["strategy"] == "Webhook").then(|| crd["spec"]["conversion"].clone()),
            terminating: meta::deletion_timestamp(crd).is_some(),
            stamp: stamp(crd),
        }
    }

    /// Brings a body into the form of the schema: metadata by its type, unknown fields dropped and reported.
    ///
    /// Errors: it is no object, its metadata has a wrong type, or (strict) there are unknown or repeated fields.
    pub fn decode(
        &self,
        mut value: Value,
        validation: FieldValidation,
        mut problems: Vec<String>,
    ) -> Result<Decoded, DecodeError> {
        if !value.is_object() {
            let what = go_kind(&value);
            return Err(DecodeError::Type(format!(
                "json: cannot unmarshal {what} into Go value of type map[string]interface {{}}"
            )));
        }
        let mut unknown = Vec::new();
        shape::metadata(&self.schema, &mut value, &mut unknown)?;
        shape::prune(&self.schema, &mut value, &mut unknown);
        unknown.sort();
        problems.extend(unknown.iter().map(|path| format!("unknown field {path:?}")));
        if value.get("metadata").is_none_or(Value::is_null) {
            value["metadata"] = serde_json::json!({"creationTimestamp": null});
        }
        problems.truncate(100);
        match validation {
            FieldValidation::Strict if !problems.is_empty() => Err(DecodeError::Strict(problems)),
            FieldValidation::Warn => Ok(Decoded { value, warnings: problems }),
            _ => Ok(Decoded { value, warnings: Vec::new() }),
        }
    }

    /// Fills in the schema's defaults.
    pub fn default(&self, value: &mut Value) {
        shape::default(&self.schema, value);
    }

    /// Turns an object that an older definition let in into one that this would have let in.
    pub fn normalize(&self, value: &mut Value) {
        shape::prune(&self.schema, value, &mut Vec::new());
        shape::default(&self.schema, value);
    }
}

/// A text that changes when the definition changes.
pub fn stamp(crd: &Value) -> String {
    crate::openapi::hash(&[meta::uid(crd), &crd["spec"].to_string()])
}

fn text(v: &Value) -> &str {
    v.as_str().unwrap_or_default()
}

/// The rows of a CRD's served versions, and of the one that is stored, in the order of `spec.versions`.
///
/// The stored version's row has no verbs if it is not served.
pub fn resources(crd: &Value) -> Vec<Resource> {
    let spec = &crd["spec"];
    let versions = spec["versions"].as_array().map(Vec::as_slice).unwrap_or_default();
    let stored = versions.iter().find(|v| v["storage"] == true).map(|v| name(&v["name"])).unwrap_or_default();
    versions.iter().filter(|v| v["served"] == true || v["storage"] == true).map(|v| resource(crd, v, &stored)).collect()
}

fn resource(crd: &Value, version: &Value, stored: &Name) -> Resource {
    let spec = &crd["spec"];
    let names = &spec["names"];
    let gvk = Gvk { group: name(&spec["group"]), version: name(&version["name"]), kind: name(&names["kind"]) };
    let schema = &version["schema"]["openAPIV3Schema"];
    let verbs = |all: &[&'static str]| all.iter().map(|v| Name::Borrowed(v)).collect::<Vec<_>>();
    let served = version["served"] == true;
    let mut subresources = Vec::new();
    if served && version["subresources"]["scale"].is_object() {
        let kind = Gvk { group: "autoscaling".into(), version: "v1".into(), kind: "Scale".into() };
        subresources.push(Subresource { name: "scale".into(), kind, verbs: verbs(&["get", "patch", "update"]) });
    }
    if served && version["subresources"]["status"].is_object() {
        subresources.push(Subresource {
            name: "status".into(),
            kind: gvk.clone(),
            verbs: verbs(&["get", "patch", "update"]),
        });
    }
    let has_status = subresources.iter().any(|s: &Subresource| s.name == "status");
    let behaviour = if has_status { &CUSTOM_WITH_STATUS } else { &CUSTOM };
    let selectable = version["selectableFields"].as_array().into_iter().flatten();
    let hash = crate::openapi::storage_version_hash(GroupVersion { group: &gvk.group, version: stored }, &gvk.kind);
    Resource {
        group: gvk.group.clone(),
        version: gvk.version.clone(),
        kind: gvk.kind.clone(),
        list_kind: name(&names["listKind"]),
        plural: name(&names["plural"]),
        singular: name(&names["singular"]),
        short_names: list(&names["shortNames"]),
        categories: list(&names["categories"]),
        namespaced: spec["scope"] == "Namespaced",
        verbs: if served { verbs(&VERBS) } else { Vec::new() },
        subresources,
        storage_version: stored.clone(),
        storage_group: gvk.group.clone(),
        storage_version_hash: hash.into(),
        // `.spec.color` in the CRD, `spec.color` in a selector.
        selectable: selectable
            .map(|f| f["jsonPath"].as_str().unwrap_or_default().trim_start_matches('.').to_owned().into())
            .collect(),
        type_ref: TypeRef::of(root(schema, gvk, meta::name(crd))),
        custom: true,
        behaviour,
        definition: Some(Arc::new(Definition::of(crd, version))),
    }
}

fn name(v: &Value) -> Name {
    Name::Owned(v.as_str().unwrap_or_default().to_owned())
}

fn list(v: &Value) -> Vec<Name> {
    v.as_array().into_iter().flatten().map(name).collect()
}

/// The body of a custom object: what the schema says, with the three fields that every object has.
fn root(schema: &Value, gvk: Gvk, crd: &str) -> TypeDef {
    let mut path: Vec<&str> = gvk.group.rsplit('.').collect();
    path.extend([gvk.version.as_ref(), gvk.kind.as_ref()]);
    let type_name = if gvk.group.is_empty() { crd.to_owned() } else { path.join(".") };
    let mut t = object(schema, &type_name);
    t.fields.retain(|f| !matches!(f.name.as_ref(), "apiVersion" | "kind" | "metadata"));
    t.fields.push(Field::new("apiVersion", Shape::String));
    t.fields.push(Field::new("kind", Shape::String));
    if let Some(meta) = types::type_ref(shape::META) {
        t.fields.push(Field { empty: Empty::Always, ..Field::new("metadata", Shape::Struct(meta.clone())) });
    }
    t.fields.sort_by(|a, b| a.name.cmp(&b.name));
    t.gvks.push(gvk);
    t
}

fn object(schema: &Value, path: &str) -> TypeDef {
    let required: Vec<&str> = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    // A JSON object's keys are sorted here, as the table wants its fields.
    let fields = schema["properties"]
        .as_object()
        .into_iter()
        .flatten()
        .map(|(key, s)| field(key, s, required.contains(&key.as_str()), path));
    TypeDef {
        name: path.to_owned().into(),
        fields: fields.collect(),
        open: is(schema, "preserve-unknown-fields"),
        atomic: schema["x-kubernetes-map-type"] == "atomic",
        embedded: is(schema, "embedded-resource"),
        ..TypeDef::default()
    }
}

fn is(schema: &Value, extension: &str) -> bool {
    schema[format!("x-kubernetes-{extension}").as_str()] == true
}

fn field(key: &str, schema: &Value, required: bool, path: &str) -> Field {
    let mut f = Field::new(key.to_owned(), shape(schema, &format!("{path}.{key}")));
    f.required = required;
    f.nullable = schema["nullable"] == true;
    f.default = schema.get("default").cloned();
    f.atomic = schema["x-kubernetes-map-type"] == "atomic";
    f.enums = list(&schema["enum"]);
    if let Some(kind) = schema["x-kubernetes-list-type"].as_str() {
        f.list_said = true;
        f.list = match kind {
            "map" => ListType::Map(list(&schema["x-kubernetes-list-map-keys"])),
            "set" => ListType::Set,
            _ => ListType::Atomic,
        };
    }
    f
}

fn shape(schema: &Value, path: &str) -> Shape {
    if is(schema, "int-or-string") {
        return Shape::IntOrString;
    }
    match (schema["type"].as_str(), schema["format"].as_str()) {
        (Some("boolean"), _) => Shape::Bool,
        (Some("integer"), Some("int32")) => Shape::Int32,
        (Some("integer"), _) => Shape::Int64,
        (Some("number"), _) => Shape::Float,
        // Formats of text are validated but never rewritten: a custom object keeps its spelling.
        (Some("string"), _) => Shape::String,
        (Some("array"), _) => Shape::List(Box::new(shape(&schema["items"], path))),
        (Some("object"), _) if schema["additionalProperties"].is_object() => {
            Shape::Map(Box::new(shape(&schema["additionalProperties"], path)))
        }
        (Some("object"), _) if schema["additionalProperties"] == true => Shape::Any,
        (Some("object"), _) => Shape::Struct(TypeRef::of(object(schema, path))),
        _ => Shape::Any,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::resources;
    use crate::decode::{FieldValidation, conform};

    fn widgets() -> Value {
        json!({"metadata": {"name": "widgets.example.com"}, "spec": {"group": "example.com", "scope": "Namespaced",
            "names": {"kind": "Widget", "listKind": "WidgetList", "plural": "widgets", "singular": "widget",
                "shortNames": ["w"]},
            "versions": [{"name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                    "spec": {"type": "object", "properties": {"size": {"type": "integer", "default": 3},
                        "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}}}}}]}})
    }

    #[test]
    fn a_custom_object_is_pruned_and_defaulted_by_its_schema() {
        let r = resources(&widgets()).remove(0);
        assert!(r.custom && r.namespaced && r.has_status() && r.short_names == ["w"]);
        let object = json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "a"},
            "spec": {"odd": 1, "free": {"x": 1}}});
        let mut got = conform(object, r.type_def(), FieldValidation::Warn).expect("conforms");
        assert_eq!(got.warnings, ["unknown field \"spec.odd\""]);
        crate::defaults::apply(&r, &mut got.value);
        assert_eq!(got.value["spec"], json!({"free": {"x": 1}, "size": 3}));
    }
}
