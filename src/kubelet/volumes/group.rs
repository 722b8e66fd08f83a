//! A volume is given to its pod's group.

use std::io;
use std::path::Path;

use base::confined::Dir;

/// Whether a folder belongs to the group already as `fsGroup` would make it.
fn fits(dir: &Dir, group: u32) -> io::Result<bool> {
    let meta = dir.meta(Path::new(""))?;
    Ok(meta.gid == group && meta.mode & 0o2770 == 0o2770)
}

/// Gives a volume to the pod's group; with `mismatch_only` not again if its root shows that this was done.
pub(crate) fn give(root: &Path, group: u32, mismatch_only: bool) -> io::Result<()> {
    let dir = Dir::open(root)?;
    if mismatch_only && fits(&dir, group)? { Ok(()) } else { own_tree(&dir, group) }
}

/// Gives a tree to a group, as `fsGroup` asks: setgid folders, readable and writable for the group. Another pod may be
/// at work in it: each entry is held by a descriptor, and no mount in it is touched.
pub(super) fn own_tree(dir: &Dir, group: u32) -> io::Result<()> {
    dir.walk(&mut |found| {
        found.chown(None, Some(group))?;
        if found.meta.is_link() {
            return Ok(());
        }
        found.chmod(found.meta.mode | if found.meta.is_dir() { 0o2770 } else { 0o660 })
    })?;
    // The root last: that it fits says that all is done.
    dir.chown(Path::new(""), None, Some(group))?;
    dir.chmod(Path::new(""), dir.meta(Path::new(""))?.mode | 0o2770)
}
