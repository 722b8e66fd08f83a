//! Resources that nobody stores: their objects are made when somebody asks.

use http::{Response, StatusCode};
use model::meta;
use registry::status::Status;
use wire::Body;

use super::Call;
use super::present;
use super::shape::ListMeta;
use crate::component_status::Make;

/// Answers `get` and `list`.
pub async fn run(call: &mut Call<'_, '_>, make: Make) -> Result<Response<Body>, Status> {
    let selector = model::labels::Selector::parse(call.x.query.text("labelSelector"))
        .map_err(|e| Status::bad_request(e.to_string()))?;
    let objects = make(&call.x.server.objects).await;
    match call.x.attributes.verb.as_str() {
        "get" => {
            let name = &call.x.attributes.name;
            let found =
                objects.into_iter().find(|object| meta::name(object) == name).ok_or_else(|| call.not_found(name))?;
            present::object(call, StatusCode::OK, found)
        }
        "list" => {
            let rv = call.x.server.objects.cache.seen();
            let wanted = objects.into_iter().filter(|object| selector.matches(meta::labels(object))).collect();
            present::list_of(call, wanted, &ListMeta { rv, next: String::new(), remaining: None }).await
        }
        _ => Err(Status::method_not_allowed()),
    }
}
