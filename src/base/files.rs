//! Files that are either the old or the new one, never half of each.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use crate::confined::Dir;

/// A file operation that failed, with the path a person has to look at.
#[derive(Debug, thiserror::Error)]
#[error("{doing} {path}", path = path.display())]
pub struct FileError {
    /// The attempt, e.g. `cannot write`.
    pub doing: &'static str,
    /// Where.
    pub path: PathBuf,
    /// Why not.
    pub source: io::Error,
}

impl FileError {
    /// For `map_err`: adds what was tried and where.
    pub fn at(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> FileError {
        let path = path.to_owned();
        move |source| FileError { doing, path, source }
    }
}

/// Replaces `path` by `content` with permission bits `mode`; after a power cut the file is the old or the new one.
///
/// The bytes go to a temporary file beside it, are synced, renamed over `path`, and the directory is synced.
pub fn write_atomic(path: &Path, content: &[u8], mode: u32) -> Result<(), FileError> {
    let dir = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let write = || -> io::Result<()> {
        let dir = Dir::open(dir)?;
        let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        // Made anew, by descriptor: a file or link that somebody put there under that name is never written through.
        let (tmp, mut file) = dir.create_temporary(name, mode)?;
        let synced = file.write_all(content).and_then(|()| file.sync_all());
        // Its error carries no path: ours tells the one that was to be written.
        let renamed = synced.and_then(|()| Ok(rustix::fs::renameat(&dir, &tmp, &dir, name)?));
        if renamed.is_err() {
            let _the_error_is_told = dir.remove_file(&tmp);
        }
        renamed?;
        Ok(rustix::fs::fsync(&dir)?)
    };
    write().map_err(|source| FileError { doing: "cannot write", path: path.to_owned(), source })
}

/// Makes a directory and its parents, readable by the owner only (0700). One that exists keeps its mode.
pub fn create_private_dir(path: &Path) -> Result<(), FileError> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(FileError::at("cannot create directory", path))
}

/// Reads a whole file; `None` if there is none.
pub fn read_if_exists(path: &Path) -> Result<Option<Vec<u8>>, FileError> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(err) => Err(FileError { doing: "cannot read", path: path.to_owned(), source: err }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn writing_replaces_the_whole_file_and_sets_its_mode() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        write_atomic(&path, b"a longer first content", 0o644).unwrap();
        write_atomic(&path, b"second", 0o600).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"second");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn an_error_names_the_path() {
        let err = write_atomic(Path::new("/nowhere/at/all"), b"", 0o600).unwrap_err();
        assert_eq!(err.to_string(), "cannot write /nowhere/at/all");
    }
}
