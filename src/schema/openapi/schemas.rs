//! Types of the table as OpenAPI schemas.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::descriptions::Descriptions;
use super::{Dialect, sentences};
use crate::catalog::Catalog;
use crate::table::{Empty, Field, ListType, Name, Resource, Shape, TypeDef, TypeRef};

const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1";
const INT_OR_STRING: &str = "io.k8s.apimachinery.pkg.util.intstr.IntOrString";
const QUANTITY: &str = "io.k8s.apimachinery.pkg.api.resource.Quantity";
const VERSION: &str = "io.k8s.apimachinery.pkg.version.Info";
/// Needed by every group version.
const ALWAYS: [&str; 5] = ["Status", "DeleteOptions", "APIResourceList", "WatchEvent", "Patch"];
/// Bodies of the paths above the group versions.
const ROOT: [&str; 3] = ["APIGroup", "APIGroupList", "APIVersions"];
const RAW: &str = "io.k8s.apimachinery.pkg.runtime.RawExtension";

/// All schemas that the rows' bodies, lists, subresources and errors need.
pub(super) fn closure(catalog: &Catalog, dialect: Dialect, rows: &[&Resource]) -> Value {
    let mut queue: Vec<String> = ALWAYS.map(|n| format!("{META}.{n}")).to_vec();
    if dialect == Dialect::V2 {
        queue.extend(ROOT.map(|n| format!("{META}.{n}")));
        queue.push(VERSION.to_owned());
    }
    for r in rows {
        queue.push(r.type_ref.name().to_owned());
        queue.push(format!("{}List", r.type_ref.name()));
        let kinds = r.subresources.iter().filter_map(|s| catalog.type_of_kind(s.kind.group_version(), &s.kind.kind));
        queue.extend(kinds.map(|t| t.name.to_string()));
    }
    let descriptions = Descriptions::read();
    let mut done = BTreeSet::new();
    let mut out = Map::new();
    while let Some(name) = queue.pop() {
        if !done.insert(name.clone()) {
            continue;
        }
        if let Some(mut schema) = special(&name, dialect) {
            describe(&mut schema, descriptions.of_type(&name));
            out.insert(name, schema);
        } else if let Some(schema) = super::custom::schema(rows, &name, dialect, &mut queue) {
            out.insert(name, schema);
        } else if let Some(t) = type_of(catalog, rows, &name) {
            let list_of =
                name.strip_suffix("List").and_then(|item| rows.iter().find(|r| r.type_ref.name() == item)).copied();
            let mut writer = Writer { dialect, descriptions: &descriptions, list_of, needs: &mut queue };
            let mut schema = writer.schema(t);
            if dialect == Dialect::V3 {
                keep_kinds_of(&mut schema, rows);
            }
            out.insert(name, schema);
        }
    }
    Value::Object(out)
}

/// DeleteOptions and WatchEvent are kinds of every group version; one document names only its own and the core's.
fn keep_kinds_of(schema: &mut Value, rows: &[&Resource]) {
    let Some(Value::Array(kinds)) = schema.get_mut("x-kubernetes-group-version-kind") else { return };
    if kinds.len() > 2 {
        let own = |k: &Value| rows.iter().any(|r| k["group"] == r.group.as_ref() && k["version"] == r.version.as_ref());
        kinds.retain(|k| own(k) || (k["group"] == "" && k["version"] == "v1"));
    }
}

fn type_of<'a>(catalog: &'a Catalog, rows: &[&'a Resource], name: &str) -> Option<&'a TypeDef> {
    catalog.type_of(name).or_else(|| rows.iter().find(|r| r.type_ref.name() == name).map(|r| TypeRef::get(&r.type_ref)))
}

/// Types that are no structs.
fn special(name: &str, dialect: Dialect) -> Option<Value> {
    Some(match (name, dialect) {
        (QUANTITY, Dialect::V2) => json!({"type": "string"}),
        (QUANTITY, Dialect::V3) => json!({"oneOf": [{"type": "string"}, {"type": "number"}]}),
        (INT_OR_STRING, Dialect::V2) => json!({"type": "string", "format": "int-or-string"}),
        (INT_OR_STRING, Dialect::V3) => {
            json!({"format": "int-or-string", "oneOf": [{"type": "integer"}, {"type": "string"}]})
        }
        (RAW, _) => json!({"type": "object"}),
        _ => match name.strip_prefix(META)? {
            ".Time" | ".MicroTime" => json!({"type": "string", "format": "date-time"}),
            ".FieldsV1" | ".Patch" => json!({"type": "object"}),
            _ => return None,
        },
    })
}

fn describe(schema: &mut Value, sentence: Option<String>) {
    if let Some(sentence) = sentence {
        schema["description"] = sentence.into();
    }
}

struct Writer<'a> {
    dialect: Dialect,
    descriptions: &'a Descriptions,
    /// The type of its items, where it is a list.
    list_of: Option<&'a Resource>,
    needs: &'a mut Vec<String>,
}

impl Writer<'_> {
    fn of_list(&self, field: &str) -> Option<String> {
        self.list_of.and_then(|r| sentences::of_list(&r.kind, &r.plural, field))
    }

    fn schema(&mut self, t: &TypeDef) -> Value {
        let mut out = Map::new();
        out.insert("type".into(), "object".into());
        if let Some(sentence) = self.descriptions.of_type(&t.name).or_else(|| self.of_list("")) {
            out.insert("description".into(), sentence.into());
        }
        if !t.fields.is_empty() {
            out.insert("properties".into(), t.fields.iter().map(|f| (f.name.to_string(), self.field(t, f))).collect());
        }
        let required: Vec<&str> = t.fields.iter().filter(|f| f.required).map(|f| f.name.as_ref()).collect();
        if !required.is_empty() {
            out.insert("required".into(), required.into());
        }
        if t.atomic {
            out.insert("x-kubernetes-map-type".into(), "atomic".into());
        }
        if t.open {
            out.insert("x-kubernetes-preserve-unknown-fields".into(), true.into());
        }
        if t.embedded {
            out.insert("x-kubernetes-embedded-resource".into(), true.into());
        }
        if !t.gvks.is_empty() {
            let gvks = t.gvks.iter().map(|g| json!({"group": g.group, "version": g.version, "kind": g.kind}));
            out.insert("x-kubernetes-group-version-kind".into(), gvks.collect());
        }
        if !t.unions.is_empty() {
            out.insert("x-kubernetes-unions".into(), t.unions.iter().map(union).collect());
        }
        Value::Object(out)
    }

    fn field(&mut self, owner: &TypeDef, f: &Field) -> Value {
        let mut schema = match &f.shape {
            // Upstream writes no zero values for items of lists whose kind is said.
            Shape::List(item) if f.list_said => json!({"type": "array", "items": self.shape(item, "")}),
            shape => self.shape(shape, &f.name),
        };
        // Beside a $ref other keys are ignored in v3, so it is wrapped there as upstream does.
        if self.dialect == Dialect::V3 && schema.get("$ref").is_some() {
            schema = json!({"allOf": [schema]});
        }
        if self.dialect == Dialect::V3 {
            let default = f.default.clone().or_else(|| (f.empty == Empty::Always).then(|| zero(&f.shape)).flatten());
            if let Some(default) = default {
                schema["default"] = default;
            }
        }
        describe(&mut schema, self.descriptions.of_field(&owner.name, &f.name).or_else(|| self.of_list(&f.name)));
        if f.nullable {
            schema["nullable"] = true.into();
        }
        if !f.enums.is_empty() {
            schema["enum"] = texts(&f.enums);
        }
        markers(&mut schema, f);
        schema
    }

    fn shape(&mut self, shape: &Shape, field: &str) -> Value {
        let scalar = |kind: &str, format: Option<&str>| match format {
            Some(format) => json!({"type": kind, "format": format}),
            None => json!({"type": kind}),
        };
        match shape {
            Shape::Bool => scalar("boolean", None),
            Shape::Int32 => scalar("integer", Some("int32")),
            Shape::Int64 => scalar("integer", Some("int64")),
            Shape::Float => scalar("number", Some("double")),
            Shape::String | Shape::Duration => scalar("string", None),
            Shape::Bytes => scalar("string", Some("byte")),
            Shape::Time => self.named(&format!("{META}.Time")),
            Shape::MicroTime => self.named(&format!("{META}.MicroTime")),
            Shape::Quantity => self.named(QUANTITY),
            Shape::IntOrString => self.named(INT_OR_STRING),
            Shape::Any if field == "fieldsV1" => self.named(&format!("{META}.FieldsV1")),
            Shape::Any => json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true}),
            Shape::List(item) => json!({"type": "array", "items": self.item(item)}),
            Shape::Map(entry) => json!({"type": "object", "additionalProperties": self.shape(entry, "")}),
            Shape::Struct(t) => self.named(t.name()),
        }
    }

    fn item(&mut self, shape: &Shape) -> Value {
        let mut schema = self.shape(shape, "");
        if self.dialect == Dialect::V2 {
            return schema;
        }
        if schema.get("$ref").is_some() {
            schema = json!({"allOf": [schema]});
        }
        if let Some(zero) = zero(shape) {
            schema["default"] = zero;
        }
        schema
    }

    fn named(&mut self, name: &str) -> Value {
        self.needs.push(name.to_owned());
        self.dialect.reference(name)
    }
}

/// The marker that upstream writes for fields by value.
fn zero(shape: &Shape) -> Option<Value> {
    Some(match shape {
        Shape::Bool => false.into(),
        Shape::Int32 | Shape::Int64 | Shape::Float => 0.into(),
        Shape::String => "".into(),
        Shape::Struct(_) => json!({}),
        _ => return None,
    })
}

fn markers(schema: &mut Value, f: &Field) {
    if f.list_said {
        schema["x-kubernetes-list-type"] = match &f.list {
            ListType::Atomic => "atomic".into(),
            ListType::Set => "set".into(),
            ListType::Map(keys) => {
                schema["x-kubernetes-list-map-keys"] = texts(keys);
                "map".into()
            }
        };
    }
    if f.atomic {
        schema["x-kubernetes-map-type"] = "atomic".into();
    }
    if let Some(key) = &f.merge_key {
        schema["x-kubernetes-patch-merge-key"] = key.as_ref().into();
    }
    let strategy = match (f.patch.merge, f.patch.retain_keys) {
        (true, true) => "merge,retainKeys",
        (true, false) => "merge",
        (false, true) => "retainKeys",
        (false, false) if f.patch.replace => "replace",
        (false, false) => return,
    };
    schema["x-kubernetes-patch-strategy"] = strategy.into();
}

fn texts(names: &[Name]) -> Value {
    names.iter().map(|n| Value::from(n.as_ref())).collect()
}

fn union(u: &crate::table::Union) -> Value {
    let members: Map<String, Value> = u.members.iter().map(|(k, v)| (k.to_string(), v.as_ref().into())).collect();
    let mut out = json!({"fields-to-discriminateBy": members});
    if let Some(by) = &u.discriminator {
        out["discriminator"] = by.as_ref().into();
    }
    out
}
