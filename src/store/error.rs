//! Errors of the store, in its own words.

use std::path::PathBuf;

use crate::kv::Revision;

/// Why the store could not do what was asked.
#[allow(clippy::error_impl_error, reason = "one Error per room, always written store::error::Error by others")]
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// The revision asked for is older than what is kept.
    #[error("revision {} has been compacted, the oldest kept is {}", asked.0, floor.0)]
    Compacted {
        /// The revision asked for.
        asked: Revision,
        /// The oldest that can be read.
        floor: Revision,
    },
    /// The revision asked for has not happened yet.
    #[error("revision {} is in the future, the current one is {}", asked.0, current.0)]
    Future {
        /// The revision asked for.
        asked: Revision,
        /// The newest one.
        current: Revision,
    },
    /// Another member leads; writes go there.
    #[error("this member does not lead{}", leader.as_ref().map(|l| format!(", {l} does")).unwrap_or_default())]
    NotLeader {
        /// Address of the one that does, if known.
        leader: Option<String>,
    },
    /// A request beyond a bound.
    #[error("request is too large: {what} {size}, at most {max} allowed")]
    TooLarge {
        /// The thing that is too large.
        what: &'static str,
        /// How large it is.
        size: usize,
        /// How large it may be.
        max: usize,
    },
    /// A request that makes no sense, e.g. one key put twice in one transaction.
    #[error("invalid request: {why}")]
    Invalid {
        /// The reason.
        why: &'static str,
    },
    /// There is no such lease.
    #[error("lease {id} not found")]
    LeaseNotFound {
        /// The lease asked for.
        id: u64,
    },
    /// A lease of that id is there already.
    #[error("lease {id} already exists")]
    LeaseExists {
        /// The id asked for.
        id: u64,
    },
    /// A watcher that did not keep up was closed; it must list again.
    #[error("watch was closed because its reader is too slow")]
    SlowWatcher,
    /// The disk is full; nothing of the write happened.
    #[error("no space left on the device that holds {}", path.display())]
    NoSpace {
        /// The database.
        path: PathBuf,
    },
    /// The files contradict themselves.
    #[error("database {} is damaged: {why}", path.display())]
    Corrupt {
        /// The database.
        path: PathBuf,
        /// The contradiction that was seen.
        why: String,
    },
    /// The data was written by a newer kedge.
    #[error(
        "database {} has schema version {found}, this kedge knows versions up to {known}: use the newer kedge again",
        path.display()
    )]
    NewerSchema {
        /// The database.
        path: PathBuf,
        /// Its version.
        found: i64,
        /// The newest version this binary knows.
        known: i64,
    },
    /// Another process works on the data.
    #[error("data directory {} is in use by process {pid}: stop it or choose another --data-dir", dir.display())]
    InUse {
        /// The directory.
        dir: PathBuf,
        /// The other process, as it wrote itself down.
        pid: String,
    },
    /// Reading or writing failed.
    #[error("{doing}: {why}")]
    Io {
        /// The step that failed.
        doing: &'static str,
        /// The system's own words.
        why: String,
    },
    /// No leader and no majority agreed in time. The write may still happen.
    #[error("the store's members did not agree in time")]
    TimedOut,
    /// There is no such member.
    #[error("the store has no member {id:x}")]
    MemberNotFound {
        /// The member asked for.
        id: u64,
    },
    /// A learner cannot vote yet.
    #[error("member {id:x} is not up to date yet")]
    NotCaughtUp {
        /// The member.
        id: u64,
    },
    /// A store cannot lose its only voter.
    #[error("the only voting member cannot leave")]
    LastMember,
    /// Nobody answers there.
    #[error("no member answers at {address}")]
    MemberUnreachable {
        /// Where.
        address: String,
    },
    /// An external etcd did not answer.
    #[error("etcd at {servers} gave no answer, tried for {secs} s: {why}")]
    EtcdUnreachable {
        /// Its servers.
        servers: String,
        /// How long it was tried.
        secs: u64,
        /// The last answer of each of them, or of the network.
        why: String,
    },
    /// The cluster let this member go.
    #[error("this member was removed from the cluster")]
    Removed,
    /// This store was opened for itself alone.
    #[error("this store was opened without a network for members")]
    NoNetwork,
    /// The store is stopping or has failed.
    #[error("the store is closed")]
    Closed,
}

impl Error {
    /// For `map_err`: what was tried when SQLite or the system failed.
    pub fn io<E: std::fmt::Display>(doing: &'static str) -> impl FnOnce(E) -> Error {
        move |err| Error::Io { doing, why: err.to_string() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_what_a_person_has_to_know() {
        let leader = Some("10.0.0.1:6443".to_owned());
        for (err, words) in [
            (Error::NotLeader { leader: None }, "this member does not lead"),
            (Error::NotLeader { leader }, "this member does not lead, 10.0.0.1:6443 does"),
            (Error::MemberNotFound { id: 255 }, "the store has no member ff"),
            (
                Error::NewerSchema { path: "/db".into(), found: 9, known: 2 },
                "database /db has schema version 9, this kedge knows versions up to 2: use the newer kedge again",
            ),
            (Error::io("cannot sync")("no space"), "cannot sync: no space"),
        ] {
            assert_eq!(err.to_string(), words);
        }
    }
}
