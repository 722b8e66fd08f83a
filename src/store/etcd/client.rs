//! Calling a real etcd: one HTTP/2 connection, to the first of its addresses that answers.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use base::sync::Mutex;
use base::task::Group;
use futures_util::Stream;
use prost::Message;
use tonic::client::Grpc;
use tonic::{Request, Status, Streaming};
use tonic_prost::ProstCodec;
use wire::dial::Http2;

/// Reaching one of several servers: one that does not answer must leave time for the next.
pub const ENDPOINT_TIMEOUT: Duration = Duration::from_secs(3);

/// Where one etcd server is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Name or address.
    pub host: String,
    /// TCP port.
    pub port: u16,
    /// Whether it speaks TLS.
    pub tls: bool,
}

impl Endpoint {
    /// Reads `https://host:port`. `None` if it is something else.
    pub fn parse(url: &str) -> Option<Endpoint> {
        let (tls, rest) = match url.split_once("://")? {
            ("https", rest) => (true, rest),
            ("http", rest) => (false, rest),
            _ => return None,
        };
        let authority = rest.trim_end_matches('/');
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if !port.contains(']') => (host, port.parse().ok()?),
            _ => (authority, 2379),
        };
        let host = host.trim_start_matches('[').trim_end_matches(']');
        (!host.is_empty() && !host.contains('/')).then(|| Endpoint { host: host.to_owned(), port, tls })
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        write!(f, "{}://{host}:{}", if self.tls { "https" } else { "http" }, self.port)
    }
}

/// The connection, made when it is needed.
#[derive(Clone)]
pub struct Client {
    endpoints: Arc<Vec<Endpoint>>,
    tls: Option<Arc<rustls::ClientConfig>>,
    link: Arc<tokio::sync::Mutex<Option<Http2>>>,
    /// The endpoint to try first: the one after the last that failed.
    first: Arc<Mutex<usize>>,
    group: Group,
}

/// Connection that a call goes over.
#[derive(Clone)]
struct Way(Http2);

type Sent = Pin<Box<dyn Future<Output = Result<http::Response<wire::Body>, Status>> + Send>>;

impl tower::Service<http::Request<tonic::body::Body>> for Way {
    type Response = http::Response<wire::Body>;
    /// With what ended the connection in its text: tonic takes such an error as it is.
    type Error = Status;
    type Future = Sent;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, req: http::Request<tonic::body::Body>) -> Sent {
        let sent = self.0.send(req.map(wire::body::from_http));
        Box::pin(async move { sent.await.map_err(|err| Status::unavailable(base::chain::Chain(&err).to_string())) })
    }
}

impl Client {
    /// To these servers; `tls` is for those that speak it.
    pub fn new(endpoints: Vec<Endpoint>, tls: Option<Arc<rustls::ClientConfig>>, group: &Group) -> Client {
        Client {
            endpoints: Arc::new(endpoints),
            tls,
            link: Arc::default(),
            first: Arc::default(),
            group: group.clone(),
        }
    }

    async fn connect(&self) -> Result<(Http2, String), Status> {
        let mut slot = self.link.lock().await;
        let first = *self.first.lock();
        let n = self.endpoints.len();
        let at = |idx: usize| &self.endpoints[idx % n.max(1)];
        if let Some(link) = slot.as_ref().filter(|link| !link.is_closed()) {
            return Ok((link.clone(), at(first).to_string()));
        }
        let mut failed = Vec::new();
        for idx in first..first + n {
            match self.dial(at(idx)).await {
                Ok(link) => {
                    *self.first.lock() = idx % n;
                    return Ok((slot.insert(link).clone(), at(idx).to_string()));
                }
                Err(err) => failed.push(format!("{}: {}", at(idx), base::chain::Chain(&err))),
            }
        }
        // Whoever waits in vain for the first begins with another one the next time.
        *self.first.lock() = (first + 1) % n.max(1);
        Err(Status::unavailable(if failed.is_empty() { "no endpoint".to_owned() } else { failed.join("; ") }))
    }

    async fn dial(&self, to: &Endpoint) -> io::Result<Http2> {
        let tls = if to.tls {
            Some(self.tls.clone().ok_or_else(|| io::Error::other("no authority for https is set"))?)
        } else {
            None
        };
        let dialled = async {
            let stream = wire::dial::tcp(&to.host, to.port, &to.host, tls).await.map_err(io::Error::other)?;
            Http2::begin(stream, &to.host, &self.group).await.map_err(io::Error::other)
        };
        let timed_out = || {
            io::Error::new(io::ErrorKind::TimedOut, format!("no connection within {} s", ENDPOINT_TIMEOUT.as_secs()))
        };
        tokio::time::timeout(ENDPOINT_TIMEOUT, dialled).await.unwrap_or_else(|_| Err(timed_out()))
    }

    async fn grpc(&self) -> Result<Grpc<Way>, Status> {
        let (link, origin) = self.connect().await?;
        let origin = origin.parse().map_err(|_| Status::invalid_argument("the endpoint is not a URL"))?;
        Ok(Grpc::with_origin(Way(link), origin).max_decoding_message_size(usize::MAX))
    }

    /// One call with one answer.
    pub async fn call<Q: Message + Default + 'static, A: Message + Default + 'static>(
        &self,
        path: &'static str,
        message: Q,
    ) -> Result<A, Status> {
        let mut grpc = self.grpc().await?;
        let path = http::uri::PathAndQuery::from_static(path);
        let answer = grpc.unary(Request::new(message), path, ProstCodec::<Q, A>::default()).await;
        self.judge(&answer).await;
        answer.map(tonic::Response::into_inner)
    }

    /// A call that streams both ways.
    pub async fn stream<Q, A>(
        &self,
        path: &'static str,
        messages: impl Stream<Item = Q> + Send + 'static,
    ) -> Result<Streaming<A>, Status>
    where
        Q: Message + Default + 'static,
        A: Message + Default + 'static,
    {
        let mut grpc = self.grpc().await?;
        let path = http::uri::PathAndQuery::from_static(path);
        let answer = grpc.streaming(Request::new(messages), path, ProstCodec::<Q, A>::default()).await;
        self.judge(&answer).await;
        answer.map(tonic::Response::into_inner)
    }

    /// A server that cannot be reached or has no leader is left for the next one.
    async fn judge<T>(&self, answer: &Result<T, Status>) {
        if answer.as_ref().is_err_and(|status| matches!(status.code(), tonic::Code::Unavailable | tonic::Code::Unknown))
        {
            *self.link.lock().await = None;
            let mut first = self.first.lock();
            *first = (*first + 1) % self.endpoints.len().max(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_urls_of_etcd() {
        let endpoint = |host: &str, port, tls| Some(Endpoint { host: host.to_owned(), port, tls });
        assert_eq!(Endpoint::parse("https://etcd-1:2379"), endpoint("etcd-1", 2379, true));
        assert_eq!(Endpoint::parse("http://127.0.0.1"), endpoint("127.0.0.1", 2379, false));
        assert_eq!(Endpoint::parse("https://[fd00::1]:1234/"), endpoint("fd00::1", 1234, true));
        for other in ["mysql://root@tcp(db)/k3s", "postgres://db", "etcd-1:2379", "https://", "https://a:b"] {
            assert_eq!(Endpoint::parse(other), None, "{other}");
        }
        for url in ["https://etcd-1:2379", "http://[fd00::1]:1234"] {
            assert_eq!(Endpoint::parse(url).unwrap().to_string(), url);
        }
    }
}
