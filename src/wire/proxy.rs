//! Passing a request on to another server, its upgrade included: what comes back goes to the client as it is.

use std::io;
use std::sync::Arc;

use base::chain::Chain;
use base::task::Group;
use http::header::{
    AUTHORIZATION, CONNECTION, COOKIE, HOST, PROXY_AUTHORIZATION, SEC_WEBSOCKET_PROTOCOL, TRANSFER_ENCODING, UPGRADE,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri};
use tracing::debug;

use crate::body::{self, Body};
use crate::dial::{self, Dial, DialError, Stream};
use crate::upgrade;

/// A server to pass a request to.
#[derive(Clone)]
pub struct Target {
    /// Host name or address.
    pub host: String,
    /// TCP port.
    pub port: u16,
    /// TLS to speak; `None` is plain HTTP.
    pub tls: Option<Arc<rustls::ClientConfig>>,
    /// Name that its certificate must show, when that is another than `host`.
    pub server_name: Option<String>,
    /// The way to it when that is not this machine's network.
    pub via: Option<Arc<dyn Dial>>,
}

impl Target {
    fn authority(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }

    async fn connect(&self) -> Result<Box<dyn Stream>, DialError> {
        let name = self.server_name.as_deref().unwrap_or(&self.host);
        match &self.via {
            Some(via) => dial::through(via.as_ref(), &self.host, self.port, name, self.tls.clone()).await,
            None => dial::tcp(&self.host, self.port, name, self.tls.clone()).await,
        }
    }
}

/// Browsers put a bearer token among the protocols of a WebSocket, as they can set no other header.
const TOKEN_PROTOCOL: &str = "base64url.bearer.authorization.k8s.io.";

/// Takes bearer tokens out of the protocols that a client offers; the others stay.
fn strip_tokens(headers: &mut HeaderMap) {
    let http::header::Entry::Occupied(offered) = headers.entry(SEC_WEBSOCKET_PROTOCOL) else { return };
    let (_, values) = offered.remove_entry_mult();
    // What is no text holds no protocol that anybody could mean.
    let texts: Vec<String> = values.filter_map(|value| value.to_str().ok().map(str::to_owned)).collect();
    let names = texts.iter().flat_map(|text| text.split(',')).map(str::trim);
    let kept: Vec<&str> = names.filter(|name| !name.is_empty() && !name.starts_with(TOKEN_PROTOCOL)).collect();
    if let (false, Ok(value)) = (kept.is_empty(), HeaderValue::from_str(&kept.join(", "))) {
        headers.insert(SEC_WEBSOCKET_PROTOCOL, value);
    }
}

/// Proofs of who the caller is, and claims that only this server may make: the one list of what never leaves it. Tokens
/// among the protocols of a WebSocket belong to it, too ([`strip_tokens`]).
const CREDENTIALS: [HeaderName; 3] = [AUTHORIZATION, PROXY_AUTHORIZATION, COOKIE];
/// The same by the beginnings of their names.
const CREDENTIALS_BEGIN: [&str; 2] = ["impersonate-", "x-remote-"];

/// Takes off credentials, and headers that concern one connection only (RFC 9110, 7.6.1).
fn strip(headers: &mut HeaderMap) {
    strip_tokens(headers);
    let secret = |name: &&HeaderName| CREDENTIALS_BEGIN.iter().any(|begin| name.as_str().starts_with(begin));
    let unwanted: Vec<HeaderName> = headers.keys().filter(secret).cloned().collect();
    let hop = ["keep-alive", "proxy-authenticate", "te", "trailer"].map(HeaderName::from_static);
    for name in unwanted.into_iter().chain(CREDENTIALS).chain(hop).chain([CONNECTION, TRANSFER_ENCODING, UPGRADE]) {
        headers.remove(name);
    }
}

/// Sends `req` to `target` as `path_and_query` and gives its answer back. An upgrade is agreed on both sides and
/// spliced in `group`.
///
/// Credentials of the caller (Authorization, cookies, impersonation) are taken off.
/// Errors: `DialError` when the target cannot be reached; whatever it answers is no error.
pub async fn forward(
    req: http::Request<Body>,
    target: &Target,
    path_and_query: &str,
    group: &Group,
) -> Result<http::Response<Body>, DialError> {
    let stream = target.connect().await?;
    forward_over(req, stream, &target.authority(), path_and_query, HeaderMap::new(), group).await
}

/// The same over a connection that is there already; `more` are headers that the other server may believe.
pub async fn forward_over(
    mut req: http::Request<Body>,
    stream: Box<dyn Stream>,
    authority: &str,
    path_and_query: &str,
    more: HeaderMap,
    group: &Group,
) -> Result<http::Response<Body>, DialError> {
    let asked = upgrade::requested(req.headers()).zip(req.headers().get(UPGRADE).cloned());
    let client = asked.as_ref().map(|_| upgrade::take(&mut req));
    let (mut parts, body) = req.into_parts();
    strip(&mut parts.headers);
    parts.headers.extend(more);
    if let Some((_, protocol)) = &asked {
        parts.headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
        parts.headers.insert(UPGRADE, protocol.clone());
    }
    let body = if asked.is_some() || parts.method == Method::GET { body::empty() } else { body };
    let mut answer = send_over(stream, authority, parts.method, path_and_query, parts.headers, body, group).await?;
    if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
        answer.headers_mut().remove(CONNECTION);
        answer.headers_mut().remove(TRANSFER_ENCODING);
        return Ok(answer);
    }
    let server = upgrade::take_answer(&mut answer);
    if let Some(client) = client {
        let to = authority.to_owned();
        group.spawn_short("proxied-upgrade", async move {
            let joined =
                async { upgrade::splice(upgrade::stream(client).await?, upgrade::stream(server).await?).await };
            if let Err(err) = joined.await {
                debug!(to = %to, err = %Chain(&err), "proxied connection ended");
            }
        });
    }
    Ok(answer)
}

/// Asks `target` to change to `protocol` with these headers. `Err` holds its answer when it does not agree.
pub async fn open_upgrade(
    target: &Target,
    path_and_query: &str,
    protocol: &'static str,
    mut headers: HeaderMap,
    group: &Group,
) -> Result<Result<Box<dyn Stream>, http::Response<Body>>, DialError> {
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static(protocol));
    let mut answer = send(target, Method::POST, path_and_query, headers, body::empty(), group).await?;
    if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
        return Ok(Err(answer));
    }
    let broken = |source: io::Error| DialError::Connect { to: target.authority(), source };
    let stream = upgrade::stream(upgrade::take_answer(&mut answer)).await.map_err(broken)?;
    Ok(Ok(Box::new(stream)))
}

async fn send(
    target: &Target,
    method: Method,
    path_and_query: &str,
    headers: HeaderMap,
    body: Body,
    group: &Group,
) -> Result<http::Response<Body>, DialError> {
    send_over(target.connect().await?, &target.authority(), method, path_and_query, headers, body, group).await
}

async fn send_over(
    stream: Box<dyn Stream>,
    to: &str,
    method: Method,
    path_and_query: &str,
    mut headers: HeaderMap,
    body: Body,
    group: &Group,
) -> Result<http::Response<Body>, DialError> {
    let invalid = |err: http::Error| DialError::Connect {
        to: to.to_owned(),
        source: io::Error::new(io::ErrorKind::InvalidInput, err),
    };
    headers.insert(HOST, HeaderValue::from_str(to).map_err(|err| invalid(err.into()))?);
    let uri: Uri = path_and_query.parse().map_err(|err: http::uri::InvalidUri| invalid(err.into()))?;
    let mut req = http::Request::builder().method(method).uri(uri).body(body).map_err(invalid)?;
    *req.headers_mut() = headers;
    dial::request(stream, to, req, group).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_of_the_caller_are_taken_off() {
        let mut headers = HeaderMap::new();
        for name in ["authorization", "cookie", "impersonate-user", "x-remote-group", "connection", "accept"] {
            headers.insert(HeaderName::from_static(name), HeaderValue::from_static("x"));
        }
        strip(&mut headers);
        assert_eq!(headers.keys().map(HeaderName::as_str).collect::<Vec<_>>(), ["accept"]);
    }

    #[test]
    fn a_token_among_the_protocols_of_a_websocket_is_taken_off() {
        let mut headers = HeaderMap::new();
        let offer = |headers: &mut HeaderMap, text: &'static str| {
            headers.append(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(text));
        };
        offer(&mut headers, "chat,base64url.bearer.authorization.k8s.io.c2VjcmV0, binary.k8s.io");
        offer(&mut headers, "base64url.bearer.authorization.k8s.io.YWdhaW4");
        strip(&mut headers);
        assert_eq!(headers.get_all(SEC_WEBSOCKET_PROTOCOL).iter().collect::<Vec<_>>(), ["chat, binary.k8s.io"]);
        offer(&mut headers, "base64url.bearer.authorization.k8s.io.YWdhaW4");
        headers.remove(SEC_WEBSOCKET_PROTOCOL);
        offer(&mut headers, "base64url.bearer.authorization.k8s.io.YWdhaW4");
        strip(&mut headers);
        assert!(headers.is_empty());
    }
}
