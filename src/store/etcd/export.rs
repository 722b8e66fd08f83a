//! The store as a database of etcd: what `etcdctl snapshot save` gets, so that `snapshot restore` and a genuine etcd
//! can go on with it.
//!
//! The bucket `key` has a pair for each version, the key of which is its revision. A row of `history` is such a
//! version, and rows stand in the order of revisions, so the file is written in one pass. Spec: etcd v3.5,
//! `server/mvcc` (kvstore.go, revision.go).

use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::task::Group;
use bytes::Bytes;
use prost::Message as _;
use proto::etcd as pb;
use rusqlite::Connection;

use super::bolt::{Bolt, Bucket};
use super::convert::signed;
use crate::disk::Disk;
use crate::error::Error;
use crate::mvcc::database::{self, Applied};
use crate::mvcc::index::POSITION_BITS;

type File = BufWriter<std::fs::File>;

/// Writes the store of `member` as it stands into a new file in `dir`, which is deleted when the path is dropped.
///
/// Errors: `NoSpace`, `Io`. Cancel safety: a file that nobody waits for is deleted.
pub async fn copy(
    disk: Arc<dyn Disk>,
    database: PathBuf,
    member: u64,
    dir: &Path,
) -> Result<tempfile::TempPath, Error> {
    let file = tempfile::Builder::new()
        .prefix("copy-")
        .suffix(".etcd")
        .tempfile_in(dir)
        .map_err(Error::io("cannot make a copy of the store"))?;
    // A connection of its own: it may read for long, and those of the readers are few.
    Group::blocking(move || {
        let conn = database::open_reader(&*disk, &database)?;
        write(&conn, &database, member, BufWriter::new(file.as_file().try_clone().map_err(failed(&database))?))?;
        Ok(file.into_temp_path())
    })
    .await
    .map_err(|_| Error::Closed)?
}

fn failed(path: &Path) -> impl Fn(io::Error) -> Error + '_ {
    move |err| match err.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Error::NoSpace { path: path.to_owned() },
        _ => Error::io("cannot write a copy of the store")(err),
    }
}

/// Either half of the work may fail.
enum Broken {
    Read(rusqlite::Error),
    Write(io::Error),
    Store(Error),
}

impl From<rusqlite::Error> for Broken {
    fn from(err: rusqlite::Error) -> Broken {
        Broken::Read(err)
    }
}

impl From<io::Error> for Broken {
    fn from(err: io::Error) -> Broken {
        Broken::Write(err)
    }
}

impl From<Error> for Broken {
    fn from(err: Error) -> Broken {
        Broken::Store(err)
    }
}

fn write(conn: &Connection, path: &Path, member: u64, out: File) -> Result<(), Error> {
    buckets(conn, path, member, out).map_err(|broken| match broken {
        Broken::Read(err) => database::sqlite(path, "cannot make a copy of the store", err),
        Broken::Write(err) => failed(path)(err),
        Broken::Store(err) => err,
    })
}

/// All buckets of etcd, in the order of their names, from one moment of the store.
fn buckets(conn: &Connection, path: &Path, member: u64, out: File) -> Result<(), Broken> {
    let moment = conn.unchecked_transaction()?;
    let applied = database::applied(&moment, path, member)?;
    let floor = database::meta::<u64>(&moment, path, "floor")?.unwrap_or(0);
    let mut bolt = Bolt::new(out)?;
    // Who may do what, and who the members are, is kedge's: `snapshot restore` writes members of its own.
    for name in ["alarm", "auth", "authRoles", "authUsers", "cluster"] {
        bolt.bucket(name, |_| Ok::<_, io::Error>(()))?;
    }
    bolt.bucket("key", |bucket| versions(&moment, bucket))?;
    bolt.bucket("lease", |bucket| leases(&moment, bucket))?;
    for name in ["members", "members_removed"] {
        bolt.bucket(name, |_| Ok::<_, io::Error>(()))?;
    }
    bolt.bucket("meta", |bucket| meta(bucket, &applied, floor))?;
    bolt.finish()?;
    Ok(())
}

fn versions(conn: &Connection, bucket: &mut Bucket<'_, File>) -> Result<(), Broken> {
    let mut rows = conn.prepare("SELECT id, created, version, lease, key, value FROM history ORDER BY id")?;
    let mut rows = rows.query([])?;
    while let Some(row) = rows.next()? {
        let id: u64 = row.get(0)?;
        let (revision, position) = (id >> POSITION_BITS, id & ((1 << POSITION_BITS) - 1));
        let version: u64 = row.get(2)?;
        let key = Bytes::copy_from_slice(row.get_ref(4)?.as_blob().map_err(rusqlite::Error::from)?);
        if version == 0 {
            let mut gone = revision_key(revision, position).to_vec();
            gone.push(b't');
            bucket.push(&gone, pb::KeyValue { key, ..pb::KeyValue::default() }.encode_to_vec())?;
            continue;
        }
        let kv = pb::KeyValue {
            key,
            create_revision: signed(row.get(1)?),
            mod_revision: signed(revision),
            version: signed(version),
            value: Bytes::copy_from_slice(row.get_ref(5)?.as_blob().map_err(rusqlite::Error::from)?),
            lease: signed(row.get(3)?),
        };
        bucket.push(&revision_key(revision, position), kv.encode_to_vec())?;
    }
    Ok(())
}

fn leases(conn: &Connection, bucket: &mut Bucket<'_, File>) -> Result<(), Broken> {
    let mut rows = conn.prepare("SELECT id, ttl_secs FROM lease ORDER BY id")?;
    let mut rows = rows.query([])?;
    while let Some(row) = rows.next()? {
        let (id, ttl_secs): (u64, u64) = (row.get(0)?, row.get(1)?);
        let lease = pb::StoredLease { id: signed(id), ttl: signed(ttl_secs), remaining_ttl: 0 };
        bucket.push(&id.to_be_bytes(), lease.encode_to_vec())?;
    }
    Ok(())
}

fn meta(bucket: &mut Bucket<'_, File>, applied: &Applied, floor: u64) -> Result<(), Broken> {
    let log = applied.log.unwrap_or_default();
    bucket.push(b"consistent_index", log.index.to_be_bytes().to_vec())?;
    // What the floor frees may still be there; etcd's next compaction finds it.
    if floor > 0 {
        bucket.push(b"finishedCompactRev", revision_key(floor, 0).to_vec())?;
        bucket.push(b"scheduledCompactRev", revision_key(floor, 0).to_vec())?;
    }
    bucket.push(b"term", log.leader_id.term.to_be_bytes().to_vec())?;
    Ok(())
}

/// A revision as etcd's keys have it: both numbers big-endian, so that they sort.
fn revision_key(revision: u64, position: u64) -> [u8; 17] {
    let mut key = [b'_'; 17];
    key[..8].copy_from_slice(&revision.to_be_bytes());
    key[9..].copy_from_slice(&position.to_be_bytes());
    key
}
