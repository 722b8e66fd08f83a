//! Why the server cannot run.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use crate::corefile::CorefileError;

/// Why the server cannot run.
#[derive(Debug, thiserror::Error)]
pub enum DnsError {
    /// The Corefile is wrong.
    #[error(transparent)]
    Corefile(#[from] CorefileError),
    /// A file cannot be read.
    #[error("cannot read {path}", path = path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A port is taken or forbidden.
    #[error("cannot listen on {addr}")]
    Listen {
        /// Which.
        addr: SocketAddr,
        /// Why not.
        source: io::Error,
    },
    /// Not in a pod, and no `endpoint` in the Corefile.
    #[error(
        "the kubernetes plugin needs an API server: run in a pod with a service account, or give `endpoint` and `tls`"
    )]
    NoApiServer,
    /// The trust or identity for the API server.
    #[error("cannot use the credentials for the API server: {0}")]
    Credentials(String),
    /// An argument.
    #[error("{0}\nusage: coredns [-conf FILE] [-dns.port PORT] [-version] [-plugins]")]
    Usage(String),
    /// A resolver sends our questions back to us.
    #[error("{0}")]
    Loop(String),
    /// The runtime.
    #[error("cannot start the event loop")]
    Runtime(#[source] io::Error),
}
