//! A file that an administrator writes and this program, as root, believes: read within bounds, and never from where
//! containers write.

use std::fs;
use std::io::{self, Read as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use tracing::warn;

/// Bytes of a file. No configuration has a tenth of it.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// A file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AdminFileError {
    #[error("cannot be read")]
    Read(#[from] io::Error),
    #[error("is no regular file")]
    NotAFile,
    #[error("is larger than 1 MiB, which no configuration is")]
    TooLarge,
    #[error("lies in {below}, which containers write", below = below.display())]
    OfPods { below: PathBuf },
}

/// Reads a file. `of_pods` are folders that containers write. One that others than root can change is warned of.
pub(crate) fn read(path: &Path, of_pods: &[PathBuf]) -> Result<String, AdminFileError> {
    // A pipe without a writer must not hold up the start.
    let flags = i32::try_from((OFlags::NONBLOCK | OFlags::NOCTTY).bits()).unwrap_or(0);
    let file = fs::OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let meta = file.metadata()?;
    if !meta.is_file() {
        return Err(AdminFileError::NotAFile);
    }
    // The file that was opened, whatever the links on the way say now.
    let real = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
    let holds = |folder: &&PathBuf| folder.canonicalize().is_ok_and(|folder| real.starts_with(folder));
    if let Some(below) = of_pods.iter().find(holds) {
        return Err(AdminFileError::OfPods { below: below.clone() });
    }
    let is_ours = meta.uid() == 0 || meta.uid() == rustix::process::geteuid().as_raw();
    if !is_ours || meta.mode() & 0o022 != 0 {
        warn!(
            path = %path.display(),
            owner = meta.uid(),
            mode = format!("{:04o}", meta.mode() & 0o7777),
            "others than root can change this file, and with it the node: chown root and chmod go-w"
        );
    }
    let mut text = String::new();
    file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text)?;
    if text.len() as u64 > FILE_BYTES_MAX { Err(AdminFileError::TooLarge) } else { Ok(text) }
}
