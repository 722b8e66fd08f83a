//! Changing keys while the server runs: a new key writes, everything is written anew, the old keys go.

use std::path::PathBuf;
use std::sync::Arc;

use base::chain::Chain;
use pki::seal::Cipher;
use serde_json::{Value, json};
use tracing::info;

use super::config::{Config, Provider, Rule, new_key};
use super::sealed::Seals;
use crate::keys;
use crate::serve::ApiServer;
use crate::status::Status;
use crate::verbs::write;

/// The server's own configuration of encryption, and where it is kept. An operator's file is never written to.
pub struct Encryption {
    /// The keys in use.
    pub seals: Arc<Seals>,
    /// Our own file; `None`: `--encryption-provider-config` names the operator's.
    pub file: Option<PathBuf>,
    /// Only one change at a time.
    pub turn: tokio::sync::Mutex<()>,
}

/// What `kedge secrets-encrypt` asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Write sealed from now on, and what is there anew.
    Enable,
    /// Write open from now on, and what is there anew.
    Disable,
    /// A new key.
    RotateKeys,
}

impl Change {
    /// By its name in the path.
    pub fn named(name: &str) -> Option<Change> {
        match name {
            "enable" => Some(Change::Enable),
            "disable" => Some(Change::Disable),
            "rotate-keys" => Some(Change::RotateKeys),
            _ => None,
        }
    }
}

impl Encryption {
    /// For `secrets-encrypt status`; names of keys, never keys.
    pub fn status(&self) -> Value {
        let config = self.seals.config();
        let mut listed = Vec::new();
        for rule in &config.rules {
            let mut first = true;
            for provider in &rule.providers {
                if let Provider::Sealed(cipher, keys) = provider {
                    for key in keys {
                        listed.push(json!({ "active": first, "type": shown(*cipher), "name": key.name, "resources": rule.resources }));
                        first = false;
                    }
                }
                if let Provider::Kms(plugin) = provider {
                    listed.push(json!({ "active": first, "type": "KMSv2", "name": plugin.name, "resources": rule.resources }));
                }
                first = false;
            }
        }
        json!({ "enabled": config.is_enabled(), "stage": "start", "keys": listed, "managed": self.file.is_some() })
    }

    /// Carries a change out: when it returns, everything stored is as the configuration says.
    ///
    /// Errors: 409 for an operator's configuration, 500 when a file or object cannot be written (asking again goes on).
    pub async fn change(&self, server: &ApiServer, change: Change) -> Result<Value, Status> {
        let Some(file) = &self.file else {
            let why = "encryption is configured by --encryption-provider-config: change that file and restart";
            return Err(Status::new(409, "Conflict", why));
        };
        // The keys are in a file of this server: the others would not know a new one.
        if crate::endpoints::addresses(server).await?.len() > 1 {
            let why = "the keys of encryption cannot be changed while the cluster has several servers: make it one server, change them, and let the others join anew";
            return Err(Status::new(409, "Conflict", why));
        }
        let _turn = self.turn.lock().await;
        let save = |config: &Config| {
            base::files::write_atomic(file, config.to_json().as_bytes(), 0o600).map_err(|err| Status::internal(Chain(&err)))
        };
        let (between, after) = planned(&self.seals.config(), change, &server.config.rng);
        // The file first: a value must never be sealed with a key that a crash would lose.
        save(&between)?;
        self.seals.swap(between.clone());
        let n = rewrite(server, &between).await?;
        save(&after)?;
        self.seals.swap(after);
        info!(n, change = ?change, "encryption at rest changed");
        let mut status = self.status();
        status["reencrypted"] = json!(n);
        Ok(status)
    }
}

fn shown(cipher: Cipher) -> &'static str {
    match cipher {
        Cipher::AesCbc => "AES-CBC",
        Cipher::AesGcm => "AES-GCM",
        Cipher::Secretbox => "XSalsa20-POLY1305",
    }
}

/// The configuration while objects are written anew, and the one for after.
fn planned(now: &Config, change: Change, rng: &base::rng::Rng) -> (Config, Config) {
    let map = |of: &dyn Fn(&Rule) -> Vec<Provider>| Config {
        rules: now.rules.iter().map(|rule| Rule { resources: rule.resources.clone(), providers: of(rule) }).collect(),
    };
    let sealing =
        |rule: &Rule| rule.providers.iter().find_map(|p| if let Provider::Sealed(c, k) = p { Some((*c, k.clone())) } else { None });
    match change {
        Change::Enable => {
            let enabled = map(&|rule| match sealing(rule) {
                Some((cipher, keys)) => vec![Provider::Sealed(cipher, keys), Provider::Identity],
                None => vec![Provider::Sealed(Cipher::Secretbox, vec![new_key(rng, "secretboxkey")]), Provider::Identity],
            });
            (enabled.clone(), enabled)
        }
        Change::Disable => {
            let disabled = map(&|rule| {
                let sealed = sealing(rule).map(|(cipher, keys)| Provider::Sealed(cipher, keys));
                std::iter::once(Provider::Identity).chain(sealed).collect()
            });
            (disabled.clone(), disabled)
        }
        Change::RotateKeys => {
            let fresh = new_key(rng, &format!("secretboxkey-{}", rng.hex(4)));
            let between = map(&|rule| {
                let mut providers = vec![Provider::Sealed(Cipher::Secretbox, vec![fresh.clone()])];
                providers.extend(rule.providers.iter().filter(|p| matches!(p, Provider::Sealed(..))).cloned());
                providers.push(Provider::Identity);
                providers
            });
            let after = map(&|_| vec![Provider::Sealed(Cipher::Secretbox, vec![fresh.clone()]), Provider::Identity]);
            (between, after)
        }
    }
}

/// Writes every object of the resources that the configuration names anew, as it is. Answers how many.
async fn rewrite(server: &ApiServer, config: &Config) -> Result<usize, Status> {
    let (all, _) = server.cache.read_all(keys::ROOT, None).await?;
    let named = |key: &[u8]| {
        let parsed = std::str::from_utf8(key).ok().and_then(keys::parse);
        parsed.is_some_and(|(group, plural, _)| !config.providers(group, plural).is_empty())
    };
    let mut written = 0;
    for kv in all.into_iter().filter(|kv| named(&kv.key)) {
        // Somebody who writes it meanwhile writes it sealed anew himself.
        written += usize::from(write::put_as_it_is(server, kv).await?);
    }
    Ok(written)
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::rng::Rng;

    #[test]
    fn a_rotation_reads_the_old_key_until_everything_is_written_anew() {
        let rng = Rng::from_seed(1);
        let now = Config::generated(&rng);
        let names = |config: &Config| -> Vec<String> {
            let sealed = config.rules[0].providers.iter().filter_map(|p| if let Provider::Sealed(_, keys) = p { Some(keys) } else { None });
            sealed.flatten().map(|k| k.name.clone()).collect()
        };
        let (between, after) = planned(&now, Change::RotateKeys, &rng);
        assert_eq!(names(&between).len(), 2);
        assert_eq!(names(&between)[1], "secretboxkey");
        assert_eq!(names(&after), names(&between)[..1]);
        let (disabled, _) = planned(&after, Change::Disable, &rng);
        assert!(!disabled.is_enabled() && names(&disabled) == names(&after));
        assert!(planned(&disabled, Change::Enable, &rng).0.is_enabled());
    }
}
