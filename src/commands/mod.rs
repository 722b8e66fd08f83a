//! The command line: one subcommand a role or command, and what each ends with.

pub(crate) mod admin;
pub(crate) mod bundle;
pub(crate) mod certificate;
pub(crate) mod check_config;
pub(crate) mod cleanup;
pub(crate) mod columns;
pub(crate) mod config_view;
pub(crate) mod containers;
mod error;
pub(crate) mod kubeconfig;
pub(crate) mod local_path;
pub(crate) mod man;
#[cfg(test)]
mod pages;
pub(crate) mod parse;
pub(crate) mod pause;
pub(crate) mod rotate_ca;
pub(crate) mod secrets_encrypt;
pub(crate) mod snapshot;
pub(crate) mod status;
pub(crate) mod token;
pub(crate) mod tools;
pub(crate) mod why;

use std::ffi::OsString;
use std::path::PathBuf;

use base::chain::Chain;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args, CommandFactory as _, Parser, Subcommand};

use crate::commands::cleanup::{KillallArgs, UninstallArgs};
use crate::commands::error::CommandError;
use crate::commands::parse::{Refusal, parse};
use crate::commands::token::TokenArgs;
use crate::flags::environment::environment;
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
    /// Show the settings in force.
    Config(config_view::ConfigArgs),
    /// Make, list and revoke kubeconfigs for people.
    Kubeconfig(kubeconfig::KubeconfigArgs),
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
    /// Write the manual's pages into a folder.
    Man {
        /// The folder, such as /usr/local/share/man/man8.
        folder: PathBuf,
    },
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
        Role::Config(args) => config_view::main(&args)?,
        Role::Kubeconfig(args) => kubeconfig::main(&args)?,
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
        Role::Man { folder } => println!("{} pages are in {}", man::write(&folder)?, folder.display()),
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
