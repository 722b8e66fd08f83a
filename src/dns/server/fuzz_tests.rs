//! Seeded fuzzing of what comes in packets: questions of strangers, answers of other name servers.

use base::fuzz::{self, mutated, rounds};

use hickory_proto::op::Edns;

use super::reply::encode;
use super::tests::{addresses, request, server};
use super::*;
use crate::question::UDP_BYTES_MAX;

#[tokio::test]
async fn questions_of_any_bytes_are_answered_or_passed_over() {
    let (server, rng) = (server(), fuzz::rng(12));
    let peer = "192.0.2.1:4000".parse().unwrap();
    let mut edns = request();
    edns.set_edns(Edns::new());
    let whole = edns.to_vec().unwrap();
    for round in rounds(20_000) {
        let mut bytes = mutated(&rng, &whole);
        if round % 4 == 0 {
            bytes = vec![0; fuzz::below(&rng, 64)];
            rng.fill(&mut bytes);
        }
        for transport in [Transport::Udp, Transport::Tcp] {
            if let Some(reply) = server.handle(&bytes, peer, transport).await {
                let limit = if transport == Transport::Udp { usize::from(UDP_BYTES_MAX) } else { 65_535 };
                assert!(reply.len() <= limit && reply[..2] == bytes[..2] && reply[2] & 0x80 != 0, "{bytes:?}");
            }
        }
    }
}

/// The packet of another name server becomes an answer of ours, or nothing.
#[test]
fn answers_of_any_bytes_are_handed_on_or_refused() {
    let rng = fuzz::rng(13);
    let mut said = request();
    said.answers = addresses(3).answers;
    let whole = said.to_vec().unwrap();
    for _ in rounds(10_000) {
        let Ok(message) = Message::from_vec(&mutated(&rng, &whole)) else { continue };
        let answer = crate::forward::convert(message);
        for transport in [Transport::Udp, Transport::Tcp] {
            let _sent = encode(&request(), &mut answer.clone(), transport, reply::Shape::default());
        }
    }
}
