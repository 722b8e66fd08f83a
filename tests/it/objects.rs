//! Objects through kubectl: made, read in every form, changed in every way, refused with upstream's words.

use std::fs;

use serde_json::{Value, json};

use crate::harness::{SETTLE_LIMIT, Server};

const CONFIG: &str =
    "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: web, labels: {app: web, tier: front}}\ndata: {colour: blue}\n";

#[test]
fn an_object_is_read_in_every_output_form() {
    let server = Server::start();
    assert_eq!(server.ok_with(&["create", "-f", "-"], CONFIG), "configmap/web created\n");
    assert_eq!(server.ok(&["get", "cm", "web", "-o", "name"]), "configmap/web\n");
    assert_eq!(server.ok(&["get", "cm", "web", "-o", "jsonpath={.data.colour}"]), "blue");
    assert_eq!(server.ok(&["get", "cm", "web", "-o", "go-template={{.data.colour}}"]), "blue");
    assert!(server.ok(&["get", "cm", "web", "-o", "yaml"]).contains("  colour: blue\n"));
    let json: serde_json::Value = serde_json::from_str(&server.ok(&["get", "cm", "web", "-o", "json"])).unwrap();
    assert_eq!(json["metadata"]["namespace"], "default");
    assert!(json["metadata"]["uid"].as_str().unwrap().len() == 36, "{json}");
    let table = server.ok(&["get", "cm", "web", "--show-labels"]);
    assert_eq!(table.lines().next().unwrap().split_whitespace().collect::<Vec<_>>(), ["NAME", "DATA", "AGE", "LABELS"]);
    assert!(table.contains("app=web,tier=front"), "{table}");
    let columns =
        server.ok(&["get", "cm", "web", "-o", "custom-columns=N:.metadata.name,C:.data.colour", "--no-headers"]);
    assert_eq!(columns.split_whitespace().collect::<Vec<_>>(), ["web", "blue"]);
    assert!(server.ok(&["describe", "cm", "web"]).contains("colour:\n----\nblue"));
    assert_eq!(server.refused(&["get", "cm", "gone"]), "Error from server (NotFound): configmaps \"gone\" not found\n");
    let again = server.refused_with(&["create", "-f", "-"], CONFIG);
    assert!(
        again.contains("Error from server (AlreadyExists)") && again.contains("configmaps \"web\" already exists"),
        "{again}"
    );
    server.stop();
}

#[test]
fn a_patch_changes_what_it_names() {
    let server = Server::start();
    server.ok_with(&["create", "-f", "-"], CONFIG);
    let data = || server.ok(&["get", "cm", "web", "-o", "jsonpath={.data}"]);
    server.ok(&["patch", "cm", "web", "--type=merge", "-p", r#"{"data":{"size":"1"}}"#]);
    assert_eq!(data(), r#"{"colour":"blue","size":"1"}"#);
    server.ok(&[
        "patch",
        "cm",
        "web",
        "--type=json",
        "-p",
        r#"[{"op":"replace","path":"/data/size","value":"2"},{"op":"remove","path":"/data/colour"}]"#,
    ]);
    assert_eq!(data(), r#"{"size":"2"}"#);
    server.ok(&["patch", "cm", "web", "-p", r#"{"data":{"size":null,"shape":"round"}}"#]);
    assert_eq!(data(), r#"{"shape":"round"}"#);
    assert!(server.ok(&["patch", "cm", "web", "-p", r#"{"data":{"shape":"round"}}"#]).contains("(no change)"));

    // Strategic merge joins containers by name; a merge patch would replace the list.
    server.ok(&["create", "deployment", "two", "--image=a:1", "--replicas=0"]);
    server.ok(&[
        "patch",
        "deployment",
        "two",
        "-p",
        r#"{"spec":{"template":{"spec":{"containers":[{"name":"side","image":"b:1"}]}}}}"#,
    ]);
    assert_eq!(
        server.ok(&["get", "deployment", "two", "-o", "jsonpath={.spec.template.spec.containers[*].name}"]),
        "side a"
    );
    let missing =
        server.refused(&["patch", "cm", "web", "--type=json", "-p", r#"[{"op":"remove","path":"/data/none"}]"#]);
    assert!(missing.contains("the server rejected our request due to an error in our request"), "{missing}");
    server.stop();
}

#[test]
fn apply_says_what_it_did_and_prunes_what_was_taken_away() {
    let server = Server::start();
    assert_eq!(server.ok_with(&["apply", "-f", "-"], CONFIG), "configmap/web created\n");
    assert_eq!(server.ok_with(&["apply", "-f", "-"], CONFIG), "configmap/web unchanged\n");
    let green = CONFIG.replace("colour: blue", "shape: round");
    let diff = server.said_with(&["diff", "-f", "-"], &green);
    assert!(diff.code == 1 && diff.out.contains("-  colour: blue") && diff.out.contains("+  shape: round"), "{diff:?}");
    assert_eq!(server.ok_with(&["apply", "-f", "-"], &green), "configmap/web configured\n");
    assert_eq!(server.ok(&["get", "cm", "web", "-o", "jsonpath={.data}"]), r#"{"shape":"round"}"#);
    server.stop();
}

#[test]
fn server_side_apply_defends_what_others_own() {
    let server = Server::start();
    let apply = ["apply", "--server-side", "-f", "-", "--field-manager=one"];
    assert_eq!(server.ok_with(&apply, CONFIG), "configmap/web serverside-applied\n");
    let red = CONFIG.replace("blue", "red");
    let other = ["apply", "--server-side", "-f", "-", "--field-manager=two"];
    let conflict = server.refused_with(&other, &red);
    assert!(conflict.contains("Apply failed with 1 conflict: conflict with \"one\": .data.colour"), "{conflict}");
    assert_eq!(server.ok(&["get", "cm", "web", "-o", "jsonpath={.data.colour}"]), "blue");
    server.ok_with(&[&other[..], &["--force-conflicts"]].concat(), &red);
    let owners = server.ok(&[
        "get",
        "cm",
        "web",
        "--show-managed-fields",
        "-o",
        "jsonpath={.metadata.managedFields[*].manager}",
    ]);
    assert_eq!(server.ok(&["get", "cm", "web", "-o", "jsonpath={.data.colour}"]), "red");
    assert_eq!(owners, "one two");
    server.stop();
}

/// Managers of fields below `spec` of an object, each with its version and these fields.
fn managers(server: &Server, what: &str) -> Vec<(String, String, String)> {
    let object: Value =
        serde_json::from_str(&server.ok(&["get", what, "--show-managed-fields", "-o", "json"])).unwrap();
    let text = |entry: &Value, key: &str| entry[key].as_str().unwrap_or_default().to_owned();
    let entries = object["metadata"]["managedFields"].as_array().unwrap().iter();
    // Its controller owns fields of the status.
    let of_spec = entries.filter(|e| e["fieldsV1"].get("f:spec").is_some());
    of_spec.map(|e| (text(e, "manager"), text(e, "apiVersion"), e["fieldsV1"]["f:spec"].to_string())).collect()
}

/// issue 12: managers were written down in the stored version, whichever they had written in.
#[test]
fn fields_are_owned_in_the_version_in_which_they_were_written() {
    let server = Server::start();
    let is = |manager: &str, version: &str, fields: Value| (manager.to_owned(), version.to_owned(), fields.to_string());
    let scaled = |version: &str, rest: Value| {
        let mut spec = json!({ "scaleTargetRef": { "apiVersion": "apps/v1", "kind": "Deployment", "name": "d" },
            "maxReplicas": 3 });
        spec.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
        json!({ "apiVersion": version, "kind": "HorizontalPodAutoscaler", "metadata": { "name": "h" }, "spec": spec })
            .to_string()
    };
    let apply = |manager: &str, object: &str| {
        server.said_with(&["apply", "--server-side", "-f", "-", &format!("--field-manager={manager}")], object)
    };
    let old = scaled("autoscaling/v1", json!({ "targetCPUUtilizationPercentage": 50 }));
    assert_eq!(apply("one", &old).code, 0);
    let of_one = json!({ "f:maxReplicas": {}, "f:scaleTargetRef": {}, "f:targetCPUUtilizationPercentage": {} });
    assert_eq!(managers(&server, "hpa/h"), [is("one", "autoscaling/v1", of_one)]);
    let metrics = json!([{ "type": "Resource",
        "resource": { "name": "cpu", "target": { "type": "Utilization", "averageUtilization": 60 } } }]);
    let refused = apply("two", &scaled("autoscaling/v2", json!({ "metrics": metrics })));
    assert!(refused.err.contains("conflict with \"one\": .spec.targetCPUUtilizationPercentage"), "{refused:?}");
    // What its owner no longer wants goes, though it says so in the other version.
    assert_eq!(apply("one", &scaled("autoscaling/v2", json!({ "minReplicas": 2 }))).code, 0);
    // What is one field to v1 is three to v2.
    let of_one = json!({ "f:maxReplicas": {}, "f:minReplicas": {},
        "f:scaleTargetRef": { "f:apiVersion": {}, "f:kind": {}, "f:name": {} } });
    assert_eq!(managers(&server, "hpa/h"), [is("one", "autoscaling/v2", of_one)]);

    let version = |name: &&str| {
        json!({ "name": name, "served": true, "storage": *name == "v2",
            "schema": { "openAPIV3Schema": { "type": "object",
                "properties": { "spec": { "type": "object", "x-kubernetes-preserve-unknown-fields": true } } } } })
    };
    let versions: Vec<Value> = ["v1", "v2"].iter().map(version).collect();
    let definition = json!({ "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": "twos.it.example.com" },
        "spec": { "group": "it.example.com", "scope": "Namespaced", "names": { "plural": "twos", "kind": "Two" },
            "versions": versions } });
    server.ok_with(&["create", "-f", "-"], &definition.to_string());
    server.ok(&["wait", "--for=condition=Established", "crd/twos.it.example.com"]);
    let two = |version: &str, spec: Value| {
        json!({ "apiVersion": format!("it.example.com/{version}"), "kind": "Two", "metadata": { "name": "t" },
            "spec": spec })
        .to_string()
    };
    server.ok_with(&["create", "-f", "-", "--field-manager=one"], &two("v1", json!({ "a": 1, "b": 1 })));
    assert_eq!(managers(&server, "twos/t"), [is("one", "it.example.com/v1", json!({ ".": {}, "f:a": {}, "f:b": {} }))]);
    let forced = ["apply", "--server-side", "-f", "-", "--field-manager=two", "--force-conflicts"];
    server.ok_with(&forced, &two("v2", json!({ "b": 2 })));
    let both = [
        is("two", "it.example.com/v2", json!({ "f:b": {} })),
        is("one", "it.example.com/v1", json!({ ".": {}, "f:a": {} })),
    ];
    assert_eq!(managers(&server, "twos/t"), both);
    server.stop();
}

#[test]
fn replace_edit_label_and_annotate_do_what_they_say() {
    let server = Server::start();
    server.ok_with(&["create", "-f", "-"], CONFIG);
    assert_eq!(server.ok_with(&["replace", "-f", "-"], &CONFIG.replace("blue", "grey")), "configmap/web replaced\n");
    let mut edit = server.place.kubectl(&["edit", "cm", "web"]);
    let edited = edit.env("KUBE_EDITOR", "sed -i s/grey/black/").output().unwrap();
    assert!(edited.status.success(), "{edited:?}");
    assert_eq!(server.ok(&["get", "cm", "web", "-o", "jsonpath={.data.colour}"]), "black");
    server.ok(&["label", "cm", "web", "tier-", "zone=a"]);
    server.ok(&["annotate", "cm", "web", "note=hello"]);
    assert_eq!(
        server.ok(&["get", "cm", "web", "-o", "jsonpath={.metadata.labels}{.metadata.annotations.note}"]),
        r#"{"app":"web","zone":"a"}hello"#
    );
    let stale = CONFIG.replace("name: web,", "name: web, resourceVersion: \"1\",");
    let conflict = server.refused_with(&["replace", "-f", "-"], &stale);
    let text = "Operation cannot be fulfilled on configmaps \"web\": the object has been modified; please apply your \
        changes to the latest version and try again";
    assert!(conflict.contains("(Conflict)") && conflict.contains(text), "{conflict}");
    server.stop();
}

#[test]
fn selectors_and_pages_find_the_same_objects() {
    let server = Server::start();
    let many: Vec<String> = (0..40)
        .map(|n| {
            format!(
                "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: c{n:02}, labels: {{quarter: \"{}\", all: \
                \"yes\"}}}}\n",
                n % 4
            )
        })
        .collect();
    server.ok_with(&["create", "-f", "-"], &many.join("---\n"));
    let count = |args: &[&str]| server.ok(&[&["get", "cm", "-o", "name"], args].concat()).lines().count();
    assert_eq!(count(&["-l", "all=yes"]), 40);
    assert_eq!(count(&["-l", "all=yes", "--chunk-size=7"]), 40);
    assert_eq!(count(&["-l", "quarter in (0,1),all"]), 20);
    assert_eq!(count(&["-l", "quarter notin (0),all"]), 30);
    assert_eq!(count(&["-l", "quarter!=0,all"]), 30);
    assert_eq!(count(&["--field-selector", "metadata.name=c07"]), 1);
    let page: serde_json::Value = serde_json::from_str(&server.ok(&[
        "get",
        "--raw",
        "/api/v1/namespaces/default/configmaps?limit=7&labelSelector=all",
    ]))
    .unwrap();
    assert_eq!(page["items"].as_array().unwrap().len(), 7);
    assert!(!page["metadata"]["continue"].as_str().unwrap().is_empty(), "{}", page["metadata"]);
    let bad = server.refused(&["get", "cm", "--field-selector", "data.x=1"]);
    assert!(bad.contains("\"data.x\" is not a known field selector"), "{bad}");
    server.ok(&["delete", "cm", "-l", "quarter=0"]);
    assert_eq!(count(&["-l", "all=yes"]), 30);
    server.ok(&["delete", "cm", "--all"]);
    // The namespace's own comes back: a controller keeps it.
    server.until(&["get", "cm", "-o", "name"], SETTLE_LIMIT, |out| out == "configmap/kube-root-ca.crt\n");
    server.stop();
}

#[test]
fn what_upstream_refuses_is_refused_in_its_words() {
    let server = Server::start();
    let refused = |manifest: &str| server.refused_with(&["create", "-f", "-"], manifest);
    let name = refused("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: Bad_Name}\n");
    assert!(
        name.starts_with(
            "The ConfigMap \"Bad_Name\" is invalid: metadata.name: Invalid value: \"Bad_Name\": a \
        lowercase RFC 1123 subdomain must consist of"
        ),
        "{name}"
    );
    let labels = refused(
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d}\nspec:\n  selector: {matchLabels: {app: a}}\n  \
         template:\n    metadata: {labels: {app: b}}\n    spec: {containers: [{name: c, image: i}]}\n",
    );
    assert!(
        labels.contains("spec.template.metadata.labels: Invalid value:")
            && labels.contains("`selector` does not match template `labels`"),
        "{labels}"
    );
    let unknown = refused("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: u}\ndatum: {a: b}\n");
    assert!(unknown.contains("strict decoding error: unknown field \"datum\""), "{unknown}");
    let kind = refused("apiVersion: v1\nkind: Nothing\nmetadata: {name: none}\n");
    assert!(kind.contains("no matches for kind \"Nothing\" in version \"v1\""), "{kind}");
    let namespace = refused("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x, namespace: nowhere}\n");
    assert!(namespace.contains("namespaces \"nowhere\" not found"), "{namespace}");
    server.stop();
}

#[test]
fn a_dry_run_leaves_nothing() {
    let server = Server::start();
    assert_eq!(
        server.ok_with(&["apply", "--dry-run=server", "-f", "-"], CONFIG),
        "configmap/web created (server dry run)\n"
    );
    assert!(server.refused(&["get", "cm", "web"]).contains("(NotFound)"));
    server.stop();
}

#[test]
fn the_server_describes_itself() {
    let server = Server::start();
    assert!(server.ok(&["version"]).contains("Server Version: v1.36."), "{}", server.ok(&["version"]));
    assert!(server.ok(&["api-versions"]).lines().any(|line| line == "apps/v1"));
    let resources = server.ok(&["api-resources", "--no-headers"]);
    for plural in ["pods", "deployments", "customresourcedefinitions", "networkpolicies", "horizontalpodautoscalers"] {
        assert!(resources.lines().any(|line| line.starts_with(plural)), "{plural} in\n{resources}");
    }
    assert!(server.ok(&["explain", "deployment.spec.replicas"]).contains("Number of desired pods"));
    assert!(server.ok(&["explain", "pod", "--recursive"]).contains("terminationGracePeriodSeconds"));
    assert!(server.ok(&["cluster-info"]).contains(&format!("127.0.0.1:{}", server.place.port)));
    for path in ["/healthz", "/livez", "/readyz"] {
        assert_eq!(server.ok(&["get", "--raw", path]), "ok");
    }
    let checks = server.ok(&["get", "--raw", "/readyz?verbose&exclude=etcd"]);
    for line in [
        "[+]ping ok",
        "[+]etcd excluded: ok",
        "[+]poststarthook/rbac/bootstrap-roles ok",
        "[+]shutdown ok",
        "readyz check passed",
    ] {
        assert!(checks.lines().any(|l| l == line), "{line} in\n{checks}");
    }
    assert_eq!(server.ok(&["get", "--raw", "/livez/poststarthook/start-apiextensions-controllers"]), "ok");
    let slis = server.ok(&["get", "--raw", "/metrics/slis"]);
    assert!(slis.contains("kubernetes_healthcheck{name=\"etcd\",type=\"livez\"} 1"), "{slis}");
    let metrics = server.ok(&["get", "--raw", "/metrics"]);
    for part in [
        "apiserver_request_total{code=\"201\",dry_run=\"\",component=\"apiserver\"",
        "verb=\"POST\"",
        "apiserver_request_duration_seconds_bucket",
        "apiserver_current_inflight_requests",
        "apiserver_storage_objects{resource=\"namespaces\"} 4",
        "apiserver_client_certificate_expiration_seconds_count",
        "process_start_time_seconds",
    ] {
        assert!(metrics.contains(part), "{part} in\n{metrics}");
    }
    server.stop();
}

#[test]
fn a_deleted_namespace_takes_its_objects_along() {
    let server = Server::start();
    server.ok(&["create", "namespace", "shop"]);
    server.until(&["-n", "shop", "get", "sa,cm", "-o", "name"], SETTLE_LIMIT, |out| {
        out.contains("serviceaccount/default") && out.contains("configmap/kube-root-ca.crt")
    });
    server.ok_with(&["-n", "shop", "create", "-f", "-"], CONFIG);
    server.ok(&["-n", "shop", "create", "deployment", "d", "--image=a:1"]);
    server.ok(&["delete", "namespace", "shop", "--timeout=60s"]);
    assert!(server.refused(&["get", "namespace", "shop"]).contains("(NotFound)"));
    assert_eq!(server.ok(&["get", "rs,pods", "-A", "-o", "name"]), "");
    server.stop();
}

#[test]
fn manifests_are_read_as_yaml_and_json_from_files() {
    let server = Server::start();
    let path = server.place.path("objects.json");
    let json = r#"{"apiVersion":"v1","kind":"List","items":[
        {"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"j"}},
        {"apiVersion":"v1","kind":"Secret","metadata":{"name":"s"},"stringData":{"k":"v"}}]}"#;
    fs::write(&path, json).unwrap();
    assert_eq!(server.ok(&["create", "-f", path.to_str().unwrap()]), "configmap/j created\nsecret/s created\n");
    assert_eq!(server.ok(&["get", "secret", "s", "-o", "jsonpath={.data.k}{.type}"]), "dg==Opaque");
    server.stop();
}
