//! Where log lines go, and how many of them.

use std::fs::OpenOptions;
use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use tracing_subscriber::EnvFilter;

/// The log file cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error("cannot open the log file {path} (--log)", path = path.display())]
pub(crate) struct LogError {
    path: PathBuf,
    source: std::io::Error,
}

/// Starts logging, to `file` or to standard error. `debug` shows one line a request.
pub(crate) fn start(debug: bool, file: Option<&Path>) -> Result<(), LogError> {
    // Libraries below us log their retries as errors; what matters of them reaches our own lines.
    let filter = if debug { "debug,h2=info,hyper=info,rustls=info,tower=info" } else { "info,openraft=off,kube_client=off" };
    let builder = tracing_subscriber::fmt().with_env_filter(EnvFilter::new(filter)).with_target(debug);
    match file {
        None => builder.with_writer(std::io::stderr).with_ansi(std::io::stderr().is_terminal()).init(),
        Some(path) => {
            let open = OpenOptions::new().create(true).append(true).open(path);
            let file = open.map_err(|source| LogError { path: path.to_owned(), source })?;
            builder.with_writer(Mutex::new(file)).with_ansi(false).init();
        }
    }
    Ok(())
}
