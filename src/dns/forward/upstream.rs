//! One resolver: sockets and connections to it that are used again, and its health.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use base::sync::Mutex;
use hickory_proto::op::{Message, ResponseCode};
use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::Instant;
use tokio_rustls::TlsConnector;

use crate::config::{Forward, Target};

/// Bytes that we take in one datagram.
const UDP_BYTES_MAX: usize = 4096;
/// A socket asks one question after the other for this long: its random port is half of the protection against forged
/// answers.
const SOCKET_LIFE: Duration = Duration::from_secs(10);
/// Sockets and connections that wait for the next question to a resolver; more are closed.
const IDLE_MAX: usize = 64;

/// How a resolver is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    Udp,
    Tcp,
    Tls,
}

pub(super) struct Upstream {
    target: Target,
    /// As metrics and logs name it.
    pub(super) text: String,
    tls: Option<(TlsConnector, ServerName<'static>)>,
    expire: Duration,
    fails: AtomicU32,
    checking: AtomicBool,
    sockets: Mutex<Vec<Socket>>,
    streams: Mutex<Vec<Stream>>,
}

/// A connected socket, used for one question at a time.
struct Socket {
    socket: UdpSocket,
    made: Instant,
}

/// A connection, used for one question at a time.
struct Stream {
    io: Box<dyn Duplex>,
    used: Instant,
}

trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

impl Upstream {
    pub(super) fn new(target: Target, config: &Forward) -> Arc<Upstream> {
        let tls = config.tls.as_ref().filter(|_| target.tls).map(|tls| {
            let name = tls.server_name.clone().unwrap_or_else(|| ServerName::IpAddress(target.addr.ip().into()));
            (TlsConnector::from(Arc::clone(&tls.config)), name)
        });
        Arc::new(Upstream {
            target,
            text: target.addr.to_string(),
            tls,
            expire: config.expire,
            fails: AtomicU32::new(0),
            checking: AtomicBool::new(false),
            sockets: Mutex::default(),
            streams: Mutex::default(),
        })
    }

    pub(super) fn is_tls(&self) -> bool {
        self.target.tls
    }

    #[cfg(test)]
    pub(super) fn port(&self) -> u16 {
        self.target.addr.port()
    }

    #[cfg(test)]
    pub(super) fn set_fails(&self, n: u32) {
        self.fails.store(n, Ordering::Relaxed);
    }

    pub(super) fn is_down(&self, fails_max: u32) -> bool {
        fails_max > 0 && self.fails.load(Ordering::Relaxed) >= fails_max
    }

    pub(super) fn is_well(&self) {
        self.fails.store(0, Ordering::Relaxed);
    }

    /// Says whether a check is to be begun.
    pub(super) fn fails_once_more(&self) -> bool {
        self.fails.fetch_add(1, Ordering::Relaxed);
        !self.checking.swap(true, Ordering::Relaxed)
    }

    pub(super) fn is_checked(&self) {
        self.is_well();
        self.checking.store(false, Ordering::Relaxed);
    }

    /// The failure in the words of Go, which people's `errors` rules look for.
    pub(super) fn explain(&self, err: &io::Error, protocol: Protocol) -> String {
        let network = match protocol {
            Protocol::Udp => "udp",
            Protocol::Tcp => "tcp",
            Protocol::Tls => "tcp-tls",
        };
        let what = match err.kind() {
            io::ErrorKind::TimedOut => "i/o timeout".to_owned(),
            io::ErrorKind::ConnectionRefused => "connection refused".to_owned(),
            _ => err.to_string(),
        };
        format!("read {network} ->{}: {what}", self.text)
    }

    /// One question and its answer.
    pub(super) async fn ask(&self, request: &Message, protocol: Protocol) -> io::Result<Message> {
        match protocol {
            Protocol::Udp => self.over_udp(request).await,
            Protocol::Tcp | Protocol::Tls => self.over_stream(request, protocol).await,
        }
    }

    /// Asks over a socket that is free, or a new one. One whose question was not answered is closed.
    async fn over_udp(&self, request: &Message) -> io::Result<Message> {
        let free = {
            let mut idle = self.sockets.lock();
            idle.retain(|socket| socket.made.elapsed() < SOCKET_LIFE);
            idle.pop()
        };
        let socket = match free {
            Some(socket) => socket,
            None => Socket { socket: connected(self.target.addr).await?, made: Instant::now() },
        };
        let answer = ask_once(&socket.socket, request).await?;
        let mut idle = self.sockets.lock();
        if idle.len() < IDLE_MAX {
            idle.push(socket);
        }
        Ok(answer)
    }

    /// Asks over a connection that is free; the resolver may have closed it meanwhile, and then over a new one.
    async fn over_stream(&self, request: &Message, protocol: Protocol) -> io::Result<Message> {
        let free = {
            let mut idle = self.streams.lock();
            idle.retain(|stream| stream.used.elapsed() < self.expire);
            idle.pop()
        };
        if let Some(stream) = free
            && let Ok(answer) = self.converse(stream.io, request).await
        {
            return Ok(answer);
        }
        let tcp = TcpStream::connect(self.target.addr).await?;
        tcp.set_nodelay(true)?;
        let io: Box<dyn Duplex> = match (protocol, &self.tls) {
            (Protocol::Tls, Some((connector, name))) => Box::new(connector.connect(name.clone(), tcp).await?),
            _ => Box::new(tcp),
        };
        self.converse(io, request).await
    }

    async fn converse(&self, mut io: Box<dyn Duplex>, request: &Message) -> io::Result<Message> {
        let bytes = request.to_vec().map_err(io::Error::other)?;
        let len = u16::try_from(bytes.len()).map_err(io::Error::other)?;
        let mut framed = len.to_be_bytes().to_vec();
        framed.extend(bytes);
        io.write_all(&framed).await?;
        io.flush().await?;
        let mut answer = vec![0; usize::from(io.read_u16().await?)];
        io.read_exact(&mut answer).await?;
        let message = Message::from_vec(&answer).map_err(io::Error::other)?;
        if !fits(&message, request) {
            return Err(io::Error::other("an answer to another question"));
        }
        let mut idle = self.streams.lock();
        if idle.len() < IDLE_MAX && !self.expire.is_zero() {
            idle.push(Stream { io, used: Instant::now() });
        }
        Ok(message)
    }
}

async fn connected(addr: SocketAddr) -> io::Result<UdpSocket> {
    let local: SocketAddr =
        if addr.is_ipv4() { (Ipv4Addr::UNSPECIFIED, 0).into() } else { (Ipv6Addr::UNSPECIFIED, 0).into() };
    let socket = UdpSocket::bind(local).await?;
    socket.connect(addr).await?;
    Ok(socket)
}

/// One question; late answers to earlier ones have other ids.
async fn ask_once(socket: &UdpSocket, request: &Message) -> io::Result<Message> {
    socket.send(&request.to_vec().map_err(io::Error::other)?).await?;
    let mut buffer = vec![0; UDP_BYTES_MAX];
    loop {
        let len = socket.recv(&mut buffer).await?;
        if let Ok(message) = Message::from_vec(&buffer[..len])
            && fits(&message, request)
        {
            return Ok(message);
        }
    }
}

/// The same id and the same question.
pub(super) fn fits(answer: &Message, request: &Message) -> bool {
    let same = match (answer.queries.first(), request.queries.first()) {
        (Some(a), Some(b)) => a.query_type == b.query_type && a.name == b.name,
        // Some servers leave the question out of a refusal.
        (None, _) => answer.metadata.response_code != ResponseCode::NoError,
        _ => false,
    };
    answer.metadata.id == request.metadata.id && same
}
