//! Frames: bytes on the wire and what they mean.

use std::collections::BTreeMap;
use std::io;

use bytes::{Buf as _, Bytes, BytesMut};
use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};

use super::dictionary;

/// Headers of a stream by lower-case name.
pub type Headers = BTreeMap<String, Vec<String>>;

/// The last frame that its sender writes on the stream.
const FLAG_FIN: u8 = 0x01;
/// Bytes of a frame; DATA frames of the peers hold at most 32 KiB.
const FRAME_BYTES_MAX: usize = 1 << 20;
/// Bytes of an opened header block.
const HEADER_BYTES_MAX: usize = 64 * 1024;

/// One frame. Kinds that this dialect does not use arrive as `Other` and are skipped.
#[derive(Debug, PartialEq, Eq)]
pub enum Frame {
    /// Opens a stream.
    SynStream { stream: u32, fin: bool, headers: Headers },
    /// Agrees to a stream.
    SynReply { stream: u32, fin: bool },
    /// Ends a stream at once; `status` 5 is CANCEL.
    Reset { stream: u32, status: u32 },
    /// Bytes of a stream; `fin` when they are its last.
    Data { stream: u32, fin: bool, bytes: Bytes },
    /// Must be answered with the same id.
    Ping { id: u32 },
    /// The sender opens no more streams.
    GoAway,
    /// SETTINGS, HEADERS, WINDOW_UPDATE.
    Other,
}

/// Reads and writes frames. Header blocks share one zlib stream a direction, so order matters.
pub struct Codec {
    deflate: Compress,
    inflate: Decompress,
    dictionary: Vec<u8>,
    deflate_primed: bool,
}

fn invalid(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

impl Default for Codec {
    fn default() -> Codec {
        Codec {
            deflate: Compress::new(Compression::best(), true),
            inflate: Decompress::new(true),
            dictionary: dictionary::bytes(),
            deflate_primed: false,
        }
    }
}

impl Codec {
    /// Takes the next whole frame off `input`; `None` if more bytes are needed.
    pub fn decode(&mut self, input: &mut BytesMut) -> io::Result<Option<Frame>> {
        if input.len() < 8 {
            return Ok(None);
        }
        let len = usize::from(input[5]) << 16 | usize::from(input[6]) << 8 | usize::from(input[7]);
        if len > FRAME_BYTES_MAX {
            return Err(invalid("SPDY frame is too long"));
        }
        if input.len() < 8 + len {
            return Ok(None);
        }
        let mut head = input.split_to(8);
        let mut body = input.split_to(len).freeze();
        let first = head.get_u32();
        let fin = head[0] & FLAG_FIN != 0;
        if first & 0x8000_0000 == 0 {
            return Ok(Some(Frame::Data { stream: first, fin, bytes: body }));
        }
        if first >> 16 & 0x7fff != 3 {
            return Err(invalid("not SPDY version 3"));
        }
        let need = |n: usize| if len < n { Err(invalid("SPDY frame is too short")) } else { Ok(()) };
        let frame = match first & 0xffff {
            1 => {
                need(10)?;
                let stream = body.get_u32() & 0x7fff_ffff;
                body.advance(6);
                Frame::SynStream { stream, fin, headers: self.open_headers(&body)? }
            }
            2 => {
                need(4)?;
                let stream = body.get_u32() & 0x7fff_ffff;
                // Opened although nobody reads it: the next block continues the same zlib stream.
                self.open_headers(&body)?;
                Frame::SynReply { stream, fin }
            }
            3 => {
                need(8)?;
                Frame::Reset { stream: body.get_u32() & 0x7fff_ffff, status: body.get_u32() }
            }
            6 => {
                need(4)?;
                Frame::Ping { id: body.get_u32() }
            }
            7 => Frame::GoAway,
            8 => {
                need(4)?;
                body.advance(4);
                self.open_headers(&body)?;
                Frame::Other
            }
            _ => Frame::Other,
        };
        Ok(Some(frame))
    }

    /// Appends `frame` to `out`.
    pub fn encode(&mut self, frame: &Frame, out: &mut Vec<u8>) -> io::Result<()> {
        match frame {
            Frame::SynStream { stream, fin, headers } => {
                let mut body = stream.to_be_bytes().to_vec();
                body.extend_from_slice(&[0; 6]);
                body.extend(self.pack_headers(headers)?);
                control(out, 1, *fin, &body)
            }
            Frame::SynReply { stream, fin } => {
                let mut body = stream.to_be_bytes().to_vec();
                body.extend(self.pack_headers(&Headers::new())?);
                control(out, 2, *fin, &body)
            }
            Frame::Reset { stream, status } => {
                control(out, 3, false, &[stream.to_be_bytes(), status.to_be_bytes()].concat())
            }
            Frame::Ping { id } => control(out, 6, false, &id.to_be_bytes()),
            Frame::GoAway => control(out, 7, false, &[0; 8]),
            Frame::Data { stream, fin, bytes } => {
                out.extend_from_slice(&(stream & 0x7fff_ffff).to_be_bytes());
                length(out, *fin, bytes.len())?;
                out.extend_from_slice(bytes);
                Ok(())
            }
            Frame::Other => Err(invalid("this frame is only ever received")),
        }
    }

    fn open_headers(&mut self, packed: &[u8]) -> io::Result<Headers> {
        let mut out = Vec::with_capacity(4096);
        let mut rest = packed;
        loop {
            let (read, written) = (self.inflate.total_in(), self.inflate.total_out());
            out.reserve(4096);
            match self.inflate.decompress_vec(rest, &mut out, FlushDecompress::Sync) {
                Ok(Status::StreamEnd) => break,
                Ok(_) => {}
                Err(err) if err.needs_dictionary().is_some() => {
                    let used = usize::try_from(self.inflate.total_in() - read).unwrap_or(rest.len());
                    rest = &rest[used.min(rest.len())..];
                    self.inflate
                        .set_dictionary(&self.dictionary)
                        .map_err(|_| invalid("SPDY header dictionary is another"))?;
                    continue;
                }
                Err(_) => return Err(invalid("SPDY header block is broken")),
            }
            let used = usize::try_from(self.inflate.total_in() - read).unwrap_or(rest.len());
            rest = &rest[used.min(rest.len())..];
            if out.len() > HEADER_BYTES_MAX {
                return Err(invalid("SPDY header block is too long"));
            }
            if rest.is_empty() && self.inflate.total_out() == written {
                break;
            }
        }
        parse_headers(&out)
    }

    fn pack_headers(&mut self, headers: &Headers) -> io::Result<Vec<u8>> {
        if !self.deflate_primed {
            self.deflate.set_dictionary(&self.dictionary).map_err(io::Error::other)?;
            self.deflate_primed = true;
        }
        let mut plain = u32::try_from(headers.len()).map_err(io::Error::other)?.to_be_bytes().to_vec();
        for (name, values) in headers {
            for text in [name.to_ascii_lowercase(), values.join("\0")] {
                plain.extend_from_slice(&u32::try_from(text.len()).map_err(io::Error::other)?.to_be_bytes());
                plain.extend_from_slice(text.as_bytes());
            }
        }
        let mut out = Vec::with_capacity(plain.len() + 64);
        let start = self.deflate.total_in();
        loop {
            out.reserve(256);
            let used = usize::try_from(self.deflate.total_in() - start).map_err(io::Error::other)?;
            self.deflate.compress_vec(&plain[used..], &mut out, FlushCompress::Sync).map_err(io::Error::other)?;
            // Spare room left means that the sync flush is complete.
            if out.len() < out.capacity() {
                return Ok(out);
            }
        }
    }
}

fn length(out: &mut Vec<u8>, fin: bool, len: usize) -> io::Result<()> {
    if len > 0x00ff_ffff {
        return Err(invalid("SPDY frame is too long"));
    }
    let len = u32::try_from(len).map_err(io::Error::other)?;
    out.extend_from_slice(&(len | u32::from(if fin { FLAG_FIN } else { 0 }) << 24).to_be_bytes());
    Ok(())
}

fn control(out: &mut Vec<u8>, kind: u32, fin: bool, body: &[u8]) -> io::Result<()> {
    out.extend_from_slice(&(0x8003_0000 | kind).to_be_bytes());
    length(out, fin, body.len())?;
    out.extend_from_slice(body);
    Ok(())
}

fn parse_headers(mut plain: &[u8]) -> io::Result<Headers> {
    fn number(plain: &mut &[u8]) -> io::Result<usize> {
        if plain.len() < 4 {
            return Err(invalid("SPDY header block is cut off"));
        }
        usize::try_from(plain.get_u32()).map_err(io::Error::other)
    }
    fn text(plain: &mut &[u8]) -> io::Result<String> {
        let len = number(plain)?;
        if plain.len() < len {
            return Err(invalid("SPDY header block is cut off"));
        }
        let (text, rest) = plain.split_at(len);
        *plain = rest;
        Ok(String::from_utf8_lossy(text).into_owned())
    }
    let mut headers = Headers::new();
    for _ in 0..number(&mut plain)? {
        let name = text(&mut plain)?.to_ascii_lowercase();
        let values = text(&mut plain)?.split('\0').map(str::to_owned).collect();
        headers.insert(name, values);
    }
    Ok(headers)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(name: &str, value: &str) -> Headers {
        Headers::from([(name.to_owned(), vec![value.to_owned()])])
    }

    #[test]
    fn frames_survive_the_wire_in_order() {
        let frames = [
            Frame::SynStream { stream: 1, fin: false, headers: header("streamtype", "error") },
            Frame::SynStream { stream: 3, fin: true, headers: header("streamtype", "stdin") },
            Frame::SynReply { stream: 1, fin: false },
            Frame::Data { stream: 3, fin: true, bytes: Bytes::from_static(b"hello") },
            Frame::Ping { id: 7 },
            Frame::Reset { stream: 3, status: 5 },
            Frame::GoAway,
        ];
        let (mut ours, mut theirs, mut bytes) = (Codec::default(), Codec::default(), Vec::new());
        for frame in &frames {
            ours.encode(frame, &mut bytes).unwrap();
        }
        let mut input = BytesMut::new();
        let mut got = Vec::new();
        for byte in bytes {
            input.extend_from_slice(&[byte]);
            got.extend(theirs.decode(&mut input).unwrap());
        }
        assert_eq!(got, frames);
    }

    #[test]
    fn broken_bytes_are_an_error_and_not_a_panic() {
        let mut seed = 0x2545_f491_4f6c_dd1d_u64;
        for _ in 0..2000 {
            let mut input = BytesMut::from(&[0x80, 3, 0, 1, 0, 0, 0, 40][..]);
            for _ in 0..48 {
                seed ^= seed << 13;
                seed ^= seed >> 7;
                seed ^= seed << 17;
                input.extend_from_slice(&seed.to_le_bytes()[..1]);
            }
            let mut codec = Codec::default();
            while let Ok(Some(_)) = codec.decode(&mut input) {}
        }
    }
}
