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

/// A flag that the environment gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FromEnv {
    pub(crate) flag: String,
    /// The variable's name.
    pub(crate) variable: String,
    pub(crate) value: String,
    is_switch: bool,
}

impl FromEnv {
    /// As a word of the command line.
    pub(crate) fn to_arg(&self) -> String {
        if self.is_switch { format!("--{}", self.flag) } else { format!("--{}={}", self.flag, self.value) }
    }
}

/// The environment's flags: the lowest layer, so only those that neither file nor command line sets.
pub(crate) fn env_flags<'a>(
    flags: &'a BTreeMap<String, FlagKind>,
    settings: &'a Settings,
    given: &'a BTreeSet<String>,
    env: &'a dyn Fn(&str) -> Option<String>,
) -> impl Iterator<Item = FromEnv> + 'a {
    flags.iter().filter(|(name, _)| !settings.sets(name) && !given.contains(*name)).filter_map(move |(name, kind)| {
        let (variable, value) = env_names(name).into_iter().find_map(|var| env(&var).map(|value| (var, value)))?;
        let is_switch = *kind == FlagKind::Switch;
        if is_switch && !matches!(value.as_str(), "true" | "1") {
            return None;
        }
        Some(FromEnv { flag: name.clone(), variable, value, is_switch })
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

/// Flags that `kedge snapshot` takes from the server's configuration and the environment: where its state is, and the
/// bucket.
pub(crate) fn is_of_snapshots(flag: &str) -> bool {
    flag.starts_with("etcd-s3") || matches!(flag, "data-dir" | "etcd-snapshot-dir" | "node-name")
}

/// The flags of a role that have a letter, by that.
pub(crate) fn letters_of(command: &mut Command, role: &str) -> BTreeMap<char, String> {
    command.build();
    let arguments = command.find_subcommand(role).map(Command::get_arguments).into_iter().flatten();
    arguments.filter_map(|arg| Some((arg.get_short()?, arg.get_long()?.to_owned()))).collect()
}

/// The flags on a command line, by their long names.
pub(crate) fn given_flags(words: &[String], letters: &BTreeMap<char, String>) -> BTreeSet<String> {
    let long = |word: &String| {
        let flag = word.strip_prefix("--")?;
        Some(flag.split('=').next().unwrap_or(flag).to_owned())
    };
    let short = |word: &String| letters.get(&word.strip_prefix('-')?.chars().next()?).cloned();
    words.iter().filter_map(|word| long(word).or_else(|| short(word))).collect()
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

#[cfg(test)]
mod tests {
    use clap::{Arg, value_parser};

    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    fn flags() -> BTreeMap<String, FlagKind> {
        let server = Command::new("server")
            .arg(Arg::new("node-name").long("node-name"))
            .arg(Arg::new("debug").long("debug").action(ArgAction::SetTrue))
            .arg(Arg::new("tls-san").long("tls-san").action(ArgAction::Append))
            .arg(Arg::new("v").short('v').long("v").value_parser(value_parser!(u8)))
            .arg(Arg::new("config").long("config"))
            .arg(Arg::new("positional"));
        flags_of(&mut Command::new("kedge").subcommand(server), "server")
    }

    #[test]
    fn flags_of_a_role_are_known_with_their_kinds_but_not_those_that_make_no_sense_in_a_file() {
        let wanted = [
            ("debug", FlagKind::Switch),
            ("node-name", FlagKind::Single),
            ("tls-san", FlagKind::List),
            ("v", FlagKind::Single),
        ];
        assert_eq!(flags(), wanted.map(|(name, kind)| (name.to_owned(), kind)).into());
        assert!(flags_of(&mut Command::new("kedge"), "server").is_empty());
    }

    // k3s's names: docs.k3s.io/cli/server, "Environment variable".
    #[test]
    fn variables_of_a_flag_are_ours_then_those_of_k3s_then_those_of_everybody() {
        for (flag, names) in [
            ("node-name", &["KEDGE_NODE_NAME", "K3S_NODE_NAME"][..]),
            ("server", &["KEDGE_URL", "K3S_URL"]),
            ("token", &["KEDGE_TOKEN", "K3S_TOKEN"]),
            ("write-kubeconfig", &["KEDGE_WRITE_KUBECONFIG", "K3S_KUBECONFIG_OUTPUT"]),
            ("write-kubeconfig-mode", &["KEDGE_WRITE_KUBECONFIG_MODE", "K3S_KUBECONFIG_MODE"]),
            ("write-kubeconfig-group", &["KEDGE_WRITE_KUBECONFIG_GROUP", "K3S_KUBECONFIG_GROUP"]),
            ("etcd-s3-access-key", &["KEDGE_ETCD_S3_ACCESS_KEY", "K3S_ETCD_S3_ACCESS_KEY", "AWS_ACCESS_KEY_ID"]),
            ("etcd-s3-secret-key", &["KEDGE_ETCD_S3_SECRET_KEY", "K3S_ETCD_S3_SECRET_KEY", "AWS_SECRET_ACCESS_KEY"]),
            (
                "etcd-s3-session-token",
                &["KEDGE_ETCD_S3_SESSION_TOKEN", "K3S_ETCD_S3_SESSION_TOKEN", "AWS_SESSION_TOKEN"],
            ),
        ] {
            assert_eq!(env_names(flag), names);
        }
    }

    #[test]
    fn the_environment_fills_in_what_nobody_else_says() {
        let flags = flags();
        let args = |env: &dyn Fn(&str) -> Option<String>, given: &str| -> Vec<String> {
            let given = given_flags(&words(given), &BTreeMap::new());
            env_flags(&flags, &Settings::default(), &given, env).map(|from| from.to_arg()).collect()
        };
        let env = |name: &str| match name {
            "K3S_NODE_NAME" => Some("edge".to_owned()),
            "KEDGE_DEBUG" => Some("1".to_owned()),
            _ => None,
        };
        assert_eq!(args(&env, ""), ["--debug", "--node-name=edge"]);
        assert_eq!(args(&env, "--node-name=mine"), ["--debug"]);
        assert!(args(&|name| (name == "KEDGE_DEBUG").then(|| "false".to_owned()), "").is_empty());
        let both = |name: &str| name.ends_with("_NODE_NAME").then(|| name.to_owned());
        assert_eq!(args(&both, ""), ["--node-name=KEDGE_NODE_NAME"]);
    }

    #[test]
    fn the_file_of_settings_is_the_one_that_was_named_last() {
        for (text, named) in [
            ("server", None),
            ("server --config /a", Some("/a")),
            ("server -c /a --config=/b", Some("/b")),
            ("server -c=/c", Some("/c")),
            ("server --config", None),
        ] {
            assert_eq!(config_named(&words(text)).as_deref(), named, "{text}");
        }
    }

    #[test]
    fn a_flag_is_given_by_its_long_name_or_its_letter() {
        let letters = BTreeMap::from([('v', "v".to_owned()), ('i', "node-ip".to_owned())]);
        for (text, given) in [
            ("server --node-name=a --debug --tls-san b", &["debug", "node-name", "tls-san"][..]),
            ("server -v 4 -i=10.0.0.1", &["node-ip", "v"]),
            ("server -i10.0.0.1 -x -", &["node-ip"]),
        ] {
            assert_eq!(given_flags(&words(text), &letters).into_iter().collect::<Vec<_>>(), given, "{text}");
        }
    }

    #[test]
    fn snapshots_need_the_state_and_the_bucket_alone() {
        let of = ["data-dir", "etcd-snapshot-dir", "node-name", "etcd-s3", "etcd-s3-bucket"];
        assert!(of.iter().all(|flag| is_of_snapshots(flag)));
        assert!(["token", "etcd-snapshot-retention", "server"].iter().all(|flag| !is_of_snapshots(flag)));
    }
}
