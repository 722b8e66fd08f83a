//! Managers of fields: who wrote which field of an object, by the name that the request gives.

use model::meta;
use registry::status::Status;
use schema::apply::versions::Versions;
use schema::behaviour::Path;
use serde_json::Value;

use super::{Call, versions};

/// The manager of written fields: `fieldManager`, else the first part of the user agent.
pub fn named(call: &Call<'_, '_>) -> Result<String, Status> {
    let given = call.x.query.text("fieldManager");
    if given.len() > 128 {
        let kind = match call.x.attributes.verb.as_str() {
            "create" => "CreateOptions",
            "patch" => "PatchOptions",
            _ => "UpdateOptions",
        };
        return Err(Status::options(kind, schema::validate::error::FieldError::too_long("fieldManager", 128)));
    }
    if !given.is_empty() {
        return Ok(given.to_owned());
    }
    let agent = call.x.parts.headers.get(http::header::USER_AGENT).and_then(|v| v.to_str().ok()).unwrap_or("unknown");
    Ok(agent.split('/').next().unwrap_or_default().chars().take(128).collect())
}

/// Records who wrote which field of `new`, in the version of the request.
///
/// Errors: the objects have no form in that version.
pub async fn track(call: &Call<'_, '_>, manager: &str, old: Option<&Value>, new: &mut Value) -> Result<(), Status> {
    let now = base::time::rfc3339_secs(call.x.server.objects.clock.now());
    let subresource = call.x.attributes.subresource.clone();
    let row = call.stored.behaviour;
    let request = schema::apply::Request {
        type_def: call.resource.type_def(),
        api_version: &call.resource.api_version(),
        subresource: &subresource,
        manager,
        now: &now,
        reset: &row.owners.not_written(&subresource),
        only: row.part(&subresource).map_or(&[] as &[Path], |part| part.writes),
    };
    if request.api_version == call.stored.api_version() {
        return track_in(call, &request, old, new).await;
    }
    let shown = match old {
        Some(old) => Some(call.to_requested(old.clone()).await?),
        None => None,
    };
    let mut made = call.to_requested(new.clone()).await?;
    track_in(call, &request, shown.as_ref(), &mut made).await?;
    meta::set_managed_fields(new, meta::managed_fields(&made).to_vec());
    Ok(())
}

async fn track_in(
    call: &Call<'_, '_>,
    request: &schema::apply::Request<'_>,
    old: Option<&Value>,
    new: &mut Value,
) -> Result<(), Status> {
    let sent = meta::managed_fields(new).to_vec();
    let mut track = |versions: &mut dyn Versions| {
        meta::set_managed_fields(new, sent.clone());
        schema::apply::track_update(request, versions, old, new);
    };
    versions::with(call, &mut track).await
}
