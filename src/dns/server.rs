//! Sockets on one side, plugins on the other: reads messages, finds the server block, walks its plugins, writes
//! answers.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use base::exposition::Labels;
use base::permits::{Permit, Permits};
use base::rng::Rng;
use base::task::Group;
use base::time::Stopwatch;
use hickory_proto::op::{Edns, Message, MessageType, OpCode, ResponseCode};
use hickory_proto::rr::{DNSClass, Name, RData, RecordType};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::Instant;
use tracing::{info, warn};

use crate::DnsError;
use crate::cache::Cache;
use crate::config::Block;
use crate::forward::Forwarder;
use crate::hosts::Hosts;
use crate::kube_plugin::Kubernetes;
use crate::metrics::{Metrics, Served};
use crate::question::{Answer, Question, Transport};

/// Questions that wait for resolvers of the outside at one time, of one client and of all; more are refused. What is
/// known here waits for nobody and needs no place.
const FORWARDED_OF_CLIENT_MAX: usize = 128;
const FORWARDED_MAX: usize = 1024;
/// As many again for clients that find those taken: whoever asks for names of a dead zone in eight pods has the first
/// ones.
const SPARE_OF_CLIENT_MAX: usize = 16;
const SPARE_MAX: usize = 1024;
/// A silent TCP connection is closed after this.
const TCP_IDLE: Duration = Duration::from_secs(10);
/// TCP connections at one time, of all clients and of one; more are closed at once. They take no places from questions
/// over UDP.
const CONNECTIONS_MAX: usize = 1024;
const CONNECTIONS_OF_CLIENT_MAX: usize = 32;
/// Questions of one connection that are answered at one time; the next one is read when one of them is done.
const QUESTIONS_OF_CONNECTION_MAX: usize = 16;
/// A question is one name and a few options; whoever announces more loses its connection.
const QUESTION_BYTES_MAX: usize = 4096;
/// Bytes of answers over TCP that wait for their clients to read, of one connection (two of the largest) and of all.
/// More are not sent.
const UNREAD_OF_CONNECTION_MAX: usize = 128 * 1024;
const UNREAD_MAX: usize = 48 * 1024 * 1024;
/// A record takes at least this much: a pointer to its name, type, class, time to live, length.
const RECORD_BYTES_MIN: usize = 12;
/// Bytes that fit through every network without fragments; larger promises of clients are not believed.
const UDP_BYTES_MAX: u16 = 1232;
const CNAME_DEPTH_MAX: usize = 8;
/// A probe of ours that comes back more often than this goes in a circle.
const LOOP_SEEN_MAX: u32 = 2;
/// Later than this no probe comes back any more. Resolvers have seen its name, and whoever asks for it then would end
/// the process.
const LOOP_LOOK: Duration = Duration::from_secs(30);

/// One server block at work.
pub(crate) struct Site {
    pub(crate) block: Block,
    pub(crate) cache: Option<Cache>,
    pub(crate) hosts: Option<Arc<Hosts>>,
    pub(crate) kubernetes: Option<Arc<Kubernetes>>,
    pub(crate) forwarders: Vec<Arc<Forwarder>>,
    pub(crate) loop_probe: Option<LoopProbe>,
}

/// A name that only we know; hearing it again and again means that a resolver sends our questions back to us.
pub(crate) struct LoopProbe {
    pub(crate) name: Name,
    seen: AtomicU32,
    made: Instant,
}

impl LoopProbe {
    pub(crate) fn new(name: Name) -> LoopProbe {
        LoopProbe { name, seen: AtomicU32::new(0), made: Instant::now() }
    }

    /// Whether this question is the probe once more often than a probe comes that goes in no circle.
    fn circles(&self, question: &Question, now: Instant) -> bool {
        let is_probe = self.name == question.lower && now.duration_since(self.made) < LOOP_LOOK;
        is_probe && self.seen.fetch_add(1, Ordering::Relaxed) + 1 > LOOP_SEEN_MAX
    }
}

/// All blocks of one port.
pub(crate) struct Server {
    pub(crate) sites: Vec<Arc<Site>>,
    pub(crate) label: String,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) rng: Rng,
    /// Where a detected loop is reported, which ends the process.
    pub(crate) fatal: mpsc::Sender<String>,
    /// Questions that wait for resolvers, by client: the usual places, and the spare ones.
    forwarded: [Arc<Permits<IpAddr>>; 2],
    /// Places for bytes of answers that clients have not read.
    unread: Semaphore,
    /// TCP connections by client. An address is a client, also of IPv6: the pods of a node have their addresses in one
    /// /64.
    connections: Arc<Permits<IpAddr>>,
}

impl Server {
    pub(crate) fn new(
        sites: Vec<Arc<Site>>,
        port: u16,
        metrics: Arc<Metrics>,
        rng: Rng,
        fatal: mpsc::Sender<String>,
    ) -> Server {
        Server {
            sites,
            label: format!("dns://:{port}"),
            metrics,
            rng,
            fatal,
            forwarded: [
                Permits::new(FORWARDED_OF_CLIENT_MAX, FORWARDED_MAX),
                Permits::new(SPARE_OF_CLIENT_MAX, SPARE_MAX),
            ],
            unread: Semaphore::new(UNREAD_MAX),
            connections: Permits::new(CONNECTIONS_OF_CLIENT_MAX, CONNECTIONS_MAX),
        }
    }

    /// The block with the longest zone that holds the name.
    fn site(&self, lower: &Name) -> Option<(&Arc<Site>, &Name)> {
        let zones = self.sites.iter().flat_map(|site| site.block.zones.iter().map(move |zone| (site, &zone.name)));
        zones.filter(|(_, zone)| zone.zone_of(lower)).max_by_key(|(_, zone)| zone.num_labels())
    }

    /// The whole way of one message: bytes in, bytes out. `None`: nothing is answered.
    async fn handle(&self, bytes: &[u8], peer: SocketAddr, transport: Transport) -> Option<Vec<u8>> {
        let stopwatch = Stopwatch::start();
        let Ok(request) = Message::from_vec(bytes) else {
            // At least the header must be there to be answered.
            let id = u16::from_be_bytes([*bytes.first()?, *bytes.get(1)?]);
            return (bytes.len() >= 12 && bytes[2] & 0x80 == 0)
                .then(|| Message::error_msg(id, OpCode::Query, ResponseCode::FormErr).to_vec().ok())
                .flatten();
        };
        if request.metadata.message_type != MessageType::Query {
            return None;
        }
        let (zone, site, answer) = self.answer(&request, transport, peer.ip().to_canonical()).await;
        let reply = encode(&request, answer.clone(), transport)?;
        let kind = request.queries.first().map_or(RecordType::ZERO, |query| query.query_type);
        let zone = zone.map_or_else(|| "dropped".to_owned(), |zone| zone.to_ascii());
        self.note(&Noted {
            request: &request,
            answer: &answer,
            zone: &zone,
            site,
            kind,
            peer,
            transport,
            sizes: (bytes.len(), reply.len()),
            took: stopwatch.elapsed(),
        });
        Some(reply)
    }

    async fn answer(
        &self,
        request: &Message,
        transport: Transport,
        client: IpAddr,
    ) -> (Option<Name>, Option<Arc<Site>>, Answer) {
        let refuse = |code| (None, None, Answer::new(code, ""));
        if request.metadata.op_code != OpCode::Query {
            return refuse(ResponseCode::NotImp);
        }
        if request.edns.as_ref().is_some_and(|edns| edns.version() != 0) {
            return refuse(ResponseCode::BADVERS);
        }
        let (1, Some(question)) = (request.queries.len(), Question::of(request, transport)) else {
            return refuse(ResponseCode::FormErr);
        };
        if request.queries.first().is_none_or(|query| query.query_class != DNSClass::IN) {
            return refuse(ResponseCode::Refused);
        }
        match self.site(&question.lower) {
            None => refuse(ResponseCode::Refused),
            Some((site, zone)) => {
                (Some(zone.clone()), Some(Arc::clone(site)), self.resolve(site, &question, client, 0).await)
            }
        }
    }

    /// cache → hosts → kubernetes → loop → forward, and the order of addresses is changed on the way back.
    async fn resolve(&self, site: &Site, question: &Question, client: IpAddr, depth: usize) -> Answer {
        let cache = site.cache.as_ref().filter(|cache| cache.wants(question));
        let labels = || Labels::of(&[("server", &self.label), ("zones", "."), ("view", "")]);
        if let Some(mut answer) = cache.and_then(|cache| cache.get(question)) {
            let kind = if answer.answers.is_empty() { "denial" } else { "success" };
            self.metrics.count("coredns_cache_hits_total", labels().and(&[("type", kind)]));
            self.metrics.count("coredns_cache_requests_total", labels());
            self.balance(site, &mut answer);
            return answer;
        }
        let mut answer = Box::pin(self.ask_plugins(site, question, client, depth)).await;
        if let Some(cache) = cache {
            self.metrics.count("coredns_cache_misses_total", labels());
            self.metrics.count("coredns_cache_requests_total", labels());
            cache.put(question, &mut answer);
        }
        self.balance(site, &mut answer);
        answer
    }

    async fn ask_plugins(&self, site: &Site, question: &Question, client: IpAddr, depth: usize) -> Answer {
        if let Some(answer) = site.hosts.as_ref().and_then(|hosts| hosts.answer(question)) {
            return answer;
        }
        if let Some(answer) = site.kubernetes.as_ref().and_then(|kubernetes| kubernetes.answer(question)) {
            return self.follow_cname(question, answer, client, depth).await;
        }
        if site.loop_probe.as_ref().is_some_and(|probe| probe.circles(question, Instant::now())) {
            let zone = site.block.zones.first().map(|zone| zone.name.to_ascii()).unwrap_or_default();
            let text = format!(
                "Loop ({}) detected for zone {zone:?}: a resolver of `forward` sends questions back here; give it \
                 other resolvers",
                self.label
            );
            // One report ends the process; a second has nothing to add.
            let _ending_already = self.fatal.try_send(text);
            return Answer::new(ResponseCode::ServFail, "loop");
        }
        for forwarder in &site.forwarders {
            if forwarder.wants(question) {
                let Some(_permit) = self.permit_to_forward(client) else {
                    return Answer::new(ResponseCode::Refused, "forward");
                };
                return forwarder.answer(question).await;
            }
        }
        Answer::new(ResponseCode::ServFail, "")
    }

    fn permit_to_forward(&self, client: IpAddr) -> Option<Permit<IpAddr>> {
        self.forwarded.iter().find_map(|permits| permits.take(client).ok())
    }

    /// A Service of type ExternalName is a name elsewhere; a client that asked for addresses gets them too.
    async fn follow_cname(&self, question: &Question, mut answer: Answer, client: IpAddr, depth: usize) -> Answer {
        let target = match answer.answers.as_slice() {
            [only] => match &only.data {
                RData::CNAME(target) => target.0.clone(),
                _ => return answer,
            },
            _ => return answer,
        };
        if !matches!(question.kind, RecordType::A | RecordType::AAAA) || depth >= CNAME_DEPTH_MAX {
            return answer;
        }
        let next = question.about(target);
        if let Some((site, _)) = self.site(&next.lower) {
            let more = Box::pin(self.resolve(site, &next, client, depth + 1)).await;
            answer.answers.extend(more.answers);
        }
        answer
    }

    /// Shuffles address records, which stand behind any CNAME.
    fn balance(&self, site: &Site, answer: &mut Answer) {
        if !site.block.loadbalance {
            return;
        }
        let is_address = |data: &RData| matches!(data, RData::A(_) | RData::AAAA(_));
        let (mut addresses, others): (Vec<_>, Vec<_>) =
            std::mem::take(&mut answer.answers).into_iter().partition(|record| is_address(&record.data));
        for at in (1..addresses.len()).rev() {
            let other = usize::try_from(self.rng.below(at as u64 + 1)).unwrap_or(0);
            addresses.swap(at, other);
        }
        answer.answers = others;
        answer.answers.extend(addresses);
    }

    fn note(&self, noted: &Noted<'_>) {
        let rcode = format!("{:?}", noted.answer.code).to_ascii_uppercase();
        let kind = match noted.kind {
            RecordType::A
            | RecordType::AAAA
            | RecordType::SRV
            | RecordType::PTR
            | RecordType::TXT
            | RecordType::MX
            | RecordType::NS
            | RecordType::SOA
            | RecordType::CNAME => noted.kind.to_string(),
            _ => "other".to_owned(),
        };
        let Some(site) = &noted.site else { return };
        let proto = if noted.transport == Transport::Udp { "udp" } else { "tcp" };
        if site.block.log {
            let name = noted.request.queries.first().map(|query| query.name.to_ascii()).unwrap_or_default();
            let (id, size, bytes) = (noted.request.metadata.id, noted.sizes.0, noted.sizes.1);
            info!(
                "{} - {id} \"{} IN {name} {proto} {size}\" {rcode} {bytes} {:.6}s",
                noted.peer,
                noted.kind,
                noted.took.as_secs_f64()
            );
        }
        if site.block.errors && noted.answer.code == ResponseCode::ServFail {
            let name = noted.request.queries.first().map(|query| query.name.to_ascii()).unwrap_or_default();
            warn!(%name, plugin = noted.answer.plugin, "no answer");
        }
        if site.block.prometheus.is_some() {
            self.metrics.served(&Served {
                server: &self.label,
                zone: noted.zone,
                proto,
                family: if noted.peer.ip().to_canonical().is_ipv4() { "1" } else { "2" },
                kind: &kind,
                rcode: &rcode,
                plugin: noted.answer.plugin,
                request_bytes: noted.sizes.0,
                response_bytes: noted.sizes.1,
                took: noted.took,
            });
        }
    }
}

/// Facts about one question, to be logged and counted.
struct Noted<'a> {
    request: &'a Message,
    answer: &'a Answer,
    zone: &'a str,
    site: Option<Arc<Site>>,
    kind: RecordType,
    peer: SocketAddr,
    transport: Transport,
    sizes: (usize, usize),
    took: Duration,
}

/// The reply's bytes, cut to what the client can take.
fn encode(request: &Message, answer: Answer, transport: Transport) -> Option<Vec<u8>> {
    let mut reply = Message::response(request.metadata.id, request.metadata.op_code);
    reply.metadata.recursion_desired = request.metadata.recursion_desired;
    reply.metadata.checking_disabled = request.metadata.checking_disabled;
    reply.metadata.recursion_available = true;
    reply.metadata.authoritative = answer.authoritative;
    reply.metadata.truncation = answer.truncated;
    reply.metadata.response_code = answer.code;
    reply.queries.clone_from(&request.queries);
    reply.answers = answer.answers;
    reply.authorities = answer.authorities;
    reply.additionals = answer.additionals;
    let mut limit = usize::from(u16::MAX);
    if let Some(asked) = &request.edns {
        let mut edns = Edns::new();
        edns.set_max_payload(UDP_BYTES_MAX);
        edns.set_dnssec_ok(asked.flags().dnssec_ok);
        reply.set_edns(edns);
    }
    if transport == Transport::Udp {
        limit = request.edns.as_ref().map_or(512, |edns| usize::from(edns.max_payload().clamp(512, UDP_BYTES_MAX)));
    }
    cut(reply, limit)
}

/// The bytes of a reply with as many of its records as fit into `limit` bytes. A Service of thousands of endpoints
/// costs what fits.
fn cut(mut reply: Message, limit: usize) -> Option<Vec<u8>> {
    let most = limit / RECORD_BYTES_MIN + 1;
    let all = reply.answers.len() + reply.authorities.len() + reply.additionals.len();
    if all <= most {
        let bytes = reply.to_vec().ok()?;
        if bytes.len() <= limit {
            return Some(bytes);
        }
    }
    // Additional records are a courtesy.
    reply.additionals.clear();
    let (answers, authorities) = (std::mem::take(&mut reply.answers), std::mem::take(&mut reply.authorities));
    let n_records = answers.len() + authorities.len();
    let mut with = |n: usize| {
        reply.answers = answers.iter().take(n).cloned().collect();
        reply.authorities = authorities.iter().take(n.saturating_sub(answers.len())).cloned().collect();
        reply.metadata.truncation |= n < n_records;
        reply.to_vec().ok()
    };
    if n_records <= most
        && let Some(bytes) = with(n_records).filter(|bytes| bytes.len() <= limit)
    {
        return Some(bytes);
    }
    // More than `fits` records do not fit, and `fits` do; a question alone always does.
    let (mut fits, mut too_many) = (0, n_records.min(most));
    while too_many - fits > 1 {
        let middle = usize::midpoint(fits, too_many);
        match with(middle)?.len() <= limit {
            true => fits = middle,
            false => too_many = middle,
        }
    }
    with(fits)
}

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

/// Opens the port and serves it as long as the group lives.
pub(crate) async fn listen(
    server: Arc<Server>,
    binds: &[IpAddr],
    port: u16,
    sockets: &mut Sockets,
    group: &Group,
) -> Result<(), DnsError> {
    // One socket for both families where the machine has both.
    let wildcard = [IpAddr::V6(Ipv6Addr::UNSPECIFIED)];
    let addrs = if binds.is_empty() { &wildcard } else { binds };
    for ip in addrs {
        let addr = SocketAddr::new(*ip, port);
        let (udp, tcp) = match sockets.open(addr).await {
            Ok(pair) => pair,
            Err(_) if binds.is_empty() => {
                let addr = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port);
                sockets.open(addr).await.map_err(|source| DnsError::Listen { addr, source })?
            }
            Err(source) => return Err(DnsError::Listen { addr, source }),
        };
        group.spawn("udp", serve_udp(Arc::clone(&server), udp, group.clone()));
        group.spawn("tcp", serve_tcp(Arc::clone(&server), tcp, group.clone()));
    }
    Ok(())
}

async fn serve_udp(server: Arc<Server>, socket: Arc<UdpSocket>, group: Group) {
    let mut buffer = vec![0; 4096];
    loop {
        // An error here is the answer to an earlier datagram (port unreachable): nothing to do with the next.
        let Ok((len, peer)) = socket.recv_from(&mut buffer).await else { continue };
        let (server, socket, bytes) = (Arc::clone(&server), Arc::clone(&socket), buffer[..len].to_vec());
        group.spawn_short("question", async move {
            if let Some(reply) = server.handle(&bytes, peer, Transport::Udp).await {
                // The asker may be gone.
                let _asker_left = socket.send_to(&reply, peer).await;
            }
        });
    }
}

async fn serve_tcp(server: Arc<Server>, listener: Arc<TcpListener>, group: Group) {
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
fn framed(reply: &[u8]) -> Vec<u8> {
    let len = u16::try_from(reply.len()).unwrap_or(u16::MAX);
    [&len.to_be_bytes()[..], reply].concat()
}

#[cfg(test)]
mod fuzz_tests;
#[cfg(test)]
mod tests;
