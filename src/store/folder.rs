//! The files in the store's folder, for those who look at it, empty it or copy it: nobody else knows their names.

use std::io;
use std::path::{Path, PathBuf};

use base::files::FileError;

use crate::journal;
use crate::mvcc::database;

/// Bytes that a store takes on the disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskUse {
    /// The database.
    pub database: u64,
    /// The log beside it.
    pub log: u64,
}

/// The database in the store's folder `dir`.
#[must_use]
pub fn database(dir: &Path) -> PathBuf {
    database::path_in(dir)
}

fn beside(dir: &Path, ending: &str) -> PathBuf {
    let mut path = database(dir).into_os_string();
    path.push(ending);
    path.into()
}

/// How much room the store in `dir` takes; what is not there takes none.
#[must_use]
pub fn disk_use(dir: &Path) -> DiskUse {
    let size = |path: PathBuf| std::fs::metadata(path).map_or(0, |meta| meta.len());
    let log = std::fs::read_dir(journal::dir_in(dir)).into_iter().flatten().flatten();
    let files = log.filter_map(|entry| entry.metadata().ok()).filter(std::fs::Metadata::is_file);
    DiskUse { database: size(database(dir)) + size(beside(dir, "-wal")), log: files.map(|meta| meta.len()).sum() }
}

/// Removes the store in `dir`, which nobody may have open. What else lies in the folder stays.
///
/// Errors: a file that is there cannot be removed.
pub fn clear(dir: &Path) -> Result<(), FileError> {
    for path in [database(dir), beside(dir, "-wal"), beside(dir, "-shm")] {
        gone(std::fs::remove_file(&path), &path)?;
    }
    let log = journal::dir_in(dir);
    gone(std::fs::remove_dir_all(&log), &log)
}

fn gone(removed: io::Result<()>, path: &Path) -> Result<(), FileError> {
    match removed {
        Err(err) if err.kind() != io::ErrorKind::NotFound => Err(FileError::at("cannot remove", path)(err)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_is_measured_and_removed_and_nothing_else_is() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(disk_use(dir.path()), DiskUse::default());
        clear(dir.path()).unwrap();
        std::fs::create_dir(journal::dir_in(dir.path())).unwrap();
        for (path, text) in [
            (database(dir.path()), "12"),
            (beside(dir.path(), "-wal"), "3"),
            (journal::dir_in(dir.path()).join("segment"), "4567"),
            (dir.path().join("joined"), "x"),
        ] {
            std::fs::write(path, text).unwrap();
        }
        assert_eq!(disk_use(dir.path()), DiskUse { database: 3, log: 4 });
        clear(dir.path()).unwrap();
        let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["joined"]);
    }
}
