//! The runtime's request: environment variables and the network configuration on stdin, checked.

use std::path::PathBuf;

use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::error::{CniError, Code};
use crate::result::NetResult;

/// Versions of the specification whose result form we write. 0.1.0 and 0.2.0 had another form and are refused.
pub(crate) const VERSIONS: [&str; 4] = ["0.3.0", "0.3.1", "0.4.0", "1.0.0"];

/// The CNI environment, unchecked.
#[derive(Debug, Default)]
pub(crate) struct Env {
    pub(crate) command: Option<String>,
    pub(crate) container_id: Option<String>,
    pub(crate) netns: Option<String>,
    pub(crate) ifname: Option<String>,
    pub(crate) args: Option<String>,
    pub(crate) path: Option<String>,
}

impl Env {
    #[allow(
        clippy::disallowed_methods,
        reason = "the specification passes arguments in the environment, and cli.rs is not on this road"
    )]
    pub(crate) fn read() -> Env {
        let var = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        Env {
            command: var("CNI_COMMAND"),
            container_id: var("CNI_CONTAINERID"),
            netns: var("CNI_NETNS"),
            ifname: var("CNI_IFNAME"),
            args: var("CNI_ARGS"),
            path: var("CNI_PATH"),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    Add,
    Del,
    Check,
    Version,
}

impl Command {
    pub(crate) fn parse(text: Option<&str>) -> Result<Command, CniError> {
        match text {
            Some("ADD") => Ok(Command::Add),
            Some("DEL") => Ok(Command::Del),
            Some("CHECK") => Ok(Command::Check),
            Some("VERSION") => Ok(Command::Version),
            Some(other) => Err(CniError::new(Code::InvalidEnvironment, format!("unknown CNI_COMMAND: {other}"))),
            None => Err(CniError::new(Code::InvalidEnvironment, "required env variables [CNI_COMMAND] missing")),
        }
    }

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Command::Add => "ADD",
            Command::Del => "DEL",
            Command::Check => "CHECK",
            Command::Version => "VERSION",
        }
    }
}

/// One checked call.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) command: Command,
    pub(crate) container_id: String,
    /// Empty on a DEL whose namespace is gone already.
    pub(crate) netns: Option<PathBuf>,
    pub(crate) ifname: String,
    /// `CNI_ARGS`, pairs `K=V` with semicolons between.
    pub(crate) args: Vec<(String, String)>,
    pub(crate) plugin_dirs: Vec<PathBuf>,
    pub(crate) version: String,
    pub(crate) network: String,
    pub(crate) config: Value,
}

impl Request {
    pub(crate) fn new(command: Command, env: Env, stdin: &[u8]) -> Result<Request, CniError> {
        let mut missing = Vec::new();
        for (name, value, needed) in [
            ("CNI_CONTAINERID", &env.container_id, true),
            ("CNI_NETNS", &env.netns, command != Command::Del),
            ("CNI_IFNAME", &env.ifname, true),
        ] {
            if needed && value.is_none() {
                missing.push(name);
            }
        }
        if !missing.is_empty() {
            return Err(CniError::new(
                Code::InvalidEnvironment,
                format!("required env variables [{}] missing", missing.join(",")),
            ));
        }
        let (container_id, ifname) =
            (env.container_id.clone().unwrap_or_default(), env.ifname.clone().unwrap_or_default());
        check_names(Attachment { container_id: &container_id, ifname: &ifname })?;
        let config: Value = serde_json::from_slice(stdin)
            .map_err(|err| CniError::new(Code::Decode, format!("cannot parse the network configuration: {err}")))?;
        let version =
            config.get("cniVersion").and_then(Value::as_str).filter(|v| !v.is_empty()).unwrap_or("0.1.0").to_owned();
        if !VERSIONS.contains(&version.as_str()) {
            let mut err = CniError::new(Code::IncompatibleVersion, "incompatible CNI versions");
            err.details = format!("config is {version:?}, plugin supports {VERSIONS:?}");
            return Err(err);
        }
        let network = config.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
        if network.is_empty() || !network.chars().all(|c| c.is_ascii_alphanumeric() || "_.-".contains(c)) {
            return Err(CniError::config(format!(
                "invalid network name {network:?}: letters, digits, '_', '.' and '-' only"
            )));
        }
        Ok(Request {
            command,
            netns: env.netns.as_deref().map(PathBuf::from),
            args: parse_args(env.args.as_deref().unwrap_or_default())?,
            plugin_dirs: env
                .path
                .as_deref()
                .unwrap_or_default()
                .split(':')
                .filter(|p| !p.is_empty())
                .map(PathBuf::from)
                .collect(),
            container_id,
            ifname,
            version,
            network,
            config,
        })
    }

    /// The part of the configuration that `T` knows.
    pub(crate) fn parse<T: DeserializeOwned>(&self) -> Result<T, CniError> {
        T::deserialize(&self.config)
            .map_err(|err| CniError::config(format!("cannot parse the network configuration: {err}")))
    }

    /// The result of the plugins before this one in the list.
    pub(crate) fn prev_result(&self) -> Result<Option<NetResult>, CniError> {
        match self.config.get("prevResult") {
            None | Some(Value::Null) => Ok(None),
            Some(prev) => serde_json::from_value(prev.clone())
                .map(Some)
                .map_err(|err| CniError::new(Code::Decode, format!("could not parse prevResult: {err}"))),
        }
    }

    pub(crate) fn attachment(&self) -> Attachment<'_> {
        Attachment { container_id: &self.container_id, ifname: &self.ifname }
    }

    pub(crate) fn netns(&self) -> Result<&PathBuf, CniError> {
        self.netns
            .as_ref()
            .ok_or_else(|| CniError::new(Code::InvalidEnvironment, "required env variables [CNI_NETNS] missing"))
    }
}

/// An attachment of a network: one interface of one container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Attachment<'a> {
    pub(crate) container_id: &'a str,
    pub(crate) ifname: &'a str,
}

fn check_names(Attachment { container_id, ifname }: Attachment<'_>) -> Result<(), CniError> {
    let bad = |msg: String| Err(CniError::new(Code::InvalidEnvironment, msg));
    let id_ok = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
    if !container_id.starts_with(|c: char| c.is_ascii_alphanumeric()) || !container_id.chars().all(id_ok) {
        return bad(format!("invalid characters in containerID {container_id:?}"));
    }
    if ifname.len() > 15
        || matches!(ifname, "." | "..")
        || ifname.chars().any(|c| c == '/' || c == ':' || c.is_whitespace())
    {
        return bad(format!("invalid interface name {ifname:?}"));
    }
    Ok(())
}

fn parse_args(text: &str) -> Result<Vec<(String, String)>, CniError> {
    text.split(';')
        .filter(|pair| !pair.is_empty())
        .map(|pair| {
            let (key, value) = pair
                .split_once('=')
                .ok_or_else(|| CniError::new(Code::InvalidEnvironment, format!("ARGS: invalid pair {pair:?}")))?;
            Ok((key.to_owned(), value.to_owned()))
        })
        .collect()
}

/// `cniVersion` of a configuration for an error's JSON, whatever else is wrong with it.
pub(crate) fn version_of(stdin: &[u8]) -> String {
    let config: Option<Value> = serde_json::from_slice(stdin).ok();
    let version = config.as_ref().and_then(|c| c.get("cniVersion")).and_then(Value::as_str);
    version.unwrap_or(VERSIONS[VERSIONS.len() - 1]).to_owned()
}

/// The answer to VERSION.
pub(crate) fn versions(stdin: &[u8]) -> String {
    format!("{}\n", json!({ "cniVersion": version_of(stdin), "supportedVersions": VERSIONS }))
}

#[cfg(test)]
pub(crate) fn for_test(command: Command, container_id: &str, config: Value) -> Request {
    let env = Env {
        container_id: Some(container_id.to_owned()),
        netns: Some("/var/run/netns/none".to_owned()),
        ifname: Some("eth0".to_owned()),
        ..Env::default()
    };
    Request::new(command, env, config.to_string().as_bytes()).unwrap()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delete_needs_no_namespace_but_an_add_does() {
        let env = || Env { container_id: Some("c1".into()), ifname: Some("eth0".into()), ..Env::default() };
        let config = br#"{"cniVersion":"1.0.0","name":"n"}"#;
        assert!(Request::new(Command::Del, env(), config).is_ok());
        let err = Request::new(Command::Add, env(), config).unwrap_err();
        assert_eq!((err.code, err.msg.as_str()), (4, "required env variables [CNI_NETNS] missing"));
    }

    #[test]
    fn a_missing_version_is_an_old_one_and_refused() {
        let env = Env { container_id: Some("c1".into()), ifname: Some("eth0".into()), ..Env::default() };
        assert_eq!(Request::new(Command::Del, env, br#"{"name":"n"}"#).unwrap_err().code, 1);
    }

    /// The specification's rules for names, which become names of files and interfaces here.
    #[test]
    fn names_of_containers_and_interfaces_are_checked() {
        let check = |container_id: &str, ifname: &str| {
            check_names(Attachment { container_id, ifname }).map_err(|err| (err.code, err.msg))
        };
        for (container_id, ifname) in [("c1", "eth0"), ("0-a_b.c", "a23456789012345")] {
            assert_eq!(check(container_id, ifname), Ok(()));
        }
        for id in ["", "-a", ".", "a/b", "a b", "é"] {
            assert_eq!(check(id, "eth0"), Err((4, format!("invalid characters in containerID {id:?}"))));
        }
        for ifname in [".", "..", "a/b", "a:b", "a b", "a\tb", "a234567890123456"] {
            assert_eq!(check("c1", ifname), Err((4, format!("invalid interface name {ifname:?}"))));
        }
    }

    #[test]
    fn arguments_are_pairs() {
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        assert_eq!(parse_args("A=1;;B=2=3;").unwrap(), [pair("A", "1"), pair("B", "2=3")]);
        assert_eq!(parse_args("").unwrap(), []);
        let err = parse_args("A=1;B").unwrap_err();
        assert_eq!((err.code, err.msg.as_str()), (4, "ARGS: invalid pair \"B\""));
    }
}
