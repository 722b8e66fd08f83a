//! Seeded fuzzing of what comes over connections: HTTP heads, SPDY and WebSocket frames, a tunnel's bytes. Nothing may
//! panic, and a connection that speaks nonsense ends.

use std::sync::Arc;
use std::time::Duration;

use base::fuzz::{self, mutated, rounds};
use base::task::Group;
use bytes::BytesMut;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::dial::{Dial, Stream};
use crate::spdy::frame::{Codec, Frame};
use crate::{Body, ConnInfo, Handler, body, gzip, serve, tunnel, websocket};

const ROUNDS: u64 = 300;
/// One connection, whatever is sent on it: the writing end is closed, so nobody waits for more.
const LIMIT: Duration = Duration::from_secs(10);

struct Ok200;

#[async_trait::async_trait]
impl Handler for Ok200 {
    async fn handle(&self, req: http::Request<Body>, _conn: Arc<ConnInfo>) -> http::Response<Body> {
        let read = body::collect_within(req.into_body(), 1 << 16, Duration::from_secs(1)).await;
        http::Response::new(body::full(read.unwrap_or_default()))
    }
}

#[tokio::test]
async fn heads_of_any_bytes_are_answered_or_ended() {
    let rng = fuzz::rng(1);
    let seeds: [&[u8]; 4] = [
        b"POST /v1-kedge/join HTTP/1.1\r\nHost: s\r\nContent-Length: 2\r\n\
          Authorization: Bearer abc123.0123456789abcdef\r\n\r\n{}",
        b"GET /api/v1/namespaces/a/pods/b/exec?stdin=1 HTTP/1.1\r\nHost: s\r\nConnection: Upgrade\r\n\
          Upgrade: websocket\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: s\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nabcd\r\n0\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0\0\0\x04\x08\0\0\0\0\0\0\0\x7f\0\x01\0\0",
    ];
    for round in rounds(ROUNDS) {
        for seed in seeds {
            let (mut client, server) = tokio::io::duplex(1 << 16);
            client.write_all(&mutated(&rng, seed)).await.unwrap();
            client.shutdown().await.unwrap();
            let served = serve::serve_stream(server, ConnInfo::in_process(Arc::new(())), Arc::new(Ok200));
            let mut answer = Vec::new();
            let both = async { tokio::join!(served, client.read_to_end(&mut answer)) };
            let ended = tokio::time::timeout(LIMIT, both).await;
            assert!(ended.is_ok(), "round {round}: a connection of {:?} does not end", String::from_utf8_lossy(seed));
        }
    }
}

#[test]
fn spdy_frames_of_any_bytes_are_read_or_refused() {
    let rng = fuzz::rng(2);
    let headers =
        [("streamtype".to_owned(), vec!["stdin".to_owned()]), ("port".to_owned(), vec!["80".to_owned()])].into();
    let mut seed = Vec::new();
    let mut codec = Codec::default();
    for frame in [
        Frame::SynStream { stream: 1, fin: false, headers },
        Frame::Data { stream: 1, fin: true, bytes: b"hello"[..].into() },
    ] {
        codec.encode(&frame, &mut seed).unwrap();
    }
    for round in rounds(ROUNDS * 4) {
        let (mut codec, mut input) = (Codec::default(), BytesMut::from(&mutated(&rng, &seed)[..]));
        for n in 0.. {
            assert!(n < 1000, "round {round}: the same bytes are read for ever");
            match codec.decode(&mut input) {
                Ok(Some(_)) => {}
                Ok(None) | Err(_) => break,
            }
        }
    }
}

#[tokio::test]
async fn websocket_frames_of_any_bytes_are_read_or_refused() {
    let rng = fuzz::rng(3);
    // A masked text, a masked ping, a binary in two parts, a close.
    let seed = b"\x81\x85\x01\x02\x03\x04igolm\
        \x89\x80\x01\x02\x03\x04\x02\x81\0\0\0\0a\x80\x81\0\0\0\0b\x88\x82\0\0\0\0\x03\xe8";
    for round in rounds(ROUNDS) {
        let (mut client, server) = tokio::io::duplex(1 << 16);
        client.write_all(&mutated(&rng, seed)).await.unwrap();
        client.shutdown().await.unwrap();
        let (_sender, mut receiver) = websocket::serve(server).await;
        let read = async { while let Ok(Some(_)) = receiver.next().await {} };
        assert!(tokio::time::timeout(LIMIT, read).await.is_ok(), "round {round}");
    }
}

/// Nothing may be dialled by who speaks nonsense.
struct Nowhere;

#[async_trait::async_trait]
impl Dial for Nowhere {
    async fn dial(&self, _host: &str, _port: u16) -> std::io::Result<Box<dyn Stream>> {
        Err(std::io::ErrorKind::PermissionDenied.into())
    }
}

#[tokio::test]
async fn a_tunnel_of_any_bytes_ends() {
    let (rng, (group, _fatal)) = (fuzz::rng(4), Group::root("fuzz"));
    let seed = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0\
        \0\0\x0a\x01\x05\0\0\0\x01\x42\x07CONNECT\x41\x01a\0\0\0\0\0\0\0\0\x01";
    for round in rounds(ROUNDS) {
        let (mut client, server) = tokio::io::duplex(1 << 16);
        client.write_all(&mutated(&rng, seed)).await.unwrap();
        client.shutdown().await.unwrap();
        let mut answer = Vec::new();
        let both =
            async { tokio::join!(tunnel::serve(server, Arc::new(Nowhere), &group), client.read_to_end(&mut answer)) };
        assert!(tokio::time::timeout(LIMIT, both).await.is_ok(), "round {round}: a tunnel does not end");
    }
    group.shutdown().await;
}

#[test]
fn packed_bodies_of_any_bytes_are_opened_within_their_limit_or_refused() {
    let rng = fuzz::rng(5);
    let seeds =
        [gzip::compress(&[b"{\"a\": 1}"[..].into()]).unwrap(), gzip::compress(&[vec![b'a'; 1 << 20].into()]).unwrap()];
    for _ in rounds(ROUNDS) {
        let opened = gzip::decompress(&mutated(&rng, &seeds[fuzz::below(&rng, 2)]), 1 << 16);
        assert!(opened.is_err() || opened.is_ok_and(|plain| plain.len() <= 1 << 16));
    }
}
