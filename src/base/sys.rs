//! The only room for unsafe code, and for system calls that no safe crate offers. Empty of unsafe so far.

use std::io;
use std::os::unix::net::UnixDatagram;

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
