//! Names of nodes beside names of the cluster. Whoever holds a token chooses the name of its node, and the cluster's
//! DNS tells nodes' names before it looks for Services.

/// Whether a name is one that Services, pods or addresses have in the cluster's DNS, in whichever way a pod may write
/// it: the domain itself, `vault.prod.svc.cluster.local`, `kubernetes.default.svc`, a reverse name. No node joins under
/// one: its serving certificate would hold it, signed by the authority that pods trust.
pub fn is_clusters(name: &str, domain: &str) -> bool {
    let parts = [
        format!("svc.{domain}"),
        format!("pod.{domain}"),
        "svc".to_owned(),
        "in-addr.arpa".to_owned(),
        "ip6.arpa".to_owned(),
    ];
    name == domain || parts.iter().any(|part| is_within(name, part))
}

/// Whether the cluster's DNS tells a node's name: every name outside of the cluster's domain, `host.example.com` among
/// them. Machines that are called `host.cluster.local` join, but pods look for every name in that domain first,
/// `github.com` as `github.com.cluster.local`.
pub fn is_told(name: &str, domain: &str) -> bool {
    !is_clusters(name, domain) && !is_within(name, domain) && !is_within(name, "localhost")
}

fn is_within(name: &str, domain: &str) -> bool {
    name.strip_suffix(domain).is_some_and(|head| head.is_empty() || head.ends_with('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_has_no_name_of_a_service() {
        for name in [
            "n1",
            "host.example.com",
            "edge-1.lan",
            "svc.example.com",
            "notcluster.local",
            "mysvc",
            "cluster.local.example.com",
        ] {
            assert!(!is_clusters(name, "cluster.local") && is_told(name, "cluster.local"), "{name}");
        }
        for name in [
            "cluster.local",
            "svc.cluster.local",
            "vault.prod.svc.cluster.local",
            "1-2-3-4.prod.pod.cluster.local",
            "kubernetes.default.svc",
            "svc",
            "1.0.43.10.in-addr.arpa",
        ] {
            assert!(is_clusters(name, "cluster.local") && !is_told(name, "cluster.local"), "{name}");
        }
        for name in ["host.cluster.local", "github.com.cluster.local", "localhost"] {
            assert!(!is_clusters(name, "cluster.local") && !is_told(name, "cluster.local"), "{name}");
        }
    }
}
