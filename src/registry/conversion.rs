//! Custom objects in another version by their definition's webhook: what it is asked, and what its answer may be.

use std::sync::Arc;
use std::time::Duration;

use base::rng::Rng;
use bytes::Bytes;
use model::meta;
use schema::custom::definition::Definition;
use schema::table::Resource;
use schema::validate::error::aggregate;
use serde_json::{Map, Value, json};

use crate::forms;
use crate::status::Status;
use crate::webhook::call::Endpoint;
use crate::webhook::client::{Identity, Webhooks};

/// As upstream's client of conversion webhooks.
const TIMEOUT: Duration = Duration::from_secs(30);
/// The versions of ConversionReview that are spoken.
const VERSIONS: [&str; 2] = ["v1", "v1beta1"];

/// Asks conversion webhooks.
pub struct Converter {
    webhooks: Arc<Webhooks>,
    rng: Rng,
}

/// Whether objects of this resource may have to be converted by a webhook.
pub fn by_webhook(resource: &Resource) -> Option<&Definition> {
    resource.definition.as_deref().filter(|d| d.webhook.is_some())
}

impl Converter {
    /// Through these webhooks.
    pub fn new(webhooks: Arc<Webhooks>, rng: Rng) -> Converter {
        Converter { webhooks, rng }
    }

    /// Brings objects, each in whichever version it is, into the version `to`; `kind` is what a failure names.
    ///
    /// Errors: the webhook failed; the text is upstream's.
    pub async fn convert(&self, objects: Vec<Value>, to: &Resource, kind: &str) -> Result<Vec<Value>, Status> {
        let Some(definition) = by_webhook(to) else { return Ok(objects) };
        let wanted = to.api_version();
        let others: Vec<&Value> = objects.iter().filter(|o| meta::api_version(o) != wanted).collect();
        let Some(first) = others.first() else { return Ok(objects) };
        let about = format!("conversion webhook for {}, Kind={kind}", meta::api_version(first));
        let failed = |why: String| Status::new(500, "", format!("{about} {why}"));
        let conversion = definition.webhook.as_ref().map_or(&Value::Null, |c| &c["webhook"]);
        let made = self.ask(conversion, &others, &wanted).await.map_err(|why| failed(format!("failed: {why}")))?;
        if made.len() != others.len() {
            return Err(failed(format!("returned {} objects, expected {}", made.len(), others.len())));
        }
        let mut made = made.into_iter().enumerate();
        let mut out = Vec::with_capacity(objects.len());
        for object in &objects {
            if meta::api_version(object) == wanted {
                out.push(object.clone());
                continue;
            }
            let Some((idx, converted)) = made.next() else { break };
            let mut converted = accepted(object, converted, &wanted, idx).map_err(failed)?;
            definition.normalize(&mut converted);
            out.push(converted);
        }
        Ok(out)
    }

    /// The converted objects, as the webhook gave them.
    async fn ask(&self, conversion: &Value, objects: &[&Value], wanted: &str) -> Result<Vec<Value>, String> {
        let spoken = conversion["conversionReviewVersions"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let version =
            spoken.into_iter().find(|v| VERSIONS.contains(v)).ok_or("no supported conversion review versions")?;
        let mut endpoint = Endpoint::from_client_config(&conversion["clientConfig"])?;
        let joint = if endpoint.path.contains('?') { '&' } else { '?' };
        endpoint.path.push_str(&format!("{joint}timeout={}s", TIMEOUT.as_secs()));
        let uid = self.rng.uuid();
        let question = json!({
            "kind": "ConversionReview", "apiVersion": format!("apiextensions.k8s.io/{version}"),
            "request": { "uid": uid, "desiredAPIVersion": wanted, "objects": objects },
        });
        let body = Bytes::from(question.to_string());
        let said =
            self.webhooks.post(&endpoint, &Identity::default(), body, TIMEOUT).await.map_err(|err| err.to_string())?;
        read(&said, version, &uid)
    }
}

/// Reads a ConversionReview's response.
pub fn read(said: &[u8], version: &str, uid: &str) -> Result<Vec<Value>, String> {
    let mut review: Value = serde_json::from_slice(said).map_err(|err| err.to_string())?;
    if version == "v1" {
        let (api_version, kind) = (meta::api_version(&review), meta::kind(&review));
        if (api_version, kind) != ("apiextensions.k8s.io/v1", "ConversionReview") {
            let group = if api_version.contains('/') { "" } else { "/" };
            return Err(format!(
                "expected webhook response of apiextensions.k8s.io/v1, Kind=ConversionReview, got {group}{api_version}, Kind={kind}"
            ));
        }
    }
    // Not by index: an answer that is no object has no fields to be made.
    let Some(response) = review.get_mut("response").filter(|response| response.is_object()) else {
        return Err("no response provided".to_owned());
    };
    let answered = response["uid"].as_str().unwrap_or_default();
    if version == "v1" && answered != uid {
        return Err(format!("expected response.uid={uid:?}, got {answered:?}"));
    }
    let status = response["result"]["status"].as_str().unwrap_or_default();
    if status != "Success" {
        let message = response["result"]["message"].as_str().unwrap_or_default();
        return Err(if message.is_empty() {
            format!("response.result.status was '{status}', not 'Success'")
        } else {
            message.to_owned()
        });
    }
    Ok(response["convertedObjects"].as_array_mut().map(std::mem::take).unwrap_or_default())
}

/// What the webhook made of `original`, if it is the same object: of its metadata only labels and annotations are taken
/// over.
fn accepted(original: &Value, mut converted: Value, wanted: &str, idx: usize) -> Result<Value, String> {
    let invalid = |why: String| format!("returned invalid converted object at index {idx}: {why}");
    if meta::api_version(&converted) != wanted {
        let got = meta::api_version(&converted);
        return Err(invalid(format!("invalid groupVersion (expected {wanted}, received {got})")));
    }
    if meta::kind(&converted) != meta::kind(original) {
        return Err(invalid(format!(
            "invalid kind (expected {}, received {})",
            meta::kind(original),
            meta::kind(&converted)
        )));
    }
    for (what, of) in [("name", meta::name as fn(&Value) -> &str), ("namespace", meta::namespace), ("UID", meta::uid)] {
        if of(original) != of(&converted) {
            return Err(invalid(format!("must have the same {what}: {} != {}", of(original), of(&converted))));
        }
    }
    let broken = |why: String| format!("returned invalid metadata in object at index {idx}: {why}");
    let given = match converted.get_mut("metadata").map(Value::take) {
        None => return Err(broken("missing metadata in converted object".to_owned())),
        Some(Value::Object(map)) => map,
        Some(other) => {
            return Err(broken(format!(
                "invalid metadata of type {} in converted object",
                schema::decode::go_kind(&other)
            )));
        }
    };
    let mut metadata = original["metadata"].as_object().cloned().unwrap_or_default();
    for field in ["labels", "annotations"] {
        take_over(&given, &mut metadata, field).map_err(broken)?;
    }
    converted["metadata"] = Value::Object(metadata);
    Ok(converted)
}

fn take_over(given: &Map<String, Value>, metadata: &mut Map<String, Value>, field: &str) -> Result<(), String> {
    let map = match given.get(field) {
        None | Some(Value::Null) => {
            metadata.remove(field);
            return Ok(());
        }
        Some(Value::Object(map)) => map,
        Some(other) => {
            return Err(format!(
                "invalid metadata.{field} of type {} in converted object",
                schema::decode::go_kind(other)
            ));
        }
    };
    if let Some((key, value)) = map.iter().find(|(_, v)| !v.is_string()) {
        let what = schema::decode::go_kind(value);
        return Err(format!("metadata.{field}[{key}] must be a string, but is {what} in converted object"));
    }
    if metadata.get(field).and_then(Value::as_object) != Some(map) {
        let errors = schema::validate::labels_or_annotations(field, map);
        if !errors.is_empty() {
            return Err(aggregate(&errors));
        }
    }
    metadata.insert(field.to_owned(), Value::Object(map.clone()));
    Ok(())
}

/// An object in the version `to`, from whichever it is in.
///
/// Errors: there is no way, or the webhook failed.
pub async fn one(converter: &Converter, object: Value, from: &Resource, to: &Resource) -> Result<Value, Status> {
    if by_webhook(to).is_none() {
        return forms::convert(object, from, to);
    }
    if meta::api_version(&object) == to.api_version() {
        return Ok(object);
    }
    let kind = meta::kind(&object).to_owned();
    let mut made = converter.convert(vec![object], to, &kind).await?;
    made.pop().ok_or_else(|| Status::internal("a conversion made no object"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(version: &str) -> Value {
        json!({"apiVersion": format!("g/{version}"), "kind": "W", "metadata": {"name": "n", "uid": "u", "labels": {"a": "b"}}, "spec": 1})
    }

    #[test]
    fn an_answer_is_for_this_question_and_says_success() {
        let review = |response: Value| json!({"kind": "ConversionReview", "apiVersion": "apiextensions.k8s.io/v1", "response": response});
        let read = |response: Value| read(review(response).to_string().as_bytes(), "v1", "u");
        assert_eq!(read(json!({"uid": "x"})).unwrap_err(), "expected response.uid=\"u\", got \"x\"");
        assert_eq!(read(json!({"uid": "u"})).unwrap_err(), "response.result.status was '', not 'Success'");
        assert_eq!(read(json!({"uid": "u", "result": {"status": "Failed", "message": "no"}})).unwrap_err(), "no");
        assert_eq!(
            read(json!({"uid": "u", "result": {"status": "Success"}, "convertedObjects": [1]})).unwrap(),
            [json!(1)]
        );
    }

    #[test]
    fn of_the_metadata_only_labels_and_annotations_come_from_the_webhook() {
        let mut converted = object("v2");
        converted["metadata"] = json!({"name": "n", "uid": "u", "labels": {"c": "d"}, "finalizers": ["x"]});
        let out = accepted(&object("v1"), converted.clone(), "g/v2", 0).unwrap();
        assert_eq!(out["metadata"], json!({"name": "n", "uid": "u", "labels": {"c": "d"}}));
        converted["metadata"]["name"] = json!("m");
        let why = accepted(&object("v1"), converted, "g/v2", 3).unwrap_err();
        assert_eq!(why, "returned invalid converted object at index 3: must have the same name: n != m");
        assert!(accepted(&object("v1"), object("v3"), "g/v2", 0).unwrap_err().contains("expected g/v2, received g/v3"));
    }
}
