//! Objects and lists in the shape the client asked for: as they are, as a Table, or as metadata only.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::FutureExt as _;
use http::{Response, StatusCode};
use schema::table::Resource;
use serde_json::{Map, Value, json};
use wire::Body;

use super::Call;
use crate::cache::entry::Entry;
use crate::custom::conversion;
use crate::negotiate::{Format, Output, Transform};
use crate::status::Status;
use crate::{kinds, narrow, respond};

/// Pieces of a large list are about this long.
const PIECE_BYTES: usize = 64 * 1024;

/// What stands in a list's metadata.
pub struct ListMeta {
    /// Revision.
    pub rv: u64,
    /// Token for the next page, empty at the end.
    pub next: String,
    /// How many more there are, if that is known.
    pub remaining: Option<u64>,
}

/// A stored object.
pub async fn entry(call: &Call<'_, '_>, code: StatusCode, entry: &Entry) -> Result<Response<Body>, Status> {
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
        Transform::Table => {
            let meta = ListMeta { rv: rv_of(&object), next: String::new(), remaining: None };
            table(call, vec![object], &meta)
        }
    };
    Ok(respond::value(code, &shaped, call.output, &call.x.parts.headers))
}

fn rv_of(object: &Value) -> u64 {
    schema::meta::resource_version(object).parse().unwrap_or(0)
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

/// A list of stored objects. In the stored version their bytes are copied, never parsed.
pub async fn list(call: &Call<'_, '_>, items: Vec<Arc<Entry>>, meta: &ListMeta) -> Result<Response<Body>, Status> {
    if is_plain(call) && call.output.format == Format::Json && !call.output.pretty {
        return spliced(call, items.iter().map(AsRef::as_ref), meta);
    }
    let values: Vec<Value> = if conversion::by_webhook(&call.resource).is_some() {
        let converter = call.x.server.cache.converter().ok_or_else(|| Status::unavailable("the server is starting"))?;
        converter.convert(items.iter().map(|e| e.value()).collect(), &call.resource, &call.resource.list_kind).await?
    } else {
        items.iter().map(|e| kinds::parse(&e.json, &call.stored, &call.resource)).collect::<Result<_, _>>()?
    };
    Ok(values_list(call, values, meta))
}

/// A list of objects of the requested version.
pub fn values_list(call: &Call<'_, '_>, mut values: Vec<Value>, meta: &ListMeta) -> Response<Body> {
    if let Some(view) = narrow::of(&call.x.attributes.user, &call.resource) {
        values = values.into_iter().map(view).collect();
    }
    let whole = match call.output.transform {
        Transform::Table => table(call, values, meta),
        Transform::Object => json!({
            "kind": call.resource.list_kind, "apiVersion": call.resource.api_version(),
            "metadata": list_metadata(meta),
            "items": values.into_iter().map(|v| list_item(&call.resource, v)).collect::<Vec<_>>(),
        }),
        Transform::Metadata => json!({
            "kind": "PartialObjectMetadataList", "apiVersion": meta_version(call.output),
            "metadata": list_metadata(meta),
            "items": values.into_iter().map(|v| metadata_only(v, call.output)).collect::<Vec<_>>(),
        }),
    };
    respond::value(StatusCode::OK, &whole, call.output, &call.x.parts.headers)
}

/// An object as it stands in a list: those of built-in kinds without version and kind, which the list has for all of them.
///
/// Spec: upstream v1.36, whose typed objects lose both when they are decoded from the store.
fn list_item(resource: &Resource, mut object: Value) -> Value {
    if !resource.custom
        && let Some(fields) = object.as_object_mut()
    {
        fields.remove("apiVersion");
        fields.remove("kind");
    }
    object
}

/// [`list_item`] of an object's bytes, which are parsed only if they do not begin with `head`, the two fields as they are stored.
fn push_item(piece: &mut Vec<u8>, resource: &Resource, head: &[u8], json: &[u8]) -> Result<(), Status> {
    match json.strip_prefix(head) {
        _ if resource.custom => piece.extend_from_slice(json),
        Some(rest) => {
            piece.push(b'{');
            piece.extend_from_slice(rest);
        }
        None => {
            let object = serde_json::from_slice(json).map_err(Status::internal)?;
            serde_json::to_writer(&mut *piece, &list_item(resource, object)).map_err(Status::internal)?;
        }
    }
    Ok(())
}

fn spliced<'e>(call: &Call<'_, '_>, items: impl Iterator<Item = &'e Entry>, meta: &ListMeta) -> Result<Response<Body>, Status> {
    let fields = json!({ "apiVersion": call.resource.api_version(), "kind": call.resource.kind.to_string() }).to_string();
    let fields = fields.replace('}', ",");
    let head =
        json!({ "kind": call.resource.list_kind, "apiVersion": call.resource.api_version(), "metadata": list_metadata(meta) }).to_string();
    let mut pieces: Vec<Bytes> = Vec::new();
    let mut piece = Vec::with_capacity(PIECE_BYTES * 5 / 4);
    piece.extend_from_slice(&head.as_bytes()[..head.len() - 1]);
    piece.extend_from_slice(b",\"items\":[");
    for (idx, entry) in items.enumerate() {
        if idx > 0 {
            piece.push(b',');
        }
        push_item(&mut piece, &call.resource, fields.as_bytes(), &entry.json)?;
        if piece.len() >= PIECE_BYTES {
            pieces.push(std::mem::replace(&mut piece, Vec::with_capacity(PIECE_BYTES * 5 / 4)).into());
        }
    }
    piece.extend_from_slice(b"]}\n");
    pieces.push(piece.into());
    Ok(respond::chunks(StatusCode::OK, Format::Json.content_type(), pieces, &call.x.parts.headers))
}

fn list_metadata(meta: &ListMeta) -> Value {
    let mut out = Map::new();
    out.insert("resourceVersion".to_owned(), json!(meta.rv.to_string()));
    if !meta.next.is_empty() {
        out.insert("continue".to_owned(), json!(meta.next));
        if let Some(remaining) = meta.remaining {
            out.insert("remainingItemCount".to_owned(), json!(remaining));
        }
    }
    Value::Object(out)
}

/// apiVersion of a Table or PartialObjectMetadata.
pub fn meta_version(output: Output) -> &'static str {
    if output.beta { "meta.k8s.io/v1beta1" } else { "meta.k8s.io/v1" }
}

fn metadata_only(mut object: Value, output: Output) -> Value {
    json!({ "kind": "PartialObjectMetadata", "apiVersion": meta_version(output), "metadata": object["metadata"].take() })
}

fn table(call: &Call<'_, '_>, objects: Vec<Value>, meta: &ListMeta) -> Value {
    let include = call.x.query.text("includeObject").to_owned();
    let now = call.x.server.config.clock.now();
    let rows: Vec<Value> = objects.into_iter().map(|o| row(&call.resource, o, &include, call.output, now)).collect();
    json!({
        "kind": "Table", "apiVersion": meta_version(call.output), "metadata": list_metadata(meta),
        "columnDefinitions": schema::print::column_values(&call.resource),
        "rows": rows,
    })
}

fn row(resource: &Resource, object: Value, include: &str, output: Output, now: jiff::Timestamp) -> Value {
    let cells = schema::print::row(resource, &object, now);
    let mut row = json!({ "cells": cells });
    match include {
        "None" => {}
        "Object" => row["object"] = object,
        _ => row["object"] = metadata_only(object, output),
    }
    row
}

/// How a watch brings objects into the version asked for, where a webhook may be needed for that.
pub fn watch_converter(call: &Call<'_, '_>) -> Option<crate::cache::stream::Convert> {
    conversion::by_webhook(&call.resource)?;
    let (cache, stored, resource) = (Arc::clone(&call.x.server.cache), Arc::clone(&call.stored), Arc::clone(&call.resource));
    Some(Arc::new(move |json: &Bytes| {
        let (cache, stored, resource, json) = (Arc::clone(&cache), Arc::clone(&stored), Arc::clone(&resource), json.clone());
        async move {
            let object = serde_json::from_slice(&json).map_err(Status::internal)?;
            let object = conversion::one(cache.converter(), object, &stored, &resource).await?;
            serde_json::to_vec(&object).map(Bytes::from).map_err(Status::internal)
        }
        .boxed()
    }))
}

/// How a watch turns bytes (of the stored version, or what [`watch_converter`] made of them) into what the client asked for;
/// `None` if they are it.
pub fn watch_encoder(call: &Call<'_, '_>) -> Option<crate::cache::stream::Encode> {
    let converted = conversion::by_webhook(&call.resource).is_some();
    let same = same(&call.stored, &call.resource) || converted;
    let view = narrow::of(&call.x.attributes.user, &call.resource);
    if same && view.is_none() && call.output.transform == Transform::Object && call.output.format == Format::Json {
        return None;
    }
    let (stored, resource, output) = (Arc::clone(&call.stored), Arc::clone(&call.resource), call.output);
    let include = call.x.query.text("includeObject").to_owned();
    let clock = call.x.server.config.clock.clone();
    // Only the first Table of a watch carries the columns; the others a null.
    let first = std::sync::atomic::AtomicBool::new(true);
    Some(Arc::new(move |json: &Bytes| {
        let object =
            if converted { serde_json::from_slice(json).map_err(Status::internal)? } else { kinds::parse(json, &stored, &resource)? };
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
                json!({ "kind": "Table", "apiVersion": meta_version(output), "metadata": { "resourceVersion": rv }, "columnDefinitions": columns, "rows": rows })
            }
        };
        let bytes = match output.format {
            Format::Protobuf => schema::protobuf::encode(&shaped).map_err(Status::internal)?,
            Format::Json | Format::Yaml => serde_json::to_vec(&shaped).map_err(Status::internal)?,
        };
        Ok(bytes.into())
    }))
}
