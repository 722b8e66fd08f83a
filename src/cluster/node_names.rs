//! Names of nodes beside names of the cluster. Whoever holds a token chooses the name of its node, and the cluster's
//! DNS tells nodes' names before it looks for Services.

/// A DNS domain, such as `cluster.local`.
#[derive(Clone, Copy, Debug)]
pub struct Domain<'a>(pub &'a str);

impl Domain<'_> {
    /// Whether a name is the domain's own or below it.
    fn holds(self, name: &str) -> bool {
        name.strip_suffix(self.0).is_some_and(|head| head.is_empty() || head.ends_with('.'))
    }
}

/// Whether a name is one that Services, pods or addresses have in the cluster's DNS, in whichever way a pod may write
/// it: the domain itself, `vault.prod.svc.cluster.local`, `kubernetes.default.svc`, a reverse name. No node joins under
/// one: its serving certificate would hold it, signed by the authority that pods trust.
pub fn is_clusters(name: &str, cluster: Domain<'_>) -> bool {
    let (services, pods) = (format!("svc.{}", cluster.0), format!("pod.{}", cluster.0));
    let parts = [&services, &pods, "svc", "in-addr.arpa", "ip6.arpa"];
    name == cluster.0 || parts.into_iter().any(|part| Domain(part).holds(name))
}

/// Whether the cluster's DNS tells a node's name: every name outside of the cluster's domain, `host.example.com` among
/// them. Machines that are called `host.cluster.local` join, but pods look for every name in that domain first,
/// `github.com` as `github.com.cluster.local`.
pub fn is_told(name: &str, cluster: Domain<'_>) -> bool {
    !is_clusters(name, cluster) && !cluster.holds(name) && !Domain("localhost").holds(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLUSTER: Domain<'_> = Domain("cluster.local");

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
            assert!(!is_clusters(name, CLUSTER) && is_told(name, CLUSTER), "{name}");
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
            assert!(is_clusters(name, CLUSTER) && !is_told(name, CLUSTER), "{name}");
        }
        for name in ["host.cluster.local", "github.com.cluster.local", "localhost"] {
            assert!(!is_clusters(name, CLUSTER) && !is_told(name, CLUSTER), "{name}");
        }
    }
}
