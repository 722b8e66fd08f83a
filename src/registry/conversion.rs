//! Custom objects in another version by their definition's webhook: what it is asked, and what its answer may be.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use base::chain::Chain;
use base::rng::Rng;
use bytes::Bytes;
use model::meta;
use schema::custom::definition::Definition;
use schema::table::Resource;
use schema::validate::error::{FieldError, aggregate};
use serde_json::{Map, Value, json};

use crate::forms;
use crate::status::Status;
use crate::webhook::call::{Endpoint, EndpointError};
use crate::webhook::client::{CallError, Identity, Webhooks};

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
        let failed = |why: &dyn Display| Status::new(500, "", format!("{about} {why}"));
        let conversion = definition.webhook.as_ref().map_or(&Value::Null, |c| &c["webhook"]);
        let made =
            self.ask(conversion, &others, &wanted).await.map_err(|err| failed(&format!("failed: {}", Chain(&err))))?;
        if made.len() != others.len() {
            return Err(failed(&format!("returned {} objects, expected {}", made.len(), others.len())));
        }
        let mut made = made.into_iter().enumerate();
        let mut out = Vec::with_capacity(objects.len());
        for object in &objects {
            if meta::api_version(object) == wanted {
                out.push(object.clone());
                continue;
            }
            let Some((idx, converted)) = made.next() else { break };
            let mut converted = accepted(object, converted, &wanted, idx).map_err(|err| failed(&Chain(&err)))?;
            definition.normalize(&mut converted);
            out.push(converted);
        }
        Ok(out)
    }

    /// The converted objects, as the webhook gave them.
    async fn ask(&self, conversion: &Value, objects: &[&Value], wanted: &str) -> Result<Vec<Value>, AskError> {
        let spoken = conversion["conversionReviewVersions"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let version = spoken.into_iter().find(|v| VERSIONS.contains(v)).ok_or(AskError::NoVersion)?;
        let mut endpoint = Endpoint::from_client_config(&conversion["clientConfig"])?;
        let joint = if endpoint.path.contains('?') { '&' } else { '?' };
        endpoint.path.push_str(&format!("{joint}timeout={}s", TIMEOUT.as_secs()));
        let uid = self.rng.uuid();
        let question = json!({
            "kind": "ConversionReview", "apiVersion": format!("apiextensions.k8s.io/{version}"),
            "request": { "uid": uid, "desiredAPIVersion": wanted, "objects": objects },
        });
        let body = Bytes::from(question.to_string());
        let said = self.webhooks.post(&endpoint, &Identity::default(), body, TIMEOUT).await?;
        Ok(read(&said, Asked { version, uid: &uid })?)
    }
}

/// Why a webhook was not asked, or gave no objects.
#[derive(Debug, thiserror::Error)]
enum AskError {
    #[error("no supported conversion review versions")]
    NoVersion,
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    #[error(transparent)]
    Call(#[from] CallError),
    #[error(transparent)]
    Answer(#[from] AnswerError),
}

/// Why an answer of a webhook is none, in upstream's words.
#[derive(Debug, thiserror::Error)]
pub enum AnswerError {
    /// It is no JSON.
    #[error(transparent)]
    Syntax(#[from] serde_json::Error),
    /// It is something else.
    #[error(
        "expected webhook response of apiextensions.k8s.io/v1, Kind=ConversionReview, got {slash}{api_version}, \
         Kind={kind}",
        slash = if api_version.contains('/') { "" } else { "/" }
    )]
    Kind {
        /// Its `apiVersion`.
        api_version: String,
        /// Its `kind`.
        kind: String,
    },
    /// It has no `response`.
    #[error("no response provided")]
    NoResponse,
    /// It answers another question.
    #[error("expected response.uid={asked:?}, got {answered:?}")]
    Uid {
        /// Of the question.
        asked: String,
        /// Of the answer.
        answered: String,
    },
    /// It says something else than `Success`.
    #[error("response.result.status was '{0}', not 'Success'")]
    Status(String),
    /// It says why it failed.
    #[error("{0}")]
    Failed(String),
}

/// The question of a review: the answer repeats it.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// Version of the ConversionReview.
    pub version: &'a str,
    /// Of the question.
    pub uid: &'a str,
}

/// Reads a ConversionReview's response.
///
/// Errors: it is none, or says that the conversion failed.
pub fn read(said: &[u8], asked: Asked<'_>) -> Result<Vec<Value>, AnswerError> {
    let Asked { version, uid } = asked;
    let mut review: Value = serde_json::from_slice(said)?;
    if version == "v1" {
        let (api_version, kind) = (meta::api_version(&review), meta::kind(&review));
        if (api_version, kind) != ("apiextensions.k8s.io/v1", "ConversionReview") {
            return Err(AnswerError::Kind { api_version: api_version.to_owned(), kind: kind.to_owned() });
        }
    }
    // Not by index: an answer that is no object has no fields to be made.
    let Some(response) = review.get_mut("response").filter(|response| response.is_object()) else {
        return Err(AnswerError::NoResponse);
    };
    let answered = response["uid"].as_str().unwrap_or_default();
    if version == "v1" && answered != uid {
        return Err(AnswerError::Uid { asked: uid.to_owned(), answered: answered.to_owned() });
    }
    let status = response["result"]["status"].as_str().unwrap_or_default();
    if status != "Success" {
        let message = response["result"]["message"].as_str().unwrap_or_default();
        return Err(match message {
            "" => AnswerError::Status(status.to_owned()),
            message => AnswerError::Failed(message.to_owned()),
        });
    }
    Ok(response["convertedObjects"].as_array_mut().map(std::mem::take).unwrap_or_default())
}

/// Why an object that a webhook made is not taken, in upstream's words.
#[derive(Debug, thiserror::Error)]
enum ObjectError {
    #[error("invalid groupVersion (expected {wanted}, received {got})")]
    Version { wanted: String, got: String },
    #[error("invalid kind (expected {wanted}, received {got})")]
    Kind { wanted: String, got: String },
    #[error("must have the same {what}: {old} != {new}")]
    Identity { what: &'static str, old: String, new: String },
}

/// Why the metadata that a webhook made are not taken, in upstream's words.
#[derive(Debug, thiserror::Error)]
enum MetadataError {
    #[error("missing metadata in converted object")]
    Missing,
    #[error("invalid metadata of type {0} in converted object")]
    Type(&'static str),
    #[error("invalid metadata.{field} of type {ty} in converted object")]
    FieldType { field: &'static str, ty: &'static str },
    #[error("metadata.{field}[{key}] must be a string, but is {ty} in converted object")]
    ValueType { field: &'static str, key: String, ty: &'static str },
    #[error("{}", aggregate(.0))]
    Invalid(Vec<FieldError>),
}

/// The object that makes an answer useless, by its position.
#[derive(Debug, thiserror::Error)]
enum Refused {
    #[error("returned invalid converted object at index {idx}")]
    Object { idx: usize, source: ObjectError },
    #[error("returned invalid metadata in object at index {idx}")]
    Metadata { idx: usize, source: MetadataError },
}

/// The object that the webhook made of `original`, if it is the same one: of its metadata only labels and annotations
/// are taken over.
fn accepted(original: &Value, mut converted: Value, wanted: &str, idx: usize) -> Result<Value, Refused> {
    let invalid = |source| Refused::Object { idx, source };
    if meta::api_version(&converted) != wanted {
        let got = meta::api_version(&converted).to_owned();
        return Err(invalid(ObjectError::Version { wanted: wanted.to_owned(), got }));
    }
    if meta::kind(&converted) != meta::kind(original) {
        let (wanted, got) = (meta::kind(original).to_owned(), meta::kind(&converted).to_owned());
        return Err(invalid(ObjectError::Kind { wanted, got }));
    }
    for (what, of) in [("name", meta::name as fn(&Value) -> &str), ("namespace", meta::namespace), ("UID", meta::uid)] {
        if of(original) != of(&converted) {
            let (old, new) = (of(original).to_owned(), of(&converted).to_owned());
            return Err(invalid(ObjectError::Identity { what, old, new }));
        }
    }
    let broken = |source| Refused::Metadata { idx, source };
    let given = match converted.get_mut("metadata").map(Value::take) {
        None => return Err(broken(MetadataError::Missing)),
        Some(Value::Object(map)) => map,
        Some(other) => return Err(broken(MetadataError::Type(schema::decode::go_kind(&other)))),
    };
    let mut metadata = original["metadata"].as_object().cloned().unwrap_or_default();
    for field in ["labels", "annotations"] {
        take_over(&given, &mut metadata, field).map_err(broken)?;
    }
    converted["metadata"] = Value::Object(metadata);
    Ok(converted)
}

fn take_over(
    given: &Map<String, Value>,
    metadata: &mut Map<String, Value>,
    field: &'static str,
) -> Result<(), MetadataError> {
    let map = match given.get(field) {
        None | Some(Value::Null) => {
            metadata.remove(field);
            return Ok(());
        }
        Some(Value::Object(map)) => map,
        Some(other) => return Err(MetadataError::FieldType { field, ty: schema::decode::go_kind(other) }),
    };
    if let Some((key, value)) = map.iter().find(|(_, v)| !v.is_string()) {
        return Err(MetadataError::ValueType { field, key: key.clone(), ty: schema::decode::go_kind(value) });
    }
    if metadata.get(field).and_then(Value::as_object) != Some(map) {
        let errors = schema::validate::labels_or_annotations(field, map);
        if !errors.is_empty() {
            return Err(MetadataError::Invalid(errors));
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
        json!({
            "apiVersion": format!("g/{version}"), "kind": "W", "spec": 1,
            "metadata": {"name": "n", "uid": "u", "labels": {"a": "b"}},
        })
    }

    #[test]
    fn an_answer_is_for_this_question_and_says_success() {
        let success = json!({"status": "Success"});
        for (response, expected) in [
            (json!({"uid": "x"}), "expected response.uid=\"u\", got \"x\""),
            (json!({"uid": "u"}), "response.result.status was '', not 'Success'"),
            (json!({"uid": "u", "result": {"status": "Failed"}}), "response.result.status was 'Failed', not 'Success'"),
            (json!({"uid": "u", "result": {"status": "Failed", "message": "no"}}), "no"),
            (json!("none"), "no response provided"),
            (Value::Null, "no response provided"),
            (json!({"uid": "u", "result": success, "convertedObjects": [1]}), ""),
        ] {
            let review = json!({
                "kind": "ConversionReview", "apiVersion": "apiextensions.k8s.io/v1", "response": response,
            });
            let said = read(review.to_string().as_bytes(), Asked { version: "v1", uid: "u" });
            assert_eq!(said.err().map_or(String::new(), |err| err.to_string()), expected, "{response}");
        }
        let review = json!({"response": {"result": success, "convertedObjects": [1]}}).to_string();
        let made = read(review.as_bytes(), Asked { version: "v1beta1", uid: "u" }).unwrap();
        assert_eq!(made, [json!(1)], "the old version repeats nothing of the question");
    }

    #[test]
    fn an_answer_of_another_kind_is_named() {
        for (said, expected) in [
            (r#"{"apiVersion": "v1", "kind": "Pod"}"#, "/v1, Kind=Pod"),
            (
                r#"{"apiVersion": "apiextensions.k8s.io/v1beta1", "kind": "ConversionReview"}"#,
                "apiextensions.k8s.io/v1beta1, Kind=ConversionReview",
            ),
            ("[]", "/, Kind="),
        ] {
            let err = read(said.as_bytes(), Asked { version: "v1", uid: "u" }).unwrap_err();
            let before = "expected webhook response of apiextensions.k8s.io/v1, Kind=ConversionReview, got ";
            assert_eq!(err.to_string(), format!("{before}{expected}"));
        }
    }

    #[test]
    fn of_the_metadata_only_labels_and_annotations_come_from_the_webhook() {
        let mut converted = object("v2");
        converted["metadata"] = json!({"name": "n", "uid": "u", "labels": {"c": "d"}, "finalizers": ["x"]});
        let out = accepted(&object("v1"), converted.clone(), "g/v2", 0).unwrap();
        assert_eq!(out["metadata"], json!({"name": "n", "uid": "u", "labels": {"c": "d"}}));
        converted["metadata"]["labels"] = Value::Null;
        let out = accepted(&object("v1"), converted, "g/v2", 0).unwrap();
        assert_eq!(out["metadata"], json!({"name": "n", "uid": "u"}));
    }

    #[test]
    fn another_object_in_its_place_is_refused_by_its_position() {
        let of = |path: &str, value: Value| {
            let mut converted = object("v2");
            *converted.pointer_mut(path).unwrap() = value;
            converted
        };
        let object_at = "returned invalid converted object at index 3: ";
        let metadata_at = "returned invalid metadata in object at index 3: ";
        for (converted, place, expected) in [
            (object("v3"), object_at, "invalid groupVersion (expected g/v2, received g/v3)"),
            (of("/kind", json!("V")), object_at, "invalid kind (expected W, received V)"),
            (of("/metadata/name", json!("m")), object_at, "must have the same name: n != m"),
            (of("/metadata/uid", json!("v")), object_at, "must have the same UID: u != v"),
            (
                of("/metadata/labels", json!([])),
                metadata_at,
                "invalid metadata.labels of type array in converted object",
            ),
            (
                of("/metadata/labels", json!({"a": 1})),
                metadata_at,
                "metadata.labels[a] must be a string, but is number in converted object",
            ),
        ] {
            let err = accepted(&object("v1"), converted, "g/v2", 3).unwrap_err();
            assert_eq!(Chain(&err).to_string(), format!("{place}{expected}"));
        }
        let mut bad = object("v2");
        bad["metadata"]["labels"] = json!({"a": "b c"});
        let err = Chain(&accepted(&object("v1"), bad, "g/v2", 0).unwrap_err()).to_string();
        assert!(
            err.starts_with("returned invalid metadata in object at index 0: metadata.labels: Invalid value"),
            "{err}"
        );
    }
}
