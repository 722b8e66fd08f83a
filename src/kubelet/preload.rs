//! The folder of images: archives are imported and lists pulled, at start and as they come, and what they bring is
//! never collected.

pub(crate) mod ready;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use base::backoff::Backoff;
use base::chain::Chain;
use base::files::{create_private_dir, read_if_exists, write_atomic};
use base::folder::FolderWatch;
use base::task::{Fatal, Group};
use base::time::Stopwatch;
use k8s_cri::v1 as cri;
use serde::{Deserialize, Serialize};
use tonic::Status;
use tracing::{info, warn};

use crate::config::Config;
use crate::error::Error;
use crate::events::Kind;
use crate::images::PullError;
use crate::node::Node;
use crate::runtime::Runtime;
use crate::runtime::catalog;
use crate::runtime::cri::CriError;

/// Unpacking some gigabytes onto an SD card takes its time.
const IMPORT_TIMEOUT: Duration = Duration::from_secs(1800);
/// A failed file is tried again after this, twice as long each time up to the second.
const RETRY: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(600));

/// The files that were brought in already, so that a restart does not do it again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Cache(BTreeMap<String, Brought>);

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Brought {
    size: u64,
    /// Nanoseconds since 1970.
    changed: i128,
    images: BTreeSet<String>,
}

/// The form of a file of the folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Archive,
    List,
    /// A form that containerd's client cannot read.
    Foreign,
}

/// Images that cannot be brought in.
#[derive(Debug, thiserror::Error)]
enum BringError {
    #[error("containerd's client reads .tar, .tar.gz and .tar.zst: pack it again")]
    Foreign,
    #[error("cannot list images: {status}")]
    List { status: Box<Status> },
    #[error("cannot pin {image}: {status}")]
    Pin { image: String, status: Box<Status> },
    #[error("it holds no named image")]
    Empty,
    #[error("cannot run ctr")]
    Spawn(#[source] io::Error),
    #[error("ctr takes no input")]
    NoInput,
    #[error("cannot wait for ctr")]
    Wait(#[source] io::Error),
    #[error("ctr refused it: {said}")]
    Refused { said: String },
    #[error("it cannot be read")]
    Unreadable(#[source] io::Error),
    #[error("{}", all_of(.0))]
    Pulls(Vec<(String, PullError)>),
    #[error(transparent)]
    Cri(#[from] CriError),
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Task(#[from] Fatal),
}

/// Each image of a list that cannot be pulled, with all causes.
fn all_of(failures: &[(String, PullError)]) -> String {
    failures.iter().map(|(name, err)| format!("{name}: {}", Chain(err))).collect::<Vec<_>>().join("; ")
}

fn form(name: &str) -> Option<Form> {
    let ends = |endings: &[&str]| endings.iter().any(|ending| name.ends_with(ending));
    match () {
        () if name.starts_with('.') => None,
        () if ends(&[".tar", ".tar.gz", ".tgz", ".tar.zst", ".tzst"]) => Some(Form::Archive),
        () if ends(&[".txt"]) => Some(Form::List),
        () if ends(&[".tar.bz2", ".tbz", ".tar.lz4"]) => Some(Form::Foreign),
        () => None,
    }
}

/// Makes the folder; before the kubelet starts.
pub(crate) fn prepare(dir: &Path) -> Result<(), Error> {
    Ok(create_private_dir(dir)?)
}

/// Follows the folder until the group stops.
pub(crate) fn start(node: Arc<Node>, group: &Group) {
    let Some(dir) = node.config.images_dir.clone() else {
        node.preload.0.send_replace(true);
        return;
    };
    group.spawn("images-dir", async move {
        let watch = FolderWatch::flat(&dir);
        if let Err(err) = &watch {
            warn!(
                path = %dir.display(),
                err = %err,
                "cannot watch the folder of images: changes are seen at the next start"
            );
        }
        let mut backoff = Backoff::new(RETRY.0, RETRY.1);
        loop {
            let well = round(&node, &dir).await;
            node.preload.0.send_replace(true);
            let due = async {
                match well {
                    true => std::future::pending().await,
                    false => tokio::time::sleep(backoff.next(&node.rng)).await,
                }
            };
            let changed = FolderWatch::changed_if(&watch);
            // Cancel safe: the folder is read whole in the next turn.
            tokio::select! {
                () = changed => {}
                () = due => {}
            }
            if well {
                backoff.reset();
            }
        }
    });
}

/// Brings in what is new. Returns false if something has to be tried again.
async fn round(node: &Node, dir: &Path) -> bool {
    let cache_file = dir.join(".cache.json");
    let kept = read_if_exists(&cache_file).ok().flatten().and_then(|bytes| serde_json::from_slice(&bytes).ok());
    let (before, mut now, mut well): (Cache, Cache, bool) = (kept.unwrap_or_default(), Cache::default(), true);
    let here = match catalog::list(&node.runtime.socket).await {
        Ok(here) => here,
        Err(err) => {
            // No list, no knowledge of what is missing; without containerd's service there is nothing to import into.
            warn!(err = %err, "cannot list images, the folder of images waits");
            return false;
        }
    };
    for (path, size, changed) in files(dir) {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let done = before
            .0
            .get(&name)
            .filter(|b| b.size == size && b.changed == changed && b.images.iter().all(|i| here.contains_key(i)));
        if let Some(done) = done {
            now.0.insert(name, done.clone());
            continue;
        }
        match bring(node, &path, form(&name)).await {
            Ok(images) => {
                now.0.insert(name, Brought { size, changed, images });
            }
            Err(err) => {
                warn!(path = %path.display(), err = %Chain(&err), "cannot bring in images");
                let text = format!("Failed to bring in images of {}: {}", path.display(), Chain(&err));
                node.events.node(&node.config.node_name, Kind::Warning, "ImagesDirFailed", text);
                // What is no archive gets no better by waiting; a registry may come back.
                well &= form(&name) != Some(Form::List);
            }
        }
    }
    if now != before {
        let text = serde_json::to_vec_pretty(&now).map_err(io::Error::other);
        let written = text.and_then(|text| write_atomic(&cache_file, &text, 0o600).map_err(io::Error::other));
        if let Err(err) = written {
            warn!(err = %Chain(&err), "cannot remember which images are in");
        }
    }
    well
}

/// Files with a meaning, by name.
fn files(dir: &Path) -> Vec<(PathBuf, u64, i128)> {
    let mut found: Vec<_> = fs::read_dir(dir)
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| form(&entry.file_name().to_string_lossy()).is_some())
        .filter_map(|entry| {
            let meta = fs::metadata(entry.path()).ok().filter(fs::Metadata::is_file)?;
            let changed = i128::from(meta.mtime()) * 1_000_000_000 + i128::from(meta.mtime_nsec());
            Some((entry.path(), meta.len(), changed))
        })
        .collect();
    found.sort();
    found
}

async fn bring(node: &Node, path: &Path, form: Option<Form>) -> Result<BTreeSet<String>, BringError> {
    let watch = Stopwatch::start();
    let images = match form {
        Some(Form::Archive) => import(&node.config, &node.runtime, path).await?,
        Some(Form::List) => pull_all(node, path).await?,
        Some(Form::Foreign) | None => return Err(BringError::Foreign),
    };
    for image in &images {
        let pinned = catalog::pin(&node.runtime.socket, image).await;
        pinned.map_err(|status| BringError::Pin { image: image.clone(), status: Box::new(status) })?;
    }
    info!(path = %path.display(), n = images.len(), took_ms = watch.elapsed().as_millis(), "images brought in");
    Ok(images)
}

/// Imports an archive, docker's or OCI's; returns the names that it brought.
async fn import(config: &Config, runtime: &Runtime, path: &Path) -> Result<BTreeSet<String>, BringError> {
    let socket = &runtime.socket;
    let listed = async || {
        let list = catalog::list(socket).await;
        list.map_err(|status| BringError::List { status: Box::new(status) })
    };
    let before = listed().await?;
    let (path, socket_of_ctr, search_path) = (path.to_owned(), socket.clone(), config.search_path.clone());
    Group::blocking(move || feed(&path, &socket_of_ctr, &search_path)).await??;
    // What is new or was written since: an archive writes every image it names, also one that was there.
    let brought: BTreeSet<String> = listed()
        .await?
        .into_iter()
        .filter(|(name, known)| before.get(name).is_none_or(|old| old.written != known.written))
        .map(|(name, _)| name)
        .filter(|name| !name.starts_with("sha256:"))
        .collect();
    if brought.is_empty() { Err(BringError::Empty) } else { Ok(brought) }
}

/// Has `ctr` import an archive; that of containerd 1.6 reads plain ones only, so they are unpacked on the way.
fn feed(path: &Path, socket: &Path, search_path: &OsStr) -> Result<(), BringError> {
    let file = fs::File::open(path)?;
    let mut start = [0; 4];
    let known = file.read_at(&mut start, 0)?;
    // By what it is, not by what it is called.
    let mut archive: Box<dyn Read> = match &start[..known] {
        [0x1f, 0x8b, ..] => Box::new(flate2::read::MultiGzDecoder::new(file)),
        [0x28, 0xb5, 0x2f, 0xfd] => Box::new(zstd::stream::read::Decoder::new(file)?),
        _ => Box::new(file),
    };
    let limit = format!("{}s", IMPORT_TIMEOUT.as_secs());
    let mut ctr = Command::new("ctr");
    ctr.env("PATH", search_path).arg("--address").arg(socket).args([
        "--timeout",
        &limit,
        "--namespace",
        "k8s.io",
        "images",
        "import",
        "-",
    ]);
    let spawned = ctr.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
    let mut child = spawned.map_err(BringError::Spawn)?;
    let mut to = child.stdin.take().ok_or(BringError::NoInput)?;
    // A broken pipe is ctr's refusal, which it explains itself.
    let copied = io::copy(&mut archive, &mut to);
    drop(to);
    let output = child.wait_with_output().map_err(BringError::Wait)?;
    if !output.status.success() {
        return Err(BringError::Refused { said: String::from_utf8_lossy(&output.stderr).trim().to_owned() });
    }
    copied.map(drop).map_err(BringError::Unreadable)
}

/// Names in a list, one a line.
fn names(text: &str) -> Vec<&str> {
    text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')).collect()
}

async fn pull_all(node: &Node, path: &Path) -> Result<BTreeSet<String>, BringError> {
    let text = fs::read_to_string(path)?;
    let (mut pulled, mut failures) = (BTreeSet::new(), Vec::new());
    for name in names(&text) {
        let here = node.runtime.cri.image(name).await?;
        let image = match here {
            Some(image) => image,
            None => match crate::images::fetch(node, name, Vec::new(), Some(cri::PodSandboxConfig::default())).await {
                Ok((image, _)) => image,
                Err(err) => {
                    failures.push((name.to_owned(), err));
                    continue;
                }
            },
        };
        pulled.extend(image.repo_tags.into_iter().chain(image.repo_digests).take(1));
    }
    if failures.is_empty() { Ok(pulled) } else { Err(BringError::Pulls(failures)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_archives_and_lists_count() {
        let of = |name: &str| form(name);
        assert_eq!([of("a.tar"), of("a.tar.gz"), of("a.tgz"), of("a.tar.zst")], [Some(Form::Archive); 4]);
        assert_eq!(
            (of("b.txt"), of("c.tar.bz2"), of(".cache.json"), of(".a.tar"), of("notes.md")),
            (Some(Form::List), Some(Form::Foreign), None, None, None)
        );
        assert_eq!(names("# core\n\n nginx:1 \nquay.io/a/b\n"), ["nginx:1", "quay.io/a/b"]);
    }

    #[test]
    fn each_image_of_a_list_that_fails_is_told_with_its_cause() {
        let vanished = |image: &str| (image.to_owned(), PullError::Vanished { image: image.to_owned() });
        let err = BringError::Pulls(vec![vanished("a:1"), vanished("b")]);
        let text = "a:1: image \"a:1\" vanished after its pull; b: image \"b\" vanished after its pull";
        assert_eq!(Chain(&err).to_string(), text);
        let err = BringError::Unreadable(io::ErrorKind::UnexpectedEof.into());
        assert_eq!(Chain(&err).to_string(), "it cannot be read: unexpected end of file");
    }

    #[test]
    fn a_machine_without_ctr_says_so() {
        let dir = tempfile::tempdir().unwrap();
        let archive = dir.path().join("a.tar");
        fs::write(&archive, [0x1f, 0x8b, 0, 0]).unwrap();
        let why = feed(&archive, Path::new("/none.sock"), OsStr::new("/no/such")).unwrap_err();
        assert!(Chain(&why).to_string().starts_with("cannot run ctr: "), "{}", Chain(&why));
        assert!(matches!(feed(&dir.path().join("none"), Path::new(""), OsStr::new("")), Err(BringError::Io(_))));
    }

    #[test]
    fn files_of_the_folder_are_those_with_a_meaning_by_name() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["b.tar", "a.txt", "notes.md", ".hidden.tar"] {
            fs::write(dir.path().join(name), "x").unwrap();
        }
        fs::create_dir(dir.path().join("folder.tar")).unwrap();
        let found: Vec<_> = files(dir.path()).into_iter().map(|(path, size, _)| (path, size)).collect();
        assert_eq!(found, [(dir.path().join("a.txt"), 1), (dir.path().join("b.tar"), 1)]);
        assert!(files(&dir.path().join("none")).is_empty());
    }
}
