//! The sockets: questions over UDP and TCP.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use base::task::Group;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::Semaphore;
use tracing::error;

use crate::error::DnsError;
use crate::question::Transport;
use crate::server::{Server, UNREAD_OF_CONNECTION_MAX};

/// A silent TCP connection is closed after this.
const TCP_IDLE: Duration = Duration::from_secs(10);
/// Questions of one connection that are answered at one time; the next one is read when one of them is done.
const QUESTIONS_OF_CONNECTION_MAX: usize = 16;
/// A question is one name and a few options; whoever announces more loses its connection.
const QUESTION_BYTES_MAX: usize = 4096;

/// The sockets of the process. A new Corefile takes over those that it needs, so that no question is refused meanwhile.
#[derive(Default)]
pub(crate) struct Sockets {
    open: BTreeMap<SocketAddr, (Arc<UdpSocket>, Arc<TcpListener>)>,
    used: BTreeSet<SocketAddr>,
}

impl Sockets {
    /// A new Corefile says which are used.
    pub(crate) fn begin(&mut self) {
        self.used.clear();
    }

    /// Closes those that the last Corefile does not need.
    pub(crate) fn forget_unused(&mut self) {
        self.open.retain(|addr, _| self.used.contains(addr));
    }

    /// Both sockets of an address.
    pub(crate) async fn open(&mut self, addr: SocketAddr) -> std::io::Result<(Arc<UdpSocket>, Arc<TcpListener>)> {
        let pair = match self.open.get(&addr) {
            Some(pair) => pair.clone(),
            None => (Arc::new(UdpSocket::bind(addr).await?), Arc::new(TcpListener::bind(addr).await?)),
        };
        self.used.insert(addr);
        self.open.insert(addr, pair.clone());
        Ok(pair)
    }
}

/// Opens the port and serves it as long as the group lives. Without an address it is every address of the machine.
pub(crate) async fn listen(
    server: Arc<Server>,
    at: Option<IpAddr>,
    port: u16,
    sockets: &mut Sockets,
    group: &Group,
) -> Result<(), DnsError> {
    let addr = SocketAddr::new(at.unwrap_or(Ipv6Addr::UNSPECIFIED.into()), port);
    let (udp, tcp) = match sockets.open(addr).await {
        Ok(pair) => pair,
        // One socket for both families where the machine has both.
        Err(_) if at.is_none() => {
            let addr = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port);
            sockets.open(addr).await.map_err(|source| DnsError::Listen { addr, source })?
        }
        Err(source) => return Err(DnsError::Listen { addr, source }),
    };
    group.spawn("udp", serve_udp(Arc::clone(&server), udp, group.clone()));
    group.spawn("tcp", serve_tcp(server, tcp, group.clone()));
    Ok(())
}

/// Most answers are here and need no task: the question is looked at once, and only what waits for others is left to a
/// task of its own.
async fn serve_udp(server: Arc<Server>, socket: Arc<UdpSocket>, group: Group) {
    let mut buffer = vec![0; QUESTION_BYTES_MAX];
    loop {
        // An error here is the answer to an earlier datagram (port unreachable): nothing to do with the next.
        let Ok((len, peer)) = socket.recv_from(&mut buffer).await else { continue };
        let (server, bytes) = (Arc::clone(&server), buffer[..len].to_vec());
        let mut coming: Coming = Box::pin(async move { server.handle(&bytes, peer, Transport::Udp).await });
        match at_once(&mut coming) {
            Err(Panicked) => error!(%peer, "the task of a question panicked"),
            Ok(Poll::Ready(None)) => {}
            Ok(Poll::Ready(Some(reply))) => {
                // The asker may be gone; a socket that is full loses datagrams as the network does.
                let _lost = socket.try_send_to(&reply, peer);
            }
            Ok(Poll::Pending) => {
                let socket = Arc::clone(&socket);
                group.spawn_short("question", async move {
                    if let Some(reply) = coming.await {
                        let _asker_left = socket.send_to(&reply, peer).await;
                    }
                });
            }
        }
    }
}

type Coming = Pin<Box<dyn Future<Output = Option<Vec<u8>>> + Send>>;

/// A question's answer panicked; the others go on.
struct Panicked;

/// Looks once whether the reply is there. Nobody is woken by it: what is pending is looked at again by its task.
fn at_once(coming: &mut Coming) -> Result<Poll<Option<Vec<u8>>>, Panicked> {
    let mut context = Context::from_waker(Waker::noop());
    catch_unwind(AssertUnwindSafe(|| coming.as_mut().poll(&mut context))).map_err(|_| Panicked)
}

pub(super) async fn serve_tcp(server: Arc<Server>, listener: Arc<TcpListener>, group: Group) {
    loop {
        let Ok((stream, peer)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let (server, questions) = (Arc::clone(&server), group.clone());
        group.spawn_short("connection", async move {
            let Ok(_permit) = server.connections.take(peer.ip().to_canonical()) else { return };
            // The client closes, or is closed when it is silent.
            let _closed = converse(&server, stream, peer, &questions).await;
        });
    }
}

/// Answers come as they are ready, not in the order of the questions: a slow name does not hold up the others.
async fn converse(server: &Arc<Server>, stream: TcpStream, peer: SocketAddr, group: &Group) -> std::io::Result<()> {
    let (mut read, write) = stream.into_split();
    let (write, running) =
        (Arc::new(tokio::sync::Mutex::new(write)), Arc::new(Semaphore::new(QUESTIONS_OF_CONNECTION_MAX)));
    let unread = Arc::new(Semaphore::new(UNREAD_OF_CONNECTION_MAX));
    loop {
        let len = usize::from(tokio::time::timeout(TCP_IDLE, read.read_u16()).await??);
        if len > QUESTION_BYTES_MAX {
            return Ok(());
        }
        let mut bytes = vec![0; len];
        tokio::time::timeout(TCP_IDLE, read.read_exact(&mut bytes)).await??;
        let Ok(turn) = Arc::clone(&running).acquire_owned().await else { return Ok(()) };
        let (server, write, unread) = (Arc::clone(server), Arc::clone(&write), Arc::clone(&unread));
        group.spawn_short("question", async move {
            let _turn = turn;
            let Some(reply) = server.handle(&bytes, peer, Transport::Tcp).await else { return };
            let reply = framed(&reply);
            let n_bytes = u32::try_from(reply.len()).unwrap_or(u32::MAX);
            let (Ok(_own), Ok(_of_all)) = (unread.try_acquire_many(n_bytes), server.unread.try_acquire_many(n_bytes))
            else {
                return;
            };
            let mut write = write.lock().await;
            // A client that does not read loses its connection.
            let sent = tokio::time::timeout(TCP_IDLE, write.write_all(&reply)).await;
            if !matches!(sent, Ok(Ok(()))) {
                let _closed = write.shutdown().await;
            }
        });
    }
}

/// With its length before it. A reply is cut to what that can tell.
pub(super) fn framed(reply: &[u8]) -> Vec<u8> {
    let len = u16::try_from(reply.len()).unwrap_or(u16::MAX);
    [&len.to_be_bytes()[..], reply].concat()
}
