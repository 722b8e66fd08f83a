//! The kernel's table of mounts, as proc(5) writes it.

use std::path::PathBuf;

/// The table of the mount namespace that this process is in.
pub const TABLE: &str = "/proc/self/mountinfo";

/// The mount points of a text of mountinfo in its order, a stacked one as often as it is mounted.
pub fn points(mountinfo: &str) -> Vec<PathBuf> {
    mountinfo.lines().filter_map(|line| line.split(' ').nth(4)).map(|field| PathBuf::from(unescape(field))).collect()
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
    }
}
