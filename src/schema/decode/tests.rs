//! Claims about texts that are read, pruned or refused.

use serde_json::json;

use super::{DecodeError, FieldValidation, Format, decode};
use crate::catalog::Catalog;
use crate::table::{GroupVersion, GroupVersionKind};

fn deployment(text: &str, validation: FieldValidation) -> Result<super::Decoded, DecodeError> {
    let r = Catalog::builtin().resource(GroupVersion::parse("apps/v1"), "deployments").expect("row");
    decode(text.as_bytes(), Format::Json, r.type_def(), validation)
}

#[test]
fn unknown_and_repeated_fields_are_named_as_upstream_names_them() {
    let text =
        r#"{"spec":{"replicas":1,"replicas":2,"foo":1,"template":{"spec":{"containers":[{"name":"a","bar":1}]}}}}"#;
    let err = deployment(text, FieldValidation::Strict).expect_err("strict");
    assert_eq!(
        err.to_string(),
        "strict decoding error: duplicate field \"spec.replicas\", unknown field \"spec.foo\", unknown field \
         \"spec.template.spec.containers[0].bar\""
    );
    let ok = deployment(text, FieldValidation::Warn).expect("warn");
    assert_eq!((ok.warnings.len(), &ok.value["spec"]["replicas"]), (3, &json!(2)));
    assert!(deployment(text, FieldValidation::Ignore).expect("ignore").warnings.is_empty());
}

#[test]
fn a_wrong_type_is_refused_with_gos_text() {
    let err = deployment(r#"{"spec":{"replicas":"3"}}"#, FieldValidation::Ignore).expect_err("type");
    assert_eq!(
        err.message(GroupVersionKind { group_version: GroupVersion::parse("apps/v1"), kind: "Deployment" }),
        "Deployment in version \"v1\" cannot be handled as a Deployment: json: cannot unmarshal string into Go struct \
        field DeploymentSpec.spec.replicas of type int32"
    );
}

#[test]
fn zero_values_are_written_as_a_go_server_writes_them() {
    let text = r#"{"metadata":{"creationTimestamp":null,"labels":{}},
        "spec":{"replicas":0,"minReadySeconds":0,"selector":{},
            "template":{"spec":{"containers":[{"name":"a","resources":{"limits":{"cpu":"1000m"}}}]}}}}"#;
    let value = deployment(text, FieldValidation::Strict).expect("decodes").value;
    assert_eq!(
        value,
        json!({"metadata":{},"spec":{"replicas":0,"selector":{},"strategy":{},"template":{"metadata":{},"spec":{"containers":[{"name":"a","resources":{"limits":{"cpu":"1"}}}]}}},"status":{}})
    );
}

/// Spec: go-yaml's strict decoding, which upstream's FieldValidation conformance tests look for.
#[test]
fn a_repeated_yaml_key_is_told_with_its_line() {
    let r = Catalog::builtin().resource(GroupVersion::CORE, "configmaps").expect("row");
    let text = b"\nmetadata:\n  name: x\ndata:\n  foo: a\n  foo: b\n";
    let Err(DecodeError::Strict(why)) = decode(text, Format::Yaml, r.type_def(), FieldValidation::Strict) else {
        panic!("taken")
    };
    assert_eq!(why, ["yaml: unmarshal errors:\n  line 6: key \"foo\" already set in map"]);
}

#[test]
fn yaml_decodes_like_json() {
    let r = Catalog::builtin().resource(GroupVersion::CORE, "configmaps").expect("row");
    let ok = decode(b"data:\n  a: \"1\"\n  b: x\n", Format::Yaml, r.type_def(), FieldValidation::Strict).expect("yaml");
    assert_eq!(ok.value, json!({"metadata":{},"data":{"a":"1","b":"x"}}));
}

#[test]
fn every_filled_object_of_upstream_survives_decoding() {
    let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/upstream-v1.36/roundtrip");
    if !dir.exists() {
        base::skips::say(&format!("{} is absent", dir.display()));
        return;
    }
    for r in Catalog::builtin().resources() {
        let group = if r.group.is_empty() { "core" } else { r.group.as_ref() };
        let Ok(bytes) = std::fs::read(dir.join(format!("{group}.{}.{}.json", r.version, r.kind))) else { continue };
        let want: serde_json::Value = serde_json::from_slice(&bytes).expect("json");
        let got = decode(&bytes, Format::Json, r.type_def(), FieldValidation::Strict)
            .unwrap_or_else(|e| panic!("{} {e}", r.kind))
            .value;
        let differing = diff(&want, &got, r.kind.to_string());
        assert_eq!(differing, Vec::<String>::new());
    }
}

fn diff(want: &serde_json::Value, got: &serde_json::Value, path: String) -> Vec<String> {
    match (want, got) {
        (serde_json::Value::Object(a), serde_json::Value::Object(b)) => {
            let keys: std::collections::BTreeSet<_> = a.keys().chain(b.keys()).collect();
            let none = serde_json::Value::Null;
            keys.into_iter()
                .flat_map(|k| diff(a.get(k).unwrap_or(&none), b.get(k).unwrap_or(&none), format!("{path}.{k}")))
                .collect()
        }
        (serde_json::Value::Array(a), serde_json::Value::Array(b)) if a.len() == b.len() => {
            a.iter().zip(b).enumerate().flat_map(|(i, (a, b))| diff(a, b, format!("{path}[{i}]"))).collect()
        }
        (a, b) if a == b => Vec::new(),
        (a, b) => vec![format!("{path}: {a} became {b}")],
    }
}

#[test]
fn a_body_of_empty_structs_is_refused_before_it_is_a_thousand_times_as_large() {
    let pods = crate::catalog::Catalog::builtin().resource(GroupVersion::CORE, "pods").unwrap();
    let refused =
        |body: String| super::decode_resource(body.as_bytes(), Format::Json, pods, FieldValidation::Warn).unwrap_err();
    let of = |item: &str, n: usize| format!("{{\"spec\":{{\"containers\":[{}]}}}}", vec![item; n].join(","));
    let why = DecodeError::Syntax(super::bounds::TOO_LARGE.to_owned());
    // Three bytes each that become a name and resources; eight that become a map.
    assert_eq!(refused(of("{}", 100_000)), why);
    assert_eq!(refused(of("{\"z\":{\"y\":0}}", 100_000)), why);
    let honest = of("{\"name\":\"c\",\"image\":\"registry.example.com/some/image:tag\"}", 10_000);
    assert!(super::decode_resource(honest.as_bytes(), Format::Json, pods, FieldValidation::Strict).is_ok());
}

#[test]
fn long_names_are_not_repeated_for_each_unknown_field_below_them() {
    let long = "k".repeat(100_000);
    let inner: Vec<String> = (0..20_000).map(|i| format!("\"u{i}\":0")).collect();
    let body = format!(
        "{{\"a\":0,\"b\":0,\"metadata\":{{\"annotations\":{{\"{long}\":\"x\"}},{}}},\"{long}\":{{{}}}}}",
        inner.join(","),
        inner.join(",")
    );
    let pods = crate::catalog::Catalog::builtin().resource(GroupVersion::CORE, "pods").unwrap();
    let decoded = decode(body.as_bytes(), Format::Json, pods.type_def(), FieldValidation::Warn).unwrap();
    assert_eq!(decoded.warnings.len(), 100);
    assert!(decoded.warnings.iter().map(String::len).sum::<usize>() < 300_000);
}
