//! `patch`: JSON patch, merge patch, strategic merge patch and server-side apply.

use std::sync::Arc;

use bytes::Bytes;
use http::Response;
use registry::status::Status;
use registry::{forms, negotiate};
use schema::patch::PatchError;
use schema::validate::error::FieldError;
use serde_json::Value;
use wire::Body;

use super::judge::Part;
use super::update::answer;
use super::write::{self, Maker};
use super::{Call, apply, managers};

/// The kinds of patch by media type.
const ACCEPTED: &str = "application/json-patch+json, application/merge-patch+json, \
    application/strategic-merge-patch+json, application/apply-patch+yaml";

/// Custom resources know no strategic merge.
const ACCEPTED_CUSTOM: &str = "application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml";

const DECODING: &str = "error decoding patch: ";

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Json,
    Merge,
    Strategic,
}

/// Answers with the changed object.
pub async fn run(call: &mut Call<'_, '_>, part: Part) -> Result<Response<Body>, Status> {
    let way = match negotiate::media_type(&call.x.parts.headers).as_str() {
        "application/json-patch+json" => Way::Json,
        "application/merge-patch+json" => Way::Merge,
        "application/strategic-merge-patch+json" if !call.resource.custom => Way::Strategic,
        "application/apply-patch+yaml" => return apply::run(call, part).await,
        _ => return Err(Status::unsupported_media_type(if call.resource.custom { ACCEPTED_CUSTOM } else { ACCEPTED })),
    };
    if call.x.query.flag("force") {
        return Err(Status::options(
            "PatchOptions",
            FieldError::forbidden("force", "may not be specified for non-apply patch"),
        ));
    }
    let bytes = call.body().await?;
    let name = call.x.attributes.name.clone();
    let manager = managers::named(call)?;
    let resource = Arc::clone(&call.resource);
    let strictness = call.x.query.text("fieldValidation").to_owned();
    let mut warnings = Vec::new();
    let mut make = |old: Option<&Value>| {
        let old = old.cloned().unwrap_or_default();
        let patched = patched(resource.type_def(), way, &old, &bytes)?;
        warnings.clear();
        forms::decode_patched(patched, &resource, &strictness, &mut warnings, |patched| match way {
            Way::Strategic => {
                serde_json::from_slice(&bytes).map_or_else(|_| String::new(), |patch| schema::patch::go_text(&patch))
            }
            Way::Json | Way::Merge => patched.to_string(),
        })
        .map_err(|status| if way == Way::Strategic { unrestored(status) } else { status })
    };
    let mut checked = |old: Option<&Value>| {
        let mut new = make(old)?;
        same_address(&mut new, old)?;
        Ok(new)
    };
    let written = write::update(call, &name, part, false, Some(&manager), Maker::Requested(&mut checked)).await?;
    call.x.warnings.extend(warnings);
    answer(call, written).await
}

/// A strategic patch never becomes JSON upstream, so what does not fit its type is told by another reader, in other
/// words: `cannot restore map from string`.
///
/// Spec: upstream v1.36 `runtime.DefaultUnstructuredConverter.FromUnstructured`.
fn unrestored(mut status: Status) -> Status {
    if let Some(text) = unrestored_text(&status.message) {
        status.message = text;
    }
    for cause in &mut status.causes {
        if let Some(text) = unrestored_text(&cause.message) {
            cause.message = text;
        }
    }
    status
}

fn unrestored_text(text: &str) -> Option<String> {
    let (head, tail) = text.rsplit_once("json: cannot unmarshal ")?;
    let (what, rest) = tail.split_once(" into Go ")?;
    let (_, of) = rest.rsplit_once(" of type ")?;
    let kind = match what.split(' ').next().unwrap_or_default() {
        "object" => "map",
        "array" => "slice",
        "number" => "int64",
        other => other,
    };
    let why = match of {
        of if of.starts_with("map[") => format!("cannot restore map from {kind}"),
        of if of.starts_with("[]") => format!("cannot restore slice from {kind}"),
        of if of.contains('.') => format!("cannot restore struct from: {kind}"),
        of => format!("unrecognized type: {of}"),
    };
    Some(format!("{head}{why}"))
}

fn same_address(new: &mut Value, old: Option<&Value>) -> Result<(), Status> {
    let Some(old) = old else { return Ok(()) };
    let (sent, have) = (model::meta::name(new), model::meta::name(old));
    if sent != have {
        return Err(Status::bad_request(format!(
            "the name of the object ({sent}) does not match the name on the URL ({have})"
        )));
    }
    let (sent, have) = (model::meta::namespace(new), model::meta::namespace(old));
    if sent != have {
        let message = format!("the namespace of the object ({sent}) does not match the namespace on the URL ({have})");
        return Err(Status::bad_request(message));
    }
    Ok(())
}

fn patched(of: &schema::table::TypeDef, way: Way, old: &Value, bytes: &Bytes) -> Result<Value, Status> {
    if way == Way::Json {
        return schema::patch::json(old, bytes).map_err(refused);
    }
    let read = || {
        let patch = schema::patch::read(bytes).map_err(refused)?;
        if patch.is_object() {
            return Ok(patch);
        }
        let what = schema::decode::go_kind(&patch);
        Err(Status::bad_request(format!(
            "{DECODING}json: cannot unmarshal {what} into Go value of type map[string]interface {{}}"
        )))
    };
    let patch = read().map_err(|mut status| {
        // Upstream says where it was only about the other patches.
        if way == Way::Strategic {
            status.message = status.message.trim_start_matches(DECODING).to_owned();
        }
        status
    })?;
    if way == Way::Merge {
        schema::patch::merge(old, &patch).map_err(refused)
    } else {
        schema::patch::strategic(of, old, &patch).map_err(refused)
    }
}

/// The status of a patch that was refused.
pub fn refused(err: PatchError) -> Status {
    let text = err.to_string();
    match err {
        PatchError::BadRequest(_) => Status::bad_request(text),
        PatchError::TooManyOperations { .. } => Status::new(413, "RequestEntityTooLarge", text),
        PatchError::Unmergeable(_) => Status::new(500, "", text),
        PatchError::Rejected(_) => {
            let mut status = Status::new(422, "Invalid", text);
            status.with_details = true;
            status
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Spec: upstream v1.36 test/cmd/core.sh, "Patch fails with type restore error".
    #[test]
    fn a_strategic_patch_of_the_wrong_type_is_refused_in_the_words_of_its_own_reader() {
        let said = |text: &str| unrestored(Status::bad_request(text)).message.clone();
        let field = "Go struct field ObjectMeta.metadata.labels of type";
        assert_eq!(
            said(&format!("p: json: cannot unmarshal string into {field} map[string]string")),
            "p: cannot restore map from string"
        );
        assert_eq!(
            said("json: cannot unmarshal string into Go struct field S.spec.replicas of type int32"),
            "unrecognized type: int32"
        );
        assert_eq!(
            said("json: cannot unmarshal array into Go struct field P.spec of type v1.PodSpec"),
            "cannot restore struct from: slice"
        );
        assert_eq!(said("metadata.name is wrong"), "metadata.name is wrong");
    }

    #[test]
    fn a_patch_that_cannot_be_applied_says_why_in_the_words_of_its_kind() {
        let of = schema::catalog::Catalog::builtin()
            .resource(schema::table::GroupVersion::CORE, "configmaps")
            .unwrap()
            .type_def();
        let old = serde_json::json!({ "metadata": { "name": "c" }, "data": { "a": "b" } });
        let object = "of type map[string]interface {}";
        for (way, patch, code, expected) in [
            (
                Way::Merge,
                "[1]",
                400,
                format!("error decoding patch: json: cannot unmarshal array into Go value {object}"),
            ),
            (Way::Strategic, "[1]", 400, format!("json: cannot unmarshal array into Go value {object}")),
            (
                Way::Merge,
                "\"x\"",
                400,
                format!("error decoding patch: json: cannot unmarshal string into Go value {object}"),
            ),
        ] {
            let status = patched(of, way, &old, &Bytes::from_static(patch.as_bytes())).unwrap_err();
            assert_eq!((status.code, status.message.as_str()), (code, expected.as_str()), "{patch}");
        }
        let merged = patched(of, Way::Merge, &old, &Bytes::from_static(br#"{"data": {"a": null, "c": "d"}}"#)).unwrap();
        assert_eq!(merged["data"], serde_json::json!({ "c": "d" }));
        let add = Bytes::from_static(br#"[{"op": "add", "path": "/data/c", "value": "d"}]"#);
        assert_eq!(patched(of, Way::Json, &old, &add).unwrap()["data"], serde_json::json!({ "a": "b", "c": "d" }));
    }

    #[test]
    fn a_patch_does_not_move_an_object() {
        let old = serde_json::json!({ "metadata": { "name": "a", "namespace": "n" } });
        for (name, namespace, expected) in [
            ("a", "n", ""),
            ("b", "n", "the name of the object (b) does not match the name on the URL (a)"),
            ("a", "m", "the namespace of the object (m) does not match the namespace on the URL (n)"),
        ] {
            let mut new = serde_json::json!({ "metadata": { "name": name, "namespace": namespace } });
            let told = same_address(&mut new, Some(&old)).err().map_or(String::new(), |status| status.message.clone());
            assert_eq!(told, expected);
            assert!(same_address(&mut new, None).is_ok());
        }
    }
}
