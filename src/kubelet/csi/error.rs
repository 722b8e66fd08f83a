//! Faults of volumes that drivers have, in upstream's words.

use std::io;
use std::path::PathBuf;

use base::task::Fatal;

use super::UnknownDriver;
use crate::api_error::ApiError;
use crate::plugins::link::CallError;
use crate::tokens::TokenError;
use crate::volumes::content::ContentError;
use crate::volumes::error::VolumeError;

/// A volume that its driver does not give, or does not take back.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CsiError {
    #[error("{plugin}: {doing}", plugin = super::data::PLUGIN)]
    NoClient { doing: &'static str, source: UnknownDriver },
    #[error(transparent)]
    Unknown(#[from] UnknownDriver),
    #[error("volume mode {mode:?} not supported by driver {driver} (no CSIDriver object)")]
    NoObject { mode: &'static str, driver: String },
    #[error("volume mode {mode:?} not supported by driver {driver} (only supports {allowed:?})")]
    Mode { mode: &'static str, driver: String, allowed: Vec<String> },
    #[error("fetching {field} {ns}/{name} failed")]
    Secret { field: &'static str, ns: String, name: String, source: Box<SecretError> },
    #[error("applyFSGroup failed for vol {handle}")]
    Group { handle: String, source: Box<CsiError> },
    #[error("{path} is still mounted", path = path.display())]
    StillMounted { path: PathBuf },
    #[error("UnmountDevice failed")]
    Unstage(#[source] CallError),
    #[error(transparent)]
    Call(#[from] CallError),
    #[error(transparent)]
    Token(#[from] TokenError),
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Task(#[from] Fatal),
}

/// A Secret that a driver is to be shown.
#[derive(Debug, thiserror::Error)]
#[error("{plugin}: failed to find the secret {name} in the namespace {ns} with error", plugin = super::data::PLUGIN)]
pub(crate) struct SecretError {
    pub(super) ns: String,
    pub(super) name: String,
    pub(super) source: ContentError,
}

/// A volume that must be attached, and is not.
#[derive(Debug, thiserror::Error)]
pub(super) enum AttachError {
    /// The volume is on its way: no reason for an event.
    #[error("volume is not attached yet")]
    Waiting,
    #[error(transparent)]
    Api(#[from] ApiError),
    #[error("volume attachment with ID {name} of volume {handle} not found")]
    NotFound { name: String, handle: String },
    /// The driver's words.
    #[error("{message}")]
    Failed { message: String },
}

/// A pod whose volumes cannot be given back.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TearDownError {
    #[error(transparent)]
    Volume(#[from] VolumeError),
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// A driver that cannot be taken in, or out.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RegistrationError {
    #[error(
        "{plugin}: validation for CSI driver {name:?} failed. \
         None of the versions specified {versions:?} are supported",
        plugin = super::data::PLUGIN
    )]
    Versions { name: String, versions: Vec<String> },
    #[error("{plugin}: error during CSI NodeGetInfo() call", plugin = super::data::PLUGIN)]
    NodeInfo(#[source] CallError),
    #[error("error adding CSI driver node info: driver {name} gave no nodeID")]
    NoNodeId { name: String },
    #[error("error updating CSINode object with CSI driver node info")]
    CsiNode(#[source] kube::Error),
    #[error("error updating Node object with CSI driver node info")]
    Node(#[source] kube::Error),
    #[error(
        "detected topology value collision: \
         driver reported {key:?}:{reported:?} but existing label is {key:?}:{label:?}"
    )]
    Collision { key: String, reported: String, label: String },
}

#[cfg(test)]
mod tests {
    use base::chain::Chain;
    use tonic::Code;

    use super::*;

    #[test]
    fn each_fault_is_told_with_its_causes_in_upstreams_words() {
        let call = || CallError { code: Code::Internal, message: "no".to_owned() };
        let secret = SecretError {
            ns: "d".to_owned(),
            name: "s".to_owned(),
            source: ContentError::NotFound { kind: "secret", name: "s".to_owned() },
        };
        let (ns, name, source) = ("d".to_owned(), "s".to_owned(), Box::new(secret));
        for (err, text) in [
            (
                CsiError::Secret { field: "NodeStageSecretRef", ns, name, source },
                "fetching NodeStageSecretRef d/s failed: kubernetes.io/csi: \
                 failed to find the secret s in the namespace d with error: secret \"s\" not found",
            ),
            (
                CsiError::Group { handle: "h".to_owned(), source: Box::new(call().into()) },
                "applyFSGroup failed for vol h: rpc error: code = Internal desc = no",
            ),
            (CsiError::Unstage(call()), "UnmountDevice failed: rpc error: code = Internal desc = no"),
            (CsiError::StillMounted { path: "/m".into() }, "/m is still mounted"),
        ] {
            assert_eq!(Chain(&err).to_string(), text);
        }
    }

    #[test]
    fn a_driver_of_another_version_is_refused_by_its_name() {
        let err = RegistrationError::Versions { name: "d.io".to_owned(), versions: vec!["0.3.0".to_owned()] };
        assert_eq!(
            err.to_string(),
            "kubernetes.io/csi: validation for CSI driver \"d.io\" failed. \
             None of the versions specified [\"0.3.0\"] are supported"
        );
    }
}
