//! The only room for unsafe code, and for system calls that no safe crate offers. Few lines, each with its reason.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Tells systemd (or whoever set `NOTIFY_SOCKET`) about the state, e.g. `READY=1`. Without the variable nothing
/// happens.
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

/// A descriptor whose readiness the runtime waits for (a pidfd, an inotify watch). Panics outside of the runtime, as
/// tokio does.
#[allow(unsafe_code, reason = "this is the place the ban points to")]
pub fn watched(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: the descriptor is open and owned by the AsyncFd from here to its end, so it names the same file all the
    // while.
    Ok(unsafe { AsyncFd::register(fd) }?)
}

/// A descriptor on which the kernel tells of something urgent (`POLLPRI` of `poll(2)`), e.g. of a pressure that crosses
/// a bound. Panics outside of the runtime, as tokio does.
#[allow(unsafe_code, reason = "this is the place the ban points to")]
pub fn watched_for_urgent(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: as in `watched`.
    Ok(unsafe { AsyncFd::register_with_interest(fd, Interest::PRIORITY) }?)
}

/// A counter that the kernel adds to when something happens: it becomes readable, and a read of eight bytes sets it to
/// zero.
///
/// Errors: the process has no descriptor left. Spec: `eventfd(2)`.
#[allow(unsafe_code, reason = "this is the place the ban points to")]
pub fn event_counter() -> io::Result<OwnedFd> {
    // SAFETY: the call takes no pointer. WHY: rustix offers it only with a feature that nothing else here wants.
    let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made the descriptor, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Gives back the pages of this program's own file that lie in memory: what starting took, and nobody looks at again.
/// Those that are still needed come back by themselves, from the page cache. Answers with the bytes of the mappings.
///
/// Errors: /proc is not readable, or the kernel refuses.
#[allow(unsafe_code, reason = "this is the place the ban points to")]
pub fn let_go_of_program_text() -> io::Result<usize> {
    let program = std::fs::read_link("/proc/self/exe")?;
    let maps = std::fs::read_to_string("/proc/self/smaps")?;
    let mut n_bytes = 0;
    for (start, end) in clean_mappings(&maps, &program) {
        let advise = |advice| {
            // SAFETY: the mapping is private, backed by the program's file, read-only and without a page of its own
            // (`Anonymous: 0`), so every page that is read again holds the same bytes as before.
            let answer = unsafe { libc::madvise(std::ptr::with_exposed_provenance_mut(start), end - start, advice) };
            if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
        };
        // Also out of the page cache, whose large folios would come back whole; kernels before 5.4 cannot.
        let _only_from_this_process_then = advise(libc::MADV_PAGEOUT);
        advise(libc::MADV_DONTNEED)?;
        n_bytes += end - start;
    }
    Ok(n_bytes)
}

/// The same for another process, e.g. a daemon that this one started: what its start read of its program goes out of
/// memory, and what it needs again comes back from the disk. Pages that other processes use stay. Answers with the
/// bytes of the mappings.
///
/// Errors: there is no such process, it is not ours to advise, or the kernel is older than 5.10.
#[allow(unsafe_code, reason = "this is the place the ban points to")]
pub fn let_go_of_program_text_of(pid: u32) -> io::Result<usize> {
    let number = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
    let process =
        rustix::process::pidfd_open(number.ok_or(io::ErrorKind::InvalidInput)?, rustix::process::PidfdFlags::empty())?;
    let program = std::fs::read_link(format!("/proc/{pid}/exe"))?;
    let maps = std::fs::read_to_string(format!("/proc/{pid}/smaps"))?;
    let mut n_bytes = 0;
    for (start, end) in clean_mappings(&maps, &program) {
        let range = libc::iovec { iov_base: std::ptr::with_exposed_provenance_mut(start), iov_len: end - start };
        let (fd, advice, one, flags) = (process.as_raw_fd(), libc::MADV_PAGEOUT, 1_usize, 0_u32);
        // SAFETY: the kernel reads one iovec, which lives here; the addresses in it are the other process's, and this
        // advice changes nothing that a process can read.
        let answer = unsafe { libc::syscall(libc::SYS_process_madvise, fd, &raw const range, one, advice, flags) };
        if answer < 0 {
            return Err(io::Error::last_os_error());
        }
        n_bytes += end - start;
    }
    Ok(n_bytes)
}

/// Gives memory back that is free and still held: the allocator keeps what a burst took (a long list, many objects
/// deleted), and lets go of it only when it is asked for more, which an idle process never does.
///
/// Each thread can do it for itself alone, and what a thread took it keeps, whoever frees it: the others are asked to,
/// see [`give_back_if_asked`].
pub fn give_back_free_memory() {
    ASKED.fetch_add(1, Ordering::Relaxed);
    give_back_if_asked();
}

/// Counts how often somebody wanted memory to be given back.
static ASKED: AtomicU64 = AtomicU64::new(0);

/// Gives this thread's free memory back if it was asked for since the last time; else it costs nothing. For threads
/// that last: before they sleep.
pub fn give_back_if_asked() {
    thread_local! {
        static DONE: Cell<u64> = const { Cell::new(0) };
    }
    let asked = ASKED.load(Ordering::Relaxed);
    // A thread that ends has given up what it had.
    if DONE.try_with(|done| done.replace(asked)).is_ok_and(|done| done != asked) {
        collect();
    }
}

fn collect() {
    #[allow(unsafe_code, reason = "this is the place the ban points to")]
    // SAFETY: the signature is that of mimalloc.h. WHY: the crate offers it only with a feature that wants one more
    // crate.
    unsafe extern "C" {
        safe fn mi_collect(force: bool);
    }
    // The reference makes the allocator part of every program with this function, be it the global one there or not.
    let _linked = libmimalloc_sys::mi_free as unsafe extern "C" fn(_);
    mi_collect(true);
}

/// The mappings of `program` in a text of `/proc/PID/smaps` that nobody can write and nobody has written. Spec:
/// `proc_pid_smaps(5)`.
fn clean_mappings(smaps: &str, program: &Path) -> Vec<(usize, usize)> {
    let program = program.to_string_lossy();
    let (mut clean, mut this) = (Vec::new(), None);
    for line in smaps.lines() {
        let mut words = line.split_whitespace();
        let (first, second) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        if let Some((start, end)) = first.split_once('-') {
            let number = |text| usize::from_str_radix(text, 16).ok();
            let ours = matches!(second, "r-xp" | "r--p") && line.ends_with(&*program);
            this = number(start).zip(number(end)).filter(|_| ours);
        } else if first == "Anonymous:" && second == "0" {
            clean.extend(this.take());
        }
    }
    clean
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_never_written_is_let_go() {
        let smaps = "00400000-00500000 r--p 00000000 fe:00 12 /usr/bin/kedge\nRss: 8 kB\nAnonymous:             0 kB\n\
                     00500000-00600000 r-xp 00100000 fe:00 12 /usr/bin/kedge\nAnonymous:             0 kB\n\
                     00600000-00700000 r--p 00200000 fe:00 12 /usr/bin/kedge\nAnonymous:             4 kB\n\
                     00700000-00800000 rw-p 00300000 fe:00 12 /usr/bin/kedge\nAnonymous:             0 kB\n\
                     7f0000000000-7f0000001000 r-xp 00000000 00:00 0 [vdso]\nAnonymous:             0 kB\n";
        assert_eq!(
            clean_mappings(smaps, Path::new("/usr/bin/kedge")),
            [(0x40_0000, 0x50_0000), (0x50_0000, 0x60_0000)]
        );
    }

    #[test]
    fn free_memory_can_be_given_back_at_any_time() {
        let kept = vec![7_u8; 1 << 20];
        give_back_free_memory();
        assert!(kept.iter().all(|byte| *byte == 7));
    }

    #[test]
    fn another_process_goes_on_without_its_pages() {
        let mut other = std::process::Command::new("cat")
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        // Older kernels and sandboxes refuse it; what matters is what the other one does then.
        let _advised = let_go_of_program_text_of(other.id());
        std::io::Write::write_all(&mut other.stdin.take().unwrap(), b"still here").unwrap();
        assert_eq!(other.wait_with_output().unwrap().stdout, b"still here");
        assert!(let_go_of_program_text_of(0).is_err());
    }

    #[test]
    fn the_program_goes_on_without_its_pages() {
        assert!(let_go_of_program_text().unwrap() > 0);
        assert_eq!((0..100_u64).map(std::hint::black_box).sum::<u64>(), 4950);
    }
}
