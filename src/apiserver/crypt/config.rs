//! EncryptionConfiguration: which resources are sealed, with which keys, in which order.

use base::rng::Rng;
use base::secret::Secret;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use model::reference::GroupResource;
use pki::seal::{Cipher, Key};
use serde_json::{Value, json};

use super::kms;
use crate::arguments::values::{NoDuration, duration};

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// It is no YAML. The parser's text has its causes in it, so they are no source.
    #[error("{0}")]
    Syntax(serde_saphyr::Error),
    /// It is something else.
    #[error("kind: want EncryptionConfiguration, got {0}")]
    Kind(Value),
    /// Two plugins have one name, so that nobody knows which sealed a value.
    #[error("invalid KMS provider name {0}, must be unique")]
    TwicePlugin(String),
    /// A field is wrong.
    #[error("{field}")]
    Field {
        /// Its path.
        field: String,
        /// Reason.
        source: Fault,
    },
}

/// The fault of a field, in upstream's words.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// It has to be there.
    #[error("Required value{colon}{0}", colon = if .0.is_empty() { "" } else { ": " })]
    Required(&'static str),
    /// It may not be this.
    #[error("Invalid value: {value:?}: {why}")]
    Invalid {
        /// The text.
        value: String,
        /// Reason.
        why: &'static str,
    },
    /// It may not be there, or not so.
    #[error("Invalid value: {0}")]
    Wrong(&'static str),
    /// It separates the parts of a prefix in the store.
    #[error("Invalid value: {0:?}: invalid KMS provider name {0}, must not contain ':'")]
    ColonInName(String),
    /// It is no time.
    #[error("Invalid value")]
    Time(#[source] NoDuration),
    /// There is no such way to seal.
    #[error("unknown provider {0:?}")]
    UnknownProvider(String),
    /// There is no such field.
    #[error("unknown field {0:?}")]
    UnknownField(String),
    /// A plugin of the old sort.
    #[error("KMSv1 is deprecated and off by default upstream, too: use a plugin that speaks v2")]
    OldPlugin,
    /// A key that is no base64.
    #[error("must be base64 encoded")]
    NoBase64,
    /// A key of another length.
    #[error("secret is not of the expected length, got {got}, expected one of {expected}")]
    KeyLength {
        /// Its bytes.
        got: usize,
        /// The lengths that the cipher takes.
        expected: &'static str,
    },
}

impl Fault {
    /// The error with the path of its field.
    fn at(self, field: impl Into<String>) -> ConfigError {
        ConfigError::Field { field: field.into(), source: self }
    }
}

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

/// Upstream's words about an element with two providers, or none.
const NOT_ONE_PROVIDER: &str = "more or less than one provider specified in a single element, should split into \
    different list elements";

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
    /// Errors: it is none, or a field of it is wrong. The error has the field's path, and never a key.
    pub fn parse(text: &str) -> Result<Config, ConfigError> {
        let value: Value = serde_saphyr::from_str(text).map_err(ConfigError::Syntax)?;
        if value["kind"] != "EncryptionConfiguration" {
            return Err(ConfigError::Kind(value["kind"].clone()));
        }
        let rules = value["resources"].as_array().filter(|r| !r.is_empty());
        let rules = rules.ok_or_else(|| Fault::Required("").at("resources"))?;
        let rules = rules.iter().enumerate().map(|(at, rule)| rule_of(rule, &format!("resources[{at}]")));
        let config = Config { rules: rules.collect::<Result<_, _>>()? };
        let plugins = config.plugins();
        match plugins.iter().enumerate().find(|(at, plugin)| plugins[..*at].iter().any(|p| p.name == plugin.name)) {
            Some((_, twice)) => Err(ConfigError::TwicePlugin(twice.name.clone())),
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
            .map(|r| {
                json!({ "resources": r.resources,
                "providers": r.providers.iter().map(provider).collect::<Vec<_>>() })
            })
            .collect();
        json!({ "kind": "EncryptionConfiguration", "apiVersion": "apiserver.config.k8s.io/v1", "resources": rules })
            .to_string()
    }

    /// The providers of a resource; none: it is stored as it is.
    pub fn providers(&self, of: GroupResource<'_>) -> &[Provider] {
        let name = of.to_string();
        let covers = |pattern: &String| match pattern.strip_prefix("*.") {
            Some("*") => true,
            Some("") => of.group.is_empty(),
            Some(group) => group == of.group,
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

/// The rule at `place`.
fn rule_of(rule: &Value, place: &str) -> Result<Rule, ConfigError> {
    let named = format!("{place}.resources");
    let resources: Vec<String> =
        rule["resources"].as_array().into_iter().flatten().filter_map(|r| r.as_str().map(str::to_owned)).collect();
    if resources.is_empty() {
        return Err(Fault::Required("").at(named));
    }
    if let Some(bad) = resources.iter().find(|r| FORBIDDEN.contains(&r.as_str())) {
        return Err(Fault::Invalid { value: bad.clone(), why: "may not be encrypted" }.at(named));
    }
    let place = format!("{place}.providers");
    let providers = rule["providers"].as_array().filter(|p| !p.is_empty());
    let providers = providers.ok_or_else(|| Fault::Required("").at(place.as_str()))?;
    let providers = providers.iter().enumerate().map(|(at, one)| provider_of(one, &format!("{place}[{at}]")));
    Ok(Rule { resources, providers: providers.collect::<Result<_, _>>()? })
}

/// The provider at `place`.
fn provider_of(provider: &Value, place: &str) -> Result<Provider, ConfigError> {
    let alone = provider.as_object().filter(|map| map.len() == 1).and_then(|map| map.iter().next());
    let (name, settings) = alone.ok_or_else(|| Fault::Wrong(NOT_ONE_PROVIDER).at(place))?;
    let own = format!("{place}.{name}");
    let cipher = match name.as_str() {
        "identity" => return Ok(Provider::Identity),
        "aescbc" => Cipher::AesCbc,
        "aesgcm" => Cipher::AesGcm,
        "secretbox" => Cipher::Secretbox,
        "kms" => return plugin_of(settings, &own).map(Provider::Kms),
        other => return Err(Fault::UnknownProvider(other.to_owned()).at(place)),
    };
    let place = format!("{own}.keys");
    let keys = settings["keys"].as_array().filter(|keys| !keys.is_empty());
    let keys = keys.ok_or_else(|| Fault::Required("").at(place.as_str()))?;
    let keys = keys.iter().enumerate().map(|(at, key)| key_of(key, cipher, &format!("{place}[{at}]")));
    Ok(Provider::Sealed(cipher, keys.collect::<Result<_, _>>()?))
}

/// The key at `place`.
fn key_of(key: &Value, cipher: Cipher, place: &str) -> Result<Key, ConfigError> {
    let label = key["name"].as_str().filter(|name| !name.is_empty() && !name.contains(':'));
    let label = label.ok_or_else(|| Fault::Required("").at(format!("{place}.name")))?;
    let place = format!("{place}.secret");
    let secret = key["secret"].as_str().and_then(|secret| STANDARD.decode(secret.trim()).ok());
    let secret = secret.ok_or_else(|| Fault::NoBase64.at(place.as_str()))?;
    if !cipher.takes_key_of(secret.len()) {
        let expected = if cipher == Cipher::Secretbox { "[32]" } else { "[16 24 32]" };
        return Err(Fault::KeyLength { got: secret.len(), expected }.at(place));
    }
    Ok(Key { name: label.to_owned(), secret: Secret::new(secret) })
}

/// The plugin at `place`.
fn plugin_of(settings: &Value, place: &str) -> Result<kms::Settings, ConfigError> {
    let text = |field: &str| settings[field].as_str().unwrap_or_default();
    let at = |field: &str| format!("{place}.{field}");
    let invalid = |value: &str, why: &'static str| Fault::Invalid { value: value.to_owned(), why };
    match text("apiVersion") {
        "v2" => {}
        "" | "v1" => return Err(Fault::OldPlugin.at(at("apiVersion"))),
        other => {
            let why = "unsupported apiVersion for KMS provider, should be one of v1, v2";
            return Err(invalid(other, why).at(at("apiVersion")));
        }
    }
    if !settings["cachesize"].is_null() {
        return Err(Fault::Wrong("cachesize is not supported in v2").at(at("cachesize")));
    }
    let known = ["apiVersion", "name", "endpoint", "timeout", "cachesize"];
    let mut fields = settings.as_object().into_iter().flatten().map(|(field, _)| field);
    if let Some(stray) = fields.find(|field| !known.contains(&field.as_str())) {
        return Err(Fault::UnknownField(stray.clone()).at(place));
    }
    let name = text("name");
    if name.is_empty() {
        return Err(Fault::Required("provider name is required").at(at("name")));
    }
    if name.contains(':') {
        return Err(Fault::ColonInName(name.to_owned()).at(at("name")));
    }
    let endpoint = text("endpoint");
    let socket = match endpoint.split_once("://") {
        Some(("unix", path)) if !path.is_empty() => path,
        _ if endpoint.is_empty() => return Err(Fault::Required("endpoint is required").at(at("endpoint"))),
        _ => {
            let why = "unsupported scheme for KMS provider, only unix is supported";
            return Err(invalid(endpoint, why).at(at("endpoint")));
        }
    };
    let timeout = match text("timeout") {
        "" => std::time::Duration::from_secs(3),
        text => duration(text).map_err(|err| Fault::Time(err).at(at("timeout")))?,
    };
    if timeout.is_zero() {
        return Err(Fault::Wrong("timeout should be a positive value").at(at("timeout")));
    }
    // As upstream: unix:///path, and unix://@name for a socket without a file, which is not taken here.
    match socket.starts_with('@') {
        true => Err(invalid(endpoint, "kedge wants a socket with a path").at(at("endpoint"))),
        false => Ok(kms::Settings { name: name.to_owned(), socket: socket.into(), timeout }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::chain::Chain;

    fn config(resources: &str, provider: &str) -> Result<Config, String> {
        Config::parse(&format!(
            "kind: EncryptionConfiguration\nresources: [{{resources: [{resources}], providers: [{provider}]}}]"
        ))
        .map_err(|err| Chain(&err).to_string())
    }

    fn kms(more: &str) -> Result<Config, String> {
        config("secrets", &format!("{{kms: {{apiVersion: v2, {more}}}}}, {{identity: {{}}}}"))
    }

    #[test]
    fn a_generated_configuration_survives_its_file() {
        let config = Config::generated(Cipher::Secretbox, &Rng::from_seed(1));
        let again = Config::parse(&config.to_json()).ok().unwrap();
        assert!(again.is_enabled());
        assert_eq!(again.providers(GroupResource::core("secrets")).len(), 2);
        assert!(again.providers(GroupResource::core("configmaps")).is_empty());
    }

    #[test]
    fn the_first_rule_that_names_a_resource_counts() {
        for (resources, group, resource, covered) in [
            ("'*.*'", "apps", "deployments", true),
            ("'*.*'", "", "secrets", true),
            ("'*.'", "", "secrets", true),
            ("'*.'", "apps", "deployments", false),
            ("'*.apps'", "apps", "deployments", true),
            ("'*.apps'", "", "secrets", false),
            ("deployments.apps", "apps", "deployments", true),
            ("deployments", "apps", "deployments", false),
            ("secrets, configmaps", "", "configmaps", true),
        ] {
            let config = config(resources, "identity: {}").ok().unwrap();
            let of = GroupResource { group, resource };
            assert_eq!(!config.providers(of).is_empty(), covered, "{resources} {of}");
            assert!(!config.is_enabled());
        }
    }

    #[test]
    fn a_mistake_is_told_with_its_place_and_without_the_key() {
        let first = "resources[0].providers[0]";
        for (resources, provider, expected) in [
            ("", "identity: {}", "resources[0].resources: Required value".to_owned()),
            ("secrets", "", "resources[0].providers: Required value".to_owned()),
            (
                "apiservices.apiregistration.k8s.io",
                "identity: {}",
                "resources[0].resources: Invalid value: \"apiservices.apiregistration.k8s.io\": may not be encrypted"
                    .to_owned(),
            ),
            (
                "secrets",
                "{identity: {}, aescbc: {}}",
                format!(
                    "{first}: Invalid value: more or less than one provider specified in a single element, should \
                     split \
                     into different list elements"
                ),
            ),
            ("secrets", "{rot13: {}}", format!("{first}: unknown provider \"rot13\"")),
            ("secrets", "{aescbc: {}}", format!("{first}.aescbc.keys: Required value")),
            ("secrets", "{aescbc: {keys: [{name: 'a:b'}]}}", format!("{first}.aescbc.keys[0].name: Required value")),
            (
                "secrets",
                "{aesgcm: {keys: [{name: a, secret: '*'}]}}",
                format!("{first}.aesgcm.keys[0].secret: must be base64 encoded"),
            ),
            (
                "secrets",
                "{aescbc: {keys: [{name: a, secret: AAAA}]}}",
                format!(
                    "{first}.aescbc.keys[0].secret: secret is not of the expected length, got 3, expected one of [16 \
                     24 \
                     32]"
                ),
            ),
            (
                "secrets",
                "{kms: {name: a}}",
                format!(
                    "{first}.kms.apiVersion: KMSv1 is deprecated and off by default upstream, too: use a plugin that \
                     speaks v2"
                ),
            ),
            (
                "secrets",
                "{kms: {apiVersion: v3}}",
                format!(
                    "{first}.kms.apiVersion: Invalid value: \"v3\": unsupported apiVersion for KMS provider, should be \
                     one of v1, v2"
                ),
            ),
        ] {
            assert_eq!(config(resources, provider).err(), Some(expected), "{resources} {provider}");
        }
        let told = |text: &str| Config::parse(text).err().map(|err| Chain(&err).to_string());
        assert_eq!(told("kind: Pod").as_deref(), Some("kind: want EncryptionConfiguration, got \"Pod\""));
        assert_eq!(told("kind: EncryptionConfiguration").as_deref(), Some("resources: Required value"));
    }

    #[test]
    fn a_plugin_has_a_name_a_socket_and_a_time() {
        let plugin = kms("name: a, endpoint: 'unix:///run/kms.sock', timeout: 5s").ok().unwrap().plugins();
        assert_eq!(
            (plugin.len(), plugin[0].timeout.as_secs(), plugin[0].socket.to_str()),
            (1, 5, Some("/run/kms.sock"))
        );
        for (more, expected) in [
            ("endpoint: 'unix:///x'", ".name: Required value: provider name is required"),
            (
                "name: 'a:b', endpoint: 'unix:///x'",
                ".name: Invalid value: \"a:b\": invalid KMS provider name a:b, must not contain ':'",
            ),
            ("name: a", ".endpoint: Required value: endpoint is required"),
            (
                "name: a, endpoint: 'http://x'",
                ".endpoint: Invalid value: \"http://x\": unsupported scheme for KMS provider, only unix is supported",
            ),
            (
                "name: a, endpoint: 'unix://@x'",
                ".endpoint: Invalid value: \"unix://@x\": kedge wants a socket with a path",
            ),
            (
                "name: a, endpoint: 'unix:///x', timeout: soon",
                ".timeout: Invalid value: \"soon\" is no duration such as 1h30m",
            ),
            (
                "name: a, endpoint: 'unix:///x', timeout: 0s",
                ".timeout: Invalid value: timeout should be a positive value",
            ),
            ("name: a, cachesize: 1", ".cachesize: Invalid value: cachesize is not supported in v2"),
            ("name: a, odd: 1", ": unknown field \"odd\""),
        ] {
            let expected = format!("resources[0].providers[0].kms{expected}");
            assert_eq!(kms(more).err(), Some(expected), "{more}");
        }
        let one = |socket: &str| format!("{{kms: {{apiVersion: v2, name: a, endpoint: 'unix:///{socket}'}}}}");
        let twice = config("secrets", &format!("{}, {}", one("x"), one("y"))).err();
        assert_eq!(twice.as_deref(), Some("invalid KMS provider name a, must be unique"));
        let same = config("secrets", &format!("{}, {}", one("x"), one("x"))).ok().unwrap();
        assert_eq!(same.plugins().len(), 1, "the same one in two places counts once");
    }
}
