//! Whether the tunnel carries packets: every node asks its peers over it, with small packets and with full ones, and
//! writes what it found as its Node's condition `OverlayHealthy`.
//!
//! Full packets that vanish are the trouble of links whose MTU is smaller than the machine believes; that nothing comes
//! back at all is mostly a firewall without UDP 8472, or the checksum offload of some network cards.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use base::chain::Chain;
use base::task::Group;
use base::time::{Clock, rfc3339_secs};
use client::informer::Informer;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, Patch, PatchParams};
use serde_json::json;
use tokio::net::UdpSocket;
use tokio::sync::watch;
use tracing::{info, warn};

use crate::overlay::plan;

/// Where nodes answer, on their tunnel's address only.
const PORT: u16 = base::ports::OVERLAY_HEALTH;
const CONDITION: &str = "OverlayHealthy";
/// First byte of a question and of an answer; the rest of a packet says nothing.
const QUESTION: u8 = b'?';
const ANSWER: u8 = b'!';
const SMALL_BYTES: usize = 64;
/// For the answers of one try.
const PATIENCE: Duration = Duration::from_secs(1);
/// Tries until silence counts.
const TRIES: usize = 3;
/// Between two rounds when all is well, and when it is not.
const PERIOD: Duration = Duration::from_secs(120);
const PERIOD_BAD: Duration = Duration::from_secs(10);
/// Bad rounds in a row until it is said: a peer that starts has no routes yet.
const BAD_ROUNDS: usize = 2;
/// Peers asked in one round; a node of a large cluster asks others each time.
const PEERS_MAX: usize = 16;

/// This node's end of the tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct End {
    pub(crate) ip: IpAddr,
    pub(crate) mtu: u32,
}

/// Asks as long as the group lives, from whatever `end` the tunnel has.
pub(crate) fn start(
    name: String,
    nodes: Informer<Node>,
    api: Api<Node>,
    end: watch::Receiver<Option<End>>,
    group: &Group,
) {
    let checker = Checker { name, nodes, api, clock: group.clock().clone(), round: 0 };
    group.spawn("overlay-health", checker.run(end));
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Peer {
    name: String,
    tunnel: IpAddr,
    /// Whether a small packet came back, and a full one.
    small: bool,
    full: bool,
}

/// A condition's status, reason and text.
type Verdict = (&'static str, &'static str, String);

struct Checker {
    name: String,
    nodes: Informer<Node>,
    api: Api<Node>,
    clock: Clock,
    round: usize,
}

impl Checker {
    async fn run(mut self, mut end: watch::Receiver<Option<End>>) {
        self.nodes.synced().await;
        loop {
            let now = *end.borrow_and_update();
            let served = async {
                match now {
                    Some(now) => self.serve(now).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                err = served => {
                    warn!(err = %err, "cannot ask other nodes over the tunnel, trying again");
                    tokio::time::sleep(PERIOD_BAD).await;
                }
                Ok(()) = end.changed() => {}
            }
        }
    }

    /// Answers and asks from this end, until that fails.
    async fn serve(&mut self, end: End) -> io::Error {
        let socket = match UdpSocket::bind((end.ip, PORT)).await {
            Ok(socket) => socket,
            Err(err) => return err,
        };
        let mut bad = 0;
        loop {
            let mut peers = self.peers(&end);
            for _ in 0..TRIES {
                if let Err(err) = ask(&socket, &end, &mut peers).await {
                    return err;
                }
                if peers.iter().all(|peer| peer.full) {
                    break;
                }
            }
            let verdict = judge(&peers, end.mtu);
            let good = verdict.0 == "True";
            bad = if good { 0 } else { bad + 1 };
            let told = (good || bad >= BAD_ROUNDS) && self.say(verdict).await;
            let pause = tokio::time::sleep(if good && told { PERIOD } else { PERIOD_BAD });
            tokio::select! {
                () = pause => {}
                err = listen(&socket, &mut []) => return err,
            }
        }
    }

    /// Some nodes that are ready and ask, too.
    fn peers(&mut self, end: &End) -> Vec<Peer> {
        let nodes = self.nodes.list();
        let all: Vec<Peer> = nodes.iter().filter_map(|node| peer(node, &self.name, end)).collect();
        let start = (self.round * PEERS_MAX) % all.len().max(1);
        self.round += 1;
        all.iter().cycle().skip(start).take(all.len().min(PEERS_MAX)).cloned().collect()
    }

    /// Writes the condition unless the Node has it already. Returns whether it has it now.
    async fn say(&self, (status, reason, message): Verdict) -> bool {
        let node = self.nodes.get("", &self.name);
        let conditions = node.iter().filter_map(|node| node.status.as_ref()?.conditions.as_ref()).flatten();
        let before = conditions.into_iter().find(|c| c.type_ == CONDITION && c.status == status);
        if before.is_some_and(|c| c.message.as_ref() == Some(&message)) {
            return true;
        }
        let now = rfc3339_secs(self.clock.now());
        let since =
            before.and_then(|c| c.last_transition_time.as_ref()).map_or_else(|| now.clone(), |at| rfc3339_secs(at.0));
        let condition = json!({ "type": CONDITION, "status": status, "reason": reason, "message": message,
            "lastHeartbeatTime": now, "lastTransitionTime": since });
        let patch = json!({ "status": { "conditions": [condition] } });
        match self.api.patch_status(&self.name, &PatchParams::default(), &Patch::Strategic(patch)).await {
            Ok(_) if status == "True" => info!("{message}"),
            Ok(_) => warn!("{message}"),
            Err(err) => warn!(err = %Chain(&err), "cannot write the overlay's condition, trying again"),
        }
        // The informer hears of it in a moment; a write that failed is tried again with the next round.
        false
    }
}

/// Another node that can be asked. One without the condition is of an earlier kedge and does not answer.
fn peer(node: &Arc<Node>, own: &str, end: &End) -> Option<Peer> {
    let name = node.metadata.name.clone().filter(|name| name != own)?;
    let conditions = node.status.as_ref()?.conditions.as_ref()?;
    let ready = conditions.iter().any(|c| c.type_ == "Ready" && c.status == "True");
    let asks = conditions.iter().any(|c| c.type_ == CONDITION);
    let tunnel =
        plan::cidrs(node).into_iter().map(|cidr| cidr.network()).find(|ip| ip.is_ipv4() == end.ip.is_ipv4())?;
    (ready && asks).then_some(Peer { name, tunnel, small: false, full: false })
}

/// One try: a small and a full packet to each peer that has not answered both, and a moment for the answers.
async fn ask(socket: &UdpSocket, end: &End, peers: &mut [Peer]) -> io::Result<()> {
    let full_bytes = full_bytes(end);
    for peer in peers.iter().filter(|peer| !peer.full) {
        for bytes in [SMALL_BYTES, full_bytes] {
            let mut packet = vec![0; bytes];
            packet[0] = QUESTION;
            // A peer without a route yet is one that does not answer.
            let _sent = socket.send_to(&packet, (peer.tunnel, PORT)).await;
        }
    }
    if peers.is_empty() {
        return Ok(());
    }
    match tokio::time::timeout(PATIENCE, listen(socket, peers)).await {
        Ok(err) if err.kind() == io::ErrorKind::Other => Err(err),
        // Everybody has answered, or time is up.
        _ => Ok(()),
    }
}

/// Answers questions and notes the answers of `peers`; ends when all of them have answered in full, or with what is
/// wrong with the socket.
async fn listen(socket: &UdpSocket, peers: &mut [Peer]) -> io::Error {
    let mut packet = vec![0; 64 * 1024];
    loop {
        let (bytes, from) = match socket.recv_from(&mut packet).await {
            Ok(received) => received,
            // What ICMP says of an earlier packet.
            Err(err) if matches!(err.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::HostUnreachable) => {
                continue;
            }
            Err(err) => return io::Error::other(err),
        };
        match packet.first() {
            Some(&QUESTION) if bytes >= SMALL_BYTES && from.port() == PORT => {
                packet[0] = ANSWER;
                let _sent = socket.send_to(&packet[..bytes], from).await;
            }
            Some(&ANSWER) => {
                note(peers, from, bytes);
                if !peers.is_empty() && peers.iter().all(|peer| peer.full) {
                    return io::ErrorKind::Interrupted.into();
                }
            }
            _ => {}
        }
    }
}

fn note(peers: &mut [Peer], from: SocketAddr, bytes: usize) {
    for peer in peers.iter_mut().filter(|peer| peer.tunnel == from.ip()) {
        peer.small = true;
        peer.full |= bytes > SMALL_BYTES;
    }
}

/// A datagram that fills a packet of the tunnel: less the headers of IP and UDP.
fn full_bytes(end: &End) -> usize {
    let headers = if end.ip.is_ipv4() { 28 } else { 48 };
    usize::try_from(end.mtu).unwrap_or(0).saturating_sub(headers).max(SMALL_BYTES + 1)
}

fn judge(peers: &[Peer], mtu: u32) -> Verdict {
    let names = |bad: &dyn Fn(&&Peer) -> bool| {
        let names: BTreeSet<&str> = peers.iter().filter(bad).map(|peer| peer.name.as_str()).collect();
        names.into_iter().collect::<Vec<_>>().join(", ")
    };
    let cut = names(&|peer| peer.small && !peer.full);
    if !cut.is_empty() {
        let text = format!(
            "small packets reach {cut} over the tunnel, packets of {mtu} bytes do not: something between the machines \
             carries less than their interfaces say; lower the MTU of this machine's interface and restart kedge"
        );
        return ("False", "FullPacketsVanish", text);
    }
    let silent = names(&|peer| !peer.small);
    if !silent.is_empty() {
        let text = format!(
            "{silent} does not answer over the tunnel: let UDP port 8472 through between the machines, and what comes \
             in on kedge.1; if both is so, try 'ethtool -K kedge.1 tx-checksum-ip-generic off'"
        );
        return ("Unknown", "PeersDoNotAnswer", text);
    }
    match peers.len() {
        0 => ("True", "NoPeers", "there is no other node to reach over the tunnel".to_owned()),
        _ => ("True", "PeersAnswer", format!("other nodes answer over the tunnel, packets of {mtu} bytes included")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer_of(name: &str, small: bool, full: bool) -> Peer {
        Peer { name: name.to_owned(), tunnel: "127.0.0.1".parse().unwrap(), small, full }
    }

    #[test]
    fn what_is_wrong_names_the_peer_and_the_remedy() {
        assert_eq!(judge(&[], 1450).1, "NoPeers");
        assert_eq!(judge(&[peer_of("b", true, true)], 1450).0, "True");
        let (status, reason, text) = judge(&[peer_of("b", true, false), peer_of("c", false, false)], 1450);
        assert!(
            status == "False" && reason == "FullPacketsVanish" && text.contains("reach b ") && text.contains("1450"),
            "{text}"
        );
        let (status, _, text) = judge(&[peer_of("b", true, true), peer_of("c", false, false)], 1450);
        assert!(status == "Unknown" && text.starts_with("c does not") && text.contains("8472"), "{text}");
    }

    #[tokio::test]
    async fn a_peer_answers_small_and_full_packets() {
        let end = End { ip: "127.0.0.1".parse().unwrap(), mtu: 1450 };
        // One socket is both sides: it answers its own question.
        let Ok(socket) = UdpSocket::bind((end.ip, PORT)).await else { return };
        let mut peers = [peer_of("self", false, false)];
        for _ in 0..60 {
            ask(&socket, &end, &mut peers).await.unwrap();
            if peers[0].full {
                return;
            }
        }
        panic!("{peers:?}");
    }
}
