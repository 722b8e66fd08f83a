//! `/logs/`: the machine's own log files, listed and read as upstream's file server does.

use std::fs;
use std::io::{self, Read as _};
use std::path::Path;

use bytes::Bytes;
use http::{Response, StatusCode, header};
use wire::{Body, body};

const CHUNK_BYTES: usize = 64 * 1024;

fn plain(code: StatusCode, text: &str) -> Response<Body> {
    let mut answer = Response::new(body::full(format!("{text}\n")));
    *answer.status_mut() = code;
    answer
}

/// A file, or a folder's list. `parts` are the decoded pieces of the path below `root`; `slash` says that it ended with one.
pub(super) fn serve(root: &Path, parts: &[&str], slash: bool) -> Response<Body> {
    let parts: Vec<String> = parts.iter().map(|p| super::percent_decode(p)).collect();
    if parts.iter().any(|p| p == ".." || p.contains('/')) {
        return plain(StatusCode::BAD_REQUEST, "invalid URL path");
    }
    let path = parts.iter().filter(|p| !p.is_empty()).fold(root.to_owned(), |path, part| path.join(part));
    match fs::metadata(&path) {
        Err(_) => plain(StatusCode::NOT_FOUND, "404 page not found"),
        Ok(meta) if meta.is_dir() && !slash && !parts.is_empty() => {
            let mut answer = plain(StatusCode::MOVED_PERMANENTLY, "");
            let last = parts.last().cloned().unwrap_or_default();
            if let Ok(to) = header::HeaderValue::from_str(&format!("{last}/")) {
                answer.headers_mut().insert(header::LOCATION, to);
            }
            answer
        }
        Ok(meta) if meta.is_dir() => list(&path),
        Ok(_) => read(&path),
    }
}

fn list(path: &Path) -> Response<Body> {
    let name = |e: fs::DirEntry| e.file_name().to_string_lossy().into_owned() + if e.path().is_dir() { "/" } else { "" };
    let mut names: Vec<String> = fs::read_dir(path).into_iter().flatten().flatten().map(name).collect();
    names.sort();
    let safe = |text: &str| text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&#34;");
    let lines: String = names.iter().map(|n| format!("<a href=\"{0}\">{0}</a>\n", safe(n))).collect();
    let mut answer = Response::new(body::full(format!(
        "<!doctype html>\n<meta name=\"viewport\" content=\"width=device-width\">\n<pre>\n{lines}</pre>\n"
    )));
    answer.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("text/html; charset=utf-8"));
    answer
}

/// Read as it is sent: a log may be larger than memory.
fn read(path: &Path) -> Response<Body> {
    let file = match fs::File::open(path) {
        Ok(file) => file,
        Err(err) if err.kind() == io::ErrorKind::PermissionDenied => return plain(StatusCode::FORBIDDEN, "403 Forbidden"),
        Err(_) => return plain(StatusCode::NOT_FOUND, "404 page not found"),
    };
    let chunks = futures_util::stream::unfold(file, |mut file| async move {
        let mut chunk = vec![0; CHUNK_BYTES];
        match file.read(&mut chunk) {
            Ok(0) => None,
            Ok(n) => {
                chunk.truncate(n);
                Some((Ok(Bytes::from(chunk)), file))
            }
            Err(err) => Some((Err(err), file)),
        }
    });
    let mut answer = Response::new(body::stream(chunks));
    answer.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("text/plain; charset=utf-8"));
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_outside_of_the_folder_is_served() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("sub")).unwrap();
        fs::write(dir.path().join("a.log"), "x").unwrap();
        let code = |parts: &[&str], slash: bool| serve(dir.path(), parts, slash).status().as_u16();
        assert_eq!(
            (code(&[], true), code(&["a.log"], false), code(&["sub"], false), code(&["sub"], true), code(&["no"], false)),
            (200, 200, 301, 200, 404)
        );
        assert_eq!((code(&["..", "etc"], false), code(&["%2e%2e"], false), code(&["..%2fetc"], false)), (400, 400, 400));
    }
}
