//! `kedge server --server`: what makes this machine one more server of a cluster that is there already.
//!
//! First it is given the cluster's secrets, by a server that it knows to be the right one (the fingerprint in the
//! token), then its empty store becomes a member. A server that is a member needs neither: it finds the others by
//! itself.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use base::backoff::Backoff;
use base::files::{self, FileError};
use base::layout::Layout;
use base::rng::Rng;
use base::task::Group;
use base::time::Clock;
use cluster::join::{self, BadAddress, Joiner, Purpose};
use cluster::protocol::{NewMember, Role};
use cluster::refusal::Refusal;
use cluster::{members, secrets};
use pki::error::PkiError;
use pki::leaf::{Ca, Leaf};
use pki::node_key::NodeKey;
use pki::server::Pki;
use pki::token::JoinToken;
use store::inspect::inspect;
use store::member::{Bootstrap, StoreState};
use store::store::Store;
use tracing::{info, warn};

use crate::agent::host;
use crate::flags::token::Given;
use crate::process::http1::h1;

/// How long a member waits for the others before it says what it waits for, and again.
const TELL_EVERY: Duration = Duration::from_secs(10);

/// Why this server is none of the cluster.
#[derive(Debug, thiserror::Error)]
pub(crate) enum JoinError {
    #[error("--server: {0}")]
    Server(BadAddress),
    #[error("--token: {0}")]
    Token(PkiError),
    #[error("cannot join: {0}")]
    Refused(Refusal),
    #[error("cannot look into the store in {path}", path = path.display())]
    Store { path: PathBuf, source: store::error::Error },
    #[error(
        "{path} was about to join a cluster and is no cluster itself: give --server again, or remove {path} for a new \
         cluster",
        path = path.display()
    )]
    HalfWay { path: PathBuf },
    #[error(
        "{path} belongs to another cluster than {url}: to join that one remove {dir}, or give another --data-dir",
        path = path.display(),
        dir = dir.display()
    )]
    OtherCluster { path: PathBuf, dir: PathBuf, url: String },
    #[error(
        "this server was removed from the cluster: to let it join again remove {path} and start it with --server",
        path = path.display()
    )]
    Removed { path: PathBuf },
    #[error(transparent)]
    File(#[from] FileError),
    #[error("certificates")]
    Pki(#[from] PkiError),
}

/// Parts of joining.
pub(crate) struct Plan<'a> {
    /// `--server`.
    pub(crate) url: Option<&'a str>,
    /// `--token` and `--token-file`.
    pub(crate) token: Given<'a>,
    pub(crate) layout: &'a Layout,
    pub(crate) node_name: &'a str,
    pub(crate) node_ips: &'a [IpAddr],
    /// `host:port` where the others reach this server.
    pub(crate) address: String,
    /// Whether the store is somebody else's: then there is nothing to become a member of.
    pub(crate) external: bool,
    /// Flags that must be the same on all servers.
    pub(crate) flags: BTreeMap<String, String>,
}

/// State of this server when its store is opened.
pub(crate) enum JoinState {
    /// A cluster of its own, or a member already.
    Settled,
    /// To be taken in by one of these servers.
    Joining(Vec<String>),
}

impl Plan<'_> {
    fn db(&self) -> PathBuf {
        self.layout.server().db()
    }

    /// Fetches the cluster's secrets if this server is to join and did not yet. Waits for what may pass.
    pub(crate) async fn fetch(&self, clock: &Clock, rng: &Rng, group: &Group) -> Result<JoinState, JoinError> {
        let found = inspect(&self.db()).map_err(|source| JoinError::Store { path: self.db(), source })?;
        let Some(url) = self.url else {
            return match found {
                StoreState::Waiting => Err(JoinError::HalfWay { path: self.db() }),
                StoreState::Empty | StoreState::Member => Ok(JoinState::Settled),
            };
        };
        if self.external && self.mark().exists() {
            return Ok(JoinState::Settled);
        }
        if found == StoreState::Member {
            info!(url, "the store here is a member already: --server is for an empty one and not asked");
            return Ok(JoinState::Settled);
        }
        let given = join::address_of(url).map_err(JoinError::Server)?;
        let joiner = self.joiner(clock, group)?;
        let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(5));
        let mut told = None;
        let welcome = loop {
            match joiner.join(std::slice::from_ref(&given), Purpose::Join).await {
                Ok(welcome) => break welcome,
                Err(refusal) if !refusal.may_pass() => return Err(JoinError::Refused(refusal)),
                Err(refusal) => wait(refusal, &mut told, &mut backoff, rng).await,
            }
        };
        let folder = self.layout.server();
        let ca = pki::folder::certificate(&folder.tls(), Ca::Server.stem());
        if files::read_if_exists(&ca)?.is_some_and(|own| own != welcome.server_ca.as_bytes()) {
            return Err(JoinError::OtherCluster { path: ca, dir: folder.path().to_owned(), url: url.to_owned() });
        }
        if found == StoreState::Empty {
            // Such a store may have drawn the first one's number already: it is made anew, with one of its own.
            store::folder::clear(&self.db())?;
        }
        secrets::write(&folder, &welcome.secrets)?;
        if self.external {
            files::write_atomic(&self.mark(), url.as_bytes(), 0o600)?;
        }
        info!(url, version = %welcome.version, "the cluster's secrets are here");
        let mut servers = welcome.servers;
        servers.retain(|server| *server != given && *server != self.address);
        servers.insert(0, given);
        Ok(JoinState::Joining(servers))
    }

    /// Says that the cluster's secrets are here: a server on an external etcd has no store that could tell.
    fn mark(&self) -> PathBuf {
        self.layout.server().joined()
    }

    fn joiner(&self, clock: &Clock, group: &Group) -> Result<Joiner, JoinError> {
        let machine_id = host::machine_id();
        let token = self.token.read()?.map(|text| JoinToken::parse(&text)).transpose().map_err(JoinError::Token)?;
        Ok(Joiner {
            role: Role::Server,
            token,
            key: NodeKey::load_or_create(&self.layout.node_key(), &machine_id)?,
            node_name: self.node_name.to_owned(),
            node_ips: self.node_ips.to_vec(),
            machine_id,
            version: crate::process::version::VERSION.to_owned(),
            flags: self.flags.clone(),
            dir: self.layout.server().tls(),
            clock: clock.clone(),
            group: group.child("join"),
        })
    }

    /// Has a joining store taken in, then waits until it has everything that was written before.
    pub(crate) async fn settle(
        &self,
        role: JoinState,
        store: &Store,
        pki: &Pki,
        rng: &Rng,
        group: &Group,
    ) -> Result<(), JoinError> {
        if let JoinState::Joining(servers) = role {
            let tls = h1(&*pki::tls::client_config(
                &pki.server_bundle()?,
                Some(Arc::clone(pki.leaf(Leaf::ClientSupervisor))),
            )?);
            let new =
                NewMember { id: store.member_id(), name: self.node_name.to_owned(), address: self.address.clone() };
            let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(5));
            let mut told = None;
            while let Err(refusal) = members::ask(&servers, &new, &tls, group).await {
                if !refusal.may_pass() {
                    return Err(JoinError::Refused(refusal));
                }
                wait(refusal, &mut told, &mut backoff, rng).await;
            }
            info!(member = store.member_id(), "this server is a member of the store");
        }
        loop {
            match tokio::time::timeout(TELL_EVERY, store.ready()).await {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(store::error::Error::Removed)) => return Err(JoinError::Removed { path: self.db() }),
                Ok(Err(source)) => return Err(JoinError::Store { path: self.db(), source }),
                Err(_) => {
                    let members = store.members().await.unwrap_or_default();
                    let others: Vec<String> = members
                        .iter()
                        .filter(|m| m.id != store.member_id())
                        .map(|m| format!("{} ({})", m.name, m.address))
                        .collect();
                    warn!(
                        members = others.join(", "),
                        "waiting for a majority of the servers; start them, or use --cluster-reset if they are gone \
                         for good"
                    );
                }
            }
        }
    }
}

impl JoinState {
    /// How a store begins in an empty folder.
    pub(crate) fn bootstrap(&self) -> Bootstrap {
        match self {
            JoinState::Settled => Bootstrap::First,
            JoinState::Joining(_) => Bootstrap::Joining,
        }
    }
}

/// Says once why it is not let in, and waits a little.
async fn wait(refusal: Refusal, told: &mut Option<Refusal>, backoff: &mut Backoff, rng: &Rng) {
    if told.as_ref() != Some(&refusal) {
        warn!(why = %refusal, "cannot join yet, trying again");
        *told = Some(refusal);
    }
    tokio::time::sleep(backoff.next(rng)).await;
}
