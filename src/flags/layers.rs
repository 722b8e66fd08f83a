//! Flags in layers, with the precedence that k3s has: command line, then drop-ins, then the file, then the environment.
//! KEDGE_* is ours, K3S_* an alias.

use std::collections::{BTreeMap, BTreeSet};

use clap::Command;
use clap::builder::ArgAction;

use crate::flags::config_file::{FlagKind, Settings};

/// Every flag of a role by its long name, but those that make no sense in a file.
pub(crate) fn flags_of(command: &mut Command, role: &str) -> BTreeMap<String, FlagKind> {
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
pub(crate) fn env_args<'a>(
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

/// The variables of a flag, ours first: KEDGE_NODE_NAME, K3S_NODE_NAME. k3s names some differently: the server's
/// address URL, and keys of S3 as everybody does.
fn env_names(flag: &str) -> Vec<String> {
    let upper = if flag == "server" { "URL".to_owned() } else { flag.to_uppercase().replace('-', "_") };
    let in_k3s = match flag {
        "write-kubeconfig" => "KUBECONFIG_OUTPUT".to_owned(),
        "write-kubeconfig-mode" => "KUBECONFIG_MODE".to_owned(),
        "write-kubeconfig-group" => "KUBECONFIG_GROUP".to_owned(),
        _ => upper.clone(),
    };
    let everywhere = match flag {
        "etcd-s3-access-key" => Some("AWS_ACCESS_KEY_ID"),
        "etcd-s3-secret-key" => Some("AWS_SECRET_ACCESS_KEY"),
        "etcd-s3-session-token" => Some("AWS_SESSION_TOKEN"),
        _ => None,
    };
    [format!("KEDGE_{upper}"), format!("K3S_{in_k3s}")].into_iter().chain(everywhere.map(str::to_owned)).collect()
}

/// What `kedge snapshot` takes from the server's configuration and the environment: where its state is, and the bucket.
pub(crate) fn is_of_snapshots(flag: &str) -> bool {
    flag.starts_with("etcd-s3") || matches!(flag, "data-dir" | "etcd-snapshot-dir" | "node-name")
}

pub(crate) fn given_flags(words: &[String]) -> BTreeSet<String> {
    words
        .iter()
        .filter_map(|word| word.strip_prefix("--"))
        .map(|flag| flag.split('=').next().unwrap_or(flag).to_owned())
        .collect()
}

pub(crate) fn config_named(words: &[String]) -> Option<String> {
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
