//! Subresources that are more than a part of their object: each name leads to its road.

use std::sync::Arc;

use http::{Response, StatusCode};
use model::meta;
use serde_json::{Value, json};
use wire::Body;

use super::judge::Part;
use super::write::{self, Maker};
use super::{Call, create, delete, managers, patch, present, scale, update};
use crate::admission::{Operation, Review};
use crate::status::Status;
use crate::{eviction, kinds, negotiate};

/// Answers a request about a subresource.
pub async fn run(call: &mut Call<'_, '_>) -> Result<Response<Body>, Status> {
    let (sub, verb) = (call.x.attributes.subresource.clone(), call.x.attributes.verb.clone());
    match (sub.as_str(), verb.as_str()) {
        ("scale", _) => scale::run(call).await,
        (_, "get") => {
            let name = call.x.attributes.name.clone();
            let entry = call
                .x
                .server
                .objects
                .read(&call.stored, call.namespace(), &name)
                .await?
                .ok_or_else(|| call.not_found(&name))?;
            present::entry(call, StatusCode::OK, &entry).await
        }
        ("status", "update") => update::run(call, Part::Status).await,
        ("status", "patch") => patch::run(call, Part::Status).await,
        ("binding", "create") => {
            let object = posted(call).await?;
            bind(call, object).await
        }
        ("eviction", "create") => evict(call).await,
        ("token", "create") => token(call).await,
        // What such a write may change stands in the owners of the kind's fields.
        ("finalize" | "approval" | "ephemeralcontainers" | "resize", "update") => {
            update::run(call, Part::Special).await
        }
        ("approval" | "ephemeralcontainers" | "resize", "patch") => patch::run(call, Part::Special).await,
        _ => Err(Status::method_not_allowed()),
    }
}

/// The body of a create, of the subresource's own kind.
async fn posted(call: &mut Call<'_, '_>) -> Result<Value, Status> {
    let sub = call.sub.clone().ok_or_else(Status::method_not_allowed)?;
    let format = negotiate::input(&call.x.parts.headers)?;
    let bytes = call.body().await?;
    let catalog = Arc::clone(&call.x.catalog);
    let of = catalog
        .type_of_kind(&sub.kind.group, &sub.kind.version, &sub.kind.kind)
        .ok_or_else(|| Status::internal("the table lacks this kind"))?;
    let strictness = call.x.query.text("fieldValidation").to_owned();
    let mut object = kinds::decode_as(
        &bytes,
        format,
        (&sub.kind.api_version(), &sub.kind.kind),
        of,
        &strictness,
        &mut call.x.warnings,
    )?;
    let name = call.x.attributes.name.clone();
    update::check_address(call, &mut object, &name)?;
    Ok(object)
}

/// Runs both rounds of admission for what was posted.
async fn admit(call: &mut Call<'_, '_>, kind: &str, object: &mut Value, dry_run: bool) -> Result<(), Status> {
    let attributes = call.x.attributes.clone();
    let server = call.x.server;
    let mut warnings = Vec::new();
    let mut review = Review {
        operation: Operation::Create,
        attributes: &attributes,
        kind,
        object,
        old: None,
        dry_run,
        catalog: &call.x.catalog,
        lookup: server.objects.cache.as_ref(),
        versions: server.objects.as_ref(),
        warnings: &mut warnings,
        again: Default::default(),
        charge: Default::default(),
    };
    server.admission.both(&mut review).await?;
    call.x.warnings.extend(warnings);
    Ok(())
}

/// `POST bindings`: the old address of `pods/binding`, with the pod's name in the body.
pub async fn bind_by_name(call: &mut Call<'_, '_>) -> Result<Response<Body>, Status> {
    let object = create::posted(call).await?;
    let pods = kinds::stored("", "pods").ok_or_else(Status::no_such_resource)?;
    (call.resource, call.stored) = (Arc::clone(&pods), pods);
    call.x.attributes.name = meta::name(&object).to_owned();
    bind(call, object).await
}

/// Puts a pod on a node.
async fn bind(call: &mut Call<'_, '_>, mut binding: Value) -> Result<Response<Body>, Status> {
    let dry_run = call.dry_run()?;
    admit(call, "Binding", &mut binding, dry_run).await?;
    let name = call.x.attributes.name.clone();
    let node = binding["target"]["name"].as_str().unwrap_or_default().to_owned();
    let target = binding["target"]["kind"].as_str().unwrap_or_default();
    if node.is_empty() || !matches!(target, "" | "Node") {
        let field = if node.is_empty() { "target.name" } else { "target.kind" };
        let error = if node.is_empty() {
            schema::validate::error::FieldError::required(field, "")
        } else {
            schema::validate::error::FieldError::not_supported(field, json!(target), &["Node", "<empty>"])
        };
        return Err(crate::status::invalid("", "Binding", &name, vec![error]));
    }
    let manager = managers::named(call)?;
    let now = base::time::rfc3339_secs(call.x.server.objects.clock.now());
    let uid = meta::uid(&binding).to_owned();
    let annotations = meta::annotations(&binding).cloned().unwrap_or_default();
    let labels = meta::labels(&binding).cloned().unwrap_or_default();
    let mut make = |old: Option<&Value>| {
        let mut pod = old.cloned().unwrap_or_default();
        check_bindable(&pod, &name, &uid)?;
        pod["spec"]["nodeName"] = json!(node);
        for (key, value) in &annotations {
            meta::set_annotation(&mut pod, key, value.as_str().unwrap_or_default());
        }
        for (key, value) in &labels {
            meta::set_label(&mut pod, key, value.as_str().unwrap_or_default());
        }
        set_condition(&mut pod, "PodScheduled", &now);
        meta::set_resource_version(&mut pod, "");
        Ok(pod)
    };
    write::update(call, &name, Part::Bound, false, Some(&manager), Maker::Stored(&mut make)).await?;
    let done = json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201 });
    Ok(crate::respond::value(StatusCode::CREATED, &done, call.output, &call.x.parts.headers))
}

fn check_bindable(pod: &Value, name: &str, uid: &str) -> Result<(), Status> {
    let conflict = |why: &str| Err(Status::conflict("", "pods/binding", name, why));
    let have = pod["spec"]["nodeName"].as_str().unwrap_or_default();
    if !uid.is_empty() && uid != meta::uid(pod) {
        return conflict(&format!(
            "Precondition failed: UID in precondition: {uid}, UID in object meta: {}",
            meta::uid(pod)
        ));
    }
    if meta::deletion_timestamp(pod).is_some() {
        return conflict(&format!("pod {name} is being deleted, cannot be assigned to a host"));
    }
    if !have.is_empty() {
        return conflict(&format!("pod {name} is already assigned to node {have:?}"));
    }
    if pod["spec"]["schedulingGates"].as_array().is_some_and(|g| !g.is_empty()) {
        return conflict(&format!("pod {name} has non-empty .spec.schedulingGates"));
    }
    Ok(())
}

fn set_condition(pod: &mut Value, kind: &str, now: &str) {
    let condition = json!({ "type": kind, "status": "True", "lastProbeTime": null, "lastTransitionTime": now });
    if !pod["status"]["conditions"].is_array() {
        pod["status"]["conditions"] = json!([]);
    }
    if let Some(list) = pod["status"]["conditions"].as_array_mut() {
        list.retain(|c| c["type"] != json!(kind));
        list.push(condition);
    }
}

/// Deletes a pod if its disruption budgets allow it.
async fn evict(call: &mut Call<'_, '_>) -> Result<Response<Body>, Status> {
    let mut eviction = posted(call).await?;
    let mut options = delete::parse_options(&eviction["deleteOptions"], &call.x.query)?;
    options.dry_run |= call.dry_run()?;
    admit(call, "Eviction", &mut eviction, options.dry_run).await?;
    let (namespace, name) = (call.namespace().to_owned(), call.x.attributes.name.clone());
    let warnings = eviction::evict(call, &namespace, &name, &options).await?;
    call.x.warnings.extend(warnings);
    let done = json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201 });
    Ok(crate::respond::value(StatusCode::CREATED, &done, call.output, &call.x.parts.headers))
}

/// Issues a token for a service account.
async fn token(call: &mut Call<'_, '_>) -> Result<Response<Body>, Status> {
    let mut request = posted(call).await?;
    let dry_run = call.dry_run()?;
    admit(call, "TokenRequest", &mut request, dry_run).await?;
    let name = call.x.attributes.name.clone();
    let account = call
        .x
        .server
        .objects
        .read(&call.stored, call.namespace(), &name)
        .await?
        .ok_or_else(|| call.not_found(&name))?;
    let lookup = &call.x.server.objects.cache;
    let issuer = std::sync::Arc::clone(&call.x.server.issuer);
    let asked = request["spec"]["expirationSeconds"].as_i64();
    let answer = issuer.issue(&account.value(), request, lookup.as_ref()).await?;
    let given = answer["spec"]["expirationSeconds"].as_i64();
    if let (Some(asked), Some(given)) = (asked, given)
        && asked > given
    {
        call.x.warnings.push(format!("requested expiration of {asked} seconds shortened to {given} seconds"));
    }
    present::object(call, StatusCode::CREATED, answer)
}
