//! AdmissionReview both ways: what a webhook is asked, and what its answer means.

use base::chain::Chain;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use registry::status::Status;
use registry::trail::Trail;
use registry::webhook::client::Identity;
use schema::table::{GroupVersion, Gvk};
use serde_json::{Value, json};

use super::hook::Hook;
use super::outside::Outside;
use crate::Review;
use crate::matching::{Matched, as_requested};

/// A webhook's answer that let the request pass.
#[derive(Debug, Default, PartialEq)]
pub struct Answer {
    /// JSON patch; empty for none.
    pub patch: Vec<u8>,
}

/// Why a webhook did not let the request pass.
#[derive(Debug, PartialEq)]
pub enum Failure {
    /// It said no.
    Rejected(Status),
    /// It could not be asked, or answered nonsense: `failurePolicy` decides.
    Call(String),
}

impl Failure {
    /// The status for the client; `None` if the webhook's failure is ignored.
    pub fn status(self, hook: &Hook) -> Option<Status> {
        match self {
            Failure::Rejected(status) => Some(status),
            Failure::Call(why) if hook.ignores_failure => {
                tracing::warn!(webhook = %hook.name, why, "failed calling webhook, failing open");
                None
            }
            Failure::Call(why) => Some(Status::internal(format!("failed calling webhook {:?}: {why}", hook.name))),
        }
    }
}

/// The object in the version that the webhook wants, or as it is where a version means nothing (options, Scale).
pub async fn versioned(review: &Review<'_>, object: &Value, matched: &Matched) -> Result<Value, Status> {
    let row =
        review.catalog.resource(GroupVersion { group: &matched.group, version: &matched.version }, &matched.resource);
    let Some(row) = row.filter(|row| row.kind == matched.kind.kind && row.kind == review.kind && !object.is_null())
    else {
        return Ok(object.clone());
    };
    review.versions.in_version(object.clone(), review.catalog.storage_of(row), row).await
}

/// The other way: what a mutating webhook left becomes the stored version again.
pub async fn stored(review: &Review<'_>, object: Value, matched: &Matched) -> Result<Value, Status> {
    let row =
        review.catalog.resource(GroupVersion { group: &matched.group, version: &matched.version }, &matched.resource);
    let Some(row) = row.filter(|row| row.kind == matched.kind.kind && row.kind == review.kind) else {
        return Ok(object);
    };
    review.versions.in_version(object, row, review.catalog.storage_of(row)).await
}

/// `request` of the AdmissionReview.
pub async fn request(uid: &str, review: &Review<'_>, matched: &Matched, object: &Value) -> Result<Value, Status> {
    let a = review.attributes;
    let asked = as_requested(review);
    let gvk = |k: &Gvk| json!({ "group": k.group, "version": k.version, "kind": k.kind });
    let gvr = |m: &Matched| json!({ "group": m.group, "version": m.version, "resource": m.resource });
    let old = match review.old {
        Some(old) => versioned(review, old, matched).await?,
        None => Value::Null,
    };
    let mut out = json!({
        "uid": uid, "kind": gvk(&matched.kind), "resource": gvr(matched), "requestKind": gvk(&asked.kind),
        "requestResource": gvr(&asked),
        "operation": review.operation.text(), "userInfo": *a.user, "object": object, "oldObject": old,
        "dryRun": review.dry_run,
        "options": a.options.as_ref(),
    });
    for (key, text) in [
        ("name", &a.name),
        ("namespace", &a.namespace),
        ("subResource", &a.subresource),
        ("requestSubResource", &a.subresource),
    ] {
        if !text.is_empty() {
            out[key] = json!(text);
        }
    }
    Ok(out)
}

/// Asks one webhook about the object in the version it wants.
///
/// Errors: `Ok(Err(_))` is the webhook's doing, `Err(_)` ours.
pub async fn ask(
    outside: &Outside,
    hook: &Hook,
    review: &Review<'_>,
    matched: &Matched,
    object: &Value,
) -> Result<Result<(Answer, Value), Failure>, Status> {
    let Some(version) = hook.version else {
        let why = "webhook does not accept known AdmissionReview versions (v1, v1beta1)";
        return Ok(Err(Failure::Call(why.to_owned())));
    };
    let mut endpoint = match &hook.endpoint {
        Ok(endpoint) => endpoint.clone(),
        Err(err) => return Ok(Err(Failure::Call(format!("could not get REST client: {}", Chain(err))))),
    };
    let seconds = hook.timeout.as_secs();
    let joint = if endpoint.path.contains('?') { '&' } else { '?' };
    endpoint.path.push_str(&format!("{joint}timeout={seconds}s"));
    let uid = outside.rng.uuid();
    let question = json!({
        "kind": "AdmissionReview", "apiVersion": format!("admission.k8s.io/{version}"),
        "request": request(&uid, review, matched, object).await?,
    });
    let body = Bytes::from(serde_json::to_vec(&question).map_err(Status::internal)?);
    let said = match outside.webhooks.post(&endpoint, &Identity::default(), body, hook.timeout).await {
        Ok(said) => said,
        Err(err) => return Ok(Err(Failure::Call(format!("failed to call webhook: {err}")))),
    };
    let asked = Asked { webhook: &hook.name, version, uid: &uid };
    Ok(read(&said, asked).map_err(|failure| match failure {
        Failure::Call(why) => Failure::Call(format!("received invalid webhook response: {why}")),
        rejected => rejected,
    }))
}

/// A question that a webhook was asked.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// The webhook's name.
    pub webhook: &'a str,
    /// Version of the AdmissionReview.
    pub version: &'a str,
    /// The uid that the answer must repeat.
    pub uid: &'a str,
}

/// Reads the answer; the second value is its `response`, for warnings and audit annotations.
pub fn read(said: &[u8], Asked { webhook, version, uid }: Asked<'_>) -> Result<(Answer, Value), Failure> {
    let call = |why: String| Failure::Call(why);
    let review: Value = serde_json::from_slice(said).map_err(|err| call(err.to_string()))?;
    let response = &review["response"];
    if !response.is_object() {
        return Err(call("webhook response was absent".to_owned()));
    }
    if version == "v1" {
        let (kind, api_version) =
            (review["kind"].as_str().unwrap_or_default(), review["apiVersion"].as_str().unwrap_or_default());
        if (kind, api_version) != ("AdmissionReview", "admission.k8s.io/v1") {
            let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
            return Err(call(format!(
                "expected webhook response of admission.k8s.io/v1, Kind=AdmissionReview, got {group}/{version}, \
                 Kind={kind}"
            )));
        }
        let answered = response["uid"].as_str().unwrap_or_default();
        if answered != uid {
            return Err(call(format!("expected response.uid={uid:?}, got {answered:?}")));
        }
    }
    let patch = match response["patch"].as_str().filter(|p| !p.is_empty()) {
        Some(text) => {
            STANDARD.decode(text).map_err(|err| call(format!("illegal base64 data in response.patch: {err}")))?
        }
        None => Vec::new(),
    };
    match response["patchType"].as_str() {
        Some(_) if patch.is_empty() && version == "v1" => {
            return Err(call("webhook returned response.patchType but not response.patch".to_owned()));
        }
        None if !patch.is_empty() && version == "v1" => {
            return Err(call("webhook returned response.patch but not response.patchType".to_owned()));
        }
        Some(kind) if !patch.is_empty() && kind != "JSONPatch" => {
            return Err(call(format!("webhook returned invalid response.patchType of {kind:?}")));
        }
        _ => {}
    }
    if response["allowed"].as_bool().unwrap_or(false) {
        return Ok((Answer { patch }, response.clone()));
    }
    Err(Failure::Rejected(denied(webhook, &response["status"])))
}

/// As upstream's `ToStatusErr`.
fn denied(name: &str, status: &Value) -> Status {
    let text = |field: &str| status[field].as_str().unwrap_or_default();
    let by = format!("admission webhook {name:?} denied the request");
    let message = match (text("message"), text("reason")) {
        ("", "") => format!("{by} without explanation"),
        ("", reason) => format!("{by}: {reason}"),
        (message, _) => format!("{by}: {message}"),
    };
    let code = status["code"].as_u64().and_then(|c| u16::try_from(c).ok()).filter(|c| *c >= 400).unwrap_or(400);
    let mut whole = json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "code": code });
    if !text("reason").is_empty() {
        whole["reason"] = json!(text("reason"));
    }
    if status["details"].is_object() {
        whole["details"] = status["details"].clone();
    }
    Status::foreign(code, message, whole)
}

/// Warnings for the client and annotations for the audit log.
pub fn note(hook: &Hook, response: &Value, trail: &Trail) {
    trail.warn(response["warnings"].as_array().into_iter().flatten().filter_map(|w| w.as_str().map(str::to_owned)));
    for (key, value) in response["auditAnnotations"].as_object().into_iter().flatten() {
        trail.note(&format!("{}/{key}", hook.name), value.as_str().unwrap_or_default());
    }
}
