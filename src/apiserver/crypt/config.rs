//! EncryptionConfiguration: which resources are sealed, with which keys, in which order.

use base::rng::Rng;
use base::secret::Secret;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use pki::seal::{Cipher, Key};
use serde_json::{Value, json};

use super::kms;

/// One provider of a list: the first of the list writes, all of them read.
#[derive(Clone)]
pub enum Provider {
    /// Values as they are.
    Identity,
    /// Sealed; the first key writes, all of them read.
    Sealed(Cipher, Vec<Key>),
    /// Guarded by a plugin.
    Kms(kms::Settings),
}

/// One element of `resources`.
#[derive(Clone)]
pub struct Rule {
    /// `secrets`, `deployments.apps`, `*.apps`, `*.*`.
    pub resources: Vec<String>,
    /// In order.
    pub providers: Vec<Provider>,
}

/// The whole configuration.
#[derive(Clone, Default)]
pub struct Config {
    /// In order: the first that names a resource counts.
    pub rules: Vec<Rule>,
}

const FORBIDDEN: [&str; 2] = ["apiservices.apiregistration.k8s.io", "customresourcedefinitions.apiextensions.k8s.io"];

impl Config {
    /// Secrets sealed with a new key, as `kedge` starts with.
    pub fn generated(cipher: Cipher, rng: &Rng) -> Config {
        // k3s's names.
        let name = if cipher == Cipher::Secretbox { "secretboxkey" } else { "aescbckey" };
        let providers = vec![Provider::Sealed(cipher, vec![new_key(rng, name)]), Provider::Identity];
        Config { rules: vec![Rule { resources: vec!["secrets".to_owned()], providers }] }
    }

    /// Reads YAML or JSON.
    ///
    /// Errors: a text with the field's path; never with a key.
    pub fn parse(text: &str) -> Result<Config, String> {
        let value: Value = serde_saphyr::from_str(text).map_err(|err| err.to_string())?;
        if value["kind"] != "EncryptionConfiguration" {
            return Err(format!("kind: want EncryptionConfiguration, got {}", value["kind"]));
        }
        let rules = value["resources"].as_array().filter(|r| !r.is_empty()).ok_or("resources: Required value")?;
        let rules =
            rules.iter().enumerate().map(|(at, rule)| rule_of(rule).map_err(|why| format!("resources[{at}]{why}")));
        let config = Config { rules: rules.collect::<Result<_, _>>()? };
        let plugins = config.plugins();
        match plugins.iter().enumerate().find(|(at, plugin)| plugins[..*at].iter().any(|p| p.name == plugin.name)) {
            Some((_, twice)) => Err(format!("invalid KMS provider name {}, must be unique", twice.name)),
            None => Ok(config),
        }
    }

    /// The plugins that it names; the same one in several rules counts once.
    pub fn plugins(&self) -> Vec<kms::Settings> {
        let mut plugins: Vec<kms::Settings> = Vec::new();
        for provider in self.rules.iter().flat_map(|rule| &rule.providers) {
            if let Provider::Kms(plugin) = provider
                && !plugins.contains(plugin)
            {
                plugins.push(plugin.clone());
            }
        }
        plugins
    }

    /// For the file. Holds the keys.
    pub fn to_json(&self) -> String {
        let provider = |p: &Provider| match p {
            Provider::Identity => json!({ "identity": {} }),
            Provider::Sealed(cipher, keys) => {
                let keys: Vec<Value> = keys
                    .iter()
                    .map(|k| json!({ "name": k.name, "secret": STANDARD.encode(k.secret.expose()) }))
                    .collect();
                json!({ cipher.name(): { "keys": keys } })
            }
            Provider::Kms(plugin) => json!({ "kms": {
                "apiVersion": "v2", "name": plugin.name, "endpoint": format!("unix://{}", plugin.socket.display()),
                "timeout": format!("{}ms", plugin.timeout.as_millis()),
            } }),
        };
        let rules: Vec<Value> = self
            .rules
            .iter()
            .map(|r| json!({ "resources": r.resources, "providers": r.providers.iter().map(provider).collect::<Vec<_>>() }))
            .collect();
        json!({ "kind": "EncryptionConfiguration", "apiVersion": "apiserver.config.k8s.io/v1", "resources": rules })
            .to_string()
    }

    /// The providers of a resource; none: it is stored as it is.
    pub fn providers(&self, group: &str, plural: &str) -> &[Provider] {
        let name = registry::status::qualified(group, plural);
        let covers = |pattern: &String| match pattern.strip_prefix("*.") {
            Some("*") => true,
            Some("") => group.is_empty(),
            Some(g) => g == group,
            None => *pattern == name,
        };
        self.rules.iter().find(|rule| rule.resources.iter().any(covers)).map_or(&[], |rule| rule.providers.as_slice())
    }

    /// Whether anything is written sealed.
    pub fn is_enabled(&self) -> bool {
        self.rules.iter().any(|rule| matches!(rule.providers.first(), Some(Provider::Sealed(..) | Provider::Kms(_))))
    }
}

/// A fresh key.
pub fn new_key(rng: &Rng, name: &str) -> Key {
    let mut secret = vec![0; 32];
    rng.fill(&mut secret);
    Key { name: name.to_owned(), secret: Secret::new(secret) }
}

fn rule_of(rule: &Value) -> Result<Rule, String> {
    let resources: Vec<String> =
        rule["resources"].as_array().into_iter().flatten().filter_map(|r| r.as_str().map(str::to_owned)).collect();
    if resources.is_empty() {
        return Err(".resources: Required value".to_owned());
    }
    if let Some(bad) = resources.iter().find(|r| FORBIDDEN.contains(&r.as_str())) {
        return Err(format!(".resources: Invalid value: {bad:?}: may not be encrypted"));
    }
    let providers = rule["providers"].as_array().filter(|p| !p.is_empty()).ok_or(".providers: Required value")?;
    let providers =
        providers.iter().enumerate().map(|(at, p)| provider_of(p).map_err(|why| format!(".providers[{at}]{why}")));
    Ok(Rule { resources, providers: providers.collect::<Result<_, _>>()? })
}

fn provider_of(provider: &Value) -> Result<Provider, String> {
    let map = provider.as_object().filter(|m| m.len() == 1).ok_or(
        ": Invalid value: more or less than one provider specified in a single element, should split into different list elements",
    )?;
    let (name, settings) = map.iter().next().ok_or(": Required value")?;
    let cipher = match name.as_str() {
        "identity" => return Ok(Provider::Identity),
        "aescbc" => Cipher::AesCbc,
        "aesgcm" => Cipher::AesGcm,
        "secretbox" => Cipher::Secretbox,
        "kms" => return plugin_of(settings).map(Provider::Kms).map_err(|why| format!(".kms{why}")),
        other => return Err(format!(": unknown provider {other:?}")),
    };
    let keys =
        settings["keys"].as_array().filter(|k| !k.is_empty()).ok_or_else(|| format!(".{name}.keys: Required value"))?;
    let key = |(at, key): (usize, &Value)| {
        let place = format!(".{name}.keys[{at}]");
        let label = key["name"]
            .as_str()
            .filter(|n| !n.is_empty() && !n.contains(':'))
            .ok_or_else(|| format!("{place}.name: Required value"))?;
        let secret = key["secret"]
            .as_str()
            .and_then(|s| STANDARD.decode(s.trim()).ok())
            .ok_or_else(|| format!("{place}.secret: must be base64 encoded"))?;
        if !cipher.takes_key_of(secret.len()) {
            return Err(format!(
                "{place}.secret: secret is not of the expected length, got {}, expected one of {}",
                secret.len(),
                if cipher == Cipher::Secretbox { "[32]" } else { "[16 24 32]" }
            ));
        }
        Ok(Key { name: label.to_owned(), secret: Secret::new(secret) })
    };
    Ok(Provider::Sealed(cipher, keys.iter().enumerate().map(key).collect::<Result<_, String>>()?))
}

fn plugin_of(settings: &Value) -> Result<kms::Settings, String> {
    let text = |field: &str| settings[field].as_str().unwrap_or_default();
    match text("apiVersion") {
        "v2" => {}
        "" | "v1" => {
            return Err(
                ".apiVersion: KMSv1 is deprecated and off by default upstream, too: use a plugin that speaks v2"
                    .to_owned(),
            );
        }
        other => {
            return Err(format!(
                ".apiVersion: Invalid value: {other:?}: unsupported apiVersion for KMS provider, should be one of v1, v2"
            ));
        }
    }
    if !settings["cachesize"].is_null() {
        return Err(".cachesize: Invalid value: cachesize is not supported in v2".to_owned());
    }
    let known = ["apiVersion", "name", "endpoint", "timeout", "cachesize"];
    if let Some(stray) = settings
        .as_object()
        .into_iter()
        .flatten()
        .map(|(field, _)| field)
        .find(|field| !known.contains(&field.as_str()))
    {
        return Err(format!(": unknown field {stray:?}"));
    }
    let name = text("name");
    if name.is_empty() {
        return Err(".name: Required value: provider name is required".to_owned());
    }
    if name.contains(':') {
        return Err(format!(".name: Invalid value: {name:?}: invalid KMS provider name {name}, must not contain ':'"));
    }
    let endpoint = text("endpoint");
    let socket = match endpoint.split_once("://") {
        Some(("unix", path)) if !path.is_empty() => path,
        _ if endpoint.is_empty() => return Err(".endpoint: Required value: endpoint is required".to_owned()),
        _ => {
            return Err(format!(
                ".endpoint: Invalid value: {endpoint:?}: unsupported scheme for KMS provider, only unix is supported"
            ));
        }
    };
    let timeout = match text("timeout") {
        "" => std::time::Duration::from_secs(3),
        text => crate::arguments::duration(text).map_err(|why| format!(".timeout: Invalid value: {why}"))?,
    };
    if timeout.is_zero() {
        return Err(".timeout: Invalid value: timeout should be a positive value".to_owned());
    }
    // As upstream: unix:///path, and unix://@name for a socket without a file, which is not taken here.
    match socket.starts_with('@') {
        true => Err(format!(".endpoint: Invalid value: {endpoint:?}: kedge wants a socket with a path")),
        false => Ok(kms::Settings { name: name.to_owned(), socket: socket.into(), timeout }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_generated_configuration_survives_its_file() {
        let config = Config::generated(Cipher::Secretbox, &Rng::from_seed(1));
        let again = Config::parse(&config.to_json()).ok().unwrap();
        assert!(again.is_enabled());
        assert_eq!(again.providers("", "secrets").len(), 2);
        assert!(again.providers("", "configmaps").is_empty());
    }

    #[test]
    fn wildcards_and_mistakes() {
        let config = |resources: &str, provider: &str| {
            Config::parse(&format!(
                "kind: EncryptionConfiguration\nresources: [{{resources: [{resources}], providers: [{provider}]}}]"
            ))
        };
        let all = config("'*.*'", "identity: {}").ok().unwrap();
        assert_eq!(all.providers("apps", "deployments").len(), 1);
        let short = config("secrets", "{aescbc: {keys: [{name: a, secret: AAAA}]}}").err().unwrap();
        assert!(
            short.contains("resources[0].providers[0].aescbc.keys[0].secret") && !short.contains("AAAA"),
            "{short}"
        );
        assert!(config("secrets", "{kms: {name: a}}").err().unwrap().contains("KMSv1 is deprecated"));
        let kms = |more: &str| config("secrets", &format!("{{kms: {{apiVersion: v2, {more}}}}}, {{identity: {{}}}}"));
        let plugin = kms("name: a, endpoint: 'unix:///run/kms.sock', timeout: 5s").ok().unwrap().plugins();
        assert_eq!(
            (plugin.len(), plugin[0].timeout.as_secs(), plugin[0].socket.to_str()),
            (1, 5, Some("/run/kms.sock"))
        );
        assert!(kms("name: a, endpoint: 'http://x'").err().unwrap().contains(".kms.endpoint: Invalid value"));
        assert!(kms("name: 'a:b', endpoint: 'unix:///x'").err().unwrap().contains("must not contain ':'"));
        let two = "{kms: {apiVersion: v2, name: a, endpoint: 'unix:///x'}}, {kms: {apiVersion: v2, name: a, endpoint: 'unix:///y'}}";
        assert!(config("secrets", two).err().unwrap().contains("must be unique"));
    }
}
