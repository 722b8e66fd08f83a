//! The chain of authorizers as flags or an AuthorizationConfiguration file want it.

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
use registry::attributes::Attributes;
use registry::lookup::Lookup;
use registry::webhook::client::Webhooks;
use registry::webhook::kubeconfig::Remote;

use crate::arguments::{Arguments, duration};

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
/// Errors: a text that names the flag or file.
pub(super) fn modes(arguments: &Arguments) -> Result<Vec<Mode>, String> {
    if let Some(path) = &arguments.authorization_config {
        let text = std::fs::read_to_string(path)
            .map_err(|err| format!("authorization-config: cannot read {}: {err}", path.display()))?;
        return configuration(&text, arguments)
            .map_err(|why| format!("authorization-config: {}: {why}", path.display()));
    }
    arguments.authorization_modes.iter().map(|name| mode(name, arguments)).collect()
}

fn mode(name: &str, arguments: &Arguments) -> Result<Mode, String> {
    Ok(match name {
        "AlwaysAllow" => Mode::AlwaysAllow,
        "AlwaysDeny" => Mode::AlwaysDeny,
        "RBAC" => Mode::Rbac,
        "Node" => Mode::Node,
        "ABAC" => {
            let path =
                arguments.abac_file.as_deref().ok_or("authorization-mode ABAC needs authorization-policy-file")?;
            Mode::Abac(Abac::read(path).map_err(|err| format!("authorization-policy-file: {}", Chain(&err)))?)
        }
        "Webhook" => {
            let path = arguments
                .authorization_webhook
                .as_deref()
                .ok_or("authorization-mode Webhook needs authorization-webhook-config-file")?;
            Mode::Webhook(webhook::Settings {
                remote: Remote::read(path).map_err(|why| format!("authorization-webhook-config-file: {why}"))?,
                timeout: Duration::from_secs(30),
                authorized_ttl: arguments.authorization_ttls.0,
                unauthorized_ttl: arguments.authorization_ttls.1,
                denies_on_failure: false,
                conditions: Vec::new(),
            })
        }
        other => return Err(format!("{other:?} is not a valid authorization mode")),
    })
}

/// An AuthorizationConfiguration.
fn configuration(text: &str, arguments: &Arguments) -> Result<Vec<Mode>, String> {
    let value: Value = serde_saphyr::from_str(text).map_err(|err| err.to_string())?;
    if value["kind"] != "AuthorizationConfiguration" {
        return Err(format!("kind: want AuthorizationConfiguration, got {}", value["kind"]));
    }
    let list = value["authorizers"]
        .as_array()
        .filter(|a| !a.is_empty())
        .ok_or("authorizers: Required value: at least one authorization mode must be defined")?;
    list.iter()
        .enumerate()
        .map(|(at, one)| {
            let kind = one["type"].as_str().unwrap_or_default();
            let place = format!("authorizers[{at}]");
            if kind != "Webhook" {
                return mode(kind, arguments).map_err(|why| format!("{place}.type: {why}"));
            }
            webhook_of(&one["webhook"]).map(Mode::Webhook).map_err(|why| format!("{place}.webhook.{why}"))
        })
        .collect()
}

fn webhook_of(value: &Value) -> Result<webhook::Settings, String> {
    if value["connectionInfo"]["type"] != "KubeConfigFile" {
        return Err(format!(
            "connectionInfo.type: Unsupported value: {}: supported: KubeConfigFile",
            value["connectionInfo"]["type"]
        ));
    }
    let path =
        value["connectionInfo"]["kubeConfigFile"].as_str().ok_or("connectionInfo.kubeConfigFile: Required value")?;
    let time = |field: &str, otherwise: u64| match value[field].as_str() {
        Some(text) => duration(text).map_err(|why| format!("{field}: {why}")),
        None => Ok(Duration::from_secs(otherwise)),
    };
    let denies_on_failure = match value["failurePolicy"].as_str() {
        Some("Deny") => true,
        Some("NoOpinion") => false,
        other => {
            return Err(format!(
                "failurePolicy: Unsupported value: {:?}: supported: NoOpinion, Deny",
                other.unwrap_or_default()
            ));
        }
    };
    Ok(webhook::Settings {
        remote: Remote::read(Path::new(path)).map_err(|why| format!("connectionInfo.kubeConfigFile: {why}"))?,
        timeout: time("timeout", 3)?,
        authorized_ttl: time("authorizedTTL", 300)?,
        unauthorized_ttl: time("unauthorizedTTL", 30)?,
        denies_on_failure,
        conditions: conditions::read(&value["matchConditions"]).map_err(|err| err.to_string())?,
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

    #[test]
    fn a_configuration_names_what_is_wrong_with_it() {
        let read = |text: &str| {
            configuration(&format!("kind: AuthorizationConfiguration\nauthorizers: {text}"), &Arguments::default())
                .map(|m| m.len())
        };
        assert_eq!(read("[{type: Node, name: node}, {type: RBAC, name: rbac}]"), Ok(2));
        assert!(read("[]").unwrap_err().contains("authorizers: Required value"));
        assert!(read("[{type: Oracle}]").unwrap_err().contains("authorizers[0].type: \"Oracle\""));
        let text = "[{type: Webhook, webhook: {connectionInfo: {type: InClusterConfig}}}]";
        assert!(read(text).unwrap_err().contains("authorizers[0].webhook.connectionInfo.type"));
    }
}
