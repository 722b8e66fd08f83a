//! Questions of a test to the node, beside kubectl: its containers, its network, a page over HTTP.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::harness::{Place, run_with};

/// One request.
const HTTP_LIMIT: Duration = Duration::from_secs(5);

/// Fetches `/` and returns the body.
pub(crate) fn page(addr: SocketAddr) -> Result<String, String> {
    let fetch = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect_timeout(&addr, HTTP_LIMIT)?;
        stream.set_read_timeout(Some(HTTP_LIMIT))?;
        stream.write_all(format!("GET / HTTP/1.0\r\nHost: {addr}\r\n\r\n").as_bytes())?;
        let mut text = String::new();
        match stream.read_to_string(&mut text) {
            Err(err) if text.is_empty() => Err(err),
            // A forwarder may reset the connection after the last byte; what counts is that the page is whole, which
            // the caller checks.
            _ => Ok(text),
        }
    };
    let text = fetch().map_err(|err| format!("{addr}: {err}"))?;
    match text.split_once("\r\n\r\n") {
        Some((head, body)) if head.starts_with("HTTP/1.0 200") || head.starts_with("HTTP/1.1 200") => {
            Ok(body.to_owned())
        }
        _ => Err(format!("{addr} answered: {text}")),
    }
}

/// Asks for the page again and again until it is dropped.
pub(crate) struct Load {
    stop: Arc<AtomicBool>,
    answered: Arc<AtomicUsize>,
    thread: Option<std::thread::JoinHandle<Vec<String>>>,
}

impl Load {
    pub(crate) fn on(addr: SocketAddr) -> Load {
        let (stop, answered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (stopped, count) = (Arc::clone(&stop), Arc::clone(&answered));
        let thread = std::thread::spawn(move || {
            let mut lost = Vec::new();
            while !stopped.load(Ordering::Relaxed) {
                match page(addr) {
                    Ok(_) => drop(count.fetch_add(1, Ordering::Relaxed)),
                    Err(why) => lost.push(why),
                }
                // A breath, not a signal: two cores also have to run the pods.
                std::thread::sleep(Duration::from_millis(5));
            }
            lost
        });
        Load { stop, answered, thread: Some(thread) }
    }

    /// How many requests were answered. Fails if one was lost.
    pub(crate) fn end(mut self, during: &str) -> usize {
        self.stop.store(true, Ordering::Relaxed);
        let lost = self.thread.take().unwrap().join().unwrap();
        let answered = self.answered.load(Ordering::Relaxed);
        assert!(
            lost.is_empty(),
            "{during}: {} requests of {} lost, first: {}",
            lost.len(),
            answered + lost.len(),
            lost[0]
        );
        answered
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// The socket of the node's containerd.
pub(crate) fn containerd_socket() -> Option<PathBuf> {
    let dirs = fs::read_dir("/run").unwrap().map(|entry| entry.unwrap().path());
    dirs.map(|dir| dir.join("containerd/containerd.sock"))
        .find(|socket| socket.exists() && socket.starts_with("/run") && socket.display().to_string().contains("kedge"))
}

/// Makes the busybox image and gives it to containerd.
pub(crate) fn import_busybox(place: &Place) {
    let tar = place.path("busybox.tar");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/busybox-image.sh");
    let made = run_with(Command::new("sh").arg(script).arg(&tar), "");
    assert_eq!(made.code, 0, "{made:?}");
    let socket = containerd_socket().expect("the node is ready, so its containerd has a socket");
    let imported = run_with(
        Command::new("ctr").arg("--address").arg(socket).args(["-n", "k8s.io", "images", "import"]).arg(&tar),
        "",
    );
    assert_eq!(imported.code, 0, "{imported:?}");
}

/// Processes whose command line holds all the words, zombies left out.
pub(crate) fn processes(words: &[&str]) -> Vec<u32> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap() {
        let path = entry.unwrap().path();
        let Some(pid) = path.file_name().and_then(|name| name.to_str()?.parse().ok()) else { continue };
        // A process may end while we look.
        let Ok(line) = fs::read(path.join("cmdline")) else { continue };
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        if !line.is_empty() && words.iter().all(|word| line.contains(word)) {
            found.push(pid);
        }
    }
    found
}
