//! The command line: one subcommand a role or command, and what each ends with.

pub(crate) mod admin;
pub(crate) mod bundle;
pub(crate) mod certificate;
pub(crate) mod check_config;
pub(crate) mod cleanup;
pub(crate) mod columns;
pub(crate) mod containers;
mod error;
pub(crate) mod local_path;
pub(crate) mod pause;
pub(crate) mod rotate_ca;
pub(crate) mod secrets_encrypt;
pub(crate) mod snapshot;
pub(crate) mod status;
pub(crate) mod token;
pub(crate) mod tools;
pub(crate) mod why;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::Path;

use base::chain::Chain;
use base::layout::CONFIG_FILE;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args, Command, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

use crate::commands::cleanup::{KillallArgs, UninstallArgs};
use crate::commands::error::CommandError;
use crate::commands::token::TokenArgs;
use crate::flags::config_file::{ConfigError, MainFile, Settings};
use crate::flags::environment::environment;
use crate::flags::layers::{config_named, env_args, flags_of, given_flags, is_of_snapshots, letters_of};
use crate::flags::refused;
use crate::flags::roles::{AgentArgs, ServerArgs};
use crate::process::version::VERSION;
use crate::{agent, server};

/// Kubernetes in one small binary.
#[derive(Debug, Parser)]
#[command(name = "kedge", version = VERSION, disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    role: Role,
}

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
    /// Remove kedge from this machine: stop everything, then take away the service, the data and the program. Volumes
    /// stay.
    Uninstall(UninstallArgs),
    /// Take, list, delete and restore snapshots of the server's state.
    #[command(visible_alias = "etcd-snapshot")]
    Snapshot(Box<snapshot::SnapshotArgs>),
    /// Show when certificates end, and have them made anew.
    Certificate(certificate::CertificateArgs),
    /// Show how this machine and its cluster are, what is wrong and what to do about it.
    Status(status::StatusArgs),
    /// Show what an object waits for, and what to do about it.
    Why(why::WhyArgs),
    /// Tell whether this machine can run kedge: kernel, cgroups, nftables, containerd. Fails if something needed is
    /// missing.
    CheckConfig,
    /// List the images of this node's containerd.
    Images(containers::ImagesArgs),
    /// List the containers of this node's containerd.
    Ps(containers::PsArgs),
    /// Print the log of a container of this node, named by its id or by its pod, without asking the API.
    Logs(containers::LogsArgs),
    /// Make, check and apply bundles: one file with kedge, its runtime and images, for a machine without a network.
    Bundle(Box<bundle::BundleArgs>),
    /// Look after the encryption of Secrets at rest.
    SecretsEncrypt(secrets_encrypt::SecretsEncryptArgs),
    /// Print a completion script for a shell.
    Completion {
        /// The shell to print for.
        shell: clap_complete::Shell,
    },
}

/// Arguments that a tool is given as they are.
#[derive(Clone, Debug, Args)]
#[command(disable_help_flag = true)]
pub(crate) struct ToolArgs {
    /// The tool's own arguments.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<OsString>,
}

/// Parses the command line and runs what it names. Returns the process's exit code.
pub(crate) fn main(args: Vec<OsString>) -> i32 {
    let ran = match parse(args, &environment) {
        Ok(cli) => run(cli.role),
        Err(Refusal::Clap(err)) => match refused_flag(&err) {
            Some((flag, why)) => Err(CommandError::RefusedFlag { flag: flag.to_owned(), why }),
            None => {
                // Broken standard output leaves nobody to tell.
                let _printed = err.print();
                return i32::from(!matches!(err.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion));
            }
        },
        Err(Refusal::Config(err)) => Err(err.into()),
    };
    code_of(ran)
}

/// Says why a command failed, if it has.
fn code_of(ran: Result<(), CommandError>) -> i32 {
    let Err(err) = ran else { return 0 };
    if !matches!(err, CommandError::Unfit) {
        eprintln!("kedge: {}", Chain(&err));
    }
    1
}

fn run(role: Role) -> Result<(), CommandError> {
    match role {
        Role::Server(args) => server::main(*args)?,
        Role::Agent(args) => agent::role::main(*args)?,
        Role::Token(args) => token::main(&args)?,
        Role::Kubectl(args) => tools::main("kubectl", &args.args)?,
        Role::Crictl(args) => tools::main("crictl", &args.args)?,
        Role::Ctr(args) => tools::main("ctr", &args.args)?,
        Role::Killall(args) => cleanup::killall(&args)?,
        Role::Uninstall(args) => cleanup::uninstall(&args)?,
        Role::Snapshot(args) => snapshot::main(*args)?,
        Role::Bundle(args) => bundle::main(&args)?,
        Role::SecretsEncrypt(args) => secrets_encrypt::main(&args)?,
        Role::Certificate(args) => certificate::main(&args)?,
        Role::Status(args) => status::main(&args)?,
        Role::Why(args) => why::main(&args)?,
        Role::CheckConfig if check_config::is_fit() => {}
        Role::CheckConfig => return Err(CommandError::Unfit),
        Role::Images(args) => containers::images(&args)?,
        Role::Ps(args) => containers::ps(&args)?,
        Role::Logs(args) => containers::logs(&args)?,
        Role::Completion { shell } => {
            clap_complete::generate(shell, &mut Cli::command(), "kedge", &mut std::io::stdout())
        }
    }
    Ok(())
}

/// The flag of k3s that has no place here, if that is what clap stumbled upon.
fn refused_flag(err: &clap::Error) -> Option<(&str, &'static str)> {
    match err.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(flag)) if err.kind() == ErrorKind::UnknownArgument => {
            Some((flag, refused::why(flag)?))
        }
        _ => None,
    }
}

/// Becomes another tool. Returns the exit code if there is none.
pub(crate) fn tool(name: &str, args: &[OsString]) -> i32 {
    code_of(tools::main(name, args).map_err(Into::into))
}

enum Refusal {
    Clap(clap::Error),
    Config(ConfigError),
}

/// Puts environment, file and command line into one list of flags and lets clap judge it.
fn parse(args: Vec<OsString>, env: &dyn Fn(&str) -> Option<String>) -> Result<Cli, Refusal> {
    let overriding = |role: Command| role.args_override_self(true);
    let mut command = Cli::command()
        .mut_subcommand("server", overriding)
        .mut_subcommand("agent", overriding)
        .mut_subcommand("snapshot", overriding);
    let words: Vec<String> = args.iter().map(|arg| arg.to_string_lossy().into_owned()).collect();
    let mut all: Vec<OsString> = vec!["kedge".into()];
    let role = words.first().cloned().unwrap_or_default();
    if matches!(role.as_str(), "server" | "agent") && !words.iter().any(|word| word == "--help" || word == "-h") {
        let flags = flags_of(&mut command, &role);
        let given = given_flags(&words, &letters_of(&mut command, &role));
        let named = config_named(&words).or_else(|| env("KEDGE_CONFIG_FILE")).or_else(|| env("K3S_CONFIG_FILE"));
        let main =
            named.as_deref().map_or(MainFile::Usual(Path::new(CONFIG_FILE)), |path| MainFile::Named(Path::new(path)));
        let settings = Settings::read(&role, main, &flags).map_err(Refusal::Config)?;
        all.push(role.into());
        all.extend(env_args(&flags, &settings, &given, env).map(OsString::from));
        all.extend(settings.to_args(&flags).into_iter().map(OsString::from));
        all.extend(args.into_iter().skip(1));
    } else if matches!(role.as_str(), "snapshot" | "etcd-snapshot") && words.len() > 1 {
        let mut flags = flags_of(&mut command, "server");
        // The file may be an agent's, whose commands say that there is no server.
        flags.extend(flags_of(&mut command, "agent"));
        let named = config_named(&words).or_else(|| env("KEDGE_CONFIG_FILE")).or_else(|| env("K3S_CONFIG_FILE"));
        let settings =
            Settings::read("server", MainFile::Usual(Path::new(named.as_deref().unwrap_or(CONFIG_FILE))), &flags);
        let settings = settings.map_err(Refusal::Config)?;
        // Those of the command line stand in a later word, and win.
        let none = BTreeSet::new();
        let of_env = env_args(&flags, &settings, &none, env);
        let known: Vec<String> = of_env.chain(settings.to_args(&flags)).collect();
        all.push(role.into());
        all.extend(
            known
                .into_iter()
                .filter(|arg| is_of_snapshots(arg.trim_start_matches("--").split('=').next().unwrap_or_default()))
                .map(OsString::from),
        );
        all.extend(args.into_iter().skip(1));
    } else {
        let cleans = matches!(words.first().map(String::as_str), Some("killall" | "uninstall" | "bundle"));
        let asks = words.iter().any(|word| word == "--help" || word == "-h");
        let is_named = cleans && given_flags(&words, &letters_of(&mut command, &role)).contains("data-dir");
        all.extend(args);
        // Where the server was told to keep its data, there it is looked for.
        if cleans && !asks && !is_named {
            // The file may be a server's or an agent's.
            let mut flags = flags_of(&mut command, "server");
            flags.extend(flags_of(&mut command, "agent"));
            let settings =
                Settings::read("server", MainFile::Usual(Path::new(CONFIG_FILE)), &flags).map_err(Refusal::Config)?;
            let mut dirs = settings.to_args(&flags).into_iter().filter(|flag| flag.starts_with("--data-dir="));
            let env = env("KEDGE_DATA_DIR").or_else(|| env("K3S_DATA_DIR")).map(|dir| format!("--data-dir={dir}"));
            all.extend(dirs.next_back().or(env).map(OsString::from));
        }
    }
    let matches = command.try_get_matches_from(all).map_err(Refusal::Clap)?;
    Cli::from_arg_matches(&matches).map_err(Refusal::Clap)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

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
        let vars =
            [("K3S_NODE_NAME", "from-env"), ("KEDGE_HTTPS_LISTEN_PORT", "7000"), ("KEDGE_CLUSTER_DOMAIN", "env.local")];
        let args = server(&[&config, "--node-name", "from-cli", "--tls-san=two"], &vars).unwrap();
        assert_eq!(args.node.node_name.as_deref(), Some("from-cli"));
        assert_eq!(args.cluster_domain, "file.local");
        assert_eq!(args.https_listen_port, 7000);
        assert_eq!(args.tls_san, ["one", "two"]);
    }

    #[test]
    fn an_agent_is_told_its_server_as_k3s_users_do() {
        let vars = [("K3S_URL", "https://10.0.0.1:6443"), ("K3S_TOKEN", "secret"), ("KEDGE_NODE_NAME", "edge")];
        let parsed =
            parse(vec!["agent".into()], &|name| vars.iter().find(|(k, _)| *k == name).map(|(_, v)| (*v).to_owned()));
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
        assert!(server(&["--egress-selector-mode=pod"], &[]).unwrap_err().contains("agent"));
        assert!(
            server(&["--snapshotter=native", "--container-runtime-endpoint=/run/x.sock"], &[])
                .unwrap_err()
                .contains("--snapshotter")
        );
        assert_eq!(server(&["--disable=traefik,coredns"], &[]).unwrap().disable, ["traefik", "coredns"]);
        assert!(server(&["--config=/no/such/file"], &[]).unwrap_err().contains("/no/such/file"));
    }

    // A list that stands in the environment, too, was added to: two addresses of one family are refused.
    #[test]
    fn a_flag_by_its_letter_wins_over_the_environment() {
        let args = server(&["-i", "10.0.0.1"], &[("K3S_NODE_IP", "10.0.0.2"), ("K3S_URL", "https://a:6443")]).unwrap();
        assert_eq!(args.node.node_ip, [std::net::IpAddr::from([10, 0, 0, 1])]);
        assert_eq!(args.server.as_deref(), Some("https://a:6443"));
    }

    // Clap refused the flag as given twice.
    #[test]
    fn a_cleanup_takes_the_folder_that_is_named_in_any_form() {
        let env = |name: &str| (name == "KEDGE_DATA_DIR").then(|| "/of/the/environment".to_owned());
        for words in [&["-d", "/srv/x"][..], &["-d=/srv/x"], &["-d/srv/x"], &["--data-dir=/srv/x"]] {
            let words = ["killall"].iter().chain(words).map(OsString::from).collect();
            let Ok(Cli { role: Role::Killall(args) }) = parse(words, &env) else { panic!() };
            assert_eq!(args.state.layout.to_string(), "/srv/x");
        }
        let Ok(Cli { role: Role::Killall(args) }) = parse(vec!["killall".into()], &env) else { panic!() };
        assert_eq!(args.state.layout.to_string(), "/of/the/environment");
    }

    // security.md S10: the kernel's table of mounts names no relative folder.
    #[test]
    fn the_data_folder_is_absolute_and_spelt_in_one_way() {
        let text = |args: ServerArgs| args.common.state.layout.to_string();
        let of = |folder: &str| server(&[&format!("--data-dir={folder}")], &[]).map(text);
        let here = std::env::current_dir().unwrap();
        let here = here.to_str().unwrap();
        assert_eq!(of("state"), Ok(format!("{here}/state")));
        assert_eq!(of("./state/.//db/"), Ok(format!("{here}/state/db")));
        assert_eq!(of("/srv/kedge/"), Ok("/srv/kedge".to_owned()));
        assert_eq!(server(&[], &[("K3S_DATA_DIR", "state")]).map(text), Ok(format!("{here}/state")));
        for folder in ["../state", "/srv/../etc", "state/.."] {
            assert!(of(folder).unwrap_err().contains("must not contain '..'"), "{folder}");
        }
    }
}
