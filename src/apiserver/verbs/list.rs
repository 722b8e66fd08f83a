//! `list`: many objects at one moment.

use std::sync::Arc;

use http::Response;
use schema::fields::FieldSelector;
use schema::labels::Selector;
use schema::table::Resource;
use schema::validate::error::FieldError;
use store::Revision;
use wire::Body;

use super::Call;
use super::page::Token;
use super::present::{self, ListMeta};
use crate::cache::Kind;
use crate::cache::entry::Entry;
use crate::cache::filter::Filter;
use crate::custom::selection::Selection;
use crate::query::Query;
use crate::status::Status;

/// Asking one object whether it is wanted costs about as much as reading so many bytes.
pub const FILTER_BYTES: usize = 16;
/// So many bytes of an older list are read in one step.
const STEP_BYTES: usize = 1 << 20;

/// Answers with the list.
pub async fn run(call: &mut Call<'_, '_>) -> Result<Response<Body>, Status> {
    let kind = call.x.server.cache.kind(&call.stored.group, &call.stored.plural);
    let mut filter = filter(&call.resource, &kind, call.namespace(), &call.x.query)?;
    let whole = filter.is_all();
    let selection = Selection::split(&mut filter, &call.x.server.cache, &call.stored, &call.resource);
    if call.x.query.get("sendInitialEvents").is_some() {
        return Err(Status::options("ListOptions", FieldError::forbidden("sendInitialEvents", "sendInitialEvents is forbidden for list")));
    }
    numbers(&call.x.query)?;
    let limit = usize::try_from(call.x.query.number("limit").unwrap_or(0).max(0)).unwrap_or(0);
    let moment = Moment::parse(&call.x.query, limit > 0)?;
    let (mut entries, rv, start) = collect(call, &filter, &moment).await?;
    call.x.weight.add(entries.len() * FILTER_BYTES).await;
    if let Some(selection) = &selection {
        entries.retain(|e| e.key.as_ref() >= start.as_str() && filter.matches(e));
        entries = selection.keep(entries).await?;
    }
    let mut wanted = entries.iter().filter(|e| e.key.as_ref() >= start.as_str() && filter.matches(e));
    if limit == 0 {
        let meta = ListMeta { rv, next: String::new(), remaining: None };
        return present::list(call, wanted.cloned().collect(), &meta).await;
    }
    let page: Vec<&Arc<Entry>> = wanted.by_ref().take(limit).collect();
    let left = wanted.count() as u64;
    let next = page.last().filter(|_| left > 0).map(|last| Token::after(&last.key, rv).encode()).unwrap_or_default();
    // With a selector upstream does not count what is left.
    let meta = ListMeta { rv, next, remaining: whole.then_some(left) };
    present::list(call, page.into_iter().cloned().collect(), &meta).await
}

/// Numbers among the options are numbers.
///
/// Errors: 400 in Go's words.
pub fn numbers(query: &Query) -> Result<(), Status> {
    let bad =
        ["limit", "timeoutSeconds"].into_iter().find(|key| query.get(key).is_some_and(|v| !v.is_empty()) && query.number(key).is_none());
    match bad {
        Some(key) => Err(Status::bad_request(format!("strconv.ParseInt: parsing {:?}: invalid syntax", query.text(key)))),
        None => Ok(()),
    }
}

/// Reads both selectors.
///
/// Errors: 400 for text that is no selector, or a field that cannot be selected by.
pub fn filter(resource: &Resource, kind: &Kind, namespace: &str, query: &Query) -> Result<Filter, Status> {
    let labels = Selector::parse(query.text("labelSelector")).map_err(|err| Status::bad_request(err.to_string()))?;
    let fields = FieldSelector::parse(query.text("fieldSelector")).map_err(|err| Status::bad_request(err.to_string()))?;
    let known = |field: &str| matches!(field, "metadata.name" | "metadata.namespace") || resource.selectable.iter().any(|s| s == field);
    if let Some(term) = fields.terms().iter().find(|t| !known(&t.field)) {
        let message = if matches!(resource.group.as_ref(), "" | "events.k8s.io") && !resource.selectable.is_empty() {
            format!("field label not supported: {}", term.field)
        } else {
            format!("{:?} is not a known field selector: only \"metadata.name\", \"metadata.namespace\"", term.field)
        };
        return Err(Status::bad_request(message));
    }
    let fields = fields.renamed(|field| schema::convert::stored_field(resource, field));
    let namespace = (!namespace.is_empty()).then(|| namespace.to_owned());
    Ok(Filter { namespace, labels, fields, selectable: Arc::clone(&kind.form().selectable) })
}

/// As of when a list is wanted.
pub enum Moment {
    /// The newest.
    Now,
    /// Whatever is there.
    Any,
    /// This revision or newer.
    NotOlder(u64),
    /// This revision.
    Exact(u64),
    /// The page behind an earlier one.
    Page(Token),
}

impl Moment {
    /// Reads `resourceVersion`, `resourceVersionMatch` and `continue`.
    ///
    /// Errors: 400 for combinations that make no sense.
    pub fn parse(query: &Query, limited: bool) -> Result<Moment, Status> {
        let (rv, how, token) = (query.text("resourceVersion"), query.text("resourceVersionMatch"), query.text("continue"));
        if !matches!(how, "" | "Exact" | "NotOlderThan") {
            let supported = ["Exact", "NotOlderThan", ""];
            return Err(Status::options(
                "ListOptions",
                FieldError::not_supported("resourceVersionMatch", serde_json::Value::from(how), &supported),
            ));
        }
        if !how.is_empty() && rv.is_empty() {
            return Err(forbidden_match("resourceVersionMatch is forbidden unless resourceVersion is provided"));
        }
        if !how.is_empty() && !token.is_empty() {
            return Err(forbidden_match("resourceVersionMatch is forbidden when continue is provided"));
        }
        if how == "Exact" && rv == "0" {
            return Err(forbidden_match("resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\""));
        }
        if !token.is_empty() {
            if !rv.is_empty() && rv != "0" {
                return Err(Status::bad_request("specifying resource version is not allowed when using continue"));
            }
            return Token::decode(token).map(Moment::Page);
        }
        let number = parse_version(rv)?;
        Ok(match (number, how) {
            (None, _) => Moment::Now,
            (Some(0), _) => Moment::Any,
            (Some(n), "Exact") => Moment::Exact(n),
            (Some(n), "") if limited => Moment::Exact(n),
            (Some(n), _) => Moment::NotOlder(n),
        })
    }
}

fn forbidden_match(text: &str) -> Status {
    Status::options("ListOptions", FieldError::forbidden("resourceVersionMatch", text))
}

/// Reads a resource version; `None` if there is none.
pub fn parse_version(text: &str) -> Result<Option<u64>, Status> {
    if text.is_empty() {
        return Ok(None);
    }
    text.parse().map(Some).map_err(|_| {
        Status::bad_request(format!("resourceVersion: Invalid value: {text:?}: strconv.ParseUint: parsing {text:?}: invalid syntax"))
    })
}

/// 410 with a token for those who rather have the rest than a consistent list.
fn too_old(token: &Token) -> Status {
    let mut status = Status::expired(
        "The provided continue parameter is too old to display a consistent list result. You can start a new list without the continue \
         parameter, or use the continue token in this response to retrieve the remainder of the results. Continuing with the provided \
         token results in an inconsistent list - objects that were created, modified, or deleted between the time the first chunk was \
         returned and now may show up in the list.",
    );
    status.next = token.inconsistent().encode();
    status
}

type Collected = (Vec<Arc<Entry>>, u64, String);

async fn collect(call: &Call<'_, '_>, filter: &Filter, moment: &Moment) -> Result<Collected, Status> {
    let cache = &call.x.server.cache;
    let kind = cache.ready(&call.stored.group, &call.stored.plural).await?;
    match moment {
        Moment::Now => cache.wait_for_now().await?,
        Moment::Page(token) if token.revision().is_none() => cache.wait_for_now().await?,
        Moment::Any => {}
        Moment::NotOlder(n) | Moment::Exact(n) => {
            if !cache.wait_for(*n).await {
                return Err(Status::future(*n, cache.seen()));
            }
        }
        Moment::Page(_) => {}
    }
    let seen = cache.seen();
    let snapshot = kind.snapshot(filter.namespace.as_deref()).whole()?;
    let (at, start) = match moment {
        Moment::Exact(n) => (*n, String::new()),
        Moment::Page(token) => match token.revision() {
            Some(at) => (at, token.start.clone()),
            None => return Ok((snapshot.items, seen.max(snapshot.newest), token.start.clone())),
        },
        _ => return Ok((snapshot.items, seen.max(snapshot.newest), String::new())),
    };
    if snapshot.newest <= at {
        // Nothing has changed since then: the cache is that moment.
        return Ok((snapshot.items, at, start));
    }
    let prefix = format!("{}{}", kind.prefix, filter.namespace.as_ref().map(|ns| format!("{ns}/")).unwrap_or_default());
    let (kvs, _) = cache.read_all(&prefix, Some(Revision(at))).await.map_err(|err| match (err, moment) {
        (store::error::Error::Compacted { .. }, Moment::Page(token)) => too_old(token),
        (err, _) => err.into(),
    })?;
    call.x.weight.add(kvs.iter().map(|kv| kv.value.len()).sum()).await;
    let (mut entries, mut n_bytes) = (Vec::with_capacity(kvs.len()), 0);
    for kv in &kvs {
        let local = std::str::from_utf8(&kv.key).ok().and_then(|key| key.strip_prefix(kind.prefix.as_str()));
        let entry = local.and_then(|local| Entry::build(local, &kv.value, kv.mod_revision.0, kind.form()).ok());
        entries.extend(entry.map(Arc::new));
        n_bytes += kv.value.len();
        if n_bytes > STEP_BYTES {
            n_bytes = 0;
            tokio::task::yield_now().await;
        }
    }
    Ok((entries, at, start))
}
