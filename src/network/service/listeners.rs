//! Ports that the machine itself listens on, as the kernel tells: of its addresses no Service can have them. (Nor those
//! of `reserved`, on which nobody need listen just now.)

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::family::Family;
use crate::service::reserved::Elements;
use crate::service::snapshot::Protocol;

/// The kernel gives clients' sockets ports from here on, if it does not tell.
const EPHEMERAL: u16 = 32_768;

/// Ports that are taken.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Listeners {
    /// On every address.
    ports: BTreeSet<(Protocol, u16)>,
    /// On one.
    addresses: BTreeSet<(SocketAddr, Protocol)>,
}

impl Listeners {
    /// Reads `/proc/net`. Blocks for as long as the kernel takes to list its sockets.
    pub(crate) fn read() -> io::Result<Listeners> {
        let range = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
        let ephemeral = range.split_whitespace().next().and_then(|port| port.parse().ok()).unwrap_or(EPHEMERAL);
        let mut listeners = Listeners::default();
        for (path, protocol) in [
            ("/proc/net/tcp", Protocol::Tcp),
            ("/proc/net/tcp6", Protocol::Tcp),
            ("/proc/net/udp", Protocol::Udp),
            ("/proc/net/udp6", Protocol::Udp),
        ] {
            match fs::read_to_string(path) {
                Ok(table) => listeners.add(&table, protocol, ephemeral),
                // A kernel without IPv6 has no such file.
                Err(err) if err.kind() == io::ErrorKind::NotFound => {}
                Err(err) => return Err(err),
            }
        }
        Ok(listeners)
    }

    fn add(&mut self, table: &str, protocol: Protocol, ephemeral: u16) {
        for addr in table.lines().filter_map(|line| listening(line, protocol)) {
            // A client's UDP socket looks like a server's.
            if addr.ip().is_loopback() || protocol == Protocol::Udp && addr.port() >= ephemeral {
                continue;
            }
            if addr.ip().is_unspecified() {
                self.ports.insert((protocol, addr.port()));
            } else {
                self.addresses.insert((addr, protocol));
            }
        }
    }

    /// The elements of the two sets.
    pub(crate) fn elements(&self, family: Family) -> Elements {
        let ports =
            self.ports.iter().map(|(protocol, port)| (format!("{} . {port}", protocol.as_str()), String::new()));
        let own = self.addresses.iter().filter(|(addr, _)| Family::of(&addr.ip()) == family);
        let addresses = own.map(|(addr, protocol)| {
            (format!("{} . {} . {}", addr.ip(), protocol.as_str(), addr.port()), String::new())
        });
        [("host-ports".to_owned(), ports.collect()), ("host-listeners".to_owned(), addresses.collect())].into()
    }
}

/// Of `  0: 0100007F:1F90 00000000:0000 0A …` the local address, if somebody waits there for whoever comes.
fn listening(line: &str, protocol: Protocol) -> Option<SocketAddr> {
    let mut words = line.split_whitespace().skip(1);
    let (local, remote, state) = (words.next()?, words.next()?, words.next()?);
    let waits = match protocol {
        Protocol::Tcp => state == "0A",
        _ => state == "07" && socket_addr(remote)?.port() == 0,
    };
    socket_addr(local).filter(|_| waits)
}

/// Addresses are words of 32 bits as they stand in memory, in hex.
fn socket_addr(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let word = |at: usize| u32::from_str_radix(ip.get(at * 8..at * 8 + 8)?, 16).ok().map(u32::to_ne_bytes);
    let ip = match ip.len() {
        8 => IpAddr::V4(Ipv4Addr::from(word(0)?)),
        32 => {
            let words = [word(0)?, word(1)?, word(2)?, word(3)?];
            let bytes: Vec<u8> = words.concat();
            IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?)).to_canonical()
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(listeners: &Listeners, family: Family) -> Vec<String> {
        let mut sets = listeners.elements(family);
        ["host-ports", "host-listeners"].iter().flat_map(|set| sets.remove(*set).unwrap().into_keys()).collect()
    }

    #[test]
    fn who_waits_is_found_and_clients_are_not() {
        let tcp = "  sl  local_address rem_address   st tx_queue\n   0: 00000000:1F90 00000000:0000 0A 0\n   1: \
                   0100007F:1F91 00000000:0000 0A 0\n   2: 0A00A8C0:1F92 0B00A8C0:0050 01 0\n   3: 0A00A8C0:1F93 \
                   00000000:0000 0A 0\n";
        let mut listeners = Listeners::default();
        listeners.add(tcp, Protocol::Tcp, EPHEMERAL);
        assert_eq!(keys(&listeners, Family::V4), ["tcp . 8080", "192.168.0.10 . tcp . 8083"]);
        let udp = "  1: 00000000:2118 00000000:0000 07 0\n  2: 00000000:C001 00000000:0000 07 0\n  3: 0A00A8C0:0035 \
                   0B00A8C0:0050 01 0\nodd\n 4: 0:z 0 07\n";
        listeners.add(udp, Protocol::Udp, EPHEMERAL);
        assert_eq!(keys(&listeners, Family::V6), ["tcp . 8080", "udp . 8472"]);
    }

    #[test]
    fn both_families_addresses_are_read() {
        assert_eq!(socket_addr("0100007F:0016"), "127.0.0.1:22".parse().ok());
        assert_eq!(socket_addr("000080FE000000000000000001000000:0016"), "[fe80::1]:22".parse().ok());
        assert_eq!(socket_addr("00000000:0"), "0.0.0.0:0".parse().ok());
        assert_eq!(socket_addr("é0000000:0"), None);
    }
}
