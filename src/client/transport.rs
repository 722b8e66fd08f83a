//! How requests reach an API server: through a function call in the same process, or over TLS.

use std::path::PathBuf;
use std::sync::Arc;
use std::task::{Context, Poll};

use base::exposition::Metric;
use base::files::{self, FileError};
use futures_util::future::BoxFuture;
use http::header::AUTHORIZATION;
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderValue, Request, Response, Uri};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client as HyperClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use tower::util::BoxCloneSyncService;
use tower::{BoxError, Service};

/// Every client of this process speaks to the cluster's one API, by whatever way there is at the moment.
const HOST: &str = "kubernetes.default.svc";

/// A way to an API server; clones share connections.
pub type Transport = BoxCloneSyncService<Request<kube::client::Body>, Response<wire::Body>, BoxError>;

/// Makes clients that act as different users of one API server.
#[derive(Clone)]
pub struct Clients {
    connect: Arc<dyn Fn(&str) -> Transport + Send + Sync>,
}

impl Clients {
    /// `connect` gives the transport that acts as the named user, e.g. `system:kube-scheduler`.
    pub fn new(connect: impl Fn(&str) -> Transport + Send + Sync + 'static) -> Clients {
        Clients { connect: Arc::new(connect) }
    }

    /// A client that acts as `user`. Its default namespace is `default`. Must be called within a tokio runtime.
    pub fn for_user(&self, user: &str) -> kube::Client {
        kube::Client::new(Counted { inner: (self.connect)(user) }, "default")
    }
}

const REQUESTS: Metric = Metric {
    name: "rest_client_requests_total",
    help: "[ALPHA] Number of HTTP requests, partitioned by status code, method, and host.",
};

/// Counts what it carries under client-go's name: dashboards tell by it which part of a cluster gets errors.
#[derive(Clone)]
struct Counted {
    inner: Transport,
}

impl Service<Request<kube::client::Body>> for Counted {
    type Response = Response<wire::Body>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, req: Request<kube::client::Body>) -> Self::Future {
        let method = req.method().clone();
        let answer = self.inner.call(req);
        Box::pin(async move {
            let answer = answer.await;
            let code =
                answer.as_ref().map_or_else(|_| "<error>".to_owned(), |answer| answer.status().as_u16().to_string());
            base::metrics::count(REQUESTS, &[("code", &code), ("host", HOST), ("method", method.as_str())], 1);
            answer
        })
    }
}

/// Proof of who we are on a TLS connection, beside a client certificate in the TLS configuration.
#[derive(Clone, Debug)]
pub enum Credential {
    /// The client certificate alone.
    Certificate,
    /// A token that is read again for every request, because the kubelet renews it.
    TokenFile(PathBuf),
}

/// Reaches the API server at `https://authority`.
pub fn tls(authority: Authority, config: rustls::ClientConfig, credential: Credential) -> Transport {
    // The connector sets ALPN itself and refuses a configuration that has it already.
    let mut config = config;
    config.alpn_protocols.clear();
    let connector = HttpsConnectorBuilder::new().with_tls_config(config).https_only().enable_all_versions().build();
    let http = HyperClient::builder(TokioExecutor::new()).build(connector);
    BoxCloneSyncService::new(Tls { http, authority, credential })
}

#[derive(Clone)]
struct Tls {
    http: HyperClient<HttpsConnector<HttpConnector>, kube::client::Body>,
    authority: Authority,
    credential: Credential,
}

impl Tls {
    fn aim(&self, req: &mut Request<kube::client::Body>) -> Result<(), BoxError> {
        let mut parts = std::mem::take(req.uri_mut()).into_parts();
        parts.scheme = Some(Scheme::HTTPS);
        parts.authority = Some(self.authority.clone());
        parts.path_and_query.get_or_insert(PathAndQuery::from_static("/"));
        *req.uri_mut() = Uri::from_parts(parts)?;
        if let Credential::TokenFile(path) = &self.credential {
            let token = read_token(path)?;
            let mut value = HeaderValue::from_str(&format!("Bearer {}", token.trim()))?;
            value.set_sensitive(true);
            req.headers_mut().insert(AUTHORIZATION, value);
        }
        Ok(())
    }
}

fn read_token(path: &std::path::Path) -> Result<String, FileError> {
    std::fs::read_to_string(path).map_err(files::FileError::at("cannot read token", path))
}

impl Service<Request<kube::client::Body>> for Tls {
    type Response = Response<wire::Body>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut req: Request<kube::client::Body>) -> Self::Future {
        let aimed = self.aim(&mut req);
        let http = self.http.clone();
        Box::pin(async move {
            aimed?;
            let answer = http.request(req).await?;
            Ok(answer.map(wire::body::from_http))
        })
    }
}
