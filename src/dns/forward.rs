//! The forward plugin: asking the resolvers of the outside, and leaving out those that are down.
//!
//! A resolver that fails is asked for a sign of life in the background until it gives one; meanwhile others are preferred. When all
//! are down one is asked nevertheless, as the check may be what fails.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

use base::rng::Rng;
use base::task::Group;
use hickory_proto::op::{Edns, Message, Query, ResponseCode};
use hickory_proto::rr::{Name, RecordType};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, UdpSocket};

use crate::config::{self, Policy};
use crate::question::{Answer, Question, Transport};

/// One resolver's time for one question.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// All resolvers' time for one question, as CoreDNS's.
const QUESTION_TIMEOUT: Duration = Duration::from_secs(5);
/// What we take in one datagram.
const UDP_BYTES_MAX: usize = 4096;

pub(crate) struct Forwarder {
    config: config::Forward,
    upstreams: Vec<Arc<Upstream>>,
    turn: AtomicUsize,
    running: AtomicUsize,
    rng: Rng,
    group: Group,
}

struct Upstream {
    addr: SocketAddr,
    fails: AtomicU32,
    checking: AtomicBool,
}

impl Forwarder {
    pub(crate) fn new(config: config::Forward, rng: &Rng, group: &Group) -> Arc<Forwarder> {
        let upstream = |addr: &SocketAddr| Arc::new(Upstream { addr: *addr, fails: AtomicU32::new(0), checking: AtomicBool::new(false) });
        let upstreams = config.to.iter().map(upstream).collect();
        Arc::new(Forwarder {
            config,
            upstreams,
            turn: AtomicUsize::new(0),
            running: AtomicUsize::new(0),
            rng: rng.clone(),
            group: group.clone(),
        })
    }

    pub(crate) fn wants(&self, question: &Question) -> bool {
        self.config.from.zone_of(&question.lower) && !self.config.except.iter().any(|zone| zone.zone_of(&question.lower))
    }

    pub(crate) async fn answer(&self, question: &Question) -> Answer {
        let _slot = match Slot::take(&self.running, self.config.concurrent_max) {
            Some(slot) => slot,
            None => return Answer::new(ResponseCode::Refused, "forward"),
        };
        let asked = tokio::time::timeout(QUESTION_TIMEOUT, self.ask_in_turn(question)).await;
        asked.ok().flatten().unwrap_or_else(|| Answer::new(ResponseCode::ServFail, "forward"))
    }

    async fn ask_in_turn(&self, question: &Question) -> Option<Answer> {
        for upstream in self.order() {
            match self.ask(upstream.addr, question).await {
                Ok(message) => {
                    upstream.fails.store(0, Ordering::Relaxed);
                    return Some(convert(message));
                }
                Err(_) => self.note_failure(upstream),
            }
        }
        None
    }

    /// Those in health first, by policy; then the others.
    fn order(&self) -> Vec<&Arc<Upstream>> {
        let mut order: Vec<&Arc<Upstream>> = self.upstreams.iter().collect();
        let n = order.len().max(1);
        match self.config.policy {
            Policy::Sequential => {}
            Policy::RoundRobin => order.rotate_left(self.turn.fetch_add(1, Ordering::Relaxed) % n),
            Policy::Random => {
                for at in (1..order.len()).rev() {
                    let other = usize::try_from(self.rng.below(at as u64 + 1)).unwrap_or(0);
                    order.swap(at, other);
                }
            }
        }
        let fails_max = self.config.fails_max;
        order.sort_by_key(|upstream| fails_max > 0 && upstream.fails.load(Ordering::Relaxed) >= fails_max);
        order
    }

    fn note_failure(&self, upstream: &Arc<Upstream>) {
        upstream.fails.fetch_add(1, Ordering::Relaxed);
        if self.config.fails_max == 0 || upstream.checking.swap(true, Ordering::Relaxed) {
            return;
        }
        let (upstream, interval, id) = (Arc::clone(upstream), self.config.health_check, self.id());
        self.group.spawn_short("forward-check", async move {
            loop {
                tokio::time::sleep(interval).await;
                // Any answer is a sign of life.
                let probe = query(id, Name::root(), RecordType::NS, false);
                if matches!(tokio::time::timeout(ANSWER_TIMEOUT, over_udp(upstream.addr, &probe)).await, Ok(Ok(_))) {
                    break;
                }
            }
            upstream.fails.store(0, Ordering::Relaxed);
            upstream.checking.store(false, Ordering::Relaxed);
        });
    }

    async fn ask(&self, addr: SocketAddr, question: &Question) -> io::Result<Message> {
        let mut request = query(self.id(), question.name.clone(), question.kind, question.dnssec_ok);
        request.metadata.recursion_desired = question.recursion_desired;
        request.metadata.checking_disabled = question.checking_disabled;
        let tcp = self.config.force_tcp || (question.transport == Transport::Tcp && !self.config.prefer_udp);
        let asked = async {
            if tcp {
                return over_tcp(addr, &request).await;
            }
            let message = over_udp(addr, &request).await?;
            // A client that came over TCP can take the whole answer.
            if message.metadata.truncation && question.transport == Transport::Tcp { over_tcp(addr, &request).await } else { Ok(message) }
        };
        tokio::time::timeout(ANSWER_TIMEOUT, asked).await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
    }

    fn id(&self) -> u16 {
        u16::try_from(self.rng.below(1 << 16)).unwrap_or(0)
    }
}

/// One of `max_concurrent` places, given back when dropped.
struct Slot<'a>(&'a AtomicUsize);

impl<'a> Slot<'a> {
    fn take(running: &'a AtomicUsize, max: usize) -> Option<Slot<'a>> {
        let before = running.fetch_add(1, Ordering::Relaxed);
        let slot = Slot(running);
        (max == 0 || before < max).then_some(slot)
    }
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn convert(message: Message) -> Answer {
    Answer {
        code: message.metadata.response_code,
        authoritative: message.metadata.authoritative,
        truncated: message.metadata.truncation,
        answers: message.answers,
        authorities: message.authorities,
        additionals: message.additionals,
        plugin: "forward",
    }
}

fn query(id: u16, name: Name, kind: RecordType, dnssec_ok: bool) -> Message {
    let mut message = Message::query();
    message.metadata.id = id;
    message.metadata.recursion_desired = true;
    message.add_query(Query::query(name, kind));
    let mut edns = Edns::new();
    edns.set_max_payload(1232);
    edns.set_dnssec_ok(dnssec_ok);
    message.set_edns(edns);
    message
}

/// A socket of its own for each question: its random port is half of the protection against forged answers.
async fn over_udp(addr: SocketAddr, request: &Message) -> io::Result<Message> {
    let local: SocketAddr = if addr.is_ipv4() { (Ipv4Addr::UNSPECIFIED, 0).into() } else { (Ipv6Addr::UNSPECIFIED, 0).into() };
    let socket = UdpSocket::bind(local).await?;
    socket.connect(addr).await?;
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

async fn over_tcp(addr: SocketAddr, request: &Message) -> io::Result<Message> {
    let mut stream = TcpStream::connect(addr).await?;
    let bytes = request.to_vec().map_err(io::Error::other)?;
    let len = u16::try_from(bytes.len()).map_err(io::Error::other)?;
    let mut framed = len.to_be_bytes().to_vec();
    framed.extend(bytes);
    stream.write_all(&framed).await?;
    let mut answer = vec![0; usize::from(stream.read_u16().await?)];
    stream.read_exact(&mut answer).await?;
    let message = Message::from_vec(&answer).map_err(io::Error::other)?;
    if fits(&message, request) { Ok(message) } else { Err(io::Error::other("an answer to another question")) }
}

/// The same id and the same question.
fn fits(answer: &Message, request: &Message) -> bool {
    let same = match (answer.queries.first(), request.queries.first()) {
        (Some(a), Some(b)) => a.query_type == b.query_type && a.name == b.name,
        // Some servers leave the question out of a refusal.
        (None, _) => answer.metadata.response_code != ResponseCode::NoError,
        _ => false,
    };
    answer.metadata.id == request.metadata.id && same
}
