//! Pages that containerd and its first shims read of their programs to start, and do not need while nothing happens, go
//! out of memory: two thirds of them, 30 MB on a node with one pod. Those that a next pod needs are read again.

use std::convert::Infallible;
use std::path::Path;
use std::time::Duration;

use base::chain::Chain;
use base::task::Group;
use tracing::{debug, warn};

/// After containerd's start: by then the node's own pods run.
const SETTLED: Duration = Duration::from_secs(10);

/// Waits until containerd has settled, advises the kernel once, and never ends. Cancel safe.
pub(super) async fn settle(pid: Option<u32>, socket: &Path) -> Infallible {
    tokio::time::sleep(SETTLED).await;
    let socket = socket.to_owned();
    let advised = Group::blocking(move || {
        for pid in pid.into_iter().chain(shims(&socket)) {
            match base::sys::let_go_of_program_text_of(pid) {
                Ok(n_bytes) => debug!(pid, n_bytes, "what the start read of the program may leave memory"),
                // An older kernel, or a shim that has ended.
                Err(err) => debug!(pid, err = %err, "the program's pages stay in memory"),
            }
        }
    });
    if let Err(err) = advised.await {
        warn!(err = %Chain(&err), "cannot advise the kernel about containerd's memory");
    }
    std::future::pending().await
}

/// The shims of the containerd that listens on `socket`: it gives them its address.
pub(super) fn shims(socket: &Path) -> Vec<u32> {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|cmdline| is_shim(&cmdline, socket)))
        .collect()
}

fn is_shim(cmdline: &[u8], socket: &Path) -> bool {
    let mut args = cmdline.split(|byte| *byte == 0);
    let is_program =
        args.next().is_some_and(|program| program.split(|byte| *byte == b'/').next_back().is_some_and(is_shim_name));
    is_program && args.any(|arg| arg == socket.as_os_str().as_encoded_bytes())
}

fn is_shim_name(name: &[u8]) -> bool {
    name.starts_with(b"containerd-shim")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shims_are_told_by_their_containerd() {
        let ours =
            b"/usr/bin/containerd-shim-runc-v2\0-namespace\0k8s.io\0-address\0/run/kedge/containerd/containerd.sock\0";
        assert!(is_shim(ours, Path::new("/run/kedge/containerd/containerd.sock")));
        assert!(!is_shim(ours, Path::new("/run/containerd/containerd.sock")));
        assert!(!is_shim(
            b"/usr/bin/ctr\0--address\0/run/kedge/containerd/containerd.sock\0",
            Path::new("/run/kedge/containerd/containerd.sock")
        ));
        assert!(!is_shim(b"", Path::new("/run/kedge/containerd/containerd.sock")));
    }
}
