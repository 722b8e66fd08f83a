//! Subresources that are a part of their object: `status`, `scale` and what the row of the kind names.

use http::{Response, StatusCode};
use model::reference::NamespacedName;
use registry::status::Status;
use wire::Body;

use super::judge::Part;
use super::{Call, patch, present, scale, update};

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
                .read(&call.stored, NamespacedName { namespace: call.namespace(), name: &name })
                .await?
                .ok_or_else(|| call.not_found(&name))?;
            present::entry(call, StatusCode::OK, &entry).await
        }
        ("status", "update") => update::run(call, Part::Status).await,
        ("status", "patch") => patch::run(call, Part::Status).await,
        // What such a write may change stands in the row of the kind.
        (sub, "update") if call.stored.behaviour.part(sub).is_some() => update::run(call, Part::Subresource).await,
        (sub, "patch") if call.stored.behaviour.part(sub).is_some() => patch::run(call, Part::Subresource).await,
        _ => Err(Status::method_not_allowed()),
    }
}
