//! Makes `generated/table.tsv` from facts: OpenAPI v3 and discovery of a genuine server, protobuf tags of the .proto
//! files, and `presence.tsv` (which Go fields are written when zero). Names, types and markers only; no sentence is
//! copied.
//!
//! `cargo run -p schema --example gen -- UPSTREAM_DATA PROTO_FILES > src/schema/generated/table.tsv`

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use serde_json::{Map, Value};

type Fail = Box<dyn std::error::Error>;

fn main() -> Result<(), Fail> {
    let mut args = std::env::args().skip(1);
    let (Some(upstream), Some(pb)) = (args.next(), args.next()) else {
        return Err("usage: gen UPSTREAM_DATA PROTO_FILES".into());
    };
    let schemas = read_schemas(&Path::new(&upstream).join("openapi/v3"))?;
    let mut facts = Facts { messages: BTreeMap::new(), presence: read_presence()? };
    read_protos(Path::new(&pb), &mut facts.messages)?;
    let mut out = String::new();
    for (name, schema) in &schemas {
        write_type(&mut out, name, schema, &schemas, &facts)?;
    }
    write_resources(&mut out, &Path::new(&upstream).join("discovery"), &schemas)?;
    print!("{out}");
    Ok(())
}

struct Facts {
    messages: BTreeMap<String, Vec<Wire>>,
    presence: BTreeMap<(String, String), char>,
}

fn read_json(path: &Path) -> Result<Value, Fail> {
    Ok(serde_json::from_slice(&fs::read(path).map_err(|e| format!("{}: {e}", path.display()))?)?)
}

fn read_schemas(dir: &Path) -> Result<BTreeMap<String, Value>, Fail> {
    let mut all = BTreeMap::new();
    let mut paths: Vec<_> = fs::read_dir(dir)?.collect::<Result<Vec<_>, _>>()?.into_iter().map(|e| e.path()).collect();
    paths.sort();
    for path in paths {
        let doc = read_json(&path)?;
        for (name, schema) in doc["components"]["schemas"].as_object().into_iter().flatten() {
            let known: &mut Value = all.entry(name.clone()).or_insert_with(|| schema.clone());
            add_kinds(known, schema);
        }
    }
    Ok(all)
}

/// A document names only its own kinds of a shared type (DeleteOptions): the table wants them all.
fn add_kinds(known: &mut Value, schema: &Value) {
    let key = "x-kubernetes-group-version-kind";
    if let (Some(Value::Array(all)), Some(Value::Array(more))) = (known.get_mut(key), schema.get(key)) {
        let new: Vec<Value> = more.iter().filter(|k| !all.contains(k)).cloned().collect();
        all.extend(new);
    }
}

fn read_presence() -> Result<BTreeMap<(String, String), char>, Fail> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("gen/presence.tsv");
    let mut all = BTreeMap::new();
    for line in fs::read_to_string(path)?.lines() {
        let mut cells = line.split('\t');
        let name = cells.next().unwrap_or_default();
        for cell in cells {
            let (code, fields) = cell.split_once(':').ok_or("presence.tsv: no colon")?;
            for field in fields.split(',') {
                all.insert((name.to_owned(), field.to_owned()), code.chars().next().unwrap_or('K'));
            }
        }
    }
    Ok(all)
}

/// A field of a protobuf message: its number and, if its type is a message, that message's name.
struct Wire {
    name: String,
    tag: u32,
    of: String,
}

/// `.proto` files: `message X {` at the margin, then `optional Type name = N;`, `repeated …` or `map<K, V> …`.
fn read_protos(dir: &Path, messages: &mut BTreeMap<String, Vec<Wire>>) -> Result<(), Fail> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            read_protos(&path, messages)?;
        } else if path.extension().is_some_and(|e| e == "proto") {
            read_proto(&fs::read_to_string(&path)?, messages)?;
        }
    }
    Ok(())
}

fn read_proto(text: &str, messages: &mut BTreeMap<String, Vec<Wire>>) -> Result<(), Fail> {
    let full = |name: &str| name.trim_start_matches('.').replacen("k8s.io.", "io.k8s.", 1).replace('_', "-");
    let package = text.lines().find_map(|l| l.strip_prefix("package ")).ok_or("a .proto without a package")?;
    let package = full(package.trim_end_matches(';'));
    let mut owner = String::new();
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("message ") {
            owner = format!("{package}.{}", name.trim_end_matches([' ', '{']));
            messages.entry(owner.clone()).or_default();
        } else if let Some((left, right)) = line.trim().split_once(" = ").filter(|(l, _)| !l.starts_with("//")) {
            let digits = right.split([';', ' ']).next().unwrap_or_default();
            let (Some((kind, name)), Ok(tag)) = (left.rsplit_once(' '), digits.parse()) else { continue };
            let of = kind.strip_prefix("optional ").unwrap_or_default();
            let of = if of.contains('.') { full(of) } else { format!("{package}.{of}") };
            messages.entry(owner.clone()).or_default().push(Wire { name: plain(name), tag, of });
        }
    }
    Ok(())
}

/// The numbers that lead to a JSON field. A struct embedded in Go is a message of its own on the wire: `2/1`.
fn tags(
    message: &str,
    field: &str,
    inside: &BTreeSet<String>,
    messages: &BTreeMap<String, Vec<Wire>>,
) -> Option<String> {
    let wires = messages.get(message)?;
    if let Some(wire) = wires.iter().find(|w| w.name == field) {
        return Some(wire.tag.to_string());
    }
    let embedded = wires.iter().filter(|w| !inside.contains(&w.name));
    embedded.filter_map(|w| tags(&w.of, field, inside, messages).map(|t| format!("{}/{t}", w.tag))).next()
}

fn plain(name: &str) -> String {
    name.chars().filter(char::is_ascii_alphanumeric).collect::<String>().to_ascii_lowercase()
}

fn shape(schema: &Value, all: &BTreeMap<String, Value>) -> String {
    let reference = schema["$ref"].as_str().or_else(|| schema["allOf"][0]["$ref"].as_str());
    if let Some(name) = reference.and_then(|r| r.rsplit('/').next()) {
        return match name.rsplit('.').next().unwrap_or_default() {
            "Quantity" => "Q".into(),
            "Time" => "t".into(),
            "MicroTime" => "u".into(),
            "IntOrString" => "I".into(),
            "RawExtension"
            | "FieldsV1"
            | "JSON"
            | "JSONSchemaPropsOrArray"
            | "JSONSchemaPropsOrBool"
            | "JSONSchemaPropsOrStringArray" => "*".into(),
            _ if all.contains_key(name) => format!("#{name}"),
            _ => "*".into(),
        };
    }
    match (schema["type"].as_str(), schema["format"].as_str()) {
        (Some("boolean"), _) => "b".into(),
        (Some("integer"), Some("int32")) => "i".into(),
        (Some("integer"), _) => "l".into(),
        (Some("number"), _) => "f".into(),
        (Some("string"), Some("byte")) => "B".into(),
        (Some("string"), _) => "s".into(),
        (Some("array"), _) => format!("[{}", shape(&schema["items"], all)),
        (Some("object"), _) if schema["additionalProperties"].is_object() => {
            format!("{{{}", shape(&schema["additionalProperties"], all))
        }
        _ => "*".into(),
    }
}

fn strings(v: &Value) -> Vec<&str> {
    v.as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

fn write_type(
    out: &mut String,
    name: &str,
    schema: &Value,
    all: &BTreeMap<String, Value>,
    facts: &Facts,
) -> Result<(), Fail> {
    let gvks: Vec<String> =
        schema["x-kubernetes-group-version-kind"].as_array().into_iter().flatten().map(gvk).collect();
    let atomic = if schema["x-kubernetes-map-type"] == "atomic" { "a" } else { "" };
    let unions: Vec<String> = schema["x-kubernetes-unions"].as_array().into_iter().flatten().map(union).collect();
    writeln!(out, "T\t{name}\t{atomic}\t{}\t{}", gvks.join(","), unions.join(" "))?;
    let required: BTreeSet<&str> = strings(&schema["required"]).into_iter().collect();
    let empty = Map::new();
    let mut fields: Vec<_> = schema["properties"].as_object().unwrap_or(&empty).iter().collect();
    fields.sort_by_key(|(name, _)| name.as_str());
    // A message's field that JSON names too is no embedded struct.
    let inside: BTreeSet<String> = fields.iter().map(|(name, _)| plain(name)).collect();
    for (field, s) in fields {
        write_field(out, (name, field, &inside), s, required.contains(field.as_str()), all, facts)?;
    }
    Ok(())
}

/// Pointers to texts and flags in the packages without presence facts: nothing published tells them from plain ones.
const POINTERS: [(&str, &str); 9] = [
    (".CustomResourceDefinitionVersion", "deprecationWarning"),
    (".CustomResourceSubresourceScale", "labelSelectorPath"),
    (".JSONSchemaProps", "$ref"),
    (".JSONSchemaProps", "x-kubernetes-preserve-unknown-fields"),
    (".JSONSchemaProps", "x-kubernetes-list-type"),
    (".JSONSchemaProps", "x-kubernetes-map-type"),
    (".ValidationRule", "optionalOldSelf"),
    (".ValidationRule", "reason"),
    (".apiextensions.v1.ServiceReference", "path"),
];

fn write_field(
    out: &mut String,
    at: (&str, &str, &BTreeSet<String>),
    s: &Value,
    required: bool,
    all: &BTreeMap<String, Value>,
    facts: &Facts,
) -> Result<(), Fail> {
    let (name, field, inside) = at;
    let tag = tags(name, &plain(field), inside, &facts.messages).unwrap_or_else(|| "0".into());
    let shape = shape(s, all);
    write!(out, "{field}\t{tag}\t{shape}")?;
    if required {
        write!(out, "\tr")?;
    }
    let known = facts.presence.get(&(name.to_owned(), field.to_owned())).copied();
    let collection = shape.starts_with(['[', '{', 'B']);
    let by_value = s.get("default").is_some();
    match known {
        // omitempty never omits a struct by value; a named text type of another package is no struct.
        Some('D' | 'S') if shape.starts_with(['#', 'Q', 'I', 't', 'u']) => write!(out, "\t=A")?,
        Some('D' | 'S') => write!(out, "\t=D")?,
        Some(code) => write!(out, "\t={code}")?,
        // Two packages have no presence facts (apiextensions, apiregistration): a default marker tells a value from a
        // pointer.
        None if collection => write!(out, "\t=D")?,
        None if by_value && !known_package(name) => write!(out, "\t=A")?,
        None if POINTERS.iter().any(|(of, pointer)| name.ends_with(of) && field == *pointer) => {}
        None if !known_package(name) && shape == "b" => write!(out, "\t=D")?,
        None if !known_package(name) && shape == "s" && !name.ends_with("WebhookClientConfig") => write!(out, "\t=D")?,
        None => {}
    }
    let default = &s["default"];
    if default.is_number() && *default != 0 || default.as_str().is_some_and(|d| !d.is_empty()) {
        write!(out, "\td:{default}")?;
    }
    let keys = strings(&s["x-kubernetes-list-map-keys"]).join(",");
    match s["x-kubernetes-list-type"].as_str() {
        Some("map") => write!(out, "\tl:map:{keys}")?,
        Some(kind) => write!(out, "\tl:{kind}")?,
        None => {}
    }
    if s["x-kubernetes-map-type"] == "atomic" {
        write!(out, "\tm")?;
    }
    if let Some(key) = s["x-kubernetes-patch-merge-key"].as_str() {
        write!(out, "\tk:{key}")?;
    }
    if let Some(strategy) = s["x-kubernetes-patch-strategy"].as_str() {
        write!(out, "\tp:{strategy}")?;
    }
    writeln!(out)?;
    Ok(())
}

fn known_package(name: &str) -> bool {
    name.starts_with("io.k8s.api.") || name.starts_with("io.k8s.apimachinery.")
}

fn gvk(v: &Value) -> String {
    let s = |k: &str| v[k].as_str().unwrap_or_default();
    format!("{}/{}/{}", s("group"), s("version"), s("kind"))
}

fn union(v: &Value) -> String {
    let members = v["fields-to-discriminateBy"].as_object();
    let members: Vec<String> =
        members.into_iter().flatten().map(|(k, v)| format!("{k}={}", v.as_str().unwrap_or_default())).collect();
    format!("{}:{}", v["discriminator"].as_str().unwrap_or_default(), members.join(","))
}

fn write_resources(out: &mut String, dir: &Path, schemas: &BTreeMap<String, Value>) -> Result<(), Fail> {
    let mut lists = vec![read_json(&dir.join("api__v1.json"))?];
    for group in read_json(&dir.join("apis.json"))?["groups"].as_array().into_iter().flatten() {
        for version in group["versions"].as_array().into_iter().flatten() {
            let gv = version["groupVersion"].as_str().unwrap_or_default();
            lists.push(read_json(&dir.join(format!("apis__{}.json", gv.replace('/', "__"))))?);
        }
    }
    let type_of: BTreeMap<String, &String> = schemas
        .iter()
        .flat_map(|(n, s)| {
            s["x-kubernetes-group-version-kind"].as_array().into_iter().flatten().map(move |g| (gvk(g), n))
        })
        .collect();
    for list in &lists {
        write_group_version(out, list, &type_of)?;
    }
    Ok(())
}

fn write_group_version(out: &mut String, list: &Value, type_of: &BTreeMap<String, &String>) -> Result<(), Fail> {
    let gv = list["groupVersion"].as_str().unwrap_or_default();
    let (group, version) = gv.split_once('/').unwrap_or(("", gv));
    let rows: Vec<&Value> = list["resources"].as_array().into_iter().flatten().collect();
    let name = |r: &Value| r["name"].as_str().unwrap_or_default().to_owned();
    for row in rows.iter().filter(|r| !name(r).contains('/')) {
        let plural = name(row);
        let kind = row["kind"].as_str().unwrap_or_default();
        // A row may name another group's kind (bindings do not); its own group is meant where none is said.
        let key = format!("{group}/{version}/{kind}");
        let t = type_of.get(&key).ok_or_else(|| format!("no type for {key}"))?;
        let verbs = strings(&row["verbs"]).join(",");
        let scope = if row["namespaced"] == true { "N" } else { "C" };
        write!(
            out,
            "R\t{group}\t{version}\t{kind}\t{plural}\t{}\t{}\t{}",
            row["singularName"].as_str().unwrap_or_default(),
            strings(&row["shortNames"]).join(","),
            strings(&row["categories"]).join(",")
        )?;
        write!(out, "\t{scope}\t{verbs}\t{}\t{t}", row["storageVersionHash"].as_str().unwrap_or_default())?;
        for sub in &rows {
            if let Some(s) = name(sub).strip_prefix(&format!("{plural}/")) {
                let part = |k: &str, or: &str| sub[k].as_str().unwrap_or(or).to_owned();
                let (g, v) = if sub.get("version").is_some() {
                    (part("group", ""), part("version", ""))
                } else {
                    (group.to_owned(), version.to_owned())
                };
                write!(out, "\t{s}:{g}/{v}/{}:{}", part("kind", ""), strings(&sub["verbs"]).join(","))?;
            }
        }
        writeln!(out)?;
    }
    Ok(())
}
