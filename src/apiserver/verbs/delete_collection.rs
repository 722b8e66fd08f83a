//! `deletecollection`: every object that the selectors find.

use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use http::Response;
use model::reference::NamespacedName;
use registry::cache::entry::Entry;
use registry::selection::Selection;
use registry::status::Status;
use wire::Body;

use super::delete::{self, Outcome};
use super::present;
use super::shape::ListMeta;
use super::{Call, list};

/// Answers with the list of what was there.
pub async fn run(call: &mut Call<'_, '_>) -> Result<Response<Body>, Status> {
    let options = delete::options(call).await?;
    let kind = call.x.server.objects.cache.kind(call.stored.group_resource());
    let mut filter = list::filter(&call.resource, &kind, call.namespace(), &call.x.query)?;
    let objects = &call.x.server.objects;
    let cache = &objects.cache;
    let selection = Selection::split(&mut filter, objects, &call.stored, &call.resource);
    let kind = cache.ready(call.stored.group_resource()).await?;
    cache.wait_for_now().await?;
    let mut items = kind.snapshot(filter.namespace.as_deref()).whole()?.items;
    call.x.weight.add(items.len() * list::FILTER_BYTES).await;
    items.retain(|e| filter.matches(e));
    if let Some(selection) = &selection {
        items = selection.keep(items).await?;
    }
    let rv = cache.seen();
    // One after the other would pay one fsync each: those under way together share theirs.
    // (Boxed one by one: the compiler cannot see that a stream of borrowing futures may change threads.)
    let mut waiting: Vec<BoxFuture<'_, Result<Vec<String>, Status>>> = Vec::with_capacity(items.len());
    for entry in &items {
        waiting.push(Box::pin(one(call, entry, &options)));
    }
    let mut work = futures_util::stream::iter(waiting).buffer_unordered(base::limits::DELETE_COLLECTION_PARALLEL);
    let mut warnings = Vec::new();
    while let Some(done) = work.next().await {
        match done {
            Ok(more) => warnings.extend(more),
            Err(status) if status.code == 404 => {}
            Err(status) => return Err(status),
        }
    }
    drop(work);
    warnings.dedup();
    call.x.warnings.extend(warnings);
    present::list(call, items, &ListMeta { rv, next: String::new(), remaining: None }).await
}

async fn one(call: &Call<'_, '_>, entry: &Entry, options: &delete::Options) -> Result<Vec<String>, Status> {
    let mut warnings = Vec::new();
    let named = NamespacedName { namespace: entry.namespace(), name: entry.name() };
    match delete::delete(call, named, options, &mut warnings).await? {
        Outcome::Gone(_) | Outcome::Pending(_) => Ok(warnings),
    }
}
