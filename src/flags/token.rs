//! The token that a person gave: a flag's text or a file.

use std::path::Path;

use base::files::FileError;
use base::secret::Secret;
use cluster::refusal::Refusal;
use pki::error::PkiError;
use pki::token::{Credential, JoinToken};

/// Why joining cannot be offered.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FrontError {
    #[error("--{flag}: {reason}")]
    Flag { flag: &'static str, reason: String },
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Pki(#[from] PkiError),
    #[error("cannot record this machine as node {node}")]
    Identity { node: String, source: Refusal },
}

/// A token as given by flag, or by a file.
pub(crate) struct Given<'a> {
    pub(crate) flag: &'static str,
    pub(crate) text: Option<&'a str>,
    pub(crate) file: Option<&'a Path>,
    /// Whether this server wrote the file.
    pub(crate) own: bool,
}

impl Given<'_> {
    /// The token's text, if one was given.
    pub(crate) fn read(&self) -> Result<Option<String>, FileError> {
        let text = match (self.text, self.file) {
            (Some(text), _) => text.to_owned(),
            (None, Some(file)) => {
                std::fs::read_to_string(file).map_err(FileError::at("cannot read token file", file))?
            }
            (None, None) => return Ok(None),
        };
        Ok(Some(text.trim().to_owned()).filter(|text| !text.is_empty()))
    }

    /// The password that sealed a snapshot, whichever cluster it is of.
    pub(crate) fn seal(&self) -> Result<Option<Secret<String>>, FrontError> {
        let refused = |reason: String| FrontError::Flag { flag: self.flag, reason };
        let Some(text) = self.read()? else { return Ok(None) };
        match JoinToken::parse(&text).map_err(|err| refused(err.to_string()))?.credential {
            Credential::Password { password, .. } => Ok(Some(password)),
            Credential::Bootstrap(_) => Err(refused("a bootstrap token seals nothing; give the servers'".to_owned())),
        }
    }

    /// The password in the token. A token that pins another authority than `ca` is another cluster's.
    pub(crate) fn password(&self, ca: &str) -> Result<Option<Secret<String>>, FrontError> {
        let refused = |reason: String| FrontError::Flag { flag: self.flag, reason };
        let Some(text) = self.read()? else { return Ok(None) };
        let token = JoinToken::parse(&text).map_err(|err| refused(err.to_string()))?;
        let foreign = |pinned: &String| pki::token::vouched_for(ca.as_bytes(), pinned).is_ok_and(|own| own.is_empty());
        // Our own files may be from before the authorities were replaced.
        if let Some(pinned) = token.ca_hash.filter(|pinned| !self.own && foreign(pinned)) {
            let own = pki::token::ca_hash(ca.as_bytes())?;
            return Err(refused(format!(
                "the token is for the cluster whose authority has the fingerprint {pinned}, but this server has its own, {own}: to join that cluster give --server and a fresh --data-dir; else give the password alone"
            )));
        }
        match token.credential {
            Credential::Password { password, .. } => Ok(Some(password)),
            Credential::Bootstrap(_) => Err(refused("a bootstrap token is for agents; give a password".to_owned())),
        }
    }
}
