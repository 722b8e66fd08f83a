//! Container logs that grow: moved away when they are large, and the oldest deleted. Upstream's container log manager.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base::chain::Chain;
use base::task::Group;
use bytes::Bytes;
use jiff::Timestamp;
use tracing::{debug, warn};

use crate::manager::Pods;
use crate::node::Node;

/// Between two looks, as upstream's `containerLogMonitorInterval`.
const PERIOD: Duration = Duration::from_secs(10);

/// Starts the watch over logs.
pub(crate) fn start(node: Arc<Node>, pods: Pods, group: &Group) {
    group.spawn("log-rotation", async move {
        loop {
            tokio::time::sleep(PERIOD).await;
            for (id, path) in large(&node, &pods) {
                rotate(&node, &id, &path).await;
            }
        }
    });
}

fn large(node: &Node, pods: &Pods) -> Vec<(String, PathBuf)> {
    let running = pods
        .all()
        .into_iter()
        .flat_map(|(_, s)| s.observed.running().map(|c| (c.id.clone(), PathBuf::from(&c.log_path))).collect::<Vec<_>>());
    running.filter(|(_, path)| fs::metadata(path).is_ok_and(|m| m.len() >= node.config.settings.log_bytes_max)).collect()
}

async fn rotate(node: &Node, id: &str, path: &Path) {
    let (log, files_max, now) = (path.to_owned(), node.config.settings.log_files_max, node.clock.now());
    let tidied = Group::blocking(move || make_room(&log, files_max)).await;
    if let Ok(Err(err)) = tidied {
        warn!(path = %path.display(), err = %err, "cannot tidy rotated logs");
    }
    let moved = aside(path, now);
    if let Err(err) = fs::rename(path, &moved) {
        warn!(path = %path.display(), err = %err, "cannot move a log away");
        return;
    }
    match node.runtime.cri.reopen_log(id).await {
        Ok(()) => debug!(path = %path.display(), "rotated a log"),
        Err(err) => {
            // The runtime still writes to the moved file: it goes back, and the next look tries again.
            warn!(path = %path.display(), err = %Chain(&err), "the runtime did not open its log anew");
            if let Err(err) = fs::rename(&moved, path) {
                warn!(path = %path.display(), err = %err, "cannot move a log back");
            }
        }
    }
}

/// `0.log.20261121-081500`.
fn aside(path: &Path, now: Timestamp) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}", now.strftime("%Y%m%d-%H%M%S")));
    PathBuf::from(name)
}

/// Deletes the oldest, so that with the current log and the one that is about to be moved there are `files_max`; older ones are
/// compressed.
fn make_room(path: &Path, files_max: usize) -> io::Result<()> {
    let (Some(dir), Some(name)) = (path.parent(), path.file_name().and_then(|n| n.to_str())) else { return Ok(()) };
    let prefix = format!("{name}.");
    let is_old = |p: &PathBuf| p.file_name().and_then(|n| n.to_str()).is_some_and(|n| n.starts_with(&prefix) && !n.ends_with(".tmp"));
    let mut old: Vec<PathBuf> = fs::read_dir(dir)?.flatten().map(|e| e.path()).filter(is_old).collect();
    // The time in the name sorts them; the newest last.
    old.sort();
    let keep = files_max.saturating_sub(2);
    let excess = old.len().saturating_sub(keep);
    for path in old.drain(..excess) {
        fs::remove_file(path)?;
    }
    for path in old.iter().filter(|p| p.extension().is_none_or(|e| e != "gz")) {
        let mut gz = path.as_os_str().to_owned();
        gz.push(".gz");
        let (gz, tmp) = (PathBuf::from(&gz), path.with_extension("tmp"));
        fs::write(&tmp, wire::gzip::compress(&[Bytes::from(fs::read(path)?)])?)?;
        fs::rename(&tmp, gz)?;
        fs::remove_file(path)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_go_and_the_others_are_compressed() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("0.log");
        for name in ["0.log", "0.log.20260101-000000.gz", "0.log.20260102-000000.gz", "0.log.20260103-000000.gz", "0.log.20260104-000000"] {
            fs::write(dir.path().join(name), "x").unwrap();
        }
        make_room(&log, 5).unwrap();
        let mut left: Vec<String> =
            fs::read_dir(dir.path()).unwrap().flatten().map(|e| e.file_name().to_string_lossy().into_owned()).collect();
        left.sort();
        assert_eq!(left, ["0.log", "0.log.20260102-000000.gz", "0.log.20260103-000000.gz", "0.log.20260104-000000.gz"]);
        assert_eq!(aside(&log, "2026-11-21T08:15:00Z".parse().unwrap()).file_name().unwrap(), "0.log.20261121-081500");
    }
}
