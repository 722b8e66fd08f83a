//! Netlink's bytes: messages and attributes, written and read by hand, for the few messages of netfilter that we need.

/// Flags in an attribute's type.
const NLA_TYPE_MASK: u16 = 0x3fff;
const HEADER: usize = 16;

/// One message of a datagram.
pub(crate) struct Message<'a> {
    pub(crate) kind: u16,
    /// The netlink port of whoever it is about.
    pub(crate) port: u32,
    /// The message behind the header.
    pub(crate) body: &'a [u8],
}

/// The messages of one datagram; ends at the first that is torn.
pub(crate) fn messages(mut bytes: &[u8]) -> impl Iterator<Item = Message<'_>> {
    std::iter::from_fn(move || {
        let len = usize::try_from(u32::from_ne_bytes(bytes.get(..4)?.try_into().ok()?)).ok()?;
        let kind = u16::from_ne_bytes(bytes.get(4..6)?.try_into().ok()?);
        let port = u32::from_ne_bytes(bytes.get(12..16)?.try_into().ok()?);
        let body = bytes.get(HEADER..len)?;
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some(Message { kind, port, body })
    })
}

/// Attributes by type; ends at the first that is torn.
pub(crate) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let len = usize::from(u16::from_ne_bytes(bytes.get(..2)?.try_into().ok()?));
        let kind = u16::from_ne_bytes(bytes.get(2..4)?.try_into().ok()?) & NLA_TYPE_MASK;
        let value = bytes.get(4..len)?;
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

/// Adds an attribute, padded as the kernel wants it.
pub(crate) fn put_attribute(out: &mut Vec<u8>, kind: u16, value: &[u8]) {
    let len = u16::try_from(4 + value.len()).unwrap_or(u16::MAX);
    out.extend(len.to_ne_bytes());
    out.extend(kind.to_ne_bytes());
    out.extend(value);
    out.resize(out.len().next_multiple_of(4), 0);
}
