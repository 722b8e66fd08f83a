//! Objects and lists in the shape the client asked for: as they are, as a Table, or as metadata only.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::FutureExt as _;
use http::{Response, StatusCode};
use registry::cache::entry::Entry;
use registry::negotiate::{Format, Transform};
use registry::status::Status;
use registry::{conversion, forms};
use schema::table::Resource;
use serde_json::{Value, json};
use wire::Body;

use super::Call;
use super::listing::{self, Item};
use super::shape::{ListMeta, list_metadata, meta_version, metadata_only, row};
use crate::{narrow, respond};

/// A stored object.
pub async fn entry(call: &Call<'_, '_>, code: StatusCode, entry: &Entry) -> Result<Response<Body>, Status> {
    call.x.weight.add(entry.json.len()).await;
    if is_plain(call) {
        return Ok(respond::json(code, entry.json.clone(), call.output, &call.x.parts.headers));
    }
    let shown = call.to_requested(entry.value()).await?;
    object(call, code, shown)
}

/// An object of the requested version.
pub fn object(call: &Call<'_, '_>, code: StatusCode, object: Value) -> Result<Response<Body>, Status> {
    let object = match narrow::of(&call.x.attributes.user, &call.resource) {
        Some(view) => view(object),
        None => object,
    };
    let shaped = match call.output.transform {
        Transform::Object => object,
        Transform::Metadata => metadata_only(object, call.output),
        Transform::Table => table(call, object),
    };
    Ok(respond::value(code, &shaped, call.output, &call.x.parts.headers))
}

fn rv_of(object: &Value) -> u64 {
    model::meta::resource_version(object).parse().unwrap_or(0)
}

fn is_plain(call: &Call<'_, '_>) -> bool {
    call.output.transform == Transform::Object
        && same(&call.stored, &call.resource)
        && conversion::by_webhook(&call.resource).is_none()
        && narrow::of(&call.x.attributes.user, &call.resource).is_none()
}

fn same(a: &Resource, b: &Resource) -> bool {
    a.version == b.version && a.group == b.group
}

/// A list of stored objects.
pub async fn list(call: &Call<'_, '_>, items: Vec<Arc<Entry>>, meta: &ListMeta) -> Result<Response<Body>, Status> {
    if conversion::by_webhook(&call.resource).is_none() {
        return listing::answer(call, items.into_iter().map(Item::Stored).collect(), meta).await;
    }
    call.x.weight.add(items.iter().map(|e| e.json.len()).sum()).await;
    let converter = &call.x.server.objects.converter;
    let values =
        converter.convert(items.iter().map(|e| e.value()).collect(), &call.resource, &call.resource.list_kind).await?;
    list_of(call, values, meta).await
}

/// A list of objects of the requested version.
pub async fn list_of(call: &Call<'_, '_>, values: Vec<Value>, meta: &ListMeta) -> Result<Response<Body>, Status> {
    listing::answer(call, values.into_iter().map(Item::Made).collect(), meta).await
}

fn table(call: &Call<'_, '_>, object: Value) -> Value {
    let meta = ListMeta { rv: rv_of(&object), next: String::new(), remaining: None };
    let row =
        row(&call.resource, object, call.x.query.text("includeObject"), call.output, call.x.server.objects.clock.now());
    json!({
        "kind": "Table", "apiVersion": meta_version(call.output), "metadata": list_metadata(&meta),
        "columnDefinitions": schema::print::column_values(&call.resource),
        "rows": [row],
    })
}

/// How a watch brings objects into the version asked for, where a webhook may be needed for that.
pub fn watch_converter(call: &Call<'_, '_>) -> Option<registry::cache::stream::Convert> {
    conversion::by_webhook(&call.resource)?;
    let (objects, stored, resource) =
        (Arc::clone(&call.x.server.objects), Arc::clone(&call.stored), Arc::clone(&call.resource));
    Some(Arc::new(move |json: &Bytes| {
        let (objects, stored, resource, json) =
            (Arc::clone(&objects), Arc::clone(&stored), Arc::clone(&resource), json.clone());
        async move {
            let object = serde_json::from_slice(&json).map_err(Status::internal)?;
            let object = conversion::one(&objects.converter, object, &stored, &resource).await?;
            serde_json::to_vec(&object).map(Bytes::from).map_err(Status::internal)
        }
        .boxed()
    }))
}

/// How a watch turns bytes (of the stored version, or what [`watch_converter`] made of them) into what the client asked
/// for; `None` if they are it.
pub fn watch_encoder(call: &Call<'_, '_>) -> Option<registry::cache::stream::Encode> {
    let converted = conversion::by_webhook(&call.resource).is_some();
    let same = same(&call.stored, &call.resource) || converted;
    let view = narrow::of(&call.x.attributes.user, &call.resource);
    if same && view.is_none() && call.output.transform == Transform::Object && call.output.format == Format::Json {
        return None;
    }
    let (stored, resource, output) = (Arc::clone(&call.stored), Arc::clone(&call.resource), call.output);
    let include = call.x.query.text("includeObject").to_owned();
    let clock = call.x.server.objects.clock.clone();
    // Only the first Table of a watch carries the columns; the others a null.
    let first = std::sync::atomic::AtomicBool::new(true);
    Some(Arc::new(move |json: &Bytes| {
        let object = if converted {
            serde_json::from_slice(json).map_err(Status::internal)?
        } else {
            forms::parse(json, &stored, &resource)?
        };
        let object = match view {
            Some(view) => view(object),
            None => object,
        };
        let shaped = match output.transform {
            Transform::Object => object,
            Transform::Metadata => metadata_only(object, output),
            Transform::Table => {
                let rv = rv_of(&object).to_string();
                let with_columns = first.swap(false, std::sync::atomic::Ordering::Relaxed);
                let columns = with_columns.then(|| schema::print::column_values(&resource));
                let rows = [row(&resource, object, &include, output, clock.now())];
                json!({ "kind": "Table", "apiVersion": meta_version(output), "metadata": { "resourceVersion": rv },
                    "columnDefinitions": columns, "rows": rows })
            }
        };
        let bytes = match output.format {
            Format::Protobuf => schema::protobuf::encode(&shaped).map_err(Status::internal)?,
            Format::Json | Format::Yaml => serde_json::to_vec(&shaped).map_err(Status::internal)?,
        };
        Ok(bytes.into())
    }))
}
