//! The resolv.conf of pods, by DNS policy. Limits and order as upstream.

use std::fs;
use std::path::Path;

use k8s_openapi::api::core::v1::Pod;

use crate::config::Config;
use crate::pods::spec::host_network;

/// What glibc reads at most.
const SERVERS_MAX: usize = 3;
/// Upstream's limits of the search list.
const SEARCHES_MAX: usize = 32;

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

/// What a pod on this node gets.
pub(crate) fn for_pod(config: &Config, pod: &Pod) -> Dns {
    let path = config.resolv_conf.as_deref().unwrap_or(Path::new("/etc/resolv.conf"));
    build(config, pod, parse(&fs::read_to_string(path).unwrap_or_default()))
}

fn build(config: &Config, pod: &Pod, host: Dns) -> Dns {
    let spec = pod.spec.clone().unwrap_or_default();
    let cluster_first = match spec.dns_policy.as_deref().unwrap_or("ClusterFirst") {
        "None" => None,
        "Default" => Some(false),
        "ClusterFirstWithHostNet" => Some(true),
        _ => Some(!host_network(pod)),
    };
    let mut dns = match cluster_first {
        None => Dns::default(),
        Some(true) if !config.cluster_dns.is_empty() => {
            let (ns, domain) = (pod.metadata.namespace.as_deref().unwrap_or("default"), &config.cluster_domain);
            let mut searches = vec![format!("{ns}.svc.{domain}"), format!("svc.{domain}"), domain.clone()];
            searches.extend(host.searches);
            Dns {
                servers: config.cluster_dns.iter().map(ToString::to_string).collect(),
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
    dns.searches.truncate(SEARCHES_MAX);
    dns
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
}
