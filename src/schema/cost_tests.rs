//! The cost of a client's lists: four times as many items cost about four times as much, on every road that lists go.
//!
//! Measured is the time that this thread had a processor, so other tests do not disturb. Linear work is four times as
//! long, work that looks for each item in the whole list sixteen times.

use model::meta;
use serde_json::{Value, json};

use crate::apply::versions::Only;
use crate::apply::{self, Request};
use crate::catalog::Catalog;
use crate::table::{GroupVersion, Resource};
use crate::{custom, patch, strategy, validate};

const ITEMS: usize = 2000;
/// Between the four of linear work and the sixteen of its square.
const RATIO_MAX: f64 = 9.0;

/// Of the kernel's count of what a thread computes.
const TICK_MS: f64 = 10.0;
const TICKS_MS: f64 = 12.0 * TICK_MS;

/// Milliseconds that this thread has computed.
fn computed_ms() -> f64 {
    let said = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    said.split_whitespace().next().unwrap().parse::<f64>().unwrap() / 1e6
}

/// The least of three times that the work takes which `prepare` makes for so many items.
fn cost_ms(n_items: usize, prepare: &dyn Fn(usize) -> Box<dyn Fn()>) -> f64 {
    let work = prepare(n_items);
    let time = || {
        let began = computed_ms();
        work();
        computed_ms() - began
    };
    (0..3).map(|_| time()).fold(f64::MAX, f64::min)
}

fn check(road: &str, prepare: &dyn Fn(usize) -> Box<dyn Fn()>) {
    let (few, many) = (cost_ms(ITEMS, prepare), cost_ms(4 * ITEMS, prepare));
    println!("{road}: {few:.1} ms, {many:.1} ms");
    // The kernel counts in ticks, so a short time says little; the square of so many items takes longer than this.
    assert!(
        many < TICKS_MS || many / few.max(TICK_MS) < RATIO_MAX,
        "{road}: {ITEMS} items cost {few:.1} ms, four times as many {many:.1} ms"
    );
}

fn resource(api_version: &str, kind: &str) -> &'static Resource {
    Catalog::builtin().by_kind(GroupVersion::parse(api_version), kind).unwrap()
}

fn list(n_items: usize, item: impl Fn(usize) -> Value) -> Value {
    (0..n_items).map(item).collect::<Vec<_>>().into()
}

fn config_map(metadata: Value) -> Value {
    let mut object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata});
    for (field, value) in [
        ("name", "c"),
        ("namespace", "a"),
        ("uid", "u"),
        ("creationTimestamp", "2026-01-01T00:00:00Z"),
        ("resourceVersion", "1"),
    ] {
        object["metadata"][field] = value.into();
    }
    object
}

fn owner(idx: usize) -> Value {
    json!({"apiVersion": "v1", "kind": "X", "name": "a", "uid": format!("u{idx}")})
}

fn finalizer(idx: usize) -> Value {
    format!("a.b/{idx}").into()
}

#[test]
fn strategic_patches_of_long_lists_cost_what_the_lists_are_long() {
    let patched = |old: Value, patch: Value| -> Box<dyn Fn()> {
        let of = resource("v1", "ConfigMap").type_def();
        Box::new(move || drop(patch::strategic(of, &old, &patch).unwrap()))
    };
    check("a set from none", &|n| {
        patched(config_map(json!({})), json!({"metadata": {"finalizers": list(n, finalizer)}}))
    });
    check("a set on a set", &|n| {
        let other = list(n, |idx| finalizer(n + idx));
        patched(config_map(json!({"finalizers": list(n, finalizer)})), json!({"metadata": {"finalizers": other}}))
    });
    check("deletions from a set", &|n| {
        let gone = list(n, |idx| finalizer(n - idx - 1));
        patched(
            config_map(json!({"finalizers": list(n, finalizer)})),
            json!({"metadata": {"$deleteFromPrimitiveList/finalizers": gone}}),
        )
    });
    let owned = |n| config_map(json!({"ownerReferences": list(n, owner)}));
    check("keyed items changed", &|n| {
        let changed = list(n, |idx| json!({"uid": format!("u{}", n - idx - 1), "kind": "Y"}));
        patched(owned(n), json!({"metadata": {"ownerReferences": changed}}))
    });
    check("keyed items added", &|n| {
        patched(owned(n), json!({"metadata": {"ownerReferences": list(n, |idx| owner(n + idx))}}))
    });
    check("keyed items deleted", &|n| {
        let gone = list(n, |idx| json!({"$patch": "delete", "uid": format!("u{}", n - idx - 1)}));
        patched(owned(n), json!({"metadata": {"ownerReferences": gone}}))
    });
    check("an order of keyed items", &|n| {
        let order = list(n, |idx| json!({"uid": format!("u{}", n - idx - 1)}));
        patched(owned(n), json!({"metadata": {"$setElementOrder/ownerReferences": order}}))
    });
    check("kept keys", &|n| {
        let keys = list(n, |idx| format!("k{idx}").into());
        let labels: Value = (0..n).map(|idx| (format!("k{idx}"), json!("v"))).collect::<serde_json::Map<_, _>>().into();
        patched(config_map(json!({"labels": labels})), json!({"metadata": {"labels": {"$retainKeys": keys}}}))
    });
}

#[test]
fn an_item_that_a_patch_names_again_and_again_is_refused_and_the_largest_honest_patch_is_not() {
    let of = resource("v1", "Pod").type_def();
    let pod =
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [{"name": "c"}]}});
    let again = list(30_000, |idx| json!({"name": "c", "env": [{"name": format!("e{idx}")}]}));
    let refused = patch::strategic(of, &pod, &json!({"spec": {"containers": again}})).unwrap_err();
    assert_eq!(refused.to_string(), "the patch names items of lists too often");
    let honest = json!({"metadata": {"finalizers": list(700_000, |idx| format!("{idx:x}").into())}});
    assert!(patch::strategic(of, &pod, &honest).is_ok());
}

#[test]
fn a_json_patch_moves_so_many_items_and_no_more() {
    let object = json!({"items": vec![0; 100_000]});
    let patch = |op: Value, n_times: usize| serde_json::to_vec(&vec![op; n_times]).unwrap();
    let front = json!({"op": "add", "path": "/items/0", "value": 1});
    assert!(patch::json(&object, &patch(front.clone(), 600)).is_ok());
    assert!(matches!(patch::json(&object, &patch(front, 2000)), Err(patch::PatchError::Rejected(_))));
    assert!(patch::json(&object, &patch(json!({"op": "add", "path": "/items/-", "value": 1}), 10_000)).is_ok());
    let moving = json!({"op": "move", "from": "/items/0", "path": "/items/1"});
    assert!(matches!(patch::json(&object, &patch(moving, 2000)), Err(patch::PatchError::Rejected(_))));
}

fn request(manager: &str) -> Request<'_> {
    let type_def = resource("v1", "ConfigMap").type_def();
    Request {
        type_def,
        api_version: "v1",
        subresource: "",
        manager,
        now: "2026-01-01T00:00:00Z",
        reset: &[],
        only: &[],
    }
}

#[test]
fn applying_and_tracking_long_lists_costs_what_the_lists_are_long() {
    let config = |items: Value| {
        json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "c", "namespace": "a", "ownerReferences": items}})
    };
    check("an apply that replaces what was applied", &|n| {
        let live = apply::apply(&request("m"), &mut Only, Some(&config_map(json!({}))), &config(list(n, owner)), false)
            .unwrap();
        let next = config(list(n, |idx| owner(n + idx)));
        Box::new(move || drop(apply::apply(&request("m"), &mut Only, Some(&live), &next, false).unwrap()))
    });
    let shared = |n: usize| {
        let mut live = config_map(json!({"ownerReferences": list(n, owner)}));
        let entry = |idx: usize| {
            let fields = json!({"f:metadata": {"f:ownerReferences": {format!("k:{{\"uid\":\"u{idx}\"}}"): {}}}});
            json!({"manager": format!("m{idx}"), "operation": "Apply", "apiVersion": "v1", "fieldsType": "FieldsV1",
                "fieldsV1": fields})
        };
        let entries = (0..n).map(entry).collect();
        meta::set_managed_fields(&mut live, entries);
        live
    };
    check("an apply among thousands of managers", &|n| {
        let (live, none) = (shared(n), config(json!([])));
        Box::new(move || drop(apply::apply(&request("m0"), &mut Only, Some(&live), &none, false).unwrap()))
    });
    check("thousands of conflicts", &|n| {
        let (live, other) = (
            shared(n),
            config(list(n, |idx| json!({"apiVersion": "v1", "kind": "Y", "name": "a", "uid": format!("u{idx}")}))),
        );
        Box::new(move || {
            drop(apply::apply(&request("z"), &mut Only, Some(&live), &other, false).unwrap_err().to_string())
        })
    });
    check("an update among thousands of managers", &|n| {
        let live = shared(n);
        let new = {
            let mut new = live.clone();
            new["metadata"]["ownerReferences"] = list(n, |idx| owner(n + idx));
            new
        };
        Box::new(move || apply::track_update(&request("z"), &mut Only, Some(&live), &mut new.clone()))
    });
}

fn pod(spec: Value) -> Value {
    let mut spec = spec;
    let defaults =
        json!({"containers": [{"name": "c", "image": "x"}], "restartPolicy": "Always", "dnsPolicy": "ClusterFirst"});
    for (field, value) in defaults.as_object().unwrap() {
        if spec.get(field).is_none() {
            spec[field] = value.clone();
        }
    }
    json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "p", "namespace": "a", "uid": "u", "resourceVersion": "1"}, "spec": spec})
}

#[test]
fn judging_pods_with_long_lists_costs_what_the_lists_are_long() {
    let created = |spec: Value| -> Box<dyn Fn()> {
        let pod = pod(spec);
        Box::new(move || drop(validate::error::aggregate(&validate::create(resource("v1", "Pod"), &pod))))
    };
    let updated = |old: Value, new: Value| -> Box<dyn Fn()> {
        let (old, new) = (pod(old), pod(new));
        Box::new(move || drop(validate::update(resource("v1", "Pod"), &new, &old)))
    };
    let spread = |idx| {
        json!({"maxSkew": 1, "topologyKey": format!("k{idx}"), "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {}})
    };
    check("topology spread constraints", &|n| created(json!({"topologySpreadConstraints": list(n, spread)})));
    let toleration = |idx| json!({"key": format!("k{idx}"), "operator": "Exists"});
    check("tolerations", &|n| {
        updated(
            json!({"tolerations": list(n, toleration)}),
            json!({"tolerations": list(n, |idx| toleration(n - idx - 1))}),
        )
    });
    let gate = |idx| json!({"name": format!("a.b/{idx}")});
    check("scheduling gates", &|n| {
        updated(json!({"schedulingGates": list(n, gate)}), json!({"schedulingGates": list(n, |idx| gate(n - idx - 1))}))
    });
    check("mounts beside devices", &|n| {
        let mounts = list(n, |idx| json!({"name": format!("v{idx}"), "mountPath": format!("/m{idx}")}));
        let devices = list(n, |idx| json!({"name": format!("d{idx}"), "devicePath": format!("/d{idx}")}));
        created(json!({"containers": [{"name": "c", "image": "x", "volumeMounts": mounts, "volumeDevices": devices}]}))
    });
    check("claims that are not there", &|n| {
        let claims = list(n, |idx| json!({"name": format!("x{idx}")}));
        let known = list(n, |idx| json!({"name": format!("c{idx}"), "resourceClaimName": "c"}));
        created(json!({"resourceClaims": known,
                "containers": [{"name": "c", "image": "x", "resources": {"claims": claims}}]}))
    });
    check("variables from files", &|n| {
        let volumes = list(n, |idx| json!({"name": format!("v{idx}"), "emptyDir": {}}));
        let from = |idx| json!({"fileKeyRef": {"volumeName": format!("v{}", n - idx - 1), "path": "p", "key": "k"}});
        let env = list(n, |idx| json!({"name": format!("E{idx}"), "valueFrom": from(idx)}));
        created(json!({"volumes": volumes, "containers": [{"name": "c", "image": "x", "env": env}]}))
    });
    check("ephemeral containers and their targets", &|n| {
        let main = list(n, |idx| json!({"name": format!("c{idx}"), "image": "x"}));
        let debuggers = list(
            n,
            |idx| json!({"name": format!("e{idx}"), "image": "x", "targetContainerName": format!("c{}", n - idx - 1)}),
        );
        let (old, new) = (
            pod(json!({"containers": main, "ephemeralContainers": debuggers})),
            pod(json!({"containers": main, "ephemeralContainers": debuggers})),
        );
        Box::new(move || drop(validate::update_part(resource("v1", "Pod"), "ephemeralcontainers", &new, &old)))
    });
    check("a status of many conditions", &|n| {
        let conditions = |n: usize| {
            json!({"conditions": list(n,
            |idx| json!({"type": format!("t{}", n - idx - 1), "status": "True", "observedGeneration": 1}))})
        };
        let (mut old, mut new) = (pod(json!({})), pod(json!({})));
        (old["status"], new["status"]) = (conditions(n), conditions(n));
        Box::new(move || {
            strategy::prepare_for_status_update(resource("v1", "Pod"), &mut new.clone(), &old, "2026-01-01T00:00:00Z")
        })
    });
}

#[test]
fn judging_other_kinds_with_long_lists_costs_what_the_lists_are_long() {
    check("finalizers of what is being deleted", &|n| {
        let dying = |finalizers: Value| {
            config_map(json!({"finalizers": finalizers, "deletionTimestamp": "2026-01-01T00:00:00Z"}))
        };
        let (old, new) = (dying(list(n, finalizer)), dying(list(n, |idx| finalizer(n - idx - 1))));
        Box::new(move || drop(validate::update(resource("v1", "ConfigMap"), &new, &old)))
    });
    check("owners that all are the controller", &|n| {
        let owners = list(
            n,
            |idx| json!({"apiVersion": "v1", "kind": "X", "name": "a", "uid": format!("u{idx}"), "controller": true}),
        );
        let object = config_map(json!({"ownerReferences": owners}));
        Box::new(move || drop(validate::error::aggregate(&validate::create(resource("v1", "ConfigMap"), &object))))
    });
    check("labels that are all wrong", &|n| {
        let labels: Value = (0..n).map(|idx| (format!("-{idx}"), json!("v"))).collect::<serde_json::Map<_, _>>().into();
        let object = config_map(json!({"labels": labels}));
        Box::new(move || drop(validate::error::aggregate(&validate::create(resource("v1", "ConfigMap"), &object))))
    });
    check("tolerations of a runtime class", &|n| {
        let tolerations = list(n, |idx| json!({"key": format!("k{idx}"), "operator": "Exists"}));
        let class = json!({"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "r"},
            "handler": "h",
            "scheduling": {"tolerations": tolerations}});
        Box::new(move || drop(validate::create(resource("node.k8s.io/v1", "RuntimeClass"), &class)))
    });
    check("topologies of a storage class", &|n| {
        let topology = |idx: usize| json!({"matchLabelExpressions": [{"key": format!("k{idx}"), "values": ["v"]}]});
        let class = json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "s"},
            "provisioner": "x/y",
            "reclaimPolicy": "Delete", "volumeBindingMode": "Immediate", "allowedTopologies": list(n, topology)});
        Box::new(move || drop(validate::create(resource("storage.k8s.io/v1", "StorageClass"), &class)))
    });
    check("ports of a service", &|n| {
        let ports = |with: bool| {
            list(n, |idx| {
                let mut port = json!({"name": format!("p{idx}"), "port": n - idx, "protocol": "TCP"});
                if with {
                    port["nodePort"] = (idx + 1).into();
                }
                port
            })
        };
        let service = |ports: Value| {
            json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"},
            "spec": {"type": "NodePort", "ports": ports}})
        };
        let (old, new) = (service(ports(true)), service(ports(false)));
        Box::new(move || strategy::prepare_for_update(resource("v1", "Service"), &mut new.clone(), &old))
    });
}

#[test]
fn judging_custom_objects_with_long_lists_costs_what_the_lists_are_long() {
    let item = json!({"type": "object", "required": ["name"],
        "properties": {"name": {"type": "string"}, "n": {"type": "integer"}}});
    let keyed = json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
        "items": item});
    let ruled = {
        let mut ruled = keyed.clone();
        ruled["items"]["x-kubernetes-validations"] = json!([{"rule": "self.n >= 0"}]);
        ruled["maxItems"] = 100_000.into();
        ruled
    };
    let unique = json!({"type": "array", "uniqueItems": true, "items": {"type": "string"}});
    let properties = json!({"keyed": keyed, "ruled": ruled, "unique": unique});
    let definition = json!({"metadata": {"name": "widgets.example.com"},
        "spec": {"group": "example.com", "scope": "Namespaced",
        "names": {"kind": "Widget", "listKind": "WidgetList", "plural": "widgets", "singular": "widget"},
        "versions": [{"name": "v1", "served": true, "storage": true,
            "schema": {"openAPIV3Schema": {"type": "object", "properties": {
            "spec": {"type": "object", "properties": properties}}}}}]}});
    let widget = custom::resources(&definition).remove(0);
    let object = |spec: Value| {
        json!({"apiVersion": "example.com/v1", "kind": "Widget",
        "metadata": {"name": "w", "namespace": "a", "uid": "u", "resourceVersion": "1"}, "spec": spec})
    };
    let items = |n: usize, more: usize| list(n, move |idx| json!({"name": format!("i{}", n - idx), "n": idx + more}));
    for field in ["keyed", "ruled"] {
        check(field, &|n| {
            let (old, new, widget) =
                (object(json!({field: items(n, 0)})), object(json!({field: items(n, 1)})), widget.clone());
            Box::new(move || drop(validate::update(&widget, &new, &old)))
        });
    }
    check("unique", &|n| {
        let (widget, new) = (widget.clone(), object(json!({"unique": list(n, finalizer)})));
        Box::new(move || drop(validate::create(&widget, &new)))
    });
}
