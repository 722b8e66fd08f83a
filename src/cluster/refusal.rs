//! Why a machine may not join: one reason, one sentence, one remedy.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A clock may be this far off, in seconds.
pub const SKEW_MAX_SECS: i64 = 300;

/// A setting that differs between servers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Differing {
    /// The flag's name.
    pub flag: String,
    /// Its value on the server that was asked.
    pub theirs: String,
    /// Its value here.
    pub ours: String,
}

/// The reason. It travels as JSON; the joining side prints it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[serde(tag = "reason", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Refusal {
    /// Nobody answers.
    Unreachable {
        /// URL.
        url: String,
        /// The system's words.
        why: String,
    },
    /// Somebody else answers.
    NotKedge {
        /// URL.
        url: String,
        /// The reason.
        why: String,
    },
    /// The token was made by another cluster.
    WrongCa {
        /// URL.
        url: String,
        /// The hash in the token (or of the authority known from before).
        pinned: String,
        /// The hash of what the server shows.
        found: String,
    },
    /// The server's certificate does not hold the name by which it was called.
    WrongName {
        /// URL.
        url: String,
        /// The name.
        name: String,
    },
    /// No token, and the machine is not known.
    NoToken,
    /// A password that is not the cluster's.
    WrongToken,
    /// A bootstrap token that does not exist.
    UnknownToken {
        /// Its public half.
        id: String,
    },
    /// A bootstrap token whose time is over.
    ExpiredToken {
        /// Its public half.
        id: String,
        /// When it ended.
        at: String,
    },
    /// A bootstrap token that is not meant for nodes.
    UselessToken {
        /// Its public half.
        id: String,
        /// The capability that it lacks.
        lacks: String,
    },
    /// An agent's token does not make servers.
    AgentToken,
    /// The clocks differ.
    ClockSkew {
        /// Seconds by which this machine is ahead.
        ahead_secs: i64,
    },
    /// Another machine is the node of this name.
    NameTaken {
        /// The name.
        name: String,
        /// Where the other machine is.
        address: String,
        /// Whether it seems to be this very machine, which lost its key.
        same_machine: bool,
    },
    /// A machine with the same key is connected from elsewhere.
    Twin {
        /// The name.
        name: String,
        /// Where the other machine is.
        address: String,
    },
    /// The programs are too far apart.
    VersionSkew {
        /// Ours.
        joining: String,
        /// Theirs.
        server: String,
    },
    /// Settings that must agree do not.
    FlagsDiffer {
        /// Which, and how.
        flags: Vec<Differing>,
    },
    /// The others cannot call the server that joins.
    Unheard {
        /// Where they tried.
        address: String,
    },
    /// There is no store that could grow.
    NoMembers {
        /// Why.
        why: String,
    },
    /// A name or request that no server accepts.
    Invalid {
        /// The reason.
        why: String,
    },
    /// The server cannot say now.
    NotReady {
        /// Why.
        why: String,
    },
}

impl Refusal {
    /// Whether trying again may help without anybody doing something.
    pub fn may_pass(&self) -> bool {
        matches!(
            self,
            Refusal::Unreachable { .. }
                | Refusal::NotReady { .. }
                | Refusal::ClockSkew { .. }
                | Refusal::Twin { .. }
                | Refusal::Unheard { .. }
        )
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Unreachable { url, why } => {
                write!(
                    f,
                    "cannot reach {url} ({why}): see that kedge server runs there and that no firewall blocks its TCP \
                     port"
                )
            }
            Refusal::NotKedge { url, why } => write!(f, "{url} is not a kedge server ({why}): correct --server"),
            Refusal::WrongCa { url, pinned, found } => write!(
                f,
                "the token is for a cluster whose authority has the fingerprint {pinned}, but {url} shows {found}: \
                 correct --server, or take the token from that server's file server/node-token"
            ),
            Refusal::WrongName { url, name } => {
                write!(
                    f,
                    "the certificate of {url} does not hold the name {name}: start the server with --tls-san {name}, \
                     or use one of its own names"
                )
            }
            Refusal::NoToken => f.write_str(
                "this machine is not known to the cluster and has no token: give the one of the server's file \
                 server/node-token with --token-file",
            ),
            Refusal::WrongToken => f.write_str(
                "the cluster does not accept this token's password: take the token from a server's file \
                 server/node-token",
            ),
            Refusal::UnknownToken { id } => {
                write!(f, "the cluster has no bootstrap token {id}: make one with 'kedge token create' on a server")
            }
            Refusal::ExpiredToken { id, at } => write!(
                f,
                "the bootstrap token {id} expired at {at}: make a new one with 'kedge token create' on a server"
            ),
            Refusal::UselessToken { id, lacks } => write!(
                f,
                "the bootstrap token {id} is not for joining ({lacks}): make one with 'kedge token create' on a server"
            ),
            Refusal::AgentToken => f.write_str(
                "this token is for agents only: to join a server, take the token from a server's file server/token",
            ),
            Refusal::ClockSkew { ahead_secs } => {
                let (secs, way) = (ahead_secs.unsigned_abs(), if *ahead_secs > 0 { "ahead of" } else { "behind" });
                write!(
                    f,
                    "this machine's clock is {secs} s {way} the server's (at most {SKEW_MAX_SECS} s are accepted): \
                     set the clocks, e.g. with NTP"
                )
            }
            Refusal::NameTaken { name, address, same_machine: false } => write!(
                f,
                "the node name {name} is taken by another machine at {address}: choose another with --node-name or \
                 --with-node-id, or, if this machine replaces that one, run 'kubectl delete node {name}' first"
            ),
            Refusal::NameTaken { name, address, .. } => write!(
                f,
                "this machine was the node {name} (at {address}) before, but its key in /etc/kedge/node is another \
                 now: run 'kubectl delete node {name}' first, then join again"
            ),
            Refusal::Twin { name, address } => write!(
                f,
                "a machine at {address} is connected as node {name} with the same key: if one is a copy of the other, \
                 remove /etc/kedge/node from the copy and give it another --node-name"
            ),
            Refusal::VersionSkew { joining, server } => write!(
                f,
                "this is kedge {joining}, the server is {server}: a node may be up to three minor versions of \
                 Kubernetes older than its server, and never newer; upgrade servers first"
            ),
            Refusal::FlagsDiffer { flags } => {
                f.write_str("settings that must be the same on all servers differ:")?;
                for (n, Differing { flag, theirs, ours }) in flags.iter().enumerate() {
                    write!(f, "{} --{flag} is '{theirs}' there and '{ours}' here", if n == 0 { "" } else { "," })?;
                }
                f.write_str("; start this server with the values from there")
            }
            Refusal::Unheard { address } => write!(
                f,
                "the other servers cannot reach this one at {address}: see that no firewall blocks that TCP port \
                 between servers, or name the right address with --advertise-address"
            ),
            Refusal::NoMembers { why } => write!(f, "that server takes no other servers in: {why}"),
            Refusal::Invalid { why } => f.write_str(why),
            Refusal::NotReady { why } => {
                write!(f, "the server cannot let anybody in at the moment ({why}): it is tried again")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_survives_the_wire_and_is_told_in_one_sentence() {
        let flags = vec![Differing {
            flag: "cluster-cidr".to_owned(),
            theirs: "10.42.0.0/16".to_owned(),
            ours: "10.1.0.0/16".to_owned(),
        }];
        for reason in [
            Refusal::FlagsDiffer { flags },
            Refusal::ClockSkew { ahead_secs: -4000 },
            Refusal::NameTaken { name: "n".to_owned(), address: "192.0.2.1".to_owned(), same_machine: true },
            Refusal::WrongToken,
        ] {
            let text = serde_json::to_string(&reason).unwrap();
            assert_eq!(serde_json::from_str::<Refusal>(&text).unwrap(), reason, "{text}");
            assert!(!reason.to_string().contains('\n'));
        }
        assert!(Refusal::ClockSkew { ahead_secs: -4000 }.to_string().contains("4000 s behind"));
    }

    #[test]
    fn what_may_pass_by_itself_is_tried_again_and_nothing_else() {
        let text = || "x".to_owned();
        for (refusal, passes) in [
            (Refusal::Unreachable { url: text(), why: text() }, true),
            (Refusal::NotReady { why: text() }, true),
            (Refusal::ClockSkew { ahead_secs: 999 }, true),
            (Refusal::Twin { name: text(), address: text() }, true),
            (Refusal::Unheard { address: text() }, true),
            (Refusal::NotKedge { url: text(), why: text() }, false),
            (Refusal::WrongCa { url: text(), pinned: text(), found: text() }, false),
            (Refusal::WrongName { url: text(), name: text() }, false),
            (Refusal::NoToken, false),
            (Refusal::WrongToken, false),
            (Refusal::AgentToken, false),
            (Refusal::NameTaken { name: text(), address: text(), same_machine: false }, false),
            (Refusal::FlagsDiffer { flags: Vec::new() }, false),
            (Refusal::Invalid { why: text() }, false),
        ] {
            assert_eq!(refusal.may_pass(), passes, "{refusal}");
        }
    }

    #[test]
    fn a_reason_says_what_to_do() {
        let taken =
            |same_machine| Refusal::NameTaken { name: "n1".to_owned(), address: "192.0.2.1".to_owned(), same_machine };
        for (refusal, words) in [
            (
                taken(false),
                "the node name n1 is taken by another machine at 192.0.2.1: choose another with --node-name",
            ),
            (
                taken(true),
                "this machine was the node n1 (at 192.0.2.1) before, but its key in /etc/kedge/node is another",
            ),
            (
                Refusal::ClockSkew { ahead_secs: 301 },
                "this machine's clock is 301 s ahead of the server's (at most 300 s",
            ),
            (
                Refusal::NoToken,
                "this machine is not known to the cluster and has no token: give the one of the server's",
            ),
        ] {
            let said = refusal.to_string();
            assert!(said.starts_with(words), "{said}");
            assert!(!said.contains("  "), "{said}");
        }
    }
}
