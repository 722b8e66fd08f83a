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
    #[error("--{flag}")]
    Token { flag: &'static str, source: TokenFault },
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Pki(#[from] PkiError),
    #[error("cannot record this machine as node {node}")]
    Identity { node: String, source: Refusal },
}

/// Why a token cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TokenFault {
    #[error(transparent)]
    Malformed(#[from] PkiError),
    #[error("a bootstrap token seals nothing; give the servers'")]
    SealsNothing,
    #[error("a bootstrap token is for agents; give a password")]
    ForAgents,
    #[error(
        "the token is for the cluster whose authority has the fingerprint {pinned}, but this server has its own, \
         {own}: to join that cluster give --server and a fresh --data-dir; else give the password alone"
    )]
    OtherCluster { pinned: String, own: String },
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
    fn refused(&self, source: TokenFault) -> FrontError {
        FrontError::Token { flag: self.flag, source }
    }

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
        let Some(text) = self.read()? else { return Ok(None) };
        match JoinToken::parse(&text).map_err(|err| self.refused(err.into()))?.credential {
            Credential::Password { password, .. } => Ok(Some(password)),
            Credential::Bootstrap(_) => Err(self.refused(TokenFault::SealsNothing)),
        }
    }

    /// The password in the token. A token that pins another authority than `ca` is another cluster's.
    pub(crate) fn password(&self, ca: &str) -> Result<Option<Secret<String>>, FrontError> {
        let Some(text) = self.read()? else { return Ok(None) };
        let token = JoinToken::parse(&text).map_err(|err| self.refused(err.into()))?;
        let foreign = |pinned: &String| pki::token::vouched_for(ca.as_bytes(), pinned).is_ok_and(|own| own.is_empty());
        // Our own files may be from before the authorities were replaced.
        if let Some(pinned) = token.ca_hash.filter(|pinned| !self.own && foreign(pinned)) {
            let own = pki::token::ca_hash(ca.as_bytes())?;
            return Err(self.refused(TokenFault::OtherCluster { pinned, own }));
        }
        match token.credential {
            Credential::Password { password, .. } => Ok(Some(password)),
            Credential::Bootstrap(_) => Err(self.refused(TokenFault::ForAgents)),
        }
    }
}

#[cfg(test)]
mod tests {
    use base::chain::Chain;

    use super::*;

    const BOOTSTRAP: &str = "abcdef.0123456789abcdef";

    fn given(text: &str) -> Given<'_> {
        Given { flag: "token", text: Some(text), file: None, own: false }
    }

    fn shown(read: Result<Option<Secret<String>>, FrontError>) -> Result<Option<String>, String> {
        read.map(|found| found.map(|secret| secret.expose().clone())).map_err(|err| Chain(&err).to_string())
    }

    #[test]
    fn a_flag_goes_before_its_file_and_blanks_around_a_token_do_not_count() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("token");
        std::fs::write(&file, "of-the-file\n").unwrap();
        let read = |text, file| Given { flag: "token", text, file, own: false }.read();
        assert_eq!(read(Some(" of-the-flag "), Some(&file)).unwrap().as_deref(), Some("of-the-flag"));
        assert_eq!(read(None, Some(&file)).unwrap().as_deref(), Some("of-the-file"));
        assert_eq!(read(None, None).unwrap(), None);
        assert_eq!(read(Some("  "), None).unwrap(), None, "an empty one is none");
        let missing = read(None, Some(&dir.path().join("none"))).unwrap_err().to_string();
        assert!(missing.starts_with("cannot read token file"), "{missing}");
    }

    #[test]
    fn a_bootstrap_token_is_no_password_and_the_refusal_names_the_flag() {
        let hash = "0".repeat(64);
        for (text, sealed, password) in [
            ("secret".to_owned(), Ok("secret"), Ok("secret")),
            (
                BOOTSTRAP.to_owned(),
                Err("--token: a bootstrap token seals nothing; give the servers'"),
                Err("--token: a bootstrap token is for agents; give a password"),
            ),
            (
                format!("K10{hash}"),
                Err("--token: no usable token: no :: after the hash of the authority"),
                Err("--token: no usable token: no :: after the hash of the authority"),
            ),
            (
                "K10xyz::server:p".to_owned(),
                Err("--token: no usable token: the hash of the authority is not 64 hex digits"),
                Err("--token: no usable token: the hash of the authority is not 64 hex digits"),
            ),
        ] {
            let wanted = |said: Result<&str, &str>| said.map(|text| Some(text.to_owned())).map_err(str::to_owned);
            assert_eq!(shown(given(&text).seal()), wanted(sealed), "{text}");
            assert_eq!(shown(given(&text).password("")), wanted(password), "{text}");
        }
    }

    #[test]
    fn a_sealed_snapshot_may_be_of_any_cluster() {
        let text = format!("K10{}::server:p", "0".repeat(64));
        assert_eq!(shown(given(&text).seal()), Ok(Some("p".to_owned())));
    }
}
