//! Why a command failed: what is said on standard error; the exit code is 1.

use base::files::FileError;

use crate::agent::role::RoleError;
use crate::commands::bundle::error::BundleError;
use crate::commands::certificate::CertificateError;
use crate::commands::cleanup::error::CleanupError;
use crate::commands::config_view::ViewError;
use crate::commands::containers::ContainersError;
use crate::commands::kubeconfig::KubeconfigError;
use crate::commands::secrets_encrypt::EncryptError;
use crate::commands::snapshot::SnapshotsError;
use crate::commands::status::StatusError;
use crate::commands::token::TokenError;
use crate::commands::tools::ToolError;
use crate::commands::why::WhyError;
use crate::flags::config_file::ConfigError;
use crate::server::error::ServerError;

/// Of every command and role.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CommandError {
    #[error(transparent)]
    Server(#[from] ServerError),
    #[error(transparent)]
    Agent(#[from] RoleError),
    #[error(transparent)]
    Token(#[from] TokenError),
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    View(#[from] ViewError),
    #[error(transparent)]
    Kubeconfig(#[from] KubeconfigError),
    #[error(transparent)]
    Tool(#[from] ToolError),
    #[error(transparent)]
    Cleanup(#[from] CleanupError),
    #[error(transparent)]
    Snapshot(#[from] SnapshotsError),
    #[error(transparent)]
    Bundle(#[from] BundleError),
    #[error(transparent)]
    Encrypt(#[from] EncryptError),
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    #[error(transparent)]
    Status(#[from] StatusError),
    #[error(transparent)]
    Why(#[from] WhyError),
    #[error(transparent)]
    Containers(#[from] ContainersError),
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("{flag} is refused: {why}")]
    RefusedFlag { flag: String, why: &'static str },
    /// It has said what is wrong.
    #[error("this machine cannot run kedge")]
    Unfit,
}
