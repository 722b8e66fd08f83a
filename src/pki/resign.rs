//! A certificate with the subject that was asked for, byte for byte.
//!
//! rcgen writes one attribute of a type only, and one in each part of a name; Go's clients ask for all their
//! organizations in one part. So the subject is exchanged in what rcgen made, and that is signed anew.

use rcgen::{KeyPair, SigningKey as _};

use crate::leaf::LeafSpec;

/// Where the subject stands in a certificate that has a version, as all of ours have.
const SUBJECT: usize = 5;

/// `cert` (DER) with `subject` (DER) in it, signed by `key`, which must be the one that signed `cert`.
pub(crate) fn with_subject(cert: &[u8], subject: &[u8], key: &KeyPair) -> Option<Vec<u8>> {
    let whole = elements(content(cert)?)?;
    let [to_be_signed, algorithm, _] = whole.as_slice() else { return None };
    exchange(to_be_signed, SUBJECT, subject).and_then(|fresh| sign(&fresh, algorithm, key))
}

/// `request` (DER) with `subject` (DER) in it, signed by `key`, its own.
pub(crate) fn request_with_subject(request: &[u8], subject: &[u8], key: &KeyPair) -> Option<Vec<u8>> {
    let whole = elements(content(request)?)?;
    let [to_be_signed, algorithm, _] = whole.as_slice() else { return None };
    exchange(to_be_signed, 1, subject).and_then(|fresh| sign(&fresh, algorithm, key))
}

/// A subject (DER) with every organization, each in a part of its own: parts of a set would need an order.
pub(crate) fn subject_of(spec: &LeafSpec) -> Vec<u8> {
    let part = |kind: u8, value: &str| {
        let attribute = [tagged(0x06, &[0x55, 0x04, kind]), tagged(0x0c, value.as_bytes())].concat();
        tagged(0x31, &tagged(0x30, &attribute))
    };
    let mut parts: Vec<u8> = spec.organizations.iter().flat_map(|name| part(10, name)).collect();
    parts.extend(part(3, &spec.common_name));
    tagged(0x30, &parts)
}

/// The sequence `der` with another element at `place`.
fn exchange(der: &[u8], place: usize, element: &[u8]) -> Option<Vec<u8>> {
    let mut parts = elements(content(der)?)?;
    *parts.get_mut(place)? = element;
    Some(tagged(0x30, &parts.concat()))
}

/// Signs in the form of X.509: the signed part, the algorithm, and the signature's bits.
fn sign(to_be_signed: &[u8], algorithm: &[u8], key: &KeyPair) -> Option<Vec<u8>> {
    let mut bits = vec![0];
    bits.extend(key.sign(to_be_signed).ok()?);
    Some(tagged(0x30, &[to_be_signed, algorithm, &tagged(0x03, &bits)].concat()))
}

/// Lengths of an element's head and of what follows it.
fn lengths(der: &[u8]) -> Option<(usize, usize)> {
    let first = *der.get(1)?;
    if first < 0x80 {
        return Some((2, usize::from(first)));
    }
    let n = usize::from(first & 0x7f);
    let bytes = der.get(2..2 + n).filter(|bytes| (1..=4).contains(&bytes.len()))?;
    Some((2 + n, bytes.iter().fold(0, |len, byte| len << 8 | usize::from(*byte))))
}

fn content(der: &[u8]) -> Option<&[u8]> {
    let (head, len) = lengths(der)?;
    der.get(head..head + len)
}

/// The elements that follow each other in `der`, heads included.
fn elements(mut der: &[u8]) -> Option<Vec<&[u8]>> {
    let mut out = Vec::new();
    while !der.is_empty() {
        let (head, len) = lengths(der)?;
        let (one, rest) = der.split_at_checked(head + len)?;
        out.push(one);
        der = rest;
    }
    Some(out)
}

/// An element of this tag.
fn tagged(tag: u8, content: &[u8]) -> Vec<u8> {
    let bytes = content.len().to_be_bytes();
    let length = &bytes[bytes.iter().take_while(|byte| **byte == 0).count()..];
    let mut out = vec![tag];
    match *length {
        [] => out.push(0),
        [one] if one < 0x80 => out.push(one),
        _ => {
            // At most eight bytes.
            out.push(0x80 | u8::try_from(length.len()).unwrap_or(0));
            out.extend(length);
        }
    }
    out.extend(content);
    out
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A name as Go writes it: every organization in one part.
    pub(crate) fn subject(common_name: &str, organizations: &[&str]) -> Vec<u8> {
        let attribute = |kind: u8, value: &str| {
            tagged(0x30, &[tagged(0x06, &[0x55, 0x04, kind]), tagged(0x0c, value.as_bytes())].concat())
        };
        let all: Vec<u8> = organizations.iter().flat_map(|name| attribute(10, name)).collect();
        tagged(0x30, &[tagged(0x31, &all), tagged(0x31, &attribute(3, common_name))].concat())
    }

    /// A name whose one organization is text of the type `tag`.
    pub(crate) fn subject_tagged(common_name: &str, tag: u8, organization: &[u8]) -> Vec<u8> {
        let attribute = |kind: u8, tag: u8, value: &[u8]| {
            tagged(0x30, &[tagged(0x06, &[0x55, 0x04, kind]), tagged(tag, value)].concat())
        };
        let parts = [attribute(10, tag, organization), attribute(3, 0x0c, common_name.as_bytes())];
        tagged(0x30, &parts.map(|part| tagged(0x31, &part)).concat())
    }

    /// A request with another subject, signed by its own key.
    pub(crate) fn request_with_subject(request: &[u8], subject: &[u8], key: &KeyPair) -> Vec<u8> {
        super::request_with_subject(request, subject, key).unwrap()
    }

    #[test]
    fn heads_are_written_as_they_are_read() {
        for len in [0, 1, 127, 128, 255, 256, 70_000] {
            let der = tagged(0x30, &vec![7; len]);
            assert_eq!(content(&der).unwrap().len(), len);
            assert_eq!(elements(&[der.clone(), der].concat()).unwrap().len(), 2);
        }
        assert!(
            lengths(&[0x30]).is_none()
                && content(&[0x30, 5, 1]).is_none()
                && lengths(&[0x30, 0x85, 1, 1, 1, 1, 1]).is_none()
        );
    }
}
