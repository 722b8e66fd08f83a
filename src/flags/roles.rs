//! The flags of `kedge server` and `kedge agent`, spelled as k3s spells them, and those of k3s that mean nothing here.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::PathBuf;

use clap::Args;

use crate::flags::profile::Profile;
use crate::flags::runtime::Origin;
use crate::flags::shared::StateArgs;
use crate::flags::store::StoreFlags;
use crate::flags::value::ValueError;

/// Flags that both roles have beside the node's.
#[derive(Clone, Debug, Args)]
pub(crate) struct CommonArgs {
    /// Configuration file; flags are its keys. Drop-ins are read from FILE.d/*.yaml.
    #[arg(short, long, value_name = "FILE", default_value = base::layout::CONFIG_FILE)]
    pub(crate) config: PathBuf,
    /// Log more.
    #[arg(long)]
    pub(crate) debug: bool,
    /// How much is logged, as upstream counts it: from 4 on as with --debug.
    #[arg(short = 'v', long = "v", value_name = "LEVEL", default_value_t = 0)]
    pub(crate) verbosity: u8,
    /// Log to this file instead of standard error.
    #[arg(short = 'l', long, value_name = "FILE")]
    pub(crate) log: Option<PathBuf>,
    /// With --log: to standard error as well.
    #[arg(long)]
    pub(crate) alsologtostderr: bool,
    #[command(flatten)]
    pub(crate) state: StateArgs,
    /// Settings that belong together, which go behind every explicit one: cis is what the CIS benchmark asks.
    #[arg(long, value_name = "NAME")]
    pub(crate) profile: Option<Profile>,
    /// Lines for the log about where settings came from.
    #[arg(skip)]
    pub(crate) notes: Vec<String>,
    /// Switches that a file says are off.
    #[arg(skip)]
    pub(crate) switched_off: BTreeSet<String>,
}

/// Flags of `kedge server`, spelled as k3s spells them.
#[derive(Clone, Debug, Args)]
pub(crate) struct ServerArgs {
    #[command(flatten)]
    pub(crate) common: CommonArgs,
    /// Join the cluster of this server as one more server: https://HOST:6443. Needs the token of its file server/token.
    #[arg(short = 's', long, value_name = "URL", help_heading = "Cluster")]
    pub(crate) server: Option<String>,
    /// Shared secret with which nodes join. Made at the first start if none is given.
    #[arg(short = 't', long, value_name = "TOKEN", hide_env_values = true)]
    pub(crate) token: Option<String>,
    /// File that holds the token.
    #[arg(long, value_name = "FILE", conflicts_with = "token")]
    pub(crate) token_file: Option<PathBuf>,
    /// Shared secret with which agents join, but not servers (default: one of its own, in server/agent-token).
    #[arg(long, value_name = "TOKEN", hide_env_values = true)]
    pub(crate) agent_token: Option<String>,
    /// File that holds the agents' token.
    #[arg(long, value_name = "FILE", conflicts_with = "agent_token")]
    pub(crate) agent_token_file: Option<PathBuf>,

    /// Address to listen on (default: all; of both families where the cluster has IPv6).
    #[arg(long, value_name = "IP", help_heading = "Listening")]
    pub(crate) bind_address: Option<IpAddr>,
    /// Port of the API.
    #[arg(long, default_value_t = base::ports::API, value_name = "PORT", help_heading = "Listening")]
    pub(crate) https_listen_port: u16,
    /// Address that members of the cluster use to reach this server (default: the node's address).
    #[arg(long, value_name = "IP", help_heading = "Listening")]
    pub(crate) advertise_address: Option<IpAddr>,
    /// Port that members of the cluster use to reach this server (default: --https-listen-port).
    #[arg(long, value_name = "PORT", help_heading = "Listening")]
    pub(crate) advertise_port: Option<u16>,
    /// Further host names or addresses in the serving certificate. May be repeated.
    #[arg(long, value_name = "NAME", value_delimiter = ',', help_heading = "Listening")]
    pub(crate) tls_san: Vec<String>,

    /// Write the admin kubeconfig to this file.
    #[arg(short = 'o', long, value_name = "FILE", default_value = base::layout::KUBECONFIG, help_heading = "Client")]
    pub(crate) write_kubeconfig: PathBuf,
    /// Permission bits of that file, octal.
    #[arg(long, value_name = "MODE", default_value = "0600", value_parser = parse_mode, help_heading = "Client")]
    pub(crate) write_kubeconfig_mode: u32,
    /// Group that the file belongs to, by name or number; let it read with --write-kubeconfig-mode=0640.
    #[arg(long, value_name = "GROUP", help_heading = "Client")]
    pub(crate) write_kubeconfig_group: Option<String>,

    /// Address range of pods, or one of IPv4 and one of IPv6.
    #[arg(
        long,
        default_value = "10.42.0.0/16",
        value_name = "CIDR",
        value_delimiter = ',',
        help_heading = "Networking"
    )]
    pub(crate) cluster_cidr: Vec<String>,
    /// Address range of services, of the same families.
    #[arg(
        long,
        default_value = "10.43.0.0/16",
        value_name = "CIDR",
        value_delimiter = ',',
        help_heading = "Networking"
    )]
    pub(crate) service_cidr: Vec<String>,
    /// Ports for services of type NodePort.
    #[arg(
        long, default_value = "30000-32767", value_name = "FROM-TO", value_parser = parse_port_range,
        help_heading = "Networking"
    )]
    pub(crate) service_node_port_range: (u16, u16),
    /// Address of the cluster's DNS service, one a family (default: the tenth of each service range).
    #[arg(long, value_name = "IP", value_delimiter = ',', help_heading = "Networking")]
    pub(crate) cluster_dns: Vec<IpAddr>,
    /// DNS domain of the cluster.
    #[arg(long, default_value = "cluster.local", value_name = "DOMAIN", help_heading = "Networking")]
    pub(crate) cluster_domain: String,

    /// How pods of other nodes are reached: a vxlan tunnel, plain routes between nodes of one segment, or not at all.
    #[arg(
        long, default_value = "vxlan", value_name = "KIND", value_parser = ["vxlan", "host-gw", "none"],
        help_heading = "Networking"
    )]
    pub(crate) flannel_backend: String,
    /// Let other nodes reach this one's pods under its external address.
    #[arg(long, help_heading = "Networking")]
    pub(crate) flannel_external_ip: bool,
    /// Give IPv6 pods that leave the cluster the node's address.
    #[arg(long, help_heading = "Networking")]
    pub(crate) flannel_ipv6_masq: bool,
    /// Do not enforce network policies.
    #[arg(long, help_heading = "Networking")]
    pub(crate) disable_network_policy: bool,
    /// Do not serve services: something else does it on every node.
    #[arg(long, help_heading = "Networking")]
    pub(crate) disable_kube_proxy: bool,
    /// How the API reaches nodes: over tunnels that nodes open, which is the only way there is.
    #[arg(long, default_value = "agent", value_name = "MODE", value_parser = ["agent"], help_heading = "Networking")]
    pub(crate) egress_selector_mode: String,

    /// Run no pods on this machine.
    #[arg(long, help_heading = "Node")]
    pub(crate) disable_agent: bool,
    #[command(flatten)]
    pub(crate) node: NodeArgs,

    /// Metrics of a server's own parts beside those of the API: they are on the page GET /metrics in any case.
    #[arg(long, help_heading = "Components")]
    pub(crate) supervisor_metrics: bool,
    /// Accepted as k3s has it: no name that nobody asked for with --tls-san ever enters a certificate; it cannot be
    /// switched off.
    #[arg(
        long, value_name = "true", value_parser = ["true"], num_args = 0..=1, require_equals = true,
        default_missing_value = "true", help_heading = "Listening"
    )]
    pub(crate) tls_san_security: Option<String>,
    /// Folder on every node for volumes of the class local-path (default: storage in the data directory).
    #[arg(long, value_name = "DIR", help_heading = "Components")]
    pub(crate) default_local_storage_path: Option<PathBuf>,
    /// Seconds that certificates last, for tests of their renewal (default: a year).
    #[arg(long, value_name = "SECONDS", hide = true)]
    pub(crate) certificate_life: Option<u64>,
    /// Flag of kube-apiserver, NAME=VALUE: those that mean something here act, others are refused by name. May be
    /// repeated.
    #[arg(long, value_name = "NAME=VALUE", help_heading = "Components")]
    pub(crate) kube_apiserver_arg: Vec<String>,
    /// Flag of kube-controller-manager, NAME=VALUE: those that mean something here act, others are refused by name. May
    /// be repeated.
    #[arg(long, value_name = "NAME=VALUE", help_heading = "Components")]
    pub(crate) kube_controller_manager_arg: Vec<String>,
    /// Flag of kube-scheduler, NAME=VALUE: those that ask for what is are taken, others are refused by name. May be
    /// repeated.
    #[arg(long, value_name = "NAME=VALUE", help_heading = "Components")]
    pub(crate) kube_scheduler_arg: Vec<String>,
    /// Component not to deploy, and to remove: coredns, gateway-api, ingress (traefik is another word for it),
    /// local-storage, metrics-server, runtimes, servicelb, or a file of the folder server/manifests without its ending.
    /// May be repeated.
    #[arg(
        long, value_name = "NAME", value_delimiter = ',', value_parser = parse_component,
        help_heading = "Components"
    )]
    pub(crate) disable: Vec<String>,
    /// Do not run the scheduler: something else binds pods to nodes.
    #[arg(long, help_heading = "Components")]
    pub(crate) disable_scheduler: bool,
    /// Leave nodes without the addresses and provider ids of k3s's cloud controller, as all nodes of kedge are: there
    /// is none.
    #[arg(long, help_heading = "Components")]
    pub(crate) disable_cloud_controller: bool,
    /// Do not install HelmCharts, and do not define their kinds.
    #[arg(long, help_heading = "Components")]
    pub(crate) disable_helm_controller: bool,
    /// Program that installs HelmCharts (default: helm on the PATH).
    #[arg(long, value_name = "FILE", help_heading = "Components")]
    pub(crate) helm_binary: Option<PathBuf>,

    /// Start only if Secrets are encrypted at rest, as they are unless --kube-apiserver-arg=encryption-provider-config
    /// says otherwise.
    #[arg(long, help_heading = "Security")]
    pub(crate) secrets_encryption: bool,
    /// How new keys encrypt Secrets, where no key exists yet.
    #[arg(long, value_name = "KIND", value_parser = ["aescbc", "secretbox"], help_heading = "Security")]
    pub(crate) secrets_encryption_provider: Option<String>,

    #[command(flatten)]
    pub(crate) store: StoreFlags,
}

/// Flags that a server's node and an agent's have in common.
#[derive(Clone, Debug, Args)]
pub(crate) struct NodeArgs {
    /// Name of this node (default: the host's name).
    #[arg(long, value_name = "NAME", help_heading = "Node")]
    pub(crate) node_name: Option<String>,
    /// Append an id of this machine's own to the node's name.
    #[arg(long, help_heading = "Node")]
    pub(crate) with_node_id: bool,
    /// Address of this node, one a family (default: the one from which it reaches the server, or its default route).
    #[arg(short = 'i', long, value_name = "IP", value_delimiter = ',', help_heading = "Node")]
    pub(crate) node_ip: Vec<IpAddr>,
    /// Address under which others reach this node from outside. May be repeated.
    #[arg(long, value_name = "IP", value_delimiter = ',', help_heading = "Node")]
    pub(crate) node_external_ip: Vec<IpAddr>,
    /// DNS name of this node inside of the cluster's network. May be repeated.
    #[arg(long, value_name = "NAME", value_delimiter = ',', help_heading = "Node")]
    pub(crate) node_internal_dns: Vec<String>,
    /// DNS name of this node outside of it. May be repeated.
    #[arg(long, value_name = "NAME", value_delimiter = ',', help_heading = "Node")]
    pub(crate) node_external_dns: Vec<String>,
    /// Port of the node's kubelet.
    #[arg(long, default_value_t = base::ports::KUBELET, value_name = "PORT", help_heading = "Node")]
    pub(crate) kubelet_port: u16,
    /// Setting of the kubelet as upstream's flag without dashes, such as max-pods=50; config=FILE names a
    /// KubeletConfiguration, config-dir=DIR a folder of them. May be repeated.
    #[arg(long, value_name = "NAME=VALUE", help_heading = "Node")]
    pub(crate) kubelet_arg: Vec<String>,
    /// Flag of kube-proxy, NAME=VALUE: those that mean something here act, others are refused by name. May be repeated.
    #[arg(long, value_name = "NAME=VALUE", help_heading = "Node")]
    pub(crate) kube_proxy_arg: Vec<String>,
    /// Label to register the node with. May be repeated.
    #[arg(long, value_name = "KEY=VALUE", value_delimiter = ',', help_heading = "Node")]
    pub(crate) node_label: Vec<String>,
    /// Taint to register the node with. May be repeated.
    #[arg(long, value_name = "KEY=VALUE:EFFECT", value_delimiter = ',', help_heading = "Node")]
    pub(crate) node_taint: Vec<String>,
    /// Use this CRI socket instead of a containerd of our own.
    #[arg(long, value_name = "SOCKET", help_heading = "Node")]
    pub(crate) container_runtime_endpoint: Option<String>,
    /// Where containerd comes from, in this order: bundle (what 'kedge bundle apply' has laid down), path (the
    /// machine's).
    #[arg(
        long,
        value_name = "PLACES",
        value_delimiter = ',',
        default_value = "bundle,path",
        conflicts_with = "container_runtime_endpoint",
        help_heading = "Node"
    )]
    pub(crate) runtime_from: Vec<Origin>,
    /// How containerd keeps images' files (default: overlayfs where that works, else native).
    #[arg(
        long, value_name = "NAME", value_parser = ["overlayfs", "native", "btrfs", "zfs"],
        conflicts_with = "container_runtime_endpoint", help_heading = "Node"
    )]
    pub(crate) snapshotter: Option<String>,
    /// Runtime of pods that name no RuntimeClass: runc, or one of those found on this machine.
    #[arg(
        long,
        value_name = "NAME",
        default_value = "runc",
        conflicts_with = "container_runtime_endpoint",
        help_heading = "Node"
    )]
    pub(crate) default_runtime: String,
    /// Give a pod's devices to the user that it runs as, not to root.
    #[arg(long, conflicts_with = "container_runtime_endpoint", help_heading = "Node")]
    pub(crate) nonroot_devices: bool,
    /// Image of the pods' first process (default: made from this binary).
    #[arg(long, value_name = "IMAGE", help_heading = "Node")]
    pub(crate) pause_image: Option<String>,
    /// Mirrors, credentials and authorities of registries.
    #[arg(long, value_name = "FILE", default_value = base::layout::REGISTRIES, help_heading = "Node")]
    pub(crate) private_registry: PathBuf,
    /// Do not ask a registry itself where its mirrors have failed.
    #[arg(long, help_heading = "Node")]
    pub(crate) disable_default_registry_endpoint: bool,
    /// CredentialProviderConfig: which programs give credentials for which images. A file, or a folder of them.
    #[arg(long, value_name = "FILE", requires = "image_credential_provider_bin_dir", help_heading = "Node")]
    pub(crate) image_credential_provider_config: Option<PathBuf>,
    /// Folder of these programs.
    #[arg(long, value_name = "DIR", requires = "image_credential_provider_config", help_heading = "Node")]
    pub(crate) image_credential_provider_bin_dir: Option<PathBuf>,
    /// Interface for the overlay (default: the one with the node's address).
    #[arg(long, value_name = "NAME", help_heading = "Node")]
    pub(crate) flannel_iface: Option<String>,
    /// Resolver configuration for pods (default: the host's real resolvers).
    #[arg(long, value_name = "FILE", help_heading = "Node")]
    pub(crate) resolv_conf: Option<PathBuf>,
    /// Refuse to start where the kernel's settings are not what upstream's kubelet wants.
    #[arg(long, help_heading = "Node")]
    pub(crate) protect_kernel_defaults: bool,
}

/// Flags of `kedge agent`, spelled as k3s spells them.
#[derive(Clone, Debug, Args)]
pub(crate) struct AgentArgs {
    #[command(flatten)]
    pub(crate) common: CommonArgs,
    /// Server to join: https://HOST:6443.
    #[arg(short = 's', long, value_name = "URL", help_heading = "Cluster")]
    pub(crate) server: String,
    /// Token to join with: from the server's file server/node-token, or of 'kedge token create'.
    #[arg(short = 't', long, value_name = "TOKEN", hide_env_values = true, help_heading = "Cluster")]
    pub(crate) token: Option<String>,
    /// File that holds the token.
    #[arg(long, value_name = "FILE", conflicts_with = "token", help_heading = "Cluster")]
    pub(crate) token_file: Option<PathBuf>,
    /// Port on loopback that leads to some server.
    #[arg(long, default_value_t = 6444, value_name = "PORT", help_heading = "Cluster")]
    pub(crate) lb_server_port: u16,
    /// Ask the server whether this machine may join, print the answer, and do nothing.
    #[arg(long, help_heading = "Cluster")]
    pub(crate) check: bool,

    #[command(flatten)]
    pub(crate) node: NodeArgs,
}

fn parse_mode(text: &str) -> Result<u32, ValueError> {
    u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777).ok_or(ValueError::Mode)
}

fn parse_component(text: &str) -> Result<String, ValueError> {
    let name = text.trim();
    let plain = !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_');
    if plain { Ok(name.to_owned()) } else { Err(ValueError::Component) }
}

fn parse_port_range(text: &str) -> Result<(u16, u16), ValueError> {
    let ports = text.split_once('-').and_then(|(from, to)| Some((from.parse().ok()?, to.parse().ok()?)));
    ports.filter(|(from, to)| *from > 0 && from <= to).ok_or(ValueError::PortRange)
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory as _, Parser};

    use super::*;

    #[derive(Parser)]
    struct Server {
        #[command(flatten)]
        args: ServerArgs,
    }

    fn server(args: &[&str]) -> Result<ServerArgs, String> {
        let parsed = Server::try_parse_from(["kedge"].iter().chain(args));
        parsed.map(|server| server.args).map_err(|err| err.to_string())
    }

    #[test]
    fn every_flag_has_one_meaning() {
        // Clap finds doubles, conflicts with flags that are not there, and defaults that do not parse.
        Server::command().debug_assert();
    }

    #[test]
    fn permission_bits_are_octal_and_of_a_file() {
        for (text, mode) in [("0600", Some(0o600)), ("640", Some(0o640)), ("777", Some(0o777)), ("0", Some(0))] {
            assert_eq!(parse_mode(text).ok(), mode, "{text}");
        }
        for text in ["1777", "0o600", "-1", "8", "rw", ""] {
            assert_eq!(parse_mode(text).unwrap_err().to_string(), "want octal permission bits such as 0600", "{text}");
        }
    }

    #[test]
    fn a_component_is_a_plain_name() {
        for text in ["coredns", " coredns ", "my_add-on2"] {
            assert_eq!(parse_component(text).unwrap(), text.trim());
        }
        for text in ["", "../x", "a.yaml", "a b"] {
            assert!(parse_component(text).unwrap_err().to_string().starts_with("want a component's name"), "{text}");
        }
    }

    #[test]
    fn ports_of_services_are_a_range_that_begins_above_zero() {
        for (text, range) in [
            ("30000-32767", Some((30000, 32767))),
            ("30000-30000", Some((30000, 30000))),
            ("0-1", None),
            ("2-1", None),
            ("30000", None),
            ("30000-70000", None),
            ("a-b", None),
        ] {
            assert_eq!(parse_port_range(text).ok(), range, "{text}");
        }
        let said = server(&["--service-node-port-range=2-1"]).unwrap_err();
        assert!(said.contains("--service-node-port-range") && said.contains("want two ports such as"), "{said}");
    }

    #[test]
    fn flags_that_need_or_exclude_each_other_say_so() {
        for (args, named) in [
            (&["--token=a", "--token-file=/f"][..], "--token-file"),
            (&["--agent-token=a", "--agent-token-file=/f"], "--agent-token-file"),
            (&["--datastore-certfile=/f"], "--datastore-keyfile"),
            (&["--datastore-keyfile=/f"], "--datastore-certfile"),
            (&["--cluster-reset-restore-path=/f"], "--cluster-reset"),
            (&["--image-credential-provider-config=/f"], "--image-credential-provider-bin-dir"),
            (&["--nonroot-devices", "--container-runtime-endpoint=/s"], "--nonroot-devices"),
            (&["--flannel-backend=wireguard"], "--flannel-backend"),
            (&["--secrets-encryption-provider=aesgcm"], "--secrets-encryption-provider"),
        ] {
            let said = server(args).unwrap_err();
            assert!(said.contains(named), "{args:?}: {said}");
        }
    }

    #[test]
    fn lists_take_commas_and_repetitions() {
        let args =
            server(&["--tls-san=a,b", "--tls-san=c", "--node-ip=10.0.0.1,fd00::1", "--disable=coredns, x"]).unwrap();
        assert_eq!(args.tls_san, ["a", "b", "c"]);
        assert_eq!(args.node.node_ip.len(), 2);
        assert_eq!(args.disable, ["coredns", "x"]);
        let kubelet = server(&["--kubelet-arg=eviction-hard=memory.available<5%,nodefs.available<5%"]).unwrap();
        assert_eq!(kubelet.node.kubelet_arg.len(), 1, "a kubelet's values have commas of their own");
    }

    #[test]
    fn an_agent_must_be_told_a_server() {
        #[derive(Debug, Parser)]
        struct Agent {
            #[command(flatten)]
            args: AgentArgs,
        }
        let said = Agent::try_parse_from(["kedge"]).unwrap_err().to_string();
        assert!(said.contains("--server"), "{said}");
        let agent = Agent::try_parse_from(["kedge", "-s", "https://a:6443", "-t", "secret"]).unwrap().args;
        assert_eq!((agent.server.as_str(), agent.lb_server_port), ("https://a:6443", 6444));
    }
}
