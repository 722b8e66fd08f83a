//! Packaged components: manifests that come with this program, and what the server itself keeps of them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::chain::Chain;
use base::task::Group;
use client::informer::Informers;
use cluster::addons::Packaged;
use cluster::node_names::{self, Domain};
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use kube::ResourceExt as _;
use kube::api::{Api, Patch, PatchParams};
use serde_json::json;
use tracing::warn;

use crate::flags::profile;
use crate::server::membership::CONTROL_PLANE;

/// Manifests that come with this program, by the names that `--disable` takes.
const COREDNS: &str = include_str!("../../manifests/coredns.yaml");
const LOCAL_STORAGE: &str = include_str!("../../manifests/local-storage.yaml");
const METRICS_SERVER: &str = include_str!("../../manifests/metrics-server.yaml");
const RUNTIMES: &str = include_str!("../../manifests/runtimes.yaml");
/// Comes with `--profile=cis` alone.
const PROFILE: &str = include_str!("../../manifests/profile-cis.yaml");

/// The manifest of a profile.
pub(crate) fn of_profile() -> Packaged {
    Packaged { name: profile::MANIFEST, text: PROFILE.to_owned() }
}

/// Values of the variables in manifests, named as k3s names them.
pub(crate) struct Variables {
    /// Addresses of the DNS service, one a family.
    pub(crate) cluster_dns: Vec<IpAddr>,
    /// Domain of the cluster.
    pub(crate) cluster_domain: String,
    /// Where volumes of local-path lie.
    pub(crate) storage_dir: String,
    /// The DNS server's image, where this build can make one.
    pub(crate) dns_image: Option<String>,
}

impl Variables {
    fn expand(&self, manifest: &str) -> String {
        let dns: Vec<String> = self.cluster_dns.iter().map(IpAddr::to_string).collect();
        manifest
            .replace("%{CLUSTER_DNS}%", dns.first().map_or("", String::as_str))
            .replace("%{CLUSTER_DNS_LIST}%", &format!("[\"{}\"]", dns.join("\", \"")))
            .replace("%{CLUSTER_DNS_IPFAMILYPOLICY}%", if dns.len() > 1 { "RequireDualStack" } else { "SingleStack" })
            .replace("%{CLUSTER_DOMAIN}%", &self.cluster_domain)
            .replace("%{DEFAULT_LOCAL_STORAGE_PATH}%", &self.storage_dir)
            .replace("%{DNS_IMAGE}%", self.dns_image.as_deref().unwrap_or_default())
    }

    /// The packaged manifests, but those disabled.
    pub(crate) fn packaged(&self, disabled: &BTreeSet<String>) -> Vec<Packaged> {
        let all = [
            ("coredns", COREDNS),
            ("local-storage", LOCAL_STORAGE),
            ("metrics-server", METRICS_SERVER),
            ("runtimes", RUNTIMES),
        ];
        if self.dns_image.is_none() && !disabled.contains("coredns") {
            warn!("no DNS server is deployed: this build cannot make its image");
        }
        let wanted = all
            .into_iter()
            .filter(|(name, _)| !disabled.contains(*name) && (*name != "coredns" || self.dns_image.is_some()));
        wanted.map(|(name, text)| Packaged { name, text: self.expand(text) }).collect()
    }
}

/// Names that `--disable` knows: what is packaged, and the parts that have no manifest.
const COMPONENTS: [&str; 7] =
    ["coredns", "gateway-api", "ingress", "local-storage", "metrics-server", "runtimes", "servicelb"];

/// Other words for these: k3s's ingress is Traefik.
const ALIASES: [(&str, &str); 2] = [("gateway", "gateway-api"), ("traefik", "ingress")];

/// Parts that a switch of their own leaves out, as in k3s.
const SWITCHED: [&str; 7] =
    ["agent", "cloud-controller", "etcd", "helm-controller", "kube-proxy", "network-policy", "scheduler"];

/// A name that disables nothing, which is a mistake.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum UnknownComponent {
    #[error(
        "--disable: there is no component {name}, and no such file in {}; components are {}",
        manifests.display(),
        COMPONENTS.join(", ")
    )]
    Nothing { name: String, manifests: PathBuf },
    #[error("--disable: {0} is no packaged component: use --disable-{0}")]
    Switch(String),
}

/// The components and files to leave out, by their own names: each word is a component, another word for one, or a file
/// of the operator's own in `manifests`.
pub(crate) fn disabled(words: &[String], manifests: &Path) -> Result<Vec<String>, UnknownComponent> {
    let of_file =
        |name: &str| ["yaml", "yml", "json"].iter().any(|ending| manifests.join(format!("{name}.{ending}")).exists());
    let mut names = BTreeSet::new();
    for word in words {
        let alias = ALIASES.iter().find(|(alias, _)| alias == word).map(|(_, component)| (*component).to_owned());
        let is_there = COMPONENTS.contains(&word.as_str()) || of_file(word);
        if alias.is_none() && !is_there {
            return Err(match SWITCHED.contains(&word.as_str()) {
                true => UnknownComponent::Switch(word.clone()),
                false => UnknownComponent::Nothing { name: word.clone(), manifests: manifests.to_owned() },
            });
        }
        names.extend(alias);
        names.extend(is_there.then(|| word.clone()));
    }
    Ok(names.into_iter().collect())
}

/// Marks this machine's node as one that carries the control plane (a label that nodes may not give themselves), and
/// writes down which of the things that all servers should share it uses.
pub(crate) fn mark_control_plane(
    client: kube::Client,
    node_name: String,
    uses: BTreeMap<String, String>,
    informers: &Informers,
    group: &Group,
) {
    let nodes = informers.get::<Node>();
    group.spawn("mark-control-plane", async move {
        let mut changes = nodes.changes();
        nodes.synced().await;
        loop {
            let marked = |node: &Node| {
                let notes = node.annotations();
                node.labels().contains_key(CONTROL_PLANE)
                    && uses.iter().all(|(name, value)| notes.get(name) == Some(value))
            };
            if nodes.get("", &node_name).is_some_and(|node| !marked(&node)) {
                let patch = json!({"metadata": {"labels": {(CONTROL_PLANE): "true"}, "annotations": uses}});
                let api: Api<Node> = Api::all(client.clone());
                let written = api.patch(&node_name, &PatchParams::default(), &Patch::Merge(patch)).await;
                // A lost race is no failure: the winner's write is the next change.
                if let Some(err) =
                    written.err().filter(|err| !matches!(err, kube::Error::Api(status) if status.code == 409))
                {
                    warn!(node = %node_name, err = %Chain(&err), "cannot mark the control plane's node");
                }
            }
            changes.next().await;
        }
    });
}

/// The ConfigMap holds 1 MiB with all its keys; Kubernetes' 5,000 nodes take a quarter of this.
const NODE_HOSTS_BYTES_MAX: usize = 512 * 1024;

/// Keeps the key NodeHosts of the DNS server's ConfigMap: node names and their addresses, one node a line.
pub(crate) fn keep_node_hosts(client: kube::Client, cluster_domain: &str, informers: &Informers, group: &Group) {
    let domain = cluster_domain.to_owned();
    let nodes = informers.get::<Node>();
    // The ConfigMap may come later than this, and may be made anew.
    let config_map = Informers::one(&client, "/api/v1/namespaces/kube-system/configmaps", "coredns", group);
    group.spawn("node-hosts", async move {
        let (mut changes, mut config_changes) = (nodes.changes(), config_map.changes());
        nodes.synced().await;
        config_map.synced().await;
        let mut written = None;
        loop {
            // No cascade: a write of ours that changes nothing is no change of the object.
            let now =
                config_map.get("kube-system", "coredns").map(|map| (map.uid(), node_hosts(&nodes.list(), &domain)));
            if let Some((_, lines)) = now.as_ref().filter(|now| written.as_ref() != Some(*now)) {
                let api: Api<ConfigMap> = Api::namespaced(client.clone(), "kube-system");
                let patch = json!({"data": {"NodeHosts": lines}});
                match api.patch("coredns", &PatchParams::default(), &Patch::Merge(patch)).await {
                    Ok(_) => written = now,
                    Err(err) => warn!(err = %Chain(&err), "cannot write node names for DNS"),
                }
            }
            // Cancel safe: both are read whole in the next turn.
            tokio::select! {
                _ = changes.next() => {}
                _ = config_changes.next() => {}
            }
        }
    });
}

/// A line for each address. The DNS server believes every word of it, before it looks for Services. So a node says
/// which address it has, and no more: its name is the one it joined under, and no name of the cluster's.
fn node_hosts(nodes: &[Arc<Node>], domain: &str) -> String {
    let mut nodes: Vec<&Arc<Node>> =
        nodes.iter().filter(|node| node_names::is_told(&node.name_any(), Domain(domain))).collect();
    // The oldest first: nodes that come in thousands take no name away.
    nodes.sort_by_key(|node| (node.metadata.creation_timestamp.as_ref().map(|time| time.0), node.name_any()));
    let (mut lines, mut bytes) = (BTreeMap::new(), 0);
    for node in nodes {
        for ip in model::node::addresses(node, "InternalIP") {
            let line = format!("{ip} {}\n", node.name_any());
            bytes += line.len();
            if bytes <= NODE_HOSTS_BYTES_MAX {
                lines.insert((node.name_any(), ip.to_string()), line);
            }
        }
    }
    lines.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, age: &str, addresses: &[&str]) -> Arc<Node> {
        let addresses: Vec<_> = addresses.iter().map(|text| json!({"type": "InternalIP", "address": text})).collect();
        let metadata = json!({"name": name, "creationTimestamp": format!("2026-01-01T00:00:{age}Z")});
        Arc::new(serde_json::from_value(json!({"metadata": metadata, "status": {"addresses": addresses}})).unwrap())
    }

    #[test]
    fn a_node_has_its_own_name_in_dns_and_no_other_one() {
        let nodes = [
            node("host.example.com", "01", &["10.0.0.1", "fd00::1"]),
            node(
                "n2",
                "02",
                &["10.0.0.2 vault.prod.svc.cluster.local", "10.0.0.2\n10.0.0.3 github.com", "10.0.0.4#", "10.0.0.2"],
            ),
            node("vault.prod.svc.cluster.local", "03", &["10.0.0.5"]),
            node("kubernetes.default.svc", "04", &["10.0.0.6"]),
            node("n5", "05", &["127.0.0.1", "169.254.169.254"]),
        ];
        assert_eq!(
            node_hosts(&nodes, "cluster.local"),
            "10.0.0.1 host.example.com\nfd00::1 host.example.com\n10.0.0.2 n2\n"
        );
    }

    #[test]
    fn many_nodes_take_no_older_name_away() {
        let many = (0..30_000).map(|n| node(&format!("a{n}"), "02", &[&format!("10.1.{}.{}", n / 250, n % 250 + 1)]));
        let nodes: Vec<Arc<Node>> = many.chain([node("z", "01", &["10.0.0.1"])]).collect();
        let hosts = node_hosts(&nodes, "cluster.local");
        assert!(hosts.len() <= NODE_HOSTS_BYTES_MAX && hosts.ends_with("10.0.0.1 z\n"), "{}", hosts.len());
    }

    #[test]
    fn only_what_is_there_can_be_disabled() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("own.yaml"), "").unwrap();
        std::fs::write(dir.path().join("notes.txt"), "").unwrap();
        let said = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            disabled(&words, dir.path()).map(|names| names.join(" ")).map_err(|err| err.to_string())
        };
        assert_eq!(said(&[]).unwrap(), "");
        assert_eq!(said(&["servicelb", "coredns", "own", "coredns"]).unwrap(), "coredns own servicelb");
        assert_eq!(said(&["traefik", "gateway", "ingress"]).unwrap(), "gateway-api ingress", "k3s's words");
        assert_eq!(
            said(&["coredns", "notes"]),
            Err(format!(
                "--disable: there is no component notes, and no such file in {}; components are coredns, gateway-api, \
                 ingress, local-storage, metrics-server, runtimes, servicelb",
                dir.path().display()
            ))
        );
        assert_eq!(
            said(&["helm-controller"]).unwrap_err(),
            "--disable: helm-controller is no packaged component: use --disable-helm-controller"
        );
        std::fs::write(dir.path().join("traefik.yml"), "").unwrap();
        assert_eq!(said(&["traefik"]).unwrap(), "ingress traefik", "a file of one's own with the name");
    }

    #[test]
    fn variables_of_manifests_have_the_clusters_values() {
        let variables = |dns: &[&str]| Variables {
            cluster_dns: dns.iter().map(|ip| ip.parse().unwrap()).collect(),
            cluster_domain: "cluster.local".to_owned(),
            storage_dir: "/storage".to_owned(),
            dns_image: None,
        };
        let text = "%{CLUSTER_DNS}% %{CLUSTER_DNS_LIST}% %{CLUSTER_DNS_IPFAMILYPOLICY}% %{CLUSTER_DOMAIN}% \
            %{DEFAULT_LOCAL_STORAGE_PATH}% %{DNS_IMAGE}%%{OTHER}%";
        assert_eq!(
            variables(&["10.43.0.10"]).expand(text),
            "10.43.0.10 [\"10.43.0.10\"] SingleStack cluster.local /storage %{OTHER}%"
        );
        assert_eq!(
            variables(&["fd43::a", "10.43.0.10"]).expand("%{CLUSTER_DNS_LIST}% %{CLUSTER_DNS_IPFAMILYPOLICY}%"),
            "[\"fd43::a\", \"10.43.0.10\"] RequireDualStack"
        );
    }

    #[test]
    fn what_is_disabled_or_has_no_image_is_not_deployed_and_no_variable_is_left() {
        let names = |disabled: &[&str], image: Option<&str>| {
            let variables = Variables {
                cluster_dns: vec!["10.43.0.10".parse().unwrap()],
                cluster_domain: "cluster.local".to_owned(),
                storage_dir: "/storage".to_owned(),
                dns_image: image.map(str::to_owned),
            };
            let all = variables.packaged(&disabled.iter().map(|name| (*name).to_owned()).collect());
            assert!(all.iter().all(|packaged| !packaged.text.contains("%{")));
            all.iter().map(|packaged| packaged.name.to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(names(&[], Some("dns")), ["coredns", "local-storage", "metrics-server", "runtimes"]);
        assert_eq!(names(&["local-storage", "runtimes"], Some("dns")), ["coredns", "metrics-server"]);
        assert_eq!(names(&["metrics-server"], None), ["local-storage", "runtimes"]);
    }
}
