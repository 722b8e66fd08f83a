//! `/logs/`: the machine's own log files, listed and read as upstream's file server does.

use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use base::confined::Dir;
use base::confined::deadline::within;
use base::url;
use bytes::Bytes;
use http::{Response, StatusCode, header};
use rustix::fs::FileType;
use wire::{Body, body};

use crate::logs;

const CHUNK_BYTES: usize = 64 * 1024;
/// Names in one list.
const ENTRIES_MAX: usize = 100_000;
/// A file is found within this.
const LIMIT: Duration = Duration::from_secs(10);

fn plain(code: StatusCode, text: &str) -> Response<Body> {
    let mut answer = Response::new(body::full(format!("{text}\n")));
    *answer.status_mut() = code;
    answer
}

/// A file, or a folder's list. `parts` are the decoded pieces of the path below `root`; `slash` says that it ended with
/// one. Pods write there, too: links are followed as upstream's file server does, but none that leads out, and nothing
/// but regular files is read.
pub(super) async fn serve(root: &Path, parts: &[&str], slash: bool) -> Response<Body> {
    let parts: Vec<String> = parts.iter().map(|p| url::decode(p)).filter(|p| !p.is_empty()).collect();
    if parts.iter().any(|p| p == ".." || p.contains('/')) {
        return plain(StatusCode::BAD_REQUEST, "invalid URL path");
    }
    let (path, from) = (parts.iter().collect::<PathBuf>(), root.to_owned());
    match within(root, LIMIT, move || look(&from, &path, slash)).await {
        Ok(Seen::List(names)) => list(&names),
        Ok(Seen::Contents(file)) => contents(file),
        Ok(Seen::Folder) => {
            let mut answer = plain(StatusCode::MOVED_PERMANENTLY, "");
            let last = parts.last().cloned().unwrap_or_default();
            if let Ok(to) = header::HeaderValue::from_str(&format!("{last}/")) {
                answer.headers_mut().insert(header::LOCATION, to);
            }
            answer
        }
        Err(err) if err.kind() == io::ErrorKind::NotFound => plain(StatusCode::NOT_FOUND, "404 page not found"),
        Err(err) if matches!(err.kind(), io::ErrorKind::TimedOut | io::ErrorKind::ResourceBusy) => {
            plain(StatusCode::SERVICE_UNAVAILABLE, "503 the file system does not answer")
        }
        Err(_) => plain(StatusCode::FORBIDDEN, "403 Forbidden"),
    }
}

enum Seen {
    /// A folder that was asked for without its slash.
    Folder,
    List(Vec<String>),
    Contents(fs::File),
}

fn look(root: &Path, path: &Path, slash: bool) -> io::Result<Seen> {
    let root = Dir::open(root)?;
    let real = root.follow(path)?;
    if !root.meta(&real)?.is_dir() {
        return root.open_file(&real).map(Seen::Contents);
    }
    if !slash && !path.as_os_str().is_empty() {
        return Ok(Seen::Folder);
    }
    let entries = root.dir(&real)?.entries(ENTRIES_MAX)?;
    let shown = |(name, kind): (std::ffi::OsString, FileType)| {
        name.to_string_lossy().into_owned() + if kind == FileType::Directory { "/" } else { "" }
    };
    Ok(Seen::List(entries.into_iter().map(shown).collect()))
}

fn list(names: &[String]) -> Response<Body> {
    let safe = |text: &str| text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&#34;");
    let lines: String = names.iter().map(|n| format!("<a href=\"{0}\">{0}</a>\n", safe(n))).collect();
    let mut answer = Response::new(body::full(format!(
        "<!doctype html>\n<meta name=\"viewport\" content=\"width=device-width\">\n<pre>\n{lines}</pre>\n"
    )));
    answer.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("text/html; charset=utf-8"));
    answer
}

/// Read as it is sent: a log may be larger than memory.
fn contents(file: fs::File) -> Response<Body> {
    let chunks = futures_util::stream::unfold(Some(file), |file| async move {
        let mut file = file?;
        let read = move || {
            let mut chunk = vec![0; CHUNK_BYTES];
            let n = file.read(&mut chunk)?;
            chunk.truncate(n);
            io::Result::Ok((chunk, file))
        };
        match logs::in_turn(read).await.flatten() {
            Ok((chunk, _)) if chunk.is_empty() => None,
            Ok((chunk, file)) => Some((Ok(Bytes::from(chunk)), Some(file))),
            Err(err) => Some((Err(err), None)),
        }
    });
    let mut answer = Response::new(body::stream(chunks));
    answer.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("text/plain; charset=utf-8"));
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn nothing_outside_of_the_folder_is_served() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("sub")).unwrap();
        fs::write(dir.path().join("a.log"), "x").unwrap();
        // security.md M16: a FIFO held a thread for each question; a link led to any file of the host.
        rustix::fs::mknodat(rustix::fs::CWD, dir.path().join("fifo"), FileType::Fifo, rustix::fs::Mode::RUSR, 0)
            .unwrap();
        std::os::unix::fs::symlink("/etc", dir.path().join("out")).unwrap();
        // As the kubelet links logs for who collects them.
        std::os::unix::fs::symlink(dir.path().join("a.log"), dir.path().join("sub/link.log")).unwrap();
        std::os::unix::fs::symlink("../fifo", dir.path().join("sub/fifo")).unwrap();
        std::os::unix::fs::symlink("sub", dir.path().join("folder")).unwrap();
        let wanted: [(&[&str], bool, u16); 15] = [
            (&["sub", "link.log"], false, 200),
            (&["sub", "fifo"], false, 403),
            (&["folder"], false, 301),
            (&["folder", "link.log"], false, 200),
            (&[], true, 200),
            (&["a.log"], false, 200),
            (&["sub"], false, 301),
            (&["sub"], true, 200),
            (&["no"], false, 404),
            (&["..", "etc"], false, 400),
            (&["%2e%2e"], false, 400),
            (&["..%2fetc"], false, 400),
            (&["fifo"], false, 403),
            (&["out"], false, 403),
            (&["out", "passwd"], false, 403),
        ];
        for (parts, slash, code) in wanted {
            assert_eq!(serve(dir.path(), parts, slash).await.status().as_u16(), code, "{parts:?}");
        }
    }
}
