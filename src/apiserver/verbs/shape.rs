//! Objects and lists in the shapes beside their own: rows of a Table, metadata alone.

use registry::negotiate::Output;
use schema::table::Resource;
use serde_json::{Map, Value, json};

/// Metadata of a list.
pub struct ListMeta {
    /// Revision.
    pub rv: u64,
    /// Token for the next page, empty at the end.
    pub next: String,
    /// How many more there are, if that is known.
    pub remaining: Option<u64>,
}

/// A list's metadata.
pub fn list_metadata(meta: &ListMeta) -> Value {
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

/// An object without all but its metadata.
pub fn metadata_only(mut object: Value, output: Output) -> Value {
    json!({ "kind": "PartialObjectMetadata", "apiVersion": meta_version(output),
        "metadata": object["metadata"].take() })
}

/// An object as the row of a Table.
pub fn row(resource: &Resource, object: Value, include: &str, output: Output, now: jiff::Timestamp) -> Value {
    let cells = schema::print::row(resource, &object, now);
    let mut row = json!({ "cells": cells });
    match include {
        "None" => {}
        "Object" => row["object"] = object,
        _ => row["object"] = metadata_only(object, output),
    }
    row
}
