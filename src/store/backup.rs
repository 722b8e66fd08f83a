//! The store as a file: copies of it while it runs or lies still, and making one member the only one again.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use base::rng::Rng;
use rusqlite::{Connection, OpenFlags};

use crate::bounds::Bounds;
use crate::disk::{Disk, SystemDisk};
use crate::error::Error;
use crate::journal::frame::{EntryId, Leader, next_index};
use crate::journal::{self, Journal};
use crate::member::Bootstrap;
use crate::mvcc::database::{self, Applied, DirLock, set_meta};
use crate::mvcc::entry::{Entry, Membership, StoredMembership, Vote};
use crate::mvcc::files::{self, Files};
use crate::mvcc::shared::Shared;
use crate::mvcc::writer::Writer;
use crate::pending::Pending;
use crate::raft::image::{copy_pages, strip};

/// State that a copy holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contents {
    /// The cluster's number.
    pub cluster_id: u64,
    /// The newest revision.
    pub revision: u64,
}

/// How often a copy is tried beside a server that works: its log may be written just where it is read.
const COPY_TRIES: usize = 10;

/// Copies the store in `dir` to the new file `to`, as it stands at one moment, whether a server works on it or not.
///
/// What is in the log of it counts, as in [`reset`]. Blocks. Errors: `Io` if there is no store, `NoSpace`, `Corrupt`.
pub fn copy_to(dir: &Path, to: &Path, rng: &Rng) -> Result<Contents, Error> {
    let path = database::path_in(dir);
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let failed = |err| database::sqlite(&path, "cannot copy the store", err);
    let source = Connection::open_with_flags(&path, flags).map_err(failed)?;
    let member = database::meta(&source, &path, "member")?.unwrap_or(1);
    let salt: Option<u64> = database::meta(&source, &path, "log_salt")?;
    let copy = || -> Result<(), Error> {
        let applied = database::applied(&source, &path, member)?;
        // Before the database: what the log lets go meanwhile the database has.
        let entries =
            salt.map_or(Ok(Vec::new()), |salt| journal::look(&journal::dir_in(dir), salt, next_index(applied.log)))?;
        copy_pages(&source, to).map_err(failed)?;
        add(entries.iter().map(Entry::read).collect::<Result<_, _>>()?, to, (member, rng))
    };
    let mut tries = 1;
    while let Err(err) = copy() {
        tries += 1;
        if tries > COPY_TRIES || !matches!(err, Error::Corrupt { .. }) {
            return Err(err);
        }
    }
    strip(to, to, member)?;
    look(to)
}

/// Brings to a copy those entries that it lacks.
fn add(mut entries: Vec<Entry>, to: &Path, (member, rng): (u64, &Rng)) -> Result<(), Error> {
    let disk: Arc<dyn Disk> = Arc::new(SystemDisk);
    let conn = database::open_writer(&*disk, to, rng)?;
    let next = next_index(database::applied(&conn, to, member)?.log);
    entries.retain(|entry| entry.log_id.index >= next);
    match entries.first() {
        None => return Ok(()),
        Some(first) if first.log_id.index > next => {
            return Err(Error::Corrupt {
                path: to.to_owned(),
                why: format!("it has the entries before {next}, and the log begins behind"),
            });
        }
        Some(_) => {}
    }
    // Nothing is written to this log.
    let work = tempfile::tempdir_in(to.parent().unwrap_or(to)).map_err(Error::io("cannot copy the store"))?;
    let journal = Journal::open(&disk, &journal::dir_in(work.path()), 0, &Bounds::SHIPPED)?;
    let files = Files { disk, conn, path: to.to_owned(), member, journal, bounds: Bounds::SHIPPED };
    Writer::new(files, no_company(member))?.apply_foreign(&entries)
}

/// Shared state of a writer that works for itself.
fn no_company(member: u64) -> Shared {
    Shared {
        index: Arc::default(),
        leases: Arc::default(),
        hub: Arc::default(),
        pending: Arc::new(Pending::new(member, 0)),
        alone: Arc::default(),
        leases_changed: Arc::default(),
        cluster_id: Arc::default(),
        applied_index: Arc::default(),
        memtable: Arc::default(),
        space: Arc::default(),
    }
}

/// Looks into a copy: whether it is whole, and what it holds.
///
/// Errors: `Corrupt`, `NewerSchema`, `Io`.
pub fn look(file: &Path) -> Result<Contents, Error> {
    let failed = |err| database::sqlite(file, "cannot read the copy of the store", err);
    let conn = Connection::open_with_flags(file, OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX)
        .map_err(failed)?;
    let found: i64 = conn.query_row("PRAGMA user_version", [], |row| row.get(0)).map_err(failed)?;
    if found > database::SCHEMA_VERSION {
        return Err(Error::NewerSchema { path: file.to_owned(), found, known: database::SCHEMA_VERSION });
    }
    let verdict: String = conn.query_row("PRAGMA quick_check", [], |row| row.get(0)).map_err(failed)?;
    let corrupt = |why: String| Error::Corrupt { path: file.to_owned(), why };
    if verdict != "ok" {
        return Err(corrupt(verdict));
    }
    let cluster_id = database::meta(&conn, file, "cluster_id")?.ok_or_else(|| corrupt("no cluster id".to_owned()))?;
    Ok(Contents { cluster_id, revision: database::load(&conn, file)?.revision })
}

/// Makes the store in `dir` a cluster of one member: what is in its log is kept, the other members are forgotten.
///
/// The cluster gets a new number, so that members of the old one that still run are refused. The others join anew with
/// an empty directory. Blocks. Errors: `InUse` while a server works on it, `Corrupt`, `Io`.
pub fn reset(dir: &Path, rng: &Rng) -> Result<Contents, Error> {
    let _lock = database::lock_dir(dir)?;
    let path = database::path_in(dir);
    let disk: Arc<dyn Disk> = Arc::new(SystemDisk);
    let files = files::open(&disk, dir, Bootstrap::First, rng, Bounds::SHIPPED)?;
    let member = files.member;
    // What is in the log may have been acknowledged: this member cannot know, so all of it counts.
    let mut writer = Writer::new(files, no_company(member))?;
    writer.apply_log()?;
    let failed = |err| database::sqlite(&path, "cannot reset the members", err);
    let conn = database::open_writer(&*disk, &path, rng)?;
    let before = database::applied(&conn, &path, member)?;
    let vote: Option<Vote> = database::meta(&conn, &path, "vote")?;
    let term = before.log.map_or(0, |log| log.leader_id.term).max(vote.map_or(0, |vote| vote.leader_id.term)) + 1;
    let leader_id = Leader { term, node_id: member };
    let log = EntryId { leader_id, index: next_index(before.log).max(1) };
    let peer = before.membership.membership.nodes.get(&member).cloned().unwrap_or_default();
    let membership = Membership { configs: vec![BTreeSet::from([member])], nodes: BTreeMap::from([(member, peer)]) };
    let applied = Applied { log: Some(log), membership: StoredMembership { log_id: Some(log), membership } };
    let mut drawn = [0; 8];
    rng.fill(&mut drawn);
    let write = || -> rusqlite::Result<()> {
        conn.execute_batch("BEGIN IMMEDIATE")?;
        set_meta(&conn, "applied", &applied)?;
        set_meta(&conn, "vote", &Vote { leader_id, committed: false })?;
        set_meta(&conn, "cluster_id", &(u64::from_be_bytes(drawn) >> 1))?;
        conn.execute_batch("COMMIT")
    };
    write().map_err(failed)?;
    // All of it is in the database, and nobody is there to ask for it.
    writer.forget_log()?;
    Ok(Contents { cluster_id: u64::from_be_bytes(drawn) >> 1, revision: database::load(&conn, &path)?.revision })
}

/// Keeps a server away from the store in `dir` while the answer lives.
///
/// Errors: `InUse` while a server works on it.
pub fn lock(dir: &Path) -> Result<DirLock, Error> {
    database::lock_dir(dir)
}
