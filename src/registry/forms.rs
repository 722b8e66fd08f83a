//! Questions to `schema`'s table and engine, with answers as [`Status`].

use std::sync::Arc;

use bytes::Bytes;
use model::reference::{GroupKind, GroupResource};
use schema::catalog::Catalog;
use schema::decode::FieldValidation;
use schema::table::{GroupVersion, GroupVersionKind, Resource};
use schema::validate::error::FieldError;
use serde_json::Value;

use crate::negotiate::Format;
use crate::status::{self, Status};

/// The row in which a built-in resource is stored.
pub fn stored(of: GroupResource<'_>) -> Option<Arc<Resource>> {
    let catalog = Catalog::builtin();
    let row = catalog.resources().iter().find(|r| r.group_resource() == of)?;
    Some(Arc::clone(catalog.storage_of(row)))
}

/// Reads a request's body as the resource's kind.
///
/// Errors: 400 when it cannot be read, is of another kind or version, or (strict) has unknown or repeated fields.
pub fn decode_body(
    bytes: &[u8],
    format: Format,
    resource: &Resource,
    strictness: &str,
    warnings: &mut Vec<String>,
) -> Result<Value, Status> {
    if resource.definition.is_none() {
        return decode_as(
            bytes,
            format,
            (&resource.api_version(), &resource.kind),
            resource.type_def(),
            strictness,
            warnings,
        );
    }
    let refused =
        |err: schema::decode::DecodeError| Status::bad_request(err.message_about(resource.group_version_kind(), bytes));
    let format = match format {
        Format::Json => schema::decode::Format::Json,
        Format::Yaml => schema::decode::Format::Yaml,
        Format::Protobuf => return Err(Status::unsupported_media_type("application/json, application/yaml")),
    };
    let decoded =
        schema::decode::decode_resource(bytes, format, resource, strictness_of(strictness)?).map_err(refused)?;
    let mut value = decoded.value;
    schema::decode::check_resource(&mut value, resource).map_err(refused)?;
    warnings.extend(decoded.warnings);
    Ok(value)
}

/// The same for any kind of body, such as a Scale or an Eviction.
pub fn decode_as(
    bytes: &[u8],
    format: Format,
    (api_version, kind): (&str, &str),
    of: &schema::table::TypeDef,
    strictness: &str,
    warnings: &mut Vec<String>,
) -> Result<Value, Status> {
    let strictness = strictness_of(strictness)?;
    let kind = GroupVersionKind { group_version: GroupVersion::parse(api_version), kind };
    let refused = |err: schema::decode::DecodeError| Status::bad_request(err.message_about(kind, bytes));
    let decoded = match format {
        Format::Json => schema::decode::decode(bytes, schema::decode::Format::Json, of, strictness),
        Format::Yaml => schema::decode::decode(bytes, schema::decode::Format::Yaml, of, strictness),
        Format::Protobuf => schema::decode::conform(from_protobuf(bytes, of)?, of, strictness),
    }
    .map_err(refused)?;
    let mut value = decoded.value;
    schema::decode::check_kind(&mut value, kind).map_err(refused)?;
    warnings.extend(decoded.warnings);
    Ok(value)
}

/// Reads `fieldValidation`.
fn strictness_of(text: &str) -> Result<FieldValidation, Status> {
    FieldValidation::parse(text).ok_or_else(|| {
        let supported = ["", "Ignore", "Strict", "Warn"];
        Status::options("CreateOptions", FieldError::not_supported("fieldValidation", Value::from(text), &supported))
    })
}

/// Brings the result of a patch into the kind's form. `shown` is what a refusal shows of it.
///
/// Errors: 422 when the patch made something that is no such object, or (strict) has unknown fields.
pub fn decode_patched(
    patched: Value,
    resource: &Resource,
    strictness: &str,
    warnings: &mut Vec<String>,
    shown: impl Fn(&Value) -> String,
) -> Result<Value, Status> {
    let strictness = strictness_of(strictness)?;
    let copy = patched.clone();
    let refused = |err: schema::decode::DecodeError| {
        status::invalid(
            GroupKind { group: "", kind: "" },
            "",
            vec![FieldError::invalid("patch", shown(&copy), err.to_string())],
        )
    };
    let decoded = schema::decode::conform_resource(patched, resource, strictness).map_err(&refused)?;
    let mut value = decoded.value;
    schema::decode::check_resource(&mut value, resource).map_err(&refused)?;
    warnings.extend(decoded.warnings);
    Ok(value)
}

/// Opens a protobuf body.
///
/// Errors: 415 for a kind that has none, 400 for what cannot be read.
pub fn from_protobuf(bytes: &[u8], of: &schema::table::TypeDef) -> Result<Value, Status> {
    schema::protobuf::decode(bytes, of).map_err(|err| match err {
        schema::protobuf::ProtobufError::NoTags(_) => {
            Status::unsupported_media_type("application/json, application/yaml")
        }
        err => Status::bad_request(err.to_string()),
    })
}

/// Brings an object from one version of its resource to another, where no webhook is needed for it.
///
/// Errors: 400, there is no way.
pub fn convert(value: Value, from: &Resource, to: &Resource) -> Result<Value, Status> {
    if from.version == to.version && from.group == to.group {
        return Ok(value);
    }
    schema::convert::convert(value, from, to).map_err(|err| Status::bad_request(err.to_string()))
}

/// The stored bytes as an object of the requested version.
pub fn parse(json: &Bytes, stored: &Resource, wanted: &Resource) -> Result<Value, Status> {
    convert(serde_json::from_slice(json).map_err(Status::internal)?, stored, wanted)
}

/// 422 from the engine's field errors; `Ok` if there are none.
pub fn verdict(resource: &Resource, name: &str, errors: Vec<FieldError>) -> Result<(), Status> {
    if errors.is_empty() {
        return Ok(());
    }
    Err(status::invalid(resource.group_kind(), name, errors))
}
