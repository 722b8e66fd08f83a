//! `registries.yaml`: mirrors, credentials and authorities of registries, as k3s users write it, in force as soon as it
//! is saved.
//!
//! `file` reads it, `hosts` turns mirrors and TLS into containerd's `certs.d`, which containerd reads at every
//! pull. Credentials go with each pull over the CRI and are in no file but that one.

pub(crate) mod file;
pub(crate) mod follow;
pub(crate) mod hosts;
pub mod places;

use std::sync::Arc;

use base::chain::Chain;
use base::files::{FileError, create_private_dir, read_if_exists};
use base::sync::RwLock;
use k8s_cri::v1 as cri;
use tracing::warn;

use self::file::{File, RegistriesFileError};
use self::hosts::HostsError;
use crate::error::Error;
use crate::registries::places::Places;

/// The contents of the file as they are in force.
#[derive(Default)]
pub(crate) struct Registries(RwLock<Arc<File>>);

/// A file that cannot be put in force.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LoadError {
    #[error(transparent)]
    Read(#[from] FileError),
    #[error(transparent)]
    Parse(#[from] RegistriesFileError),
    #[error(transparent)]
    Hosts(#[from] HostsError),
}

impl Registries {
    fn now(&self) -> Arc<File> {
        Arc::clone(&self.0.read())
    }

    /// Credentials for the registries that may be asked for an image, each good for one of them alone.
    pub(crate) fn credentials(&self, image: &str) -> Vec<cri::AuthConfig> {
        self.now().credentials(image)
    }

    /// Reads the file and writes `certs.d`. Returns whether anything is new.
    ///
    /// Errors: what was in force stays so.
    fn load(&self, places: &Places) -> Result<bool, LoadError> {
        let text = read_if_exists(&places.file)?;
        let file = File::parse(&String::from_utf8_lossy(&text.unwrap_or_default()))?;
        hosts::write(places, &file)?;
        let mut now = self.0.write();
        let changed = **now != file;
        *now = Arc::new(file);
        Ok(changed)
    }
}

/// The address of the registry that has an image: the only host that credentials for it are shown to.
pub(crate) fn server_of(image: &str) -> String {
    file::own_endpoint(file::registry_of(image)).base
}

/// Before containerd starts: its folder must be there. A file that cannot be used is told of by [`follow`].
pub(crate) fn prepare(places: &Places) -> Result<(), Error> {
    create_private_dir(&places.certs_dir)?;
    if let Err(err) = Registries::default().load(places) {
        warn!(path = %places.file.display(), err = %Chain(&err), "registries are not configured");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_cannot_be_used_leaves_in_force_what_was() {
        let dir = tempfile::tempdir().unwrap();
        let (file, certs_dir) = (dir.path().join("registries.yaml"), dir.path().join("certs.d"));
        let places = Places { file, certs_dir, default_endpoint: true };
        create_private_dir(&places.certs_dir).unwrap();
        let registries = Registries::default();
        assert!(!registries.load(&places).unwrap(), "no file says nothing");
        let auth = "configs: {r.io: {auth: {username: u, password: p}}}";
        std::fs::write(&places.file, auth).unwrap();
        assert!(registries.load(&places).unwrap());
        assert!(!registries.load(&places).unwrap(), "nothing is new");
        std::fs::write(&places.file, "mirrors: {r.io: {endpoint: ['ftp://x']}}").unwrap();
        let err = registries.load(&places).unwrap_err();
        let text = "mirror r.io: endpoint 'ftp://x' is no URL such as https://mirror.example:5000";
        assert_eq!(Chain(&err).to_string(), text);
        let users: Vec<String> = registries.credentials("r.io/a").into_iter().map(|auth| auth.username).collect();
        assert_eq!(users, ["u"]);
    }
}
