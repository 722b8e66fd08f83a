//! Clients that write fields which are not theirs to write, at the same time as others, and by every road.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::harness::{Running, SETTLE_LIMIT, Server};

/// `kubectl proxy`: plain HTTP to the server as its admin, for what kubectl itself does not send.
pub(crate) struct Door {
    url: String,
    _process: Running,
}

impl Door {
    pub(crate) fn open(server: &Server) -> Door {
        let mut process = server.place.kubectl(&["proxy", "--port=0"]).stdout(Stdio::piped()).spawn().unwrap();
        let mut said = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut said).unwrap();
        let url = format!("http://{}", said.trim().rsplit(' ').next().unwrap());
        Door { url, _process: Running(process) }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("{}{path}", self.url)
    }

    /// A request that is not finished yet: status line, headers and body come on its standard output.
    fn send(&self, method: &str, path: &str, media: &str, body: &str) -> std::process::Child {
        let kind = format!("Content-Type: {media}");
        let mut curl = Command::new("curl");
        curl.args(["-si", "-A", "hostile", "-X", method, "-H", &kind, "-d", body, &self.url(path)]);
        curl.stdout(Stdio::piped()).spawn().unwrap()
    }

    /// Code and everything else of an answer.
    fn ask(&self, method: &str, path: &str, media: &str, body: &str) -> (u16, String) {
        read(self.send(method, path, media, body))
    }
}

fn read(child: std::process::Child) -> (u16, String) {
    let text = String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap();
    let code = text.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0);
    (code, text)
}

const JSON: &str = "application/json";
const MERGE: &str = "application/merge-patch+json";
const APPLY: &str = "application/apply-patch+yaml";
const DEFAULT: &str = "/api/v1/namespaces/default";
const APPS: &str = "/apis/apps/v1/namespaces/default";

#[test]
fn fields_are_written_by_those_whose_they_are() {
    let server = Server::start();
    server.until(&["get", "serviceaccount", "default"], SETTLE_LIMIT, |_| true);
    let door = Door::open(&server);
    // Pods that no kubelet will ever touch.
    server.ok_with(
        &["create", "-f", "-"],
        r#"{"apiVersion":"v1","kind":"Node","metadata":{"name":"ghost"},"status":{"allocatable":{"cpu":"4","memory":"8Gi","pods":"100"}}}"#,
    );
    writers_side_by_side_all_get_through(&door);
    a_drain_of_many_pods_of_one_budget_gets_through(&server, &door);
    a_pod_that_becomes_ready_while_it_is_evicted_is_judged_anew(&server, &door);
    a_status_write_leaves_the_metadata_that_is_not_its_own(&server, &door);
    every_road_takes_server_side_apply(&server, &door);
    a_resize_keeps_the_bounds_of_the_namespace(&server, &door);
    a_second_delete_shortens_no_time_unasked(&server, &door);
    a_creator_sets_nothing_of_the_servers(&door);
    versions_that_are_deprecated_say_so(&server, &door);
    people_get_json_that_they_can_read(&door);
    items_of_a_list_name_no_kind_of_their_own(&server, &door);
    a_streamed_list_of_rows_ends_with_a_row(&server, &door);
    server.stop();
}

/// Semantics H8: of 300 patches at once some got 409, though none named a version; two appliers of a new object
/// likewise.
fn writers_side_by_side_all_get_through(door: &Door) {
    door.ask("POST", &format!("{DEFAULT}/configmaps"), JSON, r#"{"metadata":{"name":"shared"}}"#);
    let path = format!("{DEFAULT}/configmaps/shared");
    let all: Vec<_> =
        (0..60).map(|i| door.send("PATCH", &path, MERGE, &format!(r#"{{"data":{{"k{i}":"v"}}}}"#))).collect();
    let codes: Vec<u16> = all.into_iter().map(|child| read(child).0).collect();
    assert!(codes.iter().all(|code| *code == 200), "patches that name no version: {codes:?}");
    let made: Vec<_> = (0..20)
        .map(|i| {
            let config = format!(
                r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"made"}},"data":{{"k{i}":"v"}}}}"#
            );
            door.send("PATCH", &format!("{DEFAULT}/configmaps/made?fieldManager=m{i}"), APPLY, &config)
        })
        .collect();
    let codes: Vec<u16> = made.into_iter().map(|child| read(child).0).collect();
    assert!(codes.iter().all(|code| matches!(code, 200 | 201)), "appliers of one new object: {codes:?}");
}

/// Semantics H8: evictions of one budget at once failed with 504, which a drain does not try again.
fn a_drain_of_many_pods_of_one_budget_gets_through(server: &Server, door: &Door) {
    const N: usize = 25;
    let budget = r#"{"apiVersion":"policy/v1","kind":"PodDisruptionBudget","metadata":{"name":"e"},
        "spec":{"minAvailable":0,"selector":{"matchLabels":{"app":"e"}}}}"#;
    server.ok_with(&["create", "-f", "-"], budget);
    for i in 0..N {
        let pod = format!(
            r#"{{"metadata":{{"name":"e{i}","labels":{{"app":"e"}}}},"spec":{{"nodeName":"ghost","containers":[{{"name":"c","image":"i"}}]}}}}"#
        );
        assert_eq!(door.ask("POST", &format!("{DEFAULT}/pods"), JSON, &pod).0, 201);
        let running = r#"{"status":{"phase":"Running","conditions":[{"type":"Ready","status":"True"}]}}"#;
        assert_eq!(door.ask("PATCH", &format!("{DEFAULT}/pods/e{i}/status"), MERGE, running).0, 200);
    }
    let allowed = ["get", "pdb", "e", "-o", "jsonpath={.status.disruptionsAllowed}"];
    server.until(&allowed, SETTLE_LIMIT, |out| out == N.to_string());
    let evict = |i: usize| {
        let body = format!(r#"{{"apiVersion":"policy/v1","kind":"Eviction","metadata":{{"name":"e{i}"}}}}"#);
        door.send("POST", &format!("{DEFAULT}/pods/e{i}/eviction"), JSON, &body)
    };
    // A budget that the controller has not looked at since is a 429, which a drain tries again until all are through.
    let (began, mut left) = (Instant::now(), Vec::from_iter(0..N));
    while !left.is_empty() {
        assert!(began.elapsed() < SETTLE_LIMIT, "not evicted: {left:?}");
        let all: Vec<_> = left.iter().map(|i| (*i, evict(*i))).collect();
        let answers: Vec<(usize, (u16, String))> = all.into_iter().map(|(i, child)| (i, read(child))).collect();
        let lost: Vec<_> = answers.iter().filter(|(_, (code, _))| !matches!(code, 201 | 429)).collect();
        assert!(lost.is_empty(), "{lost:?}");
        left = answers.into_iter().filter(|(_, (code, _))| *code == 429).map(|(i, _)| i).collect();
    }
    server.ok(&["delete", "pods", "-l", "app=e", "--force", "--grace-period=0"]);
}

/// security-2 F20: what was judged while it served nobody was taken although it served by then, below its budget. Of a
/// readiness and an eviction at once one wins: both cannot be told yes.
fn a_pod_that_becomes_ready_while_it_is_evicted_is_judged_anew(server: &Server, door: &Door) {
    const N: usize = 60;
    let budget = r#"{"apiVersion":"policy/v1","kind":"PodDisruptionBudget","metadata":{"name":"r"},
        "spec":{"minAvailable":1000,"selector":{"matchLabels":{"app":"r"}}}}"#;
    server.ok_with(&["create", "-f", "-"], budget);
    server.until(&["get", "pdb", "r", "-o", "jsonpath={.status.observedGeneration}"], SETTLE_LIMIT, |out| out == "1");
    for i in 0..N {
        let pod = format!(
            r#"{{"metadata":{{"name":"r{i}","labels":{{"app":"r"}}}},"spec":{{"nodeName":"ghost","containers":[{{"name":"c","image":"i"}}]}}}}"#
        );
        assert_eq!(door.ask("POST", &format!("{DEFAULT}/pods"), JSON, &pod).0, 201);
    }
    let serve = |i: usize| {
        let running = r#"{"status":{"phase":"Running","conditions":[{"type":"Ready","status":"True"}]}}"#;
        door.send("PATCH", &format!("{DEFAULT}/pods/r{i}/status"), MERGE, running)
    };
    let evict = |i: usize| {
        let body = format!(
            r#"{{"apiVersion":"policy/v1","kind":"Eviction","metadata":{{"name":"r{i}"}},"deleteOptions":{{"gracePeriodSeconds":0}}}}"#
        );
        door.send("POST", &format!("{DEFAULT}/pods/r{i}/eviction"), JSON, &body)
    };
    for some in Vec::from_iter(0..N).chunks(6) {
        let both: Vec<_> = some.iter().map(|i| (*i, evict(*i), serve(*i))).collect();
        for (i, evicted, served) in both {
            let (evicted, served) = (read(evicted), read(served));
            let is_fair = matches!((evicted.0, served.0), (201, 404) | (429, 200));
            assert!(is_fair, "pod r{i} was evicted: {evicted:?}; it became ready: {served:?}");
        }
    }
    server.ok(&["delete", "pods", "-l", "app=r", "--force", "--grace-period=0"]);
    server.ok(&["delete", "pdb", "r"]);
}

/// Owners and labels come back as upstream v1.36 has them: a Job's are its writer's, a Deployment's labels are not.
fn a_status_write_leaves_the_metadata_that_is_not_its_own(server: &Server, door: &Door) {
    server.ok(&["create", "deployment", "d", "--image=i", "--replicas=0"]);
    server.ok(&["create", "job", "j", "--image=i"]);
    let patch = r#"{"metadata":{"labels":{"x":"y"},"annotations":{"x":"y"}},"spec":{"paused":true,"suspend":true}}"#;
    let (code, said) = door.ask("PATCH", &format!("{APPS}/deployments/d/status"), MERGE, patch);
    assert!(
        code == 200
            && !said.contains(r#""labels":{"app":"d","x""#)
            && said.contains(r#""x":"y""#)
            && !said.contains("paused"),
        "{said}"
    );
    let (code, said) = door.ask("PATCH", "/apis/batch/v1/namespaces/default/jobs/j/status", MERGE, patch);
    assert!(
        code == 200 && said.contains(r#""x":"y"},"managedFields""#) && said.contains(r#""suspend":false"#),
        "{said}"
    );
}

/// Semantics M10, M11.
fn every_road_takes_server_side_apply(server: &Server, door: &Door) {
    let scale = r#"{"apiVersion":"autoscaling/v1","kind":"Scale","metadata":{"name":"d"},"spec":{"replicas":0}}"#;
    let (code, said) =
        door.ask("PATCH", &format!("{APPS}/deployments/d/scale?fieldManager=hpa&force=true"), APPLY, scale);
    assert!(code == 200 && said.contains(r#""kind":"Scale""#), "{said}");
    let owners = server.ok(&["get", "deployment", "d", "--show-managed-fields", "-o", "json"]);
    let at = owners.find(r#""manager": "hpa""#).unwrap();
    assert!(owners[at..].contains("f:replicas") && owners[at..].contains(r#""subresource": "scale""#), "{owners}");
    server.ok_with(
        &["create", "-f", "-"],
        r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p"},"spec":{"nodeName":"ghost","containers":[{"name":"c","image":"i"}]}}"#,
    );
    let debug = r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p","labels":{"not":"its"}},
        "spec":{"ephemeralContainers":[{"name":"e","image":"i"}]}}"#;
    let (code, said) = door.ask("PATCH", &format!("{DEFAULT}/pods/p/ephemeralcontainers?fieldManager=m"), APPLY, debug);
    assert!(code == 200 && said.contains(r#""ephemeralContainers":[{"#) && !said.contains(r#""not":"its""#), "{said}");
    // Policies about a scale see scales.
    let policy = r#"{"apiVersion":"admissionregistration.k8s.io/v1","kind":"ValidatingAdmissionPolicy",
        "metadata":{"name":"few"},"spec":{
        "matchConstraints":{"resourceRules":[{"apiGroups":["apps"],"apiVersions":["v1"],"operations":["UPDATE"],"resources":["deployments/scale"]}]},
        "validations":[
            {"expression":"object.kind == 'Scale' && object.spec.replicas < 9 && oldObject.spec.replicas < 9"}]}}"#;
    server.ok_with(&["create", "-f", "-"], policy);
    let binding = r#"{"apiVersion":"admissionregistration.k8s.io/v1","kind":"ValidatingAdmissionPolicyBinding",
        "metadata":{"name":"few"},"spec":{"policyName":"few","validationActions":["Deny"]}}"#;
    server.ok_with(&["create", "-f", "-"], binding);
    crate::harness::wait_for("the policy to be in force", SETTLE_LIMIT, || {
        let (code, said) =
            door.ask("PATCH", &format!("{APPS}/deployments/d/scale?dryRun=All"), MERGE, r#"{"spec":{"replicas":9}}"#);
        if code == 422 { Ok(()) } else { Err(said) }
    });
    let (code, said) =
        door.ask("PATCH", &format!("{APPS}/deployments/d/scale?dryRun=All"), MERGE, r#"{"spec":{"replicas":8}}"#);
    assert_eq!(code, 200, "{said}");
}

/// Semantics H12.
fn a_resize_keeps_the_bounds_of_the_namespace(server: &Server, door: &Door) {
    server.ok(&["create", "namespace", "bounded"]);
    server.until(&["-n", "bounded", "get", "serviceaccount", "default"], SETTLE_LIMIT, |_| true);
    server.ok_with(
        &["-n", "bounded", "create", "-f", "-"],
        r#"{"apiVersion":"v1","kind":"LimitRange","metadata":{"name":"l"},"spec":{"limits":[{"type":"Container","max":{"cpu":"500m"}}]}}"#,
    );
    server.ok_with(
        &["-n", "bounded", "create", "-f", "-"],
        r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p"},"spec":{"nodeName":"ghost","containers":[{"name":"c","image":"i","resources":{"requests":{"cpu":"100m"},"limits":{"cpu":"100m"}}}]}}"#,
    );
    let to = |cpu: &str| {
        format!(
            r#"{{"spec":{{"containers":[{{"name":"c","image":"other","resources":{{"requests":{{"cpu":"{cpu}"}},"limits":{{"cpu":"{cpu}"}}}}}}]}}}}"#
        )
    };
    let strategic = "application/strategic-merge-patch+json";
    let (code, said) = door.ask("PATCH", "/api/v1/namespaces/bounded/pods/p/resize", strategic, &to("1"));
    assert!(code == 403 && said.contains("maximum cpu usage per Container is 500m, but limit is 1"), "{said}");
    let (code, said) = door.ask("PATCH", "/api/v1/namespaces/bounded/pods/p/resize", strategic, &to("200m"));
    assert!(code == 200 && said.contains(r#""image":"i""#), "{said}");
}

/// Semantics M13.
fn a_second_delete_shortens_no_time_unasked(server: &Server, door: &Door) {
    let path = format!("{DEFAULT}/pods/p");
    door.ask("DELETE", &format!("{path}?gracePeriodSeconds=600"), JSON, "");
    let end = || {
        server.ok(&[
            "get",
            "pod",
            "p",
            "-o",
            "jsonpath={.metadata.deletionTimestamp} {.metadata.deletionGracePeriodSeconds}",
        ])
    };
    let first = end();
    assert!(first.ends_with(" 600"), "{first}");
    door.ask("DELETE", &path, JSON, "");
    assert_eq!(end(), first);
    door.ask("DELETE", &format!("{path}?gracePeriodSeconds=60"), JSON, "");
    assert!(end().ends_with(" 60"));
    door.ask("DELETE", &format!("{path}?gracePeriodSeconds=0"), JSON, "");
    assert!(server.refused(&["get", "pod", "p"]).contains("not found"));
}

/// A creator's word about uid, times, versions and status is not heard.
fn a_creator_sets_nothing_of_the_servers(door: &Door) {
    let claim = r#"{"metadata":{"name":"c","uid":"mine","creationTimestamp":"2001-01-01T00:00:00Z",
        "deletionTimestamp":"2001-01-01T00:00:00Z","deletionGracePeriodSeconds":5,"selfLink":"x"},
        "spec":{"accessModes":["ReadWriteOnce"],"resources":{"requests":{"storage":"1Gi"}}},"status":{"phase":"Bound","capacity":{"storage":"9Ti"}}}"#;
    let (code, said) = door.ask("POST", &format!("{DEFAULT}/persistentvolumeclaims?dryRun=All"), JSON, claim);
    assert!(code == 201 && said.contains(r#""phase":"Pending""#), "{said}");
    for theirs in ["mine", "2001-01-01", "9Ti", "selfLink", "deletion"] {
        assert!(!said.contains(theirs), "{theirs} in {said}");
    }
    let hpa = r#"{"metadata":{"name":"h"},
        "spec":{"maxReplicas":3,"scaleTargetRef":{"apiVersion":"v1","kind":"ReplicationController","name":"r"}}}"#;
    let (code, said) =
        door.ask("POST", "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers?dryRun=All", JSON, hpa);
    assert_eq!(code, 201, "{said}");
    let patch = r#"{"metadata":{"labels":"invalid"}}"#;
    let (code, said) =
        door.ask("PATCH", &format!("{DEFAULT}/configmaps/shared"), "application/strategic-merge-patch+json", patch);
    assert!(code == 422 && said.contains("cannot restore map from string"), "{said}");
}

/// Every request for a version that its definition calls deprecated is answered with a warning; `additionalProperties:
/// true` is taken.
fn versions_that_are_deprecated_say_so(server: &Server, door: &Door) {
    let definition = r#"{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition",
        "metadata":{"name":"olds.example.com"},"spec":{"group":"example.com","scope":"Namespaced",
        "names":{"plural":"olds","kind":"Old"},"versions":[{"name":"v1","served":true,"storage":true,"deprecated":true,
        "deprecationWarning":"use young ones",
        "schema":{"openAPIV3Schema":{"type":"object","properties":{"spec":{"type":"object","properties":{"a":{"type":"string"}},"additionalProperties":true}}}}}]}}"#;
    server.ok_with(&["create", "-f", "-"], definition);
    server.ok(&["wait", "crd/olds.example.com", "--for=condition=Established", "--timeout=30s"]);
    crate::harness::wait_for("a list of the new kind", SETTLE_LIMIT, || {
        let (code, said) = door.ask("GET", "/apis/example.com/v1/namespaces/default/olds", JSON, "");
        if code == 200 && said.contains("299 - \"use young ones\"") { Ok(()) } else { Err(said) }
    });
}

/// Spec: upstream v1.36 `isPrettyPrint`.
fn people_get_json_that_they_can_read(door: &Door) {
    let get = |agent: &str, query: &str| {
        let out =
            Command::new("curl").args(["-s", "-A", agent, &door.url(&format!("{DEFAULT}{query}"))]).output().unwrap();
        String::from_utf8(out.stdout).unwrap().starts_with("{\n  \"")
    };
    assert_eq!(
        (get("curl/8", ""), get("Wget/1", ""), get("Mozilla/5.0 x", ""), get("kubectl", "")),
        (true, true, true, false)
    );
    assert_eq!((get("kubectl", "?pretty=1"), get("curl/8", "?pretty=0")), (true, false));
}

/// A client that compares what it made with what it lists sees no difference (upstream's e2e suite, "NOT be requested
/// by client-go's List").
fn items_of_a_list_name_no_kind_of_their_own(server: &Server, door: &Door) {
    server.ok(&["create", "secret", "generic", "listed"]);
    let items = |path: &str| {
        let out = Command::new("curl").args(["-s", "-A", "hostile", &door.url(path)]).output().unwrap();
        let list: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
        assert!(list["kind"].as_str().unwrap().ends_with("List"), "{list}");
        list["items"].as_array().unwrap().clone()
    };
    for path in [
        format!("{DEFAULT}/secrets"),
        format!("{DEFAULT}/secrets?pretty=1"),
        "/apis/events.k8s.io/v1/events".to_owned(),
    ] {
        let items = items(&path);
        assert!(!items.is_empty() || path.ends_with("events"), "{path}");
        assert!(items.iter().all(|item| item["kind"].is_null() && item["apiVersion"].is_null()), "{path}: {items:?}");
    }
    let definitions = items("/apis/apiextensions.k8s.io/v1/customresourcedefinitions");
    assert!(definitions.iter().all(|item| item["kind"].is_null()));
    server.ok_with(&["create", "-f", "-"], r#"{"apiVersion":"example.com/v1","kind":"Old","metadata":{"name":"one"}}"#);
    assert!(
        items("/apis/example.com/v1/olds")
            .iter()
            .all(|item| item["kind"] == "Old" && item["apiVersion"] == "example.com/v1")
    );
}

/// Columns come once, then null; the mark of the end is a Table of one row, whose object carries the annotation.
fn a_streamed_list_of_rows_ends_with_a_row(server: &Server, door: &Door) {
    server.ok(&["create", "secret", "generic", "listed2"]);
    let path = format!(
        "{DEFAULT}/secrets?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&timeoutSeconds=1"
    );
    let accept = "Accept: application/json;as=Table;v=v1;g=meta.k8s.io";
    let out = Command::new("curl").args(["-s", "-A", "hostile", "-H", accept, &door.url(&path)]).output().unwrap();
    let events: Vec<serde_json::Value> =
        String::from_utf8(out.stdout).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let (mark, rows) = events.split_last().unwrap();
    assert!(rows.len() >= 2 && rows.iter().all(|event| event["type"] == "ADDED"), "{events:?}");
    assert!(rows[0]["object"]["columnDefinitions"].is_array());
    let later = rows[1]["object"].as_object().unwrap();
    assert!(later["columnDefinitions"].is_null() && later.contains_key("columnDefinitions"), "{later:?}");
    let table = &mark["object"];
    assert_eq!((&mark["type"], &table["kind"]), (&"BOOKMARK".into(), &"Table".into()));
    assert_eq!(table["rows"].as_array().unwrap().len(), 1, "{table}");
    let object = &table["rows"][0]["object"];
    assert_eq!(object["kind"], "PartialObjectMetadata");
    assert_eq!(object["metadata"]["annotations"]["k8s.io/initial-events-end"], "true");
    assert_eq!(object["metadata"]["resourceVersion"], table["metadata"]["resourceVersion"]);
}
