//! Where log lines go, and how many of them.

use std::fs::OpenOptions;
use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::sync::Arc;

use tracing::info;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::SubscriberBuilder;
use tracing_subscriber::fmt::format::{DefaultFields, Format};
use tracing_subscriber::fmt::writer::MakeWriterExt as _;

use crate::flags::roles::CommonArgs;

/// From this on upstream's components tell of single requests.
const VERBOSE: u8 = 4;

/// How much is logged.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Detail {
    Changes,
    EveryRequest,
}

/// The log file cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error("cannot open the log file {path} (--log)", path = path.display())]
pub(crate) struct LogError {
    path: PathBuf,
    source: std::io::Error,
}

/// Starts logging as the flags say: to a file, to standard error, or both; with `--debug` one line a request.
pub(crate) fn start(args: &CommonArgs) -> Result<(), LogError> {
    open(args)?;
    for note in &args.notes {
        info!("{note}");
    }
    Ok(())
}

fn open(args: &CommonArgs) -> Result<(), LogError> {
    let detail = if args.debug || args.verbosity >= VERBOSE { Detail::EveryRequest } else { Detail::Changes };
    let Some(path) = &args.log else {
        standard_error(detail);
        return Ok(());
    };
    let open = OpenOptions::new().create(true).append(true).open(path);
    let file = Arc::new(open.map_err(|source| LogError { path: path.clone(), source })?);
    let builder = builder(detail).with_ansi(false);
    if args.alsologtostderr {
        builder.with_writer(file.and(std::io::stderr)).init();
    } else {
        builder.with_writer(file).init();
    }
    Ok(())
}

/// Starts logging as everything in a pod does.
pub(crate) fn to_stderr() {
    standard_error(Detail::Changes);
}

fn standard_error(detail: Detail) {
    builder(detail).with_writer(std::io::stderr).with_ansi(std::io::stderr().is_terminal()).init();
}

fn builder(detail: Detail) -> SubscriberBuilder<DefaultFields, Format, EnvFilter> {
    // Libraries below us log their retries as errors; what matters of them reaches our own lines.
    let filter = match detail {
        Detail::Changes => "info,openraft=off,kube_client=off",
        Detail::EveryRequest => "debug,h2=info,hyper=info,rustls=info,tower=info",
    };
    tracing_subscriber::fmt().with_env_filter(EnvFilter::new(filter)).with_target(detail == Detail::EveryRequest)
}
