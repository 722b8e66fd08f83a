//! Calling out: one HTTP request over TCP, TLS or a unix socket, on a connection of its own or with a raw upgrade.

use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use base::chain::Chain;
use base::task::Group;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::watch;
use tokio_rustls::TlsConnector;
use tracing::debug;

use crate::body::{self, Body};

/// Reaching the other host, TLS included.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Why no answer came.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// The host did not answer, or not as a TLS server we trust.
    #[error("cannot connect to {to}")]
    Connect {
        /// host:port or the socket's path.
        to: String,
        /// The system's or TLS's reason.
        #[source]
        source: io::Error,
    },
    /// The connection was made and then failed.
    #[error("request to {to} failed")]
    Request {
        /// host:port or the socket's path.
        to: String,
        /// hyper's reason.
        #[source]
        source: hyper::Error,
    },
    /// The connection ended before the answer.
    #[error("connection to {to} ended: {why}")]
    Ended {
        /// host:port or the socket's path.
        to: String,
        /// The cause of its end, as far as it is known.
        why: Arc<str>,
    },
}

/// A connected stream of any kind.
pub trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

/// Connects to `host:port`, with TLS when a configuration is given; `name` is what the certificate must show.
pub async fn tcp(
    host: &str,
    port: u16,
    name: &str,
    tls: Option<Arc<rustls::ClientConfig>>,
) -> Result<Box<dyn Stream>, DialError> {
    let to = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
    let connect = async {
        let socket = TcpStream::connect((host, port)).await?;
        socket.set_nodelay(true)?;
        let Some(tls) = tls else { return Ok(Box::new(socket) as Box<dyn Stream>) };
        let name = ServerName::try_from(name.to_owned()).map_err(io::Error::other)?;
        Ok(Box::new(TlsConnector::from(tls).connect(name, socket).await?) as Box<dyn Stream>)
    };
    let timed_out = || io::Error::new(io::ErrorKind::TimedOut, "timed out");
    tokio::time::timeout(CONNECT_TIMEOUT, connect)
        .await
        .unwrap_or_else(|_| Err(timed_out()))
        .map_err(|source| DialError::Connect { to, source })
}

/// Speaks TLS on a connected stream; `name` is what the certificate must show.
pub async fn tls(
    stream: Box<dyn Stream>,
    name: &str,
    config: Arc<rustls::ClientConfig>,
) -> Result<Box<dyn Stream>, DialError> {
    let failed = |source| DialError::Connect { to: name.to_owned(), source };
    let server = ServerName::try_from(name.to_owned()).map_err(|err| failed(io::Error::other(err)))?;
    let timed_out = || io::Error::new(io::ErrorKind::TimedOut, "TLS handshake timeout");
    let handshake = tokio::time::timeout(CONNECT_TIMEOUT, TlsConnector::from(config).connect(server, stream));
    let stream = handshake.await.unwrap_or_else(|_| Err(timed_out())).map_err(failed)?;
    Ok(Box::new(stream))
}

/// Reaches hosts by another way than the network of this machine, e.g. through a tunnel that they opened.
#[async_trait::async_trait]
pub trait Dial: Send + Sync {
    /// A connection to `host:port` as the far end sees it.
    async fn dial(&self, host: &str, port: u16) -> io::Result<Box<dyn Stream>>;
}

/// Connects to `host:port` by way of `via`, with TLS inside when a configuration is given; `name` is what the
/// certificate must show.
pub async fn through(
    via: &dyn Dial,
    host: &str,
    port: u16,
    name: &str,
    tls: Option<Arc<rustls::ClientConfig>>,
) -> Result<Box<dyn Stream>, DialError> {
    let timed_out = || io::Error::new(io::ErrorKind::TimedOut, "timed out");
    let dialled =
        tokio::time::timeout(CONNECT_TIMEOUT, via.dial(host, port)).await.unwrap_or_else(|_| Err(timed_out()));
    let stream =
        dialled.map_err(|source| DialError::Connect { to: format!("{host}:{port} through its tunnel"), source })?;
    match tls {
        Some(config) => self::tls(stream, name, config).await,
        None => Ok(stream),
    }
}

/// Connects to a unix socket.
pub async fn unix(path: &Path) -> Result<Box<dyn Stream>, DialError> {
    match UnixStream::connect(path).await {
        Ok(socket) => Ok(Box::new(socket)),
        Err(source) => Err(DialError::Connect { to: path.display().to_string(), source }),
    }
}

/// Sends one HTTP/1.1 request on `stream`. The connection lives in `group` until answer and upgrade are done with it.
///
/// The request must carry a `Host` header. `to` names the other end in errors.
pub async fn request(
    stream: Box<dyn Stream>,
    to: &str,
    req: http::Request<Body>,
    group: &Group,
) -> Result<http::Response<Body>, DialError> {
    let mut sender = start(stream, to, group).await?;
    let answer = sender.send_request(req).await.map_err(|source| DialError::Request { to: to.to_owned(), source })?;
    Ok(answer.map(body::from_http))
}

/// Starts HTTP/1.1 on `stream`; the connection lives in `group`.
pub(crate) async fn start(
    stream: Box<dyn Stream>,
    to: &str,
    group: &Group,
) -> Result<http1::SendRequest<Body>, DialError> {
    let failed = |source| DialError::Request { to: to.to_owned(), source };
    let (sender, conn) = http1::handshake(TokioIo::new(stream)).await.map_err(failed)?;
    let to_owned = to.to_owned();
    group.spawn_short("outward-connection", async move {
        if let Err(err) = conn.with_upgrades().await {
            debug!(to = %to_owned, err = %Chain(&err), "outward connection ended");
        }
    });
    Ok(sender)
}

/// Pings on an HTTP/2 connection that carries requests, so that a silent network ends it.
const HTTP2_PING: Duration = Duration::from_secs(5);

/// A connection that has let a request go ends by then; what it ended of is waited for so long.
const END_TIMEOUT: Duration = Duration::from_secs(1);

/// An HTTP/2 connection that carries many requests at once. Clones share it; it ends when they are gone or when it
/// breaks.
#[derive(Clone)]
pub struct Http2 {
    to: Arc<str>,
    sender: hyper::client::conn::http2::SendRequest<Body>,
    /// Why the connection ended, once it has.
    ended: watch::Receiver<Option<Arc<str>>>,
}

impl Http2 {
    /// Begins on `stream`; the connection lives in `group`. `to` names the other end in errors.
    pub async fn begin(stream: Box<dyn Stream>, to: &str, group: &Group) -> Result<Http2, DialError> {
        let mut builder = hyper::client::conn::http2::Builder::new(hyper_util::rt::TokioExecutor::new());
        builder.timer(hyper_util::rt::TokioTimer::new()).keep_alive_interval(HTTP2_PING).keep_alive_timeout(HTTP2_PING);
        let connected = tokio::time::timeout(CONNECT_TIMEOUT, builder.handshake(TokioIo::new(stream))).await;
        let timed_out =
            |_| DialError::Connect { to: to.to_owned(), source: io::Error::new(io::ErrorKind::TimedOut, "timed out") };
        let (sender, conn) =
            connected.map_err(timed_out)?.map_err(|source| DialError::Request { to: to.to_owned(), source })?;
        let to: Arc<str> = to.into();
        let other_end = Arc::clone(&to);
        let (tell, ended) = watch::channel(None);
        group.spawn_short("http2-connection", async move {
            if let Err(err) = conn.await {
                debug!(to = %other_end, err = %Chain(&err), "http/2 connection ended");
                let _nobody_waits = tell.send(Some(Chain(&err).to_string().into()));
            }
        });
        Ok(Http2 { to, sender, ended })
    }

    /// Whether it has ended.
    pub fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }

    /// Sends a request and gives the answer, its body still to come.
    ///
    /// Cancel safety: a dropped request is reset.
    pub fn send(
        &self,
        req: http::Request<Body>,
    ) -> Pin<Box<dyn Future<Output = Result<http::Response<Body>, DialError>> + Send>> {
        let (mut sender, to, mut ended) = (self.sender.clone(), Arc::clone(&self.to), self.ended.clone());
        Box::pin(async move {
            match sender.send_request(req).await {
                Ok(answer) => Ok(answer.map(body::from_http)),
                Err(source) => {
                    // A server that refuses our certificate says so after the handshake: hyper then calls the request
                    // cancelled, and only the connection knows why.
                    let why = tokio::time::timeout(END_TIMEOUT, ended.wait_for(Option::is_some));
                    let told =
                        if source.is_canceled() { why.await.ok().and_then(|why| why.ok()?.clone()) } else { None };
                    let to = to.to_string();
                    Err(told.map_or_else(
                        || DialError::Request { to: to.clone(), source },
                        |why| DialError::Ended { to: to.clone(), why },
                    ))
                }
            }
        })
    }
}
