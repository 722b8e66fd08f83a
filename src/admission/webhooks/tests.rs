//! Meaning of a webhook's answer.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::question::{Answer, Asked, Failure, read};

fn answered(response: Value) -> Result<Answer, Failure> {
    let review = json!({ "kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "response": response });
    let asked = Asked { webhook: "w.example.com", version: "v1", uid: "u" };
    read(review.to_string().as_bytes(), asked).map(|(answer, _)| answer)
}

fn refused(response: Value) -> (u16, String) {
    match answered(response) {
        Err(Failure::Rejected(status)) => (status.code, status.to_value()["message"].as_str().unwrap().to_owned()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_refusal_names_the_webhook_and_keeps_the_code_it_gave() {
    let text = refused(
        json!({ "uid": "u", "allowed": false, "status": { "message": "no", "code": 403, "reason": "Forbidden" } }),
    );
    assert_eq!(text, (403, r#"admission webhook "w.example.com" denied the request: no"#.to_owned()));
    let text = refused(json!({ "uid": "u", "allowed": false }));
    assert_eq!(text, (400, r#"admission webhook "w.example.com" denied the request without explanation"#.to_owned()));
}

#[test]
fn an_answer_to_another_question_is_no_answer() {
    let why = answered(json!({ "uid": "x", "allowed": true })).unwrap_err();
    assert_eq!(why, Failure::Call(r#"expected response.uid="u", got "x""#.to_owned()));
    let without_type = json!({ "uid": "u", "allowed": true, "patch": STANDARD.encode("[]") });
    assert!(matches!(answered(without_type), Err(Failure::Call(why)) if why.contains("but not response.patchType")));
}

#[test]
fn a_patch_comes_out_of_its_base64() {
    let patch = STANDARD.encode(r#"[{"op":"remove"}]"#);
    let response = json!({ "uid": "u", "allowed": true, "patchType": "JSONPatch", "patch": patch });
    assert_eq!(answered(response).unwrap().patch, br#"[{"op":"remove"}]"#);
}

#[test]
fn an_answer_that_is_none_is_told_in_upstreams_words() {
    let asked = Asked { webhook: "w.example.com", version: "v1", uid: "u" };
    let call = |said: &str| match read(said.as_bytes(), asked) {
        Err(Failure::Call(why)) => why,
        other => panic!("{other:?}"),
    };
    assert_eq!(call("{}"), "webhook response was absent");
    assert!(call("<html>").starts_with("expected value at line 1"), "{}", call("<html>"));
    assert_eq!(
        call(r#"{"kind": "Pod", "apiVersion": "v1", "response": {}}"#),
        "expected webhook response of admission.k8s.io/v1, Kind=AdmissionReview, got /v1, Kind=Pod"
    );
    let why = |response: Value| match answered(response) {
        Err(Failure::Call(why)) => why,
        other => panic!("{other:?}"),
    };
    assert_eq!(
        why(json!({ "uid": "u", "allowed": true, "patchType": "JSONPatch" })),
        "webhook returned response.patchType but not response.patch"
    );
    assert_eq!(
        why(json!({ "uid": "u", "allowed": true, "patchType": "Merge", "patch": STANDARD.encode("{}") })),
        "webhook returned invalid response.patchType of \"Merge\""
    );
    assert!(
        why(json!({ "uid": "u", "allowed": true, "patchType": "JSONPatch", "patch": "?" }))
            .starts_with("illegal base64 data in response.patch: ")
    );
}

/// Upstream: the older version asks for neither the uid nor the patch's type.
#[test]
fn an_answer_of_v1beta1_needs_neither_uid_nor_type() {
    let asked = Asked { webhook: "w.example.com", version: "v1beta1", uid: "u" };
    let said = json!({ "response": { "allowed": true, "patch": STANDARD.encode("[]") } }).to_string();
    let (answer, _) = read(said.as_bytes(), asked).unwrap();
    assert_eq!(answer.patch, b"[]");
}

#[test]
fn a_refusal_without_a_message_has_its_reason_and_no_code_of_success() {
    for (status, wanted) in [
        (json!({ "reason": "Busy", "code": 503 }), (503, "denied the request: Busy")),
        (json!({ "message": "no", "reason": "Busy", "code": 200 }), (400, "denied the request: no")),
        (json!({ "code": 399 }), (400, "denied the request without explanation")),
    ] {
        let (code, text) = refused(json!({ "uid": "u", "allowed": false, "status": status }));
        assert_eq!((code, text), (wanted.0, format!("admission webhook \"w.example.com\" {}", wanted.1)));
    }
}
