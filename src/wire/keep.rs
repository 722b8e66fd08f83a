//! Connections that are kept for the next request: short questions to the same server pay one TLS handshake, not one
//! each.

use std::collections::HashMap;
use std::time::Duration;

use base::sync::Mutex;
use base::task::Group;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{Request, Response};
use hyper::client::conn::http1::SendRequest;
use tokio::time::Instant;

use crate::body::{self, Body, CollectError};
use crate::dial::{self, DialError, Stream};

/// An unused connection is closed after this, as Go's `IdleConnTimeout`.
const IDLE_MAX: Duration = Duration::from_secs(90);
/// Unused connections to one server; more are closed.
const IDLE_PER_KEY: usize = 4;

/// Why no answer came.
#[derive(Debug, thiserror::Error)]
pub enum ExchangeError {
    /// The server cannot be reached, or broke off.
    #[error(transparent)]
    Dial(#[from] DialError),
    /// Its answer is too long or ended early.
    #[error("cannot read the answer")]
    Answer(#[source] CollectError),
}

struct Idle {
    sender: SendRequest<Body>,
    since: Instant,
}

/// Open connections by whatever tells servers apart.
pub struct Kept {
    idle: Mutex<HashMap<String, Vec<Idle>>>,
    group: Group,
}

impl Kept {
    /// Connections live in `group`.
    pub fn new(group: &Group) -> Kept {
        Kept { idle: Mutex::default(), group: group.clone() }
    }

    /// Sends a request and reads the whole answer, of at most `limit` bytes. A kept connection that the server has
    /// closed meanwhile is replaced by a new one from `open`,
    /// which is not polled otherwise.
    pub async fn exchange(
        &self,
        key: &str,
        open: BoxFuture<'_, Result<Box<dyn Stream>, DialError>>,
        request: &Request<Bytes>,
        limit: usize,
    ) -> Result<Response<Bytes>, ExchangeError> {
        while let Some(mut sender) = self.take(key) {
            // A connection that broke before it was used tells nothing about the server.
            if sender.ready().await.is_ok()
                && let Ok(answer) = sender.send_request(copy(request)).await
            {
                return self.finish(key, sender, answer.map(body::from_http), limit).await;
            }
        }
        let mut sender = dial::start(open.await?, key, &self.group).await?;
        let answer = sender
            .send_request(copy(request))
            .await
            .map_err(|source| DialError::Request { to: key.to_owned(), source })?;
        self.finish(key, sender, answer.map(body::from_http), limit).await
    }

    async fn finish(
        &self,
        key: &str,
        sender: SendRequest<Body>,
        answer: Response<Body>,
        limit: usize,
    ) -> Result<Response<Bytes>, ExchangeError> {
        let (parts, body) = answer.into_parts();
        let bytes = body::collect(body, limit).await.map_err(ExchangeError::Answer)?;
        if !sender.is_closed() {
            let mut idle = self.idle.lock();
            let list = idle.entry(key.to_owned()).or_default();
            if list.len() < IDLE_PER_KEY {
                list.push(Idle { sender, since: Instant::now() });
            }
        }
        Ok(Response::from_parts(parts, bytes))
    }

    fn take(&self, key: &str) -> Option<SendRequest<Body>> {
        let mut idle = self.idle.lock();
        idle.retain(|_, list| {
            list.retain(|one| one.since.elapsed() < IDLE_MAX && !one.sender.is_closed());
            !list.is_empty()
        });
        idle.get_mut(key)?.pop().map(|one| one.sender)
    }
}

fn copy(request: &Request<Bytes>) -> Request<Body> {
    request.clone().map(|bytes| body::full(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    /// Answers `n` requests on one connection, then closes it.
    fn server(n: usize, group: &Group) -> Box<dyn Stream> {
        let (ours, theirs) = tokio::io::duplex(4096);
        group.spawn_short("server", async move {
            let mut end = theirs;
            let mut buffer = [0; 4096];
            for _ in 0..n {
                if end.read(&mut buffer).await.unwrap_or(0) == 0 {
                    return;
                }
                let _sent = end.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await;
            }
        });
        Box::new(ours)
    }

    #[tokio::test]
    async fn one_connection_serves_until_the_server_closes_it() {
        let (group, _fatal) = Group::root("test");
        let kept = Kept::new(&group);
        let mut opened = 0;
        let request = Request::builder().uri("/").header("host", "x").body(Bytes::from_static(b"q")).unwrap();
        for _ in 0..4 {
            let open = async {
                opened += 1;
                Ok(server(2, &group))
            };
            let answer = kept.exchange("x", Box::pin(open), &request, 10).await.unwrap();
            assert_eq!(answer.body(), "ok");
            tokio::task::yield_now().await;
        }
        assert_eq!(opened, 2);
    }
}
