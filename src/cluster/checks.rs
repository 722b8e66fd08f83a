//! Checks of a join request: the node's name, clock, version and flags, and the names in its serving certificate.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;

use crate::node_names::{self, Domain};
use crate::protocol::{JoinRequest, MINOR, Role};
use crate::refusal::{Differing, Refusal, SKEW_MAX_SECS};

/// Bounds of a machine's statements about itself: an Ed25519 or ECDSA key in base64 takes about a hundred bytes, a
/// machine id has 32.
const KEY_BYTES_MAX: usize = 1024;
const MACHINE_ID_BYTES_MAX: usize = 128;

/// Names and addresses that no kubelet's certificate may hold.
pub(crate) struct Reserved {
    /// DNS names and addresses of all servers.
    pub(crate) names: BTreeSet<String>,
    /// The ranges of Services.
    pub(crate) ranges: Vec<IpNet>,
}

/// Refuses a kubelet's serving certificate with which it could pose as a server or as a Service.
pub(crate) fn check_serving_names(node: &str, names: &BTreeSet<String>, reserved: &Reserved) -> Result<(), Refusal> {
    let refused = |name: &str, why: &str| Refusal::Invalid {
        why: format!("the kubelet's certificate may not hold {name}: {why}"),
    };
    for name in names {
        match name.parse::<IpAddr>() {
            Ok(ip) if ip.is_loopback() || ip.is_unspecified() => return Err(refused(name, "it is every machine's")),
            Ok(ip) if reserved.ranges.iter().any(|range| range.contains(&ip)) => {
                return Err(refused(name, "it is in the service range"));
            }
            Ok(_) if reserved.names.contains(name) => {
                return Err(refused(name, "it is a server's address; choose another --node-ip"));
            }
            Ok(_) => {}
            Err(_) if name != node => return Err(refused(name, "it is not the node's name")),
            Err(_) if reserved.names.contains(name) => {
                return Err(refused(name, "it is a server's name; choose another --node-name"));
            }
            Err(_) => {}
        }
    }
    Ok(())
}

/// Refuses what cannot be a node's name, or is like the name of a Service or pod.
pub(crate) fn check_name(name: &str, cluster: Domain<'_>) -> Result<(), Refusal> {
    if node_names::is_clusters(name, cluster) {
        return Err(Refusal::Invalid {
            why: format!(
                "'{name}' cannot be a node's name: names of Services and pods are like it; choose another --node-name"
            ),
        });
    }

    let good = |label: &str| {
        let inner = label.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
        !label.is_empty() && inner && !label.starts_with('-') && !label.ends_with('-')
    };
    if name.len() <= 200 && name.split('.').all(good) {
        return Ok(());
    }
    Err(Refusal::Invalid {
        why: format!(
            "'{name}' cannot be a node's name: want lower-case letters, digits, '-' and '.'; choose one with \
             --node-name"
        ),
    })
}

/// Bounds the key and the machine id: both are written down for as long as there is the node.
pub(crate) fn check_words(asked: &JoinRequest) -> Result<(), Refusal> {
    if asked.public_key.len() <= KEY_BYTES_MAX && asked.machine_id.len() <= MACHINE_ID_BYTES_MAX {
        return Ok(());
    }
    Err(Refusal::Invalid { why: "its key or its machine id is longer than one can be".to_owned() })
}

/// Refuses a machine whose clock is too far from this server's.
pub(crate) fn check_clock(theirs_ms: i64, ours_ms: i64) -> Result<(), Refusal> {
    let ahead_secs = (theirs_ms - ours_ms) / 1000;
    if ahead_secs.abs() > SKEW_MAX_SECS { Err(Refusal::ClockSkew { ahead_secs }) } else { Ok(()) }
}

/// Refuses a version that does not fit beside this server's.
pub(crate) fn check_version(asked: &JoinRequest, server: &str) -> Result<(), Refusal> {
    let fits = version_fits(asked.role, asked.minor);
    if fits { Ok(()) } else { Err(Refusal::VersionSkew { joining: asked.version.clone(), server: server.to_owned() }) }
}

fn version_fits(role: Role, minor: u32) -> bool {
    match role {
        Role::Agent => minor <= MINOR && minor + 3 >= MINOR,
        // Servers are upgraded one by one: neighbours meet.
        Role::Server => minor.abs_diff(MINOR) <= 1,
    }
}

/// Refuses a server whose flags differ where all servers must agree.
pub(crate) fn check_flags(theirs: &BTreeMap<String, String>, ours: &BTreeMap<String, String>) -> Result<(), Refusal> {
    let names: BTreeSet<&String> = theirs.keys().chain(ours.keys()).collect();
    let value = |flags: &BTreeMap<String, String>, name: &str| flags.get(name).cloned().unwrap_or_default();
    let flags: Vec<Differing> = names
        .into_iter()
        .filter(|name| value(theirs, name) != value(ours, name))
        .map(|name| Differing { flag: name.clone(), theirs: value(theirs, name), ours: value(ours, name) })
        .collect();
    if flags.is_empty() { Ok(()) } else { Err(Refusal::FlagsDiffer { flags }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kubelet_cannot_get_a_servers_names() {
        let reserved = Reserved {
            names: ["kubernetes.default.svc", "10.0.0.1", "s1"].map(str::to_owned).into(),
            ranges: vec!["10.43.0.0/16".parse().unwrap()],
        };
        let check = |node: &str, names: &[&str]| {
            check_serving_names(node, &names.iter().map(|n| (*n).to_owned()).collect(), &reserved)
        };
        assert_eq!(check("n1", &["n1", "10.0.0.2"]), Ok(()));
        for (node, name) in
            [("n1", "10.0.0.1"), ("n1", "127.0.0.1"), ("n1", "::1"), ("n1", "10.43.0.1"), ("n1", "n2"), ("s1", "s1")]
        {
            assert!(check(node, &[name]).is_err(), "{node} {name}");
        }
    }

    #[test]
    fn clocks_versions_and_flags_are_compared() {
        assert_eq!(check_clock(1_000_000, 1_200_000), Ok(()));
        assert_eq!(check_clock(1_000_000, 2_000_000), Err(Refusal::ClockSkew { ahead_secs: -1000 }));
        let flags = |cidr: &str| [("cluster-cidr".to_owned(), cidr.to_owned())].into();
        assert_eq!(check_flags(&flags("a"), &flags("a")), Ok(()));
        let differing = Differing { flag: "cluster-cidr".to_owned(), theirs: "a".to_owned(), ours: "b".to_owned() };
        assert_eq!(check_flags(&flags("a"), &flags("b")), Err(Refusal::FlagsDiffer { flags: vec![differing] }));
        let named = |name: &str| check_name(name, Domain("cluster.local")).is_ok();
        assert!(named("edge-1.lan") && named("host.example.com") && !named("Edge") && !named(""));
        assert!(!named("vault.prod.svc.cluster.local") && !named("kubernetes.default.svc"));
    }

    #[test]
    fn a_kubelets_certificate_that_is_refused_says_which_name_and_why() {
        let reserved = Reserved {
            names: ["10.0.0.1", "s1"].map(str::to_owned).into(),
            ranges: vec!["10.43.0.0/16".parse().unwrap(), "fd43::/112".parse().unwrap()],
        };
        for (node, name, why) in [
            ("n1", "127.8.8.8", "it is every machine's"),
            ("n1", "::", "it is every machine's"),
            ("n1", "10.43.255.255", "it is in the service range"),
            ("n1", "fd43::a", "it is in the service range"),
            ("n1", "10.0.0.1", "it is a server's address; choose another --node-ip"),
            ("n1", "s1", "it is not the node's name"),
            ("n1", "*", "it is not the node's name"),
            ("s1", "s1", "it is a server's name; choose another --node-name"),
        ] {
            let want = Refusal::Invalid { why: format!("the kubelet's certificate may not hold {name}: {why}") };
            assert_eq!(check_serving_names(node, &[name.to_owned()].into(), &reserved), Err(want));
        }
        let own = ["n1", "10.44.0.1", "fd00::1"].map(str::to_owned).into();
        assert_eq!(check_serving_names("n1", &own, &reserved), Ok(()));
    }

    #[test]
    fn agents_may_be_older_and_servers_are_neighbours() {
        for (role, minor, fits) in [
            (Role::Agent, MINOR, true),
            (Role::Agent, MINOR - 3, true),
            (Role::Agent, MINOR - 4, false),
            (Role::Agent, MINOR + 1, false),
            (Role::Server, MINOR + 1, true),
            (Role::Server, MINOR - 1, true),
            (Role::Server, MINOR + 2, false),
            (Role::Server, 0, false),
        ] {
            assert_eq!(version_fits(role, minor), fits, "{role:?} {minor}");
        }
    }

    #[test]
    fn clocks_may_differ_by_the_limit_both_ways() {
        let ms = SKEW_MAX_SECS * 1000;
        for (theirs, verdict) in [
            (ms, Ok(())),
            (-ms - 999, Ok(())),
            (ms + 1000, Err(Refusal::ClockSkew { ahead_secs: SKEW_MAX_SECS + 1 })),
            (-ms - 1000, Err(Refusal::ClockSkew { ahead_secs: -SKEW_MAX_SECS - 1 })),
        ] {
            assert_eq!(check_clock(theirs, 0), verdict, "{theirs}");
        }
    }

    #[test]
    fn a_nodes_name_is_a_name_in_dns_and_none_of_the_clusters() {
        let cluster = Domain("cluster.local");
        for name in ["a", "a-1", "1", "edge.example.com", &"a".repeat(200)] {
            assert_eq!(check_name(name, cluster), Ok(()), "{name}");
        }
        for name in ["", ".", "a.", ".a", "a..b", "-a", "a-", "a.-b", "A", "a_b", "\u{e4}", "a b", &"a".repeat(201)] {
            let refused = check_name(name, cluster);
            assert!(matches!(&refused, Err(Refusal::Invalid { why }) if why.contains("want lower-case")), "{name}");
        }
        let taken = check_name("web.shop.svc", cluster);
        assert!(matches!(&taken, Err(Refusal::Invalid { why }) if why.contains("names of Services")), "{taken:?}");
    }

    #[test]
    fn every_flag_that_differs_is_named_with_both_values() {
        let flags = |pairs: &[(&str, &str)]| {
            pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
        };
        let (theirs, ours) =
            (flags(&[("a", "1"), ("b", "2"), ("c", "")]), flags(&[("a", "1"), ("b", "3"), ("d", "4")]));
        let refusal = check_flags(&theirs, &ours).unwrap_err().to_string();
        assert_eq!(
            refusal,
            "settings that must be the same on all servers differ: --b is '2' there and '3' here, --d is '' there and \
             '4' here; start this server with the values from there"
        );
        assert_eq!(check_flags(&flags(&[("c", "")]), &flags(&[])), Ok(()), "nothing said is the same as nothing");
    }
}
