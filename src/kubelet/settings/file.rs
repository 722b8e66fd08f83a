//! Files of KubeletConfiguration: one that is named, and folders of drop-ins. Each is read within bounds and judged by
//! itself before anything of it counts.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::Settings;
use super::tree::{self, Leaf};
use super::value::ValueError;
use crate::admin_file::{self, AdminFileError};

/// Drop-ins, and folders within each other.
const FILES_MAX: usize = 1000;
const DEPTH_MAX: usize = 8;
/// The only version there is.
const API_VERSION: &str = "kubelet.config.k8s.io/v1beta1";
const KIND: &str = "KubeletConfiguration";

/// A file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum FileFault {
    #[error(transparent)]
    File(#[from] AdminFileError),
    #[error("cannot be read")]
    Folder(#[from] io::Error),
    #[error("is neither YAML nor JSON: {0}")]
    Yaml(serde_saphyr::Error),
    #[error("must be {KIND} of {API_VERSION}: set kind and apiVersion")]
    Kind,
    #[error("unknown field {path:?}")]
    Unknown { path: String },
    #[error("{field}")]
    Value { field: &'static str, source: ValueError },
    #[error("holds more than {FILES_MAX} files or too many folders")]
    TooMany,
}

/// A file of a folder, and the place where it counts among others.
pub(super) struct Found {
    pub(super) order: PathBuf,
    pub(super) path: PathBuf,
}

/// Reads one file. `of_pods` are folders that containers write.
///
/// Errors: it is no regular file or lies in such a folder, is too large, is not KubeletConfiguration, has a field that
/// nobody knows or a value that cannot be.
pub(super) fn read(path: &Path, of_pods: &[PathBuf]) -> Result<Map<String, Value>, FileFault> {
    judge(&admin_file::read(path, of_pods)?)
}

fn judge(text: &str) -> Result<Map<String, Value>, FileFault> {
    let Value::Object(mut map) = serde_saphyr::from_str(text).map_err(FileFault::Yaml)? else {
        return Err(FileFault::Kind);
    };
    let names = [("kind", KIND), ("apiVersion", API_VERSION)];
    if names.iter().any(|(key, wanted)| map.remove(*key).as_ref().and_then(Value::as_str) != Some(*wanted)) {
        return Err(FileFault::Kind);
    }
    let mut alone = Settings::default();
    for leaf in tree::leaves(&map) {
        let (row, value) = match leaf {
            Leaf::Unknown(path) => return Err(FileFault::Unknown { path }),
            Leaf::Known(row, value) => (row, value),
        };
        // A null takes back what an earlier file said.
        if value.is_null() {
            continue;
        }
        let checked = row.form.check(value).and_then(|()| match row.is_unset(value) {
            true => Ok(()),
            false => row.apply(&mut alone, value),
        });
        checked.map_err(|source| FileFault::Value { field: row.field, source })?;
    }
    Ok(map)
}

/// The `*.conf` files of a folder and of those in it, in the order of their paths. Links to folders are not followed,
/// as upstream.
pub(super) fn drop_ins(folder: &Path, place: &Path) -> Result<Vec<Found>, FileFault> {
    let mut found = Vec::new();
    walk(folder, place, DEPTH_MAX, &mut found)?;
    Ok(found)
}

fn walk(folder: &Path, place: &Path, depth: usize, found: &mut Vec<Found>) -> Result<(), FileFault> {
    if depth == 0 {
        return Err(FileFault::TooMany);
    }
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let (path, order) = (entry.path(), place.join(entry.file_name()));
        if entry.file_type()?.is_dir() {
            walk(&path, &order, depth - 1, found)?;
        } else if path.extension().is_some_and(|ending| ending == "conf") {
            found.push(Found { order, path });
        }
        if found.len() > FILES_MAX {
            return Err(FileFault::TooMany);
        }
    }
    Ok(())
}
