//! Paths and operations of resources.

use serde_json::{Map, Value, json};

use super::{Dialect, sentences};
use crate::table::{GroupVersion, Gvk, Resource, Subresource};

const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1";
const PLAIN: [&str; 4] =
    ["application/json", "application/yaml", "application/vnd.kubernetes.protobuf", "application/cbor"];
const PATCHES: [&str; 4] = [
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    "application/apply-patch+yaml",
];
/// Custom resources take no strategic merge; kubectl apply reads here which kind of patch it may send.
const PATCHES_CUSTOM: [&str; 3] =
    ["application/json-patch+json", "application/merge-patch+json", "application/apply-patch+yaml"];
const LIST: [(&str, &str); 10] = [
    ("allowWatchBookmarks", "boolean"),
    ("continue", "string"),
    ("fieldSelector", "string"),
    ("labelSelector", "string"),
    ("limit", "integer"),
    ("resourceVersion", "string"),
    ("resourceVersionMatch", "string"),
    ("sendInitialEvents", "boolean"),
    ("timeoutSeconds", "integer"),
    ("watch", "boolean"),
];
const WRITE: [(&str, &str); 3] = [("dryRun", "string"), ("fieldManager", "string"), ("fieldValidation", "string")];
const FORCE: (&str, &str) = ("force", "boolean");
const DELETE: [(&str, &str); 5] = [
    ("dryRun", "string"),
    ("gracePeriodSeconds", "integer"),
    ("ignoreStoreReadErrorWithClusterBreakingPotential", "boolean"),
    ("orphanDependents", "boolean"),
    ("propagationPolicy", "string"),
];

type Parameters = Vec<(&'static str, &'static str)>;

/// All paths of one group version.
pub(super) fn of_version(dialect: Dialect, of: GroupVersion<'_>, rows: &[&Resource]) -> Map<String, Value> {
    let writer = Writer { dialect, root: format!("/{}", super::path_of(of)), tag: tag(of), camel: camel(of) };
    let mut out = Map::new();
    let operation = Operation {
        id: format!("get{}APIResources", writer.camel),
        sentence: "get available resources".into(),
        ..Operation::default()
    };
    out.insert(
        format!("{}/", writer.root),
        json!({"get": writer.operation(operation, &format!("{META}.APIResourceList"))}),
    );
    for r in rows {
        writer.resource(&mut out, r);
    }
    out
}

/// `apps_v1`; a group's dots end its tag: `rbacAuthorization_v1`.
fn tag(GroupVersion { group, version }: GroupVersion<'_>) -> String {
    let name = if group.is_empty() { "core".to_owned() } else { group.trim_end_matches(".k8s.io").to_owned() };
    let mut parts = name.split('.');
    let first = parts.next().unwrap_or_default().to_owned();
    format!("{}_{version}", parts.fold(first, |all, part| all + &upper(part)))
}

fn camel(of: GroupVersion<'_>) -> String {
    let tag = tag(of);
    tag.split('_').map(upper).collect()
}

fn upper(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map(|c| c.to_ascii_uppercase().to_string() + chars.as_str()).unwrap_or_default()
}

#[derive(Default)]
struct Operation {
    id: String,
    sentence: String,
    action: &'static str,
    kind: Option<Gvk>,
    query: Parameters,
    body: Option<String>,
    /// The kinds of patch that are taken, of an operation that is one.
    patches: &'static [&'static str],
    codes: Vec<&'static str>,
    watched: bool,
}

struct Writer {
    dialect: Dialect,
    root: String,
    tag: String,
    camel: String,
}

impl Writer {
    fn resource(&self, out: &mut Map<String, Value>, r: &Resource) {
        let scope = if r.namespaced { "/namespaces/{namespace}" } else { "" };
        let collection = format!("{}{scope}/{}", self.root, r.plural);
        let item = format!("{collection}/{{name}}");
        let t = r.type_ref.name();
        let list = format!("{t}List");
        let namespaced = if r.namespaced { "Namespaced" } else { "" };
        let id = |verb: &str| format!("{verb}{}{namespaced}{}", self.camel, r.kind);
        let mut path = Map::new();
        for verb in &r.verbs {
            let (method, operation, answer) = match verb.as_ref() {
                "list" => ("get", self.list(r, id("list")), list.as_str()),
                "create" => ("post", write(r.gvk(), id("create"), "post", format!("create a {}", r.kind), t), t),
                "deletecollection" => {
                    ("delete", delete_all(r, format!("delete{}Collection{namespaced}{}", self.camel, r.kind)), "Status")
                }
                _ => continue,
            };
            path.insert(method.into(), self.operation(operation, &full(answer)));
        }
        insert_path(out, collection, path, self.path_parameters(r.namespaced, None));
        let mut path = Map::new();
        for verb in &r.verbs {
            let (method, operation, answer) = match verb.as_ref() {
                "get" => ("get", read(r.gvk(), id("read"), format!("read the specified {}", r.kind)), t),
                "update" => {
                    ("put", write(r.gvk(), id("replace"), "put", format!("replace the specified {}", r.kind), t), t)
                }
                "patch" => (
                    "patch",
                    patch(r.gvk(), id("patch"), format!("partially update the specified {}", r.kind), r.custom),
                    t,
                ),
                "delete" => ("delete", delete_one(r, id("delete")), "Status"),
                _ => continue,
            };
            path.insert(method.into(), self.operation(operation, &full(answer)));
        }
        insert_path(out, item.clone(), path, self.path_parameters(r.namespaced, Some(&r.kind)));
        if r.namespaced && r.has_verb("list") {
            let operation = self.list(r, format!("list{}{}ForAllNamespaces", self.camel, r.kind));
            let mut path = Map::new();
            path.insert("get".into(), self.operation(operation, &list));
            insert_path(out, format!("{}/{}", self.root, r.plural), path, self.path_parameters(false, None));
        }
        for s in &r.subresources {
            self.subresource(out, r, s, &item);
        }
    }

    fn list(&self, r: &Resource, id: String) -> Operation {
        let sentence = format!("list or watch objects of kind {}", r.kind);
        Operation {
            id,
            sentence,
            action: "list",
            kind: Some(r.gvk()),
            query: LIST.to_vec(),
            watched: true,
            ..Operation::default()
        }
    }

    fn subresource(&self, out: &mut Map<String, Value>, r: &Resource, s: &Subresource, item: &str) {
        let name = upper(&s.name);
        let namespaced = if r.namespaced { "Namespaced" } else { "" };
        let id = |verb: &str| format!("{verb}{}{namespaced}{}{name}", self.camel, r.kind);
        let connected = |verb: &str| format!("connect{}{verb}{namespaced}{}{name}", self.camel, r.kind);
        let t = type_name(r, &s.kind);
        let connects = s.kind.kind.ends_with("Options");
        let mut path = Map::new();
        for verb in &s.verbs {
            let kind = s.kind.clone();
            let of = format!("{} of the specified {}", s.name, r.kind);
            let (method, operation) = match verb.as_ref() {
                "get" if connects => (
                    "get",
                    connect(kind, connected("Get"), format!("connect GET requests to {} of {}", s.name, r.kind)),
                ),
                "create" if connects => (
                    "post",
                    connect(kind, connected("Post"), format!("connect POST requests to {} of {}", s.name, r.kind)),
                ),
                "update" if connects => (
                    "put",
                    connect(kind, connected("Put"), format!("connect PUT requests to {} of {}", s.name, r.kind)),
                ),
                "patch" if connects => (
                    "patch",
                    connect(kind, connected("Patch"), format!("connect PATCH requests to {} of {}", s.name, r.kind)),
                ),
                "delete" if connects => (
                    "delete",
                    connect(kind, connected("Delete"), format!("connect DELETE requests to {} of {}", s.name, r.kind)),
                ),
                "get" => ("get", read(kind, id("read"), format!("read {of}"))),
                "create" => ("post", write(kind, id("create"), "post", format!("create {of}"), &t)),
                "update" => ("put", write(kind, id("replace"), "put", format!("replace {of}"), &t)),
                "patch" => ("patch", patch(kind, id("patch"), format!("partially update {of}"), r.custom)),
                _ => continue,
            };
            path.insert(method.into(), self.operation(operation, &t));
        }
        insert_path(out, format!("{item}/{}", s.name), path, self.path_parameters(r.namespaced, Some(&r.kind)));
    }

    fn path_parameters(&self, namespaced: bool, kind: Option<&str>) -> Value {
        let mut all = Vec::new();
        if let Some(kind) = kind {
            all.push(self.parameter("name", "string", "path", Some(format!("name of the {kind}"))));
        }
        if namespaced {
            all.push(self.parameter(
                "namespace",
                "string",
                "path",
                Some("object name and auth scope, such as for teams and projects".into()),
            ));
        }
        all.push(self.parameter("pretty", "string", "query", None));
        Value::Array(all)
    }

    fn parameter(&self, name: &str, kind: &str, place: &str, sentence: Option<String>) -> Value {
        let mut out = match self.dialect {
            Dialect::V2 => json!({"name": name, "in": place, "type": kind, "uniqueItems": true}),
            Dialect::V3 => json!({"name": name, "in": place, "schema": {"type": kind, "uniqueItems": true}}),
        };
        if place == "path" {
            out["required"] = true.into();
        }
        if let Some(sentence) = sentence.or_else(|| sentences::of_parameter(name).map(str::to_owned)) {
            out["description"] = sentence.into();
        }
        out
    }

    fn operation(&self, o: Operation, answer: &str) -> Value {
        let mut out = json!({"operationId": o.id, "description": o.sentence, "tags": [self.tag]});
        let mut parameters: Vec<Value> =
            o.query.iter().map(|(name, kind)| self.parameter(name, kind, "query", None)).collect();
        let consumes: Vec<&str> = if o.patches.is_empty() { vec!["*/*"] } else { o.patches.to_vec() };
        if let Some(body) = &o.body {
            let schema = self.dialect.reference(body);
            let needs_body = o.action != "delete" && o.action != "deletecollection";
            match self.dialect {
                Dialect::V2 => {
                    let mut body = json!({"name": "body", "in": "body", "schema": schema});
                    if needs_body {
                        body["required"] = true.into();
                    }
                    parameters.push(body);
                }
                Dialect::V3 => {
                    out["requestBody"] = json!({"content": content(&consumes, &schema)});
                    if needs_body {
                        out["requestBody"]["required"] = true.into();
                    }
                }
            }
        }
        if !parameters.is_empty() {
            out["parameters"] = parameters.into();
        }
        let mut produces = PLAIN.to_vec();
        if o.watched {
            produces.extend([
                "application/json;stream=watch",
                "application/vnd.kubernetes.protobuf;stream=watch",
                "application/cbor-seq",
            ]);
        }
        let connects = o.action == "connect";
        let mut responses = Map::new();
        for code in std::iter::once("200").chain(o.codes.iter().copied()) {
            let schema = if connects { json!({"type": "string"}) } else { self.dialect.reference(answer) };
            let types: &[&str] = if connects { &["*/*"] } else { &produces };
            let mut response =
                json!({"description": match code { "201" => "Created", "202" => "Accepted", _ => "OK" }});
            match self.dialect {
                Dialect::V2 => response["schema"] = schema,
                Dialect::V3 => response["content"] = content(types, &schema),
            }
            responses.insert(code.into(), response);
        }
        responses.insert("401".into(), json!({"description": "Unauthorized"}));
        out["responses"] = Value::Object(responses);
        if self.dialect == Dialect::V2 {
            out["consumes"] = consumes.into();
            out["produces"] = if connects { json!(["*/*"]) } else { produces.into() };
            out["schemes"] = json!(["https"]);
        }
        if let Some(kind) = o.kind {
            out["x-kubernetes-action"] = o.action.into();
            out["x-kubernetes-group-version-kind"] =
                json!({"group": kind.group, "version": kind.version, "kind": kind.kind});
        }
        out
    }
}

fn insert_path(out: &mut Map<String, Value>, path: String, mut methods: Map<String, Value>, parameters: Value) {
    if !methods.is_empty() {
        methods.insert("parameters".into(), parameters);
        out.insert(path, Value::Object(methods));
    }
}

fn content(types: &[&str], schema: &Value) -> Value {
    types.iter().map(|t| ((*t).to_owned(), json!({"schema": schema}))).collect::<Map<_, _>>().into()
}

fn full(name: &str) -> String {
    if name == "Status" { format!("{META}.Status") } else { name.to_owned() }
}

fn type_name(r: &Resource, kind: &Gvk) -> String {
    if kind.kind == r.kind {
        return r.type_ref.name().to_owned();
    }
    let t = crate::catalog::Catalog::builtin().type_of_kind(kind.group_version(), &kind.kind);
    t.map_or_else(|| r.type_ref.name().to_owned(), |t| t.name.to_string())
}

fn read(kind: Gvk, id: String, sentence: String) -> Operation {
    Operation { id, sentence, action: "get", kind: Some(kind), ..Operation::default() }
}

fn connect(kind: Gvk, id: String, sentence: String) -> Operation {
    Operation { id, sentence, action: "connect", kind: Some(kind), ..Operation::default() }
}

fn write(kind: Gvk, id: String, action: &'static str, sentence: String, body: &str) -> Operation {
    let codes = if action == "post" { vec!["201", "202"] } else { vec!["201"] };
    Operation {
        id,
        sentence,
        action,
        kind: Some(kind),
        query: WRITE.to_vec(),
        body: Some(body.to_owned()),
        codes,
        ..Operation::default()
    }
}

fn patch(kind: Gvk, id: String, sentence: String, custom: bool) -> Operation {
    let query = WRITE.into_iter().chain([FORCE]).collect();
    Operation {
        id,
        sentence,
        action: "patch",
        kind: Some(kind),
        query,
        body: Some(format!("{META}.Patch")),
        patches: if custom { &PATCHES_CUSTOM } else { &PATCHES },
        codes: vec!["201"],
        ..Operation::default()
    }
}

fn delete_one(r: &Resource, id: String) -> Operation {
    let body = Some(format!("{META}.DeleteOptions"));
    Operation {
        id,
        sentence: format!("delete a {}", r.kind),
        action: "delete",
        kind: Some(r.gvk()),
        query: DELETE.to_vec(),
        body,
        codes: vec!["202"],
        ..Operation::default()
    }
}

fn delete_all(r: &Resource, id: String) -> Operation {
    let selection = LIST.into_iter().filter(|(name, _)| !matches!(*name, "allowWatchBookmarks" | "watch"));
    let query = selection.chain(DELETE).collect();
    let body = Some(format!("{META}.DeleteOptions"));
    Operation {
        id,
        sentence: format!("delete collection of {}", r.kind),
        action: "deletecollection",
        kind: Some(r.gvk()),
        query,
        body,
        ..Operation::default()
    }
}
