//! `serviceaccounts/token`.

use http::{Response, StatusCode};
use model::reference::NamespacedName;
use registry::status::Status;
use wire::Body;

use super::posted::{admit, posted};
use crate::verbs::{Call, present};

/// Issues a token for a service account.
pub(super) async fn token(call: &mut Call<'_, '_>) -> Result<Response<Body>, Status> {
    let mut request = posted(call).await?;
    let dry_run = call.dry_run()?;
    admit(call, "TokenRequest", &mut request, dry_run).await?;
    let name = call.x.attributes.name.clone();
    let account = call
        .x
        .server
        .objects
        .read(&call.stored, NamespacedName { namespace: call.namespace(), name: &name })
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
