//! A network file system whose server stops answering. This kernel may have no client of NFS, so a small FUSE server
//! stands in for one: while it holds the answers back, every caller waits as it would for a hard NFS mount.
//!
//! FUSE: the protocol of Linux, `include/uapi/linux/fuse.h` 7.31. One folder with one file, `page`; nothing is cached.

#![expect(clippy::disallowed_types, reason = "a Condvar takes no other Mutex; a panic here ends the test")]

use std::fs::File;
use std::io::{BufRead as _, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use rustix::mount::{MountFlags, mount};

use crate::hosts::{Host, wait_for};

/// Where the server of this process mounts itself; in the environment of the program that runs inside of a machine.
const AT: &str = "KEDGE_TEST_FUSE_AT";
/// The longest request: the kernel wants at least so much room.
const REQUEST_BYTES_MAX: usize = 256 * 1024;
const PAGE: &[u8] = b"from afar\n";
const ROOT_NODE: u64 = 1;
const PAGE_NODE: u64 = 2;

/// The file system of one machine, as the test holds it.
pub(crate) struct Afar {
    server: Child,
    orders: ChildStdin,
    /// Where it is mounted, inside.
    pub(crate) path: PathBuf,
}

impl Afar {
    /// Mounts it on a machine.
    pub(crate) fn mount_on(host: &Host) -> Afar {
        let path = host.dir.join("afar");
        std::fs::create_dir_all(&path).unwrap();
        let mut command = host.command(std::env::current_exe().unwrap());
        command.args(["--exact", "hung::a_file_system_that_hangs_at_will", "--nocapture"]).env(AT, &path);
        let log = File::create(host.dir.join("afar.log")).unwrap();
        let mut server = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(log).spawn().unwrap();
        let orders = server.stdin.take().unwrap();
        wait_for("a file system from afar", Duration::from_secs(30), || {
            let said = host.said("cat", &[path.join("page").to_str().unwrap()]);
            if said.text.as_bytes() == PAGE { Ok(()) } else { Err(format!("{}{}", said.text, host.log("afar.log"))) }
        });
        Afar { server, orders, path }
    }

    /// From now on nobody gets an answer.
    pub(crate) fn hang(&mut self) {
        self.orders.write_all(b"hang\n").unwrap();
    }

    /// All get theirs, those that waited too.
    pub(crate) fn answer(&mut self) {
        self.orders.write_all(b"answer\n").unwrap();
    }
}

impl Drop for Afar {
    fn drop(&mut self) {
        // With its server the kernel gives the file system up: whoever still waits gets an error.
        let _gone = (self.server.kill(), self.server.wait());
    }
}

/// Not a test but the server, in the program that [`Afar::mount_on`] starts.
#[test]
fn a_file_system_that_hangs_at_will() {
    let Some(at) = std::env::var_os(AT) else { return };
    let device = File::options().read(true).write(true).open("/dev/fuse").unwrap();
    let options = format!("fd={},rootmode=40000,user_id=0,group_id=0,allow_other", device.as_raw_fd());
    let options = std::ffi::CString::new(options).unwrap();
    mount("afar", Path::new(&at), "fuse.afar", MountFlags::empty(), Some(options.as_c_str())).unwrap();
    let hangs = Arc::new((Mutex::new(false), Condvar::new()));
    let orders = Arc::clone(&hangs);
    std::thread::spawn(move || {
        for order in std::io::stdin().lock().lines().map_while(Result::ok) {
            *orders.0.lock().unwrap() = order == "hang";
            orders.1.notify_all();
        }
        // The test is gone.
        std::process::exit(0);
    });
    serve(device, &hangs);
}

fn serve(mut device: File, hangs: &(Mutex<bool>, Condvar)) {
    let mut request = vec![0; REQUEST_BYTES_MAX];
    loop {
        let n = match device.read(&mut request) {
            Ok(n) => n,
            // Unmounted.
            Err(err) if err.raw_os_error() == Some(rustix::io::Errno::NODEV.raw_os_error()) => return,
            // The caller of this one has gone.
            Err(_) => continue,
        };
        drop(hangs.1.wait_while(hangs.0.lock().unwrap(), |hangs| *hangs).unwrap());
        let number = |at: usize| u32::from_ne_bytes(request[at..at + 4].try_into().unwrap());
        let node = u64::from_ne_bytes(request[16..24].try_into().unwrap());
        let Some(answer) = answer(number(4), node, &request[40..n]) else { continue };
        let (error, body) = match answer {
            Ok(body) => (0, body),
            Err(errno) => (-errno.raw_os_error(), Vec::new()),
        };
        let mut reply = u32::try_from(16 + body.len()).unwrap().to_ne_bytes().to_vec();
        reply.extend(error.to_ne_bytes());
        reply.extend_from_slice(&request[8..16]);
        reply.extend(body);
        // A caller that was killed meanwhile has none to take it.
        let _taken = device.write(&reply);
    }
}

/// The answer to one request; `None` where there is none to give.
fn answer(opcode: u32, node: u64, rest: &[u8]) -> Option<Result<Vec<u8>, rustix::io::Errno>> {
    use rustix::io::Errno;
    Some(match opcode {
        // LOOKUP: node, generation, and how long both may be kept: not at all.
        1 if node == ROOT_NODE && rest == b"page\0" => {
            Ok([words(&[PAGE_NODE, 1, 0, 0, 0]), attributes(PAGE_NODE)].concat())
        }
        1 => Err(Errno::NOENT),
        // FORGET, INTERRUPT, BATCH_FORGET.
        2 | 36 | 42 => return None,
        // GETATTR.
        3 => Ok([words(&[0, 0]), attributes(node)].concat()),
        // OPEN, OPENDIR: no handle; straight to us.
        14 | 27 => Ok(words(&[0, 1])),
        // READ: handle, offset, size.
        15 => Ok(if rest[8..16] == [0; 8] { PAGE.to_vec() } else { Vec::new() }),
        // STATFS: blocks, free ones, those for everybody, files, free ones; sizes of a block and a name; nothing more.
        17 => Ok([words(&[1000, 500, 500, 100, 50]), halves(&[4096, 255, 4096, 0, 0, 0, 0, 0, 0, 0])].concat()),
        // RELEASE, FLUSH, RELEASEDIR, FSYNC, ACCESS, DESTROY.
        18 | 25 | 29 | 20 | 34 | 38 => Ok(Vec::new()),
        // INIT: version, read-ahead, no flags; requests in the background, bytes of a write, no more.
        26 => Ok(halves(&[7, 31, 0, 0, 16 << 16 | 16, 4096, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0])),
        // READDIR: node, place of the next one, length and type of the name, the name, filled up to eight bytes.
        28 if rest[8..16] == [0; 8] => Ok([words(&[PAGE_NODE, 1]), halves(&[4, 8]), b"page\0\0\0\0".to_vec()].concat()),
        28 => Ok(Vec::new()),
        _ => Err(Errno::NOSYS),
    })
}

/// Number, size, blocks, three times (their parts too), mode, links, owner, and so on.
fn attributes(node: u64) -> Vec<u8> {
    let (mode, size) = if node == ROOT_NODE { (0o040_755, 0) } else { (0o100_644, PAGE.len() as u64) };
    [words(&[node, size, 1, 0, 0, 0]), halves(&[0, 0, 0, mode, 2, 0, 0, 0, 4096, 0])].concat()
}

fn words(of: &[u64]) -> Vec<u8> {
    of.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

fn halves(of: &[u32]) -> Vec<u8> {
    of.iter().flat_map(|half| half.to_ne_bytes()).collect()
}
