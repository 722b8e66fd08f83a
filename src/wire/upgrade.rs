//! Taking a connection over after `101 Switching Protocols`, on both sides, and copying two of them into each other.

use std::io;

use http::header::{CONNECTION, UPGRADE};
use http::{HeaderMap, HeaderName, StatusCode};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::body::{self, Body};

/// The protocol a client asks to change to, lower case: `websocket`, `spdy/3.1`. `None` for a plain request.
pub fn requested(headers: &HeaderMap) -> Option<String> {
    let asks = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|v| v.to_str().ok())
        .any(|v| v.split(',').any(|token| token.trim().eq_ignore_ascii_case("upgrade")));
    let to = headers.get(UPGRADE)?.to_str().ok()?;
    asks.then(|| to.to_ascii_lowercase())
}

/// Takes the connection of a request or response; resolves once the 101 went over the wire.
pub fn take<B>(message: &mut http::Request<B>) -> OnUpgrade {
    hyper::upgrade::on(message)
}

/// Takes the connection behind an answer with status 101.
pub fn take_answer(message: &mut http::Response<Body>) -> OnUpgrade {
    hyper::upgrade::on(message)
}

/// Waits for the upgraded connection as a byte stream.
pub async fn stream(upgrade: OnUpgrade) -> io::Result<impl AsyncRead + AsyncWrite + Unpin + Send + 'static> {
    upgrade.await.map(TokioIo::new).map_err(io::Error::other)
}

/// The answer that agrees to change the protocol to `to`, with further headers.
pub fn switching(to: &str, headers: &[(HeaderName, String)]) -> http::Response<Body> {
    let mut answer = http::Response::builder()
        .status(StatusCode::SWITCHING_PROTOCOLS)
        .header(CONNECTION, "Upgrade")
        .header(UPGRADE, to);
    for (name, value) in headers {
        answer = answer.header(name, value);
    }
    // An invalid header value is the caller's bug; a client sees a 500 then.
    answer.body(body::empty()).unwrap_or_else(|_| {
        let mut broken = http::Response::new(body::empty());
        *broken.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
        broken
    })
}

/// Copies bytes both ways until both directions are done, or one fails.
pub async fn splice(
    mut a: impl AsyncRead + AsyncWrite + Unpin,
    mut b: impl AsyncRead + AsyncWrite + Unpin,
) -> io::Result<()> {
    tokio::io::copy_bidirectional(&mut a, &mut b).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_upgrade_needs_both_headers() {
        let mut headers = HeaderMap::new();
        headers.insert(UPGRADE, "SPDY/3.1".parse().unwrap());
        assert_eq!(requested(&headers), None);
        headers.insert(CONNECTION, "keep-alive, Upgrade".parse().unwrap());
        assert_eq!(requested(&headers).as_deref(), Some("spdy/3.1"));
    }
}
