//! Forgetting UDP flows whose endpoint is gone: conntrack would send a busy client's packets to the old address for as long as it
//! keeps sending. (TCP clients learn it by themselves.)
//!
//! Spec: `linux/netfilter/nfnetlink_conntrack.h`. Messages are written by hand, as we need two of them.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, SocketAddr};

use rtnetlink::sys::{Socket, SocketAddr as NetlinkAddr, protocols::NETLINK_NETFILTER};

use crate::service::flows::StaleFlow;
use crate::service::rules::{Family, UdpTarget};

const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLM_F_REQUEST: u16 = 0x1;
const NLM_F_DUMP: u16 = 0x300;
const CTNETLINK: u16 = 1 << 8;
const CT_GET: u16 = CTNETLINK | 1;
const CT_DELETE: u16 = CTNETLINK | 2;
const CTA_TUPLE_ORIG: u16 = 1;
const CTA_TUPLE_REPLY: u16 = 2;
const CTA_ID: u16 = 12;
const CTA_ZONE: u16 = 18;
/// Flags in an attribute's type.
const NLA_TYPE_MASK: u16 = 0x3fff;
const HEADER: usize = 16;
/// Header of netlink, then family, version and resource of netfilter.
const NETFILTER_HEADER: usize = HEADER + 4;

/// Deletes what `stale` names; says how many flows that were. Blocks: call it outside the async threads.
pub(crate) fn forget(family: Family, stale: &BTreeSet<StaleFlow>) -> io::Result<usize> {
    let mut socket = Socket::new(NETLINK_NETFILTER)?;
    socket.bind_auto()?;
    socket.connect(&NetlinkAddr::new(0, 0))?;
    let af = match family {
        Family::V4 => 2,
        Family::V6 => 10,
    };
    socket.send(&message(CT_GET, NLM_F_REQUEST | NLM_F_DUMP, af, &[]), 0)?;
    let mut doomed = Vec::new();
    'dump: loop {
        let (bytes, _) = socket.recv_from_full()?;
        for (kind, body) in messages(&bytes) {
            match kind {
                NLMSG_DONE => break 'dump,
                NLMSG_ERROR => return Err(io::Error::other("conntrack cannot be listed")),
                _ => doomed.extend(Flow::parse(body).filter(|flow| stale.iter().any(|stale| flow.is(stale))).map(|flow| flow.name())),
            }
        }
    }
    for name in &doomed {
        // One that has expired meanwhile is no error worth hearing.
        socket.send(&message(CT_DELETE, NLM_F_REQUEST, af, name), 0)?;
    }
    Ok(doomed.len())
}

/// A UDP flow with the raw attributes that name it.
struct Flow<'a> {
    to: SocketAddr,
    answered_by: SocketAddr,
    orig: &'a [u8],
    rest: Vec<(u16, &'a [u8])>,
}

impl<'a> Flow<'a> {
    fn parse(body: &'a [u8]) -> Option<Flow<'a>> {
        const UDP: u8 = 17;
        let (mut orig, mut reply, mut rest) = (None, None, Vec::new());
        for (kind, value) in attributes(body.get(4..)?) {
            match kind {
                CTA_TUPLE_ORIG => orig = Some(value),
                CTA_TUPLE_REPLY => reply = Some(value),
                CTA_ID | CTA_ZONE => rest.push((kind, value)),
                _ => {}
            }
        }
        let (orig, reply) = (orig?, reply?);
        let (forth, back) = (Tuple::parse(orig)?, Tuple::parse(reply)?);
        (forth.protocol == UDP).then_some(Flow { to: forth.dst, answered_by: back.src, orig, rest })
    }

    fn is(&self, stale: &StaleFlow) -> bool {
        let to = |target: &UdpTarget| match target {
            UdpTarget::Address(addr) => *addr == self.to,
            UdpTarget::NodePort(port) => *port == self.to.port(),
        };
        match stale {
            StaleFlow::Endpoint { target, endpoint } => to(target) && *endpoint == self.answered_by,
            StaleFlow::Untranslated { target } => to(target) && self.answered_by == self.to,
        }
    }

    fn name(&self) -> Vec<u8> {
        let mut name = Vec::new();
        // Nested attributes carry the flag 0x8000.
        put_attribute(&mut name, CTA_TUPLE_ORIG | 0x8000, self.orig);
        for (kind, value) in &self.rest {
            put_attribute(&mut name, *kind, value);
        }
        name
    }
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

fn message(kind: u16, flags: u16, af: u8, attributes: &[u8]) -> Vec<u8> {
    let len = u32::try_from(NETFILTER_HEADER + attributes.len()).unwrap_or(u32::MAX);
    let mut out = Vec::with_capacity(NETFILTER_HEADER + attributes.len());
    out.extend(len.to_ne_bytes());
    out.extend(kind.to_ne_bytes());
    out.extend(flags.to_ne_bytes());
    // Sequence and port: one conversation at a time needs neither.
    out.extend([0; 8]);
    out.extend([af, 0, 0, 0]);
    out.extend(attributes);
    out
}

fn put_attribute(out: &mut Vec<u8>, kind: u16, value: &[u8]) {
    let len = u16::try_from(4 + value.len()).unwrap_or(u16::MAX);
    out.extend(len.to_ne_bytes());
    out.extend(kind.to_ne_bytes());
    out.extend(value);
    out.resize(out.len().next_multiple_of(4), 0);
}

/// Netlink messages of one datagram: kind and what follows the header.
fn messages(bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    chunks(bytes, |bytes| {
        let len = usize::try_from(u32::from_ne_bytes(bytes.get(..4)?.try_into().ok()?)).ok()?;
        let kind = u16::from_ne_bytes(bytes.get(4..6)?.try_into().ok()?);
        Some((len, kind, HEADER))
    })
}

fn attributes(bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    chunks(bytes, |bytes| {
        let len = usize::from(u16::from_ne_bytes(bytes.get(..2)?.try_into().ok()?));
        let kind = u16::from_ne_bytes(bytes.get(2..4)?.try_into().ok()?) & NLA_TYPE_MASK;
        Some((len, kind, 4))
    })
}

/// Cuts `bytes` into pieces whose header tells length and kind; ends at the first that does not fit.
fn chunks(mut bytes: &[u8], header: impl Fn(&[u8]) -> Option<(usize, u16, usize)>) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let (len, kind, skip) = header(bytes)?;
        let value = bytes.get(skip..len)?;
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tuple(src: [u8; 4], dst: [u8; 4], ports: (u16, u16)) -> Vec<u8> {
        let (mut ips, mut proto, mut out) = (Vec::new(), Vec::new(), Vec::new());
        put_attribute(&mut ips, 1, &src);
        put_attribute(&mut ips, 2, &dst);
        put_attribute(&mut proto, 1, &[17]);
        put_attribute(&mut proto, 2, &ports.0.to_be_bytes());
        put_attribute(&mut proto, 3, &ports.1.to_be_bytes());
        put_attribute(&mut out, 1 | 0x8000, &ips);
        put_attribute(&mut out, 2 | 0x8000, &proto);
        out
    }

    #[test]
    fn a_flow_to_a_gone_endpoint_is_recognised() {
        let mut body = vec![2, 0, 0, 0];
        put_attribute(&mut body, CTA_TUPLE_ORIG | 0x8000, &tuple([10, 42, 0, 9], [10, 43, 0, 10], (4000, 53)));
        put_attribute(&mut body, CTA_TUPLE_REPLY | 0x8000, &tuple([10, 42, 0, 5], [10, 42, 0, 9], (5353, 4000)));
        let flow = Flow::parse(&body).unwrap();
        let target = UdpTarget::Address("10.43.0.10:53".parse().unwrap());
        assert!(flow.is(&StaleFlow::Endpoint { target, endpoint: "10.42.0.5:5353".parse().unwrap() }));
        assert!(!flow.is(&StaleFlow::Endpoint { target, endpoint: "10.42.0.6:5353".parse().unwrap() }));
        assert!(!flow.is(&StaleFlow::Untranslated { target }));
    }

    #[test]
    fn a_torn_message_ends_the_walk() {
        assert_eq!(attributes(&[200, 0, 1, 0, 1]).count(), 0);
    }
}
