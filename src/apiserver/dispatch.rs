//! Which handler answers a request about a resource: the row of the table, the subresource and the verb say.

use std::sync::Arc;

use futures_util::FutureExt as _;
use http::Response;
use registry::attributes::Attributes;
use registry::negotiate;
use registry::status::Status;
use schema::behaviour::ServerPart;
use schema::table::{GroupVersion, Resource, Subresource};
use wire::Body;

use crate::component_status::components;
use crate::exchange::Exchange;
use crate::kinds::{self, Methods};
use crate::respond::page_not_found;
use crate::verbs::judge::Part;
use crate::verbs::{Call, computed, create, delete, delete_collection, get, list, patch, subresource, update, watch};

/// Answers a request about a resource.
pub(crate) async fn serve(x: &mut Exchange<'_>) -> Result<Response<Body>, Status> {
    let a = &x.attributes;
    let catalog = Arc::clone(&x.catalog);
    let found = catalog
        .resource(GroupVersion { group: &a.group, version: &a.version }, &a.resource)
        .filter(|r| !r.custom || !r.verbs.is_empty());
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
    let by_server = kinds::subresource(resource.group_resource(), &a.subresource);
    check_method(a, resource, sub, by_server.map_or(Methods::Table, |row| row.methods))?;
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
    if let Some(row) = by_server {
        return (row.run)(&mut call).await;
    }
    if call.sub.is_some() {
        return subresource::run(&mut call).boxed().await;
    }
    if call.stored.behaviour.server == ServerPart::Components {
        return computed::run(&mut call, components).boxed().await;
    }
    match call.x.attributes.verb.as_str() {
        "get" => get::run(&mut call).boxed().await,
        "list" => list::run(&mut call).boxed().await,
        "watch" => watch::run(&mut call).boxed().await,
        "create" => create::run(&mut call).boxed().await,
        "update" => update::run(&mut call, Part::Main).boxed().await,
        "patch" => patch::run(&mut call, Part::Main).boxed().await,
        "delete" => delete::run(&mut call).boxed().await,
        "deletecollection" => delete_collection::run(&mut call).boxed().await,
        _ => Err(Status::method_not_allowed()),
    }
}

/// Whether the path has the method.
///
/// Errors: 405; 404 where the path has a namespace too many, or lacks one.
fn check_method(
    a: &Attributes,
    resource: &Resource,
    sub: Option<&Subresource>,
    methods: Methods,
) -> Result<(), Status> {
    let verbs = sub.map_or(&resource.verbs, |s| &s.verbs);
    // Which methods a path has: objects are named, but for those that are created.
    let misaddressed =
        sub.is_none() && matches!((a.verb.as_str(), a.name.is_empty()), ("create", false) | ("update" | "patch", true));
    if misaddressed || (methods == Methods::Get && a.verb != "get") {
        return Err(Status::method_not_allowed());
    }
    let streaming = methods != Methods::Table;
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
    Ok(())
}

fn allowed(verbs: &[schema::table::Name], verb: &str) -> bool {
    verbs.iter().any(|v| v == verb)
}
