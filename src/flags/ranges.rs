//! The address ranges of a cluster and their families, as flags give them: one range of pods and of services, or one of
//! each family.

use std::net::IpAddr;

use ipnet::IpNet;

/// Which of the service range's addresses is the DNS server's.
const DNS_PLACE: u128 = 10;

/// Ranges that fit each other: the same families in the same order. The first is the cluster's own, which Services get
/// unless they ask.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Ranges {
    pub(crate) cluster: Vec<IpNet>,
    pub(crate) service: Vec<IpNet>,
    /// Addresses of the DNS service, one a family.
    pub(crate) dns: Vec<IpAddr>,
}

/// A flag that cannot be followed, and why.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct BadRange {
    pub(crate) flag: &'static str,
    pub(crate) reason: String,
}

fn bad(flag: &'static str, reason: impl Into<String>) -> BadRange {
    BadRange { flag, reason: reason.into() }
}

impl Ranges {
    /// Judges `--cluster-cidr`, `--service-cidr` and `--cluster-dns`.
    pub(crate) fn of(cluster: &str, service: &str, dns: &[IpAddr]) -> Result<Ranges, BadRange> {
        let cluster = list("cluster-cidr", cluster, pods_fit)?;
        let service = list("service-cidr", service, services_fit)?;
        if families(&cluster) != families(&service) {
            let remedy = match families(&cluster).as_slice() {
                [true] => "give both flags one range, or both two",
                [false] => "give it one IPv6 range, such as fd43::/112",
                [true, ..] => "give it two in the same order, such as 10.43.0.0/16,fd43::/112",
                _ => "give it two in the same order, such as fd43::/112,10.43.0.0/16",
            };
            return Err(bad(
                "service-cidr",
                format!("is {} while --cluster-cidr is {}: {remedy}", words(&service), words(&cluster)),
            ));
        }
        if service.iter().any(|s| cluster.iter().any(|c| s.contains(c) || c.contains(s))) {
            return Err(bad("service-cidr", "overlaps --cluster-cidr"));
        }
        let dns = dns_addresses(&service, dns)?;
        Ok(Ranges { cluster, service, dns })
    }

    /// Whether anything has an IPv6 address.
    pub(crate) fn v6(&self) -> bool {
        has_v6(&self.cluster)
    }
}

/// Whether any of these ranges is IPv6.
pub(crate) fn has_v6(ranges: &[IpNet]) -> bool {
    ranges.iter().any(|range| range.addr().is_ipv6())
}

/// The families of ranges, `true` for IPv4.
pub(crate) fn families(ranges: &[IpNet]) -> Vec<bool> {
    ranges.iter().map(|range| range.addr().is_ipv4()).collect()
}

/// Several ranges as a flag has them.
pub(crate) fn joined<T: ToString>(all: &[T]) -> String {
    all.iter().map(T::to_string).collect::<Vec<_>>().join(",")
}

fn words(ranges: &[IpNet]) -> &'static str {
    match families(ranges).as_slice() {
        [true] => "IPv4",
        [false] => "IPv6",
        [true, ..] => "IPv4 and IPv6",
        _ => "IPv6 and IPv4",
    }
}

fn list(flag: &'static str, text: &str, fit: fn(&IpNet) -> Result<(), &'static str>) -> Result<Vec<IpNet>, BadRange> {
    let mut ranges: Vec<IpNet> = Vec::new();
    for one in text.split(',').map(str::trim) {
        let range: IpNet = one
            .parse()
            .map_err(|_| bad(flag, format!("'{one}' is not an address range such as 10.42.0.0/16 or fd42::/56")))?;
        fit(&range).map_err(|why| bad(flag, format!("'{one}' {why}")))?;
        ranges.push(range.trunc());
    }
    match families(&ranges).as_slice() {
        [_] | [true, false] | [false, true] => Ok(ranges),
        [true, true] | [false, false] => {
            Err(bad(flag, format!("'{text}' names two ranges of one family: want one of IPv4 and one of IPv6")))
        }
        _ => {
            Err(bad(flag, format!("'{text}' names {} ranges: want one, or one of IPv4 and one of IPv6", ranges.len())))
        }
    }
}

/// Nodes get a /24 and a /64 of it; upstream makes at most 65536 pieces.
fn pods_fit(range: &IpNet) -> Result<(), &'static str> {
    match range {
        IpNet::V4(v4) if v4.prefix_len() > 24 => Err("is too small: want /24 or larger"),
        IpNet::V6(v6) if v6.prefix_len() > 64 => Err("is too small: every node gets a /64, want /48 to /64"),
        IpNet::V6(v6) if v6.prefix_len() < 48 => Err("is too large: every node gets a /64, want /48 to /64"),
        _ => Ok(()),
    }
}

fn services_fit(range: &IpNet) -> Result<(), &'static str> {
    match range {
        IpNet::V4(v4) if v4.prefix_len() > 24 => Err("is too small: want /24 or larger"),
        IpNet::V6(v6) if v6.prefix_len() > 120 => Err("is too small: want /64 to /120"),
        IpNet::V6(v6) if v6.prefix_len() < 64 => {
            Err("is too large: the shortest allowed prefix length is 64, want /64 to /120")
        }
        _ => Ok(()),
    }
}

/// One address a range: the one given, else the tenth.
fn dns_addresses(service: &[IpNet], given: &[IpAddr]) -> Result<Vec<IpAddr>, BadRange> {
    const FLAG: &str = "cluster-dns";
    if let Some(outside) = given.iter().find(|ip| !service.iter().any(|range| range.contains(*ip))) {
        return Err(bad(FLAG, format!("{outside} must be an address of --service-cidr {}", joined(service))));
    }
    let of = |range: &IpNet| {
        let mut own = given.iter().filter(|ip| range.contains(*ip));
        match (own.next(), own.next()) {
            (Some(first), Some(second)) => {
                Err(bad(FLAG, format!("{first} and {second} are of one family: want one address a family")))
            }
            (Some(one), None) => Ok(*one),
            _ => Ok(registry::services::nth_address(range, DNS_PLACE)),
        }
    };
    service.iter().map(of).collect()
}

/// Judges `--node-ip`, as the kubelet does, and puts the address of the cluster's first family first.
///
/// Errors: as a sentence.
pub(crate) fn node_ips(given: &[IpAddr], cluster: &[bool]) -> Result<Vec<IpAddr>, String> {
    let mut ips = given.to_vec();
    if ips.len() > 2 || matches!(ips.as_slice(), [a, b] if a.is_ipv4() == b.is_ipv4()) {
        return Err(format!("'{}' must contain either a single IP or a dual-stack pair of IPs", joined(given)));
    }
    let Some(first) = cluster.first() else { return Ok(ips) };
    ips.sort_by_key(|ip| ip.is_ipv4() != *first);
    if ips.first().is_some_and(|ip| ip.is_ipv4() != *first) {
        let family = if *first { "IPv4" } else { "IPv6" };
        return Err(format!(
            "'{}': the cluster's pods have {family} addresses first, and so must the node: name its {family} address",
            joined(given)
        ));
    }
    Ok(ips)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(cluster: &str, service: &str, dns: &[&str]) -> String {
        let dns: Vec<IpAddr> = dns.iter().map(|ip| ip.parse().unwrap()).collect();
        match Ranges::of(cluster, service, &dns) {
            Ok(ranges) => {
                format!("{} | {} | {}", joined(&ranges.cluster), joined(&ranges.service), joined(&ranges.dns))
            }
            Err(BadRange { flag, reason }) => format!("--{flag}: {reason}"),
        }
    }

    #[test]
    fn one_range_or_one_of_each_family() {
        assert_eq!(said("10.42.0.0/16", "10.43.0.0/16", &[]), "10.42.0.0/16 | 10.43.0.0/16 | 10.43.0.10");
        assert_eq!(
            said("10.42.0.0/16,fd42::/56", "10.43.0.0/16,fd43::/112", &[]),
            "10.42.0.0/16,fd42::/56 | 10.43.0.0/16,fd43::/112 | 10.43.0.10,fd43::a"
        );
        assert_eq!(said("fd42::/56", "fd43::/112", &["fd43::53"]), "fd42::/56 | fd43::/112 | fd43::53");
        assert_eq!(
            said("10.42.0.0/16,fd42::/56", "10.43.0.0/16,fd43::/112", &["fd43::53"]),
            "10.42.0.0/16,fd42::/56 | 10.43.0.0/16,fd43::/112 | 10.43.0.10,fd43::53"
        );
    }

    #[test]
    fn ranges_that_do_not_fit_are_refused_by_their_flag() {
        let both = "10.42.0.0/16,fd42::/56";
        for (cluster, service, dns, says) in [
            (
                "10.42.0.0/16,fd42::/56,fd44::/56",
                "10.43.0.0/16",
                vec![],
                "--cluster-cidr: '10.42.0.0/16,fd42::/56,fd44::/56' names 3 ranges",
            ),
            (
                "10.42.0.0/16,10.44.0.0/16",
                "10.43.0.0/16",
                vec![],
                "--cluster-cidr: '10.42.0.0/16,10.44.0.0/16' names two ranges of one family",
            ),
            (
                both,
                "10.43.0.0/16",
                vec![],
                "--service-cidr: is IPv4 while --cluster-cidr is IPv4 and IPv6: give it two in the same order",
            ),
            (
                both,
                "fd43::/112,10.43.0.0/16",
                vec![],
                "--service-cidr: is IPv6 and IPv4 while --cluster-cidr is IPv4 and IPv6",
            ),
            (
                "10.42.0.0/16",
                "10.43.0.0/16,fd43::/112",
                vec![],
                "--service-cidr: is IPv4 and IPv6 while --cluster-cidr is IPv4",
            ),
            (
                both,
                "10.43.0.0/16,fd43::/48",
                vec![],
                "--service-cidr: 'fd43::/48' is too large: the shortest allowed prefix length is 64",
            ),
            ("10.42.0.0/16,fd42::/40", "10.43.0.0/16,fd43::/112", vec![], "--cluster-cidr: 'fd42::/40' is too large"),
            ("10.42.0.0/16,fd42::/80", "10.43.0.0/16,fd43::/112", vec![], "--cluster-cidr: 'fd42::/80' is too small"),
            ("10.42.0.0/25", "10.43.0.0/16", vec![], "--cluster-cidr: '10.42.0.0/25' is too small: want /24 or larger"),
            ("10.42.0.0/16", "10.42.8.0/24", vec![], "--service-cidr: overlaps --cluster-cidr"),
            (
                "10.42.0.0/16",
                "10.43.0.0/16",
                vec!["fd43::a"],
                "--cluster-dns: fd43::a must be an address of --service-cidr 10.43.0.0/16",
            ),
            (
                "10.42.0.0/16",
                "10.43.0.0/16",
                vec!["10.43.0.10", "10.43.0.11"],
                "--cluster-dns: 10.43.0.10 and 10.43.0.11 are of one family",
            ),
            ("x", "10.43.0.0/16", vec![], "--cluster-cidr: 'x' is not an address range"),
        ] {
            let got = said(cluster, service, &dns);
            assert!(got.starts_with(says), "{got}");
        }
    }

    #[test]
    fn a_node_has_one_address_a_family_and_the_clusters_first_one_first() {
        let ips = |text: &[&str]| -> Vec<IpAddr> { text.iter().map(|ip| ip.parse().unwrap()).collect() };
        let both = ips(&["10.0.0.1", "fd00::1"]);
        assert_eq!(node_ips(&both, &[false, true]).unwrap(), ips(&["fd00::1", "10.0.0.1"]));
        assert_eq!(node_ips(&both, &[true]).unwrap(), both);
        assert!(node_ips(&ips(&["10.0.0.1", "10.0.0.2"]), &[true]).unwrap_err().contains("dual-stack pair"));
        assert!(node_ips(&ips(&["10.0.0.1"]), &[false]).unwrap_err().contains("name its IPv6 address"));
    }
}
