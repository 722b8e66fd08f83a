//! `watch`: every change from some moment on, as a stream of frames.

use std::sync::Arc;
use std::time::Duration;

use base::limits::WATCH_HISTORY_BYTES_MAX;
use bytes::Bytes;
use futures_util::StreamExt as _;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Request, Response};
use registry::cache::Kind;
use registry::cache::change::{Change, Framing};
use registry::cache::entry::Entry;
use registry::cache::filter::Filter;
use registry::cache::kind::Delivery;
use registry::cache::stream::{Options, error_frame, frames};
use registry::keys;
use registry::negotiate::{Format, Transform};
use registry::selection::Selection;
use registry::status::Status;
use schema::fields::FieldSelector;
use schema::validate::error::FieldError;
use store::{EventKind, Revision, WatchRequest};
use tokio::sync::Semaphore;
use tokio::time::Instant;
use wire::{Body, upgrade, websocket};

use super::list::{self, parse_version};
use super::{Call, present, shape};
use crate::held;

/// No watch lasts longer, whatever its client asks for.
const LASTS_MAX: Duration = Duration::from_secs(365 * 24 * 3600);

/// Answers with the stream.
pub async fn run(call: &mut Call<'_, '_>) -> Result<Response<Body>, Status> {
    let framing = framing(call)?;
    let kind = call.x.server.objects.cache.kind(call.stored.group_resource());
    let mut filter = list::filter(&call.resource, &kind, call.namespace(), &call.x.query)?;
    let name = &call.x.attributes.name;
    if !name.is_empty() {
        filter.fields = only(name, filter.fields)?;
    }
    let selection = Selection::split(&mut filter, &call.x.server.objects, &call.stored, &call.resource);
    let filter = Arc::new(filter);
    let query = &call.x.query;
    list::numbers(query)?;
    let rv = parse_version(query.text("resourceVersion"))?;
    let bookmarks = query.flag("allowWatchBookmarks");
    let initial_list = query.get("sendInitialEvents").map(|_| query.flag("sendInitialEvents"));
    check_initial(query.text("resourceVersionMatch"), initial_list, bookmarks)?;
    let cache = Arc::clone(&call.x.server.objects.cache);
    let kind = cache.ready(call.stored.group_resource()).await?;
    if rv.is_none() {
        cache.wait_for_now().await?;
    } else if let Some(n) = rv.filter(|n| *n > cache.seen())
        && !cache.wait_for(n).await
    {
        return Err(Status::future(n, cache.seen()));
    }
    let from_now = matches!(rv, None | Some(0)) || initial_list == Some(true);
    let skip_state = initial_list == Some(false) && matches!(rv, None | Some(0));
    let mut initial_end = None;
    let (initial, past, live) = if from_now {
        let seen = cache.seen();
        let (now, live) = kind.watch_from_now(&filter);
        let now = now.whole()?;
        initial_end = (initial_list == Some(true)).then_some(seen.max(now.newest));
        (if skip_state { Vec::new() } else { now.items }, Vec::new(), live)
    } else {
        let rv = rv.unwrap_or_default();
        match resume(call, &kind, rv, &filter).await? {
            Ok((past, live)) => (Vec::new(), past, live),
            Err(status) => {
                let frame = Ok::<_, std::convert::Infallible>(error_frame(&status, framing));
                return Ok(stream_of(framing, futures_util::stream::iter([frame])));
            }
        }
    };
    let first = initial.iter().map(|entry| entry.json.len()).chain(past.iter().map(|(_, change)| change.cost())).sum();
    held::count(call.x, first)?;
    let (api_version, kind) = shown_kind(call);
    let options = Options {
        api_version,
        kind,
        bookmarks,
        bookmark_rows: call.output.transform == Transform::Table,
        initial_end,
        deadline: deadline(call),
        convert: present::watch_converter(call),
        selection,
        encode: present::watch_encoder(call),
        hold: call.x.held.clone(),
        framing,
    };
    let gauge = call.x.server.metrics.watch(call.x.series(true));
    let stream = frames(cache, initial, past, live, options).inspect(move |_| {
        let _alive_as_long_as_the_stream = &gauge;
    });
    if upgrade::requested(&call.x.parts.headers).as_deref() == Some("websocket") {
        return Ok(over_websocket(call, framing, stream));
    }
    Ok(stream_of(framing, stream))
}

/// The selector of a watch of one object: what was authorized is that name, so a selector that does not demand it is
/// refused.
fn only(name: &str, asked: FieldSelector) -> Result<FieldSelector, Status> {
    if asked.is_empty() {
        return Ok(FieldSelector::one("metadata.name", name));
    }
    match asked.exact("metadata.name") == Some(name) {
        true => Ok(asked),
        false => Err(Status::bad_request("fieldSelector metadata.name doesn't match requested name")),
    }
}

fn framing(call: &Call<'_, '_>) -> Result<Framing, Status> {
    match call.output.format {
        Format::Json => Ok(Framing::Lines),
        Format::Protobuf => Ok(Framing::Protobuf),
        Format::Yaml => {
            Err(Status::not_acceptable("application/json, application/vnd.kubernetes.protobuf;stream=watch"))
        }
    }
}

/// Version and kind of the events' objects: bookmarks have them, too. A row of a Table is made of a stored object.
fn shown_kind(call: &Call<'_, '_>) -> (String, String) {
    match call.output.transform {
        Transform::Table => (call.stored.api_version(), call.stored.kind.to_string()),
        Transform::Metadata => (shape::meta_version(call.output).to_owned(), "PartialObjectMetadata".to_owned()),
        Transform::Object => (call.resource.api_version(), call.resource.kind.to_string()),
    }
}

/// A reader that does not take an event within this loses its watch, as on other connections.
const WEBSOCKET_SEND_TIMEOUT: Duration = Duration::from_secs(60);

/// The same events as messages of a WebSocket: text for JSON, binary for protobuf.
fn over_websocket<S>(call: &mut Call<'_, '_>, framing: Framing, frames: S) -> Response<Body>
where
    S: futures_util::Stream<Item = Result<Bytes, std::convert::Infallible>> + Send + 'static,
{
    let parts = std::mem::replace(&mut call.x.parts, Request::new(()).into_parts().0);
    let mut request = Request::from_parts(parts, ());
    let client = upgrade::take(&mut request);
    call.x.parts = request.into_parts().0;
    let answer = websocket::accept(&call.x.parts.headers, None);
    call.x.server.group.spawn_short("websocket-watch", async move {
        let run = async {
            let (mut sender, mut receiver) = websocket::serve(upgrade::stream(client).await?).await;
            let mut frames = std::pin::pin!(frames);
            loop {
                tokio::select! {
                    frame = frames.next() => {
                        let Some(Ok(bytes)) = frame else { return sender.close().await };
                        let sent = async {
                            if framing == Framing::Protobuf {
                                return sender.binary(bytes).await;
                            }
                            for line in bytes.split(|b| *b == b'\n').filter(|line| !line.is_empty()) {
                                sender.text(String::from_utf8_lossy(line).into_owned()).await?;
                            }
                            Ok(())
                        };
                        tokio::time::timeout(WEBSOCKET_SEND_TIMEOUT, sent).await??;
                    }
                    // Cancel safe: a message is returned or still to come. What the client says means nothing, its end
                    // does.
                    message = receiver.next() => if message?.is_none() { return Ok(()) },
                }
            }
        };
        let ended: std::io::Result<()> = run.await;
        if let Err(err) = ended {
            tracing::debug!(err = %base::chain::Chain(&err), "websocket watch ended");
        }
    });
    answer
}

fn check_initial(how: &str, initial_list: Option<bool>, bookmarks: bool) -> Result<(), Status> {
    let forbidden = |field: &str, text: &str| Err(Status::options("ListOptions", FieldError::forbidden(field, text)));
    match initial_list {
        Some(_) if how != "NotOlderThan" => {
            forbidden("resourceVersionMatch", "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan")
        }
        Some(true) if !bookmarks => {
            forbidden("sendInitialEvents", "sendInitialEvents requires setting allowWatchBookmarks to true")
        }
        None if !how.is_empty() => forbidden(
            "resourceVersionMatch",
            "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
        ),
        _ => Ok(()),
    }
}

fn deadline(call: &Call<'_, '_>) -> Instant {
    let asked = call.x.query.number("timeoutSeconds").and_then(|s| u64::try_from(s).ok()).filter(|s| *s > 0);
    // Without one they end after `--min-request-timeout` and up to as much again, as upstream.
    let config = &call.x.server.config;
    let lasts = asked.map_or_else(|| config.rng.jitter(config.arguments.min_request_timeout, 100), Duration::from_secs);
    ends_after(lasts)
}

/// A client may ask for more seconds than there are.
fn ends_after(lasts: Duration) -> Instant {
    Instant::now() + lasts.min(LASTS_MAX)
}

fn stream_of<S, E>(framing: Framing, frames: S) -> Response<Body>
where
    S: futures_util::Stream<Item = Result<Bytes, E>> + Send + 'static,
    E: Into<wire::body::BodyError> + 'static,
{
    let mut response = Response::new(wire::body::stream(frames));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(framing.content_type()));
    response
}

/// Watches that read the store's history at once; each holds as much of it as one may get.
static HISTORIES: Semaphore = Semaphore::const_new(2);

type Resumed = (Vec<Delivery>, tokio::sync::mpsc::Receiver<Delivery>);

/// Every change after `rv`: from the cache's memory, or, if that does not reach so far back, from the store's history.
/// The inner error goes to the client as the stream's only frame.
async fn resume(
    call: &Call<'_, '_>,
    kind: &Kind,
    rv: u64,
    filter: &Arc<Filter>,
) -> Result<Result<Resumed, Status>, Status> {
    if let Some(resumed) = kind.watch_after(rv, filter) {
        return Ok(Ok(resumed));
    }
    let _turn = HISTORIES.acquire().await.map_err(Status::internal)?;
    let prefix = kind.prefix.as_bytes();
    let request = WatchRequest {
        key: Bytes::copy_from_slice(prefix),
        range_end: store::prefix_end(prefix),
        start: Revision(rv + 1),
        prev_kv: true,
    };
    let mut history = match call.x.server.objects.cache.storage().watch(request).await {
        Ok(history) => history,
        Err(store::error::Error::Compacted { floor, .. }) => return Ok(Err(Status::too_old(rv, floor.0))),
        Err(err) => return Err(err.into()),
    };
    // Read history until the memory's beginning, then go on from memory: the two overlap in no event.
    // An empty history would never say a word without being asked.
    call.x.server.objects.cache.storage().progress().await?;
    let mut past = Vec::new();
    let (mut reached, mut n_bytes) = (rv, 0);
    loop {
        if let Some((rest, live)) = kind.watch_after(reached, filter) {
            past.extend(rest);
            return Ok(Ok((past, live)));
        }
        let batch = history.next().await?;
        for event in batch.events.iter() {
            let entry = |kv: &store::KeyValue| {
                let local = std::str::from_utf8(&kv.key).ok()?.strip_prefix(kind.prefix.as_str())?;
                if filter.namespace.as_deref().is_some_and(|ns| ns != keys::split_local(local).0) {
                    return None;
                }
                Entry::build(local, &kv.value, kv.mod_revision.0, kind.form()).ok().map(Arc::new)
            };
            let after = if event.kind == EventKind::Put { entry(&event.kv) } else { None };
            let change = Arc::new(Change::new(event.kv.mod_revision.0, event.prev.as_ref().and_then(entry), after));
            let Some(what) = change.seen_through(filter) else { continue };
            n_bytes += change.cost();
            past.push((what, change));
        }
        if n_bytes > WATCH_HISTORY_BYTES_MAX {
            return Ok(Err(Status::too_old(rv, batch.revision.0)));
        }
        reached = reached.max(batch.revision.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // security-3 F15: the sum panicked.
    #[test]
    fn a_watch_may_be_asked_for_as_many_seconds_as_there_are() {
        let asked = base::url::Query::parse("timeoutSeconds=9223372036854775807").number("timeoutSeconds").unwrap();
        for secs in [u64::try_from(asked).unwrap(), u64::MAX] {
            assert!(ends_after(Duration::from_secs(secs)) > Instant::now());
        }
    }

    #[test]
    fn a_watch_that_begins_with_a_list_says_so_in_full() {
        for (how, initial_list, bookmarks, expected) in [
            ("", None, false, ""),
            ("NotOlderThan", Some(true), true, ""),
            ("NotOlderThan", Some(false), false, ""),
            (
                "",
                Some(true),
                true,
                "resourceVersionMatch: Forbidden: sendInitialEvents requires setting resourceVersionMatch to \
                 NotOlderThan",
            ),
            (
                "Exact",
                Some(false),
                true,
                "resourceVersionMatch: Forbidden: sendInitialEvents requires setting resourceVersionMatch to \
                 NotOlderThan",
            ),
            (
                "NotOlderThan",
                Some(true),
                false,
                "sendInitialEvents: Forbidden: sendInitialEvents requires setting allowWatchBookmarks to true",
            ),
            (
                "Exact",
                None,
                true,
                "resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden for watch unless \
                 sendInitialEvents is \
                 provided",
            ),
        ] {
            let told = check_initial(how, initial_list, bookmarks).err().map(|status| status.message.clone());
            let whole = format!("ListOptions.meta.k8s.io \"\" is invalid: {expected}");
            assert_eq!(told, (!expected.is_empty()).then_some(whole), "{how} {initial_list:?}");
        }
    }
}
