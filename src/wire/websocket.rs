//! WebSocket (RFC 6455) on the server's side: the handshake as HTTP headers, then messages.

use std::io;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt as _, StreamExt as _};
use http::{HeaderMap, HeaderName};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, WebSocketConfig, frame::coding::CloseCode};

use crate::Body;
use crate::upgrade;

/// Bytes of one message that a client may send; kubectl sends at most 32 KiB at a time.
const MESSAGE_BYTES_MAX: usize = 4 * 1024 * 1024;

/// The subprotocols that a client offers, in its order.
pub fn offered(headers: &HeaderMap) -> Vec<String> {
    let values = headers.get_all("sec-websocket-protocol").iter().filter_map(|v| v.to_str().ok());
    values.flat_map(|v| v.split(',')).map(|p| p.trim().to_owned()).filter(|p| !p.is_empty()).collect()
}

/// The 101 answer to a WebSocket request, agreeing on `protocol` if one was chosen; 400 if the request is no handshake.
pub fn accept(headers: &HeaderMap, protocol: Option<&str>) -> http::Response<Body> {
    let Some(key) = headers.get("sec-websocket-key") else {
        let mut refusal = http::Response::new(crate::body::full("the Sec-WebSocket-Key header is missing\n"));
        *refusal.status_mut() = http::StatusCode::BAD_REQUEST;
        return refusal;
    };
    let mut answer = vec![(HeaderName::from_static("sec-websocket-accept"), derive_accept_key(key.as_bytes()))];
    answer.extend(protocol.map(|p| (HeaderName::from_static("sec-websocket-protocol"), p.to_owned())));
    upgrade::switching("websocket", &answer)
}

/// The receiving half of a WebSocket.
pub struct Receiver<S>(SplitStream<WebSocketStream<S>>);

/// The sending half of a WebSocket.
pub struct Sender<S>(SplitSink<WebSocketStream<S>, Message>);

/// Speaks WebSocket as the server on an upgraded stream.
pub async fn serve<S: AsyncRead + AsyncWrite + Unpin>(stream: S) -> (Sender<S>, Receiver<S>) {
    let config =
        WebSocketConfig::default().max_message_size(Some(MESSAGE_BYTES_MAX)).max_frame_size(Some(MESSAGE_BYTES_MAX));
    let (sender, receiver) = WebSocketStream::from_raw_socket(stream, Role::Server, Some(config)).await.split();
    (Sender(sender), Receiver(receiver))
}

impl<S: AsyncRead + AsyncWrite + Unpin> Receiver<S> {
    /// The next message's bytes, text or binary alike; `None` when the client has closed.
    ///
    /// Cancel safety: a message is either returned or still to come.
    pub async fn next(&mut self) -> io::Result<Option<Bytes>> {
        loop {
            match self.0.next().await {
                None | Some(Ok(Message::Close(_))) => return Ok(None),
                Some(Ok(Message::Binary(bytes))) => return Ok(Some(bytes)),
                Some(Ok(Message::Text(text))) => return Ok(Some(text.into())),
                Some(Ok(_)) => {}
                Some(Err(err)) => return Err(io::Error::other(err)),
            }
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Sender<S> {
    /// Sends one binary message and flushes it.
    pub async fn binary(&mut self, bytes: impl Into<Bytes>) -> io::Result<()> {
        self.0.send(Message::Binary(bytes.into())).await.map_err(io::Error::other)
    }

    /// Sends one text message and flushes it.
    pub async fn text(&mut self, text: String) -> io::Result<()> {
        self.0.send(Message::Text(text.into())).await.map_err(io::Error::other)
    }

    /// Says goodbye with status 1000.
    pub async fn close(&mut self) -> io::Result<()> {
        let bye = CloseFrame { code: CloseCode::Normal, reason: "".into() };
        self.0.send(Message::Close(Some(bye))).await.map_err(io::Error::other)
    }
}

/// Decodes a message of a `base64.` subprotocol.
pub fn from_base64(message: &[u8]) -> io::Result<Vec<u8>> {
    STANDARD.decode(message).map_err(|err| io::Error::new(io::ErrorKind::InvalidData, err))
}

/// Encodes a message for a `base64.` subprotocol.
pub fn to_base64(message: &[u8]) -> String {
    STANDARD.encode(message)
}
