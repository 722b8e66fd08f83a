//! Looking what a folder holds, without opening the store in it.

use crate::disk::{Disk as _, SystemDisk};
use crate::error::Error;
use crate::member::StoreState;
use crate::mvcc::database;

/// Looks what the store in `dir` is, without opening it for work.
///
/// Errors: `Corrupt`, `Io`.
pub fn inspect(dir: &std::path::Path) -> Result<StoreState, Error> {
    let path = database::path_in(dir);
    // An empty file is what a start leaves that was cut short.
    match SystemDisk.len(&path) {
        Ok(1..) => {}
        Ok(0) => return Ok(StoreState::Empty),
        Err(err) if err.kind() == std::io::ErrorKind::NotFound => return Ok(StoreState::Empty),
        // Whoever takes a store that cannot be read for none makes a new one in its place.
        Err(err) => return Err(Error::io("cannot look for the store")(err)),
    }
    let conn = database::open_reader(&SystemDisk, &path)?;
    let has_schema =
        conn.table_exists(None, "meta").map_err(|err| database::sqlite(&path, "cannot read the database", err))?;
    if !has_schema {
        return Ok(StoreState::Empty);
    }
    let member: Option<u64> = database::meta(&conn, &path, "member")?;
    let applied = database::applied(&conn, &path, member.unwrap_or(1))?;
    Ok(match (applied.log, member) {
        (Some(_), _) => StoreState::Member,
        (None, Some(2..)) => StoreState::Waiting,
        (None, _) => StoreState::Empty,
    })
}
