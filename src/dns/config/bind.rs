//! `bind ADDRESS|IFACE...`: where a server block listens.

use std::net::IpAddr;

use crate::args::{Parsed, unknown, wrong_count};
use crate::corefile::Directive;

/// The addresses that the words name, without the excepted ones.
pub(super) fn addresses(directive: &Directive) -> Parsed<Vec<IpAddr>> {
    if directive.args.is_empty() {
        return Err(wrong_count(directive));
    }
    let mut found = named(directive, &directive.args)?;
    for option in &directive.body {
        match option.name.as_str() {
            "except" => {
                let without = named(option, &option.args)?;
                found.retain(|ip| !without.contains(ip));
            }
            _ => return Err(unknown(directive, option)),
        }
    }
    if found.is_empty() {
        return Err(directive.error("bind names no address of this machine"));
    }
    Ok(found)
}

fn named(directive: &Directive, words: &[String]) -> Parsed<Vec<IpAddr>> {
    let mut found = Vec::new();
    for word in words {
        match word.trim_matches(['[', ']']).parse() {
            Ok(ip) => found.push(ip),
            Err(_) => found.extend(of_interface(directive, word)?),
        }
    }
    Ok(found)
}

fn of_interface(directive: &Directive, interface: &str) -> Parsed<Vec<IpAddr>> {
    let all = nix::ifaddrs::getifaddrs()
        .map_err(|err| directive.error(format!("cannot list the interfaces of this machine: {err}")))?;
    let mut is_here = false;
    let mut found = Vec::new();
    for address in all.filter(|address| address.interface_name == interface) {
        is_here = true;
        let Some(address) = address.address else { continue };
        let v4 = address.as_sockaddr_in().map(|address| IpAddr::V4(address.ip()));
        let v6 = address.as_sockaddr_in6().map(|address| IpAddr::V6(address.ip()));
        // A link-local address cannot be bound without its interface's number.
        found.extend(v4.or(v6).filter(|ip| !matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())));
    }
    if is_here {
        Ok(found)
    } else {
        Err(directive.error(format!("not an address, and no interface of this machine: {interface}")))
    }
}
