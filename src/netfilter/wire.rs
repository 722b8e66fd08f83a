//! Netlink's bytes: messages and attributes, written and read by hand.
//!
//! Numbers of netfilter are big-endian, those of netlink's own headers the machine's.

/// Flags in an attribute's type.
const TYPE_MASK: u16 = 0x3fff;
const NESTED: u16 = 0x8000;
/// Bytes of netlink's header.
pub(crate) const HEADER: usize = 16;

/// Families of tables.
pub(crate) const INET: u8 = 1;
pub(crate) const IP: u8 = 2;
pub(crate) const BRIDGE: u8 = 7;
pub(crate) const IP6: u8 = 10;

/// Flags of requests. Spec: `linux/netlink.h`.
pub(crate) const REQUEST: u16 = 0x1;
pub(crate) const ACK: u16 = 0x4;
pub(crate) const DUMP: u16 = 0x300;
pub(crate) const CREATE: u16 = 0x400;
pub(crate) const APPEND: u16 = 0x800;

/// One message of a datagram.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    /// Subsystem in the upper byte, kind in the lower.
    pub kind: u16,
    /// Flags of the header.
    pub flags: u16,
    /// The number that the sender gave it.
    pub seq: u32,
    /// The netlink port of the socket that it is about.
    pub port: u32,
    /// The message behind the header.
    pub body: &'a [u8],
}

/// The messages of one datagram; ends at the first that is torn.
pub fn messages(mut bytes: &[u8]) -> impl Iterator<Item = Message<'_>> {
    let half = |bytes: &[u8], at: usize| Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?));
    let word = |bytes: &[u8], at: usize| Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    std::iter::from_fn(move || {
        let len = usize::try_from(word(bytes, 0)?).ok()?;
        let (kind, flags, seq, port) = (half(bytes, 4)?, half(bytes, 6)?, word(bytes, 8)?, word(bytes, 12)?);
        let body = bytes.get(HEADER..len)?;
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some(Message { kind, flags, seq, port, body })
    })
}

/// Attributes by type; ends at the first that is torn.
pub fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let len = usize::from(u16::from_ne_bytes(bytes.get(..2)?.try_into().ok()?));
        let kind = u16::from_ne_bytes(bytes.get(2..4)?.try_into().ok()?) & TYPE_MASK;
        let value = bytes.get(4..len)?;
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

/// The attribute of this type.
pub(crate) fn attribute(bytes: &[u8], wanted: u16) -> Option<&[u8]> {
    attributes(bytes).find(|(kind, _)| *kind == wanted).map(|(_, value)| value)
}

/// The text of an attribute, without the NUL at its end.
pub(crate) fn text(bytes: &[u8], wanted: u16) -> Option<&str> {
    std::str::from_utf8(attribute(bytes, wanted)?).ok().map(|text| text.trim_end_matches('\0'))
}

/// The number of an attribute of netfilter's.
pub(crate) fn number(bytes: &[u8], wanted: u16) -> Option<u32> {
    Some(u32::from_be_bytes(attribute(bytes, wanted)?.try_into().ok()?))
}

/// Adds an attribute, padded as the kernel wants it.
///
/// A value of more than 65,531 bytes has no place in an attribute; none of ours is as long, and the kernel would refuse
/// the torn message.
pub fn put(out: &mut Vec<u8>, kind: u16, value: &[u8]) {
    let len = u16::try_from(4 + value.len()).unwrap_or(u16::MAX);
    out.extend(len.to_ne_bytes());
    out.extend(kind.to_ne_bytes());
    out.extend(value);
    out.resize(out.len().next_multiple_of(4), 0);
}

/// Adds a number.
pub(crate) fn put_u32(out: &mut Vec<u8>, kind: u16, value: u32) {
    put(out, kind, &value.to_be_bytes());
}

/// Adds a long number.
pub(crate) fn put_u64(out: &mut Vec<u8>, kind: u16, value: u64) {
    put(out, kind, &value.to_be_bytes());
}

/// Adds a text with the NUL that ends it.
pub(crate) fn put_text(out: &mut Vec<u8>, kind: u16, text: &str) {
    let len = u16::try_from(4 + text.len() + 1).unwrap_or(u16::MAX);
    out.extend(len.to_ne_bytes());
    out.extend(kind.to_ne_bytes());
    out.extend(text.as_bytes());
    out.push(0);
    out.resize(out.len().next_multiple_of(4), 0);
}

/// Adds an attribute of the attributes that `fill` writes.
pub(crate) fn put_nested(out: &mut Vec<u8>, kind: u16, fill: impl FnOnce(&mut Vec<u8>)) {
    let at = begin_nested(out, kind);
    fill(out);
    end_nested(out, at);
}

/// Begins an attribute of attributes; [`end_nested`] gives it its length.
pub(crate) fn begin_nested(out: &mut Vec<u8>, kind: u16) -> usize {
    let at = out.len();
    out.extend([0, 0]);
    out.extend((kind | NESTED).to_ne_bytes());
    at
}

/// Ends what began at `at`.
pub(crate) fn end_nested(out: &mut [u8], at: usize) {
    let len = u16::try_from(out.len() - at).unwrap_or(u16::MAX);
    if let Some(place) = out.get_mut(at..at + 2) {
        place.copy_from_slice(&len.to_ne_bytes());
    }
}

/// The head of netfilter's messages behind netlink's: family, version and resource.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head {
    pub(crate) kind: u16,
    pub(crate) flags: u16,
    pub(crate) seq: u32,
    pub(crate) family: u8,
    pub(crate) resource: u16,
}

/// Adds a message of the attributes that `fill` writes.
pub(crate) fn put_message(out: &mut Vec<u8>, head: Head, fill: impl FnOnce(&mut Vec<u8>)) {
    let at = begin_message(out, head);
    fill(out);
    end_message(out, at);
}

/// Begins a message; [`end_message`] gives it its length.
pub(crate) fn begin_message(out: &mut Vec<u8>, head: Head) -> usize {
    let at = out.len();
    out.extend([0; 4]);
    out.extend(head.kind.to_ne_bytes());
    out.extend(head.flags.to_ne_bytes());
    out.extend(head.seq.to_ne_bytes());
    out.extend([0; 4]);
    out.extend([head.family, 0]);
    out.extend(head.resource.to_be_bytes());
    at
}

/// Ends what began at `at`.
pub(crate) fn end_message(out: &mut [u8], at: usize) {
    let len = u32::try_from(out.len() - at).unwrap_or(u32::MAX);
    if let Some(place) = out.get_mut(at..at + 4) {
        place.copy_from_slice(&len.to_ne_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        let mut bytes = Vec::new();
        let head = Head { kind: 0xa01, flags: REQUEST, seq: 7, family: 2, resource: 10 };
        put_message(&mut bytes, head, |out| {
            put_text(out, 1, "abc");
            put_nested(out, 2, |out| put_u32(out, 3, 9));
        });
        let all: Vec<Message<'_>> = messages(&bytes).collect();
        assert_eq!((all.len(), all[0].kind, all[0].seq, &all[0].body[..4]), (1, 0xa01, 7, &[2, 0, 0, 10][..]));
        let attributes = &all[0].body[4..];
        assert_eq!(text(attributes, 1), Some("abc"));
        assert_eq!(number(attribute(attributes, 2).unwrap(), 3), Some(9));
    }

    #[test]
    fn torn_bytes_end_the_walk() {
        assert_eq!(attributes(&[200, 0, 1, 0, 1]).count(), 0);
        assert_eq!(attributes(&[0, 0, 1, 0, 1]).count(), 0);
        assert_eq!(messages(&[20, 0, 0, 0, 1, 0]).count(), 0);
    }
}
