//! Both ways against upstream's own encodings where they are at hand, and garbage.

use std::path::Path;

use serde_json::{Value, json};

use super::*;
use crate::decode::{FieldValidation, conform};
use crate::table::GroupVersion;

/// Upstream's pairs of `.json` and `.pb`.
const PAIRS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/upstream-v1.36/roundtrip");

fn decoded(bytes: &[u8], of: &TypeDef) -> Value {
    conform(decode(bytes, of).unwrap(), of, FieldValidation::Strict).unwrap().value
}

/// Name, JSON and protobuf of each; none (and a line that says so) where the folder is absent.
fn pairs() -> Vec<(String, Value, Vec<u8>)> {
    let Ok(entries) = std::fs::read_dir(Path::new(PAIRS)) else {
        base::skips::say(&format!("{PAIRS} is not here"));
        return Vec::new();
    };
    let mut paths: Vec<_> =
        entries.map(|e| e.unwrap().path()).filter(|p| p.extension().is_some_and(|e| e == "pb")).collect();
    paths.sort();
    let read = |p: &std::path::PathBuf| {
        let json = serde_json::from_slice(&std::fs::read(p.with_extension("json")).unwrap()).unwrap();
        (p.file_stem().unwrap().to_string_lossy().into_owned(), json, std::fs::read(p).unwrap())
    };
    paths.iter().map(read).collect()
}

#[test]
fn upstreams_objects_are_read_and_written_byte_for_byte() {
    let (mut unknown, mut wrong) = (Vec::new(), Vec::new());
    for (name, json, bytes) in pairs() {
        let text = |key: &str| json[key].as_str().unwrap_or_default();
        let watch = name.ends_with("WatchEvent");
        let of = if watch {
            type_of(GroupVersion::CORE, "WatchEvent")
        } else {
            type_of(GroupVersion::parse(text("apiVersion")), text("kind"))
        };
        let Some(of) = of else {
            unknown.push(name);
            continue;
        };
        let wanted = conform(json.clone(), of, FieldValidation::Ignore).unwrap().value;
        let got = decoded(&bytes, of);
        if got != wanted {
            wrong.push(format!("{name} decoded: {}", difference(&wanted, &got, "")));
        }
        let written = encode_as(&json, of).unwrap();
        if written != bytes {
            let back = decoded(&written, of);
            wrong.push(format!(
                "{name} encoded: {} bytes for {}; {}",
                written.len(),
                bytes.len(),
                difference(&wanted, &back, "")
            ));
        }
    }
    println!("without a type in the table: {}", unknown.join(" "));
    assert!(wrong.is_empty(), "{} differ\n{}", wrong.len(), wrong.join("\n"));
}

/// Where two values first differ.
fn difference(a: &Value, b: &Value, at: &str) -> String {
    match (a, b) {
        (Value::Object(x), Value::Object(y)) => {
            let keys: std::collections::BTreeSet<_> = x.keys().chain(y.keys()).collect();
            let one = keys.iter().find(|k| x.get(**k) != y.get(**k));
            one.map_or_else(|| "equal".to_owned(), |k| difference(&a[k.as_str()], &b[k.as_str()], &format!("{at}.{k}")))
        }
        (Value::Array(x), Value::Array(y)) if x.len() == y.len() => {
            let one = (0..x.len()).find(|i| x[*i] != y[*i]);
            one.map_or_else(|| "equal".to_owned(), |i| difference(&x[i], &y[i], &format!("{at}[{i}]")))
        }
        _ if a == b => "equal".to_owned(),
        _ => format!("{at}: wanted {a}, got {b}"),
    }
}

#[test]
fn an_embedded_struct_is_a_message_of_its_own() {
    let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "p" }, "spec": {
        "containers": [{ "name": "c", "livenessProbe": { "httpGet": { "port": "web" } },
            "resources": { "limits": { "cpu": "500m" } } }],
        "volumes": [{ "name": "v", "configMap": { "name": "m", "optional": false } }],
        "terminationGracePeriodSeconds": -1,
    } });
    let of = type_of(GroupVersion::CORE, "Pod").unwrap();
    let back = decoded(&encode(&pod).unwrap(), of);
    assert_eq!(back["spec"]["volumes"], json!([{ "name": "v", "configMap": { "name": "m", "optional": false } }]));
    assert_eq!(back["spec"]["containers"][0]["livenessProbe"]["httpGet"]["port"], "web");
    assert_eq!(back["spec"]["containers"][0]["resources"]["limits"]["cpu"], "500m");
    assert_eq!(back["spec"]["terminationGracePeriodSeconds"], -1);
    assert_eq!(back, conform(pod, of, FieldValidation::Strict).unwrap().value);
}

#[test]
fn schemas_of_a_definition_keep_their_either_or() {
    let schema = json!({ "type": "object", "additionalProperties": { "type": "string" }, "properties": {
        "a": { "items": { "type": "integer" }, "maximum": 1.5, "default": [1, null] },
        "b": { "additionalItems": false, "items": [{ "type": "string" }, {}] },
        "c": { "dependencies": { "x": ["y"], "z": { "type": "object" } }, "enum": ["k", 7, null] },
    } });
    let crd = json!({ "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": "x.y" }, "spec": {
        "group": "y", "scope": "Cluster", "names": { "plural": "x", "kind": "X" },
        "versions": [{ "name": "v1", "served": true, "storage": true, "schema": { "openAPIV3Schema": schema } }],
    } });
    let of = type_of(GroupVersion::parse("apiextensions.k8s.io/v1"), "CustomResourceDefinition").unwrap();
    let back = decoded(&encode(&crd).unwrap(), of);
    assert_eq!(back["spec"]["versions"][0]["schema"]["openAPIV3Schema"], schema);
}

#[test]
fn packed_numbers_are_read_as_well() {
    // PodSecurityContext.supplementalGroups (4) packed: 1, 300.
    let security = [0x22, 3, 1, 0xac, 2];
    let t = Catalog::builtin().type_of("io.k8s.api.core.v1.PodSecurityContext").unwrap();
    assert_eq!(Value::Object(super::decode::object(&security, t).unwrap()), json!({ "supplementalGroups": [1, 300] }));
}

#[test]
fn metadata_alone_and_its_list_are_messages() {
    let one = json!({ "metadata": { "name": "n", "creationTimestamp": null } });
    let list = json!({ "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadataList",
        "metadata": { "resourceVersion": "7" }, "items": [one] });
    let back = decoded(
        &encode(&list).unwrap(),
        type_of(GroupVersion::parse("meta.k8s.io/v1"), "PartialObjectMetadataList").unwrap(),
    );
    assert_eq!(
        (&back["items"][0]["metadata"]["name"], &back["metadata"]["resourceVersion"]),
        (&json!("n"), &json!("7"))
    );
}

#[test]
fn a_watch_frame_says_its_length_and_holds_an_envelope() {
    let frame = watch_frame("ADDED", b"k8s\0xyz");
    assert_eq!(frame[..4], 18u32.to_be_bytes());
    assert_eq!(&frame[4..], b"\x0a\x05ADDED\x12\x09\x0a\x07k8s\0xyz");
}

#[test]
fn a_bottomless_message_is_refused() {
    let t =
        Catalog::builtin().type_of("io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps").unwrap();
    let not = t.field("not").unwrap().tag;
    let mut bytes = Vec::new();
    for _ in 0..5000 {
        let inner = std::mem::take(&mut bytes);
        wire::bytes(&mut bytes, not, &inner);
    }
    assert_eq!(super::decode::object(&bytes, t), Err(ProtobufError::TooLarge));
    let pod = Catalog::builtin().type_of("io.k8s.api.core.v1.PodSpec").unwrap();
    assert_eq!(super::decode::object(&[0x12, 0].repeat(1_000_001), pod), Err(ProtobufError::TooLarge));
}

#[test]
fn garbage_is_an_error_or_an_object_but_never_a_panic() {
    // xorshift, seeded: the same run every time.
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut draw = move |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        usize::try_from(state % below as u64).unwrap()
    };
    let pod = json!({ "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": "p", "creationTimestamp": "2020-01-01T00:00:00Z" }, "spec": {
        "containers": [{ "name": "c", "ports": [{ "containerPort": 80 }],
            "resources": { "requests": { "memory": "1Gi" } } }],
        "nodeSelector": { "a": "b" }, "volumes": [{ "name": "v", "emptyDir": {} }],
    } });
    let good = encode(&pod).unwrap();
    let of = type_of(GroupVersion::CORE, "Pod").unwrap();
    for _ in 0..5_000 {
        let mut bytes = good.clone();
        for _ in 0..=draw(4) {
            let at = 4 + draw(bytes.len() - 4);
            match draw(3) {
                0 => bytes[at] = u8::try_from(draw(256)).unwrap(),
                1 => bytes.truncate(at.max(5)),
                _ => bytes.insert(at, u8::try_from(draw(256)).unwrap()),
            }
        }
        if let Ok(v) = decode(&bytes, of) {
            let _ = conform(v, of, FieldValidation::Ignore);
        }
    }
}

#[test]
fn everything_that_is_listed_has_a_list_that_can_be_written() {
    for r in Catalog::builtin().resources() {
        assert!(speaks(r.type_def()), "{}", r.kind);
        if !r.list_kind.is_empty() {
            let list = json!({ "apiVersion": r.api_version(), "kind": r.list_kind,
                "metadata": { "resourceVersion": "1" }, "items": [{ "metadata": { "name": "n" } }] });
            let back =
                decode(&encode(&list).unwrap(), type_of(GroupVersion::parse(&r.api_version()), &r.list_kind).unwrap())
                    .unwrap();
            assert_eq!(back["items"][0]["metadata"]["name"], "n", "{}", r.list_kind);
        }
    }
}

#[test]
fn verbs_of_discovery_are_a_message_of_their_own() {
    let list = json!({ "apiVersion": "v1", "kind": "APIResourceList", "groupVersion": "v1", "resources": [
        { "name": "pods", "singularName": "pod", "namespaced": true, "kind": "Pod", "verbs": ["get", "list"] },
    ] });
    let bytes = encode(&list).unwrap();
    // verbs = 4, items = 1
    let verbs = b"\x22\x0b\x0a\x03get\x0a\x04list";
    assert!(bytes.windows(verbs.len()).any(|w| w == verbs));
    assert_eq!(
        decoded(&bytes, type_of(GroupVersion::CORE, "APIResourceList").unwrap())["resources"][0]["verbs"],
        json!(["get", "list"])
    );
}
