//! Addresses and networks.

use std::net::IpAddr;

use ipnet::IpNet;

use super::addresses::{check_address, check_network};
use super::run::{Fault, Outcome, error};
use super::value::Val;

/// An address; IPv4 inside IPv6 and zones are refused, as upstream refuses them.
pub(super) fn read_ip(text: &str) -> Option<IpAddr> {
    let ip: IpAddr = text.parse().ok()?;
    match ip {
        IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some() => None,
        ip => Some(ip),
    }
}

/// A network.
pub(super) fn read_cidr(text: &str) -> Option<IpNet> {
    let net: IpNet = text.parse().ok()?;
    let (ip, len) = text.split_once('/')?;
    let is_padded = len.len() > 1 && len.starts_with('0');
    read_ip(ip).filter(|_| !is_padded).map(|_| net)
}

/// Why a text is no address.
pub(super) fn no_ip(text: &str) -> Fault {
    Fault::Error(match check_address(text) {
        Err(err) => format!("IP Address {text:?} parse error during conversion from string: {err}"),
        Ok(()) if text.contains('%') => format!("IP address {text:?} with zone value is not allowed"),
        Ok(()) => format!("IPv4-mapped IPv6 address {text:?} is not allowed"),
    })
}

/// Why a text is no network.
pub(super) fn no_cidr(text: &str) -> Fault {
    let at = "network address parse error during conversion from string";
    Fault::Error(match check_network(text) {
        Err(err) => format!("{at}: {at}: {err}"),
        Ok(()) => format!("{at}: IPv4-mapped IPv6 address {text:?} is not allowed"),
    })
}

/// A method of an address.
pub(super) fn ip(ip: IpAddr, name: &str) -> Outcome {
    let link_local = match ip {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.segments()[0] & 0xffc0 == 0xfe80,
    };
    let link_multicast = match ip {
        IpAddr::V4(v4) => v4.octets()[..3] == [224, 0, 0],
        IpAddr::V6(v6) => v6.segments()[0] & 0xff0f == 0xff02,
    };
    let broadcast = matches!(ip, IpAddr::V4(v4) if v4.is_broadcast());
    Ok(Val::Bool(match name {
        "family" => return Ok(Val::Int(if ip.is_ipv4() { 4 } else { 6 })),
        "isUnspecified" => ip.is_unspecified(),
        "isLoopback" => ip.is_loopback(),
        "isLinkLocalMulticast" => link_multicast,
        "isLinkLocalUnicast" => link_local,
        "isGlobalUnicast" => !(ip.is_unspecified() || ip.is_loopback() || ip.is_multicast() || link_local || broadcast),
        _ => return error("no such overload"),
    }))
}

/// A method of a network.
pub(super) fn cidr(of: IpNet, name: &str, args: &[Val]) -> Outcome {
    match (name, args) {
        ("ip", []) => Ok(Val::Ip(of.addr())),
        ("masked", []) => Ok(Val::Cidr(of.trunc())),
        ("prefixLength", []) => Ok(Val::Int(i64::from(of.prefix_len()))),
        ("containsIP", [other]) => match address(other) {
            Some(ip) => Ok(Val::Bool(of.contains(&ip))),
            None => error("no such overload"),
        },
        ("containsCIDR", [other]) => match net(other) {
            Some(net) => Ok(Val::Bool(of.trunc().contains(&net))),
            None => Err(if let Val::Text(text) = other {
                no_cidr(text)
            } else {
                Fault::Error("no such overload".to_owned())
            }),
        },
        _ => error("no such overload"),
    }
}

/// An address, or the text of one.
fn address(of: &Val) -> Option<IpAddr> {
    match of {
        Val::Ip(ip) => Some(*ip),
        Val::Text(text) => read_ip(text),
        _ => None,
    }
}

/// A network, or the text of one.
fn net(of: &Val) -> Option<IpNet> {
    match of {
        Val::Cidr(net) => Some(*net),
        Val::Text(text) => read_cidr(text),
        _ => None,
    }
}
