//! hostPath volumes and their types; texts as upstream's `validateHostPathType`.

use std::fs;
use std::os::unix::fs::FileTypeExt as _;
use std::path::PathBuf;

use k8s_openapi::api::core::v1::HostPathVolumeSource;

use super::make_dir;

/// Checks or makes the path as its type says.
pub(super) fn prepare(source: &HostPathVolumeSource) -> Result<PathBuf, String> {
    let path = PathBuf::from(&source.path);
    if path.components().any(|c| c == std::path::Component::ParentDir) {
        return Err(format!("hostPath {} must not contain '..'", source.path));
    }
    let kind = source.type_.as_deref().unwrap_or_default();
    let fail = |err: std::io::Error| format!("{}: {err}", source.path);
    match (kind, fs::metadata(&path)) {
        ("DirectoryOrCreate", Err(_)) => make_dir(&path, 0o755).map_err(fail)?,
        ("FileOrCreate", Err(_)) => drop(fs::OpenOptions::new().create(true).append(true).open(&path).map_err(fail)?),
        ("", _) => {}
        (kind, Err(_)) => return Err(format!("hostPath type check failed: {} is not {}", source.path, described(kind))),
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
        assert!(prepare(&of(dir.path(), "File")).unwrap_err().ends_with("is not a file"));
        assert!(prepare(&of(&dir.path().join("x"), "Directory")).unwrap_err().ends_with("is not a directory"));
        assert!(prepare(&of(&dir.path().join("x/y"), "DirectoryOrCreate")).unwrap().is_dir());
    }
}
