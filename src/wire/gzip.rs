//! Compressing answers for clients that ask for it, and opening what comes packed.

use std::io::{self, Read as _, Write as _};

use bytes::{Buf as _, Bytes};
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::{self, GzEncoder};
use http::HeaderMap;
use http::header::ACCEPT_ENCODING;

/// Of content that is opened piece by piece.
const PIECE_BYTES: usize = 64 * 1024;

/// Whether the client accepts gzip (RFC 9110, 12.5.3); a quality of 0 means no.
pub fn accepted(headers: &HeaderMap) -> bool {
    headers.get_all(ACCEPT_ENCODING).iter().filter_map(|v| v.to_str().ok()).flat_map(|v| v.split(',')).any(|item| {
        let mut parts = item.split(';').map(str::trim);
        let named = parts.next().is_some_and(|coding| coding.eq_ignore_ascii_case("gzip"));
        let refused =
            parts.any(|p| matches!(p.strip_prefix("q="), Some(q) if q.parse::<f32>().is_ok_and(|q| q == 0.0)));
        named && !refused
    })
}

/// Compresses at the fastest level, as upstream does: the network is rarely the slower part.
pub fn compress(chunks: &[Bytes]) -> io::Result<Bytes> {
    let total: usize = chunks.iter().map(Bytes::len).sum();
    let mut encoder = GzEncoder::new(Vec::with_capacity(total / 8), Compression::fast());
    for chunk in chunks {
        encoder.write_all(chunk)?;
    }
    encoder.finish().map(Bytes::from)
}

/// Compresses what comes in pieces, at the same level.
pub struct Packer(GzEncoder<Vec<u8>>);

impl Packer {
    /// With nothing in it.
    pub fn begin() -> Packer {
        Packer(GzEncoder::new(Vec::new(), Compression::fast()))
    }

    /// Takes a piece in; what is ready by now, which may be nothing.
    pub fn pack(&mut self, piece: &[u8]) -> io::Result<Bytes> {
        self.0.write_all(piece)?;
        Ok(std::mem::take(self.0.get_mut()).into())
    }

    /// The rest.
    pub fn finish(self) -> io::Result<Bytes> {
        self.0.finish().map(Bytes::from)
    }
}

/// Opens gzip data, at most `limit` bytes of content: a longer one is an error, so that a small body cannot fill
/// memory.
pub fn decompress(data: &[u8], limit: usize) -> io::Result<Vec<u8>> {
    let mut out = Vec::new();
    let bound = u64::try_from(limit).unwrap_or(u64::MAX);
    GzDecoder::new(data).take(bound.saturating_add(1)).read_to_end(&mut out)?;
    if out.len() > limit {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("decompressed body is longer than {limit} bytes"),
        ));
    }
    Ok(out)
}

/// Opens gzip data that comes piece by piece. Only the first member is read.
#[derive(Debug)]
pub struct Opening(write::GzDecoder<Vec<u8>>);

impl Default for Opening {
    fn default() -> Opening {
        Opening(write::GzDecoder::new(Vec::new()))
    }
}

impl Opening {
    /// Reads some bytes off the front of `packed`, which has some. What they hold is at most some tens of kilobytes,
    /// however well they are packed; what is behind the end of the data is thrown away.
    ///
    /// Errors: it is no gzip data.
    pub fn step(&mut self, packed: &mut Bytes) -> io::Result<Vec<u8>> {
        match self.0.write(packed)? {
            0 => packed.clear(),
            n => packed.advance(n),
        }
        Ok(std::mem::take(self.0.get_mut()))
    }

    /// No more bytes will come: what is left.
    ///
    /// Errors: the data is cut short, or is not what was packed.
    pub fn end(self) -> io::Result<Vec<u8>> {
        self.0.finish()
    }
}

/// The content of gzip data in pieces, each made when it is asked for: the whole is never in memory.
pub fn opened(packed: Bytes) -> impl Iterator<Item = io::Result<Bytes>> {
    let mut decoder = GzDecoder::new(packed.reader());
    std::iter::from_fn(move || {
        let mut piece = Vec::with_capacity(PIECE_BYTES);
        match decoder.by_ref().take(u64::try_from(PIECE_BYTES).unwrap_or(u64::MAX)).read_to_end(&mut piece) {
            Ok(0) => None,
            Ok(_) => Some(Ok(piece.into())),
            Err(err) => Some(Err(err)),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_piece_that_holds_much_is_opened_in_bounded_steps() {
        let content = Bytes::from(vec![b'a'; 30 << 20]);
        let packed = compress(std::slice::from_ref(&content)).unwrap();
        let (mut opening, mut left, mut read) = (Opening::default(), packed.clone(), 0);
        while !left.is_empty() {
            let piece = opening.step(&mut left).unwrap();
            assert!(piece.len() <= 2 * PIECE_BYTES, "{}", piece.len());
            read += piece.len();
        }
        read += opening.end().unwrap().len();
        assert_eq!(read, content.len());
        let pieces: Vec<Bytes> = opened(packed.clone()).collect::<io::Result<_>>().unwrap();
        assert!(pieces.iter().all(|piece| piece.len() <= PIECE_BYTES) && pieces.concat() == content);
        assert!(opened(packed.slice(..packed.len() / 2)).any(|piece| piece.is_err()));
    }

    #[test]
    fn what_was_compressed_opens_again_up_to_the_limit() {
        let packed = compress(&[Bytes::from_static(b"abc"), Bytes::from_static(b"def")]).unwrap();
        assert_eq!(decompress(&packed, 6).unwrap(), b"abcdef");
        assert!(decompress(&packed, 5).is_err());
    }

    #[test]
    fn pieces_open_as_one() {
        let mut packer = Packer::begin();
        let mut packed = [packer.pack(b"abc").unwrap(), packer.pack(b"def").unwrap()].concat();
        packed.extend_from_slice(&packer.finish().unwrap());
        assert_eq!(decompress(&packed, 6).unwrap(), b"abcdef");
    }

    #[test]
    fn a_quality_of_zero_is_a_refusal() {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT_ENCODING, "br, gzip;q=0".parse().unwrap());
        assert!(!accepted(&headers));
        headers.insert(ACCEPT_ENCODING, "br, gzip;q=0.5".parse().unwrap());
        assert!(accepted(&headers));
    }
}
