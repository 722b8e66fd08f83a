//! Plain manifests through decode, default, strategy, validate and tracking, as the server does it.

use model::meta;
use serde_json::{Value, json};

use crate::apply::versions::Only;
use crate::catalog::Catalog;
use crate::decode::{FieldValidation, conform};
use crate::table::{GroupVersion, Resource};
use crate::{apply, defaults, patch, strategy, validate};

/// Objects as `kubectl create --dry-run=client` and the documentation's first pages send them.
const MANIFESTS: &str = include_str!("manifests.jsonl");

fn resource(object: &Value) -> &'static Resource {
    Catalog::builtin().by_kind(GroupVersion::parse(meta::api_version(object)), meta::kind(object)).unwrap()
}

/// The object as the server stores it on create.
fn stored(manifest: &Value) -> Value {
    let r = resource(manifest);
    let mut object = conform(manifest.clone(), r.type_def(), FieldValidation::Ignore).unwrap().value;
    if r.namespaced {
        meta::set_namespace(&mut object, "default");
    }
    defaults::apply(r, &mut object);
    strategy::prepare_for_create(r, &mut object);
    if meta::kind(&object) == "Job" {
        // The server generates a job's selector from its uid.
        object["spec"]["selector"] = json!({"matchLabels": {"controller-uid": "u"}});
        object["spec"]["template"]["metadata"]["labels"] = json!({"controller-uid": "u"});
    }
    object
}

fn request<'a>(r: &'a Resource, api_version: &'a str) -> apply::Request<'a> {
    apply::Request {
        type_def: r.type_def(),
        api_version,
        subresource: "",
        manager: "kubectl-create",
        now: "2026-11-21T05:00:00Z",
        reset: r.behaviour.owners.update,
        only: &[],
    }
}

#[test]
fn plain_manifests_are_accepted() {
    let mut bad = Vec::new();
    for line in MANIFESTS.lines().filter(|l| !l.is_empty()) {
        let object = stored(&serde_json::from_str(line).unwrap());
        let errors = validate::create(resource(&object), &object);
        bad.extend(errors.iter().map(|e| format!("{}: {e}", meta::kind(&object))));
        let mut again = object.clone();
        meta::set_resource_version(&mut again, "1");
        let errors = validate::update(resource(&object), &again, &again);
        bad.extend(errors.iter().map(|e| format!("{} again: {e}", meta::kind(&object))));
    }
    assert!(bad.is_empty(), "{}", bad.join("\n"));
}

fn deployment() -> Value {
    let line = MANIFESTS.lines().find(|l| l.contains("\"kind\":\"Deployment\",") && l.contains("apps/v1")).unwrap();
    stored(&serde_json::from_str(line).unwrap())
}

#[test]
fn a_created_deployment_is_owned_as_upstream_shows_it() {
    let mut object = deployment();
    let r = resource(&object);
    apply::track_update(&request(r, "apps/v1"), &mut Only, None, &mut object);
    let want = json!({
        "f:metadata": {"f:labels": {".": {}, "f:app": {}}},
        "f:spec": {
            "f:progressDeadlineSeconds": {}, "f:replicas": {}, "f:revisionHistoryLimit": {}, "f:selector": {},
            "f:strategy": {"f:rollingUpdate": {".": {}, "f:maxSurge": {}, "f:maxUnavailable": {}}, "f:type": {}},
            "f:template": {
                "f:metadata": {"f:labels": {".": {}, "f:app": {}}},
                "f:spec": {
                    "f:containers": {"k:{\"name\":\"nginx\"}": {".": {}, "f:image": {}, "f:imagePullPolicy": {},
                        "f:name": {},
                        "f:ports": {".": {}, "k:{\"containerPort\":80,\"protocol\":\"TCP\"}": {".": {},
                            "f:containerPort": {}, "f:protocol": {}}},
                        "f:resources": {}, "f:terminationMessagePath": {}, "f:terminationMessagePolicy": {}}},
                    "f:dnsPolicy": {}, "f:restartPolicy": {}, "f:schedulerName": {}, "f:securityContext": {},
                        "f:terminationGracePeriodSeconds": {}
                }
            }
        }
    });
    assert_eq!(meta::managed_fields(&object)[0]["fieldsV1"], want);
}

#[test]
fn a_strategic_patch_of_a_deployment_merges_containers_and_ports() {
    let object = deployment();
    let change = json!({"spec": {"template": {"spec": {"containers": [
        {"name": "nginx", "image": "nginx:2"}, {"name": "side", "image": "s"}]}},
            "strategy": {"$retainKeys": ["type"], "type": "Recreate"}}});
    let out = patch::strategic(resource(&object).type_def(), &object, &change).unwrap();
    let containers = &out["spec"]["template"]["spec"]["containers"];
    assert_eq!((&containers[0]["image"], &containers[1]["name"]), (&json!("nginx:2"), &json!("side")));
    assert_eq!(containers[0]["ports"][0]["containerPort"], 80);
    assert_eq!(out["spec"]["strategy"], json!({"type": "Recreate"}));
}

#[test]
fn status_writes_are_owned_apart_from_the_spec() {
    let mut object = deployment();
    let r = resource(&object);
    apply::track_update(&request(r, "apps/v1"), &mut Only, None, &mut object);
    let mut new = object.clone();
    new["status"]["replicas"] = json!(3);
    let of_status = apply::Request {
        subresource: "status",
        manager: "controller",
        now: "2026-11-21T05:00:01Z",
        reset: &[&["spec"]],
        ..request(r, "apps/v1")
    };
    apply::track_update(&of_status, &mut Only, Some(&object), &mut new);
    let entry = &meta::managed_fields(&new)[1];
    assert_eq!(
        (&entry["subresource"], &entry["fieldsV1"]),
        (&json!("status"), &json!({"f:status": {"f:replicas": {}}}))
    );
}
