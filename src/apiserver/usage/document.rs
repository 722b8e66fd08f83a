//! Documents of the group: its list of resources and its OpenAPI.

use serde_json::{Value, json};

use super::{GROUP, VERSION};

/// The document at a path, as a server behind an APIService would give it; `None`: there is none.
pub fn at(path: &str) -> Option<Value> {
    let own = format!("apis/{GROUP}/{VERSION}");
    match path.trim_matches('/') {
        path if path == own => Some(resources()),
        "openapi/v3" => {
            let url = format!("/openapi/v3/{own}?hash={:X}", crc(&openapi_v3().to_string()));
            Some(json!({ "paths": { own: { "serverRelativeURL": url } } }))
        }
        path if path.strip_prefix("openapi/v3/") == Some(&own) => Some(openapi_v3()),
        "openapi/v2" => Some(json!({ "paths": {}, "definitions": definitions("#/definitions/") })),
        _ => None,
    }
}

/// A name for a content (FNV-1a); the documents are ours, nobody forges one.
fn crc(text: &str) -> u64 {
    base::fnv::sum(text.as_bytes())
}

fn resources() -> Value {
    let one = |name: &str, namespaced: bool, kind: &str| {
        json!({ "name": name, "singularName": "",
        "namespaced": namespaced, "kind": kind, "verbs": ["get", "list"] })
    };
    json!({
        "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": format!("{GROUP}/{VERSION}"),
        "resources": [one("nodes", false, "NodeMetrics"), one("pods", true, "PodMetrics")],
    })
}

fn openapi_v3() -> Value {
    json!({
        "openapi": "3.0.0", "info": { "title": "metrics.k8s.io", "version": VERSION }, "paths": {},
        "components": { "schemas": definitions("#/components/schemas/") },
    })
}

fn definitions(at: &str) -> Value {
    let gvk = |kind: &str| json!([{ "group": GROUP, "kind": kind, "version": VERSION }]);
    let text = |about: &str| json!({ "type": "string", "description": about });
    let usage = json!({ "type": "object", "additionalProperties": { "type": "string" },
        "description": "Use of cpu and memory." });
    let meta = json!({ "type": "object", "description": "Standard object metadata." });
    let head = |properties: Value| {
        let mut all = json!({
            "apiVersion": text("Version of the schema of this object."), "kind": text("Kind of this object."),
            "metadata": meta,
            "timestamp": text("End of the time over which the use was measured."),
            "window": text("Length of that time."),
        });
        if let (Some(all), Some(more)) = (all.as_object_mut(), properties.as_object()) {
            all.extend(more.clone());
        }
        all
    };
    let kind = |name: &str, about: &str, properties: Value| {
        json!({ "type": "object", "description": about,
        "properties": head(properties), "x-kubernetes-group-version-kind": gvk(name) })
    };
    let name = |kind: &str| format!("io.k8s.metrics.pkg.apis.metrics.v1beta1.{kind}");
    let container = json!({ "type": "object", "properties": { "name": text("Name of the container."), "usage": usage },
        "required": ["name", "usage"] });
    let containers = json!({ "type": "array", "items": { "$ref": format!("{at}{}", name("ContainerMetrics")) },
        "description": "Use of each container." });
    json!({
        name("ContainerMetrics"): container,
        name("NodeMetrics"): kind("NodeMetrics", "What a node uses.", json!({ "usage": usage })),
        name("PodMetrics"): kind("PodMetrics", "What a pod uses.", json!({ "containers": containers })),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_document_is_where_clients_look() {
        assert_eq!(at("/apis/metrics.k8s.io/v1beta1").unwrap()["resources"][1]["kind"], "PodMetrics");
        assert!(at("/openapi/v3").unwrap()["paths"]["apis/metrics.k8s.io/v1beta1"]["serverRelativeURL"].is_string());
        assert!(at("/openapi/v3/apis/metrics.k8s.io/v1beta1").unwrap()["components"]["schemas"].is_object());
        assert_eq!(at("/apis/metrics.k8s.io/v1"), None);
    }
}
