//! Applying entries in memory, telling the watchers, and answering those who wait.

use crate::command::{Command, Origin, Outcome};
use crate::error::Error;
use crate::mvcc::apply::Pass;
use crate::mvcc::database::{self, Applied};
use crate::mvcc::entry::{Entry, Payload, StoredMembership};
use crate::mvcc::flush::Flusher;
use crate::mvcc::history;
use crate::mvcc::hub::Told;
use crate::mvcc::shared::Shared;

/// Results of entries, before anybody hears of them.
pub(super) struct Passed {
    answers: Vec<(Origin, Vec<Outcome>)>,
    told: Told,
    revision: u64,
    /// The floor of the newest compaction among them.
    pub(super) floor: Option<u64>,
}

/// The state in memory, and what is applied in it.
#[derive(Debug)]
pub(super) struct Applier {
    shared: Shared,
    pub(super) applied: Applied,
}

impl Applier {
    pub(super) fn new(shared: Shared) -> Applier {
        Applier { shared, applied: Applied::default() }
    }

    /// Whether `member` is the only one.
    pub(super) fn is_only(&self, member: u64) -> bool {
        self.applied.membership.membership.nodes.keys().eq([&member])
    }

    /// Whether the store has members at all.
    pub(super) fn has_members(&self) -> bool {
        !self.applied.membership.membership.nodes.is_empty()
    }

    /// Passes over an entry of which nothing is kept.
    pub(super) fn pass_over(&mut self, entries: &[Entry]) {
        self.applied.log = entries.last().map(|entry| entry.log_id);
        self.shared.applied_index.applied(self.applied.log);
    }

    /// Applies entries to the state in memory.
    ///
    /// Errors: the database could not be read. Then the state holds a part of them.
    pub(super) fn pass(&mut self, flusher: &mut Flusher, entries: &[Entry]) -> rusqlite::Result<Passed> {
        let mut leases = self.shared.leases.lock();
        let mut pass = Pass {
            conn: &flusher.conn,
            memtable: &self.shared.memtable,
            unsaved: &mut flusher.unsaved,
            index: &self.shared.index,
            leases: &mut leases,
            revision: self.shared.hub.revision(),
            entry: (0, 0),
            want_prev: self.shared.hub.wants_prev(),
            told: Vec::new(),
            events: Vec::new(),
        };
        let (mut answers, mut floor) = (Vec::new(), None);
        for entry in entries {
            let log = entry.log_id;
            pass.entry = (log.index, log.leader_id.term);
            self.applied.log = Some(log);
            match &entry.payload {
                Payload::Membership(membership) => {
                    self.applied.membership = StoredMembership { log_id: Some(log), membership: membership.clone() }
                }
                Payload::Normal(batch) if batch.origin.term == log.leader_id.term => {
                    let mut outcomes = Vec::with_capacity(batch.commands.len());
                    for command in batch.commands.iter() {
                        let outcome = pass.command(command)?;
                        if let (Command::Compact { at }, Ok(_)) = (command, &outcome) {
                            floor = Some(at.0);
                        }
                        outcomes.push(outcome);
                    }
                    answers.push((batch.origin, outcomes));
                }
                // One of another term was made for that: its member has proposed it again, or will.
                Payload::Normal(_) | Payload::Blank => {}
            }
        }
        let told = Told { batches: pass.told, has_prev: pass.want_prev };
        Ok(Passed { answers, told, revision: pass.revision, floor })
    }

    /// Tells the watchers of the entries, and answers those who wait for them.
    pub(super) fn tell(&self, flusher: &Flusher, entries: &[Entry], passed: Passed) {
        self.shared.applied_index.applied(self.applied.log);
        let before = self.shared.hub.revision();
        self.shared.hub.publish(passed.told, passed.revision, || {
            let (known, from, until) = ((&*self.shared.index, &*self.shared.memtable), before + 1, passed.revision);
            history::everything(&flusher.conn, known, from, until)
                .map_err(|err| database::sqlite(&flusher.path, "cannot read the database", err))
        });
        if entries.iter().any(touches_leases) {
            self.shared.leases_changed.notify_one();
        }
        for (origin, outcomes) in passed.answers {
            self.shared.pending.answer(&origin, outcomes);
        }
    }

    /// Tells the callers of these entries that wait here the same error.
    pub(super) fn fail(&self, entries: &[Entry], err: &Error) {
        for entry in entries {
            if let Payload::Normal(batch) = &entry.payload {
                self.shared.pending.fail(&batch.origin, err);
            }
        }
    }
}

fn touches_leases(entry: &Entry) -> bool {
    let Payload::Normal(batch) = &entry.payload else { return false };
    batch.commands.iter().any(|command| matches!(command, Command::LeaseGrant { .. } | Command::LeaseRevoke { .. }))
}
