//! The forward plugin: asking the resolvers of the outside, and leaving out those that are down.
//!
//! A resolver that fails is asked for a sign of life in the background until it gives one; meanwhile others are
//! preferred. When all are down one is asked nevertheless, as the check may be what fails.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use base::exposition::Labels;
use base::rng::Rng;
use base::task::Group;
use hickory_proto::op::{Edns, Message, Query, ResponseCode};
use hickory_proto::rr::{Name, RecordType};

use crate::config::{self, Policy};
use crate::metrics::Metrics;
use crate::question::{Answer, Question, Transport};

mod upstream;

use upstream::{Protocol, Upstream};

/// One resolver's time for one question.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// All resolvers' time for one question, as CoreDNS's.
const QUESTION_TIMEOUT: Duration = Duration::from_secs(5);

/// No resolver has answered; the last one's failure.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Unanswered(String);

pub(crate) struct Forwarder {
    config: config::Forward,
    upstreams: Vec<Arc<Upstream>>,
    turn: AtomicUsize,
    running: AtomicUsize,
    rng: Rng,
    group: Group,
    metrics: Arc<Metrics>,
}

impl Forwarder {
    pub(crate) fn new(config: config::Forward, rng: &Rng, group: &Group, metrics: &Arc<Metrics>) -> Arc<Forwarder> {
        let upstreams = config.to.iter().map(|target| Upstream::new(*target, &config)).collect();
        Arc::new(Forwarder {
            config,
            upstreams,
            turn: AtomicUsize::new(0),
            running: AtomicUsize::new(0),
            rng: rng.clone(),
            group: group.clone(),
            metrics: Arc::clone(metrics),
        })
    }

    pub(crate) fn wants(&self, question: &Question) -> bool {
        self.config.from.iter().any(|zone| zone.zone_of(&question.lower))
            && !self.config.except.iter().any(|zone| zone.zone_of(&question.lower))
    }

    /// Whether the next `forward` is asked when this is the answer.
    pub(crate) fn passes_on(&self, answer: &Answer) -> bool {
        self.config.next.contains(&answer.code)
    }

    pub(crate) async fn answer(&self, question: &Question) -> Answer {
        let Some(_slot) = Slot::take(&self.running, self.config.concurrent_max) else {
            self.metrics.count("coredns_forward_max_concurrent_rejects_total", Labels::default());
            let why = format!("concurrent queries exceeded maximum {}", self.config.concurrent_max);
            return Answer { fault: Some(why.into()), ..Answer::new(ResponseCode::Refused, "forward") };
        };
        match tokio::time::timeout(QUESTION_TIMEOUT, self.ask_in_turn(question)).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(Unanswered(why))) => Answer::failed("forward", why),
            Err(_) => Answer::failed("forward", "no upstream answered in time: i/o timeout"),
        }
    }

    async fn ask_in_turn(&self, question: &Question) -> Result<Answer, Unanswered> {
        let order = self.order();
        if order.is_empty() {
            return Err(Unanswered("no upstream host".to_owned()));
        }
        if order.iter().all(|upstream| upstream.is_down(self.config.fails_max)) {
            self.metrics.count("coredns_forward_healthcheck_broken_total", Labels::default());
            if self.config.failfast {
                return Err(Unanswered("no healthy upstream".to_owned()));
            }
        }
        let (mut why, mut refused) = (String::new(), None);
        for upstream in order {
            let stopwatch = base::time::Stopwatch::start();
            match self.ask(upstream, question).await {
                Ok(message) => {
                    upstream.is_well();
                    self.metrics.forwarded(&upstream.text, message.metadata.response_code, stopwatch.elapsed());
                    let answer = convert(message);
                    if !self.config.failover.contains(&answer.code) {
                        return Ok(answer);
                    }
                    refused = Some(answer);
                }
                Err(err) => {
                    why = upstream.explain(&err, self.protocol(upstream, question));
                    self.note_failure(upstream);
                }
            }
        }
        refused.ok_or(Unanswered(why))
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
        order.sort_by_key(|upstream| upstream.is_down(self.config.fails_max));
        order
    }

    fn note_failure(&self, upstream: &Arc<Upstream>) {
        if !upstream.fails_once_more() || self.config.fails_max == 0 {
            return;
        }
        let (upstream, check, id) = (Arc::clone(upstream), self.config.health_check.clone(), self.id());
        let (metrics, protocol) = (Arc::clone(&self.metrics), self.protocol_of_checks(&upstream));
        self.group.spawn_short("forward-check", async move {
            loop {
                tokio::time::sleep(check.interval.max(CHECK_PAUSE_MIN)).await;
                // Any answer is a sign of life.
                let mut probe = query(id, check.domain.clone(), RecordType::NS);
                probe.metadata.recursion_desired = check.recursion_desired;
                let asked = upstream.ask(&probe, protocol);
                if matches!(tokio::time::timeout(ANSWER_TIMEOUT, asked).await, Ok(Ok(_))) {
                    break;
                }
                let labels = Labels::of(&[("proxy_name", "forward"), ("to", &upstream.text)]);
                metrics.count("coredns_proxy_healthcheck_failures_total", labels);
            }
            upstream.is_checked();
        });
    }

    fn protocol_of_checks(&self, upstream: &Upstream) -> Protocol {
        match upstream.is_tls() {
            true => Protocol::Tls,
            false if self.config.force_tcp => Protocol::Tcp,
            false => Protocol::Udp,
        }
    }

    fn protocol(&self, upstream: &Upstream, question: &Question) -> Protocol {
        let by_tcp = question.transport == Transport::Tcp && !self.config.prefer_udp;
        match self.protocol_of_checks(upstream) {
            Protocol::Udp if by_tcp => Protocol::Tcp,
            protocol => protocol,
        }
    }

    async fn ask(&self, upstream: &Upstream, question: &Question) -> io::Result<Message> {
        let mut request = query(self.id(), question.name.clone(), question.kind);
        if let Some(query) = request.queries.first_mut() {
            query.query_class = question.class;
        }
        request.metadata.recursion_desired = question.recursion_desired;
        request.metadata.checking_disabled = question.checking_disabled;
        if question.edns {
            let mut edns = Edns::new();
            edns.set_max_payload(question.payload);
            edns.set_dnssec_ok(question.dnssec_ok);
            for option in question.options.iter() {
                edns.options_mut().insert(option.clone());
            }
            request.set_edns(edns);
        }
        let protocol = self.protocol(upstream, question);
        let asked = async {
            let message = upstream.ask(&request, protocol).await?;
            // A client that came over TCP can take the whole answer.
            let again =
                protocol == Protocol::Udp && message.metadata.truncation && question.transport == Transport::Tcp;
            if again { upstream.ask(&request, Protocol::Tcp).await } else { Ok(message) }
        };
        tokio::time::timeout(ANSWER_TIMEOUT, asked).await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
    }

    fn id(&self) -> u16 {
        u16::try_from(self.rng.below(1 << 16)).unwrap_or(0)
    }
}

/// A check that fails is not made again at once.
const CHECK_PAUSE_MIN: Duration = Duration::from_millis(100);

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
        fault: None,
        extra: None,
    }
}

fn query(id: u16, name: Name, kind: RecordType) -> Message {
    let mut message = Message::query();
    message.metadata.id = id;
    message.metadata.recursion_desired = true;
    message.add_query(Query::query(name, kind));
    message
}

#[cfg(test)]
mod tests;
