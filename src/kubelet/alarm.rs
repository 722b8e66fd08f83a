//! The alarm that wakes the eviction manager: the kernel says when memory runs short, and a pod that eats it is seen
//! before the next look.
//!
//! On v2 that is a trigger of pressure stall information and the event that all pods together have reached their limit;
//! on v1 thresholds of usage (upstream's memcg notification, pkg/kubelet/eviction/memory_threshold_notifier_others.go
//! v1.36).

use std::fs::{self, OpenOptions};
use std::future::pending;
use std::io::{self, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use futures_util::future::select_all;
use nix::fcntl::OFlag;
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tracing::{info, warn};

use crate::cgroups::Cgroups;

const PRESSURE: &str = "/proc/pressure/memory";
/// Some process waits for memory for a tenth of a second within one. In microseconds, as the kernel wants it.
const STALL: &[u8] = b"some 100000 1000000\0";

/// A use of memory that is to be told of on v1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Level<'a> {
    /// The folder of the group.
    pub(crate) group: &'a Path,
    /// Usage in bytes, page cache counted.
    pub(crate) bytes: u64,
}

/// Everything that rings.
pub(crate) struct Alarm {
    stalls: Option<Bell>,
    /// Of groups that come and go, and of levels that move: set anew before each wait.
    groups: Vec<Bell>,
    /// The kernel would not, and that was said.
    is_refused: bool,
}

/// One descriptor, and what is ready when the kernel rings.
struct Bell {
    fd: AsyncFd<OwnedFd>,
    rings: Interest,
}

impl Alarm {
    /// Hangs up what lasts. A kernel that cannot ring is named once.
    pub(crate) fn new(cgroups: &Cgroups) -> Alarm {
        let untold = |err: &io::Error| {
            info!(
                err = %err,
                "the kernel does not tell when memory runs short: it has no psi=1 on its command line"
            );
        };
        let stalls = if cgroups.is_unified() { stalls(Path::new(PRESSURE)).inspect_err(untold).ok() } else { None };
        Alarm { stalls, groups: Vec::new(), is_refused: false }
    }

    /// One that never rings.
    pub(crate) fn silent() -> Alarm {
        Alarm { stalls: None, groups: Vec::new(), is_refused: false }
    }

    /// Hangs up the rest for the next wait.
    pub(crate) fn set(&mut self, cgroups: &Cgroups, levels: &[Level<'_>]) {
        self.groups.clear();
        if cgroups.is_unified() {
            let events = cgroups.all_pods_dir("memory").join("memory.events.local");
            // systemd makes the slice with the first pod.
            if events.exists() {
                self.hang(at_the_limit(&events));
            }
            return;
        }
        levels.iter().for_each(|level| self.hang(threshold(level)));
    }

    fn hang(&mut self, bell: io::Result<Bell>) {
        match bell {
            Ok(bell) => self.groups.push(bell),
            Err(err) if !self.is_refused => {
                self.is_refused = true;
                warn!(err = %err, "the kernel will not tell when pods reach their limit of memory");
            }
            Err(_was_said) => {}
        }
    }

    /// Waits until something rings. Cancel safe: what has rung rings again.
    pub(crate) async fn rings(&self) {
        let bells: Vec<_> = self.stalls.iter().chain(&self.groups).map(|bell| Box::pin(bell.ring())).collect();
        if bells.is_empty() {
            return pending().await;
        }
        select_all(bells).await;
    }
}

impl Bell {
    async fn ring(&self) {
        let Ok(mut ready) = self.fd.ready(self.rings).await else { return pending().await };
        // The events themselves say nothing that a look does not.
        let mut events = [0; 4096];
        if self.rings == Interest::READABLE {
            while rustix::io::read(self.fd.get_ref(), &mut events).is_ok_and(|n| n > 0) {}
        }
        ready.clear_ready();
    }
}

/// Spec: Documentation/accounting/psi.rst. Kernels that were built without have no such file.
fn stalls(file: &Path) -> io::Result<Bell> {
    let mut trigger = OpenOptions::new().read(true).write(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(file)?;
    trigger.write_all(STALL)?;
    Ok(Bell { fd: base::sys::watched_for_urgent(trigger.into())?, rings: Interest::PRIORITY })
}

/// The kernel writes to the file when the group reaches its limit, and when something in it is killed for that.
fn at_the_limit(events: &Path) -> io::Result<Bell> {
    let fd = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
    inotify::add_watch(&fd, events, WatchFlags::MODIFY)?;
    Ok(Bell { fd: base::sys::watched(fd)?, rings: Interest::READABLE })
}

/// Spec: Documentation/admin-guide/cgroup-v1/memory.rst, "Memory thresholds".
fn threshold(level: &Level<'_>) -> io::Result<Bell> {
    let usage = fs::File::open(level.group.join("memory.usage_in_bytes"))?;
    let counter = base::sys::event_counter()?;
    let words = format!("{} {} {}", counter.as_raw_fd(), usage.as_raw_fd(), level.bytes);
    fs::write(level.group.join("cgroup.event_control"), words)?;
    Ok(Bell { fd: base::sys::watched(counter)?, rings: Interest::READABLE })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    async fn rang(alarm: &Alarm) -> bool {
        tokio::time::timeout(Duration::from_millis(200), alarm.rings()).await.is_ok()
    }

    #[tokio::test]
    async fn a_bell_rings_once_for_what_has_happened_and_again_for_what_comes() {
        let dir = tempfile::tempdir().unwrap();
        let events = dir.path().join("memory.events.local");
        fs::write(&events, "max 0\n").unwrap();
        let alarm = Alarm { stalls: None, groups: vec![at_the_limit(&events).unwrap()], is_refused: false };
        assert!(!rang(&alarm).await);
        for n in ["max 1\n", "max 2\n"] {
            fs::write(&events, n).unwrap();
            assert!(rang(&alarm).await);
            assert!(!rang(&alarm).await, "what was heard is over");
        }
    }

    #[tokio::test]
    async fn nothing_rings_where_the_kernel_cannot() {
        assert!(stalls(Path::new("/proc/pressure/nothing")).is_err());
        assert!(!rang(&Alarm::silent()).await);
    }
}
