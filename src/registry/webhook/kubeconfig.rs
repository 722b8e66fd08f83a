//! The kubeconfig files in which operators say where the authentication, authorization and audit webhooks are.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::files::FileError;
use base::secret::Secret;
use base64::engine::general_purpose::STANDARD;
use base64::{DecodeError, Engine as _};
use pki::certstore::{CertStore, Pair};
use serde_json::Value;

use super::call::{Endpoint, EndpointError};
use super::client::Identity;

/// Why a kubeconfig cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KubeconfigError {
    /// It, or a file that it names, cannot be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// Its contents are wrong.
    #[error("{}", path.display())]
    Contents {
        /// The kubeconfig.
        path: PathBuf,
        /// Reason.
        source: Box<KubeconfigError>,
    },
    /// It is no YAML. The parser's text has its causes in it, so they are no source.
    #[error("{0}")]
    Syntax(serde_saphyr::Error),
    /// Its context has no cluster.
    #[error("no cluster")]
    NoCluster,
    /// Its cluster has no address.
    #[error("the cluster has no server")]
    NoServer,
    /// The address cannot be used.
    #[error(transparent)]
    Server(#[from] EndpointError),
    /// A field `…-data` is no base64.
    #[error("{key}-data")]
    Data {
        /// The field without `-data`.
        key: &'static str,
        /// Reason.
        source: DecodeError,
    },
    /// A field `…-data` is no text.
    #[error("{0}-data is not PEM")]
    DataIsNoText(&'static str),
    /// Certificate and key do not make a pair.
    #[error(transparent)]
    Pair(#[from] pki::error::PkiError),
    /// One of the pair is missing.
    #[error("client-certificate and client-key go together")]
    HalfAPair,
    /// A way to authenticate that is not there.
    #[error("{0} is not supported here: give a client certificate or a token")]
    Unsupported(&'static str),
}

/// A webhook of the server itself.
#[derive(Clone)]
pub struct Remote {
    /// Where.
    pub endpoint: Endpoint,
    /// As whom.
    pub identity: Identity,
}

impl Remote {
    /// Reads a kubeconfig: its current context's cluster and user (upstream: the only ones).
    ///
    /// Errors: the file cannot be read or used; the error names it.
    pub fn read(path: &Path) -> Result<Remote, KubeconfigError> {
        let text = read(path)?;
        let folder = path.parent().unwrap_or(Path::new("/"));
        let wrong = |err| KubeconfigError::Contents { path: path.to_owned(), source: Box::new(err) };
        Remote::parse(&text, folder).map_err(wrong)
    }

    fn parse(text: &str, folder: &Path) -> Result<Remote, KubeconfigError> {
        let config: Value = serde_saphyr::from_str(text).map_err(KubeconfigError::Syntax)?;
        let named = |list: &str, name: &str, inner: &str| -> Option<Value> {
            let entries = config[list].as_array()?;
            let found =
                entries.iter().find(|e| e["name"] == name).or(if name.is_empty() { entries.first() } else { None })?;
            Some(found[inner].clone())
        };
        let current = config["current-context"].as_str().unwrap_or_default();
        let context = named("contexts", current, "context").unwrap_or_default();
        let cluster = named("clusters", context["cluster"].as_str().unwrap_or_default(), "cluster")
            .ok_or(KubeconfigError::NoCluster)?;
        let user = named("users", context["user"].as_str().unwrap_or_default(), "user").unwrap_or_default();
        let server = cluster["server"].as_str().ok_or(KubeconfigError::NoServer)?;
        let mut endpoint = Endpoint::from_url(server)?;
        endpoint.ca_pem = data_or_file(&cluster, "certificate-authority", folder)?.unwrap_or_default();
        let certificate =
            match (data_or_file(&user, "client-certificate", folder)?, data_or_file(&user, "client-key", folder)?) {
                (Some(cert), Some(key)) => Some(CertStore::new(Pair::from_pem(&cert, &key)?)),
                (None, None) => None,
                _ => return Err(KubeconfigError::HalfAPair),
            };
        let token = match (user["token"].as_str(), user["tokenFile"].as_str()) {
            (Some(token), _) => Some(token.to_owned()),
            (None, Some(file)) => Some(read(&folder.join(file))?.trim().to_owned()),
            (None, None) => None,
        };
        for unsupported in ["exec", "auth-provider", "username"] {
            if !user[unsupported].is_null() {
                return Err(KubeconfigError::Unsupported(unsupported));
            }
        }
        let insecure = cluster["insecure-skip-tls-verify"].as_bool().unwrap_or(false);
        Ok(Remote {
            endpoint,
            identity: Identity { certificate, token: token.map(|t| Arc::new(Secret::new(t))), insecure },
        })
    }
}

fn read(path: &Path) -> Result<String, FileError> {
    std::fs::read_to_string(path).map_err(FileError::at("cannot read", path))
}

/// `KEY-data` in base64, or the file that `KEY` names, beside the kubeconfig.
fn data_or_file(of: &Value, key: &'static str, folder: &Path) -> Result<Option<String>, KubeconfigError> {
    if let Some(data) = of[format!("{key}-data").as_str()].as_str() {
        let bytes = STANDARD.decode(data).map_err(|source| KubeconfigError::Data { key, source })?;
        return String::from_utf8(bytes).map(Some).map_err(|_| KubeconfigError::DataIsNoText(key));
    }
    Ok(of[key].as_str().map(|file| read(&folder.join(file))).transpose()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::chain::Chain;

    const TEXT: &str = "current-context: c\n\
        contexts: [{name: c, context: {cluster: b, user: u}}]\n\
        clusters: [{name: a, cluster: {server: 'https://a'}}, {name: b, cluster: {server: 'https://b:8443/authz'}}]\n\
        users: [{name: u, user: {token: t}}]\n";

    #[test]
    fn the_current_contexts_cluster_and_user_are_taken() {
        let remote = Remote::parse(TEXT, Path::new("/")).ok().unwrap();
        assert_eq!(remote.endpoint.url(), "https://b:8443/authz");
        assert_eq!(remote.identity.token.unwrap().expose(), "t");
        assert!(remote.identity.certificate.is_none() && !remote.identity.insecure);
    }

    #[test]
    fn without_a_context_the_first_cluster_and_user_count() {
        let remote = Remote::parse(&TEXT.replace("current-context: c\n", ""), Path::new("/")).ok().unwrap();
        assert_eq!(remote.endpoint.url(), "https://b:8443/authz");
        let alone = "clusters: [{name: a, cluster: {server: 'http://a', insecure-skip-tls-verify: true}}]\n";
        let remote = Remote::parse(alone, Path::new("/")).ok().unwrap();
        assert_eq!(remote.endpoint.url(), "http://a/");
        assert!(remote.identity.token.is_none() && remote.identity.insecure);
    }

    #[test]
    fn a_file_that_cannot_be_used_says_why() {
        let folder = tempfile::tempdir().unwrap();
        let missing = folder.path().join("token");
        for (was, now, expected) in [
            ("token: t", "exec: {command: x}", "exec is not supported here: give a client certificate or a token"),
            ("token: t", "username: x", "username is not supported here: give a client certificate or a token"),
            ("token: t", "client-key-data: QUJD", "client-certificate and client-key go together"),
            ("token: t", "client-key-data: '*'", "client-key-data: Invalid symbol 42, offset 0."),
            ("token: t", "client-key-data: /w==", "client-key-data is not PEM"),
            ("{server: 'https://b:8443/authz'}", "{}", "the cluster has no server"),
            ("https://b:8443/authz", "ftp://b", "unsupported protocol scheme \"ftp\""),
            ("cluster: b,", "cluster: z,", "no cluster"),
        ] {
            let err = Remote::parse(&TEXT.replace(was, now), folder.path()).err().unwrap();
            assert_eq!(Chain(&err).to_string(), expected, "{now}");
        }
        let err = Remote::parse(&TEXT.replace("token: t", "tokenFile: token"), folder.path()).err().unwrap();
        let expected = format!("cannot read {}: No such file or directory (os error 2)", missing.display());
        assert_eq!(Chain(&err).to_string(), expected);
    }

    #[test]
    fn a_file_is_named_before_what_is_wrong_with_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hook.kubeconfig");
        let err = Remote::read(&path).err().unwrap();
        let missing = format!("cannot read {}: No such file or directory (os error 2)", path.display());
        assert_eq!(Chain(&err).to_string(), missing);
        std::fs::write(&path, "clusters: []").unwrap();
        let err = Remote::read(&path).err().unwrap();
        assert_eq!(Chain(&err).to_string(), format!("{}: no cluster", path.display()));
        // The parser's error is told once.
        let err = Remote::parse("a: [", folder.path()).err().unwrap();
        assert_eq!(Chain(&err).to_string(), err.to_string());
    }
}
