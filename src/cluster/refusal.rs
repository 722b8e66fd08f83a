//! Why a machine may not join: one reason, one sentence, one remedy.

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
    #[error("cannot reach {url} ({why}): see that kedge server runs there and that no firewall blocks its TCP port")]
    Unreachable {
        /// URL.
        url: String,
        /// The system's words.
        why: String,
    },
    /// Somebody else answers.
    #[error("{url} is not a kedge server ({why}): correct --server")]
    NotKedge {
        /// URL.
        url: String,
        /// The reason.
        why: String,
    },
    /// The token was made by another cluster.
    #[error(
        "the token is for a cluster whose authority has the fingerprint {pinned}, but {url} shows {found}: correct \
         --server, or take the token from that server's file server/node-token"
    )]
    WrongCa {
        /// URL.
        url: String,
        /// The hash in the token (or of the authority known from before).
        pinned: String,
        /// The hash of what the server shows.
        found: String,
    },
    /// The server's certificate does not hold the name by which it was called.
    #[error(
        "the certificate of {url} does not hold the name {name}: start the server with --tls-san {name}, or use one of \
         its own names"
    )]
    WrongName {
        /// URL.
        url: String,
        /// The name.
        name: String,
    },
    /// No token, and the machine is not known.
    #[error(
        "this machine is not known to the cluster and has no token: give the one of the server's file \
         server/node-token with --token-file"
    )]
    NoToken,
    /// A password that is not the cluster's.
    #[error("the cluster does not accept this token's password: take the token from a server's file server/node-token")]
    WrongToken,
    /// A bootstrap token that does not exist.
    #[error("the cluster has no bootstrap token {id}: make one with 'kedge token create' on a server")]
    UnknownToken {
        /// Its public half.
        id: String,
    },
    /// A bootstrap token whose time is over.
    #[error("the bootstrap token {id} expired at {at}: make a new one with 'kedge token create' on a server")]
    ExpiredToken {
        /// Its public half.
        id: String,
        /// When it ended.
        at: String,
    },
    /// A bootstrap token that is not meant for nodes.
    #[error("the bootstrap token {id} is not for joining ({lacks}): make one with 'kedge token create' on a server")]
    UselessToken {
        /// Its public half.
        id: String,
        /// The capability that it lacks.
        lacks: String,
    },
    /// An agent's token does not make servers.
    #[error("this token is for agents only: to join a server, take the token from a server's file server/token")]
    AgentToken,
    /// The clocks differ.
    #[error("{}", skewed(.ahead_secs))]
    ClockSkew {
        /// Seconds by which this machine is ahead.
        ahead_secs: i64,
    },
    /// Another machine is the node of this name.
    #[error("{}", taken([.name, .address], .same_machine))]
    NameTaken {
        /// The name.
        name: String,
        /// Where the other machine is.
        address: String,
        /// Whether it seems to be this very machine, which lost its key.
        same_machine: bool,
    },
    /// A machine with the same key is connected from elsewhere.
    #[error(
        "a machine at {address} is connected as node {name} with the same key: if one is a copy of the other, remove \
         /etc/kedge/node from the copy and give it another --node-name"
    )]
    Twin {
        /// The name.
        name: String,
        /// Where the other machine is.
        address: String,
    },
    /// The programs are too far apart.
    #[error(
        "this is kedge {joining}, the server is {server}: a node may be up to three minor versions of Kubernetes older \
         than its server, and never newer; upgrade servers first"
    )]
    VersionSkew {
        /// Ours.
        joining: String,
        /// Theirs.
        server: String,
    },
    /// Settings that must agree do not.
    #[error("{}", differing(.flags))]
    FlagsDiffer {
        /// Which, and how.
        flags: Vec<Differing>,
    },
    /// The others cannot call the server that joins.
    #[error(
        "the other servers cannot reach this one at {address}: see that no firewall blocks that TCP port between \
         servers, or name the right address with --advertise-address"
    )]
    Unheard {
        /// Where they tried.
        address: String,
    },
    /// There is no store that could grow.
    #[error("that server takes no other servers in: {why}")]
    NoMembers {
        /// Why.
        why: String,
    },
    /// A name or request that no server accepts.
    #[error("{why}")]
    Invalid {
        /// The reason.
        why: String,
    },
    /// The server cannot say now.
    #[error("the server cannot let anybody in at the moment ({why}): it is tried again")]
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

fn skewed(ahead_secs: &i64) -> String {
    let (secs, way) = (ahead_secs.unsigned_abs(), if *ahead_secs > 0 { "ahead of" } else { "behind" });
    format!(
        "this machine's clock is {secs} s {way} the server's (at most {SKEW_MAX_SECS} s are accepted): set the clocks, \
         e.g. with NTP"
    )
}

/// The name and the address of the other machine, or of this one before it lost its key.
fn taken(taken: [&String; 2], same_machine: &bool) -> String {
    let [name, address] = taken;
    match same_machine {
        false => format!(
            "the node name {name} is taken by another machine at {address}: choose another with --node-name or \
             --with-node-id, or, if this machine replaces that one, run 'kubectl delete node {name}' first"
        ),
        true => format!(
            "this machine was the node {name} (at {address}) before, but its key in /etc/kedge/node is another now: \
             run 'kubectl delete node {name}' first, then join again"
        ),
    }
}

fn differing(flags: &[Differing]) -> String {
    let each =
        |Differing { flag, theirs, ours }: &Differing| format!(" --{flag} is '{theirs}' there and '{ours}' here");
    format!(
        "settings that must be the same on all servers differ:{}; start this server with the values from there",
        flags.iter().map(each).collect::<Vec<_>>().join(",")
    )
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
