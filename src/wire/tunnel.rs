//! A tunnel: one connection that a machine behind a firewall opened outwards, over which the other end dials inwards.
//!
//! It is HTTP/2 with the roles turned around: whoever accepted the connection sends `CONNECT host:port` requests on it,
//! whoever opened it answers them by dialling. Streams, flow control and the detection of a dead peer are HTTP/2's.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use base::chain::Chain;
use base::task::Group;
use bytes::Bytes;
use http_body_util::Empty;
use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tracing::debug;

use crate::body::{self, Body};
use crate::dial::{Dial, Stream};
use crate::upgrade;

/// The name of an upgrade to a tunnel.
pub const PROTOCOL: &str = "kedge-tunnel";
/// The header that says why a dial failed.
const REASON: &str = "kedge-reason";
/// How often each end asks the other for a sign of life, and how long it waits for it.
const PING_EVERY: Duration = Duration::from_secs(5);
const PING_TIMEOUT: Duration = Duration::from_secs(5);
/// Dials under way and open on one tunnel.
const STREAMS_MAX: u32 = 1000;

/// The end that dials: made by whoever accepted the connection.
#[derive(Clone)]
pub struct Tunnel {
    sender: http2::SendRequest<Empty<Bytes>>,
}

impl Tunnel {
    /// Speaks on a connection that the far end opened. The future resolves when the tunnel is gone; it must be driven
    /// for the tunnel to work.
    pub async fn accept<S>(stream: S) -> io::Result<(Tunnel, impl Future<Output = ()> + Send + 'static)>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder
            .timer(TokioTimer::new())
            .keep_alive_interval(PING_EVERY)
            .keep_alive_timeout(PING_TIMEOUT)
            .keep_alive_while_idle(true);
        let (sender, conn) = builder.handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
        let ended = async move {
            if let Err(err) = conn.await {
                debug!(err = %Chain(&err), "tunnel ended");
            }
        };
        Ok((Tunnel { sender }, ended))
    }

    /// Whether the far end is gone.
    pub fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }
}

#[async_trait::async_trait]
impl Dial for Tunnel {
    async fn dial(&self, host: &str, port: u16) -> io::Result<Box<dyn Stream>> {
        let to = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
        let req = http::Request::builder()
            .method(http::Method::CONNECT)
            .uri(&to)
            .body(Empty::new())
            .map_err(io::Error::other)?;
        let mut answer = self.sender.clone().send_request(req).await.map_err(io::Error::other)?.map(body::from_http);
        if answer.status() != http::StatusCode::OK {
            let why = answer.headers().get(REASON).map(|why| String::from_utf8_lossy(why.as_bytes()).into_owned());
            return Err(io::Error::new(
                io::ErrorKind::ConnectionRefused,
                why.unwrap_or_else(|| answer.status().to_string()),
            ));
        }
        Ok(Box::new(upgrade::stream(upgrade::take_answer(&mut answer)).await?))
    }
}

/// The end that is dialled: answers on `stream`, which it opened, until the tunnel is gone. `dial` decides what may be
/// reached.
pub async fn serve<S>(stream: S, dial: Arc<dyn Dial>, group: &Group) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let group = group.clone();
    let service = service_fn(move |req: http::Request<Incoming>| {
        let (dial, group) = (Arc::clone(&dial), group.clone());
        async move { Ok::<_, Infallible>(answer(req, dial.as_ref(), &group).await) }
    });
    let mut builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_TIMEOUT)
        .max_concurrent_streams(STREAMS_MAX);
    builder.serve_connection(TokioIo::new(stream), service).await.map_err(io::Error::other)
}

async fn answer(mut req: http::Request<Incoming>, dial: &dyn Dial, group: &Group) -> http::Response<Body> {
    let refusal = |status: http::StatusCode, why: String| {
        let mut answer = http::Response::new(body::empty());
        *answer.status_mut() = status;
        if let Ok(why) = http::HeaderValue::from_str(&why.replace(['\n', '\r'], " ")) {
            answer.headers_mut().insert(REASON, why);
        }
        answer
    };
    let authority = req.uri().authority().cloned().filter(|_| req.method() == http::Method::CONNECT);
    let Some((host, port)) = authority.as_ref().and_then(|a| Some((a.host(), a.port_u16()?))) else {
        return refusal(http::StatusCode::BAD_REQUEST, "want CONNECT host:port".to_owned());
    };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    match dial.dial(host, port).await {
        Err(err) if err.kind() == io::ErrorKind::PermissionDenied => {
            refusal(http::StatusCode::FORBIDDEN, err.to_string())
        }
        Err(err) => refusal(http::StatusCode::BAD_GATEWAY, format!("cannot connect to {host}:{port}: {err}")),
        Ok(target) => {
            let caller = upgrade::take(&mut req);
            group.spawn_short("tunnelled-connection", async move {
                let joined = async { upgrade::splice(upgrade::stream(caller).await?, target).await };
                if let Err(err) = joined.await {
                    debug!(err = %Chain(&err), "tunnelled connection ended");
                }
            });
            http::Response::new(body::empty())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    /// Echoes on port 7, refuses every other.
    struct Echo;

    #[async_trait::async_trait]
    impl Dial for Echo {
        async fn dial(&self, host: &str, port: u16) -> io::Result<Box<dyn Stream>> {
            if port != 7 {
                return Err(io::Error::new(io::ErrorKind::PermissionDenied, format!("{host}:{port} is not for you")));
            }
            let (near, far) = tokio::io::duplex(64);
            let (group, _) = Group::root("echo");
            group.spawn_short("echo", async move {
                let (mut read, mut write) = tokio::io::split(far);
                let _ended = tokio::io::copy(&mut read, &mut write).await;
            });
            Ok(Box::new(near))
        }
    }

    #[tokio::test]
    async fn the_accepting_end_dials_through_the_opening_one() {
        let (group, _fatal) = Group::root("test");
        let (server, agent) = tokio::io::duplex(1 << 16);
        let streams = group.clone();
        group.spawn_short("agent", async move { drop(serve(agent, Arc::new(Echo), &streams).await) });
        let (tunnel, driven) = Tunnel::accept(server).await.unwrap();
        group.spawn_short("driver", driven);
        let mut one = tunnel.dial("127.0.0.1", 7).await.unwrap();
        let mut two = tunnel.dial("127.0.0.1", 7).await.unwrap();
        for (stream, word) in [(&mut one, b"one"), (&mut two, b"two")] {
            stream.write_all(word).await.unwrap();
            let mut back = [0; 3];
            stream.read_exact(&mut back).await.unwrap();
            assert_eq!(&back, word);
        }
        let refused = tunnel.dial("10.0.0.1", 22).await.err().unwrap();
        assert_eq!(refused.to_string(), "10.0.0.1:22 is not for you");
    }
}
