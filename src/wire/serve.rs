//! Accepting connections: TCP with or without TLS and unix sockets, HTTP/1.1 and HTTP/2 on each.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use base::chain::Chain;
use base::task::Group;
use bytes::Bytes;
use hyper::body::{Body as _, Frame, Incoming, SizeHint};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_rustls::rustls::server::Acceptor;
use tokio_rustls::server::TlsStream;
use tokio_rustls::{LazyConfigAcceptor, TlsAcceptor};
use tokio_util::sync::WaitForCancellationFutureOwned;
use tracing::{debug, warn};

use crate::authority::Dashed;
use crate::held::{Answer, Hold, Readers};
use crate::seats::{self, Seat, Seats};
use crate::{ConnInfo, Handler, body};

/// A client that has not finished its TLS handshake by then is dropped.
const TLS_HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// A client that has not sent its request headers by then is dropped. An HTTP/1.1 connection that waits for its next
/// request is one of these: as long as upstream lets it be idle, for a client that thinks it is alive sends a write
/// into its end.
const HEADER_TIMEOUT: Duration = Duration::from_secs(90);
/// A connection without a request is closed after this, as upstream's `IdleTimeout`: HTTP/2 is told to go, and loses
/// nothing.
const IDLE_TIMEOUT: Duration = Duration::from_secs(90);
/// A connection that was told to go has so long for the requests that are on it.
const GOING_TIMEOUT: Duration = Duration::from_secs(10);
/// Concurrent requests on one HTTP/2 connection, as upstream's `http2-max-streams-per-connection`.
const HTTP2_STREAMS_MAX: u32 = 250;
/// Bytes of one stream in HTTP/2's own buffers: of all streams together they are 16 MB that a client can leave there.
const HTTP2_STREAM_BUFFER_BYTES: usize = 64 * 1024;
/// After an error of accept() (no file descriptors left), so that the loop does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// A listening socket and what answers on it.
pub struct Server {
    listener: TcpListener,
    tls: Option<Arc<rustls::ServerConfig>>,
    handler: Arc<dyn Handler>,
    beside: Option<Protocol>,
    seats: Arc<Seats>,
}

/// A second face of a TLS port, for clients that name it in ALPN: certificates, authorities and handler of its own.
#[derive(Clone)]
pub struct Protocol {
    /// The protocol's name, as clients give it.
    pub alpn: &'static [u8],
    /// Its side of TLS.
    pub tls: Arc<rustls::ServerConfig>,
    /// The handler that answers.
    pub handler: Arc<dyn Handler>,
    /// Where its connections live.
    pub group: Group,
}

impl Server {
    /// Binds now, so that a port in use is an error at start and not a log line later.
    pub async fn bind(
        addr: SocketAddr,
        tls: Option<Arc<rustls::ServerConfig>>,
        handler: Arc<dyn Handler>,
    ) -> io::Result<Server> {
        Ok(Server {
            listener: TcpListener::bind(addr).await?,
            tls,
            handler,
            beside: None,
            seats: Seats::new(seats::LIMITS),
        })
    }

    /// Serves another protocol on the same port.
    pub fn beside(self, protocol: Protocol) -> Server {
        Server { beside: Some(protocol), ..self }
    }

    /// The address that was bound, with the real port when 0 was asked for.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Accepts until the group stops; open connections end with it.
    pub fn start(self, group: &Group) {
        self.start_in(group, group);
    }

    /// Accepts until `accepting` stops; open connections live in `connections`, those of a protocol beside in its own
    /// group.
    pub fn start_in(self, accepting: &Group, connections: &Group) {
        let (shaking, group) = (accepting.clone(), connections.clone());
        accepting.spawn("accept", async move {
            loop {
                match self.listener.accept().await {
                    Ok((socket, peer)) => {
                        // IPv4's callers come to a socket of both families under another name.
                        let peer = SocketAddr::new(peer.ip().to_canonical(), peer.port());
                        let Some(seat) = self.seats.take(peer.ip()) else {
                            debug!(peer = %peer, "an address with too many connections is refused another");
                            continue;
                        };
                        let (tls, handler) = (self.tls.clone(), Arc::clone(&self.handler));
                        let Some(beside) = self.beside.clone() else {
                            group.spawn_short("connection", report(peer, serve_tcp(socket, peer, seat, tls, handler)));
                            continue;
                        };
                        let group = group.clone();
                        // Whose connection it is shows in its first message.
                        let sorted = async move { sort(socket, (peer, seat), (tls, handler, group), beside).await };
                        shaking.spawn_short("handshake", report(peer, sorted));
                    }
                    Err(err) => {
                        warn!(err = %Chain(&err), "cannot accept a connection");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                }
            }
        });
    }
}

/// A listening unix socket and what answers on it. Who may connect is a matter of the file's mode.
pub struct UnixServer {
    listener: tokio::net::UnixListener,
    handler: Arc<dyn Handler>,
}

impl UnixServer {
    /// Binds now, in the place of a socket that a dead process left. Only the owner may connect.
    pub fn bind(path: &std::path::Path, handler: Arc<dyn Handler>) -> io::Result<UnixServer> {
        use std::os::unix::fs::PermissionsExt as _;
        match std::fs::remove_file(path) {
            Err(err) if err.kind() != io::ErrorKind::NotFound => return Err(err),
            _ => {}
        }
        let listener = tokio::net::UnixListener::bind(path)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
        Ok(UnixServer { listener, handler })
    }

    /// Accepts until the group stops; open connections end with it.
    pub fn start(self, group: &Group) {
        let group = group.clone();
        group.clone().spawn("accept-unix", async move {
            loop {
                match self.listener.accept().await {
                    Ok((socket, _)) => {
                        let handler = Arc::clone(&self.handler);
                        group.spawn_short("unix-connection", async move {
                            // A unix peer has no address; the handler learns that it is this machine.
                            if let Err(err) =
                                serve_stream(Dashed::new(socket), ConnInfo::in_process(Arc::new(())), handler).await
                            {
                                debug!(err = %Chain(&err), "connection ended");
                            }
                        });
                    }
                    Err(err) => {
                        warn!(err = %Chain(&err), "cannot accept a connection");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                }
            }
        });
    }
}

async fn report(peer: SocketAddr, served: impl Future<Output = io::Result<()>>) {
    if let Err(err) = served.await {
        debug!(peer = %peer, err = %Chain(&err), "connection ended");
    }
}

type Service = (Option<Arc<rustls::ServerConfig>>, Arc<dyn Handler>, Group);

/// Reads the client's first message, and hands the connection to the protocol that it names.
async fn sort(socket: TcpStream, from: (SocketAddr, Arc<Seat>), first: Service, beside: Protocol) -> io::Result<()> {
    let ((peer, seat), (tls, handler, group)) = (from, first);
    let Some(tls) = tls else { return serve_tcp(socket, peer, seat, None, handler).await };
    socket.set_nodelay(true)?;
    let local = socket.local_addr()?;
    let too_long = |_| io::Error::new(io::ErrorKind::TimedOut, "TLS handshake took too long");
    let shaken = async {
        let hello = LazyConfigAcceptor::new(Acceptor::default(), socket).await?;
        let named = hello.client_hello().alpn().is_some_and(|mut names| names.any(|name| name == beside.alpn));
        let (tls, handler, group) =
            if named { (beside.tls, beside.handler, beside.group) } else { (tls, handler, group) };
        Ok::<_, io::Error>((hello.into_stream(tls).await?, handler, group))
    };
    let (stream, handler, group) = tokio::time::timeout(TLS_HANDSHAKE_TIMEOUT, shaken).await.map_err(too_long)??;
    group.spawn_short("connection", report(peer, serve_tls(stream, peer, local, seat, handler)));
    Ok(())
}

async fn serve_tls(
    stream: TlsStream<TcpStream>,
    peer: SocketAddr,
    local: SocketAddr,
    seat: Arc<Seat>,
    handler: Arc<dyn Handler>,
) -> io::Result<()> {
    let certs = stream.get_ref().1.peer_certificates().unwrap_or_default();
    let client_certs: Vec<_> = certs.iter().map(|cert| cert.clone().into_owned()).collect();
    if !client_certs.is_empty() {
        seat.vouch();
    }
    serve_stream(stream, ConnInfo { seat: Some(seat), ..ConnInfo::tcp(peer, local, client_certs) }, handler).await
}

async fn serve_tcp(
    socket: TcpStream,
    peer: SocketAddr,
    seat: Arc<Seat>,
    tls: Option<Arc<rustls::ServerConfig>>,
    handler: Arc<dyn Handler>,
) -> io::Result<()> {
    socket.set_nodelay(true)?;
    let local = socket.local_addr()?;
    let Some(tls) = tls else {
        return serve_stream(socket, ConnInfo { seat: Some(seat), ..ConnInfo::tcp(peer, local, Vec::new()) }, handler)
            .await;
    };
    let stream = tokio::time::timeout(TLS_HANDSHAKE_TIMEOUT, TlsAcceptor::from(tls).accept(socket))
        .await
        .map_err(|_| io::Error::new(io::ErrorKind::TimedOut, "TLS handshake took too long"))??;
    serve_tls(stream, peer, local, seat, handler).await
}

/// Serves HTTP on any connected stream until it ends, until nothing was asked on it for a while, or until a stranger
/// has to go.
pub async fn serve_stream<S>(stream: S, conn: ConnInfo, handler: Arc<dyn Handler>) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (conn, requests) = (Arc::new(conn), watch::Sender::new(0_u64));
    let (of_service, under_way) = (Arc::clone(&conn), requests.subscribe());
    let readers: Arc<Readers> = Arc::default();
    let end = Box::pin(conn.end.0.clone().cancelled_owned());
    let stream = Counted { stream, readers: Arc::clone(&readers), end };
    let begins = Arc::clone(&readers);
    let service = service_fn(move |req: http::Request<Incoming>| {
        let (handler, conn, place) = (Arc::clone(&handler), Arc::clone(&of_service), UnderWay::begin(&requests));
        let readers = Arc::clone(&begins);
        let asks_head = req.method() == http::Method::HEAD;
        async move {
            let response = handler.handle(req.map(body::from_http), conn).await;
            let response = if asks_head { without_body(response) } else { response };
            Ok::<_, Infallible>(lasting(response, readers, place))
        }
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(HTTP2_STREAMS_MAX)
        .keep_alive_interval(HEADER_TIMEOUT);
    builder.http2().max_send_buf_size(HTTP2_STREAM_BUFFER_BYTES);
    let serving = builder.serve_connection_with_upgrades(TokioIo::new(stream), service);
    let mut serving = std::pin::pin!(serving);
    tokio::select! {
        ended = serving.as_mut() => return ended.map_err(io::Error::other),
        () = its_time(&conn, under_way) => {}
        () = readers.stalled() => debug!(peer = %conn.peer, "a client takes nothing of its answers"),
    }
    serving.as_mut().graceful_shutdown();
    match tokio::time::timeout(GOING_TIMEOUT, serving).await {
        Ok(ended) => ended.map_err(io::Error::other),
        Err(_) => Err(io::Error::new(
            io::ErrorKind::TimedOut,
            "the connection had no place any more, and did not end by itself",
        )),
    }
}

/// Resolves when a connection has to go. Those of this machine's own programs, over unix sockets, stay.
async fn its_time(conn: &ConnInfo, under_way: watch::Receiver<u64>) {
    let lost = async {
        match &conn.seat {
            Some(seat) => seat.lost().await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        () = lost => {}
        () = idle(under_way), if conn.identity.is_none() => {}
    }
}

/// Resolves when no request was under way for [`IDLE_TIMEOUT`].
async fn idle(mut under_way: watch::Receiver<u64>) {
    loop {
        if *under_way.borrow_and_update() > 0 {
            if under_way.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
            continue;
        }
        match tokio::time::timeout(IDLE_TIMEOUT, under_way.changed()).await {
            Err(_) => return,
            Ok(Ok(())) => {}
            // The service is gone, and with it the connection.
            Ok(Err(_)) => std::future::pending::<()>().await,
        }
    }
}

/// A request that has not got its whole answer yet.
struct UnderWay(watch::Sender<u64>);

impl UnderWay {
    fn begin(requests: &watch::Sender<u64>) -> UnderWay {
        requests.send_modify(|n| *n += 1);
        UnderWay(requests.clone())
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.send_modify(|n| *n -= 1);
    }
}

/// An answer's body; the request is under way as long as it is there.
struct Lasting {
    body: Body,
    _place: UnderWay,
}

enum Body {
    /// It comes from elsewhere as its reader takes it.
    Passing(body::Body),
    /// It is kept in memory until then.
    Held(Arc<Answer>, Arc<Readers>),
}

fn lasting(
    mut response: http::Response<body::Body>,
    readers: Arc<Readers>,
    place: UnderWay,
) -> http::Response<Lasting> {
    let hold = response.extensions_mut().remove::<Arc<Hold>>();
    let said = response.headers().get(http::header::CONTENT_LENGTH).and_then(|len| len.to_str().ok()?.parse().ok());
    response.map(|body| {
        let body = match hold {
            Some(hold) if !body.is_end_stream() => {
                let answer = Answer::new(body, said, hold);
                readers.begins(&answer);
                Body::Held(answer, readers)
            }
            _ => Body::Passing(body),
        };
        Lasting { body, _place: place }
    })
}

impl http_body::Body for Lasting {
    type Data = Bytes;
    type Error = body::BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, body::BodyError>>> {
        match &mut self.body {
            Body::Passing(body) => Pin::new(body).poll_frame(context),
            Body::Held(answer, _) => answer.poll(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.body {
            Body::Passing(body) => body.is_end_stream(),
            Body::Held(answer, _) => answer.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.body {
            Body::Passing(body) => body.size_hint(),
            Body::Held(answer, _) => answer.size_hint(),
        }
    }
}

impl Drop for Lasting {
    fn drop(&mut self) {
        if let Body::Held(answer, readers) = &self.body {
            readers.ends(answer);
        }
    }
}

/// A connection that tells how far its answers have got.
struct Counted<S> {
    stream: S,
    readers: Arc<Readers>,
    /// Resolves when the connection has to end at once.
    end: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl<S> Counted<S> {
    fn note(&self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        match &written {
            Poll::Ready(Ok(n)) => self.readers.written(*n),
            Poll::Ready(Err(_)) => {}
            Poll::Pending => self.readers.blocked(),
        }
        written
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Counted<S> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        // Every connection is read from for as long as it lives, so its end is heard of here.
        if self.end.as_mut().poll(context).is_ready() {
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::ConnectionAborted, "its credentials were revoked")));
        }
        Pin::new(&mut self.stream).poll_read(context, into)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Counted<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.note(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, parts);
        self.note(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        match &flushed {
            Poll::Ready(Ok(())) => self.readers.flushed(),
            Poll::Ready(Err(_)) => {}
            Poll::Pending => self.readers.blocked(),
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// The answer to HEAD: as long as it says, and nothing of it. HTTP/1 would drop the body by itself, HTTP/2 would send
/// it.
fn without_body(response: http::Response<body::Body>) -> http::Response<body::Body> {
    let (mut parts, full) = response.into_parts();
    if let Some(len) = full.size_hint().exact().filter(|len| *len > 0) {
        parts.headers.entry(http::header::CONTENT_LENGTH).or_insert(len.into());
    }
    http::Response::from_parts(parts, body::empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_to_head_keeps_its_length_and_loses_its_body() {
        let answer = without_body(http::Response::new(body::full("twelve bytes")));
        assert_eq!(answer.headers()[http::header::CONTENT_LENGTH], "12");
        assert!(answer.body().is_end_stream());
    }
}
