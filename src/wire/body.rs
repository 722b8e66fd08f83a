//! The one body type of requests and responses.

use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, StreamExt as _};
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Empty, Full, StreamBody};

/// Any error a body can end with: a broken connection, or whatever the producer of a stream reports.
pub type BodyError = Box<dyn std::error::Error + Send + Sync>;

/// A body of known or unknown length, read once.
pub type Body = UnsyncBoxBody<Bytes, BodyError>;

/// Why a body could not be read into memory.
#[derive(Debug, thiserror::Error)]
pub enum CollectError {
    /// It is longer than the caller allows.
    #[error("body is longer than {limit} bytes")]
    TooLong {
        /// The bound that was passed, in bytes.
        limit: usize,
    },
    /// The connection or the producer failed.
    #[error("body ended early")]
    Broken(#[source] BodyError),
    /// It did not come in the time that the caller allows.
    #[error("body did not come within {limit:?}")]
    TooSlow {
        /// The time that was passed.
        limit: Duration,
    },
}

/// A body that is there already.
pub fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

/// How long a body is, if that is known before it is read.
pub fn len(body: &Body) -> Option<u64> {
    http_body::Body::size_hint(body).exact()
}

/// A body without bytes.
pub fn empty() -> Body {
    Empty::new().map_err(|never| match never {}).boxed_unsync()
}

/// A body whose chunks come as they are made: each item becomes one frame and is flushed.
pub fn stream<S, E>(chunks: S) -> Body
where
    S: Stream<Item = Result<Bytes, E>> + Send + 'static,
    E: Into<BodyError> + 'static,
{
    StreamBody::new(chunks.map(|chunk| chunk.map(Frame::data).map_err(Into::into))).boxed_unsync()
}

/// Takes hyper's or anybody's body in.
pub fn from_http<B>(body: B) -> Body
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BodyError>,
{
    body.map_err(Into::into).boxed_unsync()
}

/// Reads the whole body, at most `limit` bytes.
///
/// Errors: `TooLong`, `Broken`. Cancel safety: what was read is lost.
pub async fn collect(mut body: Body, limit: usize) -> Result<Bytes, CollectError> {
    // By hand: the compiler cannot prove http_body_util's Limited to be Send in its callers.
    let (mut first, mut all) = (Bytes::new(), Vec::new());
    while let Some(frame) = body.frame().await {
        let Ok(bytes) = frame.map_err(CollectError::Broken)?.into_data() else { continue };
        if first.len() + all.len() + bytes.len() > limit {
            return Err(CollectError::TooLong { limit });
        }
        // A body in one piece, as most are, is not copied.
        if first.is_empty() && all.is_empty() {
            first = bytes;
            continue;
        }
        if all.is_empty() {
            all.extend_from_slice(&std::mem::take(&mut first));
        }
        all.extend_from_slice(&bytes);
    }
    Ok(if all.is_empty() { first } else { all.into() })
}

/// The same for bodies that strangers send: they come within `within`, or not at all.
pub async fn collect_within(body: Body, limit: usize, within: Duration) -> Result<Bytes, CollectError> {
    tokio::time::timeout(within, collect(body, limit)).await.unwrap_or(Err(CollectError::TooSlow { limit: within }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_body_over_the_limit_is_told_apart_from_a_broken_one() {
        assert_eq!(collect(full("abc"), 3).await.unwrap(), "abc");
        assert!(matches!(collect(full("abcd"), 3).await, Err(CollectError::TooLong { limit: 3 })));
        let broken = stream(futures_util::stream::iter([Err::<Bytes, _>(std::io::Error::other("gone"))]));
        assert!(matches!(collect(broken, 3).await, Err(CollectError::Broken(_))));
    }

    #[tokio::test]
    async fn a_body_that_never_comes_is_waited_for_no_longer_than_said() {
        let silent = stream(futures_util::stream::pending::<Result<Bytes, std::io::Error>>());
        let waited = collect_within(silent, 3, Duration::from_millis(20)).await;
        assert!(matches!(waited, Err(CollectError::TooSlow { .. })));
    }
}
