//! The files that settings are read from: ours, or those that k3s left on this machine, and what is no such file.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// A file of settings has a few hundred lines; this is a hundred times more than the longest one needs.
const FILE_BYTES_MAX: u64 = 1024 * 1024;

/// The main file, and the drop-ins beside it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum MainFile<'a> {
    /// A person named it.
    Named(&'a Path),
    /// The files where one usually is. The first that is there counts, alone or with its drop-ins.
    Usual(&'a [&'a Path]),
}

/// A file that cannot be read as one of settings.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SourceError {
    #[error("cannot read configuration file {path}", path = path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error(
        "configuration file {path} is no regular file: a pipe or a device may never end; put the settings into a file",
        path = path.display()
    )]
    NotAFile { path: PathBuf },
    #[error(
        "configuration file {path} has more than {FILE_BYTES_MAX} bytes: it holds something else than settings",
        path = path.display()
    )]
    TooLong { path: PathBuf },
    #[error("configuration file {path} is not UTF-8 text, which YAML is: save it as UTF-8", path = path.display())]
    NotText { path: PathBuf },
    #[error(
        "--config={0}: settings are not read from a URL, as whoever answers there would be root here; fetch the file \
         first, and name it"
    )]
    Url(String),
}

impl MainFile<'_> {
    /// The files to read, in their order. A missing main file is an error only if a person named it.
    pub(super) fn files(self) -> Result<Vec<PathBuf>, SourceError> {
        match self {
            MainFile::Named(path) => {
                let text = path.to_string_lossy();
                if text.starts_with("http://") || text.starts_with("https://") {
                    return Err(SourceError::Url(text.into_owned()));
                }
                let mut files = vec![path.to_owned()];
                files.extend(drop_ins(path)?);
                Ok(files)
            }
            MainFile::Usual(paths) => {
                for path in paths {
                    let mut files: Vec<PathBuf> = path.exists().then(|| (*path).to_owned()).into_iter().collect();
                    files.extend(drop_ins(path)?);
                    if !files.is_empty() {
                        return Ok(files);
                    }
                }
                Ok(Vec::new())
            }
        }
    }
}

/// The text of a file of settings.
///
/// A pipe is not waited for, and no more is read than a file of settings has.
pub(super) fn text_of(path: &Path) -> Result<String, SourceError> {
    let unread = |source| SourceError::Read { path: path.to_owned(), source };
    let file: File = OpenOptions::new().read(true).custom_flags(nix::libc::O_NONBLOCK).open(path).map_err(unread)?;
    let meta = file.metadata().map_err(unread)?;
    let is_nothing = path == Path::new("/dev/null") && meta.file_type().is_char_device();
    if !meta.is_file() && !is_nothing {
        return Err(SourceError::NotAFile { path: path.to_owned() });
    }
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(unread)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(SourceError::TooLong { path: path.to_owned() });
    }
    String::from_utf8(bytes).map_err(|_| SourceError::NotText { path: path.to_owned() })
}

/// The files `FILE.d/*.yaml` by their names.
fn drop_ins(main: &Path) -> Result<Vec<PathBuf>, SourceError> {
    let mut dir = main.as_os_str().to_owned();
    dir.push(".d");
    let dir = PathBuf::from(dir);
    let entries = match fs::read_dir(&dir) {
        Ok(entries) => entries,
        Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => return Err(SourceError::Read { path: dir, source }),
    };
    let mut files = Vec::new();
    for entry in entries {
        let path = entry.map_err(|source| SourceError::Read { path: dir.clone(), source })?.path();
        if path.extension().is_some_and(|ext| ext == "yaml" || ext == "yml") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_of_k3s_count_where_there_are_none_of_ours() {
        let dir = tempfile::tempdir().unwrap();
        let [ours, k3s] = ["kedge", "k3s"].map(|name| dir.path().join(name).join("config.yaml"));
        let found = || MainFile::Usual(&[&ours, &k3s]).files().unwrap();
        assert!(found().is_empty());
        fs::create_dir_all(dir.path().join("k3s/config.yaml.d")).unwrap();
        fs::write(dir.path().join("k3s/config.yaml.d/a.yaml"), "").unwrap();
        fs::write(&k3s, "").unwrap();
        assert_eq!(found(), [k3s.clone(), dir.path().join("k3s/config.yaml.d/a.yaml")]);
        // A drop-in of ours alone is ours.
        fs::create_dir_all(dir.path().join("kedge/config.yaml.d")).unwrap();
        fs::write(dir.path().join("kedge/config.yaml.d/b.yml"), "").unwrap();
        assert_eq!(found(), [dir.path().join("kedge/config.yaml.d/b.yml")]);
    }

    #[test]
    fn what_is_no_file_of_settings_is_refused_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let said = |name: &str| text_of(&dir.path().join(name)).unwrap_err().to_string();
        nix::unistd::mkfifo(&dir.path().join("pipe"), nix::sys::stat::Mode::S_IRUSR).unwrap();
        fs::create_dir(dir.path().join("folder")).unwrap();
        fs::write(dir.path().join("latin"), b"node-name: caf\xe9\n").unwrap();
        let huge = File::create(dir.path().join("huge")).unwrap();
        huge.set_len(1 << 40).unwrap();
        for (name, part) in [
            ("pipe", "is no regular file"),
            ("folder", "is no regular file"),
            ("latin", "is not UTF-8 text"),
            ("huge", "has more than 1048576 bytes"),
            ("none", "cannot read configuration file"),
        ] {
            assert!(said(name).contains(part), "{name}: {}", said(name));
        }
        assert_eq!(text_of(Path::new("/dev/null")).unwrap(), "", "the usual word for no settings");
        assert!(text_of(Path::new("/dev/zero")).unwrap_err().to_string().contains("is no regular file"));
    }

    #[test]
    fn a_url_is_no_file() {
        for url in ["http://a/config.yaml", "https://a/config.yaml"] {
            let said = MainFile::Named(Path::new(url)).files().unwrap_err().to_string();
            assert!(said.starts_with(&format!("--config={url}: settings are not read from a URL")), "{said}");
        }
    }
}
