//! Why upstream's flags are refused: one flag by itself, or several together; and files that they name.

use std::error::Error;
use std::io;
use std::path::{Path, PathBuf};

use super::values::NoDuration;

/// Why the arguments are refused.
#[derive(Debug, thiserror::Error)]
pub enum ArgumentError {
    /// One of them is wrong by itself.
    #[error("--kube-apiserver-arg={name}")]
    Flag {
        /// Its name.
        name: String,
        /// Reason.
        source: FlagError,
    },
    /// One wants the other.
    #[error("--kube-apiserver-arg: {one} and {other} go together")]
    Apart {
        /// The first.
        one: &'static str,
        /// The second.
        other: &'static str,
    },
    /// A plugin has nothing to go by.
    #[error(
        "--kube-apiserver-arg: enable-admission-plugins={plugin} wants its configuration in \
         admission-control-config-file"
    )]
    Unconfigured {
        /// The plugin.
        plugin: &'static str,
    },
    /// Authorizers are named twice.
    #[error(
        "--kube-apiserver-arg: authorization-config can not be specified when --authorization-mode or \
         --authorization-webhook-* flags are defined"
    )]
    TwoAuthorizations,
    /// An audit log without rules.
    #[error("--kube-apiserver-arg: an audit backend without audit-policy-file would log nothing: give a policy")]
    NoAuditPolicy,
    /// Issuers are named twice.
    #[error("--kube-apiserver-arg: authentication-config and oidc-* can not be specified together")]
    TwoAuthentications,
    /// An issuer without a client, or a client without an issuer.
    #[error("--kube-apiserver-arg: oidc-issuer-url and oidc-client-id must be specified together")]
    HalfAnIssuer,
    /// A file that a flag names cannot be read.
    #[error("--kube-apiserver-arg={flag}: cannot read {}", path.display())]
    Unreadable {
        /// The flag.
        flag: &'static str,
        /// The file.
        path: PathBuf,
        /// Reason.
        source: io::Error,
    },
}

/// Why one flag is refused.
#[derive(Debug, thiserror::Error)]
pub enum FlagError {
    /// Nobody has it, or it cannot be chosen here.
    #[error(transparent)]
    Unfollowed(#[from] base::flags::Refusal),
    /// It names no file.
    #[error("wants a file")]
    NoFile,
    /// Its file cannot be read.
    #[error("cannot read {path}")]
    Unreadable {
        /// The file.
        path: String,
        /// Reason.
        source: io::Error,
    },
    /// Its file holds no certificates.
    #[error("{path}")]
    NoCertificates {
        /// The file.
        path: String,
        /// Reason.
        source: pki::error::PkiError,
    },
    /// It is a switch.
    #[error("{0:?} is not true or false")]
    NoSwitch(String),
    /// It counts something.
    #[error("{0:?} is not a number")]
    NoNumber(String),
    /// It is a time.
    #[error(transparent)]
    NoDuration(#[from] NoDuration),
    /// It chooses.
    #[error("{value:?} is none of {}", of.join(", "))]
    NoneOf {
        /// The text.
        value: String,
        /// The choices.
        of: &'static [&'static str],
    },
    /// An authorizer that is none.
    #[error("{mode:?} is not a valid mode: want some of {}", known.join(","))]
    UnknownMode {
        /// The text.
        mode: String,
        /// The authorizers.
        known: &'static [&'static str],
    },
    /// An authorizer that is named twice.
    #[error("{0} is specified more than once")]
    TwiceTheMode(String),
    /// No authorizer at all.
    #[error("at least one authorization-mode must be passed")]
    NoMode,
    /// An API that nobody serves.
    #[error("unknown api groups {0}")]
    UnknownApi(String),
    /// An API that is always served.
    #[error("kedge serves every version of v1.36, {0} cannot be switched off")]
    AlwaysServed(String),
    /// An issuer of tokens that is no URL.
    #[error("service-account-issuer {0:?} contained a ':' but was not a valid URL")]
    Issuer(String),
    /// Keys that could be swapped on the way.
    #[error("service-account-jwks-uri requires https scheme, parsed as: {0}")]
    PlainKeys(String),
    /// A life of tokens that is too short or too long.
    #[error("the service-account-max-token-expiration must be between 1 hour and 2^32 seconds")]
    TokenLife,
    /// The room that the setting is for does not take it.
    #[error(transparent)]
    Refused(Box<dyn Error + Send + Sync>),
}

impl FlagError {
    /// For `map_err`: another room's refusal.
    pub(super) fn of(err: impl Into<Box<dyn Error + Send + Sync>>) -> FlagError {
        FlagError::Refused(err.into())
    }
}

/// A file that is wrong, by its path.
#[derive(Debug, thiserror::Error)]
#[error("{}", path.display())]
pub struct FileFault {
    /// The file.
    pub path: PathBuf,
    /// Reason.
    pub source: Box<dyn Error + Send + Sync>,
}

impl FileFault {
    /// For `map_err`: says which file it is.
    pub(crate) fn of<E: Into<Box<dyn Error + Send + Sync>>>(path: &Path) -> impl Fn(E) -> FileFault {
        move |err| FileFault { path: path.to_owned(), source: err.into() }
    }
}

/// A file that a flag names, and that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{flag}")]
pub struct UnusableFile {
    /// The flag, and the place in its file.
    pub flag: &'static str,
    /// Reason.
    pub source: Box<dyn Error + Send + Sync>,
}

impl UnusableFile {
    /// For `map_err`: says which flag names the file.
    pub(crate) fn of<E: Into<Box<dyn Error + Send + Sync>>>(flag: &'static str) -> impl Fn(E) -> UnusableFile {
        move |err| UnusableFile { flag, source: err.into() }
    }
}
