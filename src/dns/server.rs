//! Sockets on one side, plugins on the other: reads messages, finds the server block, walks its plugins (`chain.rs`),
//! writes answers.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use base::permits::{Permit, Permits};
use base::rng::Rng;
use base::task::Group;
use base::time::Stopwatch;
use hickory_proto::op::{Message, MessageType, OpCode, ResponseCode};
use hickory_proto::rr::{DNSClass, Name};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::Instant;
use tracing::info;

use crate::cache::Cache;
use crate::config::Block;
use crate::forward::Forwarder;
use crate::hosts::Hosts;
use crate::kube_plugin::Kubernetes;
use crate::metrics::{Metrics, Served};
use crate::plugin::errors::Tally;
use crate::plugin::log::Seen;
use crate::plugin::zone_file::Zones;
use crate::question::{Answer, Question, Transport};

mod chain;
pub(crate) mod listen;
mod reply;

/// Questions that wait for resolvers of the outside at one time, of one client and of all; more are refused. What is
/// known here waits for nobody and needs no place.
const FORWARDED_OF_CLIENT_MAX: usize = 128;
const FORWARDED_MAX: usize = 1024;
/// As many again for clients that find those taken: whoever asks for names of a dead zone in eight pods has the first
/// ones.
const SPARE_OF_CLIENT_MAX: usize = 16;
const SPARE_MAX: usize = 1024;
/// TCP connections at one time, of all clients and of one; more are closed at once. They take no places from questions
/// over UDP.
const CONNECTIONS_MAX: usize = 1024;
const CONNECTIONS_OF_CLIENT_MAX: usize = 32;
/// Bytes of answers over TCP that wait for their clients to read, of one connection (two of the largest) and of all.
/// More are not sent.
const UNREAD_OF_CONNECTION_MAX: usize = 128 * 1024;
const UNREAD_MAX: usize = 48 * 1024 * 1024;
/// Answers that are fetched again behind the clients' backs at one time; more are not, and are tried with a later
/// question.
const REFRESHES_MAX: usize = 64;
/// A probe of ours that comes back more often than this goes in a circle.
const LOOP_SEEN_MAX: u32 = 2;
/// Later than this no probe comes back any more. Resolvers have seen its name, and whoever asks for it then would end
/// the process.
const LOOP_LOOK: Duration = Duration::from_secs(30);

/// One server block at work.
pub(crate) struct Site {
    pub(crate) block: Block,
    pub(crate) errors: Option<Arc<Tally>>,
    pub(crate) cache: Option<Cache>,
    pub(crate) hosts: Option<Arc<Hosts>>,
    pub(crate) kubernetes: Option<Arc<Kubernetes>>,
    pub(crate) files: Vec<Arc<Zones>>,
    pub(crate) forwarders: Vec<Arc<Forwarder>>,
    pub(crate) loop_probe: Option<LoopProbe>,
}

impl Site {
    /// A site whose parts are still to be made.
    pub(crate) fn of(block: Block) -> Site {
        Site {
            errors: block.errors.clone().map(Tally::new),
            cache: block.cache.clone().map(Cache::new),
            hosts: None,
            kubernetes: None,
            files: block.files.iter().cloned().map(Zones::new).collect(),
            forwarders: Vec::new(),
            loop_probe: None,
            block,
        }
    }
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

/// Parts that all servers of a process share.
#[derive(Clone)]
pub(crate) struct Shared {
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) rng: Rng,
    /// Where a detected loop is reported, which ends the process.
    pub(crate) fatal: mpsc::Sender<String>,
    /// Tasks behind the clients' backs live in it.
    pub(crate) group: Group,
}

/// All blocks of one port.
pub(crate) struct Server {
    /// The most labels first.
    zones: Vec<ServedZone>,
    label: Arc<str>,
    shared: Shared,
    /// Questions that wait for resolvers, by client: the usual places, and the spare ones.
    forwarded: [Arc<Permits<IpAddr>>; 2],
    /// Places for answers that are fetched again.
    refreshes: Arc<Semaphore>,
    /// Places for bytes of answers that clients have not read.
    unread: Semaphore,
    /// TCP connections by client. An address is a client, also of IPv6: the pods of a node have their addresses in one
    /// /64.
    connections: Arc<Permits<IpAddr>>,
}

/// A zone with its server block.
struct ServedZone {
    name: Name,
    /// As metrics name it.
    text: Arc<str>,
    site: Arc<Site>,
}

/// A question's answer, with the server block and the zone that gave it.
struct Answered {
    place: Option<(Arc<Site>, Arc<str>)>,
    answer: Answer,
}

impl Server {
    /// `label` is `dns://:53`, as metrics and logs name the server.
    pub(crate) fn new(sites: Vec<Arc<Site>>, label: &str, shared: Shared) -> Server {
        let zones = sites.iter().flat_map(|site| site.block.zones.iter().map(move |zone| (site, &zone.name)));
        let served = |(site, name): (&Arc<Site>, &Name)| ServedZone {
            name: name.clone(),
            text: name.to_ascii().into(),
            site: Arc::clone(site),
        };
        let mut zones: Vec<ServedZone> = zones.map(served).collect();
        zones.sort_by_key(|zone| std::cmp::Reverse(zone.name.num_labels()));
        Server {
            zones,
            label: label.into(),
            shared,
            forwarded: [
                Permits::new(FORWARDED_OF_CLIENT_MAX, FORWARDED_MAX),
                Permits::new(SPARE_OF_CLIENT_MAX, SPARE_MAX),
            ],
            refreshes: Arc::new(Semaphore::new(REFRESHES_MAX)),
            unread: Semaphore::new(UNREAD_MAX),
            connections: Permits::new(CONNECTIONS_OF_CLIENT_MAX, CONNECTIONS_MAX),
        }
    }

    /// The block with the longest zone that holds the name, and that zone's text.
    fn site(&self, lower: &Name) -> Option<(&Arc<Site>, &Arc<str>)> {
        let zone = self.zones.iter().find(|zone| zone.name.is_root() || zone.name.zone_of(lower))?;
        Some((&zone.site, &zone.text))
    }

    /// The whole way of one message: bytes in, bytes out. `None`: nothing is answered.
    async fn handle(self: &Arc<Server>, bytes: &[u8], peer: SocketAddr, transport: Transport) -> Option<Vec<u8>> {
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
        let Answered { place, mut answer } = self.answer(&request, transport, peer).await;
        let dropped = answer.extra.as_ref().is_some_and(|extra| extra.dropped);
        let block = place.as_ref().map(|(site, _)| &site.block);
        let shape = reply::Shape {
            nsid: block.and_then(|block| block.nsid.as_deref()),
            bufsize: block.and_then(|block| block.bufsize),
        };
        let (reply, flags) = reply::encode(&request, &mut answer, transport, shape)?;
        if let Some((site, zone)) = &place {
            let seen = Seen {
                request: &request,
                reply: flags,
                answer: &answer,
                peer,
                local: None,
                transport,
                request_bytes: bytes.len(),
                reply_bytes: reply.len(),
                took: stopwatch.elapsed(),
            };
            self.note(site, zone, &seen);
        }
        (!dropped).then_some(reply)
    }

    async fn answer(self: &Arc<Server>, request: &Message, transport: Transport, peer: SocketAddr) -> Answered {
        let refuse = |code| Answered { place: None, answer: Answer::new(code, "") };
        if request.metadata.op_code != OpCode::Query {
            return refuse(ResponseCode::NotImp);
        }
        if request.edns.as_ref().is_some_and(|edns| edns.version() != 0) {
            return refuse(ResponseCode::BADVERS);
        }
        let (1, Some(mut question)) = (request.queries.len(), Question::of(request, transport)) else {
            return refuse(ResponseCode::FormErr);
        };
        question.client = peer;
        let Some((site, zone)) = self.site(&question.lower) else { return refuse(ResponseCode::Refused) };
        // Other classes are for the plugins that speak of classes.
        let speaks = !site.block.rewrite.is_empty() || !site.block.templates.is_empty();
        if question.class != DNSClass::IN && !speaks {
            return refuse(ResponseCode::Refused);
        }
        if let Some(bufsize) = site.block.bufsize {
            question.payload = bufsize;
        }
        let resolved = self.resolve(site, &question, 0);
        let answer = match site.block.cancel {
            None => resolved.await,
            Some(limit) => tokio::time::timeout(limit, resolved)
                .await
                .unwrap_or_else(|_| Answer::failed("cancel", "context deadline exceeded")),
        };
        Answered { place: Some((Arc::clone(site), Arc::clone(zone))), answer }
    }

    fn permit_to_forward(&self, client: IpAddr) -> Option<Permit<IpAddr>> {
        self.forwarded.iter().find_map(|permits| permits.take(client).ok())
    }

    /// Logs and counts a question with its answer.
    fn note(&self, site: &Arc<Site>, zone: &Arc<str>, seen: &Seen<'_>) {
        for line in site.block.log.iter().filter_map(|log| log.line(seen)) {
            info!("{line}");
        }
        let Some(query) = seen.request.queries.first() else { return };
        if site.block.debug {
            info!(name = %query.name.to_ascii(), kind = %query.query_type, plugin = seen.answer.plugin, "answered");
        }
        if let (Some(tally), true) = (&site.errors, seen.answer.code == ResponseCode::ServFail) {
            let why = seen.answer.fault.as_deref().unwrap_or("no plugin has an answer");
            let code = u16::from(seen.answer.code);
            tally.note(&format!("{code} {} {}: {why}", query.name.to_ascii(), query.query_type), &self.shared.group);
        }
        if site.block.prometheus.is_some() {
            self.shared.metrics.served(&Served {
                server: &self.label,
                zone,
                transport: seen.transport,
                is_v4: seen.peer.ip().to_canonical().is_ipv4(),
                kind: query.query_type,
                code: seen.answer.code,
                plugin: seen.answer.plugin,
                request_bytes: seen.request_bytes,
                response_bytes: seen.reply_bytes,
                took: seen.took,
            });
        }
    }
}

#[cfg(test)]
mod chain_tests;
#[cfg(test)]
mod fuzz_tests;
#[cfg(test)]
mod tests;
