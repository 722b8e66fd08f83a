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
use base::files::{create_private_dir, read_if_exists};
use base::sync::RwLock;
use k8s_cri::v1 as cri;
use tracing::warn;

use self::file::File;
use crate::error::Error;
use crate::registries::places::Places;

/// What the file says now.
#[derive(Default)]
pub(crate) struct Registries(RwLock<Arc<File>>);

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
    /// Errors: one sentence; what was in force stays so.
    fn load(&self, places: &Places) -> Result<bool, String> {
        let text = read_if_exists(&places.file).map_err(|err| Chain(&err).to_string())?;
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
    if let Err(why) = Registries::default().load(places) {
        warn!(path = %places.file.display(), why, "registries are not configured");
    }
    Ok(())
}
