//! hostPath volumes and their types; texts as upstream's `validateHostPathType`.

use std::fs;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use base::confined::Dir;
use base::confined::deadline::within;
use k8s_openapi::api::core::v1::HostPathVolumeSource;

/// The host answers within this; a share of its that hangs does not.
const LIMIT: Duration = Duration::from_secs(30);

/// Checks or makes the path as its type says. Links in it are the host's own business: whoever may name a path of the
/// host may name all of them.
pub(super) async fn prepare(source: &HostPathVolumeSource) -> Result<PathBuf, String> {
    let of_work = source.clone();
    let work = move || Ok(look(&of_work));
    within(Path::new(&source.path), LIMIT, work).await.map_err(|err| err.to_string())?
}

/// Whether a block device is there.
pub(super) async fn is_block_device(path: &str) -> Result<bool, String> {
    let at = PathBuf::from(path);
    let work = move || Ok(fs::metadata(at).is_ok_and(|meta| meta.file_type().is_block_device()));
    within(Path::new(path), LIMIT, work).await.map_err(|err| err.to_string())
}

fn look(source: &HostPathVolumeSource) -> Result<PathBuf, String> {
    let path = PathBuf::from(&source.path);
    if path.components().any(|c| c == std::path::Component::ParentDir) {
        return Err(format!("hostPath {} must not contain '..'", source.path));
    }
    let kind = source.type_.as_deref().unwrap_or_default();
    let fail = |err: std::io::Error| format!("{}: {err}", source.path);
    match (kind, fs::metadata(&path)) {
        ("DirectoryOrCreate", Err(_)) => make_folder(&path).map_err(fail)?,
        ("FileOrCreate", Err(_)) => drop(fs::OpenOptions::new().create(true).append(true).open(&path).map_err(fail)?),
        ("", _) => {}
        (kind, Err(_)) => {
            return Err(format!("hostPath type check failed: {} is not {}", source.path, described(kind)));
        }
        (kind, Ok(meta)) => {
            let file_type = meta.file_type();
            let fits = match kind {
                "Directory" | "DirectoryOrCreate" => file_type.is_dir(),
                "File" | "FileOrCreate" => file_type.is_file(),
                "Socket" => file_type.is_socket(),
                "CharDevice" => file_type.is_char_device(),
                "BlockDevice" => file_type.is_block_device(),
                other => return Err(format!("{other} is an invalid volume type")),
            };
            if !fits {
                return Err(format!("hostPath type check failed: {} is not {}", source.path, described(kind)));
            }
        }
    }
    Ok(path)
}

fn make_folder(path: &Path) -> std::io::Result<()> {
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
    use super::*;

    fn of(path: &std::path::Path, kind: &str) -> HostPathVolumeSource {
        HostPathVolumeSource { path: path.display().to_string(), type_: Some(kind.to_owned()) }
    }

    #[test]
    fn a_path_of_another_type_is_refused_and_a_missing_one_is_made_on_request() {
        let dir = tempfile::tempdir().unwrap();
        assert!(look(&of(dir.path(), "File")).unwrap_err().ends_with("is not a file"));
        assert!(look(&of(&dir.path().join("x"), "Directory")).unwrap_err().ends_with("is not a directory"));
        assert!(look(&of(&dir.path().join("x/y"), "DirectoryOrCreate")).unwrap().is_dir());
    }
}
