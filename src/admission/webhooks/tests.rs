//! Meaning of a webhook's answer.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::question::{Answer, Failure, read};

fn answered(response: Value) -> Result<Answer, Failure> {
    let review = json!({ "kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "response": response });
    read(review.to_string().as_bytes(), "v1", "u", "w.example.com").map(|(answer, _)| answer)
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
