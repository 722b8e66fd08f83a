//! `get`: one object.

use http::{Response, StatusCode};
use model::reference::NamespacedName;
use registry::status::Status;
use wire::Body;

use super::{Call, present};

/// Answers with the object.
pub async fn run(call: &mut Call<'_, '_>) -> Result<Response<Body>, Status> {
    let name = call.x.attributes.name.clone();
    let found =
        call.x.server.objects.read(&call.stored, NamespacedName { namespace: call.namespace(), name: &name }).await?;
    let entry = found.ok_or_else(|| call.not_found(&name))?;
    if call.sub.as_ref().is_none_or(|s| s.name == "status") {
        return present::entry(call, StatusCode::OK, &entry).await;
    }
    Err(Status::method_not_allowed())
}
