//! `kedge config view`: every flag in force, its value, and where that comes from.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::parser::ValueSource;
use clap::{ArgMatches, Args, Command, CommandFactory as _, FromArgMatches as _, Subcommand, ValueEnum};
use serde_json::{Value, json};

use crate::commands::columns::columns;
use crate::commands::parse::{Env, Layers, to_words};
use crate::commands::{Cli, Role};
use crate::flags::config_file::{ConfigError, FlagKind};
use crate::flags::environment::environment;
use crate::flags::profile::{self, Added};

/// Flags of `kedge config`.
#[derive(Clone, Debug, Args)]
pub(crate) struct ConfigArgs {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Clone, Debug, Subcommand)]
enum Verb {
    /// Show every flag in force, its value, and where that comes from: a flag, the environment, a line of a file, a
    /// profile, or nobody. Of the server or agent that runs on this machine, or else of the next that is started.
    View {
        /// Whose flags (default: those of the process that runs, or else a server's).
        role: Option<RoleName>,
        /// Configuration file of the next that is started.
        #[arg(short, long, value_name = "FILE")]
        config: Option<PathBuf>,
        /// The process to look at, where several run.
        #[arg(long, value_name = "PID", conflicts_with = "config")]
        pid: Option<u32>,
        /// Form of the output.
        #[arg(short, long, default_value = "text")]
        output: Form,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum RoleName {
    Server,
    Agent,
}

impl RoleName {
    fn text(self) -> &'static str {
        match self {
            RoleName::Server => "server",
            RoleName::Agent => "agent",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Form {
    Text,
    Json,
    Yaml,
}

/// Why settings cannot be shown.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ViewError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("the next start would be refused: {0}")]
    Flags(String),
    #[error("several run here ({0}): choose one with --pid")]
    Several(String),
    #[error("process {0} is no kedge server or agent, or is not ours to look at: run this as root")]
    Process(u32),
}

/// A value in force, and where it comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Shown {
    flag: String,
    value: String,
    from: String,
}

/// Runs the command.
pub(crate) fn main(args: &ConfigArgs) -> Result<(), ViewError> {
    let Verb::View { role, config, pid, output } = &args.verb;
    let running = if config.is_some() { None } else { running(*pid, *role)? };
    let shown = match &running {
        Some(process) => {
            let env = |name: &str| process.env.get(name).cloned().filter(|value| !value.is_empty());
            view(&process.args, &env)?
        }
        None => {
            let role = role.unwrap_or(RoleName::Server).text();
            let mut words: Vec<OsString> = vec![role.into()];
            words.extend(config.iter().map(|path| {
                let mut word = OsString::from("--config=");
                word.push(path);
                word
            }));
            view(&words, &environment)?
        }
    };
    match output {
        Form::Text => {
            match &running {
                Some(process) => eprintln!("Of process {}, by its files as they are now:", process.pid),
                None => eprintln!("Of the next start:"),
            }
            let head = ["FLAG", "VALUE", "FROM"].map(str::to_owned);
            let rows = shown.into_iter().map(|one| [one.flag, one.value, one.from]);
            print!("{}", columns(std::iter::once(head).chain(rows)));
        }
        Form::Json => println!("{:#}", to_json(&shown)),
        Form::Yaml => print!("{}", serde_saphyr::to_string(&to_json(&shown)).unwrap_or_default()),
    }
    Ok(())
}

fn to_json(shown: &[Shown]) -> Value {
    shown.iter().map(|one| json!({"flag": one.flag, "value": one.value, "from": one.from})).collect()
}

/// Every flag of the role that the first word names.
fn view(words: &[OsString], env: Env<'_>) -> Result<Vec<Shown>, ViewError> {
    let texts = to_words(words);
    let layers = Layers::read(&texts, env)?;
    let role = texts.first().map_or("", String::as_str);
    let matches = judged(role, words, &layers)?;
    let added = of_profile(&matches);
    let mut command = Cli::command();
    command.build();
    let sub = matches.subcommand_matches(role);
    let arguments = command.find_subcommand(role).map(Command::get_arguments).into_iter().flatten();
    let mut shown = Vec::new();
    for argument in arguments {
        let (Some(flag), Some(sub)) = (argument.get_long(), sub) else { continue };
        if !layers.flags.contains_key(flag) {
            continue;
        }
        let values = values_of(sub, argument.get_id().as_str(), layers.flags.get(flag).copied());
        let by_default = sub.value_source(argument.get_id().as_str()) == Some(ValueSource::DefaultValue);
        let of_profile = added.iter().filter(|added| added.flag == flag);
        let from_profile =
            of_profile.map(|added| Shown { flag: flag.to_owned(), value: added.value.clone(), from: "profile".into() });
        let from_profile: Vec<Shown> = from_profile.collect();
        let is_switch = layers.flags.get(flag) == Some(&FlagKind::Switch);
        // What a profile turns on, nobody else has.
        if from_profile.is_empty() || !is_switch {
            let origins = if by_default { Vec::new() } else { origins(flag, &values, &layers) };
            let rows = values.iter().enumerate().map(|(idx, value)| Shown {
                flag: flag.to_owned(),
                value: masked(flag, value.clone()),
                from: origins.get(idx).cloned().unwrap_or_else(|| "default".to_owned()),
            });
            shown.extend(rows);
        }
        shown.extend(from_profile);
    }
    shown.sort_by(|a, b| a.flag.cmp(&b.flag));
    Ok(shown)
}

/// All layers, as clap sees them.
fn judged(role: &str, words: &[OsString], layers: &Layers) -> Result<ArgMatches, ViewError> {
    let command = Cli::command().mut_subcommand(role, |role| role.args_override_self(true));
    let all = [OsString::from("kedge"), role.into()].into_iter().chain(layers.to_args());
    let all = all.chain(words.iter().skip(1).cloned());
    command.try_get_matches_from(all).map_err(|err| ViewError::Flags(err.to_string().trim_end().to_owned()))
}

fn of_profile(matches: &ArgMatches) -> Vec<Added> {
    match Cli::from_arg_matches(matches).map(|cli| cli.role) {
        Ok(Role::Server(args)) => profile::of_server(&args),
        Ok(Role::Agent(args)) => profile::of_agent(&args),
        _ => Vec::new(),
    }
}

/// The values of a flag; one that is not given and has no default has none, which is shown as a blank.
fn values_of(matches: &ArgMatches, id: &str, kind: Option<FlagKind>) -> Vec<String> {
    if kind == Some(FlagKind::Switch) {
        return vec![matches.get_flag(id).to_string()];
    }
    let raw = matches.get_raw(id).into_iter().flatten();
    let values: Vec<String> = raw.map(|value| value.to_string_lossy().into_owned()).collect();
    if values.is_empty() { vec![String::new()] } else { values }
}

/// Where each of the values comes from: those of the environment stand first, then those of files, then the command
/// line's.
fn origins(flag: &str, values: &[String], layers: &Layers) -> Vec<String> {
    let mut all = Vec::new();
    for from in layers.from_env.iter().filter(|from| from.flag == flag) {
        all.extend(pieces(&from.value).map(|_| format!("env {}", from.variable)));
    }
    for setting in layers.settings.of(flag) {
        let from = format!("{}:{}", setting.file.display(), setting.line);
        all.extend(pieces(&setting.value).map(|_| from.clone()));
    }
    let is_list = layers.flags.get(flag) == Some(&FlagKind::List);
    if !layers.given.contains(flag) {
        // A value without commas of its own is one, whatever its text.
        let last = all.last().cloned();
        return if is_list && all.len() == values.len() {
            all
        } else {
            vec![last.unwrap_or_else(|| "default".to_owned()); values.len()]
        };
    }
    let before = if is_list { layers.settings.of(flag).len() } else { 0 };
    let file = layers.settings.of(flag).iter().map(|setting| format!("{}:{}", setting.file.display(), setting.line));
    file.take(before).chain(std::iter::repeat("flag".to_owned())).take(values.len()).collect()
}

/// The parts that a list with commas is cut into.
fn pieces(text: &str) -> impl Iterator<Item = &str> {
    text.split(',')
}

/// Shown in place of a secret.
const MASK: &str = "********";

/// A value as a person may read it on a screen.
fn masked(flag: &str, value: String) -> String {
    let secret = matches!(
        flag,
        "token"
            | "agent-token"
            | "etcd-s3-access-key"
            | "etcd-s3-secret-key"
            | "etcd-s3-session-token"
            | "etcd-s3-proxy"
    );
    if secret && !value.is_empty() { MASK.to_owned() } else { value.escape_debug().to_string() }
}

/// A server or agent that runs on this machine.
struct Process {
    pid: u32,
    /// Its command line, from the role on.
    args: Vec<OsString>,
    env: BTreeMap<String, String>,
}

/// The process to look at: `None` where none runs.
fn running(pid: Option<u32>, role: Option<RoleName>) -> Result<Option<Process>, ViewError> {
    if let Some(pid) = pid {
        return process(pid).map(Some).ok_or(ViewError::Process(pid));
    }
    let pids = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let is_meant = |process: &Process| {
        role.is_none_or(|role| process.args.first().is_some_and(|first| first.to_string_lossy() == role.text()))
    };
    let mut found: Vec<Process> = pids.filter_map(process).filter(is_meant).collect();
    if found.len() > 1 {
        let pids: Vec<String> = found.iter().map(|process| process.pid.to_string()).collect();
        return Err(ViewError::Several(pids.join(", ")));
    }
    Ok(found.pop())
}

/// The command line and environment of a process, if it is a server or an agent.
fn process(pid: u32) -> Option<Process> {
    use std::os::unix::ffi::OsStringExt as _;
    let folder = Path::new("/proc").join(pid.to_string());
    let parts = |name: &str| -> Option<Vec<OsString>> {
        let bytes = std::fs::read(folder.join(name)).ok()?;
        let mut parts: Vec<OsString> =
            bytes.split(|byte| *byte == 0).map(|part| OsString::from_vec(part.to_vec())).collect();
        parts.pop();
        Some(parts)
    };
    let line = parts("cmdline")?;
    let is_ours = Path::new(line.first()?).file_name()? == "kedge";
    let is_role = line.get(1).is_some_and(|role| role == "server" || role == "agent");
    if !is_ours || !is_role {
        return None;
    }
    let env = parts("environ")?;
    let pair = |text: OsString| {
        let text = text.into_string().ok()?;
        let (name, value) = text.split_once('=')?;
        Some((name.to_owned(), value.to_owned()))
    };
    Some(Process { pid, args: line.into_iter().skip(1).collect(), env: env.into_iter().filter_map(pair).collect() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(file: &str, words: &[&str], vars: &[(&str, &str)]) -> Result<Vec<Shown>, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.yaml");
        std::fs::write(&path, file).unwrap();
        let config = format!("--config={}", path.display());
        let words: Vec<OsString> = ["server", &config].iter().chain(words).map(OsString::from).collect();
        let env = |name: &str| vars.iter().find(|(var, _)| *var == name).map(|(_, value)| (*value).to_owned());
        let shown = view(&words, &env).map_err(|err| err.to_string())?;
        let strip = |mut one: Shown| {
            one.from = one.from.replace(&format!("{}", path.display()), "FILE");
            one
        };
        Ok(shown.into_iter().map(strip).collect())
    }

    fn of(shown: &[Shown], flag: &str) -> Vec<(String, String)> {
        let own = shown.iter().filter(|one| one.flag == flag);
        own.map(|one| (one.value.clone(), one.from.clone())).collect()
    }

    #[test]
    fn each_value_tells_where_it_comes_from_and_secrets_are_masked() {
        let file = "node-name: of-file\n\ntls-san: [a, b]\ndebug: true\nkube-apiserver-arg:\n  - event-ttl=2h\n";
        let all = shown(
            file,
            &["--tls-san=c", "--https-listen-port=7443"],
            &[("K3S_TOKEN", "hunter2"), ("KEDGE_CLUSTER_DOMAIN", "x.local")],
        )
        .unwrap();
        let pair = |value: &str, from: &str| (value.to_owned(), from.to_owned());
        assert_eq!(of(&all, "node-name"), [pair("of-file", "FILE:1")]);
        assert_eq!(of(&all, "tls-san"), [pair("a", "FILE:3"), pair("b", "FILE:3"), pair("c", "flag")]);
        assert_eq!(of(&all, "debug"), [pair("true", "FILE:4")]);
        assert_eq!(of(&all, "kube-apiserver-arg"), [pair("event-ttl=2h", "FILE:5")]);
        assert_eq!(of(&all, "https-listen-port"), [pair("7443", "flag")]);
        assert_eq!(of(&all, "token"), [pair(MASK, "env K3S_TOKEN")]);
        assert_eq!(of(&all, "cluster-domain"), [pair("x.local", "env KEDGE_CLUSTER_DOMAIN")]);
        assert_eq!(of(&all, "cluster-cidr"), [pair("10.42.0.0/16", "default")]);
        assert_eq!(of(&all, "agent-token"), [pair("", "default")]);
        assert_eq!(of(&all, "disable-agent"), [pair("false", "default")]);
        assert!(!to_json(&all).to_string().contains("hunter2"));
    }

    #[test]
    fn what_a_profile_gives_is_said_to_be_its() {
        let all = shown("profile: cis\nkube-apiserver-arg: anonymous-auth=true\n", &[], &[]).unwrap();
        let args = of(&all, "kube-apiserver-arg");
        assert!(args.contains(&("audit-log-maxage=30".to_owned(), "profile".to_owned())), "{args:?}");
        assert!(args.contains(&("anonymous-auth=true".to_owned(), "FILE:2".to_owned())), "{args:?}");
        assert_eq!(of(&all, "protect-kernel-defaults"), [("true".to_owned(), "profile".to_owned())]);
    }

    #[test]
    fn settings_that_are_refused_are_told_of() {
        assert!(shown("node-nam: x\n", &[], &[]).unwrap_err().contains("unknown key 'node-nam'"));
        let said = shown("", &["--https-listen-port=70000"], &[]).unwrap_err();
        assert!(
            said.starts_with("the next start would be refused: ") && said.contains("--https-listen-port"),
            "{said}"
        );
    }
}
