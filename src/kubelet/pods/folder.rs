//! The folder of a pod, and whose it is.

use std::io;
use std::path::Path;

use base::confined::Dir;
use base::owner::{self, Owner};

/// Marks a pod's folder as one of this kubelet's: another kubelet may have pods in the same place.
pub(crate) fn mark_pod(root: &Path, uid: &str) -> io::Result<()> {
    let dir = root.join("pods").join(uid);
    drop(Dir::open_or_make(&dir, 0o750)?);
    owner::mark(&dir, |_| true).map(drop)
}

/// Whether a pod's folder is this kubelet's, to remove when its pod is gone.
pub(crate) fn is_our_pod(root: &Path, uid: &str) -> bool {
    let marked = |dir: &Path| owner::of(dir).ok().flatten();
    marked(root) == Some(Owner::Ours) || marked(&root.join("pods").join(uid)).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    // security.md H4: the pods of another kubelet of the machine were tidied away at the start.
    #[test]
    fn a_pod_of_another_kubelet_is_let_be() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("pods/foreign")).unwrap();
        mark_pod(root.path(), "own").unwrap();
        assert!(is_our_pod(root.path(), "own") && !is_our_pod(root.path(), "foreign"));
        owner::mark(root.path(), |name| name == "pods").unwrap();
        assert!(is_our_pod(root.path(), "foreign"), "a folder that is ours alone has no foreign pods");
    }
}
