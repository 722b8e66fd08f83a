//! The types of our Raft group, as openraft asks for them.

use openraft::{CommittedLeaderId, LogId, SnapshotMeta};

use crate::journal::frame::{EntryId, Leader};
use crate::member::Peer;
use crate::mvcc::entry::{Entry, Membership, Payload, StoredMembership, Vote};

/// A whole database. openraft passes it around and never looks into it.
#[derive(Debug)]
pub struct Image {
    /// One that was received; `None` is the running database, which is copied only when it is sent.
    pub received: Option<tempfile::TempPath>,
}

openraft::declare_raft_types!(
    /// The types of our Raft group.
    pub TypeConfig:
        D = crate::command::Batch,
        R = (),
        NodeId = u64,
        Node = crate::member::Peer,
        SnapshotData = crate::raft::types::Image,
);

/// A number as openraft has it.
pub fn log_id(id: EntryId) -> LogId<u64> {
    LogId::new(CommittedLeaderId::new(id.leader_id.term, id.leader_id.node_id), id.index)
}

/// A number as the log has it.
pub fn entry_id(log: LogId<u64>) -> EntryId {
    EntryId::new(log.leader_id.term, log.leader_id.node_id, log.index)
}

/// An entry of openraft's as the state knows it.
pub fn entry_of(entry: openraft::Entry<TypeConfig>) -> Entry {
    let payload = match entry.payload {
        openraft::EntryPayload::Blank => Payload::Blank,
        openraft::EntryPayload::Normal(batch) => Payload::Normal(batch),
        openraft::EntryPayload::Membership(membership) => Payload::Membership(membership_of(&membership)),
    };
    Entry { log_id: entry_id(entry.log_id), payload }
}

/// The same back.
pub fn raft_entry(entry: Entry) -> openraft::Entry<TypeConfig> {
    let payload = match entry.payload {
        Payload::Blank => openraft::EntryPayload::Blank,
        Payload::Normal(batch) => openraft::EntryPayload::Normal(batch),
        Payload::Membership(membership) => openraft::EntryPayload::Membership(raft_membership(membership)),
    };
    openraft::Entry { log_id: log_id(entry.log_id), payload }
}

fn membership_of(membership: &openraft::Membership<u64, Peer>) -> Membership {
    let nodes = membership.nodes().map(|(id, peer)| (*id, peer.clone())).collect();
    Membership { configs: membership.get_joint_config().clone(), nodes }
}

fn raft_membership(membership: Membership) -> openraft::Membership<u64, Peer> {
    openraft::Membership::new(membership.configs, membership.nodes)
}

/// The members as openraft has them.
pub fn raft_members(members: StoredMembership) -> openraft::StoredMembership<u64, Peer> {
    openraft::StoredMembership::new(members.log_id.map(log_id), raft_membership(members.membership))
}

/// A vote of openraft's as the state knows it.
pub fn vote_of(vote: &openraft::Vote<u64>) -> Vote {
    let leader_id = Leader { term: vote.leader_id.term, node_id: vote.leader_id.node_id };
    Vote { leader_id, committed: vote.committed }
}

/// The same back.
pub fn raft_vote(vote: Vote) -> openraft::Vote<u64> {
    let Leader { term, node_id } = vote.leader_id;
    if vote.committed { openraft::Vote::new_committed(term, node_id) } else { openraft::Vote::new(term, node_id) }
}

/// The description of a snapshot with these members whose last entry is `last`.
pub fn snapshot_meta(last: Option<EntryId>, members: StoredMembership) -> SnapshotMeta<u64, Peer> {
    SnapshotMeta {
        last_log_id: last.map(log_id),
        last_membership: raft_members(members),
        snapshot_id: last.map(|last| last.to_string()).unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;
    use crate::codec::encode;
    use crate::command::{Batch, Command, Origin};

    fn members() -> Membership {
        let peer = |n: u64| Peer { addr: format!("10.0.0.{n}:6443"), name: format!("n{n}") };
        let configs = vec![BTreeSet::from([1, 2]), BTreeSet::from([2, 300])];
        Membership { configs, nodes: BTreeMap::from([1, 2, 300, 4].map(|n| (n, peer(n)))) }
    }

    /// Databases and logs of before were written with openraft's types, and are read by servers that still do.
    #[test]
    fn entries_have_the_form_of_openrafts() {
        let origin = Origin { member: 7, boot: u64::MAX, seq: 1, term: 3 };
        let commands = vec![Command::LeaseGrant { id: 9, ttl_secs: 60 }, Command::LeaseRevoke { id: 9 }];
        let batch = Batch { origin, commands: commands.into() };
        for payload in [Payload::Blank, Payload::Normal(batch), Payload::Membership(members())] {
            let entry = Entry { log_id: EntryId::new(3, 300, 1 << 40), payload };
            let theirs = raft_entry(entry.clone());
            assert_eq!(entry.frame().unwrap().bytes, encode(&theirs).unwrap());
            let frame = crate::journal::frame::Frame::read(&encode(&theirs).unwrap()).unwrap();
            assert_eq!(frame, entry.frame().unwrap());
            let read = Entry::read(&frame).unwrap();
            assert_eq!(encode(&entry_of(raft_entry(read))).unwrap(), frame.bytes);
        }
    }

    #[test]
    fn what_meta_keeps_has_the_form_of_openrafts() {
        let id = EntryId::new(3, 300, 12);
        for committed in [false, true] {
            let vote = Vote { leader_id: id.leader_id, committed };
            assert_eq!(text(&vote), text(&raft_vote(vote)));
            assert_eq!(vote_of(&raft_vote(vote)), vote);
        }
        for members in [StoredMembership::default(), StoredMembership { log_id: Some(id), membership: members() }] {
            assert_eq!(text(&members), text(&raft_members(members.clone())));
        }
        assert_eq!((text(&id), id.to_string()), (text(&log_id(id)), log_id(id).to_string()));
        assert_eq!(entry_id(log_id(id)), id);
    }

    /// A value as `meta` has it.
    fn text(value: &impl serde::Serialize) -> String {
        serde_json::to_string(value).unwrap()
    }
}
