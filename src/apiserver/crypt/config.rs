//! EncryptionConfiguration: which resources are sealed, with which keys, in which order.

use base::rng::Rng;
use base::secret::Secret;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use pki::seal::{Cipher, Key};
use serde_json::{Value, json};

/// One provider of a list: the first of the list writes, all of them read.
#[derive(Clone)]
pub enum Provider {
    /// Values as they are.
    Identity,
    /// Sealed; the first key writes, all of them read.
    Sealed(Cipher, Vec<Key>),
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
    pub fn generated(rng: &Rng) -> Config {
        let providers = vec![Provider::Sealed(Cipher::Secretbox, vec![new_key(rng, "secretboxkey")]), Provider::Identity];
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
        let rules = rules.iter().enumerate().map(|(at, rule)| rule_of(rule).map_err(|why| format!("resources[{at}]{why}")));
        Ok(Config { rules: rules.collect::<Result<_, _>>()? })
    }

    /// For the file. Holds the keys.
    pub fn to_json(&self) -> String {
        let provider = |p: &Provider| match p {
            Provider::Identity => json!({ "identity": {} }),
            Provider::Sealed(cipher, keys) => {
                let keys: Vec<Value> =
                    keys.iter().map(|k| json!({ "name": k.name, "secret": STANDARD.encode(k.secret.expose()) })).collect();
                json!({ cipher.name(): { "keys": keys } })
            }
        };
        let rules: Vec<Value> = self
            .rules
            .iter()
            .map(|r| json!({ "resources": r.resources, "providers": r.providers.iter().map(provider).collect::<Vec<_>>() }))
            .collect();
        json!({ "kind": "EncryptionConfiguration", "apiVersion": "apiserver.config.k8s.io/v1", "resources": rules }).to_string()
    }

    /// The providers of a resource; none: it is stored as it is.
    pub fn providers(&self, group: &str, plural: &str) -> &[Provider] {
        let name = crate::status::qualified(group, plural);
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
        self.rules.iter().any(|rule| matches!(rule.providers.first(), Some(Provider::Sealed(..))))
    }
}

/// A fresh key.
pub fn new_key(rng: &Rng, name: &str) -> Key {
    let mut secret = vec![0; 32];
    rng.fill(&mut secret);
    Key { name: name.to_owned(), secret: Secret::new(secret) }
}

fn rule_of(rule: &Value) -> Result<Rule, String> {
    let resources: Vec<String> = rule["resources"].as_array().into_iter().flatten().filter_map(|r| r.as_str().map(str::to_owned)).collect();
    if resources.is_empty() {
        return Err(".resources: Required value".to_owned());
    }
    if let Some(bad) = resources.iter().find(|r| FORBIDDEN.contains(&r.as_str())) {
        return Err(format!(".resources: Invalid value: {bad:?}: may not be encrypted"));
    }
    let providers = rule["providers"].as_array().filter(|p| !p.is_empty()).ok_or(".providers: Required value")?;
    let providers = providers.iter().enumerate().map(|(at, p)| provider_of(p).map_err(|why| format!(".providers[{at}]{why}")));
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
        "kms" => return Err(".kms: KMS plugins are not supported by kedge: use aescbc, aesgcm or secretbox".to_owned()),
        other => return Err(format!(": unknown provider {other:?}")),
    };
    let keys = settings["keys"].as_array().filter(|k| !k.is_empty()).ok_or_else(|| format!(".{name}.keys: Required value"))?;
    let key = |(at, key): (usize, &Value)| {
        let place = format!(".{name}.keys[{at}]");
        let label =
            key["name"].as_str().filter(|n| !n.is_empty() && !n.contains(':')).ok_or_else(|| format!("{place}.name: Required value"))?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_generated_configuration_survives_its_file() {
        let config = Config::generated(&Rng::from_seed(1));
        let again = Config::parse(&config.to_json()).ok().unwrap();
        assert!(again.is_enabled());
        assert_eq!(again.providers("", "secrets").len(), 2);
        assert!(again.providers("", "configmaps").is_empty());
    }

    #[test]
    fn wildcards_and_mistakes() {
        let config = |resources: &str, provider: &str| {
            Config::parse(&format!("kind: EncryptionConfiguration\nresources: [{{resources: [{resources}], providers: [{provider}]}}]"))
        };
        let all = config("'*.*'", "identity: {}").ok().unwrap();
        assert_eq!(all.providers("apps", "deployments").len(), 1);
        let short = config("secrets", "{aescbc: {keys: [{name: a, secret: AAAA}]}}").err().unwrap();
        assert!(short.contains("resources[0].providers[0].aescbc.keys[0].secret") && !short.contains("AAAA"), "{short}");
        assert!(config("secrets", "{kms: {}}").err().unwrap().contains("KMS"));
    }
}
