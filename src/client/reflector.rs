//! One watch, kept alive for ever: the state first (a streaming list, KEP-3157), then every change, over any number of
//! connections.
//!
//! Nothing here knows a type; a [`Sink`] takes each object as the JSON that came, so that a kind costs one decoder and
//! no more.

use std::borrow::Cow;
use std::time::Duration;

use base::backoff::Backoff;
use base::chain::Chain;
use base::rng::Rng;
use base::url;
use bytes::{Buf as _, BytesMut};
use http::{Request, StatusCode};
use http_body_util::BodyExt as _;
use kube::client::Body;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::time::Instant;
use tracing::{debug, info, warn};

use crate::outage::Outage;

/// A watch is asked to end after this and up to as much again: a connection that died in silence is noticed then, at
/// last.
const WATCH_SECONDS: u64 = 240;
/// A server that does not end the watch in time is dead.
const OVERDUE: Duration = Duration::from_secs(15);
/// A stream that ends sooner counts as a failure.
const SHORT: Duration = Duration::from_secs(1);
const RETRY_FIRST: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(15);
/// An object may have 1.5 MiB (etcd's limit for a request), a frame a little more; what is longer is not a frame.
const FRAME_MAX: usize = 16 << 20;
/// Of an answer that is an error.
const ERROR_BODY_MAX: usize = 64 << 10;

/// Of this process's watches.
static OUTAGE: Outage = Outage::none();

/// A keeper of what the watch brings.
pub trait Sink: Send + Sync {
    /// A new list begins; objects until [`Sink::listed`] belong to it.
    fn begin(&self);
    /// An object of the list, new or changed. Gives its resourceVersion.
    fn applied(&self, json: &str) -> Result<Option<String>, serde_json::Error>;
    /// An object that is gone. Gives the resourceVersion of its end.
    fn deleted(&self, json: &str) -> Result<Option<String>, serde_json::Error>;
    /// The list is whole.
    fn listed(&self);
}

/// The resource to watch.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    /// Plural name, for messages.
    pub(crate) kind: String,
    /// Path of the collection, e.g. `/api/v1/pods`.
    pub(crate) path: String,
    /// Field selector, may be empty.
    pub(crate) fields: String,
    /// Ask for `PartialObjectMetadata` only.
    pub(crate) metadata: bool,
}

#[derive(Debug, thiserror::Error)]
enum WatchError {
    #[error("cannot reach the API server")]
    Unreachable(#[source] kube::Error),
    #[error("the API server answered {code}: {message}")]
    Refused { code: StatusCode, message: String },
    #[error("the stream broke")]
    Broken(#[source] kube::Error),
    #[error("the stream is silent since long")]
    Silent,
    #[error("a frame of more than {FRAME_MAX} bytes")]
    TooLong,
    #[error("a frame that is none")]
    Frame(#[from] serde_json::Error),
    #[error("the server's memory does not reach back so far")]
    Expired,
    #[error("the stream ended at once")]
    Short,
}

/// Follows the source until the task is dropped.
pub(crate) async fn follow(client: kube::Client, source: Source, sink: std::sync::Arc<dyn Sink>, rng: Rng) {
    let mut backoff = Backoff::new(RETRY_FIRST, RETRY_MAX);
    let mut since = None;
    loop {
        let began = Instant::now();
        let outcome = connection(&client, &source, &*sink, &rng, &mut since).await;
        let outcome = outcome.and_then(|()| if began.elapsed() < SHORT { Err(WatchError::Short) } else { Ok(()) });
        match outcome {
            Ok(()) => {
                backoff.reset();
                continue;
            }
            // Its list is asked for anew; that is no failure but when it happens again and again.
            Err(WatchError::Expired) => since = None,
            Err(err @ (WatchError::Unreachable(_) | WatchError::Broken(_))) => {
                if OUTAGE.broke(Instant::now()) {
                    warn!(kind = source.kind, err = %Chain(&err), "watches of the API server broke off, trying again");
                } else {
                    debug!(kind = source.kind, err = %Chain(&err), "watch failed, trying again");
                }
            }
            Err(err) => warn!(kind = source.kind, err = %Chain(&err), "watch failed, trying again"),
        }
        if began.elapsed() > RETRY_MAX {
            backoff.reset();
        }
        tokio::time::sleep(backoff.next(&rng)).await;
    }
}

/// One connection, from `since` on, or from a list if there is none. `since` follows what was seen.
async fn connection(
    client: &kube::Client,
    source: &Source,
    sink: &dyn Sink,
    rng: &Rng,
    since: &mut Option<String>,
) -> Result<(), WatchError> {
    let lasts = rng.jitter(Duration::from_secs(WATCH_SECONDS), 100);
    let deadline = Instant::now() + lasts + OVERDUE;
    let mut response = client.send(request(source, since.as_deref(), lasts)).await.map_err(WatchError::Unreachable)?;
    if response.status() == StatusCode::GONE {
        return Err(WatchError::Expired);
    }
    if !response.status().is_success() {
        let code = response.status();
        return Err(WatchError::Refused { code, message: error_message(response.into_body()).await });
    }
    if OUTAGE.over() {
        info!("watches of the API server go on");
    }
    if since.is_none() {
        sink.begin();
    }
    let mut listing = since.is_none();
    let mut buffer = BytesMut::new();
    loop {
        let Ok(frame) = tokio::time::timeout_at(deadline, response.body_mut().frame()).await else {
            return Err(WatchError::Silent);
        };
        let Some(frame) = frame else { return Ok(()) };
        let Ok(data) = frame.map_err(WatchError::Broken)?.into_data() else { continue };
        // Most frames hold whole lines: these are read where they lie.
        let mut rest = &data[..];
        if !buffer.is_empty() {
            let end = rest.iter().position(|b| *b == b'\n').map_or(rest.len(), |at| at + 1);
            buffer.extend_from_slice(&rest[..end]);
            rest.advance(end);
            if buffer.last() == Some(&b'\n') {
                take(&buffer, source, sink, since, &mut listing)?;
                buffer.clear();
            }
        }
        while let Some(at) = rest.iter().position(|b| *b == b'\n') {
            take(&rest[..at], source, sink, since, &mut listing)?;
            rest.advance(at + 1);
        }
        buffer.extend_from_slice(rest);
        if buffer.len() > FRAME_MAX {
            return Err(WatchError::TooLong);
        }
    }
}

#[derive(Deserialize)]
struct Frame<'f> {
    #[serde(rename = "type", borrow)]
    event: Cow<'f, str>,
    #[serde(borrow)]
    object: &'f RawValue,
}

/// Contents of a BOOKMARK and of an ERROR.
#[derive(Deserialize)]
struct Mark {
    #[serde(default)]
    metadata: MarkMeta,
    code: Option<u16>,
    message: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct MarkMeta {
    resource_version: Option<String>,
    #[serde(default)]
    annotations: std::collections::BTreeMap<String, String>,
}

/// One line.
fn take(
    line: &[u8],
    source: &Source,
    sink: &dyn Sink,
    since: &mut Option<String>,
    listing: &mut bool,
) -> Result<(), WatchError> {
    let frame: Frame<'_> = serde_json::from_slice(line)?;
    let object = frame.object.get();
    let seen = match &*frame.event {
        "ADDED" | "MODIFIED" => sink.applied(object),
        "DELETED" => sink.deleted(object),
        "BOOKMARK" => {
            let mark: Mark = serde_json::from_str(object)?;
            if *listing && mark.metadata.annotations.contains_key("k8s.io/initial-events-end") {
                *listing = false;
                sink.listed();
            }
            Ok(mark.metadata.resource_version)
        }
        _ => {
            let status: Mark = serde_json::from_str(object)?;
            return match status.code.and_then(|code| StatusCode::from_u16(code).ok()) {
                Some(StatusCode::GONE) => Err(WatchError::Expired),
                code => Err(WatchError::Refused {
                    code: code.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR),
                    message: status.message.unwrap_or_default(),
                }),
            };
        }
    };
    match seen {
        // Until the list is whole there is no point to go on from.
        Ok(Some(version)) if !*listing => *since = Some(version),
        Ok(_) => {}
        // The object is of a shape that its type does not know; the others are still to be followed.
        Err(err) => warn!(kind = source.kind, err = %Chain(&err), "an object cannot be read and is left out"),
    }
    Ok(())
}

fn request(source: &Source, since: Option<&str>, lasts: Duration) -> Request<Body> {
    let mut uri = format!("{}?watch=true&allowWatchBookmarks=true&timeoutSeconds={}", source.path, lasts.as_secs());
    match since {
        Some(version) => uri.push_str(&format!("&resourceVersion={version}")),
        None => uri.push_str("&sendInitialEvents=true&resourceVersionMatch=NotOlderThan"),
    }
    if !source.fields.is_empty() {
        uri.push_str(&format!("&fieldSelector={}", url::encode(&source.fields, url::COMPONENT)));
    }
    let mut request = Request::new(Body::empty());
    // A path out of the table of kinds always parses; should one not, the server's 404 names it.
    *request.uri_mut() = uri.parse().unwrap_or_default();
    if source.metadata {
        let accept = http::HeaderValue::from_static(
            "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json",
        );
        request.headers_mut().insert(http::header::ACCEPT, accept);
    }
    request
}

async fn error_message(body: Body) -> String {
    let Ok(collected) = http_body_util::Limited::new(body, ERROR_BODY_MAX).collect().await else {
        return String::new();
    };
    let bytes = collected.to_bytes();
    match serde_json::from_slice::<Mark>(&bytes) {
        Ok(Mark { message: Some(message), .. }) => message,
        _ => String::from_utf8_lossy(&bytes).trim().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::sync::Mutex;

    #[derive(Default)]
    struct Told(Mutex<Vec<String>>);

    impl Told {
        fn tell(&self, text: String) {
            self.0.lock().push(text);
        }
    }

    impl Sink for Told {
        fn begin(&self) {
            self.tell("begin".to_owned());
        }
        fn applied(&self, json: &str) -> Result<Option<String>, serde_json::Error> {
            let mark: Mark = serde_json::from_str(json)?;
            self.tell("applied".to_owned());
            Ok(mark.metadata.resource_version)
        }
        fn deleted(&self, _: &str) -> Result<Option<String>, serde_json::Error> {
            self.tell("deleted".to_owned());
            Ok(Some("9".to_owned()))
        }
        fn listed(&self) {
            self.tell("listed".to_owned());
        }
    }

    fn client(chunks: &'static [&'static str]) -> kube::Client {
        kube::Client::new(
            tower::service_fn(move |_: Request<Body>| async move {
                let chunks = chunks.iter().map(|chunk| {
                    Ok::<_, std::io::Error>(http_body::Frame::data(bytes::Bytes::from_static(chunk.as_bytes())))
                });
                Ok::<_, std::io::Error>(http::Response::new(http_body_util::StreamBody::new(
                    futures_util::stream::iter(chunks),
                )))
            }),
            "default",
        )
    }

    async fn tell(
        chunks: &'static [&'static str],
        since: &mut Option<String>,
    ) -> (Vec<String>, Result<(), WatchError>) {
        let source =
            Source { kind: "pods".into(), path: "/api/v1/pods".into(), fields: String::new(), metadata: false };
        let told = Told::default();
        let outcome = connection(&client(chunks), &source, &told, &Rng::from_seed(1), since).await;
        (told.0.into_inner(), outcome)
    }

    const ADDED: &str = "{\"type\":\"ADDED\",\"object\":{\"metadata\":{\"resourceVersion\":\"5\"}}}\n";
    const LISTED: &str = concat!(
        r#"{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"7","#,
        r#""annotations":{"k8s.io/initial-events-end":"true"}}}}"#,
        "\n"
    );

    #[tokio::test]
    async fn a_list_is_whole_at_its_bookmark_and_the_watch_goes_on_from_there() {
        let mut since = None;
        let (told, outcome) = tell(&[ADDED, LISTED], &mut since).await;
        assert_eq!(told, ["begin", "applied", "listed"]);
        assert!(outcome.is_ok());
        assert_eq!(since.as_deref(), Some("7"));
    }

    #[tokio::test]
    async fn a_list_that_breaks_off_is_begun_again() {
        let mut since = None;
        tell(&[ADDED], &mut since).await.1.unwrap();
        assert_eq!(since, None);
    }

    #[tokio::test]
    async fn frames_may_be_cut_anywhere() {
        let mut since = Some("1".to_owned());
        let cut = &[
            "{\"type\":\"ADD",
            "ED\",\"object\":{\"metadata\":{\"resourceVersion\":\"5\"}}}",
            "\n{\"type\":\"DELETED\",\"object\":{}}\n{\"type\"",
            ":\"MODIFIED\",\"object\":{}}\n",
        ];
        let (told, outcome) = tell(cut, &mut since).await;
        assert_eq!(told, ["applied", "deleted", "applied"]);
        assert!(outcome.is_ok());
        assert_eq!(since.as_deref(), Some("9"));
    }

    #[tokio::test]
    async fn an_expired_watch_says_so() {
        let mut since = Some("1".to_owned());
        let (_, outcome) =
            tell(&["{\"type\":\"ERROR\",\"object\":{\"kind\":\"Status\",\"code\":410}}\n"], &mut since).await;
        assert!(matches!(outcome, Err(WatchError::Expired)), "{outcome:?}");
    }
}
