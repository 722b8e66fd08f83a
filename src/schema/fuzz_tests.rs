//! Seeded fuzzing of everything that reads what strangers send. Nothing may panic, overflow the stack or run for long.
//!
//! Each run is the same: see `base::fuzz`.

use base::fuzz::{self, mutated, pick, rounds};
use base::rng::Rng;
use model::labels::Selector;
use model::quantity::Quantity;
use serde_json::{Value, json};

use crate::apply::versions::Only;
use crate::catalog::Catalog;
use crate::decode::{FieldValidation, Format, decode, untyped};
use crate::fields::FieldSelector;
use crate::table::{GroupVersion, TypeDef};
use crate::{apply, defaults, patch, protobuf, validate};

const ROUNDS: u64 = 400;

/// A JSON value that may be anywhere.
fn any_value(rng: &Rng, depth: u32) -> Value {
    match rng.below(if depth == 0 { 6 } else { 8 }) {
        0 => Value::Null,
        1 => json!(rng.below(2) == 0),
        2 => json!(*pick(rng, &[0_i64, -1, 1, 80, 65536, i64::MAX, i64::MIN])),
        3 => json!(*pick(rng, &[0.5, -1e300, 1e300])),
        4 => json!(*pick(
            rng,
            &[
                "",
                "a",
                "A_b",
                "100m",
                "1Gi",
                "50%",
                "-",
                "..",
                "/",
                "\u{0}",
                "äöü",
                "2026-01-01T00:00:00Z",
                "app.kubernetes.io/x"
            ]
        )),
        5 => json!("x".repeat(usize::try_from(rng.below(300)).unwrap())),
        6 => Value::Array((0..rng.below(4)).map(|_| any_value(rng, depth - 1)).collect()),
        _ => Value::Object((0..rng.below(4)).map(|n| (format!("k{n}"), any_value(rng, depth - 1))).collect()),
    }
}

/// The places in a value.
fn places(value: &Value, at: &str, out: &mut Vec<String>) {
    out.push(at.to_owned());
    match value {
        Value::Object(map) => {
            map.iter().for_each(|(k, v)| places(v, &format!("{at}/{}", k.replace('~', "~0").replace('/', "~1")), out))
        }
        Value::Array(items) => items.iter().enumerate().for_each(|(n, v)| places(v, &format!("{at}/{n}"), out)),
        _ => {}
    }
}

/// An object with one place filled with something else.
fn disturbed(rng: &Rng, object: &Value) -> Value {
    let mut all = Vec::new();
    places(object, "", &mut all);
    let mut out = object.clone();
    if let Some(place) = out.pointer_mut(pick(rng, &all).as_str()) {
        *place = any_value(rng, 3);
    }
    out
}

fn pod() -> Value {
    json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "p", "namespace": "n", "labels": {"a": "b"}, "finalizers": ["x/y"]},
        "spec": {"restartPolicy": "Always",
            "volumes": [{"name": "v", "configMap": {"name": "c", "items": [{"key": "k", "path": "p"}]}}],
            "containers": [{"name": "c", "image": "i", "ports": [{"containerPort": 80, "protocol": "TCP"}],
                "env": [{"name": "E", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
                "resources": {"limits": {"cpu": "1"}}, "volumeMounts": [{"name": "v", "mountPath": "/m"}],
                "livenessProbe": {"httpGet": {"port": 80, "path": "/"}}}],
            "tolerations": [{"operator": "Exists"}], "affinity": {"nodeAffinity": {}}}})
}

/// An object for each of many built-in kinds, with every field of its type a few levels deep.
fn filled(rng: &Rng, t: &TypeDef, depth: u32) -> Value {
    use crate::table::Shape;
    fn of(rng: &Rng, shape: &Shape, depth: u32) -> Value {
        match shape {
            Shape::Struct(t) if depth > 0 => filled(rng, t.get(), depth - 1),
            Shape::List(item) if depth > 0 => Value::Array(vec![of(rng, item, depth - 1)]),
            Shape::Map(item) if depth > 0 => json!({"k": of(rng, item, depth - 1)}),
            Shape::Bool => json!(true),
            Shape::Int32 | Shape::Int64 | Shape::IntOrString => json!(rng.below(100)),
            Shape::Float => json!(0.5),
            Shape::Time | Shape::MicroTime => json!("2026-01-01T00:00:00Z"),
            Shape::Quantity => json!("1"),
            Shape::Duration => json!("1s"),
            Shape::Bytes => json!("QUJD"),
            Shape::String => json!(*pick(rng, &["a", "Always", "TCP", "", "a.b/c"])),
            _ => Value::Null,
        }
    }
    let mut out = serde_json::Map::new();
    for field in t.fields.iter().filter(|_| rng.below(3) > 0) {
        let value = of(rng, &field.shape, depth);
        if !value.is_null() {
            out.insert(field.name.to_string(), value);
        }
    }
    Value::Object(out)
}

#[test]
fn bodies_in_every_encoding_are_read_or_refused() {
    let rng = fuzz::rng(1);
    let of = Catalog::builtin().resource(GroupVersion::CORE, "pods").unwrap().type_def();
    let good_json = serde_json::to_vec(&pod()).unwrap();
    let good_yaml =
        b"apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n  containers:\n  - &a {name: c, image: i}\n  - *a\n"
            .to_vec();
    let good_proto = protobuf::encode(&pod()).unwrap();
    for _ in rounds(ROUNDS) {
        let _any = decode(&mutated(&rng, &good_json), Format::Json, of, FieldValidation::Warn);
        let _any = untyped(&mutated(&rng, &good_json), Format::Json);
        let _any = decode(&mutated(&rng, &good_yaml), Format::Yaml, of, FieldValidation::Strict);
        if let Ok(value) = protobuf::decode(&mutated(&rng, &good_proto), of) {
            let _again = protobuf::encode(&value);
        }
    }
}

#[test]
fn objects_of_every_kind_are_defaulted_and_judged_whatever_they_hold() {
    let rng = fuzz::rng(2);
    let catalog = Catalog::builtin();
    let rows = catalog.resources();
    for _ in rounds(ROUNDS) {
        let row = pick(&rng, rows);
        let mut object = filled(&rng, row.type_def(), 6);
        object["apiVersion"] = json!(row.api_version());
        object["kind"] = json!(row.kind);
        let object = disturbed(&rng, &object);
        let Ok(decoded) = crate::decode::conform_resource(object, row, FieldValidation::Ignore) else { continue };
        let mut value = decoded.value;
        defaults::apply(row, &mut value);
        let _errors = validate::create(row, &value);
        let other = disturbed(&rng, &value);
        let _errors = validate::update(row, &value, &other);
        let _bytes = protobuf::encode(&value);
        let _row = crate::print::row(row, &value, jiff::Timestamp::UNIX_EPOCH);
    }
}

#[test]
fn patches_are_laid_on_or_refused() {
    let rng = fuzz::rng(3);
    let of = Catalog::builtin().resource(GroupVersion::CORE, "pods").unwrap().type_def();
    let ops = ["add", "remove", "replace", "move", "copy", "test", "odd"];
    for _ in rounds(ROUNDS) {
        let object = pod();
        let wish = disturbed(&rng, &object);
        let _any = patch::merge(&object, &wish);
        let _any = patch::strategic(of, &object, &wish);
        let marked = json!({"spec": {"$patch": any_value(&rng, 1),
            "containers": [{"$patch": "delete", "name": any_value(&rng, 1)}, any_value(&rng, 2)],
            "$setElementOrder/containers": any_value(&rng, 2), "$deleteFromPrimitiveList/x": any_value(&rng, 2),
                "$retainKeys": any_value(&rng, 2)}});
        let _any = patch::strategic(of, &object, &marked);
        let mut all = Vec::new();
        places(&object, "", &mut all);
        let list: Vec<Value> = (0..rng.below(5))
            .map(|_| {
                json!({"op": pick(&rng, &ops), "path": pick(&rng, &all), "from": pick(&rng, &all),
                "value": any_value(&rng, 2)})
            })
            .collect();
        let _any = patch::json(&object, &mutated(&rng, json!(list).to_string().as_bytes()));
        let _any = patch::json(&object, json!(list).to_string().as_bytes());
        let request = apply::Request {
            type_def: of,
            api_version: "v1",
            subresource: "",
            manager: "m",
            now: "2026-01-01T00:00:00Z",
            reset: &[],
            only: &[],
        };
        let mut live = object.clone();
        live["metadata"]["managedFields"] = any_value(&rng, 3);
        let _any = apply::apply(&request, &mut Only, Some(&live), &wish, rng.below(2) == 0);
        let mut new = wish.clone();
        if new.is_object() && (new["metadata"].is_object() || new.get("metadata").is_none()) {
            apply::track_update(&request, &mut Only, Some(&live), &mut new);
        }
    }
}

#[test]
fn selectors_and_quantities_are_read_or_refused() {
    let rng = fuzz::rng(4);
    let seeds = [
        "a=b,c!=d,e in (f,g),!h,i notin (j)",
        "x>1,y<2",
        "metadata.name=a,spec.x!=b",
        "1.5Gi",
        "-3e10",
        "100m",
        "12345678901234567890Ei",
    ];
    for _ in rounds(ROUNDS * 4) {
        let text = String::from_utf8_lossy(&mutated(&rng, pick(&rng, &seeds).as_bytes())).into_owned();
        if let Ok(selector) = Selector::parse(&text) {
            let _any = selector.matches_object(&pod());
        }
        if let Ok(selector) = FieldSelector::parse(&text) {
            let _any = selector.matches_object(&pod());
        }
        if let Ok(quantity) = Quantity::from_value(&json!(text)) {
            let _any = (quantity.to_string(), quantity.value(), quantity.milli_value());
        }
        let _any = Selector::from_json(Some(&any_value(&rng, 3)));
    }
}

fn crd() -> Value {
    let schema = json!({"type": "object", "required": ["spec"], "properties": {
        "spec": {"type": "object", "x-kubernetes-validations": [{"rule": "self.n > 0 || !has(self.l)",
            "messageExpression": "'no'"}], "properties": {
            "n": {"type": "integer", "minimum": 0, "default": 1, "format": "int32"},
                "s": {"type": "string", "pattern": "^a+(b|c)*$", "maxLength": 9},
            "l": {"type": "array", "maxItems": 5,
                "items": {"type": "object", "properties": {"k": {"type": "string"}}, "required": ["k"]},
                "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"]},
            "m": {"type": "object", "additionalProperties": {"x-kubernetes-int-or-string": true}},
            "any": {"x-kubernetes-preserve-unknown-fields": true},
                "o": {"type": "object", "nullable": true, "oneOf": [{"required": ["a"]}, {"required": ["b"]}]}}}}});
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "foos.x.org"},
        "spec": {"group": "x.org", "scope": "Namespaced",
            "names": {"plural": "foos", "singular": "foo", "kind": "Foo", "listKind": "FooList"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema},
                "selectableFields": [{"jsonPath": ".spec.s"}],
                "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.n",
                    "statusReplicasPath": ".status.n"}},
                "additionalPrinterColumns": [{"name": "c", "type": "string",
                    "jsonPath": ".spec.l[?(@.k==\"a\")].k"}]}]}})
}

/// A definition is code of strangers: schema, patterns, rules, paths.
#[test]
fn definitions_are_refused_or_objects_are_judged_by_them() {
    let rng = fuzz::rng(6);
    let row = Catalog::builtin()
        .resource(GroupVersion::parse("apiextensions.k8s.io/v1"), "customresourcedefinitions")
        .unwrap();
    let foo = json!({"apiVersion": "x.org/v1", "kind": "Foo", "metadata": {"name": "f", "namespace": "n"},
        "spec": {"n": 3, "s": "aab", "l": [{"k": "a"}],
        "m": {"x": 1, "y": "2"}, "any": {"z": [1]}, "o": {"a": 1}}});
    let words = [
        "object",
        "string",
        "array",
        "integer",
        "(a+)+$",
        "[",
        "^(?:x{1000}){1000}$",
        "self.all(x, x)",
        "$.a[*]..b",
        ".spec['",
        "map",
        "date-time",
    ];
    for _ in rounds(ROUNDS) {
        let mut wish = disturbed(&rng, &crd());
        let mut all = Vec::new();
        places(&wish, "", &mut all);
        if let Some(place) = wish.pointer_mut(pick(&rng, &all).as_str()).filter(|place| place.is_string()) {
            *place = json!(fuzz::mutated_text(&rng, place.as_str().unwrap_or_default(), &words));
        }
        let Ok(decoded) = crate::decode::conform_resource(wish, row, FieldValidation::Ignore) else { continue };
        let mut wish = decoded.value;
        defaults::apply(row, &mut wish);
        if !validate::create(row, &wish).is_empty() {
            continue;
        }
        for of in crate::custom::resources(&wish) {
            let object = disturbed(&rng, &foo);
            let Ok(decoded) = crate::decode::conform_resource(object, &of, FieldValidation::Warn) else { continue };
            let mut value = decoded.value;
            defaults::apply(&of, &mut value);
            let _errors = (validate::create(&of, &value).len(), validate::update(&of, &value, &foo).len());
            let _row = crate::print::row(&of, &value, jiff::Timestamp::UNIX_EPOCH);
        }
    }
}
