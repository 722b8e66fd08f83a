//! Source filter that ties the end of a pod's cable to the addresses and the MAC that the `bridge` plugin gave it: a
//! frame that says another source never passes the bridge's port. Network policies tell peers by their source address.
//!
//! One table of the family `bridge`: a map from a port to its pod's chain, which lets through what is the pod's own and
//! drops the rest: other sources of Ethernet, ARP, IPv4 and IPv6, answers of ARP and neighbour discovery for addresses
//! of others, routers' advertisements and redirects, tagged frames (which pass by the tables of IP) and protocols that
//! pods do not speak. It sees a frame before anything else does, the bridge's table of stations included.

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use base::traces::SOURCE_TABLE;

use crate::error::{CniError, Code, SourceGuardRefused};
use crate::nft::{self, Table};

const FAMILY: &str = "bridge";
/// nft refuses this often in a row before it counts: one that got no memory while the machine boots says the same as a
/// kernel that cannot.
const TRIES: u32 = 3;
/// Between two tries.
const TRY_AGAIN: Duration = Duration::from_millis(300);

/// Lets the port's pod send under these addresses and this MAC, and under nothing else.
pub(crate) fn add(port: &str, mac: [u8; 6], ips: &[IpAddr]) -> Result<(), CniError> {
    nft::apply(&script(port, mac, ips))
}

/// Forgets a port. One that is not known is no error: its pod may be older than the table.
pub(crate) fn del(port: &str) -> Result<(), CniError> {
    let element = format!("delete element {FAMILY} {SOURCE_TABLE} ports {{ \"{port}\" }}\n");
    let chain = format!("delete chain {FAMILY} {SOURCE_TABLE} {port}\n");
    nft::apply_or_absent(&(element.clone() + &chain)).or_else(|_| {
        // Older kernels refuse to delete a chain in the transaction that drops its last reference.
        nft::apply_or_absent(&element)?;
        nft::apply_or_absent(&chain)
    })
}

/// Whether the port's pod is held to its addresses.
pub(crate) fn check(port: &str) -> Result<(), CniError> {
    match nft::has_chain(Table { family: FAMILY, name: SOURCE_TABLE }, port)? {
        true => Ok(()),
        false => Err(CniError::internal(format!("nothing holds {port} to its addresses"))),
    }
}

/// Whether kernel and nft can hold pods to their addresses; a kernel without nftables for bridges cannot. Nothing is
/// changed. If nft gives no answer now, they can: no pod begins unguarded for want of one. It blocks, for up to a
/// second if they cannot.
///
/// Errors: nft refused in each of three tries.
pub fn is_possible() -> Result<(), SourceGuardRefused> {
    let ips = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
    let script = script("veth0", [2, 0, 0, 0, 0, 1], &ips);
    unless_refused(|| nft::would_take(&script))
}

fn unless_refused(mut would_take: impl FnMut() -> Result<(), CniError>) -> Result<(), SourceGuardRefused> {
    let mut tries = 1;
    loop {
        match would_take() {
            Err(err) if err.code != Code::Internal as u32 => return Ok(()),
            Err(err) if tries == TRIES => return Err(SourceGuardRefused(err.msg)),
            Ok(()) => return Ok(()),
            Err(_) => std::thread::sleep(TRY_AGAIN),
        }
        tries += 1;
    }
}

/// Adding what is there changes nothing; rules are written anew. A frame of another type comes first in the chain, as
/// nft writes what depends on it in its own way: `ether type` sees a tag, which the kernel has taken off already.
fn script(port: &str, mac: [u8; 6], ips: &[IpAddr]) -> String {
    let table = format!("{FAMILY} {SOURCE_TABLE}");
    let ether = base::hex::join(&mac, ":");
    let v4 = ips.iter().filter(|ip| ip.is_ipv4());
    let v6: Vec<Ipv6Addr> = ips.iter().filter_map(as_v6).chain([link_local(mac)]).collect();
    let mut rules = vec![format!("ether saddr != {ether} drop"), "ether type != { ip, ip6, arp } drop".to_owned()];
    rules.extend(v4.clone().map(|ip| format!("ether type ip ip saddr {ip} accept")));
    // Nobody's address is what asks whether an address is free.
    let senders = v4.map(IpAddr::to_string).chain(["0.0.0.0".to_owned()]);
    rules.extend(senders.map(|ip| format!("ether type arp arp saddr ether {ether} arp saddr ip {ip} accept")));
    rules.push("ether type != ip6 drop".to_owned());
    // Words of an older nft: the target stands behind eight bytes of head.
    let targets: Vec<String> = v6.iter().map(|ip| format!("@th,64,128 0x{:032x}", u128::from(*ip))).collect();
    rules.extend(targets.iter().map(|target| format!("icmpv6 type nd-neighbor-advert {target} accept")));
    rules.push("icmpv6 type { nd-neighbor-advert, nd-router-advert, nd-redirect } drop".to_owned());
    rules.extend(targets.iter().map(|target| format!("ip6 saddr :: icmpv6 type nd-neighbor-solicit {target} accept")));
    rules.push(
        "ip6 saddr :: icmpv6 type { mld-listener-report, mld2-listener-report, nd-router-solicit } accept".to_owned(),
    );
    rules.extend(v6.iter().map(|ip| format!("ip6 saddr {ip} accept")));
    rules.push("drop".to_owned());
    let mut script = format!(
        "add table {table}\nadd map {table} ports {{ type ifname : verdict; }}\n\
         add chain {table} prerouting {{ type filter hook prerouting priority -300; }}\n\
         flush chain {table} prerouting\n\
         add rule {table} prerouting iifname vmap @ports\nadd chain {table} {port}\nflush chain {table} {port}\n"
    );
    for rule in rules {
        let _infallible = writeln!(script, "add rule {table} {port} {rule}");
    }
    script + &format!("add element {table} ports {{ \"{port}\" : goto {port} }}\n")
}

fn as_v6(ip: &IpAddr) -> Option<Ipv6Addr> {
    match ip {
        IpAddr::V4(_) => None,
        IpAddr::V6(ip) => Some(*ip),
    }
}

/// The address that the kernel gives an interface by its MAC. Spec: RFC 4291, appendix A.
fn link_local(mac: [u8; 6]) -> Ipv6Addr {
    let [a, b, c, d, e, f] = mac;
    Ipv6Addr::from([0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f])
}

/// The bytes of `02:00:5e:00:53:01`.
pub(crate) fn parse_mac(text: &str) -> Result<[u8; 6], CniError> {
    let bytes = text.split(':').map(|part| u8::from_str_radix(part, 16).ok()).collect::<Option<Vec<u8>>>();
    bytes
        .and_then(|bytes| bytes.try_into().ok())
        .ok_or_else(|| CniError::internal(format!("the container's interface has the MAC {text:?}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_lets_through_what_is_its_pods_own_and_drops_the_rest() {
        let ips = ["10.42.0.5".parse().unwrap(), "fd00:42::5".parse().unwrap()];
        let text = script("veth00000000001", parse_mac("02:00:5e:00:53:01").unwrap(), &ips);
        let prefix = "add rule bridge kedge-source veth00000000001 ";
        let rules: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix(prefix)).collect();
        assert_eq!(rules.first(), Some(&"ether saddr != 02:00:5e:00:53:01 drop"));
        assert_eq!(rules.last(), Some(&"drop"));
        let accepted: Vec<&str> = rules.iter().filter_map(|rule| rule.strip_suffix(" accept")).collect();
        assert_eq!(
            accepted,
            [
                "ether type ip ip saddr 10.42.0.5",
                "ether type arp arp saddr ether 02:00:5e:00:53:01 arp saddr ip 10.42.0.5",
                "ether type arp arp saddr ether 02:00:5e:00:53:01 arp saddr ip 0.0.0.0",
                "icmpv6 type nd-neighbor-advert @th,64,128 0xfd000042000000000000000000000005",
                "icmpv6 type nd-neighbor-advert @th,64,128 0xfe8000000000000000005efffe005301",
                "ip6 saddr :: icmpv6 type nd-neighbor-solicit @th,64,128 0xfd000042000000000000000000000005",
                "ip6 saddr :: icmpv6 type nd-neighbor-solicit @th,64,128 0xfe8000000000000000005efffe005301",
                "ip6 saddr :: icmpv6 type { mld-listener-report, mld2-listener-report, nd-router-solicit }",
                "ip6 saddr fd00:42::5",
                "ip6 saddr fe80::5eff:fe00:5301",
            ]
        );
        assert!(
            text.ends_with("ports { \"veth00000000001\" : goto veth00000000001 }\n"),
            "last, when all rules are there: {text}"
        );
    }

    #[test]
    fn the_kernel_holds_what_nft_makes_of_a_ports_rules() {
        let ips = ["10.42.0.5".parse().unwrap(), "fd00:42::5".parse().unwrap()];
        let script = script("veth00000000001", [2, 0, 0x5e, 0, 0x53, 1], &ips);
        crate::oracle::compare(&[script.clone(), script], |script| nft::apply(script).unwrap());
    }

    // One refusal for want of memory at boot left every pod unguarded until kedge was started again.
    #[test]
    fn one_refusal_of_nft_does_not_leave_pods_unguarded_and_three_in_a_row_do() {
        let refused = || Err(CniError::internal("nft failed: Cannot allocate memory"));
        let mut answers = [refused(), refused(), Ok(())].into_iter();
        assert_eq!(unless_refused(|| answers.next().unwrap()), Ok(()));
        assert_eq!(unless_refused(refused), Err(SourceGuardRefused("nft failed: Cannot allocate memory".to_owned())));
        let silent = || Err(CniError::io("nft does not answer", &"timed out"));
        assert_eq!(unless_refused(silent), Ok(()));
    }

    #[test]
    fn a_mac_is_six_bytes() {
        assert_eq!(parse_mac("02:00:5e:00:53:ff").unwrap(), [2, 0, 0x5e, 0, 0x53, 0xff]);
        for text in ["", "02:00:5e:00:53", "02:00:5e:00:53:01:02", "02:00:5e:00:53:x"] {
            let why = parse_mac(text).unwrap_err().msg;
            assert_eq!(why, format!("the container's interface has the MAC {text:?}"));
        }
    }
}
