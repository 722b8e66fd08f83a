//! Logs for WebSocket clients: what the node answers becomes messages of one socket, as upstream's `wsstream.Reader`
//! sends them.

use std::io;

use base::chain::Chain;
use base::task::Group;
use http::header::{CONNECTION, UPGRADE};
use http_body_util::BodyExt as _;
use tokio::io::{AsyncRead, AsyncWrite};
use tracing::debug;
use wire::dial::DialError;
use wire::proxy::{self, Target};
use wire::{Body, upgrade, websocket};

/// Subprotocols, and whether their messages are base64 text. A client that offers none gets bytes.
const DIALECTS: [(&str, bool); 2] = [("binary.k8s.io", false), ("base64.binary.k8s.io", true)];

/// Passes a request for logs to the node; a WebSocket client gets the answer's bytes as messages, and a refusal as it
/// is.
///
/// Errors: the node cannot be reached.
pub async fn connect(
    mut req: http::Request<Body>,
    target: &Target,
    path_and_query: &str,
    group: &Group,
) -> Result<http::Response<Body>, DialError> {
    if upgrade::requested(req.headers()).as_deref() != Some("websocket") {
        return proxy::forward(req, target, path_and_query, group).await;
    }
    let asked = req.headers().clone();
    let client = upgrade::take(&mut req);
    req.headers_mut().remove(UPGRADE);
    req.headers_mut().remove(CONNECTION);
    let answer = proxy::forward(req, target, path_and_query, group).await?;
    if !answer.status().is_success() {
        return Ok(answer);
    }
    let dialect = choose(&websocket::offered(&asked));
    let agreed = websocket::accept(&asked, dialect.map(|(name, _)| name));
    if agreed.status() == http::StatusCode::SWITCHING_PROTOCOLS {
        group.spawn_short("log-messages", async move {
            let run = async {
                send(upgrade::stream(client).await?, answer.into_body(), dialect.is_some_and(|(_, base64)| base64))
                    .await
            };
            if let Err(err) = run.await {
                debug!(err = %Chain(&err), "a log's reader went away");
            }
        });
    }
    Ok(agreed)
}

fn choose(offered: &[String]) -> Option<(&'static str, bool)> {
    offered.iter().find_map(|name| DIALECTS.iter().find(|(known, _)| known == name).copied())
}

/// Copies until the log ends or the client leaves.
async fn send(client: impl AsyncRead + AsyncWrite + Unpin, mut log: Body, base64: bool) -> io::Result<()> {
    let (mut sender, mut receiver) = websocket::serve(client).await;
    loop {
        tokio::select! {
            frame = log.frame() => match frame {
                None => return sender.close().await,
                Some(frame) => {
                    let Ok(bytes) = frame.map_err(io::Error::other)?.into_data() else { continue };
                    if base64 { sender.text(websocket::to_base64(&bytes)).await? } else { sender.binary(bytes).await? }
                }
            },
            // Nothing is expected; the end of the stream is.
            message = receiver.next() => if message?.is_none() { return Ok(()) },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_offered_protocol_that_is_known_wins() {
        let offered = |names: &[&str]| choose(&names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>());
        assert_eq!(
            offered(&["base64url.bearer.authorization.k8s.io.x", "base64.binary.k8s.io"]),
            Some(("base64.binary.k8s.io", true))
        );
        assert_eq!(offered(&["binary.k8s.io", "base64.binary.k8s.io"]), Some(("binary.k8s.io", false)));
        assert_eq!(offered(&[]), None);
    }
}
