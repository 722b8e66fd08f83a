//! Parts of a packet, and facts about it, that rules compare; and what each implies of the packet.

use crate::error::Misread;
use crate::expression::{Compare, Ct, End, Expression, FIRST_REGISTER, Layer, Meta, register};
use crate::kinds::{Kind, NFPROTOS};
use crate::wire::{BRIDGE, INET, IP, IP6};
use crate::words::{Misplaced, Words};

const TCP: u8 = 6;
const UDP: u8 = 17;
const SCTP: u8 = 132;
const ICMP6: u8 = 58;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Network {
    V4,
    V6,
    Arp,
}

/// Part of a packet, or a fact about it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Selector {
    Payload { layer: Layer, offset: u32, kind: Kind },
    Meta { key: Meta, kind: Kind },
    Ct { key: Ct, kind: Kind },
    Fib { end: End },
    Random { below: u32 },
}

impl Selector {
    pub(crate) fn kind(&self) -> Kind {
        match self {
            Selector::Payload { kind, .. } | Selector::Meta { kind, .. } | Selector::Ct { kind, .. } => *kind,
            Selector::Fib { .. } => Kind::AddrType,
            Selector::Random { .. } => Kind::Integer,
        }
    }

    pub(crate) fn load(&self, register: u32) -> Result<Expression, Misread> {
        Ok(match self {
            Selector::Payload { layer, offset, kind } => {
                let len = u32::try_from(kind.len()).unwrap_or(u32::MAX);
                Expression::Payload { layer: *layer, offset: *offset, len, register }
            }
            Selector::Meta { key, .. } => Expression::Meta { key: *key, register },
            _ if register != FIRST_REGISTER => return Err("ct, fib or numgen".in_place_of("a part of the packet")),
            Selector::Ct { key, .. } => Expression::Ct { key: *key },
            Selector::Fib { end } => Expression::Fib { end: *end },
            Selector::Random { below } => Expression::Random { below: *below },
        })
    }
}

/// Knowledge of a packet where the next expression stands, and the expressions until there.
#[derive(Debug)]
pub(crate) struct Packet {
    family: u8,
    network: Option<Network>,
    transport: Option<u8>,
    pub(crate) expressions: Vec<Expression>,
}

impl Packet {
    /// Knowledge of every packet of a family.
    pub(crate) fn of_family(family: u8) -> Packet {
        let network = match family {
            IP => Some(Network::V4),
            IP6 => Some(Network::V6),
            _ => None,
        };
        Packet { family, network, transport: None, expressions: Vec::new() }
    }

    pub(crate) fn put(&mut self, expression: Expression) {
        self.expressions.push(expression);
    }

    /// Remembers a comparison: a rule need not imply it again.
    pub(crate) fn learn(&mut self, selector: Selector, how: Compare, value: &[u8]) {
        if how != Compare::Equal {
            return;
        }
        match (selector, value) {
            (Selector::Meta { key: Meta::L4Proto, .. }, [protocol]) => self.transport = Some(*protocol),
            (Selector::Meta { key: Meta::NfProto, .. }, [2]) => self.network = Some(Network::V4),
            (Selector::Meta { key: Meta::NfProto, .. }, [10]) => self.network = Some(Network::V6),
            (Selector::Payload { kind: Kind::EtherType, .. }, [0x08, 0x00]) => self.network = Some(Network::V4),
            (Selector::Payload { kind: Kind::EtherType, .. }, [0x86, 0xdd]) => self.network = Some(Network::V6),
            (Selector::Payload { kind: Kind::EtherType, .. }, [0x08, 0x06]) => self.network = Some(Network::Arp),
            _ => {}
        }
    }

    pub(crate) fn selectors(&mut self, words: &mut Words<'_>) -> Result<Vec<Selector>, Misread> {
        let mut all = vec![self.selector(words)?];
        while words.take(".") {
            all.push(self.selector(words)?);
        }
        Ok(all)
    }

    pub(crate) fn load(&mut self, selectors: &[Selector]) -> Result<(), Misread> {
        let mut at = 0;
        for selector in selectors {
            let load = selector.load(register(at))?;
            self.put(load);
            at += selector.kind().padded();
        }
        Ok(())
    }

    pub(crate) fn selector(&mut self, words: &mut Words<'_>) -> Result<Selector, Misread> {
        let word = words.need("a part of the packet")?;
        if let Some(raw) = word.strip_prefix("@th,") {
            return raw_selector(raw).ok_or_else(|| word.in_place_of("@th,BITS,BITS"));
        }
        match word {
            "iif" => return Ok(Selector::Meta { key: Meta::IfIndex, kind: Kind::IfIndex }),
            "iifname" => return Ok(Selector::Meta { key: Meta::InputName, kind: Kind::IfName }),
            "oifname" => return Ok(Selector::Meta { key: Meta::OutputName, kind: Kind::IfName }),
            _ => {}
        }
        let field = words.need("a field")?;
        let payload = |layer, offset, kind| Selector::Payload { layer, offset, kind };
        Ok(match (word, field) {
            ("ip", "saddr") => self.of(Network::V4, payload(Layer::Network, 12, Kind::V4))?,
            ("ip", "daddr") => self.of(Network::V4, payload(Layer::Network, 16, Kind::V4))?,
            ("ip6", "saddr") => self.of(Network::V6, payload(Layer::Network, 8, Kind::V6))?,
            ("ip6", "daddr") => self.of(Network::V6, payload(Layer::Network, 24, Kind::V6))?,
            ("arp", "saddr") => {
                let (offset, kind) = match words.need("ether or ip")? {
                    "ether" => (8, Kind::Ether),
                    "ip" => (14, Kind::V4),
                    other => return Err(other.in_place_of("ether or ip")),
                };
                self.of(Network::Arp, payload(Layer::Network, offset, kind))?
            }
            ("ether", "saddr") => payload(Layer::Link, 6, Kind::Ether),
            ("ether", "type") => payload(Layer::Link, 12, Kind::EtherType),
            ("tcp", "dport") => self.over(TCP, payload(Layer::Transport, 2, Kind::Service))?,
            ("udp", "dport") => self.over(UDP, payload(Layer::Transport, 2, Kind::Service))?,
            ("sctp", "dport") => self.over(SCTP, payload(Layer::Transport, 2, Kind::Service))?,
            ("th", "dport") => payload(Layer::Transport, 2, Kind::Service),
            ("icmpv6", "type") => {
                self.imply_icmp6()?;
                payload(Layer::Transport, 0, Kind::Icmp6Type)
            }
            ("meta", "l4proto") => Selector::Meta { key: Meta::L4Proto, kind: Kind::Proto },
            ("meta", "nfproto") => Selector::Meta { key: Meta::NfProto, kind: Kind::NfProto },
            ("meta", "mark") => Selector::Meta { key: Meta::Mark, kind: Kind::Mark },
            ("ct", "state") => Selector::Ct { key: Ct::State, kind: Kind::CtState },
            ("ct", "status") => Selector::Ct { key: Ct::Status, kind: Kind::CtStatus },
            ("fib", "saddr" | "daddr") => {
                words.expect("type")?;
                Selector::Fib { end: if field == "saddr" { End::Source } else { End::Destination } }
            }
            ("numgen", "random") => {
                words.expect("mod")?;
                Selector::Random { below: words.number("a number")? }
            }
            (_, other) => return Err(format!("{word} {other}").in_place_of("a part of the packet, or a statement")),
        })
    }

    /// A selector of packets of one protocol of the network, which it implies.
    fn of(&mut self, network: Network, selector: Selector) -> Result<Selector, Misread> {
        match self.network {
            Some(known) if known == network => return Ok(selector),
            Some(_) => return Err(Misread::Conflict),
            None => {}
        }
        self.network = Some(network);
        let (key, with) = match (self.family, network) {
            (BRIDGE, Network::V4) => (Meta::Protocol, vec![0x08, 0x00]),
            (BRIDGE, Network::V6) => (Meta::Protocol, vec![0x86, 0xdd]),
            (BRIDGE, Network::Arp) => (Meta::Protocol, vec![0x08, 0x06]),
            (INET, Network::V4) => (Meta::NfProto, vec![NFPROTOS[0].1]),
            (INET, Network::V6) => (Meta::NfProto, vec![NFPROTOS[1].1]),
            _ => return Err(Misread::Conflict),
        };
        self.put(Expression::Meta { key, register: FIRST_REGISTER });
        self.put(Expression::Compare { how: Compare::Equal, with });
        Ok(selector)
    }

    /// A selector of packets of one protocol above IP, which it implies.
    fn over(&mut self, protocol: u8, selector: Selector) -> Result<Selector, Misread> {
        match self.transport {
            Some(known) if known == protocol => return Ok(selector),
            Some(_) => return Err(Misread::Conflict),
            None => {}
        }
        self.transport = Some(protocol);
        self.put(Expression::Meta { key: Meta::L4Proto, register: FIRST_REGISTER });
        self.put(Expression::Compare { how: Compare::Equal, with: vec![protocol] });
        Ok(selector)
    }

    /// ICMPv6 implies IPv6; on a bridge by the frame's type, as nft does it.
    fn imply_icmp6(&mut self) -> Result<(), Misread> {
        let kind = Selector::Meta { key: Meta::L4Proto, kind: Kind::Proto };
        if self.family == BRIDGE && self.network.is_none() {
            self.network = Some(Network::V6);
            self.put(Expression::Payload { layer: Layer::Link, offset: 12, len: 2, register: FIRST_REGISTER });
            self.put(Expression::Compare { how: Compare::Equal, with: vec![0x86, 0xdd] });
        } else {
            self.of(Network::V6, kind)?;
        }
        self.over(ICMP6, kind).map(drop)
    }
}

/// `OFFSET,LENGTH` in bits, of whole bytes.
fn raw_selector(text: &str) -> Option<Selector> {
    let (offset, len) = text.split_once(',')?;
    let (offset, len) = (offset.parse::<u32>().ok()?, len.parse::<u32>().ok()?);
    let bytes = u8::try_from(len / 8).ok().filter(|bytes| (1..=16).contains(bytes))?;
    let whole = offset.is_multiple_of(8) && len.is_multiple_of(8);
    whole.then_some(Selector::Payload { layer: Layer::Transport, offset: offset / 8, kind: Kind::Raw(bytes) })
}
