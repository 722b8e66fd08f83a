//! `scale`: the replica count of a workload, as an object of its own.

use std::sync::Arc;

use http::{Response, StatusCode};
use model::meta;
use model::reference::{GroupKind, NamespacedName};
use registry::status::Status;
use registry::{forms, negotiate};
use schema::apply::versions::Versions;
use schema::table::GroupVersion;
use serde_json::{Value, json};
use wire::Body;

use super::judge::Part;
use super::scale_view::API_VERSION;
use super::update::check_address;
use super::write::{self, Maker};
use super::{Call, apply, managers, present, scale_view};

/// Answers `get`, `update` and `patch` of `scale`.
pub async fn run(call: &mut Call<'_, '_>) -> Result<Response<Body>, Status> {
    let name = call.x.attributes.name.clone();
    if call.x.attributes.verb == "get" {
        let entry = call
            .x
            .server
            .objects
            .read(&call.stored, NamespacedName { namespace: call.namespace(), name: &name })
            .await?
            .ok_or_else(|| call.not_found(&name))?;
        call.x.weight.add(entry.json.len()).await;
        let shown = call.to_requested(entry.value()).await?;
        return present::object(call, StatusCode::OK, scale_view::of(call.resource.definition.as_deref(), &shown));
    }
    if call.x.attributes.verb == "patch"
        && negotiate::media_type(&call.x.parts.headers) == "application/apply-patch+yaml"
    {
        return apply(call).await;
    }
    let manager = managers::named(call)?;
    let wish = wish(call).await?;
    let namespace = call.namespace().to_owned();
    let resource = Arc::clone(&call.resource);
    let definition = resource.definition.clone();
    let mut make = |old: Option<&Value>| {
        let mut object = old.cloned().unwrap_or_default();
        let scale = wish.apply(&scale_view::of(definition.as_deref(), &object))?;
        if meta::name(&scale) != name || meta::namespace(&scale) != namespace {
            return Err(Status::bad_request(format!(
                "the name of the object ({}) does not match the name on the URL ({name})",
                meta::name(&scale)
            )));
        }
        let replicas = scale["spec"]["replicas"].as_i64().unwrap_or(0);
        not_negative(&name, replicas)?;
        scale_view::put_replicas(definition.as_deref(), &mut object, replicas);
        meta::set_resource_version(&mut object, meta::resource_version(&scale));
        Ok(object)
    };
    let url_name = call.x.attributes.name.clone();
    let written =
        write::update(call, &url_name, Part::Main, false, Some(&manager), Maker::Requested(&mut make)).await?;
    let shown = call.to_requested(written.into_object()).await?;
    present::object(call, StatusCode::OK, scale_view::of(resource.definition.as_deref(), &shown))
}

fn not_negative(name: &str, replicas: i64) -> Result<(), Status> {
    if replicas >= 0 {
        return Ok(());
    }
    let error = schema::validate::error::FieldError::invalid(
        "spec.replicas",
        json!(replicas),
        "must be greater than or equal to 0",
    );
    Err(registry::status::invalid(GroupKind { group: "autoscaling", kind: "Scale" }, name, vec![error]))
}

/// Server-side apply of a Scale: who applies it owns the number in the workload, by way of `scale`.
async fn apply(call: &mut Call<'_, '_>) -> Result<Response<Body>, Status> {
    let manager = apply::manager(call)?;
    let (name, force) = (call.x.attributes.name.clone(), call.x.query.flag("force"));
    let bytes = call.body().await?;
    let mut sent = apply::raw(&bytes)?;
    apply::is_of((API_VERSION, "Scale"), &sent)?;
    let of_scale = call
        .x
        .catalog
        .type_of_kind(GroupVersion::parse("autoscaling/v1"), "Scale")
        .ok_or_else(|| Status::internal("the table has no Scale"))?;
    schema::apply::fits(of_scale, API_VERSION, &sent).map_err(apply::refused)?;
    check_address(call, &mut sent, &name)?;
    let (resource, definition) = (Arc::clone(&call.resource), call.resource.definition.clone());
    let api_version = resource.api_version();
    let mut config = json!({ "apiVersion": api_version, "kind": resource.kind, "metadata": { "name": name } });
    meta::set_namespace(&mut config, call.namespace());
    meta::set_resource_version(&mut config, meta::resource_version(&sent));
    if let Some(replicas) = sent["spec"]["replicas"].as_i64() {
        not_negative(&name, replicas)?;
        scale_view::put_replicas(definition.as_deref(), &mut config, replicas);
    }
    let now = base::time::rfc3339_secs(call.x.server.objects.clock.now());
    let mut make = |old: Option<&Value>, versions: &mut dyn Versions| {
        let request = schema::apply::Request {
            type_def: resource.type_def(),
            api_version: &api_version,
            subresource: "scale",
            manager: &manager,
            now: &now,
            reset: &[],
            only: &[],
        };
        schema::apply::apply(&request, versions, old, &config, force).map_err(apply::refused)
    };
    let url_name = call.x.attributes.name.clone();
    let written = write::update(call, &url_name, Part::Main, false, None, Maker::Applied(&mut make)).await?;
    let shown = call.to_requested(written.into_object()).await?;
    present::object(call, StatusCode::OK, scale_view::of(call.resource.definition.as_deref(), &shown))
}

/// Wish of the client: a whole Scale, or a patch of one.
enum Wish {
    Whole(Value),
    Merge(Value),
    Json(bytes::Bytes),
}

impl Wish {
    fn apply(&self, present: &Value) -> Result<Value, Status> {
        match self {
            Wish::Whole(scale) => Ok(scale.clone()),
            Wish::Merge(patch) => schema::patch::merge(present, patch).map_err(super::patch::refused),
            Wish::Json(patch) => schema::patch::json(present, patch).map_err(super::patch::refused),
        }
    }
}

async fn wish(call: &mut Call<'_, '_>) -> Result<Wish, Status> {
    let bytes = call.body().await?;
    if call.x.attributes.verb == "patch" {
        return match negotiate::media_type(&call.x.parts.headers).as_str() {
            "application/json-patch+json" => Ok(Wish::Json(bytes)),
            // A Scale has no lists: a strategic merge of it is a plain merge.
            "application/merge-patch+json" | "application/strategic-merge-patch+json" => serde_json::from_slice(&bytes)
                .map(Wish::Merge)
                .map_err(|err| Status::bad_request(format!("error decoding patch: {err}"))),
            _ => Err(Status::unsupported_media_type(
                "application/json-patch+json, application/merge-patch+json, application/strategic-merge-patch+json, \
                 application/apply-patch+yaml",
            )),
        };
    }
    let format = negotiate::input(&call.x.parts.headers)?;
    let of = call
        .x
        .catalog
        .type_of_kind(GroupVersion::parse("autoscaling/v1"), "Scale")
        .ok_or_else(|| Status::internal("the table has no Scale"))?;
    let strictness = call.x.query.text("fieldValidation").to_owned();
    let mut scale = forms::decode_as(&bytes, format, (API_VERSION, "Scale"), of, &strictness, &mut call.x.warnings)?;
    let name = call.x.attributes.name.clone();
    check_address(call, &mut scale, &name)?;
    Ok(Wish::Whole(scale))
}
