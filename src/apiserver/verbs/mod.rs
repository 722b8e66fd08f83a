//! What a request does to objects: one file per verb, none per kind.

pub mod again;
pub mod apply;
pub mod computed;
pub mod connect;
pub mod create;
pub mod delete;
pub mod delete_collection;
pub mod get;
pub mod list;
pub mod listing;
pub mod page;
pub mod patch;
pub mod present;
pub mod scale;
pub mod subresource;
pub mod update;
pub mod versions;
pub mod watch;
pub mod write;

use std::sync::Arc;

use bytes::Bytes;
use futures_util::FutureExt as _;
use http::{Response, StatusCode};
use http_body_util::BodyExt as _;
use schema::table::{Resource, Subresource};
use wire::Body;

use crate::custom::conversion;
use crate::hooks;
use crate::negotiate::{self, Output};
use crate::pipeline::Exchange;
use crate::respond;
use crate::status::Status;

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

    /// Reads the whole body.
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
        conversion::one(self.x.server.cache.converter(), object, &self.resource, &self.stored).await
    }

    /// An object in the version asked for, from whichever it is in.
    pub async fn to_requested(&self, object: serde_json::Value) -> Result<serde_json::Value, Status> {
        conversion::one(self.x.server.cache.converter(), object, &self.stored, &self.resource).await
    }

    /// 404 about the object asked for.
    pub fn not_found(&self, name: &str) -> Status {
        Status::not_found(&self.resource.group, &self.resource.plural, name)
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

/// Answers a request about a resource.
pub async fn serve(x: &mut Exchange<'_>) -> Result<Response<Body>, Status> {
    let a = &x.attributes;
    let catalog = Arc::clone(&x.catalog);
    let found = catalog.resource(&a.group, &a.version, &a.resource).filter(|r| !r.custom || !r.verbs.is_empty());
    let Some(resource) = found else {
        // A group that is served answers itself for what it lacks.
        return if catalog.groups().iter().any(|g| g.name == a.group) {
            Err(Status::no_such_resource())
        } else {
            Ok(page_not_found())
        };
    };
    let sub = match a.subresource.as_str() {
        "" => None,
        name => match resource.subresource(name) {
            Some(sub) => Some(sub),
            None => return Err(Status::no_such_resource()),
        },
    };
    let verbs = sub.map_or(&resource.verbs, |s| &s.verbs);
    // Which methods a path has: objects are named, but for those that are created.
    let misaddressed =
        sub.is_none() && matches!((a.verb.as_str(), a.name.is_empty()), ("create", false) | ("update" | "patch", true));
    let read_only = a.subresource == "log" && a.verb != "get";
    if misaddressed || read_only {
        return Err(Status::method_not_allowed());
    }
    let streaming = matches!(a.subresource.as_str(), "proxy" | "exec" | "attach" | "portforward" | "log");
    // The old prefixes `watch` and `proxy` of a path make a verb of their own: with it nobody has been allowed what the
    // method does.
    let prefixed = streaming && matches!(a.verb.as_str(), "watch" | "proxy");
    if prefixed || (!streaming && !allowed(verbs, &a.verb)) {
        return Err(Status::method_not_allowed());
    }
    let collection = matches!(a.verb.as_str(), "list" | "watch");
    if resource.namespaced && a.namespace.is_empty() && a.name.is_empty() && !collection {
        return Err(Status::method_not_allowed());
    }
    if (resource.namespaced && a.namespace.is_empty() && !collection)
        || (!resource.namespaced && !a.namespace.is_empty() && resource.plural != "namespaces")
    {
        return Err(Status::no_such_resource());
    }
    // Custom kinds have no tags, but for their metadata.
    let choose = match (schema::protobuf::speaks(resource.type_def()), resource.custom) {
        (true, _) => negotiate::output_with_protobuf,
        (false, true) => negotiate::output_of_custom,
        (false, false) => negotiate::output,
    };
    let mut output = choose(&x.parts.headers)?;
    output.pretty = negotiate::is_pretty(&x.query, output);
    let deprecated = resource.definition.as_ref().and_then(|definition| definition.warning.clone());
    x.warnings.extend(deprecated);
    let mut call = Call {
        stored: Arc::clone(catalog.storage_of(resource)),
        resource: Arc::clone(resource),
        sub: sub.cloned(),
        output,
        x,
    };
    if streaming {
        return connect::run(&mut call).boxed().await;
    }
    if call.sub.is_some() {
        return subresource::run(&mut call).boxed().await;
    }
    if let Some(made) = hooks::of(&call.stored.group, &call.stored.plural).computed {
        return computed::run(&mut call, made).boxed().await;
    }
    match call.x.attributes.verb.as_str() {
        "get" => get::run(&mut call).boxed().await,
        "list" => list::run(&mut call).boxed().await,
        "watch" => watch::run(&mut call).boxed().await,
        "create" => create::run(&mut call).boxed().await,
        "update" => update::run(&mut call, write::Part::Main).boxed().await,
        "patch" => patch::run(&mut call, write::Part::Main).boxed().await,
        "delete" => delete::run(&mut call).boxed().await,
        "deletecollection" => delete_collection::run(&mut call).boxed().await,
        _ => Err(Status::method_not_allowed()),
    }
}

fn allowed(verbs: &[schema::table::Name], verb: &str) -> bool {
    verbs.iter().any(|v| v == verb)
}

/// Go's answer for a path that nobody handles.
pub fn page_not_found() -> Response<Body> {
    respond::text(StatusCode::NOT_FOUND, "404 page not found\n")
}
