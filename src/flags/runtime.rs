//! Where the container runtime comes from.

use clap::ValueEnum;

/// A place that has containerd and runc.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Origin {
    /// The programs that `kedge bundle apply` has laid into the data folder.
    Bundle,
    /// Those of the machine, on PATH.
    Path,
}

impl Origin {
    /// The place in a sentence.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Origin::Bundle => "bundle",
            Origin::Path => "PATH",
        }
    }
}
