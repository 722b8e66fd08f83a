//! The forward plugin: asking the resolvers of the outside, and leaving out those that are down.
//!
//! A resolver that fails is asked for a sign of life in the background until it gives one; meanwhile others are
//! preferred. When all are down one is asked nevertheless, as the check may be what fails.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

use base::rng::Rng;
use base::sync::Mutex;
use base::task::Group;
use hickory_proto::op::{Edns, Message, Query, ResponseCode};
use hickory_proto::rr::{Name, RecordType};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::Instant;

use crate::config::{self, Policy};
use crate::question::{Answer, Question, Transport};

/// One resolver's time for one question.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// All resolvers' time for one question, as CoreDNS's.
const QUESTION_TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes that we take in one datagram.
const UDP_BYTES_MAX: usize = 4096;
/// A socket asks one question after the other for this long: its random port is half of the protection against forged
/// answers.
const SOCKET_LIFE: Duration = Duration::from_secs(10);
/// Sockets that wait for the next question to a resolver; more are closed.
const SOCKETS_MAX: usize = 64;

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
    idle: Mutex<Vec<Lane>>,
}

/// A connected socket, used for one question at a time.
struct Lane {
    socket: UdpSocket,
    made: Instant,
}

impl Upstream {
    fn new(addr: SocketAddr) -> Arc<Upstream> {
        Arc::new(Upstream { addr, fails: AtomicU32::new(0), checking: AtomicBool::new(false), idle: Mutex::default() })
    }

    /// Asks over a socket that is free, or a new one. One whose question was not answered is closed.
    async fn over_udp(&self, request: &Message) -> io::Result<Message> {
        let free = {
            let mut idle = self.idle.lock();
            idle.retain(|lane| lane.made.elapsed() < SOCKET_LIFE);
            idle.pop()
        };
        let lane = match free {
            Some(lane) => lane,
            None => Lane { socket: connected(self.addr).await?, made: Instant::now() },
        };
        let answer = ask_once(&lane.socket, request).await?;
        let mut idle = self.idle.lock();
        if idle.len() < SOCKETS_MAX {
            idle.push(lane);
        }
        Ok(answer)
    }
}

impl Forwarder {
    pub(crate) fn new(config: config::Forward, rng: &Rng, group: &Group) -> Arc<Forwarder> {
        let upstreams = config.to.iter().map(|addr| Upstream::new(*addr)).collect();
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
        self.config.from.iter().any(|zone| zone.zone_of(&question.lower))
            && !self.config.except.iter().any(|zone| zone.zone_of(&question.lower))
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
            match self.ask(upstream, question).await {
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
                let probe = query(id, Name::root(), RecordType::NS);
                if matches!(tokio::time::timeout(ANSWER_TIMEOUT, upstream.over_udp(&probe)).await, Ok(Ok(_))) {
                    break;
                }
            }
            upstream.fails.store(0, Ordering::Relaxed);
            upstream.checking.store(false, Ordering::Relaxed);
        });
    }

    async fn ask(&self, upstream: &Upstream, question: &Question) -> io::Result<Message> {
        let mut request = query(self.id(), question.name.clone(), question.kind);
        request.metadata.recursion_desired = question.recursion_desired;
        request.metadata.checking_disabled = question.checking_disabled;
        if question.edns {
            let mut edns = Edns::new();
            edns.set_max_payload(1232);
            edns.set_dnssec_ok(question.dnssec_ok);
            request.set_edns(edns);
        }
        let tcp = self.config.force_tcp || (question.transport == Transport::Tcp && !self.config.prefer_udp);
        let asked = async {
            if tcp {
                return over_tcp(upstream.addr, &request).await;
            }
            let message = upstream.over_udp(&request).await?;
            // A client that came over TCP can take the whole answer.
            if message.metadata.truncation && question.transport == Transport::Tcp {
                over_tcp(upstream.addr, &request).await
            } else {
                Ok(message)
            }
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

pub(crate) fn convert(message: Message) -> Answer {
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

fn query(id: u16, name: Name, kind: RecordType) -> Message {
    let mut message = Message::query();
    message.metadata.id = id;
    message.metadata.recursion_desired = true;
    message.add_query(Query::query(name, kind));
    message
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// A resolver that knows no EDNS: FORMERR to whoever speaks it. Tells the ports of those who ask.
    async fn old_resolver(group: &Group) -> (SocketAddr, Arc<Mutex<BTreeSet<u16>>>) {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let (addr, ports) = (socket.local_addr().unwrap(), Arc::<Mutex<BTreeSet<u16>>>::default());
        let seen = Arc::clone(&ports);
        group.spawn_short("resolver", async move {
            let mut buffer = vec![0; 4096];
            while let Ok((len, peer)) = socket.recv_from(&mut buffer).await {
                let asked = Message::from_vec(&buffer[..len]).unwrap();
                seen.lock().insert(peer.port());
                let mut reply = Message::response(asked.metadata.id, asked.metadata.op_code);
                reply.queries.clone_from(&asked.queries);
                reply.metadata.response_code =
                    if asked.edns.is_some() { ResponseCode::FormErr } else { ResponseCode::NoError };
                socket.send_to(&reply.to_vec().unwrap(), peer).await.unwrap();
            }
        });
        (addr, ports)
    }

    fn config(to: Vec<SocketAddr>) -> config::Forward {
        config::Forward {
            from: vec![Name::root()],
            to,
            except: Vec::new(),
            policy: Policy::Sequential,
            force_tcp: false,
            prefer_udp: false,
            fails_max: 2,
            health_check: Duration::from_secs(1),
            concurrent_max: 0,
        }
    }

    #[tokio::test]
    async fn edns_is_spoken_only_by_clients_that_speak_it_and_sockets_are_used_again() {
        let (group, _reports) = Group::root("test");
        let (addr, ports) = old_resolver(&group).await;
        let forwarder = Forwarder::new(config(vec![addr]), &Rng::from_seed(1), &group);
        let mut message = query(1, Name::from_ascii("example.org.").unwrap(), RecordType::A);
        for _ in 0..5 {
            let plain = Question::of(&message, Transport::Udp).unwrap();
            assert_eq!(forwarder.answer(&plain).await.code, ResponseCode::NoError);
        }
        assert_eq!(ports.lock().len(), 1);
        message.set_edns(Edns::new());
        let modern = Question::of(&message, Transport::Udp).unwrap();
        assert_eq!(forwarder.answer(&modern).await.code, ResponseCode::FormErr);
        group.shutdown().await;
    }

    /// A forwarder to three resolvers that nobody asks, and the order of its next question by their ports.
    fn three(policy: Policy, group: &Group) -> (Arc<Forwarder>, impl Fn() -> Vec<u16>) {
        let to = [1, 2, 3].map(|port| SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port)).to_vec();
        let forwarder = Forwarder::new(config::Forward { policy, ..config(to) }, &Rng::from_seed(1), group);
        let same = Arc::clone(&forwarder);
        (forwarder, move || same.order().iter().map(|upstream| upstream.addr.port()).collect())
    }

    #[tokio::test]
    async fn resolvers_are_asked_in_the_order_of_the_policy() {
        let (group, _reports) = Group::root("test");
        let (_, order) = three(Policy::Sequential, &group);
        assert_eq!([order(), order()], [[1, 2, 3], [1, 2, 3]]);
        let (_, order) = three(Policy::RoundRobin, &group);
        assert_eq!([order(), order(), order(), order()], [[1, 2, 3], [2, 3, 1], [3, 1, 2], [1, 2, 3]]);
        let (_, order) = three(Policy::Random, &group);
        let seen: BTreeSet<Vec<u16>> = (0..200).map(|_| order()).collect();
        assert_eq!(seen.len(), 6, "every order comes");
        group.shutdown().await;
    }

    #[tokio::test]
    async fn a_resolver_that_failed_too_often_is_asked_last() {
        let (group, _reports) = Group::root("test");
        let (forwarder, order) = three(Policy::Sequential, &group);
        forwarder.upstreams[0].fails.store(1, Ordering::Relaxed);
        assert_eq!(order(), [1, 2, 3], "once is not too often");
        forwarder.upstreams[0].fails.store(2, Ordering::Relaxed);
        assert_eq!(order(), [2, 3, 1]);
        forwarder.upstreams.iter().for_each(|upstream| upstream.fails.store(9, Ordering::Relaxed));
        assert_eq!(order(), [1, 2, 3], "when all are down each may be asked");
        group.shutdown().await;
    }

    #[tokio::test]
    async fn names_outside_the_zones_and_excepted_ones_are_not_forwarded() {
        let (group, _reports) = Group::root("test");
        let zones = |texts: &[&str]| texts.iter().map(|text| Name::from_ascii(text).unwrap()).collect::<Vec<_>>();
        let config = config::Forward {
            from: zones(&["16.172.in-addr.arpa.", "example.org."]),
            except: zones(&["local.example.org."]),
            ..config(Vec::new())
        };
        let forwarder = Forwarder::new(config, &Rng::from_seed(1), &group);
        let wants = |name: &str| {
            let message = query(1, Name::from_ascii(name).unwrap(), RecordType::A);
            forwarder.wants(&Question::of(&message, Transport::Udp).unwrap())
        };
        assert!(wants("www.Example.org.") && wants("example.org.") && wants("1.0.16.172.in-addr.arpa."));
        assert!(!wants("a.local.example.org.") && !wants("example.com.") && !wants("1.0.17.172.in-addr.arpa."));
        group.shutdown().await;
    }

    #[test]
    fn an_answer_must_have_the_id_and_the_question_that_were_asked() {
        let name = |text: &str| Name::from_ascii(text).unwrap();
        let asked = query(7, name("a.test."), RecordType::A);
        let refusal = |code: ResponseCode| {
            let mut message = query(7, name("a.test."), RecordType::A);
            message.queries.clear();
            message.metadata.response_code = code;
            message
        };
        for (case, answer, wanted) in [
            ("the same", query(7, name("a.test."), RecordType::A), true),
            ("other letters", query(7, name("A.TEST."), RecordType::A), true),
            ("another id", query(8, name("a.test."), RecordType::A), false),
            ("another name", query(7, name("b.test."), RecordType::A), false),
            ("another type", query(7, name("a.test."), RecordType::AAAA), false),
            ("a refusal without a question", refusal(ResponseCode::Refused), true),
            ("an answer without a question", refusal(ResponseCode::NoError), false),
        ] {
            assert_eq!(fits(&answer, &asked), wanted, "{case}");
        }
    }

    #[test]
    fn places_are_given_back() {
        let running = AtomicUsize::new(0);
        let held = [Slot::take(&running, 2), Slot::take(&running, 2)];
        assert!(held.iter().all(Option::is_some) && Slot::take(&running, 2).is_none());
        drop(held);
        assert!(Slot::take(&running, 2).is_some());
        assert_eq!(running.load(Ordering::Relaxed), 0);
        let unbounded: Vec<_> = (0..9).map(|_| Slot::take(&running, 0)).collect();
        assert!(unbounded.iter().all(Option::is_some));
    }
}
