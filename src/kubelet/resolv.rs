//! The resolv.conf of pods, by DNS policy. Limits and order as upstream.

use std::fs;
use std::net::IpAddr;
use std::path::Path;

use k8s_openapi::api::core::v1::Pod;

use crate::config::Config;
use crate::pods::spec::host_network;

/// Name servers that glibc reads at most.
const SERVERS_MAX: usize = 3;
/// Upstream's limits of the search list, and of one name in it: glibc aborts at a longer one.
const SEARCHES_MAX: usize = 32;
const SEARCHES_BYTES_MAX: usize = 2048;
const SEARCH_BYTES_MAX: usize = 253;

/// The three kinds of lines of a resolv.conf.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Dns {
    pub(crate) servers: Vec<String>,
    pub(crate) searches: Vec<String>,
    pub(crate) options: Vec<String>,
}

/// Reads a resolv.conf; the last `search` and `options` win, as in glibc.
pub(crate) fn parse(text: &str) -> Dns {
    let mut dns = Dns::default();
    for line in text.lines() {
        let line = line.split(['#', ';']).next().unwrap_or_default();
        let mut words = line.split_whitespace();
        match words.next() {
            Some("nameserver") => dns.servers.extend(words.next().map(str::to_owned)),
            Some("search") => {
                dns.searches = words.map(|w| if w == "." { "." } else { w.trim_end_matches('.') }.to_owned()).collect()
            }
            Some("options") => dns.options = words.map(str::to_owned).collect(),
            _ => {}
        }
    }
    dns
}

/// The lines for a pod on this node.
pub(crate) fn for_pod(config: &Config, pod: &Pod) -> Dns {
    let path = config.resolv_conf.as_deref().unwrap_or(Path::new("/etc/resolv.conf"));
    let host = parse(&fs::read_to_string(path).unwrap_or_default());
    build(&config.cluster_dns, &config.cluster_domain, pod, host)
}

fn build(cluster_dns: &[IpAddr], domain: &str, pod: &Pod, host: Dns) -> Dns {
    let spec = pod.spec.clone().unwrap_or_default();
    let cluster_first = match spec.dns_policy.as_deref().unwrap_or("ClusterFirst") {
        "None" => None,
        "Default" => Some(false),
        "ClusterFirstWithHostNet" => Some(true),
        _ => Some(!host_network(pod)),
    };
    let mut dns = match cluster_first {
        None => Dns::default(),
        Some(true) if !cluster_dns.is_empty() => {
            let ns = pod.metadata.namespace.as_deref().unwrap_or("default");
            let mut searches = vec![format!("{ns}.svc.{domain}"), format!("svc.{domain}"), domain.to_owned()];
            searches.extend(host.searches);
            Dns {
                servers: cluster_dns.iter().map(ToString::to_string).collect(),
                searches,
                options: vec!["ndots:5".to_owned()],
            }
        }
        Some(_) => host,
    };
    if let Some(extra) = spec.dns_config {
        dns.servers.extend(extra.nameservers.unwrap_or_default());
        dns.searches.extend(extra.searches.unwrap_or_default());
        for option in extra.options.unwrap_or_default() {
            let name = option.name.unwrap_or_default();
            dns.options.retain(|have| have.split(':').next() != Some(name.as_str()));
            dns.options.push(option.value.map_or(name.clone(), |value| format!("{name}:{value}")));
        }
    }
    dedupe(&mut dns.servers);
    dedupe(&mut dns.searches);
    dns.servers.truncate(SERVERS_MAX);
    dns.searches = within_limits(dns.searches);
    dns
}

/// The searches that fit, the first ones first. Spec: `formDNSSearchFitsLimits` in pkg/kubelet/network/dns/dns.go
/// v1.36.
fn within_limits(mut searches: Vec<String>) -> Vec<String> {
    searches.truncate(SEARCHES_MAX);
    searches.retain(|search| search.len() <= SEARCH_BYTES_MAX);
    while searches.join(" ").len() > SEARCHES_BYTES_MAX {
        searches.pop();
    }
    searches
}

fn dedupe(lines: &mut Vec<String>) {
    let mut seen = std::collections::BTreeSet::new();
    lines.retain(|line| seen.insert(line.clone()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_repeated_searches_are_read_as_glibc_does() {
        let dns = parse("# c\nnameserver 10.0.0.1 # x\nsearch a.\nsearch b c\noptions ndots:2 rotate\n");
        assert_eq!(dns.servers, ["10.0.0.1"]);
        assert_eq!(dns.searches, ["b", "c"]);
        assert_eq!(dns.options, ["ndots:2", "rotate"]);
    }

    fn of(spec: serde_json::Value) -> Dns {
        let pod = serde_json::from_value(serde_json::json!({"metadata": {"namespace": "d"}, "spec": spec})).unwrap();
        let host = parse("nameserver 192.0.2.1\nsearch corp\noptions rotate\n");
        build(&["10.43.0.10".parse().unwrap()], "cluster.local", &pod, host)
    }

    #[test]
    fn a_policy_says_whose_servers_a_pod_asks() {
        let cluster = ["d.svc.cluster.local", "svc.cluster.local", "cluster.local", "corp"];
        for (spec, server, searches) in [
            (serde_json::json!({"containers": []}), "10.43.0.10", &cluster[..]),
            (serde_json::json!({"containers": [], "dnsPolicy": "ClusterFirst"}), "10.43.0.10", &cluster),
            (serde_json::json!({"containers": [], "hostNetwork": true}), "192.0.2.1", &["corp"]),
            (
                serde_json::json!({"containers": [], "hostNetwork": true, "dnsPolicy": "ClusterFirstWithHostNet"}),
                "10.43.0.10",
                &cluster,
            ),
            (serde_json::json!({"containers": [], "dnsPolicy": "Default"}), "192.0.2.1", &["corp"]),
        ] {
            let dns = of(spec.clone());
            assert_eq!(
                (dns.servers, dns.searches),
                (vec![server.to_owned()], searches.iter().map(|s| (*s).to_owned()).collect()),
                "{spec}"
            );
        }
    }

    #[test]
    fn a_pods_own_lines_are_added_and_its_options_win() {
        let own = serde_json::json!({"nameservers": ["10.43.0.10", "192.0.2.9"], "searches": ["corp", "own"],
            "options": [{"name": "ndots", "value": "2"}, {"name": "edns0"}]});
        let dns = of(serde_json::json!({"containers": [], "dnsConfig": own}));
        assert_eq!(dns.servers, ["10.43.0.10", "192.0.2.9"]);
        assert_eq!(dns.searches[3..], ["corp", "own"]);
        assert_eq!(dns.options, ["ndots:2", "edns0"]);
        let none =
            of(serde_json::json!({"containers": [], "dnsPolicy": "None", "dnsConfig": {"nameservers": ["192.0.2.8"]}}));
        assert_eq!(none, Dns { servers: vec!["192.0.2.8".to_owned()], ..Dns::default() });
    }

    // Only the number of searches was bounded: glibc ends a program that meets a name which is too long.
    #[test]
    fn searches_are_kept_to_upstreams_limits() {
        let many: Vec<String> = (0..40).map(|n| format!("n{n}")).collect();
        assert_eq!(within_limits(many.clone()), many[..32]);
        let long = "x".repeat(254);
        assert_eq!(within_limits(vec!["a".to_owned(), long, "b".to_owned()]), ["a", "b"]);
        let wide: Vec<String> = (0..20).map(|n| format!("{n:0>200}")).collect();
        assert_eq!(within_limits(wide.clone()), wide[..10], "ten of 200 with a blank each are 2009 bytes");
    }
}
