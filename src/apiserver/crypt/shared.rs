//! One configuration of encryption for all servers: it lies in the store under a key of its own, sealed with what
//! servers alone have. Every server takes it from the stream of changes, so it knows a key before it meets a value that
//! was sealed with it, and says by a hash beside its sign of life which configuration it has.

use std::path::PathBuf;

use base::chain::Chain;
use base::files;
use base::rng::Rng;
use base::secret::Secret;
use pki::seal::{Cipher, Key};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use store::Revision;
use tracing::{error, info};

use super::config::{Config, ConfigError};

/// Where it lies: no object's key.
pub const KEY: &str = "/registry/kedge-encryption";
/// The stage in which nothing is going on.
pub const START: &str = "start";

/// The state of now.
#[derive(Clone)]
pub struct State {
    /// The keys.
    pub config: Config,
    /// How far a change is, in k3s's words.
    pub stage: String,
    /// Since when it lies in the store; 0: it is this server's alone, from its file.
    pub at: Revision,
}

impl State {
    /// Equal on servers that have the same keys in the same order, at the same stage.
    pub fn hash(&self) -> String {
        let digest =
            Sha256::new().chain_update(&self.stage).chain_update([0]).chain_update(self.config.to_json()).finalize();
        let hex = base::hex::encode(&digest);
        format!("{}-{hex}", self.stage)
    }
}

/// Why the configuration in the store cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SharedConfigError {
    /// Servers of another cluster sealed it.
    #[error("it was sealed with another service.key than this server's")]
    Foreign,
    /// It is not whole.
    #[error(transparent)]
    Syntax(#[from] serde_json::Error),
    /// It says what no configuration may say.
    #[error(transparent)]
    Config(#[from] ConfigError),
}

/// How this server shares its configuration.
pub struct SharedConfig {
    key: Key,
    /// Our own file, for the next start and for servers that join.
    file: PathBuf,
}

impl SharedConfig {
    /// `secret` is a text that all servers, and they alone, have.
    pub fn new(secret: &str, file: PathBuf) -> SharedConfig {
        let secret = Sha256::new().chain_update("kedge encryption").chain_update(secret.trim()).finalize().to_vec();
        SharedConfig { key: Key { name: "servers".to_owned(), secret: Secret::new(secret) }, file }
    }

    /// The value for [`KEY`].
    pub fn seal(&self, config: &Config, stage: &str, rng: &Rng) -> Option<Vec<u8>> {
        let plain = json!({ "stage": stage, "config": config.to_json() }).to_string();
        Cipher::AesGcm.seal(&self.key, KEY.as_bytes(), plain.as_bytes(), rng)
    }

    /// The state that lies under [`KEY`] since `at`.
    ///
    /// Errors: it was sealed by servers of another cluster, or is not whole.
    pub fn open(&self, value: &[u8], at: Revision) -> Result<State, SharedConfigError> {
        let prefix = Cipher::AesGcm.prefix(&self.key.name);
        let plain =
            value.strip_prefix(prefix.as_bytes()).and_then(|text| Cipher::AesGcm.open(&self.key, KEY.as_bytes(), text));
        let plain = plain.ok_or(SharedConfigError::Foreign)?;
        let read: Value = serde_json::from_slice(&plain)?;
        let stage = read["stage"].as_str().unwrap_or(START).to_owned();
        Ok(State { config: Config::parse(read["config"].as_str().unwrap_or_default())?, stage, at })
    }

    /// Keeps a configuration in the file.
    pub fn keep(&self, state: &State) {
        let text = state.config.to_json();
        let same =
            files::read_if_exists(&self.file).is_ok_and(|found| found.is_some_and(|found| found == text.as_bytes()));
        let made = self.file.parent().map_or(Ok(()), files::create_private_dir);
        if let (false, Err(err)) = (same, made.and_then(|()| files::write_atomic(&self.file, text.as_bytes(), 0o600))) {
            // The store has it: at the next start it is taken from there.
            error!(err = %Chain(&err), "cannot keep the configuration of encryption in its file");
        }
        info!(stage = %state.stage, "encryption at rest is configured anew");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_of_one_cluster_share_and_others_cannot_read() {
        let (rng, dir) = (Rng::from_seed(1), tempfile::tempdir().unwrap());
        let shared = |secret: &str| SharedConfig::new(secret, dir.path().join("cred/file"));
        let config = Config::generated(pki::seal::Cipher::Secretbox, &rng);
        let sealed = shared("a").seal(&config, "prepare", &rng).unwrap();
        let state = shared("a\n").open(&sealed, Revision(7)).ok().unwrap();
        assert!(state.stage == "prepare" && state.config.to_json() == config.to_json() && state.at == Revision(7));
        assert!(shared("b").open(&sealed, Revision(7)).is_err());
        let other = State { config: Config::generated(pki::seal::Cipher::Secretbox, &rng), ..state.clone() };
        assert!(state.hash().starts_with("prepare-") && state.hash() != other.hash());
        shared("a").keep(&state);
        assert_eq!(std::fs::read_to_string(dir.path().join("cred/file")).unwrap(), config.to_json());
    }
}
