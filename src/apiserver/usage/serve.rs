//! Requests for `metrics.k8s.io`: get and list of nodes and pods, as objects and as Tables.

use std::collections::BTreeMap;
use std::time::Duration;

use base::time::rfc3339_secs;
use http::{Response, StatusCode};
use model::meta;
use model::quantity::{Notation, Quantity};
use model::reference::{GroupResource, NamespacedName};
use registry::negotiate::{self, Output, Transform};
use registry::status::Status;
use serde_json::{Value, json};
use wire::Body;

use super::history::{Pair, Use};
use super::meter::{Filter, node_of};
use super::{GROUP, VERSION, document};
use crate::exchange::Exchange;
use crate::respond;
use crate::verbs::shape::meta_version;

/// Answers a request below `/apis/metrics.k8s.io/v1beta1`, or for one of the group's documents.
pub async fn run(x: &mut Exchange<'_>) -> Result<Response<Body>, Status> {
    let output = negotiate::output(&x.parts.headers)?;
    let a = x.attributes.clone();
    if !a.is_resource {
        let found = document::at(&a.path).ok_or_else(Status::no_such_resource)?;
        return Ok(respond::value(StatusCode::OK, &found, output, &x.parts.headers));
    }
    let kind = match (a.resource.as_str(), a.subresource.as_str()) {
        ("nodes", "") if a.namespace.is_empty() => "NodeMetrics",
        ("pods", "") => "PodMetrics",
        _ => return Err(Status::no_such_resource()),
    };
    if !matches!(a.verb.as_str(), "get" | "list") {
        return Err(Status::method_not_supported(GroupResource { group: GROUP, resource: &a.resource }, &a.verb));
    }
    let filter = Filter::of(&a)?;
    let wanted = x.server.usage.wanted(&a, &filter);
    let pairs = x.server.usage.measure(&wanted).await;
    let now = rfc3339_secs(x.server.objects.clock.now());
    let measured: Vec<Measured> = wanted
        .iter()
        .filter_map(|o| if kind == "NodeMetrics" { node(o, &pairs, &now) } else { pod(o, &pairs, &now) })
        .collect();
    let value = if a.verb == "list" {
        shaped(kind, measured, output)
    } else {
        let missing = || {
            let name = if a.namespace.is_empty() { a.name.clone() } else { format!("{}/{}", a.namespace, a.name) };
            Status::not_found(
                GroupResource {
                    group: GROUP,
                    resource: if kind == "NodeMetrics" { "nodemetrics" } else { "podmetrics" },
                },
                &name,
            )
        };
        let one = measured.into_iter().next().ok_or_else(missing)?;
        match output.transform {
            Transform::Table => shaped(kind, vec![one], output),
            Transform::Metadata => metadata_only(&one.object, output),
            Transform::Object => one.object,
        }
    };
    Ok(respond::value(StatusCode::OK, &value, output, &x.parts.headers))
}

/// An object, and its cells of a Table.
struct Measured {
    object: Value,
    used: Use,
    window: String,
}

fn node(node: &Value, pairs: &BTreeMap<String, Pair>, now: &str) -> Option<Measured> {
    let pair = pairs.get(meta::name(node))?;
    let used = pair.node()?;
    let mut object = head("NodeMetrics", node, pair, now);
    object["usage"] = usage(used);
    Some(Measured { object, used, window: duration(pair.window()) })
}

fn pod(pod: &Value, pairs: &BTreeMap<String, Pair>, now: &str) -> Option<Measured> {
    let pair = pairs.get(node_of(pod))?;
    let containers = pair.containers(NamespacedName { namespace: meta::namespace(pod), name: meta::name(pod) });
    if containers.is_empty() {
        return None;
    }
    let mut object = head("PodMetrics", pod, pair, now);
    object["metadata"]["namespace"] = meta::namespace(pod).into();
    object["containers"] =
        containers.iter().map(|(name, used)| json!({ "name": name, "usage": usage(*used) })).collect();
    let used = containers
        .iter()
        .fold(Use::default(), |sum, (_, one)| Use { cpu: sum.cpu + one.cpu, memory: sum.memory + one.memory });
    Some(Measured { object, used, window: duration(pair.window()) })
}

fn head(kind: &str, of: &Value, pair: &Pair, now: &str) -> Value {
    let mut object = json!({
        "kind": kind, "apiVersion": format!("{GROUP}/{VERSION}"),
        "metadata": { "name": meta::name(of), "creationTimestamp": now },
        "timestamp": rfc3339_secs(pair.at()), "window": duration(pair.window()),
    });
    if let Some(labels) = meta::labels(of) {
        object["metadata"]["labels"] = Value::Object(labels.clone());
    }
    object
}

fn cpu(used: Use) -> String {
    format!("{}n", used.cpu).parse::<Quantity>().map_or_else(|_| "0".to_owned(), |q| q.to_string())
}

fn memory(used: Use) -> String {
    Quantity::from_units(i64::try_from(used.memory).unwrap_or(i64::MAX), Notation::BinarySi).to_string()
}

fn usage(used: Use) -> Value {
    json!({ "cpu": cpu(used), "memory": memory(used) })
}

/// As Go prints durations: `15.004s`, `1m30s`.
fn duration(span: Duration) -> String {
    let millis = span.as_millis();
    let (minutes, rest) = (millis / 60_000, millis % 60_000);
    let secs = format!("{}.{:03}", rest / 1000, rest % 1000);
    let secs = secs.trim_end_matches('0').trim_end_matches('.');
    if minutes == 0 { format!("{secs}s") } else { format!("{minutes}m{secs}s") }
}

fn metadata_only(object: &Value, output: Output) -> Value {
    json!({ "kind": "PartialObjectMetadata", "apiVersion": meta_version(output), "metadata": object["metadata"] })
}

fn shaped(kind: &str, measured: Vec<Measured>, output: Output) -> Value {
    match output.transform {
        Transform::Object => {
            let items: Vec<Value> = measured.into_iter().map(|m| m.object).collect();
            json!({ "kind": format!("{kind}List"), "apiVersion": format!("{GROUP}/{VERSION}"), "metadata": {},
                "items": items })
        }
        Transform::Metadata => {
            let items: Vec<Value> = measured.iter().map(|m| metadata_only(&m.object, output)).collect();
            json!({ "kind": "PartialObjectMetadataList", "apiVersion": meta_version(output), "metadata": {},
                "items": items })
        }
        Transform::Table => table(&measured, output),
    }
}

/// Columns as metrics-server has them.
fn table(measured: &[Measured], output: Output) -> Value {
    let column = |name: &str, format: &str, about: &str| {
        json!({ "name": name, "type": "string", "format": format,
        "description": about, "priority": 0 })
    };
    let rows: Vec<Value> = measured
        .iter()
        .map(|m| {
            json!({ "cells": [m.object["metadata"]["name"], cpu(m.used), memory(m.used), m.window],
            "object": metadata_only(&m.object, output) })
        })
        .collect();
    json!({
        "kind": "Table", "apiVersion": meta_version(output), "metadata": {},
        "columnDefinitions": [
            column("Name", "name", "Name of the resource"), column("cpu", "quantity", ""), column("memory", "quantity",
                ""),
            column("Window", "duration", ""),
        ],
        "rows": rows,
    })
}

#[cfg(test)]
mod tests {
    use registry::attributes::Attributes;

    use super::*;

    #[test]
    fn amounts_are_written_as_metrics_server_does() {
        assert_eq!(usage(Use { cpu: 1_234_567, memory: 2048 }), json!({ "cpu": "1234567n", "memory": "2Ki" }));
        assert_eq!(usage(Use { cpu: 250_000_000, memory: 5000 }), json!({ "cpu": "250m", "memory": "5000" }));
        assert_eq!([15_004, 1000, 90_000].map(|ms| duration(Duration::from_millis(ms))), ["15.004s", "1s", "1m30s"]);
    }

    #[test]
    fn only_names_and_namespaces_are_fields_to_select_by() {
        let filter = |labels: &str, fields: &str| {
            let (label_selector, field_selector) = (labels.to_owned(), fields.to_owned());
            Filter::of(&Attributes { label_selector, field_selector, ..Attributes::default() })
        };
        assert!(filter("a=b", "metadata.name=x").is_ok());
        let refused = |labels: &str, fields: &str| filter(labels, fields).err().map(|s| (s.code, s.message.clone()));
        assert_eq!(refused("", "spec.nodeName=x"), Some((400, "field label not supported: spec.nodeName".to_owned())));
        assert_eq!(refused("a=b=c", "").map(|(code, _)| code), Some(400));
    }
}
