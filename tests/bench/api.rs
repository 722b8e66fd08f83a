//! A client of the API as cheap as it gets: HTTP/1.1 over TLS, one request at a time a connection, nothing parsed
//! unasked.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use base::task::Group;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use pki::bundle::Bundle;
use pki::certstore::{CertStore, Pair};
use rustls_pki_types::ServerName;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::ClientConfig;

/// Where the API is, and as whom we come.
#[derive(Clone)]
pub(crate) struct Api {
    addr: SocketAddr,
    tls: TlsConnector,
    group: Group,
}

/// One connection.
pub(crate) struct Connection {
    sender: SendRequest<Full<Bytes>>,
    addr: SocketAddr,
}

fn http1(config: Arc<ClientConfig>) -> TlsConnector {
    let mut config = ClientConfig::clone(&config);
    config.alpn_protocols = pki::tls::ALPN_HTTP1.iter().map(|name| name.to_vec()).collect();
    TlsConnector::from(Arc::new(config))
}

impl Api {
    /// Nobody in particular, who trusts any server: for the first look at a server that has no kubeconfig yet.
    pub(crate) fn anonymous(addr: SocketAddr, group: &Group) -> Result<Api> {
        Ok(Api { addr, tls: http1(pki::tls::unverified_client_config()?), group: group.clone() })
    }

    /// The admin of a kubeconfig as kedge writes it.
    pub(crate) fn admin(kubeconfig: &Path, addr: SocketAddr, group: &Group) -> Result<Api> {
        let text = std::fs::read_to_string(kubeconfig)?;
        let pem = |key: &str| {
            let line = text
                .lines()
                .find_map(|line| line.trim().strip_prefix(key))
                .with_context(|| format!("no {key} in the kubeconfig"))?;
            anyhow::Ok(String::from_utf8(STANDARD.decode(line.trim_start_matches(':').trim())?)?)
        };
        let servers = Bundle::from_pem(&pem("certificate-authority-data")?)?;
        let cert = CertStore::new(Pair::from_pem(&pem("client-certificate-data")?, &pem("client-key-data")?)?);
        Ok(Api { addr, tls: http1(pki::tls::client_config(&servers, Some(cert))?), group: group.clone() })
    }

    /// A connection of its own.
    pub(crate) async fn connect(&self) -> Result<Connection> {
        let tcp = TcpStream::connect(self.addr).await?;
        tcp.set_nodelay(true)?;
        let tls = self.tls.connect(ServerName::from(self.addr.ip()), tcp).await?;
        let (sender, connection) = handshake(TokioIo::new(tls)).await?;
        self.group.spawn_short("connection", async move {
            // The request that used it tells of a connection that breaks.
            let _broken = connection.await;
        });
        Ok(Connection { sender, addr: self.addr })
    }
}

impl Connection {
    /// Sends a request and gives the answer's head and stream; an error unless it is a success.
    pub(crate) async fn open(&mut self, method: Method, path: &str, body: Bytes) -> Result<Response<Incoming>> {
        let content_type = if method == Method::PATCH { "application/merge-patch+json" } else { "application/json" };
        let request = Request::builder()
            .method(method.clone())
            .uri(path)
            .header("host", self.addr.to_string())
            .header("accept", "application/json")
            .header("content-type", content_type)
            .body(Full::new(body))?;
        self.sender.ready().await?;
        let answer = self.sender.send_request(request).await?;
        if answer.status().is_success() {
            return Ok(answer);
        }
        let status = answer.status();
        let text = answer.into_body().collect().await?.to_bytes();
        let text = String::from_utf8_lossy(&text);
        bail!("{method} {path}: {status}: {}", text.chars().take(300).collect::<String>());
    }

    /// Sends a request and gives the whole answer.
    pub(crate) async fn call(&mut self, method: Method, path: &str, body: Bytes) -> Result<Bytes> {
        Ok(self.open(method, path, body).await?.into_body().collect().await?.to_bytes())
    }

    /// Sends a request and counts the answer's bytes.
    pub(crate) async fn drain(&mut self, path: &str) -> Result<u64> {
        let mut body = self.open(Method::GET, path, Bytes::new()).await?.into_body();
        let mut n_bytes = 0;
        while let Some(frame) = body.frame().await {
            n_bytes += frame?.data_ref().map_or(0, Bytes::len) as u64;
        }
        Ok(n_bytes)
    }

    /// Reads an object.
    pub(crate) async fn get(&mut self, path: &str) -> Result<Value> {
        Ok(serde_json::from_slice(&self.call(Method::GET, path, Bytes::new()).await?)?)
    }

    /// Creates an object.
    pub(crate) async fn create(&mut self, path: &str, object: &Value) -> Result<Bytes> {
        self.call(Method::POST, path, serde_json::to_vec(object)?.into()).await
    }

    /// Deletes at once.
    pub(crate) async fn delete(&mut self, path: &str) -> Result<Bytes> {
        self.call(
            Method::DELETE,
            path,
            Bytes::from_static(br#"{"kind":"DeleteOptions","apiVersion":"v1","gracePeriodSeconds":0}"#),
        )
        .await
    }
}
