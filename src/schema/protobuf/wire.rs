//! The wire form itself: keys, varints and lengths.

use super::ProtobufError;

/// One field's payload.
#[derive(Clone, Copy, Debug)]
pub(super) enum Wire<'a> {
    Varint(u64),
    Fixed64(u64),
    Fixed32(u32),
    Bytes(&'a [u8]),
}

/// The bytes that are left to read.
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn varint(&mut self) -> Result<u64, ProtobufError> {
        let mut value = 0u64;
        for shift in (0..70).step_by(7) {
            let (first, rest) = self.0.split_first().ok_or(ProtobufError::Broken("unexpected EOF"))?;
            self.0 = rest;
            if shift < 64 {
                value |= u64::from(first & 0x7f) << shift;
            }
            if first & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(ProtobufError::Broken("proto: integer overflow"))
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], ProtobufError> {
        let (head, rest) = self.0.split_first_chunk().ok_or(ProtobufError::Broken("unexpected EOF"))?;
        self.0 = rest;
        Ok(*head)
    }

    pub(super) fn fixed64(&mut self) -> Result<u64, ProtobufError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// The next field; `None` at the end.
    pub(super) fn field(&mut self) -> Result<Option<(u32, Wire<'a>)>, ProtobufError> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let key = self.varint()?;
        let tag = u32::try_from(key >> 3).ok().filter(|t| *t > 0).ok_or(ProtobufError::Broken("proto: illegal tag"))?;
        let wire = match key & 7 {
            0 => Wire::Varint(self.varint()?),
            1 => Wire::Fixed64(self.fixed64()?),
            2 => {
                let length = usize::try_from(self.varint()?)
                    .map_err(|_| ProtobufError::Broken("proto: negative length found during unmarshaling"))?;
                let (head, rest) = self.0.split_at_checked(length).ok_or(ProtobufError::Broken("unexpected EOF"))?;
                self.0 = rest;
                Wire::Bytes(head)
            }
            5 => Wire::Fixed32(u32::from_le_bytes(self.array()?)),
            _ => return Err(ProtobufError::Broken("proto: illegal wireType")),
        };
        Ok(Some((tag, wire)))
    }
}

/// A text of the wire.
pub(super) fn text(bytes: &[u8]) -> Result<&str, ProtobufError> {
    std::str::from_utf8(bytes).map_err(|_| ProtobufError::Broken("a text is not UTF-8"))
}

/// A signed number as protobuf keeps it in a varint.
pub(super) fn signed(n: u64) -> i64 {
    i64::from_le_bytes(n.to_le_bytes())
}

pub(super) fn put(out: &mut Vec<u8>, mut n: u64) {
    while n > 0x7f {
        out.push((n & 0x7f) as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
}

pub(super) fn varint(out: &mut Vec<u8>, tag: u32, n: i64) {
    put(out, u64::from(tag) << 3);
    put(out, u64::from_le_bytes(n.to_le_bytes()));
}

pub(super) fn double(out: &mut Vec<u8>, tag: u32, n: f64) {
    put(out, u64::from(tag) << 3 | 1);
    out.extend_from_slice(&n.to_le_bytes());
}

pub(super) fn bytes(out: &mut Vec<u8>, tag: u32, b: &[u8]) {
    put(out, u64::from(tag) << 3 | 2);
    put(out, b.len() as u64);
    out.extend_from_slice(b);
}

/// A message whose length is known only once `write` has written it: its bytes then move to make room.
pub(super) fn delimited(
    out: &mut Vec<u8>,
    tag: u32,
    write: impl FnOnce(&mut Vec<u8>) -> Result<(), ProtobufError>,
) -> Result<(), ProtobufError> {
    put(out, u64::from(tag) << 3 | 2);
    let at = out.len();
    write(out)?;
    let mut length = Vec::with_capacity(5);
    put(&mut length, (out.len() - at) as u64);
    out.splice(at..at, length);
    Ok(())
}
