//! Claims about the documents that kubectl reads.

use serde_json::Value;

use super::{Dialect, v2, v3, v3_index};
use crate::catalog::Catalog;
use crate::table::GroupVersion;

fn upstream(file: &str) -> Option<Value> {
    let path =
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/upstream-v1.36/openapi").join(file);
    let Ok(bytes) = std::fs::read(&path) else {
        base::skips::say(&format!("{} is absent", path.display()));
        return None;
    };
    serde_json::from_slice(&bytes).ok()
}

/// Facts only: sentences, defaults of value fields and the loosely typed JSON fields may differ.
fn facts(property: &Value, dialect: Dialect) -> Value {
    let mut p = property.clone();
    let loose = p["x-kubernetes-preserve-unknown-fields"] == true
        || p.to_string().contains(".JSON")
        || p.to_string().contains("RawExtension")
        || p["type"] == "object" && p.get("additionalProperties").is_none();
    if loose || p["items"]["x-kubernetes-preserve-unknown-fields"] == true {
        return Value::Null;
    }
    strip(&mut p, dialect);
    p
}

fn strip(v: &mut Value, _dialect: Dialect) {
    if let Value::Object(map) = v {
        map.remove("description");
        map.remove("default");
        // Granular is what a map is without a word.
        if map.get("x-kubernetes-map-type").is_some_and(|t| t == "granular") {
            map.remove("x-kubernetes-map-type");
        }
        if let Some(Value::Array(all)) = map.remove("allOf") {
            map.extend(all.into_iter().filter_map(|a| if let Value::Object(a) = a { Some(a) } else { None }).flatten());
        }
        map.values_mut().for_each(|v| strip(v, _dialect));
    }
}

/// `required` and kinds are sets.
fn sorted(v: Option<&Value>) -> Vec<String> {
    let mut all: Vec<String> = v.and_then(Value::as_array).into_iter().flatten().map(Value::to_string).collect();
    all.sort();
    all
}

fn compare(want: &Value, got: &Value, dialect: Dialect, differing: &mut Vec<String>) {
    for (name, schema) in want.as_object().into_iter().flatten() {
        if name.contains(".JSON") || schema.get("properties").is_none() {
            continue;
        }
        let Some(ours) = got.get(name) else {
            differing.push(format!("{name} is missing"));
            continue;
        };
        for key in ["required", "x-kubernetes-map-type", "x-kubernetes-group-version-kind", "x-kubernetes-unions"] {
            // Upstream's v2 names these kinds for groups that it does not serve, too.
            if dialect == Dialect::V2 && (name.ends_with(".DeleteOptions") || name.ends_with(".WatchEvent")) {
                continue;
            }
            if sorted(schema.get(key)) != sorted(ours.get(key)) {
                differing.push(format!("{name} {key}: {:?} became {:?}", schema.get(key), ours.get(key)));
            }
        }
        for (field, property) in schema["properties"].as_object().into_iter().flatten() {
            let (a, b) = (facts(property, dialect), facts(&ours["properties"][field], dialect));
            if a != b && !b.is_null() {
                differing.push(format!("{name}.{field}: {a} became {b}"));
            }
        }
    }
}

#[test]
fn v3_schemas_state_upstreams_facts() {
    let mut differing = Vec::new();
    for g in Catalog::builtin().groups() {
        for v in &g.versions {
            let file = if g.name.is_empty() {
                "v3/api__v1_openapi.json".to_owned()
            } else {
                format!("v3/apis__{}__{v}_openapi.json", g.name)
            };
            let Some(want) = upstream(&file) else { return };
            let got = v3(Catalog::builtin(), GroupVersion { group: &g.name, version: v }).expect("served");
            compare(&want["components"]["schemas"], &got["components"]["schemas"], Dialect::V3, &mut differing);
            for (path, methods) in want["paths"]
                .as_object()
                .into_iter()
                .flatten()
                .filter(|(p, _)| !p.contains("/watch/") && !p.ends_with("{path}"))
            {
                for (method, operation) in methods
                    .as_object()
                    .into_iter()
                    .flatten()
                    .filter(|(m, _)| !matches!(m.as_str(), "parameters" | "head" | "options"))
                {
                    let ours = &got["paths"][path][method];
                    for key in ["operationId", "x-kubernetes-action", "x-kubernetes-group-version-kind", "tags"] {
                        if operation.get(key) != ours.get(key) {
                            differing.push(format!(
                                "{method} {path} {key}: {:?} became {:?}",
                                operation.get(key),
                                ours.get(key)
                            ));
                        }
                    }
                }
            }
        }
    }
    assert!(differing.is_empty(), "{} differ:\n{}", differing.len(), differing[..differing.len().min(40)].join("\n"));
}

#[test]
fn v2_definitions_state_upstreams_facts() {
    let Some(want) = upstream("swagger.json") else { return };
    let got = v2(Catalog::builtin(), "v1.36.2");
    let mut differing = Vec::new();
    compare(&want["definitions"], &got["definitions"], Dialect::V2, &mut differing);
    assert!(differing.is_empty(), "{} differ:\n{}", differing.len(), differing[..differing.len().min(40)].join("\n"));
}

#[test]
fn explain_has_sentences_and_the_index_names_every_group_version() {
    let doc = v3(Catalog::builtin(), GroupVersion::parse("apps/v1")).expect("served");
    let schemas = &doc["components"]["schemas"];
    let replicas = &schemas["io.k8s.api.apps.v1.DeploymentSpec"]["properties"]["replicas"]["description"];
    assert!(replicas.as_str().is_some_and(|s| s.starts_with("Number of desired pods")), "{replicas}");
    assert!(schemas["io.k8s.api.apps.v1.Deployment"]["properties"]["kind"]["description"].is_string());
    let port = &schemas["io.k8s.api.core.v1.ContainerPort"]["properties"]["hostPort"]["description"];
    assert!(port.as_str().is_some_and(|s| s.contains("0 < x < 65536")), "{port}");
    let index = v3_index(Catalog::builtin(), "x");
    assert!(
        index["paths"]["apis/apps/v1"]["serverRelativeURL"]
            .as_str()
            .is_some_and(|u| u.starts_with("/openapi/v3/apis/apps/v1?hash="))
    );
}
