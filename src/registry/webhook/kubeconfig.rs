//! The kubeconfig files in which operators say where the authentication, authorization and audit webhooks are.

use std::path::Path;
use std::sync::Arc;

use base::secret::Secret;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use pki::certstore::{CertStore, Pair};
use serde_json::Value;

use super::call::Endpoint;
use super::client::Identity;

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
    /// Errors: a text that names the file.
    pub fn read(path: &Path) -> Result<Remote, String> {
        let text = std::fs::read_to_string(path).map_err(|err| format!("cannot read {}: {err}", path.display()))?;
        let folder = path.parent().unwrap_or(Path::new("/"));
        Remote::parse(&text, folder).map_err(|why| format!("{}: {why}", path.display()))
    }

    fn parse(text: &str, folder: &Path) -> Result<Remote, String> {
        let config: Value = serde_saphyr::from_str(text).map_err(|err| err.to_string())?;
        let named = |list: &str, name: &str, inner: &str| -> Option<Value> {
            let entries = config[list].as_array()?;
            let found =
                entries.iter().find(|e| e["name"] == name).or(if name.is_empty() { entries.first() } else { None })?;
            Some(found[inner].clone())
        };
        let current = config["current-context"].as_str().unwrap_or_default();
        let context = named("contexts", current, "context").unwrap_or_default();
        let cluster =
            named("clusters", context["cluster"].as_str().unwrap_or_default(), "cluster").ok_or("no cluster")?;
        let user = named("users", context["user"].as_str().unwrap_or_default(), "user").unwrap_or_default();
        let server = cluster["server"].as_str().ok_or("the cluster has no server")?;
        let mut endpoint = Endpoint::from_url(server)?;
        endpoint.ca_pem = data_or_file(&cluster, "certificate-authority", folder)?.unwrap_or_default();
        let certificate =
            match (data_or_file(&user, "client-certificate", folder)?, data_or_file(&user, "client-key", folder)?) {
                (Some(cert), Some(key)) => Some(CertStore::new(
                    Pair::from_pem(&cert, &key).map_err(|err| base::chain::Chain(&err).to_string())?,
                )),
                (None, None) => None,
                _ => return Err("client-certificate and client-key go together".to_owned()),
            };
        let token = match (user["token"].as_str(), user["tokenFile"].as_str()) {
            (Some(token), _) => Some(token.to_owned()),
            (None, Some(file)) => Some(read(&folder.join(file))?.trim().to_owned()),
            (None, None) => None,
        };
        for unsupported in ["exec", "auth-provider", "username"] {
            if !user[unsupported].is_null() {
                return Err(format!("{unsupported} is not supported here: give a client certificate or a token"));
            }
        }
        let insecure = cluster["insecure-skip-tls-verify"].as_bool().unwrap_or(false);
        Ok(Remote {
            endpoint,
            identity: Identity { certificate, token: token.map(|t| Arc::new(Secret::new(t))), insecure },
        })
    }
}

fn read(path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|err| format!("cannot read {}: {err}", path.display()))
}

/// `KEY-data` in base64, or the file that `KEY` names, beside the kubeconfig.
fn data_or_file(of: &Value, key: &str, folder: &Path) -> Result<Option<String>, String> {
    if let Some(data) = of[format!("{key}-data").as_str()].as_str() {
        let bytes = STANDARD.decode(data).map_err(|err| format!("{key}-data: {err}"))?;
        return String::from_utf8(bytes).map(Some).map_err(|_| format!("{key}-data is not PEM"));
    }
    of[key].as_str().map(|file| read(&folder.join(file))).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_current_contexts_cluster_and_user_are_taken() {
        let text = "current-context: c\ncontexts: [{name: c, context: {cluster: b, user: u}}]\nclusters: [{name: a, cluster: {server: 'https://a'}}, {name: b, cluster: {server: 'https://b:8443/authz'}}]\nusers: [{name: u, user: {token: t}}]\n";
        let remote = Remote::parse(text, Path::new("/")).ok().unwrap();
        assert_eq!(remote.endpoint.url(), "https://b:8443/authz");
        assert_eq!(remote.identity.token.unwrap().expose(), "t");
        let exec = text.replace("token: t", "exec: {command: x}");
        assert!(Remote::parse(&exec, Path::new("/")).err().unwrap().contains("exec is not supported"));
    }
}
