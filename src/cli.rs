//! Flags, environment and configuration file: the only place that reads them.
//!
//! Precedence as k3s has it: command line, then drop-ins, then the file, then the environment. KEDGE_* is ours, K3S_* an alias.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use base::chain::Chain;
use clap::builder::ArgAction;
use clap::error::ErrorKind;
use clap::{Args, Command, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

use crate::config_file::{ConfigError, FlagKind, Settings};
use crate::datastore::StoreFlags;
use crate::tokens::TokenArgs;
use crate::{agent, certificates, cleanup, config_check, runtime_tools, secrets_encrypt, server, snapshots, status, tokens, tools};

/// Where the configuration is looked for when nobody names a file.
pub(crate) const CONFIG_FILE: &str = "/etc/kedge/config.yaml";

/// Kubernetes in one small binary.
#[derive(Debug, Parser)]
#[command(name = "kedge", version = VERSION, disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    role: Role,
}

/// The version, followed by the Kubernetes API level.
pub(crate) const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " (Kubernetes v1.36)");

#[derive(Debug, Subcommand)]
enum Role {
    /// Run a cluster on this machine.
    Server(Box<ServerArgs>),
    /// Join this machine to a cluster, to run pods for it.
    Agent(Box<AgentArgs>),
    /// Make, list and delete the bootstrap tokens with which agents join.
    Token(TokenArgs),
    /// Run the kubectl of this machine against this server.
    Kubectl(ToolArgs),
    /// Run the crictl of this machine on this node's containerd.
    Crictl(ToolArgs),
    /// Run the ctr of this machine on this node's containerd.
    Ctr(ToolArgs),
    /// Stop every pod that kedge started on this machine and take its links, mounts and nft tables away. Data stays.
    Killall(KillallArgs),
    /// Remove kedge from this machine: stop everything, then take away the service, the data and the program. Volumes stay.
    Uninstall(UninstallArgs),
    /// Take, list, delete and restore snapshots of the server's state.
    #[command(visible_alias = "etcd-snapshot")]
    Snapshot(Box<snapshots::SnapshotArgs>),
    /// Show when certificates end, and have them made anew.
    Certificate(certificates::CertificateArgs),
    /// Show how this machine and its cluster are, what is wrong and what to do about it.
    Status(status::StatusArgs),
    /// Tell whether this machine can run kedge: kernel, cgroups, nftables, containerd. Fails if something needed is missing.
    CheckConfig,
    /// List the images of this node's containerd.
    Images(runtime_tools::ImagesArgs),
    /// List the containers of this node's containerd.
    Ps(runtime_tools::PsArgs),
    /// Print the log of a container of this node, named by its id or by its pod, without asking the API.
    Logs(runtime_tools::LogsArgs),
    /// Look after the encryption of Secrets at rest.
    SecretsEncrypt(secrets_encrypt::SecretsEncryptArgs),
    /// Print a completion script for a shell.
    Completion {
        /// The shell to print for.
        shell: clap_complete::Shell,
    },
}

/// What a tool is given as it is.
#[derive(Clone, Debug, Args)]
#[command(disable_help_flag = true)]
pub(crate) struct ToolArgs {
    /// The tool's own arguments.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<OsString>,
}

/// Where the state of this machine is: of every command that looks at it.
#[derive(Clone, Debug, Args)]
pub(crate) struct StateArgs {
    /// Folder that holds state.
    #[arg(short = 'd', long, global = true, default_value = "/var/lib/kedge", value_name = "DIR")]
    pub(crate) data_dir: PathBuf,
}

/// Who asks the API: of every command that does.
#[derive(Clone, Debug, Args)]
pub(crate) struct AdminArgs {
    /// Kubeconfig of an administrator.
    #[arg(long, global = true, value_name = "FILE", default_value = "/etc/kedge/kedge.yaml")]
    pub(crate) kubeconfig: PathBuf,
}

/// Flags of `kedge killall`.
#[derive(Clone, Debug, Args)]
pub(crate) struct KillallArgs {
    #[command(flatten)]
    pub(crate) state: StateArgs,
    /// Print what would be done, and do nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// Flags of `kedge uninstall`.
#[derive(Clone, Debug, Args)]
pub(crate) struct UninstallArgs {
    #[command(flatten)]
    pub(crate) state: StateArgs,
    /// Remove volumes of the local-path StorageClass, too.
    #[arg(long)]
    pub(crate) delete_volumes: bool,
    /// Remove everything in /etc/kedge, too.
    #[arg(long)]
    pub(crate) delete_config: bool,
    /// Print the plan, and do nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,
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
    /// Shared secret with which agents join, but not servers (default: the token).
    #[arg(long, value_name = "TOKEN", hide_env_values = true)]
    pub(crate) agent_token: Option<String>,
    /// File that holds the agents' token.
    #[arg(long, value_name = "FILE", conflicts_with = "agent_token")]
    pub(crate) agent_token_file: Option<PathBuf>,

    /// Address to listen on.
    #[arg(long, default_value = "0.0.0.0", value_name = "IP", help_heading = "Listening")]
    pub(crate) bind_address: IpAddr,
    /// Port of the API.
    #[arg(long, default_value_t = 6443, value_name = "PORT", help_heading = "Listening")]
    pub(crate) https_listen_port: u16,
    /// Address that members of the cluster use to reach this server (default: the node's address).
    #[arg(long, value_name = "IP", help_heading = "Listening")]
    pub(crate) advertise_address: Option<IpAddr>,
    /// Further host names or addresses in the serving certificate. May be repeated.
    #[arg(long, value_name = "NAME", value_delimiter = ',', help_heading = "Listening")]
    pub(crate) tls_san: Vec<String>,

    /// Write the admin kubeconfig to this file.
    #[arg(short = 'o', long, value_name = "FILE", default_value = "/etc/kedge/kedge.yaml", help_heading = "Client")]
    pub(crate) write_kubeconfig: PathBuf,
    /// Permission bits of that file, octal.
    #[arg(long, value_name = "MODE", default_value = "0600", value_parser = parse_mode, help_heading = "Client")]
    pub(crate) write_kubeconfig_mode: u32,

    /// Address range of pods.
    #[arg(long, default_value = "10.42.0.0/16", value_name = "CIDR", help_heading = "Networking")]
    pub(crate) cluster_cidr: String,
    /// Address range of services.
    #[arg(long, default_value = "10.43.0.0/16", value_name = "CIDR", help_heading = "Networking")]
    pub(crate) service_cidr: String,
    /// Ports for services of type NodePort.
    #[arg(long, default_value = "30000-32767", value_name = "FROM-TO", value_parser = parse_port_range, help_heading = "Networking")]
    pub(crate) service_node_port_range: (u16, u16),
    /// Address of the cluster's DNS service (default: the tenth of the service range).
    #[arg(long, value_name = "IP", help_heading = "Networking")]
    pub(crate) cluster_dns: Option<IpAddr>,
    /// DNS domain of the cluster.
    #[arg(long, default_value = "cluster.local", value_name = "DOMAIN", help_heading = "Networking")]
    pub(crate) cluster_domain: String,

    /// How pods of other nodes are reached: a vxlan tunnel, plain routes between nodes of one segment, or not at all.
    #[arg(long, default_value = "vxlan", value_name = "KIND", value_parser = ["vxlan", "host-gw", "none"], help_heading = "Networking")]
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

    /// Run no pods on this machine.
    #[arg(long, help_heading = "Node")]
    pub(crate) disable_agent: bool,
    #[command(flatten)]
    pub(crate) node: NodeArgs,

    /// Folder on every node for volumes of the class local-path (default: storage in the data directory).
    #[arg(long, value_name = "DIR", help_heading = "Components")]
    pub(crate) default_local_storage_path: Option<PathBuf>,
    /// Seconds that certificates last, for tests of their renewal (default: a year).
    #[arg(long, value_name = "SECONDS", hide = true)]
    pub(crate) certificate_life: Option<u64>,
    /// Flag of kube-apiserver, NAME=VALUE: those that mean something here act, others are refused by name. May be repeated.
    #[arg(long, value_name = "NAME=VALUE", help_heading = "Components")]
    pub(crate) kube_apiserver_arg: Vec<String>,
    /// Flag of kube-controller-manager, NAME=VALUE: those that mean something here act, others are refused by name. May be repeated.
    #[arg(long, value_name = "NAME=VALUE", help_heading = "Components")]
    pub(crate) kube_controller_manager_arg: Vec<String>,
    /// Flag of kube-scheduler, NAME=VALUE: those that ask for what is are taken, others are refused by name. May be repeated.
    #[arg(long, value_name = "NAME=VALUE", help_heading = "Components")]
    pub(crate) kube_scheduler_arg: Vec<String>,
    /// Component not to deploy, and to remove: coredns, local-storage, metrics-server, runtimes, servicelb, or a file of the folder
    /// server/manifests without its ending. May be repeated.
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = parse_component, help_heading = "Components")]
    pub(crate) disable: Vec<String>,

    #[command(flatten)]
    pub(crate) store: StoreFlags,
}

/// What a server and an agent have in common but the node.
#[derive(Clone, Debug, Args)]
pub(crate) struct CommonArgs {
    /// Configuration file; flags are its keys. Drop-ins are read from FILE.d/*.yaml.
    #[arg(short, long, value_name = "FILE", default_value = CONFIG_FILE)]
    pub(crate) config: PathBuf,
    /// Log more.
    #[arg(long)]
    pub(crate) debug: bool,
    /// Log to this file instead of standard error.
    #[arg(short = 'l', long, value_name = "FILE")]
    pub(crate) log: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) state: StateArgs,
}

/// What a server's node and an agent's have in common.
#[derive(Clone, Debug, Args)]
pub(crate) struct NodeArgs {
    /// Name of this node (default: the host's name).
    #[arg(long, value_name = "NAME", help_heading = "Node")]
    pub(crate) node_name: Option<String>,
    /// Append an id of this machine's own to the node's name.
    #[arg(long, help_heading = "Node")]
    pub(crate) with_node_id: bool,
    /// Address of this node (default: the one from which it reaches the server, or its default route).
    #[arg(short = 'i', long, value_name = "IP", value_delimiter = ',', help_heading = "Node")]
    pub(crate) node_ip: Vec<IpAddr>,
    /// Address under which others reach this node from outside. May be repeated.
    #[arg(long, value_name = "IP", value_delimiter = ',', help_heading = "Node")]
    pub(crate) node_external_ip: Vec<IpAddr>,
    /// Port of the node's kubelet.
    #[arg(long, default_value_t = 10250, value_name = "PORT", help_heading = "Node")]
    pub(crate) kubelet_port: u16,
    /// Setting of the kubelet as upstream's flag without dashes, such as max-pods=50. May be repeated.
    #[arg(long, value_name = "NAME=VALUE", help_heading = "Node")]
    pub(crate) kubelet_arg: Vec<String>,
    /// Label to register the node with. May be repeated.
    #[arg(long, value_name = "KEY=VALUE", value_delimiter = ',', help_heading = "Node")]
    pub(crate) node_label: Vec<String>,
    /// Taint to register the node with. May be repeated.
    #[arg(long, value_name = "KEY=VALUE:EFFECT", value_delimiter = ',', help_heading = "Node")]
    pub(crate) node_taint: Vec<String>,
    /// Use this CRI socket instead of a containerd of our own.
    #[arg(long, value_name = "SOCKET", help_heading = "Node")]
    pub(crate) container_runtime_endpoint: Option<String>,
    /// Image of the pods' first process (default: made from this binary).
    #[arg(long, value_name = "IMAGE", help_heading = "Node")]
    pub(crate) pause_image: Option<String>,
    /// Mirrors, credentials and authorities of registries.
    #[arg(long, value_name = "FILE", default_value = "/etc/kedge/registries.yaml", help_heading = "Node")]
    pub(crate) private_registry: PathBuf,
    /// Do not ask a registry itself where its mirrors have failed.
    #[arg(long, help_heading = "Node")]
    pub(crate) disable_default_registry_endpoint: bool,
    /// Interface for the overlay (default: the one with the node's address).
    #[arg(long, value_name = "NAME", help_heading = "Node")]
    pub(crate) flannel_iface: Option<String>,
    /// Resolver configuration for pods (default: the host's real resolvers).
    #[arg(long, value_name = "FILE", help_heading = "Node")]
    pub(crate) resolv_conf: Option<PathBuf>,
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

fn parse_mode(text: &str) -> Result<u32, String> {
    u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777).ok_or_else(|| "want octal permission bits such as 0600".to_owned())
}

fn parse_component(text: &str) -> Result<String, String> {
    let name = text.trim();
    let plain = !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_');
    if plain {
        Ok(name.to_owned())
    } else {
        Err("want a component's name such as coredns, or that of a file in server/manifests".to_owned())
    }
}

fn parse_port_range(text: &str) -> Result<(u16, u16), String> {
    let ports = text.split_once('-').and_then(|(from, to)| Some((from.parse().ok()?, to.parse().ok()?)));
    ports.filter(|(from, to)| *from > 0 && from <= to).ok_or_else(|| "want two ports such as 30000-32767".to_owned())
}

/// Parses the command line and runs the role. Returns the process's exit code.
pub(crate) fn main(args: Vec<OsString>) -> i32 {
    let role = match parse(args, &environment) {
        Ok(cli) => cli.role,
        Err(Refusal::Clap(err)) => {
            // Broken standard output leaves nobody to tell.
            let _printed = err.print();
            return i32::from(!matches!(err.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion));
        }
        Err(Refusal::Config(err)) => return refuse(&err.to_string()),
    };
    match role {
        Role::Server(args) => match server::main(*args) {
            Ok(()) => 0,
            Err(err) => refuse(&Chain(&err).to_string()),
        },
        Role::Agent(args) => match agent::role::main(*args) {
            Ok(()) => 0,
            Err(err) => refuse(&Chain(&err).to_string()),
        },
        Role::Token(args) => match tokens::main(&args) {
            Ok(()) => 0,
            Err(err) => refuse(&Chain(&err).to_string()),
        },
        Role::Kubectl(args) => tool("kubectl", &args.args),
        Role::Crictl(args) => tool("crictl", &args.args),
        Role::Ctr(args) => tool("ctr", &args.args),
        Role::Killall(args) => match cleanup::killall(&args) {
            Ok(()) => 0,
            Err(err) => refuse(&Chain(&err).to_string()),
        },
        Role::Uninstall(args) => match cleanup::uninstall(&args) {
            Ok(()) => 0,
            Err(err) => refuse(&Chain(&err).to_string()),
        },
        Role::Snapshot(args) => match snapshots::main(*args) {
            Ok(()) => 0,
            Err(err) => refuse(&Chain(&err).to_string()),
        },
        Role::SecretsEncrypt(args) => match secrets_encrypt::main(&args) {
            Ok(()) => 0,
            Err(why) => refuse(&why),
        },
        Role::Certificate(args) => said(certificates::main(&args)),
        Role::Status(args) => said(status::main(&args)),
        Role::CheckConfig => config_check::main(),
        Role::Images(args) => said(runtime_tools::images(&args)),
        Role::Ps(args) => said(runtime_tools::ps(&args)),
        Role::Logs(args) => said(runtime_tools::logs(&args)),
        Role::Completion { shell } => {
            clap_complete::generate(shell, &mut Cli::command(), "kedge", &mut std::io::stdout());
            0
        }
    }
}

fn said(done: Result<(), String>) -> i32 {
    match done {
        Ok(()) => 0,
        Err(why) => refuse(&why),
    }
}

/// Becomes another tool; returns the exit code if there is none.
pub(crate) fn tool(name: &str, args: &[OsString]) -> i32 {
    match tools::main(name, args) {
        Ok(()) => 0,
        Err(err) => refuse(&Chain(&err).to_string()),
    }
}

fn refuse(why: &str) -> i32 {
    eprintln!("kedge: {why}");
    1
}

#[allow(clippy::disallowed_methods, reason = "this is the place the ban points to")]
pub(crate) fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// The PATH, on which containerd and runc are looked for.
pub(crate) fn search_path() -> OsString {
    environment("PATH").unwrap_or_else(|| "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned()).into()
}

/// Where systemd waits to hear from us.
pub(crate) fn notify_socket() -> Option<String> {
    environment("NOTIFY_SOCKET")
}

enum Refusal {
    Clap(clap::Error),
    Config(ConfigError),
}

/// Puts environment, file and command line into one list of flags and lets clap judge it.
fn parse(args: Vec<OsString>, env: &dyn Fn(&str) -> Option<String>) -> Result<Cli, Refusal> {
    let overriding = |role: Command| role.args_override_self(true);
    let mut command = Cli::command().mut_subcommand("server", overriding).mut_subcommand("agent", overriding);
    let words: Vec<String> = args.iter().map(|arg| arg.to_string_lossy().into_owned()).collect();
    let mut all: Vec<OsString> = vec!["kedge".into()];
    let role = words.first().cloned().unwrap_or_default();
    if matches!(role.as_str(), "server" | "agent") && !words.iter().any(|word| word == "--help" || word == "-h") {
        let flags = flags_of(&mut command, &role);
        let given = given_flags(&words);
        let named = config_named(&words).or_else(|| env("KEDGE_CONFIG_FILE")).or_else(|| env("K3S_CONFIG_FILE"));
        let path = PathBuf::from(named.as_deref().unwrap_or(CONFIG_FILE));
        let settings = Settings::read(&role, &path, named.is_some(), &flags).map_err(Refusal::Config)?;
        all.push(role.into());
        all.extend(env_args(&flags, &settings, &given, env).map(OsString::from));
        all.extend(settings.to_args(&flags).into_iter().map(OsString::from));
        all.extend(args.into_iter().skip(1));
    } else {
        let cleans = matches!(words.first().map(String::as_str), Some("killall" | "uninstall"));
        let named = given_flags(&words).contains("data-dir") || words.iter().any(|word| word == "-d" || word == "--help" || word == "-h");
        all.extend(args);
        // Where the server was told to keep its data, there it is looked for.
        if cleans && !named {
            // The file may be a server's or an agent's.
            let mut flags = flags_of(&mut command, "server");
            flags.extend(flags_of(&mut command, "agent"));
            let settings = Settings::read("server", Path::new(CONFIG_FILE), false, &flags).map_err(Refusal::Config)?;
            let mut dirs = settings.to_args(&flags).into_iter().filter(|flag| flag.starts_with("--data-dir="));
            let env = env("KEDGE_DATA_DIR").or_else(|| env("K3S_DATA_DIR")).map(|dir| format!("--data-dir={dir}"));
            all.extend(dirs.next_back().or(env).map(OsString::from));
        }
    }
    let matches = command.try_get_matches_from(all).map_err(Refusal::Clap)?;
    Cli::from_arg_matches(&matches).map_err(Refusal::Clap)
}

/// Every flag of a role by its long name, but those that make no sense in a file.
fn flags_of(command: &mut Command, role: &str) -> BTreeMap<String, FlagKind> {
    command.build();
    let arguments = command.find_subcommand(role).map(Command::get_arguments).into_iter().flatten();
    arguments
        .filter_map(|arg| {
            let name = arg.get_long().filter(|name| !matches!(*name, "config" | "help" | "check"))?;
            let kind = match arg.get_action() {
                ArgAction::SetTrue => FlagKind::Switch,
                ArgAction::Append => FlagKind::List,
                _ => FlagKind::Single,
            };
            Some((name.to_owned(), kind))
        })
        .collect()
}

/// The environment's flags: the lowest layer, so only those that neither file nor command line sets.
fn env_args<'a>(
    flags: &'a BTreeMap<String, FlagKind>,
    settings: &'a Settings,
    given: &'a BTreeSet<String>,
    env: &'a dyn Fn(&str) -> Option<String>,
) -> impl Iterator<Item = String> + 'a {
    flags.iter().filter(|(name, _)| !settings.sets(name) && !given.contains(*name)).filter_map(move |(name, kind)| {
        let value = env_names(name).into_iter().find_map(|var| env(&var))?;
        match kind {
            FlagKind::Switch => matches!(value.as_str(), "true" | "1").then(|| format!("--{name}")),
            _ => Some(format!("--{name}={value}")),
        }
    })
}

/// The variables of a flag, ours first: KEDGE_NODE_NAME, K3S_NODE_NAME. k3s names two of them differently, and the server's address URL.
fn env_names(flag: &str) -> [String; 2] {
    let upper = if flag == "server" { "URL".to_owned() } else { flag.to_uppercase().replace('-', "_") };
    let in_k3s = match flag {
        "write-kubeconfig" => "KUBECONFIG_OUTPUT".to_owned(),
        "write-kubeconfig-mode" => "KUBECONFIG_MODE".to_owned(),
        _ => upper.clone(),
    };
    [format!("KEDGE_{upper}"), format!("K3S_{in_k3s}")]
}

fn given_flags(words: &[String]) -> BTreeSet<String> {
    words.iter().filter_map(|word| word.strip_prefix("--")).map(|flag| flag.split('=').next().unwrap_or(flag).to_owned()).collect()
}

fn config_named(words: &[String]) -> Option<String> {
    let mut words = words.iter();
    let mut named = None;
    while let Some(word) = words.next() {
        if let Some(path) = word.strip_prefix("--config=").or_else(|| word.strip_prefix("-c=")) {
            named = Some(path.to_owned());
        } else if word == "--config" || word == "-c" {
            named = words.next().cloned();
        }
    }
    named
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(args: &[&str], vars: &[(&str, &str)]) -> Result<ServerArgs, String> {
        let vars: BTreeMap<String, String> = vars.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let words = ["server"].iter().chain(args).map(OsString::from).collect();
        match parse(words, &|name| vars.get(name).cloned()) {
            Ok(Cli { role: Role::Server(args) }) => Ok(*args),
            Ok(_) => Err("another role".to_owned()),
            Err(Refusal::Clap(err)) => Err(err.to_string()),
            Err(Refusal::Config(err)) => Err(err.to_string()),
        }
    }

    #[test]
    fn the_command_line_wins_over_the_file_and_the_file_over_the_environment() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("config.yaml");
        std::fs::write(&file, "node-name: from-file\ncluster-domain: file.local\ntls-san: [one]\n").unwrap();
        let config = format!("--config={}", file.display());
        let vars = [("K3S_NODE_NAME", "from-env"), ("KEDGE_HTTPS_LISTEN_PORT", "7000"), ("KEDGE_CLUSTER_DOMAIN", "env.local")];
        let args = server(&[&config, "--node-name", "from-cli", "--tls-san=two"], &vars).unwrap();
        assert_eq!(args.node.node_name.as_deref(), Some("from-cli"));
        assert_eq!(args.cluster_domain, "file.local");
        assert_eq!(args.https_listen_port, 7000);
        assert_eq!(args.tls_san, ["one", "two"]);
    }

    #[test]
    fn an_agent_is_told_its_server_as_k3s_users_do() {
        let vars = [("K3S_URL", "https://10.0.0.1:6443"), ("K3S_TOKEN", "secret"), ("KEDGE_NODE_NAME", "edge")];
        let parsed = parse(vec!["agent".into()], &|name| vars.iter().find(|(k, _)| *k == name).map(|(_, v)| (*v).to_owned()));
        let Ok(Cli { role: Role::Agent(args) }) = parsed else { panic!() };
        assert_eq!((args.server.as_str(), args.token.as_deref()), ("https://10.0.0.1:6443", Some("secret")));
        assert_eq!(args.node.node_name.as_deref(), Some("edge"));
    }

    #[test]
    fn wrong_input_names_the_flag() {
        assert!(server(&["--nod-name=x"], &[]).unwrap_err().contains("--nod-name"));
        assert!(server(&["--https-listen-port=70000"], &[]).unwrap_err().contains("--https-listen-port"));
        assert!(server(&["--write-kubeconfig-mode=9"], &[]).unwrap_err().contains("octal"));
        assert!(server(&["--disable=../x"], &[]).unwrap_err().contains("coredns"));
        assert_eq!(server(&["--disable=traefik,coredns"], &[]).unwrap().disable, ["traefik", "coredns"]);
        assert!(server(&["--config=/no/such/file"], &[]).unwrap_err().contains("/no/such/file"));
    }
}
