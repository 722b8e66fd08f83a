//! exec and attach for WebSocket clients: channels of one socket become SPDY streams towards the node.
//!
//! A message is one channel byte and the bytes: 0 stdin, 1 stdout, 2 stderr, 3 error (a Status), 4 resize, and from
//! version 5 on 255 closes the channel named by the next byte. Spec: KEP-4006,
//! `k8s.io/apimachinery/pkg/util/remotecommand`.

use std::io;

use base::chain::Chain;
use base::task::Group;
use base::url::Query;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;
use tracing::debug;
use wire::dial::DialError;
use wire::proxy::{self, Target};
use wire::spdy::frame::Headers;
use wire::spdy::session::{Session, StreamReader, StreamWriter};
use wire::{Body, upgrade, websocket};

const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const ERROR: u8 = 3;
const RESIZE: u8 = 4;
const CLOSE: u8 = 255;
/// Messages to the client that wait for the socket; then the node waits.
const OUT_BACKLOG: usize = 32;

/// The streams that the caller asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Bytes from the client.
    pub stdin: bool,
    /// Bytes to the client.
    pub stdout: bool,
    /// Errors to the client; never with a terminal, which has one output.
    pub stderr: bool,
    /// A terminal, which can be resized.
    pub tty: bool,
}

impl Wanted {
    /// Reads the query of an exec or attach request, in the kubelet's names or in the API's.
    pub fn from_query(query: &str) -> Wanted {
        let query = Query::parse(query);
        let on = |kubelets: &str, apis: &str| {
            let asks = |key: &str| query.all(key).any(|value| matches!(value, "true" | "1"));
            asks(kubelets) || asks(apis)
        };
        let tty = on("tty", "tty");
        Wanted {
            stdin: on("input", "stdin"),
            stdout: on("output", "stdout"),
            stderr: on("error", "stderr") && !tty,
            tty,
        }
    }
}

/// How messages look in the subprotocol that was agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Dialect {
    name: &'static str,
    base64: bool,
}

const DIALECTS: [Dialect; 3] = [
    Dialect { name: "v5.channel.k8s.io", base64: false },
    Dialect { name: "v4.channel.k8s.io", base64: false },
    Dialect { name: "v4.base64.channel.k8s.io", base64: true },
];

fn choose(offered: &[String]) -> Option<Dialect> {
    offered.iter().find_map(|name| DIALECTS.iter().find(|dialect| dialect.name == name).copied())
}

/// Passes an exec or attach request to the node: raw for SPDY, translated for WebSocket.
///
/// Errors: the node cannot be reached. What the node answers is given back.
pub async fn connect(
    mut req: http::Request<Body>,
    target: &Target,
    path_and_query: &str,
    group: &Group,
) -> Result<http::Response<Body>, DialError> {
    let is_websocket = upgrade::requested(req.headers()).as_deref() == Some("websocket");
    let Some(dialect) = is_websocket.then(|| choose(&websocket::offered(req.headers()))).flatten() else {
        return proxy::forward(req, target, path_and_query, group).await;
    };
    let wanted = Wanted::from_query(path_and_query.split_once('?').map_or("", |(_, query)| query));
    let mut headers = HeaderMap::new();
    headers.insert(HeaderName::from_static("x-stream-protocol-version"), HeaderValue::from_static("v4.channel.k8s.io"));
    let node = match proxy::open_upgrade(target, path_and_query, "SPDY/3.1", headers, group).await? {
        Ok(node) => node,
        Err(refusal) => return Ok(refusal),
    };
    let answer = websocket::accept(req.headers(), Some(dialect.name));
    let client = upgrade::take(&mut req);
    let tasks = group.clone();
    group.spawn_short("remote-command", async move {
        let run = async {
            let client = upgrade::stream(client).await?;
            translate(client, Session::client(node, &tasks), wanted, dialect, &tasks).await
        };
        if let Err(err) = run.await {
            debug!(err = %Chain(&err), "remote command ended");
        }
    });
    Ok(answer)
}

/// Opens the streams in the order the node's library expects and copies until the node has said how it ended.
async fn translate<S>(client: S, mut node: Session, wanted: Wanted, dialect: Dialect, group: &Group) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (mut sender, mut receiver) = websocket::serve(client).await;
    let (out, mut messages) = mpsc::channel::<(u8, Bytes)>(OUT_BACKLOG);
    let (_error_writer, error) = node.open(stream_type("error")).await?;
    let mut stdin = None;
    if wanted.stdin {
        let (writer, mut reader) = node.open(stream_type("stdin")).await?;
        stdin = Some(writer);
        // The node writes nothing there; reading keeps the stream's end from blocking the session.
        group.spawn_short("stdin-replies", async move { while reader.next().await.is_some() {} });
    }
    for (channel, name, on) in [(STDOUT, "stdout", wanted.stdout), (STDERR, "stderr", wanted.stderr)] {
        if on {
            let (_writer, reader) = node.open(stream_type(name)).await?;
            group.spawn_short(name, copy_out(channel, reader, out.clone()));
        }
    }
    let mut resize = None;
    if wanted.tty {
        resize = Some(node.open(stream_type("resize")).await?.0);
    }
    group.spawn_short("error", copy_out(ERROR, error, out));
    // Ends when every reader has ended and its last message was taken: nothing the command wrote is lost.
    loop {
        tokio::select! {
            message = messages.recv() => match message {
                Some((channel, bytes)) => send(&mut sender, dialect, channel, &bytes).await?,
                None => return sender.close().await,
            },
            // Cancel safe: a message is returned or still to come.
            message = receiver.next() => match message? {
                Some(message) => take_in(&message, dialect, &mut stdin, resize.as_ref()).await?,
                // Dropping the session closes the node's connection, which ends the command's streams.
                None => return Ok(()),
            },
        }
    }
}

fn stream_type(name: &str) -> Headers {
    Headers::from([("streamtype".to_owned(), vec![name.to_owned()])])
}

async fn copy_out(channel: u8, mut reader: StreamReader, out: mpsc::Sender<(u8, Bytes)>) {
    while let Some(bytes) = reader.next().await {
        if out.send((channel, bytes)).await.is_err() {
            return;
        }
    }
}

async fn send<S: AsyncRead + AsyncWrite + Unpin>(
    sender: &mut websocket::Sender<S>,
    dialect: Dialect,
    channel: u8,
    bytes: &[u8],
) -> io::Result<()> {
    if dialect.base64 {
        return sender.text(format!("{channel}{}", websocket::to_base64(bytes))).await;
    }
    let mut message = Vec::with_capacity(bytes.len() + 1);
    message.push(channel);
    message.extend_from_slice(bytes);
    sender.binary(message).await
}

async fn take_in(
    message: &Bytes,
    dialect: Dialect,
    stdin: &mut Option<StreamWriter>,
    resize: Option<&StreamWriter>,
) -> io::Result<()> {
    let Some((&first, rest)) = message.split_first() else { return Ok(()) };
    let (channel, bytes) = if dialect.base64 {
        (first.wrapping_sub(b'0'), websocket::from_base64(rest)?.into())
    } else {
        (first, message.slice(1..))
    };
    match channel {
        STDIN => match stdin {
            Some(stdin) if !bytes.is_empty() => stdin.write(bytes).await,
            _ => Ok(()),
        },
        RESIZE => match resize {
            Some(resize) => resize.write(bytes).await,
            None => Ok(()),
        },
        CLOSE if bytes.first() == Some(&STDIN) => match stdin.take() {
            Some(stdin) => stdin.finish().await,
            None => Ok(()),
        },
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_has_no_stderr_of_its_own() {
        let wanted = Wanted::from_query("container=a&stdin=true&stdout=1&stderr=true&tty=true");
        assert_eq!(wanted, Wanted { stdin: true, stdout: true, stderr: false, tty: true });
        let by_kubelets_names = Wanted::from_query("command=echo&output=1&error=1");
        assert_eq!(by_kubelets_names, Wanted { stdin: false, stdout: true, stderr: true, tty: false });
    }

    #[test]
    fn the_clients_first_known_dialect_is_chosen() {
        let offered = ["v9.channel.k8s.io", "v5.channel.k8s.io", "v4.channel.k8s.io"].map(str::to_owned);
        assert_eq!(choose(&offered).map(|d| d.name), Some("v5.channel.k8s.io"));
        assert_eq!(choose(&offered[..1]), None);
    }
}
