//! Marks in folders that say whose they are, for whoever cleans up: only what is marked is removed, and of a folder
//! that others use, too, only what is ours.

use std::ffi::OsStr;
use std::io;
use std::path::Path;

use crate::confined::Dir;

/// The file that is the mark.
pub const MARK: &str = ".kedge";
/// Bytes of a mark.
const BYTES_MAX: usize = 64;
/// Entries of a folder that are looked at before it is called shared.
const ENTRIES_MAX: usize = 10_000;

/// Whose a folder is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// Nothing but what is ours was there when it was marked.
    Ours,
    /// Somebody else had something in it, too.
    Shared,
}

impl Owner {
    fn word(self) -> &'static str {
        match self {
            Owner::Ours => "ours\n",
            Owner::Shared => "shared\n",
        }
    }
}

/// Marks a folder that is there, once: as ours if it holds nothing but what `is_ours` names.
pub fn mark(dir: &Path, is_ours: impl Fn(&OsStr) -> bool) -> io::Result<Owner> {
    if let Some(owner) = of(dir)? {
        return Ok(owner);
    }
    let owner = judge(dir, is_ours)?;
    Dir::open(dir)?.write(Path::new(MARK), owner.word().as_bytes(), 0o644)?;
    Ok(owner)
}

/// Whose a folder would be called, without a look at its mark.
pub fn judge(dir: &Path, is_ours: impl Fn(&OsStr) -> bool) -> io::Result<Owner> {
    let entries = match Dir::open(dir)?.entries(ENTRIES_MAX) {
        Ok(entries) => entries,
        // Nothing of ours has so many names directly in it.
        Err(err) if err.kind() == io::ErrorKind::FileTooLarge => return Ok(Owner::Shared),
        Err(err) => return Err(err),
    };
    let all_ours = entries.iter().all(|(name, _)| name == MARK || is_ours(name));
    Ok(if all_ours { Owner::Ours } else { Owner::Shared })
}

/// Owner that the mark of a folder names; `None` if there is no folder or no mark. A mark that says anything else, or
/// is no file, makes it shared.
pub fn of(dir: &Path) -> io::Result<Option<Owner>> {
    let dir = match Dir::open(dir) {
        Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    if dir.meta(Path::new(MARK)).is_ok_and(|meta| !meta.is_file()) {
        return Ok(Some(Owner::Shared));
    }
    match dir.read(Path::new(MARK), BYTES_MAX) {
        Ok(text) if text == Owner::Ours.word().as_bytes() => Ok(Some(Owner::Ours)),
        Ok(_) => Ok(Some(Owner::Shared)),
        Err(err) if err.kind() == io::ErrorKind::FileTooLarge => Ok(Some(Owner::Shared)),
        Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(err) => Err(err),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_folder_with_foreign_things_in_it_is_shared_for_ever() {
        let dir = tempfile::tempdir().unwrap();
        let is_ours = |name: &OsStr| name == "server";
        assert_eq!(of(dir.path()).unwrap(), None);
        fs::write(dir.path().join("photos"), "").unwrap();
        assert_eq!(mark(dir.path(), is_ours).unwrap(), Owner::Shared);
        fs::remove_file(dir.path().join("photos")).unwrap();
        assert_eq!(mark(dir.path(), is_ours).unwrap(), Owner::Shared);
        let own = dir.path().join("own");
        fs::create_dir_all(own.join("server")).unwrap();
        assert_eq!(mark(&own, is_ours).unwrap(), Owner::Ours);
        assert_eq!(of(&own).unwrap(), Some(Owner::Ours));
        assert_eq!(of(&dir.path().join("nothing")).unwrap(), None);
    }

    #[test]
    fn a_full_folder_and_a_strange_mark_are_shared_and_no_error() {
        let dir = tempfile::tempdir().unwrap();
        let mark_file = dir.path().join(MARK);
        fs::write(&mark_file, "x".repeat(BYTES_MAX + 1)).unwrap();
        assert_eq!(mark(dir.path(), |_| true).unwrap(), Owner::Shared);
        fs::remove_file(&mark_file).unwrap();
        std::os::unix::fs::symlink("/etc/hostname", &mark_file).unwrap();
        assert_eq!(of(dir.path()).unwrap(), Some(Owner::Shared));
        fs::remove_file(&mark_file).unwrap();
        for n in 0..=ENTRIES_MAX {
            fs::write(dir.path().join(n.to_string()), "").unwrap();
        }
        assert_eq!(mark(dir.path(), |_| true).unwrap(), Owner::Shared);
    }
}
