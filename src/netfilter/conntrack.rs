//! The kernel's table of connections: flows of UDP that must be forgotten, as the kernel would send a busy client's
//! packets to the old place for as long as it keeps sending. (Clients of TCP learn it by themselves.)
//!
//! Spec: `linux/netfilter/nfnetlink_conntrack.h`.

use std::net::{IpAddr, SocketAddr};

use crate::error::NetfilterError;
use crate::socket::Conversation;
use crate::wire::{attributes, put};

const CT_GET: u16 = 1 << 8 | 1;
const CT_DELETE: u16 = 1 << 8 | 2;
const CTA_TUPLE_ORIG: u16 = 1;
const CTA_TUPLE_REPLY: u16 = 2;
const CTA_ID: u16 = 12;
const CTA_ZONE: u16 = 18;
const NESTED: u16 = 0x8000;
const UDP: u8 = 17;

/// Family of flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// IPv4.
    V4 = 2,
    /// IPv6.
    V6 = 10,
}

/// A flow of UDP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// Destination as the client sent it.
    pub to: SocketAddr,
    /// The address that answers; another one than `to` if the destination was translated.
    pub answered_by: SocketAddr,
}

/// Deletes the flows of UDP that are `doomed`, and says how many these were. Blocks.
///
/// Errors: the kernel does not track connections, or refuses to tell or to forget.
pub fn forget_udp(family: Family, doomed: impl Fn(&Flow) -> bool) -> Result<usize, NetfilterError> {
    let mut kernel = Conversation::open()?;
    let names = kernel.dump(
        (CT_GET, family as u8),
        |_| {},
        |_, body| {
            let (flow, name) = parse(body)?;
            doomed(&flow).then_some(name)
        },
    )?;
    for name in &names {
        let deleted = kernel.get((CT_DELETE, family as u8), |out| out.extend(name), |_, _| Some(()));
        // One that has expired meanwhile is gone as well.
        deleted.map(drop).or_else(|err| if err.is_absent() { Ok(()) } else { Err(err) })?;
    }
    Ok(names.len())
}

/// Reads a flow of UDP, and the attributes that name it to the kernel.
pub fn parse(body: &[u8]) -> Option<(Flow, Vec<u8>)> {
    let (mut orig, mut reply, mut rest) = (None, None, Vec::new());
    for (kind, value) in attributes(body) {
        match kind {
            CTA_TUPLE_ORIG => orig = Some(value),
            CTA_TUPLE_REPLY => reply = Some(value),
            CTA_ID | CTA_ZONE => rest.push((kind, value)),
            _ => {}
        }
    }
    let (orig, reply) = (orig?, reply?);
    let (forth, back) = (Tuple::parse(orig)?, Tuple::parse(reply)?);
    if forth.protocol != UDP {
        return None;
    }
    let mut name = Vec::new();
    put(&mut name, CTA_TUPLE_ORIG | NESTED, orig);
    rest.iter().for_each(|(kind, value)| put(&mut name, *kind, value));
    Some((Flow { to: forth.dst, answered_by: back.src }, name))
}

struct Tuple {
    src: SocketAddr,
    dst: SocketAddr,
    protocol: u8,
}

impl Tuple {
    fn parse(bytes: &[u8]) -> Option<Tuple> {
        let (mut src, mut dst, mut protocol, mut src_port, mut dst_port) = (None, None, 0, 0, 0);
        for (kind, value) in attributes(bytes) {
            for (inner, value) in attributes(value) {
                match (kind, inner) {
                    (1, 1 | 3) => src = ip(value),
                    (1, 2 | 4) => dst = ip(value),
                    (2, 1) => protocol = *value.first()?,
                    (2, 2) => src_port = u16::from_be_bytes(value.try_into().ok()?),
                    (2, 3) => dst_port = u16::from_be_bytes(value.try_into().ok()?),
                    _ => {}
                }
            }
        }
        Some(Tuple { src: SocketAddr::new(src?, src_port), dst: SocketAddr::new(dst?, dst_port), protocol })
    }
}

fn ip(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => Some(IpAddr::from(<[u8; 4]>::try_from(bytes).ok()?)),
        16 => Some(IpAddr::from(<[u8; 16]>::try_from(bytes).ok()?)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tuple(src: [u8; 4], dst: [u8; 4], ports: (u16, u16)) -> Vec<u8> {
        let (mut ips, mut proto, mut out) = (Vec::new(), Vec::new(), Vec::new());
        put(&mut ips, 1, &src);
        put(&mut ips, 2, &dst);
        put(&mut proto, 1, &[17]);
        put(&mut proto, 2, &ports.0.to_be_bytes());
        put(&mut proto, 3, &ports.1.to_be_bytes());
        put(&mut out, 1 | NESTED, &ips);
        put(&mut out, 2 | NESTED, &proto);
        out
    }

    #[test]
    fn a_flow_says_where_it_was_sent_and_by_whom_it_is_answered() {
        let mut body = Vec::new();
        put(&mut body, CTA_TUPLE_ORIG | NESTED, &tuple([10, 42, 0, 9], [10, 43, 0, 10], (4000, 53)));
        put(&mut body, CTA_TUPLE_REPLY | NESTED, &tuple([10, 42, 0, 5], [10, 42, 0, 9], (5353, 4000)));
        put(&mut body, CTA_ID, &[1, 2, 3, 4]);
        let (flow, name) = parse(&body).unwrap();
        let wanted = Flow { to: "10.43.0.10:53".parse().unwrap(), answered_by: "10.42.0.5:5353".parse().unwrap() };
        assert_eq!(flow, wanted);
        assert!(name.ends_with(&[1, 2, 3, 4]), "the number keeps it apart from a later flow of the same addresses");
        for cut in 0..body.len() {
            let _ends = parse(&body[..cut]);
        }
    }
}
