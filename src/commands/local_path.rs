//! The role `local-path`: makes and removes the folder of one volume, in a helper pod on the volume's node.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use base::confined::tree;

/// `local-path setup DIR` or `local-path teardown DIR`. Returns the exit code.
pub(crate) fn main(args: &[String]) -> i32 {
    let done = match args {
        [task, dir] if task == "setup" => setup(Path::new(dir)),
        [task, dir] if task == "teardown" => teardown(Path::new(dir)),
        _ => {
            eprintln!("usage: local-path setup|teardown DIR");
            return 2;
        }
    };
    match done {
        Ok(()) => 0,
        Err(err) => {
            eprintln!("local-path: {}: {err}", args[1]);
            1
        }
    }
}

/// Pods of any user may write there, as in rancher's provisioner.
fn setup(dir: &Path) -> io::Result<()> {
    fs::create_dir_all(dir)?;
    fs::set_permissions(dir, fs::Permissions::from_mode(0o777))
}

/// Only a folder that is called as volumes are; what is gone already is fine.
fn teardown(dir: &Path) -> io::Result<()> {
    let volume = dir.file_name().is_some_and(|name| name.to_string_lossy().starts_with("pvc-"));
    let plain =
        dir.components().all(|part| !matches!(part, std::path::Component::ParentDir | std::path::Component::CurDir));
    if !volume || !plain {
        return Err(io::Error::other("is no volume's folder"));
    }
    // What a pod has made may be of any depth, and what is mounted in it is somebody's data.
    tree::remove(dir).as_error()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_folders_of_volumes_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let volume = dir.path().join("pvc-1_default_data");
        setup(&volume).unwrap();
        fs::write(volume.join("f"), "x").unwrap();
        assert!(teardown(dir.path()).is_err());
        assert!(teardown(&volume.join("../pvc-1_default_data")).is_err());
        teardown(&volume).unwrap();
        assert!(!volume.exists() && teardown(&volume).is_ok());
    }
}
