//! Expressions: the instructions of which the kernel's rules are made, and their bytes.
//!
//! Spec: `linux/netfilter/nf_tables.h`. Numbers are those of its enumerations.

use crate::wire::{put, put_nested, put_text, put_u32, put_u64};

/// Layer of the packet from which bytes are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layer {
    Link = 0,
    Network = 1,
    Transport = 2,
}

/// Fact about a packet that is not in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Meta {
    Protocol = 1,
    Mark = 3,
    IfIndex = 4,
    InputName = 6,
    OutputName = 7,
    NfProto = 15,
    L4Proto = 16,
}

/// Fact about a packet's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ct {
    State = 0,
    Status = 2,
}

/// End of a packet's way whose address is looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Source = 1,
    Destination = 2,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Compare {
    Equal = 0,
    Unequal = 1,
    AtMost = 3,
    AtLeast = 5,
}

/// Set of a lookup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SetName {
    Named(String),
    /// One of the rule's own, by its number in the batch.
    Anonymous {
        name: &'static str,
        id: u32,
    },
}

/// Use of what is looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// The rule goes on if it is there.
    Member,
    /// The rule goes on if it is not there.
    Stranger,
    /// The verdict beside it.
    Verdict,
    /// The value beside it, in the first register.
    Value,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Accept,
    Drop,
    Return,
    Jump(String),
    Goto(String),
}

/// An instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Expression {
    Payload {
        layer: Layer,
        offset: u32,
        len: u32,
        register: u32,
    },
    Meta {
        key: Meta,
        register: u32,
    },
    SetMark,
    Ct {
        key: Ct,
    },
    Fib {
        end: End,
    },
    Random {
        below: u32,
    },
    Compare {
        how: Compare,
        with: Vec<u8>,
    },
    /// Keeps `mask`, then turns `flip`.
    Bitwise {
        mask: Vec<u8>,
        flip: Vec<u8>,
    },
    Lookup {
        set: SetName,
        found: Found,
    },
    Update {
        set: String,
    },
    Put {
        register: u32,
        value: Vec<u8>,
    },
    /// `port` is the register of the port; the address is in the first.
    Dnat {
        family: u8,
        port: u32,
        is_fixed: bool,
    },
    Masquerade {
        flags: u32,
    },
    /// Answers with ICMP that the port is unreachable, by this code.
    Reject {
        code: u8,
    },
    /// Goes on when the rate is exceeded.
    LimitOver {
        bytes_per_second: u64,
        burst_bytes: u32,
    },
    Verdict(Verdict),
}

/// Where the verdict and the first value are.
const VERDICT_REGISTER: u32 = 0;
pub(crate) const FIRST_REGISTER: u32 = 1;
/// Protocols have their numbers given, not those of the packet.
const NAT_PROTO_SPECIFIED: u32 = 2;
pub(crate) const NAT_FULLY_RANDOM: u32 = 16;

/// The register `bytes` behind the first: those of sixteen bytes are numbered from 1, those of four from 8.
pub(crate) fn register(bytes: usize) -> u32 {
    let number = if bytes.is_multiple_of(16) { 1 + bytes / 16 } else { 8 + bytes / 4 };
    u32::try_from(number).unwrap_or(u32::MAX)
}

impl Expression {
    /// Its name in the kernel.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Expression::Payload { .. } => "payload",
            Expression::Meta { .. } | Expression::SetMark => "meta",
            Expression::Ct { .. } => "ct",
            Expression::Fib { .. } => "fib",
            Expression::Random { .. } => "numgen",
            Expression::Compare { .. } => "cmp",
            Expression::Bitwise { .. } => "bitwise",
            Expression::Lookup { .. } => "lookup",
            Expression::Update { .. } => "dynset",
            Expression::Put { .. } | Expression::Verdict(_) => "immediate",
            Expression::Dnat { .. } => "nat",
            Expression::Masquerade { .. } => "masq",
            Expression::Reject { .. } => "reject",
            Expression::LimitOver { .. } => "limit",
        }
    }

    /// Adds it as an element of a list of expressions.
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        put_nested(out, 1, |out| {
            put_text(out, 1, self.name());
            put_nested(out, 2, |out| self.arguments(out));
        });
    }

    fn arguments(&self, out: &mut Vec<u8>) {
        match self {
            Expression::Payload { layer, offset, len, register } => {
                numbers(out, &[(1, *register), (2, *layer as u32), (3, *offset), (4, *len)]);
            }
            Expression::Meta { key, register } => numbers(out, &[(2, *key as u32), (1, *register)]),
            Expression::SetMark => numbers(out, &[(2, Meta::Mark as u32), (3, FIRST_REGISTER)]),
            Expression::Ct { key } => numbers(out, &[(2, *key as u32), (1, FIRST_REGISTER)]),
            // The result is the kind of the address.
            Expression::Fib { end } => numbers(out, &[(3, *end as u32), (2, 3), (1, FIRST_REGISTER)]),
            // At random, from 0.
            Expression::Random { below } => numbers(out, &[(1, FIRST_REGISTER), (2, *below), (3, 1), (4, 0)]),
            Expression::Compare { how, with } => {
                numbers(out, &[(1, FIRST_REGISTER), (2, *how as u32)]);
                value(out, 3, with);
            }
            Expression::Bitwise { mask, flip } => {
                let len = u32::try_from(mask.len()).unwrap_or(u32::MAX);
                numbers(out, &[(1, FIRST_REGISTER), (2, FIRST_REGISTER), (3, len)]);
                value(out, 4, mask);
                value(out, 5, flip);
            }
            Expression::Lookup { set, found } => lookup(out, set, *found),
            Expression::Update { set } => {
                put_text(out, 1, set);
                numbers(out, &[(3, 1), (4, FIRST_REGISTER)]);
            }
            Expression::Put { register, value: bytes } => {
                put_u32(out, 1, *register);
                value(out, 2, bytes);
            }
            Expression::Dnat { family, port, is_fixed } => {
                numbers(out, &[(1, 1), (2, u32::from(*family)), (3, FIRST_REGISTER), (5, *port)]);
                if *is_fixed {
                    put_u32(out, 7, NAT_PROTO_SPECIFIED);
                }
            }
            Expression::Masquerade { flags: 0 } => {}
            Expression::Masquerade { flags } => put_u32(out, 1, *flags),
            Expression::Reject { code } => {
                put_u32(out, 1, 0);
                put(out, 2, &[*code]);
            }
            Expression::LimitOver { bytes_per_second, burst_bytes } => {
                put_u64(out, 1, *bytes_per_second);
                // A second; bytes, not packets; over.
                put_u64(out, 2, 1);
                numbers(out, &[(3, *burst_bytes), (4, 1), (5, 1)]);
            }
            Expression::Verdict(verdict) => {
                put_u32(out, 1, VERDICT_REGISTER);
                put_nested(out, 2, |out| verdict.write(out));
            }
        }
    }
}

fn numbers(out: &mut Vec<u8>, all: &[(u16, u32)]) {
    all.iter().for_each(|(kind, number)| put_u32(out, *kind, *number));
}

/// Adds a value as data.
pub(crate) fn value(out: &mut Vec<u8>, kind: u16, bytes: &[u8]) {
    put_nested(out, kind, |out| put(out, 1, bytes));
}

fn lookup(out: &mut Vec<u8>, set: &SetName, found: Found) {
    put_u32(out, 2, FIRST_REGISTER);
    match found {
        Found::Verdict => put_u32(out, 3, VERDICT_REGISTER),
        Found::Value => put_u32(out, 3, FIRST_REGISTER),
        Found::Member | Found::Stranger => {}
    }
    match set {
        SetName::Named(name) => put_text(out, 1, name),
        SetName::Anonymous { name, id } => {
            put_text(out, 1, name);
            put_u32(out, 4, *id);
        }
    }
    if found == Found::Stranger {
        put_u32(out, 5, 1);
    }
}

impl Verdict {
    /// Adds it as data.
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        let (code, chain): (i32, Option<&str>) = match self {
            Verdict::Drop => (0, None),
            Verdict::Accept => (1, None),
            Verdict::Jump(chain) => (-3, Some(chain)),
            Verdict::Goto(chain) => (-4, Some(chain)),
            Verdict::Return => (-5, None),
        };
        put_nested(out, 2, |out| {
            put(out, 1, &code.to_be_bytes());
            if let Some(chain) = chain {
                put_text(out, 2, chain);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registers_of_sixteen_bytes_and_of_four_are_one_row() {
        assert_eq!([0, 4, 8, 16, 20, 32].map(register), [1, 9, 10, 2, 13, 3]);
    }
}
