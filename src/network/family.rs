//! The two families of addresses, and the words that nftables has for them.

use std::net::IpAddr;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Family {
    V4,
    V6,
}

impl Family {
    /// nft's word for the table family, which is the word of its addresses too.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Family::V4 => "ip",
            Family::V6 => "ip6",
        }
    }

    pub(crate) fn addr_type(self) -> &'static str {
        match self {
            Family::V4 => "ipv4_addr",
            Family::V6 => "ipv6_addr",
        }
    }

    /// The address that is none.
    pub(crate) fn unspecified(self) -> &'static str {
        match self {
            Family::V4 => "0.0.0.0",
            Family::V6 => "::",
        }
    }

    pub(crate) fn loopback(self) -> &'static str {
        match self {
            Family::V4 => "127.0.0.0/8",
            Family::V6 => "::1",
        }
    }

    pub(crate) fn multicast(self) -> &'static str {
        match self {
            Family::V4 => "224.0.0.0/4",
            Family::V6 => "ff00::/8",
        }
    }

    /// For names of sets that exist once a family.
    pub(crate) fn digit(self) -> char {
        match self {
            Family::V4 => '4',
            Family::V6 => '6',
        }
    }

    /// nft's word in `meta nfproto`.
    pub(crate) fn proto(self) -> &'static str {
        match self {
            Family::V4 => "ipv4",
            Family::V6 => "ipv6",
        }
    }

    pub(crate) fn of(ip: &IpAddr) -> Family {
        if ip.is_ipv4() { Family::V4 } else { Family::V6 }
    }
}
