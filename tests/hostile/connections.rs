//! Connections of strangers: too many, too slow, kept for ever.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use base::task::Group;
use http::Request;
use pki::bundle::Bundle;
use pki::certstore::{CertStore, Pair};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpSocket;
use wire::Body;
use wire::dial::{self, Stream};

use crate::harness::Server;

pub(crate) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// A client of 127.0.0.1 that calls from an address of its own choice.
pub(crate) struct Caller {
    trust: Bundle,
    port: u16,
    from: [u8; 4],
    shown: Option<Arc<CertStore>>,
}

impl Caller {
    /// To a port of a server's machine.
    pub(crate) fn to(server: &Server, port: u16, from: [u8; 4]) -> Caller {
        let ca = std::fs::read_to_string(server.place.data_dir().join("server/tls/server-ca.crt")).unwrap();
        Caller { trust: Bundle::from_pem(&ca).unwrap(), port, from, shown: None }
    }

    /// With a client certificate.
    pub(crate) fn showing(self, shown: Arc<CertStore>) -> Caller {
        Caller { shown: Some(shown), ..self }
    }

    /// A connection after its TLS handshake; it offers HTTP/1.1 alone.
    pub(crate) async fn connect(&self) -> io::Result<Box<dyn Stream>> {
        self.connect_with(&[b"http/1.1"], None).await
    }

    /// The same with other protocols, and with so many bytes for what was not read yet.
    pub(crate) async fn connect_with(&self, alpn: &[&[u8]], unread: Option<u32>) -> io::Result<Box<dyn Stream>> {
        let socket = TcpSocket::new_v4()?;
        unread.map(|bytes| socket.set_recv_buffer_size(bytes)).transpose()?;
        socket.bind((self.from, 0).into())?;
        let stream = socket.connect(([127, 0, 0, 1], self.port).into()).await?;
        let mut config = rustls::ClientConfig::clone(&*pki::tls::client_config(&self.trust, self.shown.clone()).unwrap());
        config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
        dial::tls(Box::new(stream), "127.0.0.1", Arc::new(config)).await.map_err(io::Error::other)
    }

    pub(crate) async fn try_ask(&self, req: Request<Body>) -> Result<String, String> {
        let (group, _fatal) = Group::root("caller");
        let stream = self.connect().await.map_err(|err| err.to_string())?;
        let answer = dial::request(stream, "server", req, &group).await.map_err(|err| err.to_string())?;
        let bytes = wire::body::collect(answer.into_body(), 1 << 24).await.map_err(|err| err.to_string())?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    pub(crate) async fn ask(&self, req: Request<Body>) -> String {
        self.try_ask(req).await.unwrap()
    }
}

#[test]
fn strangers_crowd_out_one_another_and_nobody_who_is_known() {
    let server = Server::start();
    let tls = server.place.data_dir().join("server/tls");
    let read = |name: &str| std::fs::read_to_string(tls.join(name)).unwrap();
    let admin = CertStore::new(Pair::from_pem(&read("client-admin.crt"), &read("client-admin.key")).unwrap());
    runtime().block_on(async {
        let crowd = Caller::to(&server, server.place.port, [127, 0, 0, 4]);
        let mut known = Caller::to(&server, server.place.port, [127, 0, 0, 4]).showing(admin).connect().await.unwrap();
        let mut quiet = Caller::to(&server, server.place.port, [127, 0, 0, 5]).connect().await.unwrap();
        let mut held = Vec::new();
        for _ in 0..300 {
            held.push(crowd.connect().await.unwrap());
        }
        let mut byte = [0; 1];
        let first = tokio::time::timeout(Duration::from_secs(10), held[0].read(&mut byte)).await;
        let ended = first.expect("300 strangers of one address are all kept");
        assert!(!matches!(ended, Ok(1..)), "{ended:?}");
        for stream in [&mut known, &mut quiet] {
            stream.write_all(b"GET /livez HTTP/1.1\r\nHost: s\r\n\r\n").await.unwrap();
            let mut answer = vec![0; 1024];
            let n = tokio::time::timeout(Duration::from_secs(10), stream.read(&mut answer)).await.unwrap().unwrap();
            assert!(answer[..n].starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer[..n]));
        }
    });
    server.ok(&["get", "ns"]);
    server.check_log();
}
