//! The kernel's table of mounts, as proc(5) writes it.

use std::path::PathBuf;
use std::{fs, io};

/// The table of the mount namespace that this process is in.
pub const TABLE: &str = "/proc/self/mountinfo";

/// One line of the table.
#[derive(Debug, Eq, PartialEq)]
pub struct Mount {
    /// `major:minor` of the device; the same for all mounts of one filesystem.
    pub device: String,
    pub point: PathBuf,
}

/// The mounts of now, in the order of the table, a stacked point as often as it is mounted.
///
/// Errors: the table cannot be read.
pub fn read() -> io::Result<Vec<Mount>> {
    fs::read_to_string(TABLE).map(|text| mounts(&text).collect())
}

/// The mount points of a text of mountinfo in its order, a stacked one as often as it is mounted.
pub fn points(mountinfo: &str) -> Vec<PathBuf> {
    mounts(mountinfo).map(|mount| mount.point).collect()
}

fn mounts(mountinfo: &str) -> impl Iterator<Item = Mount> {
    mountinfo.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(2);
        let (device, point) = (fields.next()?.to_owned(), PathBuf::from(unescape(fields.nth(1)?)));
        Some(Mount { device, point })
    })
}

/// Blank, tab, newline and backslash are three octal digits there. The backslash comes last: what it gives is no code.
fn unescape(field: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .iter()
        .fold(field.to_owned(), |text, (code, plain)| text.replace(code, plain))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escaped_and_stacked_mount_points_are_read_back() {
        let line = |point: &str| format!("36 35 98:0 / {point} rw,noatime master:1 - tmpfs tmpfs rw\n");
        let text = ["/a\\040b\\134c", "/d", "/d", "/e\\134040"].map(line).concat();
        assert_eq!(points(&text), ["/a b\\c", "/d", "/d", "/e\\040"].map(PathBuf::from));
        assert!(mounts(&text).all(|mount| mount.device == "98:0"));
    }
}
