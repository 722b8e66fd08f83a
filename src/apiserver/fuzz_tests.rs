//! Seeded fuzzing of what the API server reads beside bodies: paths, queries, headers, tokens of pages, and the answers
//! of webhooks and kubelets. Nothing may panic, and what is refused is refused with a Status.

use admission::webhooks::question;
use base::fuzz::{self, mutated_text, pick, rounds};
use base::url::{self, Query};
use http::header::{ACCEPT, CONTENT_TYPE, USER_AGENT};
use http::{HeaderMap, HeaderValue, Method};
use registry::{cache, conversion, negotiate};
use schema::table::Name;
use serde_json::{Value, json};

use crate::stream::{remote_command, rewrite};
use crate::verbs::{delete, list, page};
use crate::{info, usage};

const ROUNDS: u64 = 4_000;

#[test]
fn paths_and_queries_of_any_bytes_are_read_or_refused() {
    let rng = fuzz::rng(1);
    let paths = [
        "/api/v1/namespaces/n/pods/p/log",
        "/apis/apps/v1/namespaces/a%2Fb/deployments/x/scale",
        "/api/v1/watch/nodes/n/proxy/stats/summary",
        "/openapi/v3/apis/g/v1",
        "/apis/g/v1/%2e%2e/x",
    ];
    let queries = [
        "labelSelector=a%3Db%2Cc+in+(d)&limit=500&continue=eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6NywiciI6ImEifQ&watch=1",
        "resourceVersion=7&resourceVersionMatch=Exact&timeoutSeconds=9&pretty=true&fieldManager=m&force=1",
        "dryRun=All&propagationPolicy=Orphan&gracePeriodSeconds=-1&orphanDependents=0",
        "stdin=true&stdout=1&stderr=&tty=0&command=sh&command=-c&container=c",
    ];
    let words = ["%", "%2F", "%00", "%zz", "..", "/", "//", "&", "=", "+", "api", "é", "99999999999999999999", "-1"];
    let options =
        json!({"dryRun": ["All"], "gracePeriodSeconds": 0, "preconditions": {"uid": "u", "resourceVersion": "7"}});
    for _ in rounds(ROUNDS) {
        let (path, query) = (
            mutated_text(&rng, pick::<&str>(&rng, &paths), &words),
            mutated_text(&rng, pick::<&str>(&rng, &queries), &words),
        );
        let pairs = Query::parse(&query);
        let plain = info::unambiguous(&path).is_ok();
        let asked = info::parse(pick(&rng, &[Method::GET, Method::POST, Method::DELETE, Method::PATCH]), &path, &pairs);
        assert!(
            !plain || !asked.name.contains('/') || !asked.is_resource,
            "{path:?} is read as the name {:?}",
            asked.name
        );
        let _any = (url::decode_strictly(&path), rewrite::to_root(&Method::GET, &path, Some(&query)));
        let _any =
            (list::Moment::parse(&pairs, rng.below(2) == 0).is_ok(), delete::parse_options(&options, &pairs).is_ok());
        let _any = (page::Token::decode(pairs.text("continue")).is_ok(), remote_command::Wanted::from_query(&query));
    }
}

#[test]
fn headers_of_any_words_choose_a_form_or_none() {
    let rng = fuzz::rng(2);
    let accept = "application/json;as=Table;v=v1;g=meta.k8s.io,application/vnd.kubernetes.protobuf;q=0.5, */*;q=0";
    let words = [";", ",", "q=NaN", "q=-1", "q=1e99", "as=", "g=", "v=v1beta1", "*/*", "=", "application/yaml"];
    for _ in rounds(ROUNDS) {
        let mut headers = HeaderMap::new();
        for (name, whole) in
            [(ACCEPT, accept), (CONTENT_TYPE, "application/json; charset=utf-8"), (USER_AGENT, "curl/8")]
        {
            if let Ok(value) = HeaderValue::from_str(&mutated_text(&rng, whole, &words)) {
                headers.append(name, value);
            }
        }
        let _any = (negotiate::output(&headers).is_ok(), negotiate::output_with_protobuf(&headers).is_ok());
        let _any = (
            negotiate::output_of_custom(&headers).is_ok(),
            negotiate::input(&headers).is_ok(),
            wire::gzip::accepted(&headers),
        );
    }
}

/// Webhooks are others' programs.
#[test]
fn answers_of_webhooks_and_kubelets_are_understood_or_refused() {
    let rng = fuzz::rng(3);
    let review = json!({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "response": {"uid": "u",
        "allowed": true,
        "patchType": "JSONPatch", "patch": "W10=", "warnings": ["w"], "auditAnnotations": {"a": "b"},
        "status": {"code": 403, "message": "m"}}})
    .to_string();
    let converted =
        json!({"kind": "ConversionReview", "apiVersion": "apiextensions.k8s.io/v1", "response": {"uid": "u",
        "result": {"status": "Success"}, "convertedObjects": [{"apiVersion": "x.org/v2", "kind": "Foo",
            "metadata": {"name": "f"}}]}})
        .to_string();
    let metrics = "# TYPE x counter\nnode_cpu_usage_seconds_total 12.5 \
        1700000000000\ncontainer_memory_working_set_bytes{container=\"c\",namespace=\"n\",pod=\"p}\"} 4.2e6 1\n";
    let words = ["null", "[]", "{}", "\"", "-1", "1e999", "true", "\\u0000", "{", "}", "NaN", "\n", "+Inf"];
    for _ in rounds(ROUNDS) {
        let said = mutated_text(&rng, &review, &words);
        let asked = question::Asked { webhook: "hook", version: pick::<&str>(&rng, &["v1", "v1beta1"]), uid: "u" };
        let _any = question::read(said.as_bytes(), asked).is_ok();
        let said = mutated_text(&rng, &converted, &words);
        let _any = {
            let asked = conversion::Asked { version: pick::<&str>(&rng, &["v1", "v1beta1"]), uid: "u" };
            conversion::read(said.as_bytes(), asked).is_ok()
        };
        let _page = usage::page::parse(&mutated_text(&rng, metrics, &words));
    }
}

/// A stored value was written by a server, of another version perhaps; an external etcd is a stranger's disk.
#[test]
fn stored_objects_of_any_bytes_become_entries_or_errors() {
    let rng = fuzz::rng(4);
    let stored = concat!(
        r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p","namespace":"n","labels":{"a":"b"}},"#,
        r#""spec":{"nodeName":"x","hostNetwork":true}}"#
    );
    let selectable: Vec<Name> = vec!["spec.nodeName".into(), "status.phase".into()];
    let form = cache::entry::Form { selectable: selectable.into(), normal: None };
    let words = ["\"metadata\":{}", "{", "}", ",", "null", "[", "\"labels\":{\"a\":1}", " "];
    for _ in rounds(ROUNDS) {
        let Ok(entry) = cache::entry::Entry::build("n/p", mutated_text(&rng, stored, &words).as_bytes(), 7, &form)
        else {
            continue;
        };
        let value: Value = serde_json::from_slice(&entry.json_at(12)).unwrap();
        assert_eq!(value["metadata"]["resourceVersion"], "12", "{}", String::from_utf8_lossy(&entry.json));
        let _label = (entry.label("a").is_some(), entry.field(0).is_some());
    }
}
