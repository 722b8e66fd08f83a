//! `update`: the whole object, or one half of it, replaced by what was sent.

use http::{Response, StatusCode};
use model::meta;
use registry::status::Status;
use registry::{forms, negotiate};
use schema::behaviour::Creation;
use serde_json::Value;
use wire::Body;

use super::judge::Part;
use super::write::{self, Maker, Written};
use super::{Call, managers, present};

/// Answers with the stored object; 201 if the update created it.
pub async fn run(call: &mut Call<'_, '_>, part: Part) -> Result<Response<Body>, Status> {
    let format = negotiate::input(&call.x.parts.headers)?;
    let bytes = call.body().await?;
    let strictness = call.x.query.text("fieldValidation").to_owned();
    let sent = forms::decode_body(&bytes, format, &call.resource, &strictness, &mut call.x.warnings)?;
    let mut sent = call.to_stored(sent).await?;
    let name = call.x.attributes.name.clone();
    if meta::name(&sent).is_empty() {
        let message = format!("the name of the object ({name} based on URL) was undeterminable: name must be provided");
        return Err(Status::bad_request(message));
    }
    check_address(call, &mut sent, &name)?;
    let manager = managers::named(call)?;
    let create = part == Part::Main
        && call.stored.behaviour.creation == Creation::CreateOrUpdate
        && meta::resource_version(&sent).is_empty();
    let mut make = |_old: Option<&Value>| Ok(sent.clone());
    let written = write::update(call, &name, part, create, Some(&manager), Maker::Stored(&mut make)).await?;
    answer(call, written).await
}

/// The object in the version of the request.
pub async fn answer(call: &Call<'_, '_>, written: Written) -> Result<Response<Body>, Status> {
    let code = if matches!(written, Written::Created(_)) { StatusCode::CREATED } else { StatusCode::OK };
    let shown = call.to_requested(written.into_object()).await?;
    present::object(call, code, shown)
}

/// Name and namespace of the object are those of the URL.
pub fn check_address(call: &Call<'_, '_>, object: &mut Value, name: &str) -> Result<(), Status> {
    let sent = meta::name(object);
    if sent.is_empty() {
        meta::set_name(object, name);
    } else if sent != name {
        return Err(Status::bad_request(format!(
            "the name of the object ({sent}) does not match the name on the URL ({name})"
        )));
    }
    let (sent, url) = (meta::namespace(object), call.namespace());
    if !sent.is_empty() && sent != url {
        let message = format!("the namespace of the object ({sent}) does not match the namespace on the URL ({url})");
        return Err(Status::bad_request(message));
    }
    let url = url.to_owned();
    meta::set_namespace(object, &url);
    Ok(())
}
