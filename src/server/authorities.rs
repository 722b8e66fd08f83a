//! New authorities: a server follows the sealed set in the store and takes it at its next start.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;

use base::chain::Chain;
use base::files::{self, FileError};
use base::layout::ServerFolder;
use base::task::Group;
use client::informer::Informers;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use pki::error::PkiError;
use pki::replace::{Authorities, Replacement};
use tracing::{error, info, warn};

pub(crate) const NAMESPACE: &str = "kube-system";

pub(crate) const NAME: &str = "kedge-authorities";

pub(crate) const TYPE: &str = "kedge.io/authorities";

const FIELD: &str = "sealed";

/// On a server's Node: which set it uses.
pub(crate) const IN_USE: &str = "kedge.io/authorities";

/// Why a set of authorities cannot be used on this server.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AuthoritiesError {
    #[error("cannot read {path}: {why}; is this a server, and are you root?", path = path.display())]
    ServiceKey { path: PathBuf, why: io::Error },
    #[error("Secret {NAMESPACE}/{NAME} has no field {FIELD}")]
    NoField,
    #[error("Secret {NAMESPACE}/{NAME} was sealed with another service.key than this server's")]
    ForeignSeal,
    #[error(
        "they replace others than this server's {using}: stop it, and copy the files *-ca.* of server/tls from another"
    )]
    OfOthers { using: String },
    #[error("the set cannot be written")]
    Unwritten(#[from] serde_json::Error),
    #[error(transparent)]
    Pki(#[from] PkiError),
    #[error(transparent)]
    File(#[from] FileError),
}

/// Takes the set that came while the server ran last time. To be called before certificates are read.
pub(crate) fn take_next(server: &ServerFolder) -> Result<(), PkiError> {
    let path = server.next_authorities();
    let Some(bytes) = files::read_if_exists(&path)? else { return Ok(()) };
    let next: Authorities = serde_json::from_slice(&bytes).map_err(|err| PkiError::Unusable {
        path: path.clone(),
        what: "set of authorities",
        why: err.to_string(),
    })?;
    next.write(&server.tls())?;
    std::fs::remove_file(&path).map_err(FileError::at("cannot remove", &path))?;
    info!("the authorities that 'kedge certificate rotate-ca' brought are in use from now on");
    Ok(())
}

/// The set that a server uses, by its fingerprint.
pub(crate) fn in_use(server: &ServerFolder) -> Result<String, PkiError> {
    Authorities::load(&server.tls())?.fingerprint()
}

/// Keeps a set that comes for the next start. `using`: the fingerprint of the set in use.
pub(crate) fn follow(server: ServerFolder, using: String, informers: &Informers, group: &Group) {
    let secrets = informers.selected::<Secret>(&format!("metadata.name={NAME}"));
    group.spawn("authorities", async move {
        let mut changes = secrets.changes();
        secrets.synced().await;
        loop {
            if let Some(secret) = secrets.get(NAMESPACE, NAME).filter(|secret| secret.type_.as_deref() == Some(TYPE))
                && let Err(err) = keep(&server, &using, &secret)
            {
                error!(why = %Chain(&err), "the new authorities cannot be used here");
            }
            changes.next().await;
            changes.drain();
        }
    });
}

fn keep(server: &ServerFolder, using: &str, secret: &Secret) -> Result<(), AuthoritiesError> {
    let replacement = opened(server, secret)?;
    let coming = replacement.set.fingerprint()?;
    let path = server.next_authorities();
    if coming == using {
        return Ok(());
    }
    if !replacement.replaces.iter().any(|old| old == using) {
        return Err(AuthoritiesError::OfOthers { using: using.to_owned() });
    }
    let bytes = serde_json::to_vec(&replacement.set)?;
    if files::read_if_exists(&path)?.is_some_and(|kept| kept == bytes) {
        return Ok(());
    }
    files::create_private_dir(&server.cred())?;
    files::write_atomic(&path, &bytes, 0o600)?;
    warn!("new authorities are here: restart this server to use them");
    Ok(())
}

/// The authorities that a Secret carries to this server.
pub(crate) fn opened(server: &ServerFolder, secret: &Secret) -> Result<Replacement, AuthoritiesError> {
    let key = service_key(server)?;
    let sealed = secret.data.as_ref().and_then(|data| data.get(FIELD)).ok_or(AuthoritiesError::NoField)?;
    Replacement::open(&sealed.0, &key).ok_or(AuthoritiesError::ForeignSeal)
}

/// The key that servers alone have, and seal with.
pub(crate) fn service_key(server: &ServerFolder) -> Result<String, AuthoritiesError> {
    let path = pki::folder::service_key(&server.tls());
    std::fs::read_to_string(&path).map_err(|why| AuthoritiesError::ServiceKey { path, why })
}

/// The Secret in which a set travels. `version`: of the one that it takes the place of.
pub(crate) fn secret_of(sealed: Vec<u8>, version: Option<String>) -> Secret {
    let metadata = ObjectMeta {
        name: Some(NAME.to_owned()),
        namespace: Some(NAMESPACE.to_owned()),
        resource_version: version,
        ..ObjectMeta::default()
    };
    let data = BTreeMap::from([(FIELD.to_owned(), ByteString(sealed))]);
    Secret { metadata, data: Some(data), type_: Some(TYPE.to_owned()), ..Secret::default() }
}

#[cfg(test)]
pub(crate) mod tests {
    use base::rng::Rng;
    use base::time::Clock;

    use super::*;

    /// Of a server `s1` without addresses.
    pub(crate) fn options() -> pki::server::Options {
        pki::server::Options {
            clock: Clock::system(),
            leaf_life: pki::authority::LEAF_LIFE,
            node_name: "s1".to_owned(),
            node_ips: vec![],
            service_ips: vec![],
            cluster_domain: "cluster.local".to_owned(),
            tls_sans: vec![],
        }
    }

    #[test]
    fn a_set_is_kept_once_and_taken_at_the_next_start() {
        let dir = tempfile::tempdir().unwrap();
        let options = options();
        let server = ServerFolder::new(dir.path());
        let tls = server.tls();
        pki::server::Pki::load_or_create(&tls, options.clone()).unwrap();
        let using = in_use(&server).unwrap();
        let sent = |replaces: &str| {
            // Authorities of one second would have one name.
            let later = Clock::system().now().checked_add(jiff::SignedDuration::from_secs(60)).unwrap();
            let set = Authorities::load(&tls).unwrap().replaced_by(None, false, later).unwrap();
            let sealed = Replacement { replaces: vec![replaces.to_owned()], set }
                .seal(&service_key(&server).unwrap(), &Rng::from_seed(1));
            secret_of(sealed.unwrap(), None)
        };
        assert!(keep(&server, &using, &sent("others")).unwrap_err().to_string().contains("replace others"));
        assert!(!server.next_authorities().exists());
        keep(&server, &using, &sent(&using)).unwrap();
        assert!(server.next_authorities().exists() && in_use(&server).unwrap() == using);
        take_next(&server).unwrap();
        assert!(!server.next_authorities().exists() && in_use(&server).unwrap() != using);
        let again = pki::server::Pki::load_or_create(&tls, options).unwrap();
        assert_eq!(again.authority(pki::leaf::Ca::Server).chain().len(), 3);
    }
}
