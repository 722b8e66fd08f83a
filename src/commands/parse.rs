//! The words that clap judges: environment, files of settings and the command line in one list.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::Path;

use base::layout::{CONFIG_FILE, K3S_CONFIG_FILE};
use clap::{Command, CommandFactory as _, FromArgMatches as _};

use crate::commands::{Cli, Role};
use crate::flags::config_file::{ConfigError, FlagKind, Settings};
use crate::flags::config_source::MainFile;
use crate::flags::layers::{FromEnv, config_named, env_flags, flags_of, given_flags, is_of_snapshots, letters_of};
use crate::flags::roles::CommonArgs;

/// Why a command line does not say what to do.
pub(crate) enum Refusal {
    Clap(clap::Error),
    Config(ConfigError),
}

/// The environment, as a function.
pub(crate) type Env<'a> = &'a dyn Fn(&str) -> Option<String>;

/// A role's settings in their layers.
pub(crate) struct Layers {
    pub(crate) flags: BTreeMap<String, FlagKind>,
    pub(crate) settings: Settings,
    pub(crate) from_env: Vec<FromEnv>,
    /// Flags of the command line, by their long names.
    pub(crate) given: BTreeSet<String>,
}

impl Layers {
    /// Reads what stands behind the words of a role's command line; the first of them is the role.
    pub(crate) fn read(words: &[String], env: Env<'_>) -> Result<Layers, ConfigError> {
        let mut command = Cli::command();
        let role = words.first().map_or("", String::as_str);
        let flags = flags_of(&mut command, role);
        let given = given_flags(words, &letters_of(&mut command, role));
        let settings = read_settings(role, words, env, &flags)?;
        let from_env = env_flags(&flags, &settings, &given, env).collect();
        Ok(Layers { flags, settings, from_env, given })
    }

    /// As words of a command line that stand before the person's own.
    pub(super) fn to_args(&self) -> impl Iterator<Item = OsString> + '_ {
        let from_env = self.from_env.iter().map(FromEnv::to_arg);
        from_env.chain(self.settings.to_args(&self.flags)).map(OsString::from)
    }
}

/// The settings of the file that is named, or of the usual one.
fn read_settings(
    role: &str,
    words: &[String],
    env: Env<'_>,
    flags: &BTreeMap<String, FlagKind>,
) -> Result<Settings, ConfigError> {
    let named = config_named(words).or_else(|| env("KEDGE_CONFIG_FILE")).or_else(|| env("K3S_CONFIG_FILE"));
    let usual = usual();
    let main = named.as_deref().map_or(MainFile::Usual(&usual), |path| MainFile::Named(Path::new(path)));
    Settings::read(role, main, flags)
}

/// Where a file of settings is looked for.
fn usual() -> [&'static Path; 2] {
    [Path::new(CONFIG_FILE), Path::new(K3S_CONFIG_FILE)]
}

/// Words as text, to look for flags in them.
pub(super) fn to_words(args: &[OsString]) -> Vec<String> {
    args.iter().map(|arg| arg.to_string_lossy().into_owned()).collect()
}

/// Puts environment, file and command line into one list of flags and lets clap judge it.
pub(super) fn parse(args: Vec<OsString>, env: Env<'_>) -> Result<Cli, Refusal> {
    let overriding = |role: Command| role.args_override_self(true);
    let command = Cli::command()
        .mut_subcommand("server", overriding)
        .mut_subcommand("agent", overriding)
        .mut_subcommand("snapshot", overriding);
    let words = to_words(&args);
    let role = words.first().map_or("", String::as_str);
    let asks = words.iter().any(|word| word == "--help" || word == "-h");
    let mut all: Vec<OsString> = vec!["kedge".into()];
    let mut layers = None;
    match role {
        "server" | "agent" if !asks => {
            let read = Layers::read(&words, env).map_err(Refusal::Config)?;
            all.push(role.into());
            all.extend(read.to_args());
            all.extend(args.into_iter().skip(1));
            layers = Some(read);
        }
        "snapshot" | "etcd-snapshot" if words.len() > 1 => {
            all.push(role.into());
            all.extend(of_snapshots(&words, env).map_err(Refusal::Config)?);
            all.extend(args.into_iter().skip(1));
        }
        "killall" | "uninstall" | "bundle" if !asks => {
            all.extend(args);
            all.extend(data_dir(&words, env).map_err(Refusal::Config)?);
        }
        _ => all.extend(args),
    }
    let matches = command.try_get_matches_from(all).map_err(Refusal::Clap)?;
    let mut cli = Cli::from_arg_matches(&matches).map_err(Refusal::Clap)?;
    if let Some(layers) = layers {
        match &mut cli.role {
            Role::Server(args) => tell(&mut args.common, &layers),
            Role::Agent(args) => tell(&mut args.common, &layers),
            _ => {}
        }
    }
    Ok(cli)
}

/// Writes down what clap does not see: which file was read, and which switches it turns off.
fn tell(common: &mut CommonArgs, layers: &Layers) {
    common.switched_off = layers.settings.switched_off(&layers.flags);
    let k3s = layers.settings.files().iter().find(|file| file.starts_with("/etc/rancher/k3s"));
    if let Some(file) = k3s {
        common.notes.push(format!("settings are read from {}, as there is no {CONFIG_FILE}", file.display()));
    }
}

/// Flags that `kedge snapshot` takes from a server's settings.
fn of_snapshots(words: &[String], env: Env<'_>) -> Result<Vec<OsString>, ConfigError> {
    let flags = flags_of_both();
    let named = config_named(words).or_else(|| env("KEDGE_CONFIG_FILE")).or_else(|| env("K3S_CONFIG_FILE"));
    let (named, usual) = (named.as_deref().map(|path| [Path::new(path)]), usual());
    let main = MainFile::Usual(named.as_ref().map_or(&usual, |named| named));
    let settings = Settings::read("server", main, &flags)?;
    // Those of the command line stand in a later word, and win.
    let none = BTreeSet::new();
    let of_env = env_flags(&flags, &settings, &none, env).map(|from| from.to_arg());
    let known = of_env.chain(settings.to_args(&flags));
    let is_known = |arg: &String| is_of_snapshots(arg.trim_start_matches("--").split('=').next().unwrap_or_default());
    Ok(known.filter(is_known).map(OsString::from).collect())
}

/// Where the server was told to keep its data, there a cleanup looks for it.
fn data_dir(words: &[String], env: Env<'_>) -> Result<Option<OsString>, ConfigError> {
    let role = words.first().map_or("", String::as_str);
    if given_flags(words, &letters_of(&mut Cli::command(), role)).contains("data-dir") {
        return Ok(None);
    }
    let flags = flags_of_both();
    let settings = Settings::read("server", MainFile::Usual(&usual()), &flags)?;
    let mut dirs = settings.to_args(&flags).into_iter().filter(|flag| flag.starts_with("--data-dir="));
    let env = env("KEDGE_DATA_DIR").or_else(|| env("K3S_DATA_DIR")).map(|dir| format!("--data-dir={dir}"));
    Ok(dirs.next_back().or(env).map(OsString::from))
}

/// The file may be a server's or an agent's.
fn flags_of_both() -> BTreeMap<String, FlagKind> {
    let mut command = Cli::command();
    let mut flags = flags_of(&mut command, "server");
    flags.extend(flags_of(&mut command, "agent"));
    flags
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flags::roles::ServerArgs;

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
