//! A session: many streams over one connection, opened by us.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use base::sync::Mutex;
use base::task::Group;
use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadHalf, WriteHalf};
use tokio::sync::mpsc;

use super::frame::{Codec, Frame, Headers};

/// Chunks that wait for the reader of one stream; then the connection waits.
const STREAM_BACKLOG: usize = 64;
/// Frames that wait for the connection; then their writers wait.
const WRITE_BACKLOG: usize = 64;

/// The opening side of a connection. Dropping it and all streams closes the connection.
pub struct Session {
    write: mpsc::Sender<Frame>,
    streams: Arc<Mutex<BTreeMap<u32, mpsc::Sender<Bytes>>>>,
    next: u32,
}

/// The reading half of a stream; ends when the peer has said FIN or the connection is gone.
pub struct StreamReader(mpsc::Receiver<Bytes>);

/// The writing half of a stream.
pub struct StreamWriter {
    stream: u32,
    write: mpsc::Sender<Frame>,
}

impl Session {
    /// Takes an upgraded connection over; its two tasks live in `group` until the connection ends.
    pub fn client<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(connection: S, group: &Group) -> Session {
        let (read, write) = tokio::io::split(connection);
        let (frames, queue) = mpsc::channel(WRITE_BACKLOG);
        let streams = Arc::new(Mutex::new(BTreeMap::new()));
        group.spawn_short("spdy-write", write_frames(write, queue));
        let (to_peer, by_id) = (frames.clone().downgrade(), Arc::clone(&streams));
        group.spawn_short("spdy-read", read_frames(read, to_peer, by_id));
        Session { write: frames, streams, next: 1 }
    }

    /// Opens a stream with these headers; both halves work at once, as the peers' library does not wait for the reply
    /// either.
    pub async fn open(&mut self, headers: Headers) -> io::Result<(StreamWriter, StreamReader)> {
        let stream = self.next;
        self.next += 2;
        let (chunks, reader) = mpsc::channel(STREAM_BACKLOG);
        self.streams.lock().insert(stream, chunks);
        self.write.send(Frame::SynStream { stream, fin: false, headers }).await.map_err(|_| gone())?;
        Ok((StreamWriter { stream, write: self.write.clone() }, StreamReader(reader)))
    }
}

impl StreamReader {
    /// The next bytes; `None` at the end. Cancel safety: nothing is lost.
    pub async fn next(&mut self) -> Option<Bytes> {
        self.0.recv().await
    }
}

impl StreamWriter {
    /// Sends bytes; waits while the connection is busy.
    pub async fn write(&self, bytes: Bytes) -> io::Result<()> {
        self.send(bytes, false).await
    }

    /// Says that nothing more comes; the peer sees the end of input.
    pub async fn finish(&self) -> io::Result<()> {
        self.send(Bytes::new(), true).await
    }

    async fn send(&self, bytes: Bytes, fin: bool) -> io::Result<()> {
        self.write.send(Frame::Data { stream: self.stream, fin, bytes }).await.map_err(|_| gone())
    }
}

fn gone() -> io::Error {
    io::Error::new(io::ErrorKind::BrokenPipe, "SPDY connection is gone")
}

/// Writes frames until nobody holds the session or a stream any more, or the peer is gone.
async fn write_frames<W: AsyncWrite>(mut connection: WriteHalf<W>, mut frames: mpsc::Receiver<Frame>) {
    // SYN_STREAM and SYN_REPLY are packed here and nowhere else: the order of packing must be the order on the wire.
    let mut codec = Codec::default();
    let mut out = Vec::new();
    while let Some(frame) = frames.recv().await {
        out.clear();
        if codec.encode(&frame, &mut out).is_err() || connection.write_all(&out).await.is_err() {
            return;
        }
        // TLS keeps what its connection did not take at once until it is asked to flush.
        if connection.flush().await.is_err() {
            return;
        }
    }
    // The peer may be gone already; then there is nothing to close.
    let _closed = connection.shutdown().await;
}

async fn read_frames<R: AsyncRead>(
    mut connection: ReadHalf<R>,
    write: mpsc::WeakSender<Frame>,
    streams: Arc<Mutex<BTreeMap<u32, mpsc::Sender<Bytes>>>>,
) {
    let mut codec = Codec::default();
    let mut input = BytesMut::with_capacity(32 * 1024);
    loop {
        match codec.decode(&mut input) {
            Ok(Some(frame)) => deliver(frame, &write, &streams).await,
            Ok(None) => match connection.read_buf(&mut input).await {
                Ok(0) | Err(_) => break,
                Ok(_) => {}
            },
            Err(_) => break,
        }
    }
    // Dropping the senders ends every stream's reader.
    streams.lock().clear();
}

async fn deliver(frame: Frame, write: &mpsc::WeakSender<Frame>, streams: &Mutex<BTreeMap<u32, mpsc::Sender<Bytes>>>) {
    let reader = |stream| streams.lock().get(&stream).cloned();
    let close = |stream| drop(streams.lock().remove(&stream));
    match frame {
        Frame::Data { stream, fin, bytes } => {
            if let Some(reader) = reader(stream).filter(|_| !bytes.is_empty()) {
                // A reader that was dropped wants no more bytes.
                let _unwanted = reader.send(bytes).await;
            }
            if fin {
                close(stream);
            }
        }
        Frame::Reset { stream, .. } | Frame::SynReply { stream, fin: true } => close(stream),
        Frame::Ping { id } => {
            if let Some(write) = write.upgrade() {
                let _gone = write.send(Frame::Ping { id }).await;
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn bytes_and_the_end_of_input_reach_the_peer_and_come_back() {
        let (ours, mut theirs) = tokio::io::duplex(1024);
        let (group, _reports) = Group::root("test");
        let mut session = Session::client(ours, &group);
        let headers = Headers::from([("streamtype".to_owned(), vec!["stdin".to_owned()])]);
        let (writer, mut reader) = session.open(headers.clone()).await.unwrap();
        writer.write(Bytes::from_static(b"in")).await.unwrap();
        writer.finish().await.unwrap();

        let (mut codec, mut input, mut seen) = (Codec::default(), BytesMut::new(), Vec::new());
        while seen.len() < 3 {
            match codec.decode(&mut input).unwrap() {
                Some(frame) => seen.push(frame),
                None => assert_ne!(theirs.read_buf(&mut input).await.unwrap(), 0),
            }
        }
        assert_eq!(seen[0], Frame::SynStream { stream: 1, fin: false, headers });
        assert_eq!(seen[2], Frame::Data { stream: 1, fin: true, bytes: Bytes::new() });

        let mut out = Vec::new();
        codec.encode(&Frame::SynReply { stream: 1, fin: false }, &mut out).unwrap();
        codec.encode(&Frame::Data { stream: 1, fin: true, bytes: Bytes::from_static(b"out") }, &mut out).unwrap();
        theirs.write_all(&out).await.unwrap();
        assert_eq!(reader.next().await.as_deref(), Some(&b"out"[..]));
        assert_eq!(reader.next().await, None);
    }
}
