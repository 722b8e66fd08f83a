//! Services on the API's port: the supervisor for machines that join and nodes that open tunnels, the API server
//! for all else.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::sync::{Arc, OnceLock};

use apiserver::ApiServer;
use async_trait::async_trait;
use base::files::{self, FileError};
use base::layout::{Layout, ServerFolder};
use base::rng::Rng;
use base::secret::Secret;
use base::task::Group;
use base::time::Clock;
use cluster::credentials::{Credentials, Passwords};
use cluster::identity::{Claim, Identities, NameStatus};
use cluster::names::ServerNames;
use cluster::protocol::{CACERTS, PING, Settings};
use cluster::refusal::Refusal;
use cluster::supervisor::{self, Supervisor};
use cluster::tunnel::Tunnels;
use pki::leaf::Ca;
use pki::node_key::NodeKey;
use pki::server::Pki;
use pki::token::JoinToken;
use store::store::Store;
use tracing::warn;

use crate::agent::host;
use crate::flags::roles::ServerArgs;
use crate::flags::token::{FrontError, Given};

/// Hands each request to whom its path belongs. The port is open before they are there: the members of a store of
/// several find each other on it first.
pub(crate) struct Front {
    /// The authorities to trust, PEM.
    ca: String,
    behind: OnceLock<(Arc<ApiServer>, Arc<Supervisor>)>,
}

impl Front {
    /// With nobody behind it yet. `ca` is PEM.
    pub(crate) fn new(ca: String) -> Arc<Front> {
        Arc::new(Front { ca, behind: OnceLock::new() })
    }

    /// From now on these answer.
    pub(crate) fn open(&self, api: Arc<ApiServer>, supervisor: Arc<Supervisor>) {
        // Nobody opens twice.
        let _first = self.behind.set((api, supervisor));
    }

    /// While the server starts.
    fn early(&self, path: &str) -> http::Response<wire::Body> {
        let json = match path {
            CACERTS => return http::Response::new(wire::body::full(self.ca.clone())),
            PING => return http::Response::new(wire::body::full("pong")),
            path if supervisor::serves(path) => {
                serde_json::to_value(Refusal::NotReady { why: "it is starting".to_owned() }).unwrap_or_default()
            }
            _ => serde_json::json!({
                "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                    "reason": "ServiceUnavailable", "code": 503,
                "message": "the server is starting",
            }),
        };
        let mut answer = http::Response::new(wire::body::full(json.to_string()));
        *answer.status_mut() = http::StatusCode::SERVICE_UNAVAILABLE;
        let headers = answer.headers_mut();
        headers.insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static("application/json"));
        headers.insert(http::header::RETRY_AFTER, http::HeaderValue::from_static("1"));
        answer
    }
}

#[async_trait]
impl wire::Handler for Front {
    async fn handle(&self, req: http::Request<wire::Body>, conn: Arc<wire::ConnInfo>) -> http::Response<wire::Body> {
        let Some((api, supervisor)) = self.behind.get() else { return self.early(req.uri().path()) };
        if supervisor::serves(req.uri().path()) {
            return supervisor.answer(req, &conn).await;
        }
        api.handle(req, conn).await
    }
}

/// The passwords by a server's flags; see [`passwords`].
pub(crate) fn passwords_of(
    args: &ServerArgs,
    pki: &Pki,
    folder: &ServerFolder,
    rng: &Rng,
) -> Result<(Passwords, Option<Secret<String>>), FrontError> {
    let server = Given { flag: "token", text: args.token.as_deref(), file: args.token_file.as_deref(), own: false };
    let agent = Given {
        flag: "agent-token",
        text: args.agent_token.as_deref(),
        file: args.agent_token_file.as_deref(),
        own: false,
    };
    passwords(&server, &agent, pki, folder, rng)
}

/// The passwords with which machines join: given, found, or made; written as full tokens where k3s users look for them.
/// Beside them the servers' password as a file held it before.
///
/// Agents have a password of their own, which makes no server. A cluster from before that was so gets one that all its
/// servers derive alike; its agents go on with what they have, for the servers' password makes agents, too.
fn passwords(
    server: &Given<'_>,
    agent: &Given<'_>,
    pki: &Pki,
    folder: &ServerFolder,
    rng: &Rng,
) -> Result<(Passwords, Option<Secret<String>>), FrontError> {
    let ca = pki.authority(Ca::Server).bundle();
    let (token_path, agent_path) = (folder.token(), folder.agent_token());
    let kept = |flag: &'static str, path: &Path, there: bool| {
        Given { flag, text: None, file: Some(path).filter(|_| there), own: true }.password(ca)
    };
    let known = kept("token", &token_path, token_path.exists())?;
    let password = match (server.password(ca)?, &known) {
        (Some(password), _) => password,
        (None, Some(known)) => known.clone(),
        (None, None) => pki::token::new_password(rng),
    };
    // A link is of a time when agents had the servers' password.
    let found = kept("agent-token", &agent_path, agent_path.exists() && !agent_path.is_symlink())?;
    let agent = match (agent.password(ca)?.or(found), &known) {
        (Some(agent), _) => agent,
        (None, Some(_)) => pki::token::derived_password(&password),
        (None, None) => pki::token::new_password(rng),
    };
    write_tokens(ca, folder, &password, &agent)?;
    Ok((Passwords { agent, server: password }, known))
}

/// Writes the passwords as full tokens: `token` makes servers, `agent-token` agents. `node-token`, the name that k3s
/// users know, is the one that is handed to nodes.
pub(crate) fn write_tokens(
    ca: &str,
    folder: &ServerFolder,
    server: &Secret<String>,
    agent: &Secret<String>,
) -> Result<(), FrontError> {
    let full =
        |user: &str, password: &Secret<String>| JoinToken::full(ca.as_bytes(), user, password).map(|text| text + "\n");
    let agent_path = folder.agent_token();
    files::write_atomic(&folder.token(), full("server", server)?.as_bytes(), 0o600)?;
    if agent_path.is_symlink() {
        remove(&agent_path)?;
    }
    files::write_atomic(&agent_path, full("node", agent)?.as_bytes(), 0o600)?;
    Ok(link(&folder.node_token(), agent_path.file_name().unwrap_or_default())?)
}

fn remove(path: &Path) -> Result<(), FileError> {
    match std::fs::remove_file(path) {
        Err(err) if err.kind() != std::io::ErrorKind::NotFound => Err(FileError::at("cannot remove", path)(err)),
        _ => Ok(()),
    }
}

fn link(path: &Path, target: &OsStr) -> Result<(), FileError> {
    if std::fs::read_link(path).is_ok_and(|found| found == Path::new(target)) {
        return Ok(());
    }
    remove(path)?;
    std::os::unix::fs::symlink(target, path).map_err(FileError::at("cannot link", path))
}

/// Parts of the supervisor.
pub(crate) struct Parts<'a> {
    pub(crate) pki: &'a Arc<Pki>,
    pub(crate) credentials: Credentials,
    pub(crate) client: kube::Client,
    pub(crate) identities: Identities,
    pub(crate) names: ServerNames,
    pub(crate) settings: Settings,
    pub(crate) flags: BTreeMap<String, String>,
    pub(crate) authorities: String,
    pub(crate) clock: Clock,
    pub(crate) server_folder: ServerFolder,
    pub(crate) store: Option<Arc<Store>>,
}

/// Builds the supervisor.
pub(crate) fn supervisor(parts: Parts<'_>, tunnels: Arc<Tunnels>, group: &Group) -> Arc<Supervisor> {
    let config = supervisor::Config {
        pki: Arc::clone(parts.pki),
        credentials: parts.credentials,
        identities: parts.identities,
        names: parts.names,
        client: parts.client,
        settings: parts.settings,
        flags: parts.flags,
        version: crate::process::version::VERSION.to_owned(),
        authorities: parts.authorities,
        clock: parts.clock,
        server_folder: parts.server_folder,
        store: parts.store,
    };
    Supervisor::new(config, tunnels, group)
}

/// Writes this server's own node down as this machine's.
///
/// A server holds the cluster's authorities: if another key is on record (a restored cluster), its own takes over.
pub(crate) async fn own_identity(node: &str, layout: &Layout, identities: &Identities) -> Result<(), FrontError> {
    let machine_id = host::machine_id();
    let key = NodeKey::load_or_create(&layout.node_key(), &machine_id)?;
    let claim =
        Claim { name: node.to_owned(), public_key: key.public(), machine_id, address: IpAddr::V4(Ipv4Addr::LOCALHOST) };
    let failed = |source| FrontError::Identity { node: node.to_owned(), source };
    if let NameStatus::Taken { .. } = identities.status(&claim).await.map_err(failed)? {
        warn!(node, "another machine was this server's node before; it is this machine now");
        identities.forget(node).await.map_err(failed)?;
    }
    identities.record(&claim).await.map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pki(dir: &Path) -> Pki {
        Pki::load_or_create(&dir.join("tls"), crate::server::authorities::tests::options()).unwrap()
    }

    fn given(flag: &'static str, text: Option<&'static str>) -> Given<'static> {
        Given { flag, text, file: None, own: false }
    }

    #[test]
    fn agents_have_a_password_of_their_own_that_stays() {
        let dir = tempfile::tempdir().unwrap();
        let pki = pki(dir.path());
        let start = |token, agent| {
            passwords(
                &given("token", token),
                &given("agent-token", agent),
                &pki,
                &ServerFolder::new(dir.path()),
                &Rng::from_os(),
            )
            .unwrap()
            .0
        };
        let first = start(None, None);
        assert_ne!(first.server, first.agent);
        assert_eq!(start(None, None), first);
        let read = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap();
        assert!(read("node-token").contains("::node:") && read("node-token") == read("agent-token"));
        assert!(read("token").contains("::server:") && !read("node-token").contains(first.server.expose().as_str()));
        assert_eq!(start(None, Some("small")).agent.expose(), "small");
    }

    #[test]
    fn servers_of_a_cluster_without_an_agents_password_make_the_same_one() {
        let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let agents = dirs.each_ref().map(|dir| {
            let pki = pki(dir.path());
            // As the version before left it.
            std::fs::write(dir.path().join("token"), "hunter2").unwrap();
            std::os::unix::fs::symlink("token", dir.path().join("agent-token")).unwrap();
            std::os::unix::fs::symlink("token", dir.path().join("node-token")).unwrap();
            let (made, known) = passwords(
                &given("token", None),
                &given("agent-token", None),
                &pki,
                &ServerFolder::new(dir.path()),
                &Rng::from_os(),
            )
            .unwrap();
            assert_eq!((made.server.expose().as_str(), known), ("hunter2", Some(made.server.clone())));
            assert!(!dir.path().join("agent-token").is_symlink());
            made.agent
        });
        assert!(agents[0] == agents[1] && agents[0].expose() != "hunter2");
    }
}
