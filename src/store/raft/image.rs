//! Snapshots: the database itself, copied at one moment and sent as it is.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::task::Group;
use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use openraft::{SnapshotMeta, Vote};
use rusqlite::Connection;
use rusqlite::backup::Backup;
use tokio_util::io::ReaderStream;

use crate::codec::{decode, encode};
use crate::error::Error;
use crate::member::Peer;
use crate::mvcc::database::{self, Applied, COPY_VERSION, set_meta};
use crate::mvcc::read::Reader;
use crate::raft::log::Log;
use crate::raft::peers::{Lane, Peers};
use crate::raft::rpc::{SNAPSHOT, SnapshotAnswer, SnapshotHead};
use crate::raft::types::snapshot_meta;

/// Where copies are made from.
#[derive(Clone)]
pub struct ImageSource {
    /// Reads the running database.
    pub reader: Arc<Reader>,
    /// The way to the writer.
    pub log: Log,
    /// This member.
    pub member: u64,
    /// Where copies are put.
    pub dir: PathBuf,
}

/// Rows of `meta` that are of one member only and do not travel.
const OWN_ROWS: &str = "DELETE FROM meta WHERE name IN ('vote', 'purged', 'member', 'log_salt')";

impl ImageSource {
    /// Copies the database as it stands into a file of its own, without what is of this member only.
    ///
    /// The file is one whole database that any sqlite3 opens. Says what is applied in it.
    /// Errors: `NoSpace`, `Io`. Cancel safety: a copy that nobody waits for is deleted.
    pub async fn copy(&self) -> Result<(tempfile::TempPath, Applied), Error> {
        self.log.flush().await?;
        let (member, dir) = (self.member, self.dir.clone());
        let file = tempfile::Builder::new()
            .prefix("copy-")
            .suffix(".db")
            .tempfile_in(&self.dir)
            .map_err(Error::io("cannot make a copy of the store"))?;
        let to = file.into_temp_path();
        let target = to.to_path_buf();
        self.reader.with_connection(move |conn| copy_pages(conn, &target)).await?;
        let target = to.to_path_buf();
        let applied = Group::blocking(move || strip(&target, &dir, member)).await.map_err(|_| Error::Closed)??;
        Ok((to, applied))
    }
}

/// Copies a database page by page, as it stands at one moment.
pub fn copy_pages(from: &Connection, to: &Path) -> rusqlite::Result<()> {
    let mut target = Connection::open(to)?;
    // One step takes one read transaction: the copy is of one moment, and nobody waits for it.
    Backup::new(from, &mut target)?.step(-1).map(drop)
}

/// Takes what is of one member only out of a copy, and says what is applied in it. `dir` names the place in errors.
pub fn strip(copy: &Path, dir: &Path, member: u64) -> Result<Applied, Error> {
    let conn = Connection::open(copy).map_err(|err| database::sqlite(dir, "cannot make a copy of the store", err))?;
    let applied = database::applied(&conn, copy, member)?;
    let edit = || -> rusqlite::Result<()> {
        // Out of WAL mode: the copy is one file.
        conn.pragma_update(None, "journal_mode", "DELETE")?;
        conn.execute_batch("BEGIN IMMEDIATE; DELETE FROM raft_log;")?;
        conn.execute(OWN_ROWS, [])?;
        set_meta(&conn, "applied", &applied)?;
        conn.pragma_update(None, "user_version", COPY_VERSION)?;
        conn.execute_batch("COMMIT")?;
        database::check_journal_mode(&conn, "delete")
    };
    edit().map_err(|err| database::sqlite(dir, "cannot make a copy of the store", err))?;
    Ok(applied)
}

/// Copies the store and streams it to a member. Its answer is Raft's.
pub async fn send(
    (images, peers): (&ImageSource, &Peers),
    to: u64,
    vote: Vote<u64>,
    known: &SnapshotMeta<u64, Peer>,
) -> Result<SnapshotAnswer, Error> {
    let (path, applied) = images.copy().await?;
    let meta = snapshot_meta(applied.log, applied.membership);
    debug_assert!(meta.last_log_id >= known.last_log_id, "the store went back");
    let file = tokio::fs::File::open(&path).await.map_err(Error::io("cannot open the copy of the store"))?;
    let bytes = file.metadata().await.map_err(Error::io("cannot open the copy of the store"))?.len();
    let head = encode(&SnapshotHead { vote, meta, bytes })?;
    let length = u32::try_from(head.len()).map_err(Error::io("cannot send a copy of the store"))?;
    let start = stream::iter([Ok(Bytes::copy_from_slice(&length.to_be_bytes())), Ok(Bytes::from(head))]);
    let body = wire::body::stream(start.chain(ReaderStream::with_capacity(file, 64 * 1024)));
    decode(&peers.post(to, Lane::Bulk, SNAPSHOT, body).await?)
}
