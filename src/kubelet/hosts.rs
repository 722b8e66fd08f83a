//! The `/etc/hosts` that the kubelet manages in each pod.

use k8s_openapi::api::core::v1::Pod;

use crate::pods::spec::{host_network, hostname};

/// The file's text. A pod in the host's network gets the host's own, with its aliases added.
pub(crate) fn render(pod: &Pod, ips: &[String], domain: &str, hosts_of_node: &str) -> String {
    let mut text = if host_network(pod) {
        format!("# Kubernetes-managed hosts file (host network).\n{hosts_of_node}")
    } else {
        let mut text = "# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n\
                        fe00::0\tip6-localnet\nfe00::0\tip6-mcastprefix\nfe00::1\tip6-allnodes\nfe00::2\tip6-allrouters\n"
            .to_owned();
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
        let pod: Pod = serde_json::from_value(serde_json::json!({"metadata": {"name": "web-0", "namespace": "d"},
            "spec": {"containers": [], "subdomain": "web", "hostAliases": [{"ip": "1.2.3.4", "hostnames": ["a", "b"]}]}}))
        .unwrap();
        let text = render(&pod, &["10.42.0.5".to_owned()], "cluster.local", "");
        assert!(text.contains("10.42.0.5\tweb-0.web.d.svc.cluster.local\tweb-0\n"), "{text}");
        assert!(text.ends_with("1.2.3.4\ta\tb\n"), "{text}");
    }
}
