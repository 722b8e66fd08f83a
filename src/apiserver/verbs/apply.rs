//! Server-side apply: the client says which fields it wants to own, the server merges.

use std::sync::Arc;

use http::Response;
use model::reference::GroupKind;
use registry::forms;
use registry::negotiate::Format;
use registry::status::{Cause, Status};
use schema::apply::ApplyError;
use schema::apply::versions::Versions;
use schema::behaviour::Path;
use schema::decode::FieldValidation;
use serde_json::Value;
use wire::Body;

use super::judge::Part;
use super::update::{answer, check_address};
use super::write::{self, Maker};
use super::{Call, managers};

/// Answers with the merged object; 201 if it is new.
pub async fn run(call: &mut Call<'_, '_>, part: Part) -> Result<Response<Body>, Status> {
    let manager = manager(call)?;
    let force = call.x.query.flag("force");
    let bytes = call.body().await?;
    let strictness = call.x.query.text("fieldValidation").to_owned();
    // The configuration must not gain defaults or zero values: what it does not say, it does not own.
    let mut config = raw(&bytes)?;
    let version = call.resource.api_version();
    is_of((&version, &call.resource.kind), &config)?;
    schema::apply::fits(call.resource.type_def(), &version, &config).map_err(refused)?;
    let mut ignored = Vec::new();
    forms::decode_body(&bytes, Format::Yaml, &call.resource, &strictness, &mut ignored)?;
    call.x.warnings.extend(ignored);
    let name = call.x.attributes.name.clone();
    check_address(call, &mut config, &name)?;
    let now = base::time::rfc3339_secs(call.x.server.objects.clock.now());
    let resource = Arc::clone(&call.resource);
    let subresource = call.x.attributes.subresource.clone();
    let row = call.stored.behaviour;
    let (reset, only) =
        (row.owners.not_written(&subresource), row.part(&subresource).map_or(&[] as &[Path], |part| part.writes));
    let mut make = move |old: Option<&Value>, versions: &mut dyn Versions| {
        let request = schema::apply::Request {
            type_def: resource.type_def(),
            api_version: &version,
            subresource: &subresource,
            manager: &manager,
            now: &now,
            reset: &reset,
            only,
        };
        let merged = schema::apply::apply(&request, versions, old, &config, force).map_err(refused)?;
        // What is stored must read as it would after any other write: zero values that the configuration names are
        // dropped.
        let conformed = schema::decode::conform_resource(merged, &resource, FieldValidation::Ignore);
        conformed
            .map(|decoded| decoded.value)
            .map_err(|err| Status::bad_request(err.message(resource.group_version_kind())))
    };
    let written = write::update(call, &name, part, part == Part::Main, None, Maker::Applied(&mut make)).await?;
    answer(call, written).await
}

/// The manager, which who applies has to name.
pub fn manager(call: &Call<'_, '_>) -> Result<String, Status> {
    let manager = managers::named(call)?;
    if call.x.query.text("fieldManager").is_empty() {
        let cause = Cause {
            reason: "FieldValueRequired".into(),
            message: "Required value: is required for apply patch".into(),
            field: "fieldManager".into(),
        };
        return Err(Status::invalid(GroupKind { group: "meta.k8s.io", kind: "PatchOptions" }, "", vec![cause]));
    }
    Ok(manager)
}

/// Whether a configuration says that it is of this version and kind.
pub fn is_of((api_version, kind): (&str, &str), config: &Value) -> Result<(), Status> {
    let said = (model::meta::api_version(config), model::meta::kind(config));
    if said == (api_version, kind) {
        return Ok(());
    }
    let group = if said.0.contains('/') { "" } else { "/" };
    Err(Status::bad_request(format!("invalid object type: {group}{}, Kind={}", said.0, said.1)))
}

/// A configuration without the defaults and zero values that decoding adds.
pub fn raw(bytes: &[u8]) -> Result<Value, Status> {
    schema::decode::untyped(bytes, schema::decode::Format::Yaml)
        .map_err(|err| Status::bad_request(format!("error decoding YAML: {err}")))
}

/// The status of an apply that was refused.
pub fn refused(err: ApplyError) -> Status {
    let text = err.to_string();
    match err {
        ApplyError::Conflicts(conflicts) => {
            let cause = |c: schema::apply::Conflict| Cause {
                reason: "FieldManagerConflict".into(),
                message: format!("conflict with {}", c.manager),
                field: c.path,
            };
            Status::apply_conflict(text, conflicts.into_iter().map(cause).collect())
        }
        ApplyError::BadRequest(_) => Status::bad_request(text),
        ApplyError::Schema(_) => Status::new(500, "", text),
    }
}
