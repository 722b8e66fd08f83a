//! Port forwarding for WebSocket clients that carry SPDY inside their messages (KEP-4006,
//! `SPDY/3.1+portforward.k8s.io`).

use std::io;

use base::chain::Chain;
use base::task::Group;
use bytes::BytesMut;
use http::{HeaderMap, HeaderName, HeaderValue};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tracing::debug;
use wire::dial::DialError;
use wire::proxy::{self, Target};
use wire::{Body, upgrade, websocket};

/// The subprotocol of a tunnel.
const TUNNEL: &str = "SPDY/3.1+portforward.k8s.io";
/// Bytes read from the node at a time, and so of one message.
const CHUNK_BYTES: usize = 32 * 1024;

/// Passes a port-forward request to the node: tunnelled SPDY is unwrapped, everything else goes raw.
///
/// Errors: the node cannot be reached. What the node answers is given back.
pub async fn connect(
    mut req: http::Request<Body>,
    target: &Target,
    path_and_query: &str,
    group: &Group,
) -> Result<http::Response<Body>, DialError> {
    let is_websocket = upgrade::requested(req.headers()).as_deref() == Some("websocket");
    if !is_websocket || !websocket::offered(req.headers()).iter().any(|protocol| protocol == TUNNEL) {
        return proxy::forward(req, target, path_and_query, group).await;
    }
    let mut headers = HeaderMap::new();
    headers
        .insert(HeaderName::from_static("x-stream-protocol-version"), HeaderValue::from_static("portforward.k8s.io"));
    let node = match proxy::open_upgrade(target, path_and_query, "SPDY/3.1", headers, group).await? {
        Ok(node) => node,
        Err(refusal) => return Ok(refusal),
    };
    let answer = websocket::accept(req.headers(), Some(TUNNEL));
    let client = upgrade::take(&mut req);
    group.spawn_short("port-forward", async move {
        let run = async { tunnel(upgrade::stream(client).await?, node).await };
        if let Err(err) = run.await {
            debug!(err = %Chain(&err), "port forwarding ended");
        }
    });
    Ok(answer)
}

async fn tunnel<S, N>(client: S, node: N) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin,
    N: AsyncRead + AsyncWrite + Unpin,
{
    let (mut sender, mut receiver) = websocket::serve(client).await;
    let (mut from_node, mut to_node) = tokio::io::split(node);
    let up = async {
        while let Some(bytes) = receiver.next().await? {
            to_node.write_all(&bytes).await?;
            // TLS keeps what its connection did not take at once until it is asked to flush.
            to_node.flush().await?;
        }
        to_node.shutdown().await
    };
    let down = async {
        let mut chunk = BytesMut::with_capacity(CHUNK_BYTES);
        while from_node.read_buf(&mut chunk).await? > 0 {
            sender.binary(chunk.split().freeze()).await?;
            chunk.reserve(CHUNK_BYTES);
        }
        sender.close().await
    };
    // Either end closing ends the tunnel: the inner SPDY has said all it had to say by then.
    tokio::select! {
        ended = up => ended,
        ended = down => ended,
    }
}
