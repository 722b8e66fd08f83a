//! The `bandwidth` plugin: holds a pod to the rates of its annotations `kubernetes.io/ingress-bandwidth` and
//! `…/egress-bandwidth`, which the runtime passes as `runtimeConfig.bandwidth`.
//!
//! It polices (what is above the rate is dropped, TCP adapts) in nftables, where upstream's plugin shapes with tbf and
//! an ifb device that many small kernels lack. One table: maps from a pod's address to a chain with its limit.

use std::fmt::Write as _;
use std::net::IpAddr;

use base::traces::BANDWIDTH_TABLE;
use netfilter::look::Held;
use serde::Deserialize;

use crate::error::CniError;
use crate::nft::{self, Table};
use crate::request::Request;
use crate::result::NetResult;

const TABLE: &str = "inet kedge-bandwidth";
const INET: Table<'static> = Table { family: "inet", name: BANDWIDTH_TABLE };
/// A burst is a tenth of a second's traffic, at least this many bytes: less, and TCP never gets up to speed.
const BURST_BYTES_MIN: u64 = 128 * 1024;

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Config {
    runtime_config: RuntimeConfig,
    /// Rates for every pod of the network, as upstream's plugin takes them; the runtime's win.
    #[serde(flatten)]
    fixed: Rates,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RuntimeConfig {
    bandwidth: Option<Rates>,
}

/// Bits a second to the pod and from it; 0 is no limit.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq)]
#[serde(rename_all = "camelCase", default)]
struct Rates {
    // containerd's library writes its Go names, and Go reads any case.
    #[serde(alias = "IngressRate")]
    ingress_rate: u64,
    #[serde(alias = "EgressRate")]
    egress_rate: u64,
}

impl Rates {
    fn of(request: &Request) -> Result<Rates, CniError> {
        let config: Config = request.parse()?;
        Ok(config.runtime_config.bandwidth.unwrap_or(config.fixed))
    }
}

pub(crate) fn add(request: &Request) -> Result<NetResult, CniError> {
    let prev = request.prev_result()?.ok_or_else(|| CniError::config("must be called as chained plugin"))?;
    let rates = Rates::of(request)?;
    if rates != Rates::default() {
        let addresses: Vec<IpAddr> = prev.container_ips().map(|ip| ip.address.addr()).collect();
        nft::apply(&script(&request.container_id, rates, &addresses))?;
    }
    Ok(prev)
}

/// Every limited direction has an element for each of the pod's addresses.
pub(crate) fn check(request: &Request) -> Result<(), CniError> {
    let prev = request.prev_result()?.ok_or_else(|| CniError::config("CHECK needs a prevResult"))?;
    let rates = Rates::of(request)?;
    let addresses: Vec<IpAddr> = prev.container_ips().map(|ip| ip.address.addr()).collect();
    for (map, ips) in limited(rates, &addresses) {
        let have = nft::elements(INET, map)?;
        if let Some(ip) = lacking(&have, &ips, &request.container_id) {
            return Err(CniError::internal(format!(
                "the bandwidth of {ip} is not limited in {TABLE} {map}, as it must be"
            )));
        }
    }
    Ok(())
}

/// The maps that must know these addresses.
fn limited(rates: Rates, addresses: &[IpAddr]) -> Vec<(&'static str, Vec<IpAddr>)> {
    let maps = [
        ("to4", rates.ingress_rate, true),
        ("to6", rates.ingress_rate, false),
        ("from4", rates.egress_rate, true),
        ("from6", rates.egress_rate, false),
    ];
    let of = |v4: bool| addresses.iter().copied().filter(|ip| ip.is_ipv4() == v4).collect::<Vec<IpAddr>>();
    maps.into_iter()
        .filter(|(_, rate, _)| rate / 8 > 0)
        .map(|(map, _, v4)| (map, of(v4)))
        .filter(|(_, ips)| !ips.is_empty())
        .collect()
}

/// The first of `ips` that has no element of this container.
fn lacking<'a>(have: &[Held], ips: &'a [IpAddr], container: &str) -> Option<&'a IpAddr> {
    let ours: Vec<IpAddr> = have.iter().filter_map(|held| own_address(held, container)).collect();
    ips.iter().find(|ip| !ours.contains(ip))
}

/// The address of an element, if its comment names this container.
fn own_address(held: &Held, container: &str) -> Option<IpAddr> {
    nft::address(held).filter(|_| held.comment.as_deref() == Some(container))
}

/// The runtime repeats the rates of ADD; most pods have none, and cost nothing here.
pub(crate) fn del(request: &Request) -> Result<(), CniError> {
    if Rates::of(request)? == Rates::default() {
        return Ok(());
    }
    let mut script = String::new();
    for (map, _) in MAPS {
        for element in nft::elements(INET, map)? {
            if let Some(ip) = own_address(&element, &request.container_id) {
                let _infallible = writeln!(script, "delete element {TABLE} {map} {{ {ip} }}");
            }
        }
    }
    if script.is_empty() {
        return Ok(());
    }
    nft::apply(&script)?;
    // Apart from the elements' deletion: older kernels refuse to delete a chain in the transaction that drops its last
    // reference.
    let chains = [Direction::Ingress, Direction::Egress].map(|direction| chain(direction, &request.container_id));
    // Adding first makes the deletion succeed whether there was a limit that way or not.
    nft::apply(
        &chains
            .iter()
            .map(|chain| format!("add chain {TABLE} {chain}\ndelete chain {TABLE} {chain}\n"))
            .collect::<String>(),
    )
}

/// Maps and the types of their keys.
const MAPS: [(&str, &str); 4] =
    [("to4", "ipv4_addr"), ("to6", "ipv6_addr"), ("from4", "ipv4_addr"), ("from6", "ipv6_addr")];

/// Direction of a pod's traffic, as the pod sees it.
#[derive(Clone, Copy, Debug)]
enum Direction {
    Ingress,
    Egress,
}

fn chain(direction: Direction, container: &str) -> String {
    let direction = match direction {
        Direction::Ingress => "in",
        Direction::Egress => "out",
    };
    // A sandbox's id is 64 hex digits; nft takes names of 127.
    format!("{direction}-{}", container.chars().take(100).collect::<String>())
}

/// Adding what is there changes nothing; rules are written anew.
fn script(container: &str, rates: Rates, addresses: &[IpAddr]) -> String {
    let mut script = format!("add table {TABLE}\n");
    for (map, kind) in MAPS {
        let _infallible = writeln!(script, "add map {TABLE} {map} {{ type {kind} : verdict; }}");
    }
    // The first hook sees packets between pods and beyond; the second what the node itself sends.
    for (name, hook, lines) in [
        (
            "forward",
            "forward",
            &["ip saddr vmap @from4", "ip6 saddr vmap @from6", "ip daddr vmap @to4", "ip6 daddr vmap @to6"][..],
        ),
        ("output", "output", &["ip daddr vmap @to4", "ip6 daddr vmap @to6"][..]),
        ("input", "input", &["ip saddr vmap @from4", "ip6 saddr vmap @from6"][..]),
    ] {
        let _infallible = writeln!(
            script,
            "add chain {TABLE} {name} {{ type filter hook {hook} priority -10; }}\nflush chain {TABLE} {name}"
        );
        for line in lines {
            let _infallible = writeln!(script, "add rule {TABLE} {name} {line}");
        }
    }
    for (direction, map, rate) in
        [(Direction::Ingress, "to", rates.ingress_rate), (Direction::Egress, "from", rates.egress_rate)]
    {
        let bytes = rate / 8;
        if bytes == 0 {
            continue;
        }
        let (chain, burst) = (chain(direction, container), (bytes / 10).max(BURST_BYTES_MIN).min(u64::from(u32::MAX)));
        let _infallible = writeln!(
            script,
            "add chain {TABLE} {chain}\nflush chain {TABLE} {chain}\n\
             add rule {TABLE} {chain} limit rate over {bytes} bytes/second burst {burst} bytes drop"
        );
        for ip in addresses {
            let digit = if ip.is_ipv4() { '4' } else { '6' };
            let _infallible =
                writeln!(script, "add element {TABLE} {map}{digit} {{ {ip} comment \"{container}\" : jump {chain} }}");
        }
    }
    script
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::{Command, for_test};
    use serde_json::json;

    #[test]
    fn the_runtimes_rates_win() {
        let config = json!({ "cniVersion": "1.0.0", "name": "n", "ingressRate": 5,
            "runtimeConfig": { "bandwidth": { "IngressRate": 8_000_000, "IngressBurst": 1 } } });
        let rates = Rates::of(&for_test(Command::Add, "c1", config)).unwrap();
        assert_eq!(rates, Rates { ingress_rate: 8_000_000, egress_rate: 0 });
        let text = script("c1", rates, &["10.42.0.5".parse().unwrap()]);
        assert!(text.contains("in-c1 limit rate over 1000000 bytes/second burst 131072 bytes drop"), "{text}");
        assert!(text.contains("to4 { 10.42.0.5 comment \"c1\" : jump in-c1 }") && !text.contains("out-c1"), "{text}");
    }

    #[test]
    fn the_kernel_holds_what_nft_makes_of_a_limit() {
        let rates = Rates { ingress_rate: 8_000_000, egress_rate: 1_000_000_000 };
        let script = script("c1", rates, &["10.42.0.5".parse().unwrap(), "fd42::5".parse().unwrap()]);
        crate::oracle::compare(&[script.clone(), script], |script| nft::apply(script).unwrap());
    }

    #[test]
    fn a_check_misses_a_limit_that_is_gone_or_anothers() {
        let rates = Rates { ingress_rate: 8_000_000, egress_rate: 0 };
        let ips: Vec<IpAddr> = vec!["10.42.0.5".parse().unwrap(), "fd42::5".parse().unwrap()];
        assert_eq!(limited(rates, &ips), [("to4", vec![ips[0]]), ("to6", vec![ips[1]])]);
        let element = |comment: &str| {
            vec![Held { key: vec![10, 42, 0, 5], comment: Some(comment.to_owned()), ..Held::default() }]
        };
        assert_eq!(lacking(&element("c1"), &ips[..1], "c1"), None);
        assert_eq!(lacking(&element("c2"), &ips[..1], "c1"), Some(&ips[0]));
        assert_eq!(lacking(&[Held::default()], &ips[..1], "c1"), Some(&ips[0]));
    }
}
