//! hostPath volumes and their types; texts as upstream's `validateHostPathType`.

use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use base::confined::Dir;
use base::confined::deadline::within;
use k8s_openapi::api::core::v1::HostPathVolumeSource;

use super::faults::HostPathError;

/// The host answers within this; a share of its that hangs does not.
const LIMIT: Duration = Duration::from_secs(30);

/// Checks or makes the path as its type says. Links in it are the host's own business: whoever may name a path of the
/// host may name all of them.
pub(super) async fn prepare(source: &HostPathVolumeSource) -> Result<PathBuf, HostPathError> {
    let of_work = source.clone();
    let work = move || Ok(look(&of_work));
    within(Path::new(&source.path), LIMIT, work).await?
}

/// Whether a block device is there.
pub(super) async fn is_block_device(path: &str) -> io::Result<bool> {
    let at = PathBuf::from(path);
    let work = move || Ok(fs::metadata(at).is_ok_and(|meta| meta.file_type().is_block_device()));
    within(Path::new(path), LIMIT, work).await
}

fn look(source: &HostPathVolumeSource) -> Result<PathBuf, HostPathError> {
    let (path, text) = (PathBuf::from(&source.path), || source.path.clone());
    if path.components().any(|c| c == std::path::Component::ParentDir) {
        return Err(HostPathError::Parent { path: text() });
    }
    let kind = source.type_.as_deref().unwrap_or_default();
    let fail = |source: io::Error| HostPathError::Make { path: text(), source };
    let other = |kind: &str| HostPathError::OtherType { path: text(), wanted: described(kind) };
    match (kind, fs::metadata(&path)) {
        ("DirectoryOrCreate", Err(_)) => make_folder(&path).map_err(fail)?,
        ("FileOrCreate", Err(_)) => drop(fs::OpenOptions::new().create(true).append(true).open(&path).map_err(fail)?),
        ("", _) => {}
        (kind, Err(_)) => return Err(other(kind)),
        (kind, Ok(meta)) => {
            let file_type = meta.file_type();
            let fits = match kind {
                "Directory" | "DirectoryOrCreate" => file_type.is_dir(),
                "File" | "FileOrCreate" => file_type.is_file(),
                "Socket" => file_type.is_socket(),
                "CharDevice" => file_type.is_char_device(),
                "BlockDevice" => file_type.is_block_device(),
                unknown => return Err(HostPathError::UnknownType { name: unknown.to_owned() }),
            };
            if !fits {
                return Err(other(kind));
            }
        }
    }
    Ok(path)
}

fn make_folder(path: &Path) -> io::Result<()> {
    fs::create_dir_all(path)?;
    Dir::open(path)?.chmod(Path::new(""), 0o755)
}

fn described(kind: &str) -> &'static str {
    match kind {
        "Directory" | "DirectoryOrCreate" => "a directory",
        "File" | "FileOrCreate" => "a file",
        "Socket" => "a socket file",
        "CharDevice" => "a character device",
        _ => "a block device",
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use base::chain::Chain;

    use super::*;

    fn of(path: &Path, kind: &str) -> HostPathVolumeSource {
        HostPathVolumeSource { path: path.display().to_string(), type_: Some(kind.to_owned()) }
    }

    #[test]
    fn a_path_fits_the_types_that_upstream_lets_it_fit() {
        let dir = tempfile::tempdir().unwrap();
        let [file, socket] = ["file", "socket"].map(|name| dir.path().join(name));
        fs::write(&file, "").unwrap();
        let _listens = UnixListener::bind(&socket).unwrap();
        let all = ["Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket", "CharDevice", "BlockDevice"];
        for (path, fitting) in [
            (dir.path(), &["Directory", "DirectoryOrCreate"][..]),
            (&file, &["File", "FileOrCreate"]),
            (&socket, &["Socket"]),
            (Path::new("/dev/null"), &["CharDevice"]),
        ] {
            let fits = all.into_iter().filter(|kind| look(&of(path, kind)).is_ok());
            assert_eq!(fits.collect::<Vec<_>>(), fitting, "{}", path.display());
        }
        assert!(look(&of(&dir.path().join("nothing"), "")).is_ok(), "without a type nothing is looked at");
    }

    #[test]
    fn a_missing_path_is_made_on_request_only() {
        let dir = tempfile::tempdir().unwrap();
        assert!(look(&of(&dir.path().join("x"), "Directory")).is_err());
        assert!(look(&of(&dir.path().join("x/y"), "DirectoryOrCreate")).unwrap().is_dir());
        assert!(look(&of(&dir.path().join("x/f"), "FileOrCreate")).unwrap().is_file());
    }

    #[test]
    fn a_path_that_does_not_fit_is_refused_in_upstreams_words() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("file"), "").unwrap();
        let missing = dir.path().join("file/sub");
        for (source, text) in [
            (of(Path::new("/etc/../root"), ""), "hostPath /etc/../root must not contain '..'"),
            (of(Path::new("/dev/null"), "File"), "hostPath type check failed: /dev/null is not a file"),
            (of(Path::new("/no/such"), "Socket"), "hostPath type check failed: /no/such is not a socket file"),
            (of(Path::new("/dev/null"), "Tape"), "Tape is an invalid volume type"),
            (of(&missing, "FileOrCreate"), &format!("{}: Not a directory (os error 20)", missing.display())),
        ] {
            assert_eq!(Chain(&look(&source).unwrap_err()).to_string(), text);
        }
    }
}
