//! Cases of upstream's apply that are most likely to go wrong.

use serde_json::{Value, json};

use super::*;
use crate::table::{Field, ListType, Shape, TypeDef, TypeRef};

const NOW: &str = "2026-11-21T05:00:00Z";

fn strukt(name: &str, mut fields: Vec<Field>) -> TypeDef {
    fields.sort_by(|a, b| a.name.cmp(&b.name));
    TypeDef { name: name.to_owned().into(), fields, ..TypeDef::default() }
}

fn shape(t: TypeDef) -> Shape {
    Shape::Struct(TypeRef::of(t))
}

fn type_def() -> TypeDef {
    let protocol = Field { default: Some(json!("TCP")), ..Field::new("protocol", Shape::String) };
    let port =
        strukt("Port", vec![Field::new("containerPort", Shape::Int32), protocol, Field::new("name", Shape::String)]);
    let ports = Field {
        list: ListType::Map(vec!["containerPort".into(), "protocol".into()]),
        ..Field::new("ports", Shape::List(Box::new(shape(port))))
    };
    let container = strukt("C", vec![Field::new("name", Shape::String), Field::new("image", Shape::String), ports]);
    let containers = Field {
        list: ListType::Map(vec!["name".into()]),
        ..Field::new("containers", Shape::List(Box::new(shape(container))))
    };
    let selector = Field { atomic: true, ..Field::new("selector", Shape::Map(Box::new(Shape::String))) };
    let spec = strukt("Spec", vec![Field::new("replicas", Shape::Int32), containers, selector]);
    let finalizers = Field { list: ListType::Set, ..Field::new("finalizers", Shape::List(Box::new(Shape::String))) };
    let labels = Field::new("labels", Shape::Map(Box::new(Shape::String)));
    let annotations = Field::new("annotations", Shape::Map(Box::new(Shape::String)));
    let meta = strukt("Meta", vec![Field::new("name", Shape::String), labels, annotations, finalizers]);
    let spec = Field { empty: Empty::Always, ..Field::new("spec", shape(spec)) };
    strukt("D", vec![Field::new("metadata", shape(meta)), spec, Field::new("status", Shape::Any)])
}

fn request<'a>(t: &'a TypeDef, manager: &'a str) -> Request<'a> {
    Request { type_def: t, api_version: "apps/v1", subresource: "", manager, now: NOW, reset: &[], only: &[] }
}

fn object(mut rest: Value) -> Value {
    rest["apiVersion"] = json!("apps/v1");
    rest["kind"] = json!("D");
    rest["metadata"]["name"] = json!("web");
    rest
}

fn fields(object: &Value, manager: &str) -> Value {
    let entry = model::meta::managed_fields(object).iter().find(|e| e["manager"] == manager);
    entry.map_or(Value::Null, |e| e["fieldsV1"].clone())
}

#[test]
fn apply_owns_what_it_names_with_default_keys() {
    let t = type_def();
    let config = object(json!({"metadata": {"labels": {"a": "b"}},
        "spec": {"selector": {"x": "y"},
            "containers": [{"name": "c", "image": "i", "ports": [{"containerPort": 80}]}]}}));
    let live = apply(&request(&t, "me"), &mut versions::Only, None, &config, false).unwrap();
    assert_eq!(
        fields(&live, "me"),
        json!({"f:metadata": {"f:labels": {"f:a": {}}},
            "f:spec": {"f:selector": {}, "f:containers": {"k:{\"name\":\"c\"}": {".": {}, "f:name": {}, "f:image": {},
                "f:ports": {"k:{\"containerPort\":80,\"protocol\":\"TCP\"}": {".": {}, "f:containerPort": {}}}}}}})
    );
    assert_eq!(apply(&request(&t, "me"), &mut versions::Only, Some(&live), &config, false).unwrap(), live);
}

#[test]
fn another_owner_is_a_conflict_and_force_takes_the_field() {
    let t = type_def();
    let mut live = object(json!({"spec": {"replicas": 3}}));
    track_update(&request(&t, "kubectl-client-side-apply"), &mut versions::Only, None, &mut live);
    let config = object(json!({"spec": {"replicas": 5}}));
    let error = apply(&request(&t, "me"), &mut versions::Only, Some(&live), &config, false).unwrap_err();
    assert_eq!(
        error.to_string(),
        "Apply failed with 1 conflict: conflict with \"kubectl-client-side-apply\" using apps/v1: .spec.replicas"
    );
    let forced = apply(&request(&t, "me"), &mut versions::Only, Some(&live), &config, true).unwrap();
    assert_eq!(forced["spec"]["replicas"], 5);
    assert_eq!(fields(&forced, "kubectl-client-side-apply"), Value::Null);
    assert_eq!(fields(&forced, "me"), json!({"f:spec": {"f:replicas": {}}}));
}

#[test]
fn what_is_no_longer_applied_goes_unless_another_owns_it() {
    let t = type_def();
    let a = object(json!({"metadata": {"labels": {"x": "1", "y": "1"}},
            "spec": {"containers": [{"name": "c", "image": "i"}, {"name": "d", "image": "i"}]}}));
    let live = apply(&request(&t, "a"), &mut versions::Only, None, &a, false).unwrap();
    let b = object(json!({"metadata": {"labels": {"y": "1"}}}));
    let live = apply(&request(&t, "b"), &mut versions::Only, Some(&live), &b, false).unwrap();
    let a = object(json!({"spec": {"containers": [{"name": "d", "image": "i"}]}}));
    let live = apply(&request(&t, "a"), &mut versions::Only, Some(&live), &a, false).unwrap();
    assert_eq!(live["metadata"]["labels"], json!({"y": "1"}));
    assert_eq!(live["spec"]["containers"], json!([{"name": "d", "image": "i"}]));
}

#[test]
fn a_struct_goes_with_its_last_owned_member() {
    let t = type_def();
    let live = apply(
        &request(&t, "a"),
        &mut versions::Only,
        None,
        &object(json!({"metadata": {"labels": {"x": "1"}}, "spec": {"replicas": 1}})),
        false,
    )
    .unwrap();
    let live =
        apply(&request(&t, "a"), &mut versions::Only, Some(&live), &object(json!({"metadata": {}})), false).unwrap();
    assert_eq!(live.get("spec"), None);
    assert_eq!(live["metadata"].get("labels"), None);
    assert_eq!(live["metadata"]["name"], "web");
}

#[test]
fn an_item_goes_with_its_owner_and_items_of_others_stay() {
    let t = type_def();
    let live = apply(
        &request(&t, "a"),
        &mut versions::Only,
        None,
        &object(json!({"spec": {"containers": [{"name": "a"}]}})),
        false,
    )
    .unwrap();
    let mut new = live.clone();
    new["spec"]["containers"] = json!([{"name": "a", "image": "set-by-b"}, {"name": "b"}]);
    track_update(&request(&t, "b"), &mut versions::Only, Some(&live), &mut new);
    assert_eq!(
        fields(&new, "b"),
        json!({"f:spec": {"f:containers": {"k:{\"name\":\"a\"}": {"f:image": {}},
            "k:{\"name\":\"b\"}": {".": {}, "f:name": {}}}}})
    );
    let live =
        apply(&request(&t, "a"), &mut versions::Only, Some(&new), &object(json!({"spec": {"replicas": 1}})), false)
            .unwrap();
    // b owns a field inside item a but not the item itself, so a's end is the item's: as structured-merge-diff.
    assert_eq!(live["spec"]["containers"], json!([{"name": "b"}]));
}

#[test]
fn updates_own_new_maps_with_a_dot_but_not_value_structs() {
    let t = type_def();
    let mut new = object(json!({"metadata": {"labels": {"a": "b"}, "uid": "u"}, "spec": {"replicas": 1}}));
    track_update(&request(&t, "m"), &mut versions::Only, None, &mut new);
    assert_eq!(
        fields(&new, "m"),
        json!({"f:metadata": {"f:labels": {".": {}, "f:a": {}}}, "f:spec": {"f:replicas": {}}})
    );
    assert_eq!(model::meta::managed_fields(&new)[0]["operation"], "Update");
}

#[test]
fn an_empty_entry_wipes_and_wiped_objects_are_not_tracked() {
    let t = type_def();
    let mut live = object(json!({"metadata": {"creationTimestamp": NOW}, "spec": {"replicas": 1}}));
    track_update(&request(&t, "m"), &mut versions::Only, None, &mut live);
    let mut new = live.clone();
    new["metadata"]["managedFields"] = json!([{}]);
    track_update(&request(&t, "m"), &mut versions::Only, Some(&live), &mut new);
    assert!(model::meta::managed_fields(&new).is_empty());
    let mut next = new.clone();
    next["spec"]["replicas"] = json!(2);
    track_update(&request(&t, "m"), &mut versions::Only, Some(&new), &mut next);
    assert!(model::meta::managed_fields(&next).is_empty());
    // The first apply then finds everything owned by what was there before.
    let error =
        apply(&request(&t, "me"), &mut versions::Only, Some(&next), &object(json!({"spec": {"replicas": 7}})), false)
            .unwrap_err();
    assert!(
        error.to_string().contains("conflict with \"before-first-apply\" using apps/v1: .spec.replicas"),
        "{error}"
    );
}

#[test]
fn only_ten_updaters_are_kept_apart() {
    let t = type_def();
    let mut live = object(json!({"metadata": {}}));
    for n in 0..14 {
        let mut new = live.clone();
        new["metadata"]["labels"][format!("l{n}")] = json!("x");
        let now = format!("2026-11-21T05:00:{n:02}Z");
        let name = format!("m{n}");
        track_update(&Request { now: &now, ..request(&t, &name) }, &mut versions::Only, Some(&live), &mut new);
        live = new;
    }
    assert_eq!(model::meta::managed_fields(&live).len(), 10);
    assert!(model::meta::managed_fields(&live).iter().any(|e| e["manager"] == "ancient-changes"));
}

#[test]
fn status_is_not_owned_through_the_main_resource() {
    let t = type_def();
    let mut new = object(json!({"status": {"phase": "x"}, "spec": {"replicas": 1}}));
    track_update(&Request { reset: &[&["status"]], ..request(&t, "m") }, &mut versions::Only, None, &mut new);
    assert_eq!(fields(&new, "m"), json!({"f:spec": {"f:replicas": {}}}));
}

#[test]
fn kubectl_may_take_over_its_own_client_side_fields() {
    let t = type_def();
    let mut live = object(
        json!({"metadata": {"annotations": {LAST_APPLIED: "{\"spec\":{\"replicas\":3}}"}}, "spec": {"replicas": 3}}),
    );
    track_update(&request(&t, "kubectl-client-side-apply"), &mut versions::Only, None, &mut live);
    let applied = apply(
        &request(&t, "kubectl"),
        &mut versions::Only,
        Some(&live),
        &object(json!({"spec": {"replicas": 5}})),
        false,
    )
    .unwrap();
    assert_eq!(applied["spec"]["replicas"], 5);
    assert!(model::meta::annotation(&applied, LAST_APPLIED).unwrap().contains("\"replicas\":5"));
}

#[test]
fn keyed_items_need_their_key() {
    let t = type_def();
    let error = apply(
        &request(&t, "me"),
        &mut versions::Only,
        None,
        &object(json!({"spec": {"containers": [{"image": "i"}]}})),
        false,
    )
    .unwrap_err();
    assert!(
        error.to_string().contains(
            ".spec.containers: element 0: associative list with keys has an element that omits key field \"name\""
        ),
        "{error}"
    );
}
