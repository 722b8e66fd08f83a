//! Container logs that grow: moved away when they are large, and the oldest deleted. Upstream's container log manager.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base::chain::Chain;
use base::confined::Dir;
use base::confined::deadline::within;
use base::task::Group;
use flate2::Compression;
use flate2::write::GzEncoder;
use futures_util::{StreamExt as _, stream};
use jiff::Timestamp;
use rustix::fs::FileType;
use tracing::{debug, warn};

use crate::config::Config;
use crate::config::RuntimeChoice;
use crate::node::Node;
use crate::pods::map::Pods;
use crate::runtime::cri::Cri;

/// Logs that are moved at a time, whatever `containerLogMaxWorkers` says: each is compressed on a thread.
const WORKERS_MAX: usize = 64;
/// A log is compressed within this.
const COMPRESS_LIMIT: Duration = Duration::from_secs(600);
/// Files beside a log.
const LOGS_MAX: usize = 10_000;
/// Bytes of containerd's own log, and what is left of it when it is cut.
const RUNTIME_LOG_BYTES_MAX: u64 = 20 * 1024 * 1024;
const RUNTIME_LOG_BYTES_KEPT: usize = 2 * 1024 * 1024;

/// Starts the watch over logs.
pub(crate) fn start(node: Arc<Node>, pods: Pods, group: &Group) {
    group.spawn("log-rotation", async move {
        loop {
            let settings = &node.config.settings;
            tokio::time::sleep(settings.log_period).await;
            let rotated = stream::iter(large(&node.config, &pods)).map(|(id, path)| {
                let node = &node;
                async move { rotate(&node.runtime.cri, &id, &path, settings.log_files_max, node.clock.now()).await }
            });
            rotated.buffer_unordered(settings.log_workers.min(WORKERS_MAX)).collect::<()>().await;
            if let RuntimeChoice::Managed { root, .. } = &node.config.runtime {
                let log = crate::runtime::containerd::log_file(root);
                let of_work = log.clone();
                if let Err(err) = within(&log, COMPRESS_LIMIT, move || cut(&of_work)).await {
                    warn!(path = %log.display(), err = %err, "cannot cut containerd's log");
                }
            }
        }
    });
}

fn large(config: &Config, pods: &Pods) -> Vec<(String, PathBuf)> {
    let running = pods.all().into_iter().flat_map(|(_, s)| {
        s.observed.running().map(|c| (c.id.clone(), PathBuf::from(&c.log_path))).collect::<Vec<_>>()
    });
    let size = |path: &Path| {
        place(path).and_then(|(dir, name)| dir.meta(&name)).map_or(0, |meta| if meta.is_file() { meta.size } else { 0 })
    };
    running.filter(|(_, path)| size(path) >= config.settings.log_bytes_max).collect()
}

/// Moves the log of a container away, so that there are `files_max` at most.
async fn rotate(cri: &Cri, id: &str, path: &Path, files_max: usize, now: Timestamp) {
    let log = path.to_owned();
    let tidied = within(path, COMPRESS_LIMIT, move || make_room(&log, files_max)).await;
    if let Err(err) = tidied {
        warn!(path = %path.display(), err = %err, "cannot tidy rotated logs");
    }
    let Ok((dir, name)) = place(path) else { return };
    let moved = aside(&name, now);
    if let Err(err) = dir.rename(&name, &moved) {
        warn!(path = %path.display(), err = %err, "cannot move a log away");
        return;
    }
    match cri.reopen_log(id).await {
        Ok(()) => debug!(path = %path.display(), "rotated a log"),
        Err(err) => {
            // The runtime still writes to the moved file: it goes back, and the next look tries again.
            warn!(path = %path.display(), err = %Chain(&err), "the runtime did not open its log anew");
            if let Err(err) = dir.rename(&moved, &name) {
                warn!(path = %path.display(), err = %err, "cannot move a log back");
            }
        }
    }
}

/// `0.log.20261121-081500`.
fn aside(name: &Path, now: Timestamp) -> PathBuf {
    let mut name = name.as_os_str().to_owned();
    name.push(format!(".{}", now.strftime("%Y%m%d-%H%M%S")));
    PathBuf::from(name)
}

/// The folder of a container's logs, with no link on the way from the folder of all logs, and the log's name in it.
fn place(path: &Path) -> io::Result<(Dir, PathBuf)> {
    let invalid = || io::Error::from(io::ErrorKind::InvalidInput);
    let top = path.ancestors().nth(3).filter(|top| !top.as_os_str().is_empty()).ok_or_else(invalid)?;
    let below = path.parent().and_then(|dir| dir.strip_prefix(top).ok()).ok_or_else(invalid)?;
    Ok((Dir::open(top)?.dir(below)?, path.file_name().ok_or_else(invalid)?.into()))
}

/// Deletes the oldest, so that with the current log and the one that is about to be moved there are `files_max`; older
/// ones are compressed.
fn make_room(path: &Path, files_max: usize) -> io::Result<()> {
    let (dir, name) = place(path)?;
    let prefix = format!("{}.", name.display());
    let is_old = |name: &str| name.starts_with(&prefix) && !name.ends_with(".tmp");
    let names = dir.entries(LOGS_MAX)?.into_iter().filter(|(_, kind)| *kind == FileType::RegularFile);
    // The time in the name sorts them; the newest last.
    let mut old: Vec<String> =
        names.filter_map(|(name, _)| name.into_string().ok()).filter(|name| is_old(name)).collect();
    let keep = files_max.saturating_sub(2);
    let excess = old.len().saturating_sub(keep);
    for name in old.drain(..excess) {
        dir.remove_file(Path::new(&name))?;
    }
    for name in old.iter().filter(|name| !name.ends_with(".gz")) {
        compress(&dir, Path::new(name))?;
    }
    Ok(())
}

/// Compresses a file chunk by chunk: a container fills its log faster than anybody looks.
fn compress(dir: &Dir, name: &Path) -> io::Result<()> {
    let (tmp, mut gz) = (name.with_extension("tmp"), name.as_os_str().to_owned());
    gz.push(".gz");
    let mut from = dir.open_file(name)?;
    dir.remove_file(&tmp)?;
    let mut to = GzEncoder::new(dir.create_new(&tmp, 0o640)?, Compression::fast());
    let written = io::copy(&mut from, &mut to).and_then(|_| to.finish()).map(drop);
    if written.is_err() {
        dir.remove_file(&tmp)?;
    }
    written?;
    dir.rename(&tmp, Path::new(&gz))?;
    dir.remove_file(name)
}

/// Containerd's own log is one file: when that is large, its last part stays, in place, since containerd holds it open.
fn cut(log: &Path) -> io::Result<()> {
    let (dir, name) = Dir::of_file(log)?;
    if dir.meta(&name).map_or(0, |meta| meta.size) <= RUNTIME_LOG_BYTES_MAX {
        return Ok(());
    }
    let last = dir.tail(&name, RUNTIME_LOG_BYTES_KEPT)?;
    // The first line of a tail is rarely whole.
    let start = last.iter().position(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    let file = dir.open_for_appending(&name)?;
    file.set_len(0)?;
    (&file).write_all(&last[start..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_go_and_the_others_are_compressed() {
        let dir = tempfile::tempdir().unwrap();
        let logs = dir.path().join("pod/c");
        std::fs::create_dir_all(&logs).unwrap();
        for name in [
            "0.log",
            "0.log.20260101-000000.gz",
            "0.log.20260102-000000.gz",
            "0.log.20260103-000000.gz",
            "0.log.20260104-000000",
        ] {
            std::fs::write(logs.join(name), "x").unwrap();
        }
        // A planted link is no log, and what it names stays.
        std::os::unix::fs::symlink(dir.path(), logs.join("0.log.20260100-000000")).unwrap();
        make_room(&logs.join("0.log"), 5).unwrap();
        let left = Dir::open(&logs).unwrap().entries(10).unwrap();
        let left: Vec<_> = left
            .iter()
            .filter(|(_, kind)| *kind == FileType::RegularFile)
            .map(|(name, _)| name.to_str().unwrap())
            .collect();
        assert_eq!(left, ["0.log", "0.log.20260102-000000.gz", "0.log.20260103-000000.gz", "0.log.20260104-000000.gz"]);
        assert_eq!(
            aside(Path::new("0.log"), "2026-11-21T08:15:00Z".parse().unwrap()),
            Path::new("0.log.20261121-081500")
        );
    }

    // node.md N5: the whole log was read at once.
    #[test]
    fn a_log_of_any_size_is_compressed_in_little_memory() {
        use std::io::Read as _;
        let dir = tempfile::tempdir().unwrap();
        let folder = Dir::open(dir.path()).unwrap();
        folder.create_new(Path::new("0.log.1"), 0o640).unwrap().set_len(192 << 20).unwrap();
        // Other tests of this process hold something meanwhile, but never so much.
        let before = peak_kib();
        compress(&folder, Path::new("0.log.1")).unwrap();
        assert!(peak_kib() - before < 96 << 10, "held {} KiB", peak_kib() - before);
        let mut n = 0;
        let mut unpacked = flate2::read::GzDecoder::new(folder.open_file(Path::new("0.log.1.gz")).unwrap());
        let mut chunk = vec![0; 1 << 16];
        while let Ok(read @ 1..) = unpacked.read(&mut chunk) {
            n += read;
        }
        assert_eq!(n, 192 << 20);
        assert!(folder.meta(Path::new("0.log.1")).is_err());
    }

    fn peak_kib() -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        status
            .lines()
            .find_map(|line| line.strip_prefix("VmHWM:"))
            .unwrap()
            .split_whitespace()
            .next()
            .unwrap()
            .parse()
            .unwrap()
    }

    // node.md M19: it grew for ever.
    #[test]
    fn the_runtimes_log_is_cut_in_place() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("containerd.log");
        let writer = std::fs::OpenOptions::new().create(true).append(true).open(&log).unwrap();
        (&writer).write_all(&b"0123456789abcde\n".repeat(RUNTIME_LOG_BYTES_MAX as usize / 16)).unwrap();
        cut(&log).unwrap();
        assert_eq!(writer.metadata().unwrap().len(), RUNTIME_LOG_BYTES_MAX);
        (&writer).write_all(b"more\n").unwrap();
        cut(&log).unwrap();
        (&writer).write_all(b"last\n").unwrap();
        let text = std::fs::read_to_string(&log).unwrap();
        assert!(text.len() <= RUNTIME_LOG_BYTES_KEPT + 5 && text.starts_with("0123") && text.ends_with("more\nlast\n"));
    }
}
