//! Verbs of requests on objects: one file per verb, none per kind.

pub mod apply;
pub mod computed;
pub mod create;
pub mod delete;
pub mod delete_collection;
pub mod get;
pub mod judge;
pub mod list;
pub mod listing;
pub mod managers;
pub mod page;
pub mod patch;
pub mod present;
pub mod retry;
pub mod scale;
pub mod scale_view;
pub mod shape;
pub mod subresource;
pub mod update;
pub mod versions;
pub mod watch;
pub mod write;

use std::sync::Arc;

use bytes::Bytes;
use http_body_util::BodyExt as _;
use registry::conversion;
use registry::negotiate::{self, Output};
use registry::status::Status;
use schema::table::{Resource, Subresource};

use crate::exchange::Exchange;
use crate::heavy::DecodedPermit;

/// A request together with the rows of the table it is about.
pub struct Call<'x, 'a> {
    /// The request.
    pub x: &'x mut Exchange<'a>,
    /// The version asked for.
    pub resource: Arc<Resource>,
    /// The version kept.
    pub stored: Arc<Resource>,
    /// The subresource, if one is meant.
    pub sub: Option<Subresource>,
    /// How to answer.
    pub output: Output,
}

impl Call<'_, '_> {
    /// Namespace of the request, empty in cluster scope.
    pub fn namespace(&self) -> &str {
        if self.resource.namespaced { &self.x.attributes.namespace } else { "" }
    }

    /// Reads the whole body, and waits for a permit when it is a heavy one.
    ///
    /// Errors: 413 beyond the bound, 400 when it ends early.
    pub async fn body(&mut self) -> Result<Bytes, Status> {
        let Some(mut body) = self.x.take_body() else { return Ok(Bytes::new()) };
        let limit = base::limits::REQUEST_BODY_BYTES_MAX;
        let mut all = Vec::new();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|why| Status::bad_request(format!("unable to read the request body: {why}")))?;
            let Ok(data) = frame.into_data() else { continue };
            if all.len() + data.len() > limit {
                return Err(Status::too_large(limit));
            }
            all.extend_from_slice(&data);
        }
        let all = Bytes::from(all);
        self.x.weight.add(all.len()).await;
        self.x.decoded = DecodedPermit::of(all.len()).await;
        let (headers, resource) = (&self.x.parts.headers, &self.resource);
        self.x.attributes.trail.keep_sent(|| sent(&all, headers, resource.type_def()));
        Ok(all)
    }

    /// Whether nothing shall be stored.
    ///
    /// Errors: 400/422 for a value other than `All`.
    pub fn dry_run(&self) -> Result<bool, Status> {
        dry_run(self.x.query.all("dryRun"))
    }

    /// An object in the version that is kept, from whichever it is in.
    pub async fn to_stored(&self, object: serde_json::Value) -> Result<serde_json::Value, Status> {
        conversion::one(&self.x.server.objects.converter, object, &self.resource, &self.stored).await
    }

    /// An object in the version asked for, from whichever it is in.
    pub async fn to_requested(&self, object: serde_json::Value) -> Result<serde_json::Value, Status> {
        conversion::one(&self.x.server.objects.converter, object, &self.stored, &self.resource).await
    }

    /// 404 about the object asked for.
    pub fn not_found(&self, name: &str) -> Status {
        Status::not_found(self.resource.group_resource(), name)
    }
}

/// A body as the audit log shows it; a body that nobody can read is left out.
fn sent(bytes: &[u8], headers: &http::HeaderMap, of: &schema::table::TypeDef) -> Option<serde_json::Value> {
    match negotiate::media_type(headers).as_str() {
        schema::protobuf::MEDIA_TYPE => schema::protobuf::decode(bytes, of).ok(),
        _ => schema::decode::untyped(bytes, schema::decode::Format::Yaml).ok(),
    }
}

/// Reads `dryRun`.
pub fn dry_run<'v>(values: impl Iterator<Item = &'v str>) -> Result<bool, Status> {
    let mut dry = false;
    for value in values.filter(|v| !v.is_empty()) {
        if value != "All" {
            return Err(Status::options(
                "CreateOptions",
                schema::validate::error::FieldError::not_supported("dryRun", serde_json::json!([value]), &["All"]),
            ));
        }
        dry = true;
    }
    Ok(dry)
}
