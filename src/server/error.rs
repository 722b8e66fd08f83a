//! Why a server did not start, or ended.

use std::io;
use std::net::SocketAddr;

use base::files::FileError;

use crate::agent::AgentError;
use crate::agent::host::{GroupError, HostError};
use crate::flags::claims::BrokenClaim;
use crate::flags::ranges::RangeError;
use crate::flags::token::FrontError;
use crate::process::life::LifeError;
use crate::process::logging::LogError;
use crate::server::datastore::DatastoreError;
use crate::server::joining::JoinError;
use crate::server::packaged::UnknownComponent;

/// Why the server did not start, or ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ServerError {
    #[error(
        "kedge server must run as root to start containers: run it with sudo, or with --disable-agent for an API \
         server alone"
    )]
    NotRoot,
    #[error("--{flag}: {reason}")]
    Flag { flag: &'static str, reason: String },
    #[error(transparent)]
    Range(#[from] RangeError),
    #[error("--write-kubeconfig-group")]
    KubeconfigGroup(#[source] GroupError),
    #[error(transparent)]
    Claim(#[from] BrokenClaim),
    #[error(transparent)]
    Disable(#[from] UnknownComponent),
    #[error("{0}")]
    Argument(String),
    #[error(transparent)]
    ControllerFlag(#[from] controllers::settings::FlagError),
    #[error(transparent)]
    NodeMask(#[from] controllers::settings::masks::MaskError),
    #[error(transparent)]
    SchedulerFlag(#[from] scheduler::settings::FlagError),
    #[error(transparent)]
    Log(#[from] LogError),
    #[error(transparent)]
    Host(#[from] HostError),
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Store(#[from] DatastoreError),
    #[error("certificates")]
    Pki(#[from] pki::error::PkiError),
    #[error("the API server cannot start")]
    Api(#[from] apiserver::bootstrap::BuildError),
    #[error("cannot listen on {addr}; is another server running here? Choose another port with --https-listen-port")]
    Listen { addr: SocketAddr, source: io::Error },
    #[error(transparent)]
    Agent(#[from] AgentError),
    #[error(transparent)]
    Front(#[from] FrontError),
    #[error(transparent)]
    Join(#[from] JoinError),
    #[error(transparent)]
    Life(#[from] LifeError),
}
