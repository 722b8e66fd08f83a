//! Programs that go into a bundle: files that a user names, what a release of containerd holds, or what is on PATH.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use super::elf;
use super::error::BundleError;
use super::images::opened;
use super::manifest::{Arch, Origin};

/// Programs of containerd that a node runs.
pub(super) const CONTAINERD: [&str; 3] = ["containerd", "containerd-shim-runc-v2", "ctr"];
/// Bytes of a program.
const PROGRAM_BYTES_MAX: u64 = 1 << 30;
/// How each program of kedge says its version in its own file, for a kedge of another processor that cannot be asked.
const VERSION_BYTES_MAX: usize = 64;

/// A file that goes into a bundle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Part {
    /// `bin/NAME` or `images/NAME`.
    pub(super) name: String,
    pub(super) path: PathBuf,
    pub(super) origin: Origin,
    pub(super) module: Option<String>,
    pub(super) interpreter: Option<String>,
}

/// The flag that names a part, for messages, and the processor it must be for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    pub(super) flag: &'static str,
    pub(super) arch: Arch,
}

/// Looks at a program.
pub(super) fn program(name: &str, path: PathBuf, origin: Origin, wanted: Wanted) -> Result<Part, BundleError> {
    let flag = wanted.flag;
    let file = File::open(&path).map_err(BundleError::read(&path))?;
    let meta = file.metadata().map_err(BundleError::read(&path))?;
    let refused = |why| BundleError::PartRefused { flag, path: path.clone(), why };
    if !meta.is_file() || meta.len() > PROGRAM_BYTES_MAX {
        return Err(refused("it is no file of a program's size"));
    }
    let elf =
        elf::read(&file).map_err(BundleError::read(&path))?.ok_or_else(|| refused("it is no program of Linux"))?;
    if elf.arch != Some(wanted.arch) {
        return Err(BundleError::PartArch { flag, path, arch: wanted.arch });
    }
    Ok(Part { name: format!("bin/{name}"), path, origin, module: None, interpreter: elf.interpreter })
}

/// The programs of containerd: in a folder (or its `bin`), or in an archive as containerd's releases are, which is
/// unpacked into `work`.
pub(super) fn containerd(given: &Path, work: &Path, arch: Arch) -> Result<Vec<Part>, BundleError> {
    let wanted = Wanted { flag: "--containerd", arch };
    let meta = fs::metadata(given).map_err(BundleError::read(given))?;
    let dir = match meta.is_dir() {
        true => given.to_owned(),
        false => {
            extract(given, work).map_err(BundleError::read(given))?;
            work.to_owned()
        }
    };
    let find = |name: &&'static str| {
        let path = [dir.join(name), dir.join("bin").join(name)].into_iter().find(|path| path.is_file());
        let missing = || BundleError::PartMissing { flag: wanted.flag, program: name, path: given.to_owned() };
        program(name, path.ok_or_else(missing)?, Origin::File, wanted)
    };
    CONTAINERD.iter().map(find).collect()
}

/// Writes the programs of containerd in an archive into a folder. Of an entry's path the name alone counts.
fn extract(archive: &Path, to: &Path) -> io::Result<()> {
    for entry in tar::Archive::new(opened(archive)?).entries()? {
        let entry = entry?;
        let path = entry.path()?.into_owned();
        let name = path.file_name().unwrap_or_default();
        if entry.header().entry_type().is_file() && CONTAINERD.iter().any(|program| name == *program) {
            io::copy(&mut entry.take(PROGRAM_BYTES_MAX), &mut File::create(to.join(name))?)?;
        }
    }
    Ok(())
}

/// The programs on PATH that the caller has not named.
pub(super) fn on_path(name: &'static str, search_path: &std::ffi::OsStr, wanted: Wanted) -> Result<Part, BundleError> {
    let own = fs::canonicalize(super::opened::OWN).ok();
    let found = std::env::split_paths(search_path).map(|dir| dir.join(name)).find(|path| {
        // A link to kedge under a tool's name is not that tool.
        path.is_file() && fs::canonicalize(path).ok() != own
    });
    let path = found.ok_or(BundleError::NotOnPath { program: name, flag: wanted.flag })?;
    program(name, path, Origin::Path, wanted)
}

/// The version that a kedge of any processor says in its file.
pub(super) fn version_of(file: &mut impl io::Read, mark: &str) -> io::Result<Option<String>> {
    let mut bytes = Vec::new();
    file.take(PROGRAM_BYTES_MAX).read_to_end(&mut bytes)?;
    let mark = mark.as_bytes();
    let mut from = 0;
    while let Some(at) = find(&bytes[from..], mark) {
        let rest = &bytes[from + at + mark.len()..];
        let end = rest.iter().take(VERSION_BYTES_MAX).position(|byte| *byte == b';');
        let text = end.and_then(|end| std::str::from_utf8(&rest[..end]).ok());
        if let Some(version) = text.filter(|text| super::manifest::numbers(text).is_some()) {
            return Ok(Some(version.to_owned()));
        }
        from += at + mark.len();
    }
    Ok(None)
}

fn find(bytes: &[u8], word: &[u8]) -> Option<usize> {
    let first = *word.first()?;
    let mut from = 0;
    while let Some(at) = bytes[from..].iter().position(|byte| *byte == first) {
        if bytes[from + at..].starts_with(word) {
            return Some(from + at);
        }
        from += at + 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_found_behind_its_mark_alone() {
        let of = |text: &str| version_of(&mut text.as_bytes(), "V=").unwrap();
        assert_eq!(of("xxV=V=1.2.3;yy").as_deref(), Some("1.2.3"));
        assert_eq!(of("V=%s;V=../x;V=0.1.0-rc1;").as_deref(), Some("0.1.0-rc1"));
        assert_eq!((of("V=1.2.3"), of("")), (None, None));
    }

    #[test]
    fn programs_are_judged_by_what_they_are() {
        let dir = tempfile::tempdir().unwrap();
        let own = Arch::own().unwrap();
        let other = if own == Arch::Arm64 { Arch::Amd64 } else { Arch::Arm64 };
        let exe = std::env::current_exe().unwrap();
        let of = |arch| program("runc", exe.clone(), Origin::File, Wanted { flag: "--runc", arch });
        assert_eq!(of(own).unwrap().name, "bin/runc");
        assert!(matches!(of(other), Err(BundleError::PartArch { .. })));
        let script = dir.path().join("runc");
        fs::write(&script, "#!/bin/sh\n").unwrap();
        let refused = program("runc", script, Origin::File, Wanted { flag: "--runc", arch: own });
        assert!(refused.unwrap_err().to_string().contains("--runc"));
        let empty = containerd(dir.path(), dir.path(), own).unwrap_err().to_string();
        assert!(empty.contains("there is no containerd in"), "{empty}");
        let on_path = on_path("runc", dir.path().join("none").as_os_str(), Wanted { flag: "--runc", arch: own });
        assert!(on_path.unwrap_err().to_string().contains("not found on PATH"));
    }

    #[test]
    fn a_release_of_containerd_is_unpacked_by_names_alone() {
        let dir = tempfile::tempdir().unwrap();
        let (archive, work) = (dir.path().join("c.tar"), dir.path().join("work"));
        fs::create_dir(&work).unwrap();
        super::super::images::tests::archive(&archive, &[("bin/ctr", "x"), ("deep/er/containerd", "y"), ("evil", "z")]);
        extract(&archive, &work).unwrap();
        let mut names: Vec<_> = fs::read_dir(&work).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["containerd", "ctr"]);
    }
}
