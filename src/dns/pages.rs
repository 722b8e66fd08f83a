//! The three pages of the process (/health, /ready, /metrics): GET over HTTP/1.1, one request a connection.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use base::task::Group;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

const REQUEST_BYTES_MAX: usize = 8192;
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// A page: status line and text for a path; `None` is a 404.
pub(crate) type Page = Arc<dyn Fn(&str) -> Option<(&'static str, String)> + Send + Sync>;

/// Answers on a listener as long as the group lives.
pub(crate) async fn serve(listener: TcpListener, page: Page, group: Group) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // Out of descriptors: give others time to close theirs.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let page = Arc::clone(&page);
        group.spawn_short("http", async move {
            // A prober that hangs or goes away is its own affair.
            let _prober_left = tokio::time::timeout(REQUEST_TIMEOUT, answer(stream, &page)).await;
        });
    }
}

async fn answer(mut stream: TcpStream, page: &Page) -> io::Result<()> {
    let (mut request, mut chunk) = (Vec::new(), [0; 1024]);
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        let n = stream.read(&mut chunk).await?;
        if n == 0 || request.len() + n > REQUEST_BYTES_MAX {
            return Ok(());
        }
        request.extend_from_slice(&chunk[..n]);
    }
    let text = String::from_utf8_lossy(&request);
    let mut words = text.split_whitespace();
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let path = target.split('?').next().unwrap_or_default();
    let (status, body) = match method {
        "GET" | "HEAD" => page(path).unwrap_or(("404 Not Found", "404 page not found\n".to_owned())),
        _ => ("405 Method Not Allowed", String::new()),
    };
    let kind =
        if path == "/metrics" { "text/plain; version=0.0.4; charset=utf-8" } else { "text/plain; charset=utf-8" };
    let shown = if method == "HEAD" { "" } else { body.as_str() };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{shown}",
        body.len()
    );
    stream.write_all(head.as_bytes()).await?;
    stream.shutdown().await
}
