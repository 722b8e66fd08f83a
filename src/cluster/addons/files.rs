//! The folder of manifests: which files there are, what they are called, and which are skipped.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fs, io};

use base::files::{FileError, read_if_exists, write_atomic};
use sha2::{Digest as _, Sha256};
use tracing::warn;

use super::Config;

/// Folders are read this deep; links may lead in circles.
const DEPTH_MAX: usize = 8;
/// A manifest is not longer: the API takes no longer object, and a file holds some.
const BYTES_MAX: u64 = 64 << 20;

/// A file that cannot be read.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Unreadable {
    /// It is too long.
    #[error("it is longer than {} MiB", BYTES_MAX >> 20)]
    TooLong,
    /// The system's reason.
    #[error(transparent)]
    Io(Arc<io::Error>),
}

impl From<io::Error> for Unreadable {
    fn from(err: io::Error) -> Unreadable {
        Unreadable::Io(Arc::new(err))
    }
}

/// One file.
#[derive(Clone, Debug)]
pub struct Manifest {
    /// Of its AddOn.
    pub name: String,
    /// Where it is.
    pub path: PathBuf,
    /// Its text, or why it cannot be read.
    pub text: Result<String, Unreadable>,
    /// SHA-256 of the text, hexadecimal.
    pub checksum: String,
}

/// Content of the folder.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// By name.
    pub manifests: BTreeMap<String, Manifest>,
    /// Names beside whose file there is a `.skip`.
    pub skipped: BTreeSet<String>,
}

/// The name of a file's AddOn: its path in the folder without the ending, what a name cannot hold replaced. `None`: no
/// manifest.
pub fn name_of(relative: &Path) -> Option<String> {
    let file = relative.file_name()?.to_str()?;
    let ending = Path::new(file).extension()?.to_str()?;
    if file.starts_with('.') || !matches!(ending, "yaml" | "yml" | "json") {
        return None;
    }
    let stem = file.split('.').next()?;
    let folders = relative
        .parent()
        .into_iter()
        .flat_map(|dir| dir.components())
        .map(|part| part.as_os_str().to_string_lossy().into_owned());
    let whole: Vec<String> = folders.chain([stem.to_owned()]).collect();
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '-' { c.to_ascii_lowercase() } else { '-' };
    let name: String = whole.join("-").chars().map(plain).collect();
    let name = name.trim_matches('-');
    (!name.is_empty() && name.len() <= 253).then(|| name.to_owned())
}

/// Whether `--disable` of one of `names` means the file: by its own name, or by that of the first folder on its way.
pub fn is_disabled(names: &BTreeSet<String>, dir: &Path, path: &Path) -> bool {
    let Ok(relative) = path.strip_prefix(dir) else { return false };
    let folder = relative
        .parent()
        .and_then(|p| p.components().next())
        .map(|part| part.as_os_str().to_string_lossy().into_owned());
    let stem = path.file_name().and_then(|file| file.to_str()).and_then(|file| file.split('.').next());
    folder.is_some_and(|folder| names.contains(&folder)) || stem.is_some_and(|stem| names.contains(stem))
}

/// Reads the folder. Errors: it, or one in it, cannot be listed. A file that cannot be read is one of its own.
pub fn read(dir: &Path) -> Result<Found, FileError> {
    let mut found = Found::default();
    read_below(dir, dir, 0, &mut found)?;
    Ok(found)
}

fn read_below(root: &Path, dir: &Path, depth: usize, found: &mut Found) -> Result<(), FileError> {
    let list = fs::read_dir(dir).map_err(FileError::at("cannot list", dir))?;
    let mut paths = Vec::new();
    for entry in list {
        paths.push(entry.map_err(FileError::at("cannot list", dir))?.path());
    }
    // By name, so that of two files of one name it is always the same that counts.
    paths.sort();
    for path in paths {
        let hidden = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        if path.is_dir() {
            if !hidden && depth < DEPTH_MAX {
                read_below(root, &path, depth + 1, found)?;
            }
            continue;
        }
        let relative = path.strip_prefix(root).unwrap_or(&path);
        if let Some(stem) = relative.to_str().and_then(|text| text.strip_suffix(".skip")) {
            found.skipped.extend(name_of(Path::new(stem)));
        } else if let Some(name) = name_of(relative) {
            if let Some(other) = found.manifests.get(&name) {
                warn!(
                    path = %path.display(),
                    other = %other.path.display(),
                    "a manifest is passed over: another file has its name"
                );
                continue;
            }
            let text = read_file(&path);
            let checksum = format!("{:x}", Sha256::digest(text.as_deref().unwrap_or_default()));
            found.manifests.insert(name.clone(), Manifest { name, path, text, checksum });
        }
    }
    Ok(())
}

fn read_file(path: &Path) -> Result<String, Unreadable> {
    if fs::metadata(path)?.len() > BYTES_MAX {
        return Err(Unreadable::TooLong);
    }
    Ok(fs::read_to_string(path)?)
}

/// Writes what comes with this program into the folder, unless a `.skip` stands beside it; an edited file is replaced,
/// as k3s does.
pub fn write_packaged(config: &Config) -> Result<(), FileError> {
    for packaged in &config.packaged {
        let path = config.dir.join(format!("{}.yaml", packaged.name));
        if config.dir.join(format!("{}.yaml.skip", packaged.name)).exists() {
            continue;
        }
        if read_if_exists(&path)?.as_deref() != Some(packaged.text.as_bytes()) {
            write_atomic(&path, packaged.text.as_bytes(), 0o600)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manifests_of_subfolders_count_and_what_is_hidden_or_skipped_does_not() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str| {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "x").unwrap();
        };
        for name in
            ["a.yaml", "B_c.v1.yml", "sub/d.json", ".e.yaml", "notes.txt", "f.yaml", "f.yaml.skip", ".git/g.yaml"]
        {
            write(name);
        }
        let found = read(dir.path()).unwrap();
        assert_eq!(found.manifests.keys().collect::<Vec<_>>(), ["a", "b-c", "f", "sub-d"]);
        assert_eq!(found.skipped, ["f".to_owned()].into());
        let off = |name: &str, path: &str| is_disabled(&[name.to_owned()].into(), dir.path(), &dir.path().join(path));
        assert!(off("a", "a.yaml") && off("sub", "sub/d.json") && off("d", "sub/d.json") && !off("b", "a.yaml"));
        assert!(read(&dir.path().join("gone")).is_err(), "no folder is not an empty folder");
    }

    #[test]
    fn a_files_name_becomes_a_name_of_an_object_or_none() {
        for (path, want) in [
            ("a.yaml", Some("a")),
            ("a.b.yaml", Some("a")),
            ("A_b.yml", Some("a-b")),
            ("sub/deep/x.json", Some("sub-deep-x")),
            ("_a_.yaml", Some("a")),
            ("\u{e4}.yaml", None),
            (".a.yaml", None),
            ("a.yaml.skip", None),
            ("a.txt", None),
            ("yaml", None),
            ("", None),
        ] {
            assert_eq!(name_of(Path::new(path)).as_deref(), want, "{path}");
        }
        let long = |n: usize| name_of(Path::new(&format!("{}.yaml", "a".repeat(n))));
        assert!(long(253).is_some() && long(254).is_none());
    }

    #[test]
    fn a_packaged_manifest_is_written_again_after_an_edit_and_not_beside_a_skip() {
        let dir = tempfile::tempdir().unwrap();
        let packaged = super::super::Packaged { name: "dns", text: "new".to_owned() };
        let config = Config {
            dir: dir.path().to_owned(),
            server: "s1".to_owned(),
            packaged: vec![packaged],
            disabled: BTreeSet::new(),
        };
        let file = dir.path().join("dns.yaml");
        write_packaged(&config).unwrap();
        fs::write(&file, "edited").unwrap();
        write_packaged(&config).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "new");
        fs::write(&file, "edited").unwrap();
        fs::write(dir.path().join("dns.yaml.skip"), "").unwrap();
        write_packaged(&config).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "edited");
    }

    #[test]
    fn a_file_that_cannot_be_read_says_why_and_the_others_are_read() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("a.yaml"), [0xff]).unwrap();
        fs::write(dir.path().join("b.yaml"), "x").unwrap();
        fs::File::create(dir.path().join("c.yaml")).unwrap().set_len(BYTES_MAX + 1).unwrap();
        let found = read(dir.path()).unwrap();
        let why = |name: &str| found.manifests[name].text.as_ref().err().map(ToString::to_string);
        assert_eq!(why("a").as_deref(), Some("stream did not contain valid UTF-8"));
        assert_eq!(why("b"), None);
        assert_eq!(why("c").as_deref(), Some("it is longer than 64 MiB"));
    }
}
