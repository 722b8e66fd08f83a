//! Signals for a container's first process, over containerd's own service: the CRI of older versions knows no signal
//! but the image's.

use std::path::Path;
use std::time::Duration;

use containerd_client::services::v1::KillRequest;
use containerd_client::services::v1::tasks_client::TasksClient;
use tonic::metadata::MetadataValue;
use tonic::{Request, Status};

use super::cri::channel;

const TIMEOUT: Duration = Duration::from_secs(10);

/// Sends a signal.
pub(crate) async fn signal(socket: &Path, container: &str, signal: u32) -> Result<(), Status> {
    let mut request =
        Request::new(KillRequest { container_id: container.to_owned(), exec_id: String::new(), signal, all: false });
    request.metadata_mut().insert("containerd-namespace", MetadataValue::from_static("k8s.io"));
    request.set_timeout(TIMEOUT);
    TasksClient::new(channel(socket)).kill(request).await.map(drop)
}

/// The number of a signal by its name as the API spells it, e.g. `SIGUSR1`, `SIGRTMIN+3`.
pub(crate) fn number(name: &str) -> Option<u32> {
    if let Some(above) = name.strip_prefix("SIGRTMIN") {
        return Some(34 + if above.is_empty() { 0 } else { above.strip_prefix('+')?.parse::<u32>().ok()? });
    }
    if let Some(below) = name.strip_prefix("SIGRTMAX") {
        return 64u32.checked_sub(if below.is_empty() { 0 } else { below.strip_prefix('-')?.parse().ok()? });
    }
    name.parse::<nix::sys::signal::Signal>().ok().and_then(|signal| u32::try_from(signal as i32).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_have_linux_numbers() {
        assert_eq!(
            (number("SIGTERM"), number("SIGUSR1"), number("SIGRTMIN+3"), number("SIGRTMAX-1")),
            (Some(15), Some(10), Some(37), Some(63))
        );
        assert_eq!(number("SIGNOPE"), None);
    }
}
