//! Clients of a unix socket that name it by its path, `/var/lib/…/etcd.sock`, in `:authority`, as Go's gRPC did until
//! 2021.
//!
//! HTTP/2 allows no slash there, and hyper ends such a stream with PROTOCOL_ERROR. Nobody looks at the name, so its
//! slashes become dashes before hyper sees them. Both are 6 bits long in HPACK's code and one byte outside of it:
//! nothing moves, and the table of headers that both sides keep stays the same size.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const FRAME_HEADER_BYTES: usize = 9;
const HEADERS: u8 = 0x1;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;
/// `:authority` in HPACK's table.
const AUTHORITY: usize = 1;
/// A larger frame is let through as it is: hyper refuses it by itself.
const FRAME_BYTES_MAX: usize = 16 * 1024;
/// Bytes read at once.
const READ_BYTES: usize = 8 * 1024;

/// HPACK's code (RFC 7541, appendix B) as far as text goes: the length of a symbol in bits, and the last code of that
/// length.
const LAST_CODES: [(usize, u32); 10] = [
    (5, 0x09),
    (6, 0x2d),
    (7, 0x7b),
    (8, 0xfd),
    (10, 0x3fc),
    (11, 0x7fc),
    (12, 0xffb),
    (13, 0x1ffd),
    (14, 0x3ffd),
    (15, 0x7ffe),
];
const SLASH: u32 = 0b01_1000;
const DASH: u32 = 0b01_0110;

/// A connection whose client may put a path into `:authority`.
#[derive(Debug)]
pub struct Dashed<S> {
    stream: S,
    part: Part,
    /// Came, and is not judged yet.
    raw: BytesMut,
    /// Judged, and not taken yet.
    ready: BytesMut,
}

/// The part that comes next.
#[derive(Debug)]
enum Part {
    Preface,
    Frame,
    /// So many bytes of a frame that is let through.
    Payload(usize),
    /// Something else than HTTP/2.
    Other,
}

impl<S> Dashed<S> {
    /// Around a connection that has just been accepted.
    pub fn new(stream: S) -> Dashed<S> {
        Dashed { stream, part: Part::Preface, raw: BytesMut::new(), ready: BytesMut::new() }
    }

    /// Moves what can be judged from `raw` to `ready`.
    fn sort(&mut self) {
        loop {
            let n_ready = match &mut self.part {
                Part::Preface => {
                    let n = self.raw.len().min(PREFACE.len());
                    if self.raw[..n] != PREFACE[..n] {
                        self.part = Part::Other;
                        continue;
                    }
                    if n < PREFACE.len() {
                        return;
                    }
                    self.part = Part::Frame;
                    n
                }
                Part::Frame => {
                    let Some(header) = self.raw.get(..FRAME_HEADER_BYTES) else { return };
                    let n_payload = usize::from(header[0]) << 16 | usize::from(header[1]) << 8 | usize::from(header[2]);
                    let (kind, flags) = (header[3], header[4]);
                    if kind != HEADERS || n_payload > FRAME_BYTES_MAX {
                        self.part = Part::Payload(n_payload);
                        FRAME_HEADER_BYTES
                    } else {
                        let Some(frame) = self.raw.get_mut(FRAME_HEADER_BYTES..FRAME_HEADER_BYTES + n_payload) else {
                            return;
                        };
                        let _malformed_is_hypers = dash_headers(frame, flags);
                        FRAME_HEADER_BYTES + n_payload
                    }
                }
                Part::Payload(0) => {
                    self.part = Part::Frame;
                    0
                }
                Part::Payload(left) => {
                    let n = self.raw.len().min(*left);
                    if n == 0 {
                        return;
                    }
                    *left -= n;
                    n
                }
                Part::Other if self.raw.is_empty() => return,
                Part::Other => self.raw.len(),
            };
            self.ready.unsplit(self.raw.split_to(n_ready));
        }
    }
}

/// Puts dashes for slashes in the `:authority` of a HEADERS frame. `None` if it is malformed.
fn dash_headers(payload: &mut [u8], flags: u8) -> Option<()> {
    let n_padding = if flags & PADDED != 0 { usize::from(*payload.first()?) } else { 0 };
    let start = usize::from(flags & PADDED != 0) + if flags & PRIORITY != 0 { 5 } else { 0 };
    let end = payload.len().checked_sub(n_padding)?;
    let fields = payload.get_mut(start..end)?;
    let mut at = 0;
    while let Some(first) = fields.get(at).copied() {
        // A field from the table, a change of the table's size, or a field of which the value, maybe the name too,
        // stands here.
        let (prefix_bits, literal) = match first {
            0x80.. => (7, false),
            0x40.. => (6, true),
            0x20.. => (5, false),
            _ => (4, true),
        };
        let name = number(fields, &mut at, prefix_bits)?;
        if !literal {
            continue;
        }
        if name == 0 {
            let n = number(fields, &mut at, 7)?;
            at += n;
        }
        let coded = fields.get(at)? & 0x80 != 0;
        let n = number(fields, &mut at, 7)?;
        let value = fields.get_mut(at..at.checked_add(n)?)?;
        if name == AUTHORITY {
            if coded { dash_coded(value) } else { dash_plain(value) }
        }
        at += n;
    }
    Some(())
}

/// HPACK's whole number, which begins in the last `prefix_bits` of a byte.
fn number(bytes: &[u8], at: &mut usize, prefix_bits: u32) -> Option<usize> {
    let most = (1_usize << prefix_bits) - 1;
    let mut number = usize::from(*bytes.get(*at)?) & most;
    *at += 1;
    if number < most {
        return Some(number);
    }
    for shift in [0, 7, 14] {
        let byte = *bytes.get(*at)?;
        *at += 1;
        number += usize::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

fn dash_plain(value: &mut [u8]) {
    value.iter_mut().filter(|byte| **byte == b'/').for_each(|byte| *byte = b'-');
}

/// The same in HPACK's code, symbol by symbol. It ends at the padding, which is part of no symbol here.
fn dash_coded(value: &mut [u8]) {
    let bits = |value: &[u8], at: usize, n: usize| {
        (at..at + n).try_fold(0_u32, |code, bit| Some(code << 1 | u32::from(value.get(bit / 8)? >> (7 - bit % 8) & 1)))
    };
    let mut at = 0;
    loop {
        let symbol = LAST_CODES
            .iter()
            .find_map(|(n, last)| bits(value, at, *n).filter(|code| code <= last).map(|code| (*n, code)));
        let Some((n, code)) = symbol else { return };
        if (n, code) == (6, SLASH) {
            for (i, bit) in (at..at + n).enumerate() {
                let mask = 1 << (7 - bit % 8);
                if DASH >> (n - 1 - i) & 1 == 1 { value[bit / 8] |= mask } else { value[bit / 8] &= !mask }
            }
        }
        at += n;
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Dashed<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        while this.ready.is_empty() {
            let mut piece = [0; READ_BYTES];
            let mut piece = ReadBuf::new(&mut piece);
            ready!(Pin::new(&mut this.stream).poll_read(cx, &mut piece))?;
            if piece.filled().is_empty() {
                // The end: what came of a broken frame is hyper's to judge.
                this.ready.unsplit(this.raw.split());
                break;
            }
            this.raw.extend_from_slice(piece.filled());
            this.sort();
        }
        let n = this.ready.len().min(buf.remaining());
        buf.put_slice(&this.ready[..n]);
        this.ready.advance(n);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Dashed<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes of a hexadecimal text.
    fn bytes(hex: &str) -> Vec<u8> {
        (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
    }

    /// Bytes that Debian's etcdctl 3.4 sends first with `--endpoints unix:///tmp/ha/s/etcd.sock`, and the same with
    /// dashes.
    const FIELDS: [&str; 2] = [
        "8386459060a924882d9dcb6571af9b8b1b4754c5418e6134d6c4e3610c15",
        "8386459060a924882d9dcb6571af9b8b1b4754c5418e5934d6b4e3590b15",
    ];
    const REST: &str = "24 91741c9d7f5f8b1d75d0620d263d4c4d65647a8b9acac8b4c7602bb2caecff40027465864d833505b11f";

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        [&[0, 0, u8::try_from(payload.len()).unwrap(), kind, flags, 0, 0, 0, 1], payload].concat()
    }

    /// Bytes that hyper sees when they come in pieces of `n`.
    fn seen(sent: &[u8], n: usize) -> Vec<u8> {
        let mut dashed = Dashed::new(());
        for piece in sent.chunks(n) {
            dashed.raw.extend_from_slice(piece);
            dashed.sort();
        }
        assert!(dashed.raw.is_empty());
        dashed.ready.to_vec()
    }

    #[test]
    fn slashes_of_the_authority_become_dashes_whatever_the_pieces() {
        let stream = |fields: &str| {
            let fields = bytes(&format!("{fields}{}", REST.replace(' ', "")));
            let padded = [&[2, 0, 0, 0, 0, 0][..], &fields, &[0, 0]].concat();
            let parts = [
                frame(4, 0, &[]),
                frame(HEADERS, 4, &fields),
                frame(0, 1, b"/a/b"),
                frame(HEADERS, 4 | PADDED | PRIORITY, &padded),
            ];
            [PREFACE, &parts.concat()].concat()
        };
        for n in [1, 2, 7, 30, 1000] {
            assert_eq!(seen(&stream(FIELDS[0]), n), stream(FIELDS[1]), "in pieces of {n}");
        }
    }

    #[test]
    fn plain_text_is_changed_in_the_authority_alone() {
        let mut fields = *b"\x04\x05/path\x01\x02/a\x00\x01n\x02/b\x41\x02a/";
        dash_headers(&mut fields, 0).unwrap();
        assert_eq!(&fields, b"\x04\x05/path\x01\x02-a\x00\x01n\x02/b\x41\x02a-");
    }

    #[test]
    fn malformed_fields_and_other_protocols_go_through_as_they_are() {
        for fields in [&b"\x41\xff"[..], b"\x41\x7f\xff\xff\xff\xff", b"\x00\x7f\xff\x7f", b"\x41\x05/a", b"\x40"] {
            let sent = [PREFACE, &frame(HEADERS, 4, fields), &frame(HEADERS, 4 | PADDED, b"\xff")].concat();
            assert_eq!(seen(&sent, 3), sent);
        }
        assert_eq!(seen(b"GET /health HTTP/1.1\r\n\r\n", 2), b"GET /health HTTP/1.1\r\n\r\n");
    }
}
