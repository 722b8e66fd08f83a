//! The address ranges of a cluster and their families, as flags give them: one range of pods and of services, or one of
//! each family.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

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

/// A family of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    V4,
    V6,
}

impl Family {
    pub(crate) fn of(ip: &IpAddr) -> Family {
        if ip.is_ipv4() { Family::V4 } else { Family::V6 }
    }

    /// The address that is none, of which a listener has all.
    pub(crate) fn unspecified(self) -> IpAddr {
        match self {
            Family::V4 => Ipv4Addr::UNSPECIFIED.into(),
            Family::V6 => Ipv6Addr::UNSPECIFIED.into(),
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Family::V4 => "IPv4",
            Family::V6 => "IPv6",
        })
    }
}

/// A flag that cannot be followed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("--{flag}")]
pub(crate) struct RangeError {
    flag: &'static str,
    source: Fault,
}

/// The fault of a range or an address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum Fault {
    #[error("'{0}' is not an address range such as 10.42.0.0/16 or fd42::/56")]
    NoRange(String),
    #[error("'{range}' {misfit}")]
    Misfit { range: String, misfit: &'static str },
    #[error("'{0}' names two ranges of one family: want one of IPv4 and one of IPv6")]
    OneFamily(String),
    #[error("'{text}' names {n_ranges} ranges: want one, or one of IPv4 and one of IPv6")]
    TooMany { text: String, n_ranges: usize },
    #[error("is {service} while --cluster-cidr is {cluster}: {remedy}")]
    OtherFamilies { service: String, cluster: String, remedy: &'static str },
    #[error("overlaps --cluster-cidr")]
    Overlap,
    #[error("{dns} must be an address of --service-cidr {service}")]
    Outside { dns: IpAddr, service: String },
    #[error("{0} and {1} are of one family: want one address a family")]
    TwoOfAFamily(IpAddr, IpAddr),
    #[error("'{0}' must contain either a single IP or a dual-stack pair of IPs")]
    NodeIps(String),
    #[error(
        "'{ips}': the cluster's pods have {family} addresses first, and so must the node: name its {family} address"
    )]
    OtherFirst { ips: String, family: Family },
}

/// The flags that name ranges.
#[derive(Clone, Copy)]
enum RangeFlag {
    Cluster,
    Service,
}

impl RangeFlag {
    fn refused(self, source: Fault) -> RangeError {
        let flag = match self {
            RangeFlag::Cluster => "cluster-cidr",
            RangeFlag::Service => "service-cidr",
        };
        RangeError { flag, source }
    }

    fn fits(self, range: &IpNet) -> Result<(), &'static str> {
        match self {
            RangeFlag::Cluster => pods_fit(range),
            RangeFlag::Service => services_fit(range),
        }
    }
}

/// Values of the flags that name ranges, each a list with commas.
#[derive(Clone, Copy)]
pub(crate) struct Asked<'a> {
    pub(crate) cluster_cidr: &'a str,
    pub(crate) service_cidr: &'a str,
}

impl Ranges {
    /// Judges `--cluster-cidr`, `--service-cidr` and `--cluster-dns`.
    pub(crate) fn of(asked: Asked<'_>, dns: &[IpAddr]) -> Result<Ranges, RangeError> {
        let cluster = list(RangeFlag::Cluster, asked.cluster_cidr)?;
        let service = list(RangeFlag::Service, asked.service_cidr)?;
        if families(&cluster) != families(&service) {
            let remedy = match families(&cluster).as_slice() {
                [Family::V4] => "give both flags one range, or both two",
                [Family::V6] => "give it one IPv6 range, such as fd43::/112",
                [Family::V4, ..] => "give it two in the same order, such as 10.43.0.0/16,fd43::/112",
                _ => "give it two in the same order, such as fd43::/112,10.43.0.0/16",
            };
            let (service, cluster) = (words(&service), words(&cluster));
            return Err(RangeFlag::Service.refused(Fault::OtherFamilies { service, cluster, remedy }));
        }
        if service.iter().any(|s| cluster.iter().any(|c| s.contains(c) || c.contains(s))) {
            return Err(RangeFlag::Service.refused(Fault::Overlap));
        }
        let dns = dns_addresses(&service, dns)?;
        Ok(Ranges { cluster, service, dns })
    }
}

/// The family to listen with: IPv4's callers come to IPv6's wildcard, too.
pub(crate) fn widest(ranges: &[IpNet]) -> Family {
    if families(ranges).contains(&Family::V6) { Family::V6 } else { Family::V4 }
}

/// The families of ranges, in their order.
pub(crate) fn families(ranges: &[IpNet]) -> Vec<Family> {
    ranges.iter().map(|range| Family::of(&range.addr())).collect()
}

/// Several ranges as a flag has them.
pub(crate) fn joined<T: ToString>(all: &[T]) -> String {
    all.iter().map(T::to_string).collect::<Vec<_>>().join(",")
}

fn words(ranges: &[IpNet]) -> String {
    families(ranges).iter().map(Family::to_string).collect::<Vec<_>>().join(" and ")
}

fn list(flag: RangeFlag, text: &str) -> Result<Vec<IpNet>, RangeError> {
    let mut ranges: Vec<IpNet> = Vec::new();
    for one in text.split(',').map(str::trim) {
        let range: IpNet = one.parse().map_err(|_| flag.refused(Fault::NoRange(one.to_owned())))?;
        flag.fits(&range).map_err(|misfit| flag.refused(Fault::Misfit { range: one.to_owned(), misfit }))?;
        ranges.push(range.trunc());
    }
    match families(&ranges).as_slice() {
        [_] => Ok(ranges),
        [first, second] if first != second => Ok(ranges),
        [_, _] => Err(flag.refused(Fault::OneFamily(text.to_owned()))),
        all => Err(flag.refused(Fault::TooMany { text: text.to_owned(), n_ranges: all.len() })),
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
fn dns_addresses(service: &[IpNet], given: &[IpAddr]) -> Result<Vec<IpAddr>, RangeError> {
    let refused = |source| RangeError { flag: "cluster-dns", source };
    if let Some(outside) = given.iter().find(|ip| !service.iter().any(|range| range.contains(*ip))) {
        return Err(refused(Fault::Outside { dns: *outside, service: joined(service) }));
    }
    let of = |range: &IpNet| {
        let mut own = given.iter().filter(|ip| range.contains(*ip));
        match (own.next(), own.next()) {
            (Some(first), Some(second)) => Err(refused(Fault::TwoOfAFamily(*first, *second))),
            (Some(one), None) => Ok(*one),
            _ => Ok(registry::services::nth_address(range, DNS_PLACE)),
        }
    };
    service.iter().map(of).collect()
}

/// Judges `--node-ip`, as the kubelet does, and puts the address of the cluster's first family first.
pub(crate) fn node_ips(given: &[IpAddr], cluster: &[Family]) -> Result<Vec<IpAddr>, RangeError> {
    let refused = |source| RangeError { flag: "node-ip", source };
    let mut ips = given.to_vec();
    if ips.len() > 2 || matches!(ips.as_slice(), [a, b] if a.is_ipv4() == b.is_ipv4()) {
        return Err(refused(Fault::NodeIps(joined(given))));
    }
    let Some(first) = cluster.first() else { return Ok(ips) };
    ips.sort_by_key(|ip| Family::of(ip) != *first);
    if ips.first().is_some_and(|ip| Family::of(ip) != *first) {
        return Err(refused(Fault::OtherFirst { ips: joined(given), family: *first }));
    }
    Ok(ips)
}

#[cfg(test)]
mod tests {
    use base::chain::Chain;

    use super::*;

    fn said(cluster: &str, service: &str, dns: &[&str]) -> String {
        let dns: Vec<IpAddr> = dns.iter().map(|ip| ip.parse().unwrap()).collect();
        match Ranges::of(Asked { cluster_cidr: cluster, service_cidr: service }, &dns) {
            Ok(ranges) => {
                format!("{} | {} | {}", joined(&ranges.cluster), joined(&ranges.service), joined(&ranges.dns))
            }
            Err(err) => Chain(&err).to_string(),
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
        assert_eq!(node_ips(&both, &[Family::V6, Family::V4]).unwrap(), ips(&["fd00::1", "10.0.0.1"]));
        assert_eq!(node_ips(&both, &[Family::V4]).unwrap(), both);
        assert_eq!(node_ips(&ips(&["fd00::1"]), &[]).unwrap(), ips(&["fd00::1"]), "of any family before it joins");
        let refused = |given: &[&str], family| Chain(&node_ips(&ips(given), &[family]).unwrap_err()).to_string();
        assert_eq!(
            refused(&["10.0.0.1", "10.0.0.2"], Family::V4),
            "--node-ip: '10.0.0.1,10.0.0.2' must contain either a single IP or a dual-stack pair of IPs"
        );
        assert_eq!(
            refused(&["10.0.0.1"], Family::V6),
            "--node-ip: '10.0.0.1': the cluster's pods have IPv6 addresses first, and so must the node: name its IPv6 \
             address"
        );
    }
}
