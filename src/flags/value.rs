//! Values that clap's own parsers do not know, and the sentences with which they are refused.

use std::error::Error;
use std::io;

/// A flag's value that cannot be taken; clap names the flag and the value.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ValueError {
    #[error("want octal permission bits such as 0600")]
    Mode,
    #[error("want a component's name such as coredns, or that of a file in server/manifests")]
    Component,
    #[error("want two ports such as 30000-32767")]
    PortRange,
    #[error("'{0}' is not a number from 1 on")]
    Count(String),
    #[error("'{0}' is not an etcd server such as https://10.0.0.5:2379; SQL databases and NATS are not supported")]
    Endpoint(String),
    #[error(transparent)]
    Duration(Box<dyn Error + Send + Sync>),
    /// There is no current folder, from which a relative path begins.
    #[error(transparent)]
    Folder(#[from] io::Error),
    #[error("must not contain '..'")]
    ParentFolder,
}
