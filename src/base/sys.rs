//! The only room for unsafe code, and for system calls that no safe crate offers. One unsafe line so far.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;

use tokio::io::unix::AsyncFd;

/// Tells systemd (or whoever set `NOTIFY_SOCKET`) about the state, e.g. `READY=1`. Without the variable nothing happens.
///
/// Spec: `sd_notify(3)`. An address that starts with `@` is an abstract socket.
pub fn sd_notify(socket: Option<&str>, state: &str) -> io::Result<()> {
    use std::os::linux::net::SocketAddrExt as _;
    use std::os::unix::net::SocketAddr;
    let Some(socket) = socket.filter(|s| !s.is_empty()) else { return Ok(()) };
    let addr = match socket.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(socket)?,
    };
    UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &addr).map(drop)
}

/// A descriptor whose readiness the runtime waits for (a pidfd, an inotify watch). Panics outside of the runtime, as tokio does.
#[allow(unsafe_code, reason = "this is the place the ban points to")]
pub fn watched(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: the descriptor is open and owned by the AsyncFd from here to its end, so it names the same file all the while.
    Ok(unsafe { AsyncFd::register(fd) }?)
}
