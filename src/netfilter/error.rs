//! Why netfilter could not be changed or read.

use std::io;

/// Why a script is not in force, or an answer is not there.
#[derive(Debug, thiserror::Error)]
pub enum NetfilterError {
    /// A line that is not of the part of the language that this room knows; nothing was sent.
    #[error("cannot read {line:?}: {why}")]
    Language {
        /// The line, cut to a readable length.
        line: String,
        /// The word that was not understood, or what is missing.
        why: Misread,
    },
    /// The kernel refused a line, and with it the whole script.
    #[error("the kernel refused {line:?}: {source}{}", hint(at, said))]
    Refused {
        /// The line, cut to a readable length.
        line: String,
        /// The word at which the kernel pointed, if it is one.
        at: Option<String>,
        /// The kernel's own words, if it has some.
        said: Option<String>,
        /// The kernel's reason.
        source: io::Error,
    },
    /// The kernel has no nftables.
    #[error("the kernel has no nftables: load the module nf_tables, or build it with CONFIG_NF_TABLES")]
    NoNftables,
    /// The kernel does not tell of connections.
    #[error("the kernel does not tell of connections: load the module nf_conntrack_netlink")]
    NoConntrack,
    /// The process may not change the network.
    #[error("not allowed to change nftables: it needs root, or the capability CAP_NET_ADMIN")]
    Denied,
    /// Some of the kernel's answers were lost, so nobody knows whether the script is in force.
    #[error("the kernel's answer was lost: nobody knows whether the rules are in force")]
    Lost,
    /// Others changed the tables each time while they were read.
    #[error("others change nftables all the time: they cannot be read")]
    Unsteady,
    /// The socket.
    #[error("{doing}")]
    Io {
        /// The attempt.
        doing: &'static str,
        /// Why not.
        source: io::Error,
    },
}

/// Why a line was not understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Misread {
    /// The line ends too early.
    #[error("it ends where {wanted} must stand")]
    Ends {
        /// The missing part.
        wanted: &'static str,
    },
    /// A word that cannot stand there.
    #[error("{word:?} stands where {wanted} must stand")]
    Word {
        /// The word.
        word: String,
        /// The missing part.
        wanted: &'static str,
    },
    /// Two parts that cannot be together in a rule.
    #[error("a packet cannot be of two protocols")]
    Conflict,
}

impl NetfilterError {
    /// Whether something that the script names is not there (a table, a chain, a set, an element).
    pub fn is_absent(&self) -> bool {
        self.errno() == Some(rustix::io::Errno::NOENT)
    }

    /// Whether the script itself may be why: the same script would fail again.
    pub fn is_of_the_script(&self) -> bool {
        matches!(self, NetfilterError::Language { .. } | NetfilterError::Refused { .. })
    }

    pub(crate) fn errno(&self) -> Option<rustix::io::Errno> {
        match self {
            NetfilterError::Refused { source, .. } | NetfilterError::Io { source, .. } => {
                rustix::io::Errno::from_io_error(source)
            }
            _ => None,
        }
    }
}

fn hint(at: &Option<String>, said: &Option<String>) -> String {
    let at = at.as_ref().map(|at| format!(" (at {at:?})")).unwrap_or_default();
    let said = said.as_ref().map(|said| format!(" ({said})")).unwrap_or_default();
    at + &said
}
