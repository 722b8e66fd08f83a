//! Streams that leave the server: logs, exec, attach, port-forward and proxy. This room finds out whom a request means;
//! a [`Connector`] reaches them.

use std::sync::Arc;

use async_trait::async_trait;
use http::{Request, Response};
use serde_json::Value;
use wire::dial::{DialError, Stream};

use crate::status::Status;

/// Whom a streaming request means.
#[derive(Clone, Debug)]
pub enum Target {
    /// The kubelet of a node: `path` and query are the kubelet's (`/containerLogs/ns/pod/container?follow=true`).
    Kubelet {
        /// The Node object.
        node: Arc<Value>,
        /// Path and query for the kubelet.
        path_and_query: String,
    },
    /// A port of a pod, node or service, by plain HTTP(S): `proxy`.
    Proxy {
        /// `http` or `https`.
        scheme: String,
        /// Address of the pod or node, or of an endpoint of the service.
        host: String,
        /// Its port.
        port: u16,
        /// Path and query behind `/proxy`.
        path_and_query: String,
        /// The node it runs on, if known (for tunnels).
        node: Option<Arc<Value>>,
        /// Prefix of the API server's own path, for rewriting redirects and links.
        prefix: String,
    },
}

/// Reaches nodes, pods and services.
#[async_trait]
pub trait Connector: Send + Sync + 'static {
    /// Passes the request on, with its upgrade if it asks for one, and brings the answer back.
    ///
    /// Errors: nobody answers there.
    async fn connect(&self, target: Target, request: Request<wire::Body>) -> Result<Response<wire::Body>, Status>;

    /// A bare connection to an address of a pod or host, for webhooks and aggregated API servers; `node` is where it
    /// runs, if that is known (for tunnels). TLS is the caller's.
    async fn dial(&self, host: &str, port: u16, _node: Option<Arc<Value>>) -> Result<Box<dyn Stream>, DialError> {
        wire::dial::tcp(host, port, host, None).await
    }
}

/// For servers without nodes: refuses every stream.
pub struct Unreachable;

#[async_trait]
impl Connector for Unreachable {
    async fn connect(&self, target: Target, _request: Request<wire::Body>) -> Result<Response<wire::Body>, Status> {
        let whom = match target {
            Target::Kubelet { node, .. } => format!("node {}", model::meta::name(&node)),
            Target::Proxy { host, port, .. } => format!("{host}:{port}"),
        };
        Err(Status::unavailable(format!("no connection to {whom}: this server has no way to nodes")))
    }
}
