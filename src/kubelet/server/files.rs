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

/// A file, or the list of a folder, whose path has to end with a slash. `below` is the path below `root` as it was
/// asked for.
///
/// Pods write there, too: links are followed as upstream's file server does, but none that leads out, and nothing but
/// regular files is read.
pub(super) async fn serve(root: &Path, below: &str) -> Response<Body> {
    let parts: Vec<String> = below.split('/').map(url::decode).filter(|p| !p.is_empty()).collect();
    if parts.iter().any(|p| p == ".." || p.contains('/')) {
        return plain(StatusCode::BAD_REQUEST, "invalid URL path");
    }
    let (path, from) = (parts.iter().collect::<PathBuf>(), root.to_owned());
    match within(root, LIMIT, move || look(&from, &path)).await {
        Ok(Seen::Contents(file)) => contents(file),
        Ok(Seen::List(names)) => {
            let Some(last) = parts.last().filter(|_| !below.ends_with('/')) else { return list(&names) };
            let mut answer = plain(StatusCode::MOVED_PERMANENTLY, "");
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
    /// The names in a folder.
    List(Vec<String>),
    Contents(fs::File),
}

fn look(root: &Path, path: &Path) -> io::Result<Seen> {
    let root = Dir::open(root)?;
    let real = root.follow(path)?;
    if !root.meta(&real)?.is_dir() {
        return root.open_file(&real).map(Seen::Contents);
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
        for (below, code) in [
            ("sub/link.log", 200),
            ("sub/fifo", 403),
            ("folder", 301),
            ("folder/link.log", 200),
            ("", 200),
            ("/", 200),
            ("a.log", 200),
            ("sub", 301),
            ("sub/", 200),
            ("no", 404),
            ("../etc", 400),
            ("%2e%2e", 400),
            ("..%2fetc", 400),
            ("fifo", 403),
            ("out", 403),
            ("out/passwd", 403),
        ] {
            assert_eq!(serve(dir.path(), below).await.status().as_u16(), code, "{below}");
        }
        let moved = serve(dir.path(), "sub").await;
        assert_eq!(moved.headers()[header::LOCATION], "sub/");
    }
}
