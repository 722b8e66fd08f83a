//! Where the keys of encryption at rest come from: the operator's file, what the servers share in the store, our own
//! file, or a new one.

use std::path::Path;
use std::sync::Arc;

use apiserver::arguments::Arguments;
use apiserver::crypt::config::{Config, Provider};
use apiserver::crypt::kms::{Envelope, KmsError};
use apiserver::crypt::rotate::Encryption;
use apiserver::crypt::sealed::{EncryptionKeys, Sealed};
use apiserver::crypt::shared::{KEY, START, SharedConfig, SharedConfigError, State};
use base::chain::Chain;
use base::files;
use base::layout::{Layout, ServerFolder};
use base::rng::Rng;
use base::task::Group;
use model::reference::GroupResource;
use pki::seal::Cipher;
use store::{RangeRequest, Revision, Storage};
use tracing::warn;

use crate::flags::roles::ServerArgs;
use crate::server::error::ServerError;

/// Where Secrets live in the store.
const SECRETS: &str = "/registry/core/secrets/";

/// The flags of encryption.
pub(crate) struct Wanted<'a> {
    pub(crate) arguments: &'a Arguments,
    /// How a first key seals.
    pub(crate) cipher: Cipher,
    /// Whether a flag says that Secrets are sealed.
    pub(crate) claimed: bool,
}

impl<'a> Wanted<'a> {
    /// By a server's flags.
    pub(crate) fn of(args: &ServerArgs, arguments: &'a Arguments) -> Wanted<'a> {
        let cipher = match args.secrets_encryption_provider.as_deref() {
            Some("aescbc") => Cipher::AesCbc,
            _ => Cipher::Secretbox,
        };
        Wanted { arguments, cipher, claimed: args.secrets_encryption }
    }
}

/// The store with its values sealed, and what rotates the keys. Secrets are sealed from the first start on.
///
/// Errors: the configuration cannot be read or made, or a plugin that it names is not ready.
pub(crate) async fn sealed(
    folder: &ServerFolder,
    wanted: &Wanted<'_>,
    store: Arc<dyn Storage>,
    rng: &Rng,
    group: &Group,
) -> Result<(Encryption, Arc<dyn Storage>), ServerError> {
    let parse = |path: &Path, text: &str| {
        Config::parse(text).map_err(|err| {
            ServerError::Argument(format!("encryption configuration {}: {}", path.display(), Chain(&err)))
        })
    };
    let own = folder.encryption_config();
    let alone = |config: Config| State { config, stage: START.to_owned(), at: Revision(0) };
    if let Some(path) = &wanted.arguments.encryption_config {
        let text = std::fs::read_to_string(path).map_err(files::FileError::at("cannot read", path))?;
        let config = parse(path, &text)?;
        if wanted.claimed && !seals_secrets(&config) {
            return Err(ServerError::Flag {
                flag: "secrets-encryption",
                reason: format!("by the encryption configuration {} Secrets are written as they are", path.display()),
            });
        }
        let mut plugins = Vec::new();
        for settings in config.plugins() {
            let started = Envelope::start(settings, rng.clone(), group).await;
            let refused = |err: KmsError| ServerError::Argument(format!("encryption configuration: {}", Chain(&err)));
            plugins.push(started.map_err(refused)?);
        }
        let keys = Arc::new(EncryptionKeys::new(alone(config), None, rng.clone()).guarded_by(plugins));
        let encryption = Encryption { keys: Arc::clone(&keys), file: None, turn: tokio::sync::Mutex::default() };
        return Ok((encryption, Arc::new(Sealed::new(store, keys))));
    }
    // All servers have it, and they alone.
    let service_key = pki::folder::service_key(&folder.tls());
    let secret = std::fs::read_to_string(&service_key).map_err(files::FileError::at("cannot read", &service_key))?;
    let shared = SharedConfig::new(&secret, own.clone());
    let unread = |err: store::error::Error| {
        ServerError::Argument(format!("cannot look for the configuration of encryption: {err}"))
    };
    let stored = store.range(RangeRequest { key: KEY.into(), ..RangeRequest::default() }).await.map_err(unread)?;
    let state = match (stored.kvs.first(), files::read_if_exists(&own)?) {
        // What the servers agreed on since then is newer than the file.
        (Some(kv), _) => {
            let bad = |err: SharedConfigError| {
                ServerError::Argument(format!("the configuration of encryption in the store: {}", Chain(&err)))
            };
            let state = shared.open(&kv.value, kv.mod_revision).map_err(bad)?;
            shared.keep(&state);
            state
        }
        (None, Some(bytes)) => alone(parse(&own, &String::from_utf8_lossy(&bytes))?),
        (None, None) => {
            refuse_a_second_key(store.as_ref(), &own).await?;
            let config = Config::generated(wanted.cipher, rng);
            if let Some(dir) = own.parent() {
                files::create_private_dir(dir)?;
            }
            files::write_atomic(&own, config.to_json().as_bytes(), 0o600)?;
            alone(config)
        }
    };
    if wanted.claimed && !seals_secrets(&state.config) {
        // Not refused: the command says of itself that it stays.
        warn!(
            "--secrets-encryption is given, and 'kedge secrets-encrypt disable' switched it off: Secrets are written \
             as they are"
        );
    }
    let keys = Arc::new(EncryptionKeys::new(state, Some(shared), rng.clone()));
    let encryption = Encryption { keys: Arc::clone(&keys), file: Some(own), turn: tokio::sync::Mutex::default() };
    Ok((encryption, Arc::new(Sealed::new(store, keys))))
}

/// Whether new Secrets are written sealed.
fn seals_secrets(config: &Config) -> bool {
    !matches!(config.providers(GroupResource::core("secrets")).first(), None | Some(Provider::Identity))
}

/// A new key beside Secrets that another one sealed would make them unreadable: the key has to come here first.
async fn refuse_a_second_key(storage: &dyn Storage, own: &Path) -> Result<(), ServerError> {
    let request = RangeRequest {
        key: SECRETS.into(),
        range_end: store::prefix_end(SECRETS.as_bytes()),
        ..RangeRequest::default()
    };
    let unread = |err: store::error::Error| ServerError::Argument(format!("cannot look for encrypted Secrets: {err}"));
    let found = storage.range(request).await.map_err(unread)?;
    if !found.kvs.iter().any(|kv| kv.value.starts_with(b"k8s:enc:")) {
        return Ok(());
    }
    let why = format!(
        "the store holds Secrets that another server's key encrypted: copy its {} to {} and start again",
        Layout::relative().server().encryption_config().display(),
        own.display()
    );
    Err(ServerError::Argument(why))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_sealed_if_the_first_provider_of_theirs_seals() {
        let of = |resources: &str, first: &str| {
            let identity = r#"{"identity": {}}"#;
            let sealing =
                r#"{"secretbox": {"keys": [{"name": "k", "secret": "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="}]}}"#;
            let providers = if first == "identity" { [identity, sealing] } else { [sealing, identity] }.join(", ");
            let text = format!(
                r#"{{"kind": "EncryptionConfiguration", "apiVersion": "apiserver.config.k8s.io/v1",
                "resources": [{{"resources": ["{resources}"], "providers": [{providers}]}}]}}"#
            );
            seals_secrets(&Config::parse(&text).unwrap_or_else(|_| panic!("{text}")))
        };
        assert!(of("secrets", "secretbox"));
        assert!(!of("secrets", "identity"));
        assert!(!of("configmaps", "secretbox"), "Secrets have no provider");
    }
}
