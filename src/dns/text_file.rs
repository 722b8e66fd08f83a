//! Reading the files that a Corefile names: regular files of a bounded size, so that neither a FIFO nor a gigabyte
//! stops the server.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::Path;

/// A Corefile, an imported file, a resolv.conf.
pub(crate) const CONFIG_BYTES_MAX: u64 = 1024 * 1024;
/// A zone file or a hosts file. Its records take several times as much in memory, and the pod has 170 MiB.
pub(crate) const TABLE_BYTES_MAX: u64 = 8 * 1024 * 1024;

/// The text of a regular file of at most `bytes_max` bytes; links are followed.
pub(crate) fn read(path: &Path, bytes_max: u64) -> io::Result<String> {
    // Before it is opened: opening a FIFO waits for a writer.
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    let (mut text, mut file) = (String::new(), File::open(path)?.take(bytes_max + 1));
    file.read_to_string(&mut text)?;
    if text.len() as u64 > bytes_max {
        return Err(io::Error::other(format!("it has more than {bytes_max} bytes, make it smaller")));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fifo_a_folder_and_a_file_that_is_too_large_are_refused_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
        assert_eq!(read(&fifo, 10).unwrap_err().to_string(), "it is no regular file");
        assert!(read(dir.path(), 10).is_err() && read(&dir.path().join("nothing"), 10).is_err());
        let file = dir.path().join("file");
        fs::write(&file, "0123456789").unwrap();
        assert_eq!(read(&file, 10).unwrap(), "0123456789");
        assert_eq!(read(&file, 9).unwrap_err().to_string(), "it has more than 9 bytes, make it smaller");
        let huge = File::create(dir.path().join("huge")).unwrap();
        huge.set_len(100 * 1024 * 1024).unwrap();
        assert!(read(&dir.path().join("huge"), TABLE_BYTES_MAX).is_err());
    }
}
