//! The one file: opening it, its schema, the lock that keeps a second process away.
//!
//! SQLite 3.54.1 (bundled by libsqlite3-sys 0.39.1) contains the WAL-reset fix of 2026: before it, a checkpoint that
//! raced with a write on another connection could lose a commit. Here one thread alone writes and checkpoints.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read as _, Seek as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use base::rng::Rng;
use bytes::Bytes;
use rusqlite::{Connection, OpenFlags, OptionalExtension as _, params};
use serde::{Deserialize, Serialize};

use crate::disk::Disk;
use crate::error::Error;
use crate::journal::frame::{EntryId, Leader};
use crate::member::Bootstrap;
use crate::mvcc::entry::{StoredMembership, Vote};
use crate::mvcc::index::{Index, POSITION_BITS, Version};

/// Version of the schema below, kept in `PRAGMA user_version`: since 2 the log is in files beside the database, since 3
/// their records carry tags, which a kedge of before would take for the log's end.
pub const SCHEMA_VERSION: i64 = 3;

/// Since when the log is in files.
pub const LOG_IN_FILES: i64 = 2;

/// Version of copies. They carry no log, so that a kedge which has it in `raft_log` can go on with them.
pub const COPY_VERSION: i64 = 1;

// `history` is append-only: a row per change, in the order of revisions, so that a batch of writes dirties the last
// pages only. Numbers stand before the blobs so that reading them never follows an overflow page. `log_index` and
// `log_term` say which Raft entry made the row: no second table has to be touched to know what was applied. `raft_log`
// is empty: it held the log up to version 1, and copies have it still.
const SCHEMA: &str = "
    CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
    CREATE TABLE history (
        id INTEGER PRIMARY KEY,
        created INTEGER NOT NULL,
        version INTEGER NOT NULL,
        lease INTEGER NOT NULL,
        log_index INTEGER NOT NULL,
        log_term INTEGER NOT NULL,
        key BLOB NOT NULL,
        value BLOB NOT NULL
    );
    CREATE TABLE lease (id INTEGER PRIMARY KEY, ttl_secs INTEGER NOT NULL);
    CREATE TABLE raft_log (log_index INTEGER PRIMARY KEY, entry BLOB NOT NULL);
";

/// A lone small write dirties one page, and at idle most writes are alone.
const PAGE_BYTES: u32 = 1024;

/// Pages in the WAL before the writer moves them to the database (8 MiB).
const CHECKPOINT_PAGES: u32 = 8192;

/// Keeps a second process away from the directory while it lives.
#[derive(Debug)]
pub struct DirLock(#[allow(dead_code, reason = "held for its lock")] File);

/// Locks the directory for this process.
pub fn lock_dir(dir: &Path) -> Result<DirLock, Error> {
    let path = dir.join("lock");
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&path)
        .map_err(Error::io("cannot open the lock file"))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut pid = String::new();
            let _unreadable_is_unknown = file.read_to_string(&mut pid);
            return Err(Error::InUse { dir: dir.to_owned(), pid: pid.trim().to_owned() });
        }
        Err(TryLockError::Error(err)) => return Err(Error::io("cannot lock the data directory")(err)),
    }
    file.set_len(0)
        .and_then(|()| file.rewind())
        .and_then(|()| writeln!(file, "{}", std::process::id()))
        .map_err(Error::io("cannot write the lock file"))?;
    Ok(DirLock(file))
}

/// Salt that tells the log of this database from others': kept, or drawn.
pub fn salt(conn: &Connection, path: &Path, rng: &Rng) -> Result<u64, Error> {
    if let Some(salt) = meta(conn, path, "log_salt")? {
        return Ok(salt);
    }
    let salt = u64::from_be_bytes(random(rng));
    set_meta(conn, "log_salt", &salt).map_err(|err| sqlite(path, "cannot prepare the database", err))?;
    Ok(salt)
}

/// The version of its schema.
pub fn version(conn: &Connection, path: &Path) -> Result<i64, Error> {
    conn.query_row("PRAGMA user_version", [], |row| row.get(0))
        .map_err(|err| sqlite(path, "cannot read the database", err))
}

/// This member's number: kept, or drawn.
pub fn member(conn: &Connection, path: &Path, bootstrap: Bootstrap, rng: &Rng) -> Result<u64, Error> {
    if let Some(member) = meta(conn, path, "member")? {
        return Ok(member);
    }
    let applied: Option<Applied> = meta(conn, path, "applied")?;
    // A store that was alone from its first day on is member 1.
    let member = if bootstrap == Bootstrap::First || applied.is_some() {
        1
    } else {
        (u64::from_be_bytes(random(rng)) >> 1).max(2)
    };
    set_meta(conn, "member", &member).map_err(|err| sqlite(path, "cannot prepare the database", err))?;
    Ok(member)
}

/// Opens the database for writing; makes it if there is none.
///
/// Its WAL counts as far as it is on the disk: see [`Disk::settle`]. Frames that are not there end it, and the log has
/// what they held.
pub fn open_writer(disk: &dyn Disk, path: &Path, rng: &Rng) -> Result<Connection, Error> {
    OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)
        .map_err(Error::io("cannot create the database"))?;
    disk.settle(&wal_of(path)).map_err(Error::io("cannot bring the database's WAL to the disk"))?;
    let conn = connect(disk, path, OpenFlags::default())?;
    let found = version(&conn, path)?;
    if found > SCHEMA_VERSION {
        return Err(Error::NewerSchema { path: path.to_owned(), found, known: SCHEMA_VERSION });
    }
    prepare(&conn, found, rng).map_err(|err| sqlite(path, "cannot prepare the database", err))?;
    Ok(conn)
}

fn prepare(conn: &Connection, found: i64, rng: &Rng) -> rusqlite::Result<()> {
    conn.pragma_update(None, "page_size", PAGE_BYTES)?;
    conn.pragma_update(None, "journal_mode", "WAL")?;
    // What is done before the writer takes over is durable at once.
    conn.pragma_update(None, "synchronous", "FULL")?;
    // SQLite's own checkpoints tell nobody of a sync that failed: `flush` makes them.
    conn.pragma_update(None, "wal_autocheckpoint", 0)?;
    conn.pragma_update(None, "journal_size_limit", 2 * i64::from(PAGE_BYTES) * i64::from(CHECKPOINT_PAGES))?;
    conn.pragma_update(None, "cache_size", -2048)?;
    conn.set_prepared_statement_cache_capacity(32);
    if found == 0 {
        conn.execute_batch("BEGIN IMMEDIATE")?;
        conn.execute_batch(SCHEMA)?;
        conn.execute("INSERT INTO meta VALUES ('cluster_id', ?)", [u64::from_be_bytes(random(rng)) >> 1])?;
        conn.pragma_update(None, "user_version", SCHEMA_VERSION)?;
        conn.execute_batch("COMMIT")?;
    }
    check_journal_mode(conn, "wal")
}

/// Whether SQLite keeps what a transaction needs as it was told, `wal` or `delete`. It answers the change before it
/// commits it, and goes on as before where the commit fails: only what comes after a transaction is so.
///
/// Errors: the mode is another one than `wanted`.
pub fn check_journal_mode(conn: &Connection, wanted: &str) -> rusqlite::Result<()> {
    let _version: i64 = conn.query_row("PRAGMA user_version", [], |row| row.get(0))?;
    let mode: String = conn.pragma_query_value(None, "journal_mode", |row| row.get(0))?;
    if mode == wanted {
        return Ok(());
    }
    let why = format!(
        "the database's journal is '{mode}' and could not be made '{wanted}': the disk failed, or somebody else has \
         the file open"
    );
    Err(rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_IOERR), Some(why)))
}

fn random(rng: &Rng) -> [u8; 8] {
    let mut bytes = [0; 8];
    rng.fill(&mut bytes);
    bytes
}

/// The file of SQLite's own log.
pub fn wal_of(path: &Path) -> PathBuf {
    let mut wal = path.as_os_str().to_owned();
    wal.push("-wal");
    wal.into()
}

fn connect(disk: &dyn Disk, path: &Path, flags: OpenFlags) -> Result<Connection, Error> {
    let conn = match disk.vfs() {
        Some(vfs) => Connection::open_with_flags_and_vfs(path, flags, vfs),
        None => Connection::open_with_flags(path, flags),
    };
    conn.map_err(|err| sqlite(path, "cannot open the database", err))
}

/// Moves what is in the WAL to the database once it is long, so that it is written from its beginning again.
///
/// Errors: SQLite's, among them those of syncs that failed.
pub fn checkpoint_if_long(conn: &Connection) -> rusqlite::Result<()> {
    let n_pages = |how| conn.query_row(how, [], |row| row.get::<_, i64>(1));
    if n_pages("PRAGMA wal_checkpoint(NOOP)")? >= i64::from(CHECKPOINT_PAGES) {
        n_pages("PRAGMA wal_checkpoint(PASSIVE)")?;
    }
    Ok(())
}

/// Bytes of pages that hold something.
pub fn bytes_in_use(conn: &Connection) -> rusqlite::Result<u64> {
    let number = |pragma| conn.query_row(pragma, [], |row| row.get::<_, u64>(0));
    let n_pages = number("PRAGMA page_count")?.saturating_sub(number("PRAGMA freelist_count")?);
    Ok(n_pages.saturating_mul(number("PRAGMA page_size")?))
}

/// Whether the same may succeed a little later without anything having been lost: the disk is full, or another process
/// has the lock.
///
/// Anything else may be a write or a sync that failed, after which nobody knows what is on the disk.
pub fn is_passing(err: &rusqlite::Error) -> bool {
    use rusqlite::ErrorCode::{DatabaseBusy, DatabaseLocked, DiskFull};
    // The file beside the WAL that holds no data had no room.
    let shm = err.sqlite_error().is_some_and(|err| err.extended_code == rusqlite::ffi::SQLITE_IOERR_SHMSIZE);
    shm || matches!(err.sqlite_error_code(), Some(DiskFull | DatabaseBusy | DatabaseLocked))
}

/// Opens the database for reading; never blocks the writer.
pub fn open_reader(disk: &dyn Disk, path: &Path) -> Result<Connection, Error> {
    let conn = connect(disk, path, OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
    conn.pragma_update(None, "cache_size", -1024).map_err(|err| sqlite(path, "cannot open the database", err))?;
    Ok(conn)
}

/// Converts an error of SQLite.
pub fn sqlite(path: &Path, doing: &'static str, err: rusqlite::Error) -> Error {
    match err.sqlite_error_code() {
        Some(rusqlite::ErrorCode::SystemIoFailure) if is_passing(&err) => Error::NoSpace { path: path.to_owned() },
        Some(rusqlite::ErrorCode::DiskFull) => Error::NoSpace { path: path.to_owned() },
        Some(rusqlite::ErrorCode::DatabaseCorrupt | rusqlite::ErrorCode::NotADatabase) => {
            Error::Corrupt { path: path.to_owned(), why: err.to_string() }
        }
        _ => Error::io(doing)(err),
    }
}

/// The vote as of the last process of `member`. A leader of several starts as a voter for itself: it remembers nothing
/// of what the others proposed to it in that term, so it must not lead in it.
pub fn vote(conn: &Connection, path: &Path, member: u64, alone: bool) -> Result<Option<Vote>, Error> {
    let vote: Option<Vote> = meta(conn, path, "vote")?;
    let led = |vote: &Vote| vote.committed && vote.leader_id.node_id == member;
    Ok(vote.map(|vote| Vote { committed: vote.committed && (alone || !led(&vote)), ..vote }))
}

/// A value of `meta`.
pub fn meta<T: serde::de::DeserializeOwned>(conn: &Connection, path: &Path, name: &str) -> Result<Option<T>, Error> {
    let text: Option<String> = conn
        .prepare_cached("SELECT CAST(value AS TEXT) FROM meta WHERE name = ?")
        .and_then(|mut s| s.query_row([name], |row| row.get(0)).optional())
        .map_err(|err| sqlite(path, "cannot read the database", err))?;
    let corrupt = |err: serde_json::Error| Error::Corrupt { path: path.to_owned(), why: format!("meta {name}: {err}") };
    text.map(|t| serde_json::from_str(&t).map_err(corrupt)).transpose()
}

/// Sets a value of `meta`.
pub fn set_meta<T: serde::Serialize>(conn: &Connection, name: &str, value: &T) -> rusqlite::Result<()> {
    let text = serde_json::to_string(value).map_err(|err| rusqlite::Error::ToSqlConversionFailure(Box::new(err)))?;
    conn.prepare_cached("INSERT OR REPLACE INTO meta VALUES (?, ?)")?.execute(params![name, text]).map(drop)
}

/// Log position and membership that are applied, as `meta` keeps them.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Applied {
    /// The last entry.
    pub log: Option<EntryId>,
    /// The members as of it.
    pub membership: StoredMembership,
}

impl Applied {
    /// The index of the last entry.
    pub fn index(&self) -> Option<u64> {
        self.log.map(|log| log.index)
    }
}

/// Reads the applied position in a database of `member`.
pub fn applied(conn: &Connection, path: &Path, member: u64) -> Result<Applied, Error> {
    let mut applied: Applied = meta(conn, path, "applied")?.unwrap_or_default();
    applied.log = newest(applied.log, newest_row(conn, path)?, member);
    Ok(applied)
}

/// Index and term of the entry that made the newest row.
pub fn newest_row(conn: &Connection, path: &Path) -> Result<Option<(u64, u64)>, Error> {
    let row = conn.query_row("SELECT log_index, log_term FROM history ORDER BY id DESC LIMIT 1", [], |row| {
        Ok((row.get(0)?, row.get(1)?))
    });
    row.optional().map_err(|err| sqlite(path, "cannot read the database", err))
}

/// The last applied entry: entries that made rows need not touch `meta`, so the newer of the two counts. Who led in the
/// term of the row says `meta`; if it is of another term, `member` was alone.
pub fn newest(meta: Option<EntryId>, row: Option<(u64, u64)>, member: u64) -> Option<EntryId> {
    match row {
        Some((index, term)) if meta.is_none_or(|log| log.index < index) => {
            let led = meta.map(|log| log.leader_id).filter(|leader| leader.term == term);
            Some(EntryId { leader_id: led.unwrap_or(Leader { term, node_id: member }), index })
        }
        _ => meta,
    }
}

/// State that the rows of `history` make.
#[derive(Debug)]
pub struct Loaded {
    /// All versions.
    pub index: Index,
    /// The newest revision.
    pub revision: u64,
}

/// Reads the index from the rows, and looks whether they tell one story.
///
/// Errors: `Corrupt`, `Io`.
pub fn load(conn: &Connection, path: &Path) -> Result<Loaded, Error> {
    let floor = meta::<u64>(conn, path, "floor")?.unwrap_or(0);
    let revision = meta::<u64>(conn, path, "revision")?.unwrap_or(1);
    let mut loaded = Loaded { index: Index::at_floor(floor), revision };
    let mut odd = None;
    let mut read = || -> rusqlite::Result<()> {
        let mut rows = conn.prepare("SELECT id, created, version, lease, key FROM history ORDER BY id")?;
        let mut rows = rows.query([])?;
        while let Some(row) = rows.next()? {
            let version = Version { id: row.get(0)?, create: row.get(1)?, version: row.get(2)?, lease: row.get(3)? };
            let key = Bytes::copy_from_slice(row.get_ref(4)?.as_blob()?);
            if !follows(loaded.index.last(&key), version) {
                odd.get_or_insert(version.id);
            }
            loaded.index.push(&key, version);
            loaded.revision = loaded.revision.max(version.id >> POSITION_BITS);
        }
        Ok(())
    };
    read().map_err(|err| sqlite(path, "cannot read the database", err))?;
    match odd {
        Some(id) => Err(Error::Corrupt {
            path: path.to_owned(),
            why: format!("row {id} does not follow the version of its key before it"),
        }),
        None => Ok(loaded),
    }
}

/// Whether a version can come after the one of its key that is known before it. Of a key that was compacted any may be
/// the first.
fn follows(before: Option<Version>, next: Version) -> bool {
    let is_sound = next.create <= next.revision() && (next.is_live() || next.create == 0);
    is_sound
        && before.is_none_or(|before| match (before.is_live(), next.is_live()) {
            (true, true) => next.create == before.create && next.version == before.version + 1,
            (false, true) => next.create == next.revision() && next.version == 1,
            (true, false) => true,
            (false, false) => false,
        })
}

/// The bytes of a row; `None` if compaction took it.
pub fn value(conn: &Connection, id: u64) -> rusqlite::Result<Option<Bytes>> {
    let mut statement = conn.prepare_cached("SELECT value FROM history WHERE id = ?")?;
    statement.query_row([id], |row| Ok(Bytes::copy_from_slice(row.get_ref(0)?.as_blob()?))).optional()
}

/// The file in its directory.
pub fn path_in(dir: &Path) -> PathBuf {
    dir.join("state.db")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::faults::{Fault, FaultyDisk};

    #[test]
    fn versions_of_a_key_follow_each_other_or_are_damage() {
        let version =
            |revision: u64, create, version| Version { id: revision << POSITION_BITS, create, version, lease: 0 };
        let (first, second, gone, again) = (version(5, 5, 1), version(6, 5, 2), version(7, 0, 0), version(9, 9, 1));
        for (before, next) in
            [(None, second), (Some(first), second), (Some(second), gone), (Some(gone), again), (None, gone)]
        {
            assert!(follows(before, next), "{before:?} {next:?}");
        }
        for (before, next) in [
            (Some(first), again),
            (Some(second), second),
            (Some(gone), second),
            (Some(gone), gone),
            (None, version(4, 5, 1)),
        ] {
            assert!(!follows(before, next), "{before:?} {next:?}");
        }
    }

    // SQLite went on with a rollback journal, which a power cut brings back: what had been flushed was undone, and the
    // log let go of it.
    #[test]
    fn a_database_that_cannot_have_a_wal_is_not_opened() {
        let mut n_refused = 0;
        for at in 0..12 {
            let root = tempfile::tempdir().unwrap();
            let dir = root.path().join("db");
            std::fs::create_dir(&dir).unwrap();
            let disk = FaultyDisk::new(&dir, at, Fault::SyncFails, at);
            match open_writer(&*disk, &dir.join("state.db"), &Rng::from_seed(at)) {
                Ok(conn) => assert_eq!(
                    conn.pragma_query_value::<String, _>(None, "journal_mode", |row| row.get(0)).unwrap(),
                    "wal"
                ),
                Err(err) => n_refused += u32::from(disk.was_hit() && !err.to_string().is_empty()),
            }
        }
        assert!(n_refused > 1, "no sync failed before the database was open");
    }

    #[test]
    fn the_newer_of_row_and_meta_is_applied_and_meta_says_who_led() {
        let log = |term, node, index| EntryId::new(term, node, index);
        let meta = Some(log(3, 9, 4));
        assert_eq!(newest(meta, None, 1), meta);
        assert_eq!(newest(meta, Some((4, 3)), 1), meta);
        assert_eq!(newest(meta, Some((7, 3)), 1), Some(log(3, 9, 7)));
        assert_eq!(newest(meta, Some((7, 5)), 1), Some(log(5, 1, 7)));
        assert_eq!(newest(None, Some((7, 5)), 1), Some(log(5, 1, 7)));
    }
}
