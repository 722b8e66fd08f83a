//! Static pods: a file each, run without any API server, and re-read when the folder changes.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base::fnv;
use base::task::Group;
use k8s_openapi::api::core::v1::{Pod, Toleration};
use rustix::fs::inotify;
use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc;
use tracing::warn;

use crate::sources::annotations::{HASH, SOURCE};
use crate::sources::change::Change;

/// Editors write in several steps; the folder is read when it has been quiet for this long.
const QUIET: Duration = Duration::from_millis(100);
/// Bytes of a manifest, as upstream; a longer file is none.
const MANIFEST_BYTES_MAX: u64 = 10 << 20;
/// Without inotify.
const PERIOD_MIN: Duration = Duration::from_secs(1);

/// A file that is no manifest of a pod.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ManifestError {
    #[error(transparent)]
    Read(#[from] io::Error),
    /// The parser's words hold their cause.
    #[error("{0}")]
    Yaml(serde_saphyr::Error),
    #[error(transparent)]
    Pod(#[from] serde_json::Error),
    #[error("no spec")]
    NoSpec,
    #[error("spec.containers: Required value")]
    NoContainers,
    #[error("metadata.name: Required value")]
    NoName,
}

/// The folder of manifests, and the node whose pods they become.
#[derive(Clone, Debug)]
pub(crate) struct Folder {
    pub(crate) dir: PathBuf,
    pub(crate) node_name: String,
    /// Between two looks where the kernel cannot watch it.
    pub(crate) period: Duration,
}

/// Reads the folder at once, and again whenever it changes.
pub(super) fn start(folder: Folder, tx: mpsc::Sender<Change>, group: &Group) {
    group.spawn("static-pods", async move {
        let watch = watch(&folder.dir);
        let mut known: BTreeMap<String, String> = BTreeMap::new();
        loop {
            let found = folder.read();
            for uid in known.values().filter(|uid| !found.iter().any(|p| p.metadata.uid.as_ref() == Some(*uid))) {
                if tx.send(Change::Gone(uid.clone())).await.is_err() {
                    return;
                }
            }
            let mut now = BTreeMap::new();
            for pod in found {
                let (name, uid) =
                    (pod.metadata.name.clone().unwrap_or_default(), pod.metadata.uid.clone().unwrap_or_default());
                if known.get(&name) != Some(&uid) && tx.send(Change::Set(Arc::new(pod))).await.is_err() {
                    return;
                }
                now.insert(name, uid);
            }
            known = now;
            changed(watch.as_ref(), folder.period).await;
        }
    });
}

fn watch(dir: &Path) -> Option<AsyncFd<rustix::fd::OwnedFd>> {
    use inotify::{CreateFlags, WatchFlags};
    let made = fs::create_dir_all(dir).and_then(|()| {
        let fd = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
        let wanted = WatchFlags::CLOSE_WRITE | WatchFlags::MOVED_TO | WatchFlags::MOVED_FROM | WatchFlags::DELETE;
        inotify::add_watch(&fd, dir, wanted)?;
        base::sys::watched(fd)
    });
    made.inspect_err(|err| {
        warn!(path = %dir.display(), err = %err,
            "cannot watch the folder of static pods, it is read every fileCheckFrequency")
    })
    .ok()
}

async fn changed(watch: Option<&AsyncFd<rustix::fd::OwnedFd>>, period: Duration) {
    let Some(watch) = watch else { return tokio::time::sleep(period.max(PERIOD_MIN)).await };
    let mut quiet = false;
    loop {
        let wait = async {
            let Ok(mut ready) = watch.readable().await else { return };
            let mut buffer = [0u8; 4096];
            while matches!(rustix::io::read(watch.get_ref(), &mut buffer), Ok(n) if n > 0) {}
            ready.clear_ready();
        };
        if !quiet {
            wait.await;
            quiet = true;
        } else if tokio::time::timeout(QUIET, wait).await.is_err() {
            return;
        }
    }
}

impl Folder {
    fn read(&self) -> Vec<Pod> {
        let Ok(entries) = fs::read_dir(&self.dir) else { return Vec::new() };
        let mut paths: Vec<_> = entries.flatten().map(|e| e.path()).collect();
        paths.sort();
        // Any name but a hidden one, as upstream. What is no file (a pipe would never end) is passed over.
        let named =
            |p: &&PathBuf| p.is_file() && !p.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        let read = |path: &PathBuf| match read_file(path).map_err(ManifestError::from).and_then(|t| self.parse(&t)) {
            Ok(pod) => Some(pod),
            Err(err) => {
                warn!(path = %path.display(), err = %err, "not a pod manifest");
                None
            }
        };
        paths.iter().filter(named).filter_map(read).collect()
    }

    /// Reads a manifest and makes it this node's: name, uid from the content, tolerations.
    pub(crate) fn parse(&self, text: &str) -> Result<Pod, ManifestError> {
        // By way of JSON: a second decoder of Pods, for YAML, would be a megabyte of code.
        let json: serde_json::Value = serde_saphyr::from_str(text).map_err(ManifestError::Yaml)?;
        let mut pod: Pod = serde_json::from_str(&json.to_string())?;
        let spec = pod.spec.as_mut().ok_or(ManifestError::NoSpec)?;
        if spec.containers.is_empty() {
            return Err(ManifestError::NoContainers);
        }
        // Its content is its identity: a changed file is another pod.
        let hash = format!(
            "{:016x}{:016x}",
            fnv::sum(text.as_bytes()),
            fnv::resume(fnv::resume(0x9ae1_6a3b_2f90_404f, text.as_bytes()), self.node_name.as_bytes())
        );
        spec.node_name = Some(self.node_name.clone());
        spec.tolerations.get_or_insert_default().push(Toleration {
            operator: Some("Exists".to_owned()),
            effect: Some("NoExecute".to_owned()),
            ..Default::default()
        });
        let meta = &mut pod.metadata;
        let name = meta.name.take().filter(|n| !n.is_empty()).ok_or(ManifestError::NoName)?;
        meta.name = Some(format!("{name}-{}", self.node_name.to_lowercase()));
        meta.namespace.get_or_insert_with(|| "default".to_owned());
        meta.uid = Some(hash.clone());
        let notes = meta.annotations.get_or_insert_default();
        notes.insert(SOURCE.to_owned(), "file".to_owned());
        notes.insert(HASH.to_owned(), hash);
        Ok(pod)
    }
}

fn read_file(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    fs::File::open(path)?.take(MANIFEST_BYTES_MAX).read_to_string(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_node(node_name: &str, dir: &Path) -> Folder {
        Folder { dir: dir.to_owned(), node_name: node_name.to_owned(), period: Duration::from_secs(20) }
    }

    // review node.md L7
    #[test]
    fn a_manifest_may_have_any_name_but_a_hidden_one() {
        let dir = tempfile::tempdir().unwrap();
        let text = |name: &str| {
            format!(
                "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec:\n  containers: [{{name: c, image: i}}]\n"
            )
        };
        for name in ["etcd", "web.yaml", ".hidden.yaml"] {
            fs::write(dir.path().join(name), text("p")).unwrap();
        }
        fs::create_dir(dir.path().join("folder.yaml")).unwrap();
        assert_eq!(of_node("n", dir.path()).read().len(), 2);
    }

    #[test]
    fn a_manifest_becomes_a_pod_of_this_node_and_a_change_another_one() {
        let text = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec:\n  containers: [{name: c, image: i}]\n";
        let folder = of_node("N1", Path::new(""));
        let pod = folder.parse(text).unwrap();
        assert_eq!(pod.metadata.name.as_deref(), Some("web-n1"));
        assert!(crate::sources::annotations::is_static(&pod));
        let edited = folder.parse(&text.replace("image: i", "image: j")).unwrap();
        assert_ne!(edited.metadata.uid, pod.metadata.uid);
        let elsewhere = of_node("n2", Path::new("")).parse(text).unwrap();
        assert_ne!(elsewhere.metadata.uid, pod.metadata.uid, "the same file on another node is another pod");
        assert_eq!(pod.metadata.namespace.as_deref(), Some("default"));
        let spec = pod.spec.unwrap();
        assert_eq!(spec.node_name.as_deref(), Some("N1"));
        assert_eq!(spec.tolerations.unwrap().last().unwrap().effect.as_deref(), Some("NoExecute"));
    }

    #[test]
    fn a_file_that_is_no_pod_is_refused_with_what_it_lacks() {
        let folder = of_node("n", Path::new(""));
        for (text, expected) in [
            ("kind: Pod\nmetadata: {name: x}\n", "no spec"),
            ("metadata: {name: x}\nspec: {containers: []}\n", "spec.containers: Required value"),
            ("spec: {containers: [{name: c}]}\n", "metadata.name: Required value"),
            ("metadata: {name: \"\"}\nspec: {containers: [{name: c}]}\n", "metadata.name: Required value"),
        ] {
            assert_eq!(folder.parse(text).unwrap_err().to_string(), expected, "{text}");
        }
        assert!(matches!(folder.parse("a: [").unwrap_err(), ManifestError::Yaml(_)));
        assert!(matches!(folder.parse("spec: 7\n").unwrap_err(), ManifestError::Pod(_)));
    }
}
