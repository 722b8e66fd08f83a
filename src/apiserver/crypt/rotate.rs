//! Changing keys while the servers run: a new key comes to all servers, then writes, everything is written anew, the
//! old keys go.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use base::time::Stopwatch;
use bytes::Bytes;
use model::reference::GroupResource;
use pki::seal::Cipher;
use registry::keys;
use registry::objects::Objects;
use registry::status::Status;
use serde_json::{Value, json};
use store::{Compare, CompareOp, Op, Txn};
use tracing::info;

use super::config::{Config, Provider, Rule, new_key};
use super::sealed::EncryptionKeys;
use super::shared::{KEY, START};
use crate::server_leases;

/// Every server that lives takes a configuration within this.
const TAKEN_LIMIT: Duration = Duration::from_secs(30);
/// Between looks at whether they have.
const TAKEN_LOOK: Duration = Duration::from_millis(100);

/// k3s's stages.
const PREPARE: &str = "prepare";
const ROTATE: &str = "rotate";
const ACTIVE: &str = "reencrypt_active";
const FINISHED: &str = "reencrypt_finished";

/// The server's own configuration of encryption, and where it is kept. An operator's file is never written to.
pub struct Encryption {
    /// The keys in use.
    pub keys: Arc<EncryptionKeys>,
    /// Our own file; `None`: `--encryption-provider-config` names the operator's.
    pub file: Option<PathBuf>,
    /// Only one change at a time.
    pub turn: tokio::sync::Mutex<()>,
}

/// Change that `kedge secrets-encrypt` asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Write sealed from now on, and what is there anew.
    Enable,
    /// Write open from now on, and what is there anew.
    Disable,
    /// A new key, all at once.
    RotateKeys,
    /// A new key that is known to all servers and writes nothing yet.
    Prepare,
    /// The prepared key writes.
    Rotate,
    /// Everything is written with it anew, and the old one goes.
    Reencrypt,
}

impl Change {
    /// By its name in the path.
    pub fn named(name: &str) -> Option<Change> {
        match name {
            "enable" => Some(Change::Enable),
            "disable" => Some(Change::Disable),
            "rotate-keys" => Some(Change::RotateKeys),
            "prepare" => Some(Change::Prepare),
            "rotate" => Some(Change::Rotate),
            "reencrypt" => Some(Change::Reencrypt),
            _ => None,
        }
    }

    /// Whether it may follow a stage.
    fn may_follow(self, stage: &str) -> bool {
        match self {
            Change::Enable | Change::Disable | Change::RotateKeys => true,
            Change::Prepare => matches!(stage, START | FINISHED),
            Change::Rotate => stage == PREPARE,
            Change::Reencrypt => matches!(stage, ROTATE | ACTIVE),
        }
    }
}

impl Encryption {
    /// For `secrets-encrypt status`; names of keys, never keys.
    ///
    /// Errors: the store does not say what the other servers have.
    pub async fn status(&self, objects: &Objects) -> Result<Value, Status> {
        let state = self.keys.state();
        let mut listed = Vec::new();
        for rule in &state.config.rules {
            let mut first = true;
            for provider in &rule.providers {
                if let Provider::Sealed(cipher, keys) = provider {
                    for key in keys {
                        listed.push(json!({ "active": first, "type": shown(*cipher), "name": key.name,
                            "resources": rule.resources }));
                        first = false;
                    }
                }
                if let Provider::Kms(plugin) = provider {
                    listed.push(
                        json!({ "active": first, "type": "KMSv2", "name": plugin.name, "resources": rule.resources }),
                    );
                }
                first = false;
            }
        }
        let hashes = server_leases::hashes(objects.cache.storage().as_ref()).await?;
        Ok(json!({
            "enabled": state.config.is_enabled(), "stage": state.stage, "hash": state.hash(), "hashes": hashes,
            "hashesMatch": others(&hashes, &state.hash()).is_empty(), "keys": listed, "managed": self.file.is_some(),
        }))
    }

    /// Carries a change out: when it returns, every server that lives has the new configuration, and what is stored is
    /// as it says.
    ///
    /// Errors: 409 for an operator's configuration, a wrong stage (unless forced) or a server that does not follow, 500
    /// when an object cannot be written (asking again goes on).
    pub async fn change(&self, objects: &Objects, change: Change, force: bool) -> Result<Value, Status> {
        let conflict = |why: String| Status::new(409, "Conflict", why);
        if self.file.is_none() {
            let why = "encryption is configured by --encryption-provider-config: change that file and restart";
            return Err(conflict(why.to_owned()));
        }
        let _turn = self.turn.lock().await;
        let state = self.keys.state();
        if !force && !change.may_follow(&state.stage) {
            return Err(conflict(format!(
                "this step cannot follow the stage {}: see 'kedge secrets-encrypt status'",
                state.stage
            )));
        }
        let needs_keys = matches!(change, Change::Prepare | Change::Rotate | Change::Reencrypt);
        if needs_keys && !state.config.is_enabled() {
            return Err(conflict("encryption is disabled: 'kedge secrets-encrypt enable' comes first".to_owned()));
        }
        let steps = planned(&state.config, change, &objects.rng);
        let mut rewritten = None;
        for step in steps {
            match step {
                Step::Publish(config, stage) => self.publish(objects, &config, stage).await?,
                Step::Rewrite => rewritten = Some(rewrite(objects, &self.keys.state().config).await?),
            }
        }
        info!(n = rewritten, change = ?change, "encryption at rest changed");
        let mut status = self.status(objects).await?;
        if let Some(n) = rewritten {
            status["reencrypted"] = json!(n);
        }
        Ok(status)
    }

    /// Gives all servers a configuration, and waits until those that live have it.
    async fn publish(&self, objects: &Objects, config: &Config, stage: &str) -> Result<(), Status> {
        let Some(shared) = self.keys.shared() else {
            return Err(Status::internal("encryption is not shared"));
        };
        let sealed = shared
            .seal(config, stage, &objects.rng)
            .ok_or_else(|| Status::internal("cannot seal the configuration"))?;
        let at = self.keys.state().at;
        let put = Op::Put { key: KEY.into(), value: Bytes::from(sealed), lease: 0, prev_kv: false };
        let unchanged = Compare::ModRevision { key: KEY.into(), op: CompareOp::Equal, revision: at };
        let done =
            objects.cache.storage().txn(Txn { compare: vec![unchanged], success: vec![put], ..Txn::default() }).await?;
        if !done.succeeded {
            return Err(Status::new(
                409,
                "Conflict",
                "another server changes the configuration of encryption: look at its status, and ask again",
            ));
        }
        let begun = Stopwatch::start();
        loop {
            let state = self.keys.state();
            let behind = others(&server_leases::hashes(objects.cache.storage().as_ref()).await?, &state.hash());
            if state.at >= done.revision && behind.is_empty() {
                return Ok(());
            }
            if begun.elapsed() > TAKEN_LIMIT {
                let why = format!(
                    "these servers do not take the new configuration of encryption: {}; see to them, and ask again",
                    behind.join(", ")
                );
                return Err(Status::new(409, "Conflict", why));
            }
            tokio::time::sleep(TAKEN_LOOK).await;
        }
    }
}

/// Servers that have another configuration.
fn others(hashes: &BTreeMap<String, String>, hash: &str) -> Vec<String> {
    hashes.iter().filter(|(_, theirs)| *theirs != hash).map(|(server, _)| server.clone()).collect()
}

/// Step of a change.
enum Step {
    /// All servers get a configuration.
    Publish(Config, &'static str),
    /// Every object that is to be sealed, or was, is written anew.
    Rewrite,
}

fn shown(cipher: Cipher) -> &'static str {
    match cipher {
        Cipher::AesCbc => "AES-CBC",
        Cipher::AesGcm => "AES-GCM",
        Cipher::Secretbox => "XSalsa20-POLY1305",
    }
}

/// The steps of a change. A key writes only when all servers have it.
fn planned(now: &Config, change: Change, rng: &base::rng::Rng) -> Vec<Step> {
    let map = |of: &dyn Fn(&Rule) -> Vec<Provider>| Config {
        rules: now.rules.iter().map(|rule| Rule { resources: rule.resources.clone(), providers: of(rule) }).collect(),
    };
    let keys = |rule: &Rule| -> Vec<Provider> {
        rule.providers.iter().filter(|p| matches!(p, Provider::Sealed(..))).cloned().collect()
    };
    let with_identity = |mut providers: Vec<Provider>| {
        providers.push(Provider::Identity);
        providers
    };
    let fresh = Provider::Sealed(Cipher::Secretbox, vec![new_key(rng, &format!("secretboxkey-{}", rng.hex(4)))]);
    // Of the providers that there are the first stays the first: it writes.
    let known = map(&|rule| {
        rule.providers
            .iter()
            .take(1)
            .cloned()
            .chain([fresh.clone()])
            .chain(rule.providers.iter().skip(1).cloned())
            .collect()
    });
    let first = map(&|rule| with_identity(std::iter::once(fresh.clone()).chain(keys(rule)).collect()));
    let alone = map(&|_| vec![fresh.clone(), Provider::Identity]);
    match change {
        Change::Enable if now.rules.iter().all(|rule| !keys(rule).is_empty()) => {
            vec![Step::Publish(map(&|rule| with_identity(keys(rule))), START), Step::Rewrite]
        }
        Change::Enable => vec![Step::Publish(known, PREPARE), Step::Publish(first, START), Step::Rewrite],
        Change::Disable => {
            vec![
                Step::Publish(map(&|rule| std::iter::once(Provider::Identity).chain(keys(rule)).collect()), START),
                Step::Rewrite,
            ]
        }
        Change::RotateKeys => {
            vec![
                Step::Publish(known, PREPARE),
                Step::Publish(first, ACTIVE),
                Step::Rewrite,
                Step::Publish(alone, FINISHED),
            ]
        }
        Change::Prepare => vec![Step::Publish(known, PREPARE)],
        Change::Rotate => {
            let swapped = map(&|rule| {
                let mut keys = keys(rule);
                if keys.len() > 1 {
                    keys.swap(0, 1);
                }
                with_identity(keys)
            });
            vec![Step::Publish(swapped, ROTATE)]
        }
        Change::Reencrypt => {
            let active = now.clone();
            let last = map(&|rule| with_identity(keys(rule).into_iter().take(1).collect()));
            vec![Step::Publish(active, ACTIVE), Step::Rewrite, Step::Publish(last, FINISHED)]
        }
    }
}

/// Writes every object of the resources that the configuration names anew, as it is. Answers how many.
async fn rewrite(objects: &Objects, config: &Config) -> Result<usize, Status> {
    let (all, _) = objects.cache.read_all(keys::ROOT, None).await?;
    let named = |key: &[u8]| {
        let parsed = std::str::from_utf8(key).ok().and_then(keys::parse);
        parsed.is_some_and(|(group, resource, _)| !config.providers(GroupResource { group, resource }).is_empty())
    };
    let mut written = 0;
    for kv in all.into_iter().filter(|kv| named(&kv.key)) {
        // Somebody who writes it meanwhile writes it sealed anew himself.
        written += usize::from(objects.put_as_it_is(kv).await?);
    }
    Ok(written)
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::rng::Rng;

    fn shares(now: &Config, change: Change) -> Vec<(Config, &'static str)> {
        let steps = planned(now, change, &Rng::from_seed(7));
        steps
            .into_iter()
            .filter_map(|step| if let Step::Publish(config, stage) = step { Some((config, stage)) } else { None })
            .collect()
    }

    fn names(config: &Config) -> Vec<String> {
        let name = |p: &Provider| match p {
            Provider::Sealed(_, keys) => keys.iter().map(|k| k.name.clone()).collect::<Vec<_>>().join("+"),
            Provider::Kms(plugin) => plugin.name.clone(),
            Provider::Identity => "identity".to_owned(),
        };
        config.rules[0].providers.iter().map(name).collect()
    }

    #[test]
    fn a_key_is_known_to_all_before_it_writes_and_the_old_one_reads_until_everything_is_written_anew() {
        let now = Config::generated(pki::seal::Cipher::Secretbox, &Rng::from_seed(1));
        let steps = shares(&now, Change::RotateKeys);
        let fresh = names(&steps[2].0)[0].clone();
        assert_eq!(names(&steps[0].0), ["secretboxkey", &fresh, "identity"]);
        assert_eq!(names(&steps[1].0), [&fresh, "secretboxkey", "identity"]);
        assert_eq!(names(&steps[2].0), [&fresh, "identity"]);
        // The same in three commands.
        let prepared = shares(&now, Change::Prepare).remove(0).0;
        let rotated = shares(&prepared, Change::Rotate).remove(0).0;
        assert_eq!(names(&rotated), names(&steps[1].0));
        assert_eq!(names(&shares(&rotated, Change::Reencrypt)[1].0), names(&steps[2].0));
        let disabled = shares(&now, Change::Disable).remove(0).0;
        assert!(!disabled.is_enabled() && names(&disabled) == ["identity", "secretboxkey"]);
        assert_eq!(names(&shares(&disabled, Change::Enable)[0].0), names(&now));
        let without = Config::parse(
            "kind: EncryptionConfiguration\nresources: [{resources: [secrets], providers: [identity: {}]}]",
        )
        .ok()
        .unwrap();
        let enabled = shares(&without, Change::Enable);
        assert!(!enabled[0].0.is_enabled() && enabled[1].0.is_enabled());
    }

    #[test]
    fn stages_follow_each_other() {
        assert!(
            Change::Prepare.may_follow(START)
                && Change::Rotate.may_follow(PREPARE)
                && Change::Reencrypt.may_follow(ROTATE)
        );
        assert!(
            !Change::Rotate.may_follow(START)
                && !Change::Reencrypt.may_follow(PREPARE)
                && !Change::Prepare.may_follow(ROTATE)
        );
        let hashes = BTreeMap::from([("10.0.0.1".to_owned(), "a".to_owned()), ("10.0.0.2".to_owned(), String::new())]);
        assert_eq!(others(&hashes, "a"), ["10.0.0.2"]);
    }
}
