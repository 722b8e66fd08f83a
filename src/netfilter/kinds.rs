//! Kinds of values: their numbers and names in nftables, their length in registers, and how they are written.
//!
//! The kernel knows lengths alone; the numbers of kinds are the program nft's, which lists a set by them.

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::error::Misread;
use crate::words::{Misplaced, unquoted};

/// Kind of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    V4,
    V6,
    /// Number of a protocol above IP.
    Proto,
    /// Port.
    Service,
    /// Name of an interface.
    IfName,
    /// Number of an interface.
    IfIndex,
    /// MAC.
    Ether,
    EtherType,
    Icmp6Type,
    /// Kind of an address: the machine's own, broadcast, multicast.
    AddrType,
    NfProto,
    Integer,
    Mark,
    CtState,
    CtStatus,
    /// Bytes of the packet, by their number.
    Raw(u8),
}

const PROTOCOLS: [(&str, u8); 6] =
    [("tcp", 6), ("udp", 17), ("sctp", 132), ("icmp", 1), ("icmpv6", 58), ("ipv6-icmp", 58)];
const ETHER_TYPES: [(&str, u16); 3] = [("ip", 0x0800), ("ip6", 0x86dd), ("arp", 0x0806)];
const ICMP6_TYPES: [(&str, u8); 7] = [
    ("mld-listener-report", 131),
    ("nd-router-solicit", 133),
    ("nd-router-advert", 134),
    ("nd-neighbor-solicit", 135),
    ("nd-neighbor-advert", 136),
    ("nd-redirect", 137),
    ("mld2-listener-report", 143),
];
const ADDR_TYPES: [(&str, u32); 4] = [("unicast", 1), ("local", 2), ("broadcast", 3), ("multicast", 5)];
const CT_STATES: [(&str, u32); 5] =
    [("invalid", 1), ("established", 2), ("related", 4), ("new", 8), ("untracked", 0x40)];
const CT_STATUSES: [(&str, u32); 2] = [("snat", 0x10), ("dnat", 0x20)];
pub(crate) const NFPROTOS: [(&str, u8); 2] = [("ipv4", 2), ("ipv6", 10)];

fn named<T: Copy>(names: &[(&str, T)], word: &str) -> Option<T> {
    names.iter().find(|(name, _)| *name == word).map(|(_, value)| *value)
}

impl Kind {
    /// Its number in nft. Spec: nftables, `include/datatype.h`.
    pub(crate) fn id(self) -> u32 {
        match self {
            Kind::NfProto => 2,
            Kind::Integer | Kind::Raw(_) => 4,
            Kind::V4 => 7,
            Kind::V6 => 8,
            Kind::Ether => 9,
            Kind::EtherType => 10,
            Kind::Proto => 12,
            Kind::Service => 13,
            Kind::Mark => 19,
            Kind::IfIndex => 20,
            Kind::CtState => 26,
            Kind::CtStatus => 28,
            Kind::Icmp6Type => 29,
            Kind::AddrType => 38,
            Kind::IfName => 41,
        }
    }

    /// Bytes of a value.
    pub(crate) fn len(self) -> usize {
        match self {
            Kind::Proto | Kind::NfProto | Kind::Icmp6Type => 1,
            Kind::Service | Kind::EtherType => 2,
            Kind::Ether => 6,
            Kind::V6 | Kind::IfName => 16,
            Kind::Raw(len) => usize::from(len),
            _ => 4,
        }
    }

    /// Bytes of a value in registers, which have four each.
    pub(crate) fn padded(self) -> usize {
        self.len().next_multiple_of(4)
    }

    /// Order of a value's bytes, as nft counts: 1 is the machine's, 2 the network's.
    pub(crate) fn byte_order(self) -> u32 {
        match self {
            Kind::IfName
            | Kind::IfIndex
            | Kind::AddrType
            | Kind::Integer
            | Kind::Mark
            | Kind::CtState
            | Kind::CtStatus
            | Kind::NfProto => 1,
            _ => 2,
        }
    }

    /// The kind by its name in a set's `type`.
    pub(crate) fn by_name(word: &str) -> Result<Kind, Misread> {
        Ok(match word {
            "ipv4_addr" => Kind::V4,
            "ipv6_addr" => Kind::V6,
            "inet_proto" => Kind::Proto,
            "inet_service" => Kind::Service,
            "ifname" => Kind::IfName,
            other => return Err(other.in_place_of("the name of a type")),
        })
    }

    /// The kind of a value in a set that the script does not declare.
    pub(crate) fn by_look(word: &str) -> Result<Kind, Misread> {
        let address = word.split('/').next().unwrap_or_default();
        if word.starts_with('"') {
            Ok(Kind::IfName)
        } else if named(&PROTOCOLS, word).is_some() {
            Ok(Kind::Proto)
        } else if word.split('-').all(|port| port.parse::<u16>().is_ok()) {
            Ok(Kind::Service)
        } else if address.parse::<Ipv4Addr>().is_ok() {
            Ok(Kind::V4)
        } else if address.parse::<Ipv6Addr>().is_ok() {
            Ok(Kind::V6)
        } else {
            Err(word.in_place_of("an address, a port, a protocol or a name in quotes"))
        }
    }

    /// The bytes of a value.
    pub(crate) fn parse(self, word: &str) -> Result<Vec<u8>, Misread> {
        self.read(word).ok_or_else(|| word.in_place_of(self.wanted()))
    }

    fn read(self, word: &str) -> Option<Vec<u8>> {
        Some(match self {
            Kind::V4 => word.parse::<Ipv4Addr>().ok()?.octets().to_vec(),
            Kind::V6 => word.parse::<Ipv6Addr>().ok()?.octets().to_vec(),
            Kind::Proto => vec![named(&PROTOCOLS, word).or_else(|| word.parse().ok())?],
            Kind::Service => word.parse::<u16>().ok()?.to_be_bytes().to_vec(),
            Kind::IfName => {
                let name = unquoted(word).unwrap_or(word);
                // Fifteen bytes and a NUL: longer names no interface has.
                let fits = (1..16).contains(&name.len()) && !name.bytes().any(|byte| byte == 0 || byte == b'*');
                let mut bytes = fits.then(|| name.as_bytes().to_vec())?;
                bytes.resize(16, 0);
                bytes
            }
            // The one interface that has the same number in every namespace.
            Kind::IfIndex => (unquoted(word)? == "lo").then(|| 1_u32.to_ne_bytes().to_vec())?,
            Kind::Ether => {
                let bytes =
                    word.split(':').map(|part| u8::from_str_radix(part, 16).ok()).collect::<Option<Vec<u8>>>()?;
                (bytes.len() == 6).then_some(bytes)?
            }
            Kind::EtherType => named(&ETHER_TYPES, word)?.to_be_bytes().to_vec(),
            Kind::Icmp6Type => vec![named(&ICMP6_TYPES, word)?],
            Kind::AddrType => named(&ADDR_TYPES, word)?.to_ne_bytes().to_vec(),
            Kind::NfProto => vec![named(&NFPROTOS, word)?],
            Kind::Integer => word.parse::<u32>().ok()?.to_ne_bytes().to_vec(),
            Kind::Mark => crate::words::hex_or_decimal(word).ok()?.to_ne_bytes().to_vec(),
            Kind::CtState => bits(&CT_STATES, word)?.to_ne_bytes().to_vec(),
            Kind::CtStatus => bits(&CT_STATUSES, word)?.to_ne_bytes().to_vec(),
            Kind::Raw(len) => {
                let (hex, len) = (word.strip_prefix("0x")?, usize::from(len));
                let number = u128::from_str_radix(hex, 16).ok().filter(|_| hex.len() == 2 * len)?;
                number.to_be_bytes().get(16_usize.checked_sub(len)?..)?.to_vec()
            }
        })
    }

    fn wanted(self) -> &'static str {
        match self {
            Kind::V4 => "an IPv4 address",
            Kind::V6 => "an IPv6 address",
            Kind::Proto => "a protocol",
            Kind::Service => "a port",
            Kind::IfName => "the name of an interface",
            Kind::IfIndex => "the interface \"lo\"",
            Kind::Ether => "a MAC",
            Kind::EtherType => "ip, ip6 or arp",
            Kind::Icmp6Type => "a type of ICMPv6",
            Kind::AddrType => "a kind of addresses",
            Kind::NfProto => "ipv4 or ipv6",
            Kind::Integer | Kind::Mark => "a number",
            Kind::CtState => "a connection's state",
            Kind::CtStatus => "a connection's status",
            Kind::Raw(_) => "hex digits, as many as the bytes that are compared",
        }
    }
}

/// `established,related` as the bits of both.
fn bits(names: &[(&str, u32)], word: &str) -> Option<u32> {
    word.split(',').map(|part| named(names, part)).try_fold(0, |all, bit| Some(all | bit?))
}

/// One kind, or several that make one key together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Kinds(pub(crate) Vec<Kind>);

impl Kinds {
    /// Six bits a kind. Spec: nftables, `TYPE_BITS`.
    pub(crate) fn id(&self) -> u32 {
        self.0.iter().fold(0, |id, kind| id << 6 | kind.id())
    }

    pub(crate) fn len(&self) -> u32 {
        let len = match self.0.as_slice() {
            [one] => one.len(),
            some => some.iter().map(|kind| kind.padded()).sum(),
        };
        u32::try_from(len).unwrap_or(u32::MAX)
    }

    pub(crate) fn byte_order(&self) -> u32 {
        match self.0.as_slice() {
            [one] => one.byte_order(),
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_become_the_bytes_that_packets_have() {
        let parse = |kind: Kind, word: &str| kind.parse(word).ok();
        assert_eq!(parse(Kind::V4, "10.0.0.1"), Some(vec![10, 0, 0, 1]));
        assert_eq!(parse(Kind::Service, "443"), Some(vec![1, 187]));
        assert_eq!(parse(Kind::CtState, "established,related"), Some(6_u32.to_ne_bytes().to_vec()));
        assert_eq!(parse(Kind::Raw(2), "0x0102"), Some(vec![1, 2]));
        assert_eq!(parse(Kind::IfName, "\"cni0\"").unwrap()[..5], *b"cni0\0");
    }

    #[test]
    fn what_is_no_value_of_its_kind_is_refused() {
        for (kind, word) in [
            (Kind::V4, "10.0.0.256"),
            (Kind::V4, "fd00::1"),
            (Kind::Service, "65536"),
            (Kind::Service, "-1"),
            (Kind::Proto, "quic"),
            (Kind::IfName, "\"a-name-of-sixteen\""),
            (Kind::IfName, "\"\""),
            (Kind::IfName, "\"veth*\""),
            (Kind::IfIndex, "\"eth0\""),
            (Kind::Ether, "02:00:5e:00:53"),
            (Kind::CtState, "new,old"),
            (Kind::Raw(2), "0x010203"),
        ] {
            assert!(kind.parse(word).is_err(), "{kind:?} {word}");
        }
    }

    #[test]
    fn keys_of_several_parts_have_nfts_numbers() {
        let three = Kinds(vec![Kind::V4, Kind::Proto, Kind::Service]);
        assert_eq!((three.id(), three.len()), (0x730d, 12));
        assert_eq!(Kinds(vec![Kind::Service]).len(), 2);
    }
}
