//! Forgetting UDP flows whose endpoint is gone: conntrack would send a busy client's packets to the old address for as
//! long as it keeps sending. (TCP clients learn it by themselves.)
//!
//! Spec: `linux/netfilter/nfnetlink_conntrack.h`. Messages are written by hand, as we need two of them.

use std::io;
use std::net::{IpAddr, SocketAddr};

use rtnetlink::sys::{Socket, SocketAddr as NetlinkAddr, protocols::NETLINK_NETFILTER};

use crate::family::Family;
use crate::netlink::{attributes, messages, put_attribute};
use crate::service::flows::Stale;
use crate::service::rules::UdpTarget;

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
const HEADER: usize = 16;
/// Header of netlink, then family, version and resource of netfilter.
const NETFILTER_HEADER: usize = HEADER + 4;

/// Deletes what `stale` names; says how many flows that were. `local` are the node's own addresses, where node ports
/// are. Blocks: call it outside the async threads.
pub(crate) fn forget(family: Family, stale: &Stale, local: &[IpAddr]) -> io::Result<usize> {
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
        for message in messages(&bytes) {
            match message.kind {
                NLMSG_DONE => break 'dump,
                NLMSG_ERROR => return Err(io::Error::other("conntrack cannot be listed")),
                _ => doomed
                    .extend(Flow::parse(message.body).filter(|flow| flow.is(stale, local)).map(|flow| flow.name())),
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

    fn is(&self, stale: &Stale, local: &[IpAddr]) -> bool {
        let translated = self.answered_by != self.to;
        let address = UdpTarget::Address(self.to);
        let node_port = UdpTarget::NodePort(self.to.port());
        // A flow to some other machine's port of the same number is not ours.
        let here = local.contains(&self.to.ip());
        let targets = [Some(address), Some(node_port).filter(|_| here || translated)];
        targets.iter().flatten().any(|target| {
            stale.endpoints.get(target).is_some_and(|gone| gone.contains(&self.answered_by))
                || !translated && stale.untranslated.contains(target)
                || (*target == address || here)
                    && stale.strangers.get(target).is_some_and(|now| !now.serving.contains(&self.answered_by))
        })
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::rules::Answering;

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

    /// A flow from 10.42.0.9 to this address and port, answered by the other.
    fn flow_body(to: ([u8; 4], u16), by: ([u8; 4], u16)) -> Vec<u8> {
        let mut body = vec![2, 0, 0, 0];
        put_attribute(&mut body, CTA_TUPLE_ORIG | 0x8000, &tuple([10, 42, 0, 9], to.0, (4000, to.1)));
        put_attribute(&mut body, CTA_TUPLE_REPLY | 0x8000, &tuple(by.0, [10, 42, 0, 9], (by.1, 4000)));
        body
    }

    #[test]
    fn a_flow_to_a_gone_endpoint_is_recognised() {
        let body = flow_body(([10, 43, 0, 10], 53), ([10, 42, 0, 5], 5353));
        let flow = Flow::parse(&body).unwrap();
        let target = UdpTarget::Address("10.43.0.10:53".parse().unwrap());
        let gone = |endpoint: &str| Stale {
            endpoints: [(target, std::sync::Arc::new([endpoint.parse().unwrap()].into()))].into(),
            ..Stale::default()
        };
        assert!(flow.is(&gone("10.42.0.5:5353"), &[]));
        assert!(!flow.is(&gone("10.42.0.6:5353"), &[]));
        assert!(!flow.is(&Stale { untranslated: [target].into(), ..Stale::default() }, &[]));
    }

    #[test]
    fn at_the_start_a_flow_to_an_endpoint_that_serves_no_more_is_forgotten() {
        let body = flow_body(([10, 43, 0, 10], 53), ([10, 42, 0, 5], 5353));
        let flow = Flow::parse(&body).unwrap();
        let target = UdpTarget::Address("10.43.0.10:53".parse().unwrap());
        let serving = |endpoint: &str| {
            let now = Answering { serving: [endpoint.parse().unwrap()].into(), ..Answering::default() };
            Stale { strangers: [(target, now.into())].into(), ..Stale::default() }
        };
        assert!(flow.is(&serving("10.42.0.6:5353"), &[]));
        assert!(!flow.is(&serving("10.42.0.5:5353"), &[]));
    }

    #[test]
    fn a_flow_to_another_machine_is_no_node_ports() {
        let stale = Stale { untranslated: [UdpTarget::NodePort(30_053)].into(), ..Stale::default() };
        let node: IpAddr = "192.168.1.2".parse().unwrap();
        let body = flow_body(([8, 8, 8, 8], 30_053), ([8, 8, 8, 8], 30_053));
        assert!(!Flow::parse(&body).unwrap().is(&stale, &[node]));
        let body = flow_body(([192, 168, 1, 2], 30_053), ([192, 168, 1, 2], 30_053));
        assert!(Flow::parse(&body).unwrap().is(&stale, &[node]));
    }

    #[test]
    fn a_torn_message_ends_the_walk() {
        assert_eq!(attributes(&[200, 0, 1, 0, 1]).count(), 0);
    }
}
