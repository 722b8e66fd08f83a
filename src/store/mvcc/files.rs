//! Opening what a store has on the disk: the database, and the log beside it. A store of schema 1 gives its log away
//! here.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::rng::Rng;
use rusqlite::Connection;

use crate::bounds::Bounds;
use crate::disk::Disk;
use crate::error::Error;
use crate::journal::frame::{EntryId, Frame, next_index};
use crate::journal::{self, Journal};
use crate::member::Bootstrap;
use crate::mvcc::database::{self, LOG_IN_FILES, SCHEMA_VERSION, set_meta};

/// Entries that are taken over in one record.
const TAKEN_AT_ONCE: usize = 256;

/// Database and log.
#[derive(Debug)]
pub struct Files {
    /// The disk they are on.
    pub disk: Arc<dyn Disk>,
    /// The connection that writes.
    pub conn: Connection,
    /// The database.
    pub path: PathBuf,
    /// This member.
    pub member: u64,
    /// The log.
    pub journal: Journal,
    /// Sizes.
    pub bounds: Bounds,
}

/// Opens the store in `dir`, makes it if there is none. The caller has the folder's lock.
///
/// Errors: `NewerSchema`, `Corrupt`, `NoSpace`, `Io`.
pub fn open(disk: &Arc<dyn Disk>, dir: &Path, bootstrap: Bootstrap, rng: &Rng, bounds: Bounds) -> Result<Files, Error> {
    let path = database::path_in(dir);
    let conn = database::open_writer(&**disk, &path, rng)?;
    let member = database::member(&conn, &path, bootstrap, rng)?;
    let salt = database::salt(&conn, &path, rng)?;
    let log = journal::dir_in(dir);
    let version = database::version(&conn, &path)?;
    let is_old = version < LOG_IN_FILES;
    if is_old {
        // Of an upgrade that was cut short, or of another database that was here: the log is in this one still.
        match std::fs::remove_dir_all(&log) {
            Err(err) if err.kind() != std::io::ErrorKind::NotFound => {
                return Err(Error::io("cannot remove an old log")(err));
            }
            _gone => {}
        }
    }
    let journal = Journal::open(disk, &log, salt, &bounds)?;
    let mut files = Files { disk: Arc::clone(disk), conn, path, member, journal, bounds };
    if is_old {
        files.take_over()?;
    } else if version < SCHEMA_VERSION {
        // Before the first record that a kedge of before could not read.
        let write = files.conn.pragma_update(None, "user_version", SCHEMA_VERSION);
        write.map_err(|err| database::sqlite(&files.path, "cannot upgrade the database", err))?;
    }
    Ok(files)
}

impl Files {
    /// Brings the log out of the database. Until the last step nothing is changed in it, so this can be done again.
    fn take_over(&mut self) -> Result<(), Error> {
        let failed = |err| database::sqlite(&self.path, "cannot upgrade the database", err);
        let applied = database::applied(&self.conn, &self.path, self.member)?;
        let purged = database::meta::<Option<EntryId>>(&self.conn, &self.path, "purged")?.flatten();
        let mut entries = self.rows()?;
        let first = entries.first().map(|entry| entry.id.index);
        let mut prev = purged;
        if first != Some(next_index(purged)) {
            // Rows of a time before this member was alone: what is applied is not needed of them.
            entries.retain(|entry| entry.id.index >= next_index(applied.log));
            prev = applied.log;
        }
        for entries in entries.chunks(TAKEN_AT_ONCE) {
            self.journal.append(prev, entries)?;
            prev = entries.last().map(|entry| entry.id);
        }
        let write = || -> rusqlite::Result<()> {
            self.conn
                .execute_batch("BEGIN IMMEDIATE; DELETE FROM raft_log; DELETE FROM meta WHERE name = 'purged';")?;
            set_meta(&self.conn, "applied", &applied)?;
            self.conn.pragma_update(None, "user_version", SCHEMA_VERSION)?;
            self.conn.execute_batch("COMMIT")
        };
        write().map_err(failed)
    }

    fn rows(&self) -> Result<Vec<Frame>, Error> {
        let failed = |err| database::sqlite(&self.path, "cannot read the log", err);
        let mut statement = self.conn.prepare("SELECT entry FROM raft_log ORDER BY log_index").map_err(failed)?;
        let rows = statement.query_map([], |row| row.get::<_, Vec<u8>>(0)).map_err(failed)?;
        let mut entries = Vec::new();
        for row in rows {
            let corrupt = |err: Error| Error::Corrupt { path: self.path.clone(), why: format!("raft_log: {err}") };
            entries.push(Frame::read(&row.map_err(failed)?).map_err(corrupt)?);
        }
        Ok(entries)
    }
}
