//! `kedge kubectl`, `kedge crictl`, `kedge ctr`: the tools found on this machine, told where this node's server and
//! runtime are.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use base::layout::{self, Layout};

/// The tools.
pub(crate) const NAMES: [&str; 3] = ["kubectl", "crictl", "ctr"];

/// Why a tool was not run.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ToolError {
    #[error("there is no {name} in {bundle} and none on PATH: {hint}", bundle = bundle.display())]
    Missing { name: String, bundle: PathBuf, hint: &'static str },
    #[error("cannot run {path}", path = path.display())]
    Run { path: PathBuf, source: io::Error },
}

/// The first file of this name, in the bundle's folder and then on the search path, that is not this program under
/// another name.
fn find(name: &str, bundle: &Path, search_path: &OsString, own: Option<&Path>) -> Option<PathBuf> {
    let dirs = std::iter::once(bundle.to_owned()).chain(std::env::split_paths(search_path));
    let mut candidates = dirs.map(|dir| dir.join(name)).filter(|path| path.is_file());
    candidates.find(|path| std::fs::canonicalize(path).ok().as_deref() != own)
}

/// Becomes the tool. Returns only if that fails.
pub(crate) fn main(name: &str, args: &[OsString]) -> Result<(), ToolError> {
    let hint = match name {
        "kubectl" => "apply a bundle that has it, or install it, e.g. from https://kubernetes.io/docs/tasks/tools/",
        "crictl" => "install cri-tools",
        _ => "apply a bundle that has it, or install containerd",
    };
    let layout = Layout::new(layout::DEFAULT);
    let bundle = layout.bundle_bin();
    let own = std::env::current_exe().ok().and_then(|path| std::fs::canonicalize(path).ok());
    let path = find(name, &bundle, &crate::flags::environment::search_path(), own.as_deref())
        .ok_or_else(|| ToolError::Missing { name: name.to_owned(), bundle, hint })?;
    let socket = layout.run().containerd_socket();
    let mut command = Command::new(&path);
    command.args(args);
    let settings = match name {
        "kubectl" => vec![("KUBECONFIG", layout::KUBECONFIG.to_owned())],
        "crictl" => {
            let url = format!("unix://{}", socket.display());
            vec![("CONTAINER_RUNTIME_ENDPOINT", url.clone()), ("IMAGE_SERVICE_ENDPOINT", url)]
        }
        _ => vec![("CONTAINERD_ADDRESS", socket.display().to_string()), ("CONTAINERD_NAMESPACE", "k8s.io".to_owned())],
    };
    // What the person has set already is meant.
    for (variable, value) in
        settings.into_iter().filter(|(variable, _)| crate::flags::environment::environment(variable).is_none())
    {
        command.env(variable, value);
    }
    Err(ToolError::Run { source: command.exec(), path })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_to_this_program_is_not_the_tool() {
        let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let own = a.path().join("kedge");
        std::fs::write(&own, "").unwrap();
        std::os::unix::fs::symlink(&own, a.path().join("kubectl")).unwrap();
        std::fs::write(b.path().join("kubectl"), "").unwrap();
        let own = std::fs::canonicalize(&own).unwrap();
        let search = std::env::join_paths([a.path(), b.path()]).unwrap();
        let none = Path::new("/nowhere");
        assert_eq!(find("kubectl", none, &search, Some(&own)), Some(b.path().join("kubectl")));
        assert_eq!(find("crictl", none, &search, Some(&own)), None);
        let bundle = tempfile::tempdir().unwrap();
        std::fs::write(bundle.path().join("kubectl"), "").unwrap();
        assert_eq!(find("kubectl", bundle.path(), &search, Some(&own)), Some(bundle.path().join("kubectl")));
    }
}
