//! `get`: one object.

use std::sync::Arc;

use http::{Response, StatusCode};
use wire::Body;

use super::{Call, present};
use crate::cache::entry::Entry;
use crate::keys;
use crate::serve::ApiServer;
use crate::status::Status;
use schema::table::Resource;
use store::RangeRequest;

/// Answers with the object.
pub async fn run(call: &mut Call<'_, '_>) -> Result<Response<Body>, Status> {
    let name = call.x.attributes.name.clone();
    let entry =
        read(call.x.server, &call.stored, call.namespace(), &name).await?.ok_or_else(|| call.not_found(&name))?;
    if call.sub.as_ref().is_none_or(|s| s.name == "status") {
        return present::entry(call, StatusCode::OK, &entry).await;
    }
    Err(Status::method_not_allowed())
}

/// Reads the newest state of one object: from its cache if somebody watches it already, else from the store alone.
pub async fn read(
    server: &ApiServer,
    stored: &Resource,
    namespace: &str,
    name: &str,
) -> Result<Option<Arc<Entry>>, Status> {
    let kind = server.cache.kind(&stored.group, &stored.plural);
    let local = keys::local(namespace, name);
    if kind.is_ready() {
        server.cache.wait_for_now().await?;
        if let Some(found) = kind.now(&local) {
            return Ok(found);
        }
    }
    let key = format!("{}{local}", kind.prefix);
    let reply = server.cache.storage().range(RangeRequest { key: key.into(), ..RangeRequest::default() }).await?;
    let Some(kv) = reply.kvs.first() else { return Ok(None) };
    let entry = Entry::build(&local, &kv.value, kv.mod_revision.0, kind.form()).map_err(Status::internal)?;
    Ok(Some(Arc::new(entry)))
}
