//! The `/etc/hosts` that the kubelet manages in each pod.

use k8s_openapi::api::core::v1::Pod;

use crate::pods::spec::{host_network, hostname};

/// The lines that each pod with a network of its own has, as upstream.
const OWN: &str = "\
# Kubernetes-managed hosts file.
127.0.0.1\tlocalhost
::1\tlocalhost ip6-localhost ip6-loopback
fe00::0\tip6-localnet
fe00::0\tip6-mcastprefix
fe00::1\tip6-allnodes
fe00::2\tip6-allrouters
";

/// The file's text. A pod in the host's network gets the host's own, with its aliases added.
pub(crate) fn render(pod: &Pod, ips: &[String], domain: &str, of_node: impl FnOnce() -> String) -> String {
    let mut text = if host_network(pod) {
        format!("# Kubernetes-managed hosts file (host network).\n{}", of_node())
    } else {
        let mut text = OWN.to_owned();
        let (host, full) = hostname(pod, domain);
        for ip in ips {
            text += &match &full {
                Some(full) => format!("{ip}\t{full}\t{host}\n"),
                None => format!("{ip}\t{host}\n"),
            };
        }
        text
    };
    let aliases = pod.spec.as_ref().and_then(|spec| spec.host_aliases.clone()).unwrap_or_default();
    if !aliases.is_empty() {
        text += "\n# Entries added by HostAliases.\n";
        for alias in aliases {
            text += &format!("{}\t{}\n", alias.ip, alias.hostnames.unwrap_or_default().join("\t"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subdomain_puts_the_full_name_before_the_short_one() {
        let aliases = serde_json::json!([{"ip": "1.2.3.4", "hostnames": ["a", "b"]}]);
        let pod: Pod = serde_json::from_value(serde_json::json!({"metadata": {"name": "web-0", "namespace": "d"},
            "spec": {"containers": [], "subdomain": "web", "hostAliases": aliases}}))
        .unwrap();
        let text = render(&pod, &["10.42.0.5".to_owned()], "cluster.local", String::new);
        assert!(text.contains("10.42.0.5\tweb-0.web.d.svc.cluster.local\tweb-0\n"), "{text}");
        assert!(text.ends_with("1.2.3.4\ta\tb\n"), "{text}");
    }

    #[test]
    fn a_pod_in_the_hosts_network_has_the_hosts_names_and_its_own_aliases() {
        let pod: Pod = serde_json::from_value(serde_json::json!({"metadata": {"name": "p"}, "spec": {"containers": [],
            "hostNetwork": true, "hostAliases": [{"ip": "1.2.3.4", "hostnames": ["a"]}]}}))
        .unwrap();
        let text = render(&pod, &["192.0.2.1".to_owned()], "cluster.local", || "192.0.2.1 node\n".to_owned());
        assert_eq!(
            text,
            "# Kubernetes-managed hosts file (host network).\n192.0.2.1 node\n\n\
             # Entries added by HostAliases.\n1.2.3.4\ta\n"
        );
    }

    #[test]
    fn a_pod_without_a_subdomain_has_its_short_name_at_each_address() {
        let pod: Pod =
            serde_json::from_value(serde_json::json!({"metadata": {"name": "p"}, "spec": {"containers": []}})).unwrap();
        let ips = ["10.42.0.5".to_owned(), "fd00::5".to_owned()];
        let text = render(&pod, &ips, "cluster.local", || unreachable!("the host's names are not the pod's"));
        assert!(text.starts_with("# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n"), "{text}");
        assert!(text.ends_with("\n10.42.0.5\tp\nfd00::5\tp\n"), "{text}");
    }
}
