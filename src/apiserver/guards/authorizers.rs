//! The chain of authorizers as flags or an AuthorizationConfiguration file want it.

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::Value;

use authz::abac::Abac;
use authz::conditions;
use authz::node::Node;
use authz::rbac::Rbac;
use authz::union::{Masters, Union};
use authz::webhook::{self, Webhook};
use authz::{Authorizer, Decision};
use base::chain::Chain;
use base::files::FileError;
use registry::attributes::Attributes;
use registry::lookup::Lookup;
use registry::webhook::client::Webhooks;
use registry::webhook::kubeconfig::{KubeconfigError, Remote};

use crate::arguments::Arguments;
use crate::arguments::error::{FileFault, UnusableFile};
use crate::arguments::values::{NoDuration, duration};

/// Why an authorizer is not what a flag or a configuration says.
#[derive(Debug, thiserror::Error)]
pub enum ModeError {
    /// It goes by a file that no flag names.
    #[error("authorization-mode {mode} needs {flag}")]
    NoFile {
        /// The mode.
        mode: &'static str,
        /// The flag of its file.
        flag: &'static str,
    },
    /// There is no such authorizer.
    #[error("{0:?} is not a valid authorization mode")]
    Unknown(String),
    /// Its file cannot be used.
    #[error(transparent)]
    File(#[from] UnusableFile),
}

/// Why an AuthorizationConfiguration cannot be used. `place` is that of the authorizer.
#[derive(Debug, thiserror::Error)]
enum ConfigurationError {
    // The parser's text has its causes in it, so they are no source.
    #[error("{0}")]
    Syntax(serde_saphyr::Error),
    #[error("kind: want AuthorizationConfiguration, got {0}")]
    Kind(Value),
    #[error("authorizers: Required value: at least one authorization mode must be defined")]
    NoMode,
    #[error("{place}.type")]
    Mode { place: String, source: ModeError },
    #[error("{place}.{field}: Required value")]
    Required { place: String, field: &'static str },
    #[error("{place}.{field}: Unsupported value: {got}: supported: {supported}")]
    Unsupported { place: String, field: &'static str, got: Value, supported: &'static str },
    #[error("{place}.{field}")]
    Time { place: String, field: &'static str, source: NoDuration },
    #[error("{place}.connectionInfo.kubeConfigFile")]
    Remote { place: String, source: KubeconfigError },
    // The conditions' own error begins with their place below the webhook.
    #[error("{place}.{}", Chain(why.as_ref()))]
    Conditions { place: String, why: Box<dyn Error + Send + Sync> },
}

/// One authorizer of the chain, its files read.
pub(super) enum Mode {
    /// Everybody may.
    AlwaysAllow,
    /// Nobody may.
    AlwaysDeny,
    /// A policy file.
    Abac(Abac),
    /// A webhook.
    Webhook(webhook::Settings),
    /// Roles.
    Rbac,
    /// Nodes and what belongs to their pods.
    Node,
}

struct Always(bool);

#[async_trait]
impl Authorizer for Always {
    async fn authorize(&self, _a: &Attributes) -> Decision {
        match self.0 {
            true => Decision::Allow { reason: String::new() },
            false => Decision::NoOpinion { reason: "Everything is forbidden.".to_owned() },
        }
    }
}

/// The chain that the arguments ask for.
///
/// Errors: a file cannot be used, or a mode misses its file; the error names the flag.
pub(super) fn modes(arguments: &Arguments) -> Result<Vec<Mode>, ModeError> {
    if let Some(path) = &arguments.authorization_config {
        let flag = "authorization-config";
        let text = std::fs::read_to_string(path)
            .map_err(FileError::at("cannot read", path))
            .map_err(UnusableFile::of(flag))?;
        let modes = configuration(&text, arguments).map_err(FileFault::of(path)).map_err(UnusableFile::of(flag));
        return Ok(modes?);
    }
    arguments.authorization_modes.iter().map(|name| mode(name, arguments)).collect()
}

fn mode(name: &str, arguments: &Arguments) -> Result<Mode, ModeError> {
    Ok(match name {
        "AlwaysAllow" => Mode::AlwaysAllow,
        "AlwaysDeny" => Mode::AlwaysDeny,
        "RBAC" => Mode::Rbac,
        "Node" => Mode::Node,
        "ABAC" => {
            let flag = "authorization-policy-file";
            let path = arguments.abac_file.as_deref().ok_or(ModeError::NoFile { mode: "ABAC", flag })?;
            Mode::Abac(Abac::read(path).map_err(UnusableFile::of(flag))?)
        }
        "Webhook" => {
            let flag = "authorization-webhook-config-file";
            let path = arguments.authorization_webhook.as_deref().ok_or(ModeError::NoFile { mode: "Webhook", flag })?;
            Mode::Webhook(webhook::Settings {
                remote: Remote::read(path).map_err(UnusableFile::of(flag))?,
                timeout: Duration::from_secs(30),
                authorized_ttl: arguments.authorization_ttls.0,
                unauthorized_ttl: arguments.authorization_ttls.1,
                denies_on_failure: false,
                conditions: Vec::new(),
            })
        }
        other => return Err(ModeError::Unknown(other.to_owned())),
    })
}

/// An AuthorizationConfiguration.
fn configuration(text: &str, arguments: &Arguments) -> Result<Vec<Mode>, ConfigurationError> {
    let value: Value = serde_saphyr::from_str(text).map_err(ConfigurationError::Syntax)?;
    if value["kind"] != "AuthorizationConfiguration" {
        return Err(ConfigurationError::Kind(value["kind"].clone()));
    }
    let list = value["authorizers"].as_array().filter(|a| !a.is_empty()).ok_or(ConfigurationError::NoMode)?;
    list.iter()
        .enumerate()
        .map(|(at, one)| {
            let kind = one["type"].as_str().unwrap_or_default();
            let place = format!("authorizers[{at}]");
            if kind != "Webhook" {
                return mode(kind, arguments).map_err(|source| ConfigurationError::Mode { place, source });
            }
            webhook_of(&one["webhook"], &format!("{place}.webhook")).map(Mode::Webhook)
        })
        .collect()
}

/// The webhook at `place`.
fn webhook_of(value: &Value, place: &str) -> Result<webhook::Settings, ConfigurationError> {
    let place = || place.to_owned();
    let connection = &value["connectionInfo"];
    if connection["type"] != "KubeConfigFile" {
        let (field, got) = ("connectionInfo.type", connection["type"].clone());
        return Err(ConfigurationError::Unsupported { place: place(), field, got, supported: "KubeConfigFile" });
    }
    let path = connection["kubeConfigFile"]
        .as_str()
        .ok_or_else(|| ConfigurationError::Required { place: place(), field: "connectionInfo.kubeConfigFile" })?;
    let time = |field: &'static str, otherwise: u64| match value[field].as_str() {
        Some(text) => duration(text).map_err(|source| ConfigurationError::Time { place: place(), field, source }),
        None => Ok(Duration::from_secs(otherwise)),
    };
    let denies_on_failure = match value["failurePolicy"].as_str() {
        Some("Deny") => true,
        Some("NoOpinion") => false,
        other => {
            let (field, got) = ("failurePolicy", Value::from(other.unwrap_or_default()));
            return Err(ConfigurationError::Unsupported { place: place(), field, got, supported: "NoOpinion, Deny" });
        }
    };
    Ok(webhook::Settings {
        remote: Remote::read(Path::new(path))
            .map_err(|source| ConfigurationError::Remote { place: place(), source })?,
        timeout: time("timeout", 3)?,
        authorized_ttl: time("authorizedTTL", 300)?,
        unauthorized_ttl: time("unauthorizedTTL", 30)?,
        denies_on_failure,
        conditions: conditions::read(&value["matchConditions"])
            .map_err(|why| ConfigurationError::Conditions { place: place(), why: why.into() })?,
    })
}

/// Builds the chain; the masters always come first. Gives the RBAC authorizer too, for reviews and escalation checks.
pub(super) fn chain(
    modes: Vec<Mode>,
    lookup: &Arc<dyn Lookup>,
    webhooks: &Arc<Webhooks>,
) -> (Arc<dyn Authorizer>, Arc<Rbac>) {
    let rbac = Arc::new(Rbac::new(lookup.clone()));
    let mut all: Vec<Arc<dyn Authorizer>> = vec![Arc::new(Masters)];
    for mode in modes {
        all.push(match mode {
            Mode::AlwaysAllow => Arc::new(Always(true)),
            Mode::AlwaysDeny => Arc::new(Always(false)),
            Mode::Abac(abac) => Arc::new(abac),
            Mode::Webhook(settings) => Arc::new(Webhook::new(settings, webhooks.clone())),
            Mode::Rbac => rbac.clone(),
            Mode::Node => Arc::new(Node::new(lookup.clone())),
        });
    }
    (Arc::new(Union(all)), rbac)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(authorizers: &str) -> Result<usize, String> {
        let text = format!("kind: AuthorizationConfiguration\nauthorizers: {authorizers}");
        let modes = configuration(&text, &Arguments::default());
        modes.map(|modes| modes.len()).map_err(|err| Chain(&err).to_string())
    }

    #[test]
    fn a_configuration_names_what_is_wrong_with_it_and_where() {
        let webhook = |rest: &str| {
            format!(
                "[{{type: Node}}, {{type: Webhook, webhook: {{connectionInfo: {{type: KubeConfigFile, \
                 kubeConfigFile: /nowhere}}, {rest}}}}}]"
            )
        };
        for (authorizers, expected) in [
            ("[]", "authorizers: Required value: at least one authorization mode must be defined"),
            ("[{type: Oracle}]", "authorizers[0].type: \"Oracle\" is not a valid authorization mode"),
            ("[{type: Node}, {}]", "authorizers[1].type: \"\" is not a valid authorization mode"),
            ("[{type: ABAC}]", "authorizers[0].type: authorization-mode ABAC needs authorization-policy-file"),
            (
                "[{type: Webhook, webhook: {connectionInfo: {type: InClusterConfig}}}]",
                "authorizers[0].webhook.connectionInfo.type: Unsupported value: \"InClusterConfig\": supported: \
                 KubeConfigFile",
            ),
            (
                "[{type: Webhook, webhook: {connectionInfo: {type: KubeConfigFile}}}]",
                "authorizers[0].webhook.connectionInfo.kubeConfigFile: Required value",
            ),
            (
                &webhook("failurePolicy: Maybe"),
                "authorizers[1].webhook.failurePolicy: Unsupported value: \"Maybe\": supported: NoOpinion, Deny",
            ),
            (
                &webhook("failurePolicy: Deny"),
                "authorizers[1].webhook.connectionInfo.kubeConfigFile: cannot read /nowhere: No such file or directory \
                 (os error 2)",
            ),
        ] {
            assert_eq!(read(authorizers), Err(expected.to_owned()), "{authorizers}");
        }
        assert_eq!(read("[{type: Node, name: node}, {type: RBAC, name: rbac}]"), Ok(2));
    }

    #[test]
    fn a_webhook_is_taken_with_its_times_and_conditions() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("kubeconfig");
        std::fs::write(&file, "clusters: [{name: a, cluster: {server: 'https://a'}}]").unwrap();
        let webhook = |rest: &str| {
            let connection = format!("{{type: KubeConfigFile, kubeConfigFile: {}}}", file.display());
            read(&format!(
                "[{{type: Webhook, webhook: {{connectionInfo: {connection}, failurePolicy: NoOpinion, {rest}}}}}]"
            ))
        };
        assert_eq!(webhook("timeout: 5s, matchConditions: [{expression: 'request.user == \"a\"'}]"), Ok(1));
        let expected = "authorizers[0].webhook.unauthorizedTTL: \"soon\" is no duration such as 1h30m";
        assert_eq!(webhook("unauthorizedTTL: soon"), Err(expected.to_owned()));
        let expected = "authorizers[0].webhook.matchConditions[0].expression: Required value";
        assert_eq!(webhook("matchConditions: [{}]"), Err(expected.to_owned()));
    }

    #[test]
    fn flags_name_the_file_that_cannot_be_used() {
        let told = |arguments: Arguments| modes(&arguments).err().map(|err| Chain(&err).to_string());
        let missing = "cannot read /nowhere: No such file or directory (os error 2)";
        let arguments = || Arguments { authorization_modes: vec!["Webhook".into()], ..Arguments::default() };
        assert_eq!(
            told(Arguments { authorization_webhook: Some("/nowhere".into()), ..arguments() }),
            Some(format!("authorization-webhook-config-file: {missing}"))
        );
        assert_eq!(
            told(Arguments { authorization_config: Some("/nowhere".into()), ..arguments() }),
            Some(format!("authorization-config: {missing}"))
        );
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("authz.yaml");
        std::fs::write(&file, "kind: Pod").unwrap();
        assert_eq!(
            told(Arguments { authorization_config: Some(file.clone()), ..arguments() }),
            Some(format!(
                "authorization-config: {}: kind: want AuthorizationConfiguration, got \"Pod\"",
                file.display()
            ))
        );
        assert_eq!(told(Arguments::default()), None);
    }
}
