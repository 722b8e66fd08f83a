//! `kedge killall`: stops what kedge started on this machine and takes away what it made. State (database, images, volumes) stays.
//!
//! It never removes anything through a mount: mounts are detached, folders are left.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use kubelet::runtime::cri::Cri;
use nix::mount::{MntFlags, umount2};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::agent::run_dir;
use crate::cli::KillallArgs;

/// A server has this long to stop by itself.
const STOP_TIMEOUT: Duration = Duration::from_secs(20);
/// Between two looks whether a process is gone.
const LOOK: Duration = Duration::from_millis(50);
/// nft tables of kedge, by family and name.
const TABLES: [(&str, &str); 6] = [
    ("ip", "kedge-proxy"),
    ("ip6", "kedge-proxy"),
    ("ip", "kedge-hostport"),
    ("ip6", "kedge-hostport"),
    ("ip", "kedge-masq"),
    ("ip6", "kedge-masq"),
];
const LINK: &str = "cni0";

/// Why cleaning stopped.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CleanupError {
    #[error("kedge killall must run as root: run it with sudo")]
    NotRoot,
    #[error("cannot look at the machine's {what}")]
    Look { what: &'static str, source: io::Error },
    #[error("cannot start the async runtime")]
    Runtime(#[source] io::Error),
    #[error("{n} steps failed; the lines above say which and why")]
    Steps { n: usize },
}

/// Stops and removes, printing each step first; with `--dry-run` only prints.
pub(crate) fn main(args: &KillallArgs) -> Result<(), CleanupError> {
    if !nix::unistd::geteuid().is_root() {
        return Err(CleanupError::NotRoot);
    }
    let mut cleaner = Cleaner { dry_run: args.dry_run, failed: 0, data_dir: args.data_dir.clone(), run_dir: run_dir(&args.data_dir) };
    cleaner.stop_server()?;
    cleaner.stop_pods()?;
    cleaner.stop_processes()?;
    cleaner.detach_mounts()?;
    cleaner.remove_network();
    if cleaner.failed == 0 { Ok(()) } else { Err(CleanupError::Steps { n: cleaner.failed }) }
}

struct Cleaner {
    dry_run: bool,
    failed: usize,
    data_dir: PathBuf,
    run_dir: PathBuf,
}

/// A process that may be ours.
struct Process {
    pid: i32,
    args: Vec<String>,
}

fn processes() -> Result<Vec<Process>, CleanupError> {
    let looked = |source| CleanupError::Look { what: "processes", source };
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").map_err(looked)? {
        let entry = entry.map_err(looked)?;
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        // A process may end while we look.
        let Ok(line) = fs::read(entry.path().join("cmdline")) else { continue };
        let args: Vec<String> = line.split(|b| *b == 0).map(|arg| String::from_utf8_lossy(arg).into_owned()).collect();
        if args.first().is_some_and(|program| !program.is_empty()) {
            found.push(Process { pid, args });
        }
    }
    Ok(found)
}

/// Whether the process runs; one that ended and was not reaped yet does not.
fn runs(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().and_then(|rest| rest.trim().chars().next()).is_some_and(|state| state != 'Z' && state != 'X')
}

fn wait_gone(pid: i32) -> bool {
    let mut waited = Duration::ZERO;
    while runs(pid) {
        if waited >= STOP_TIMEOUT {
            return false;
        }
        std::thread::sleep(LOOK);
        waited += LOOK;
    }
    true
}

impl Cleaner {
    /// Prints a step and does it.
    fn step(&mut self, what: &str, act: impl FnOnce() -> Result<(), String>) {
        println!("{what}");
        if self.dry_run {
            return;
        }
        if let Err(why) = act() {
            eprintln!("  failed: {why}");
            self.failed += 1;
        }
    }

    fn stop_server(&mut self) -> Result<(), CleanupError> {
        let default_dir = self.data_dir == Path::new("/var/lib/kedge");
        let data_dir = self.data_dir.display().to_string();
        let ours = |p: &Process| {
            let kedge = Path::new(&p.args[0]).file_name().is_some_and(|name| name == "kedge");
            let role = p.args.get(1).is_some_and(|role| role == "server");
            let named = p.args.iter().any(|arg| arg.contains("data-dir") || arg == "-d");
            let this_dir = p.args.iter().any(|arg| arg == &data_dir || arg.ends_with(&format!("={data_dir}")));
            kedge && role && (this_dir || default_dir && !named)
        };
        for process in processes()?.into_iter().filter(ours) {
            self.step(&format!("stop kedge server, process {}", process.pid), || end(process.pid));
        }
        Ok(())
    }

    /// Asks containerd to stop pods, which runs CNI DEL and unmounts properly.
    fn stop_pods(&mut self) -> Result<(), CleanupError> {
        let socket = self.run_dir.join("containerd/containerd.sock");
        if !socket.exists() {
            return Ok(());
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(CleanupError::Runtime)?;
        let (cri, sandboxes) = runtime.block_on(async {
            let cri = Cri::connect(&socket);
            // A containerd that does not answer has its processes ended below.
            let sandboxes = cri.sandboxes(None).await.unwrap_or_default();
            (cri, sandboxes)
        });
        for sandbox in sandboxes {
            let name = sandbox.metadata.map(|m| format!("{}/{}", m.namespace, m.name)).unwrap_or_default();
            self.step(&format!("stop pod {name}"), || {
                runtime.block_on(async {
                    let stopped = cri.stop_sandbox(&sandbox.id).await;
                    stopped.map_err(|err| err.to_string())?;
                    cri.remove_sandbox(&sandbox.id).await.map_err(|err| err.to_string())
                })
            });
        }
        Ok(())
    }

    /// Ends containerd and what is left of its shims and containers, all of them recognised by our state folder.
    fn stop_processes(&mut self) -> Result<(), CleanupError> {
        let state = self.run_dir.join("containerd").display().to_string();
        let root = self.data_dir.join("agent/containerd").display().to_string();
        let ours = |p: &Process| {
            let program = Path::new(&p.args[0]).file_name().unwrap_or_default().to_string_lossy().into_owned();
            program.starts_with("containerd") && p.args.iter().any(|arg| arg.contains(&state) || arg.contains(&root))
        };
        let (daemons, shims): (Vec<_>, Vec<_>) =
            processes()?.into_iter().filter(ours).partition(|p| !p.args[0].contains("containerd-shim"));
        for process in daemons {
            self.step(&format!("stop containerd, process {}", process.pid), || end(process.pid));
        }
        for process in shims {
            self.step(&format!("stop shim, process {}", process.pid), || {
                for child in descendants(process.pid) {
                    // It may have ended with another one.
                    let _gone = kill(Pid::from_raw(child), Signal::SIGKILL);
                }
                end(process.pid)
            });
        }
        Ok(())
    }

    /// Detaches mounts in our folders, innermost first.
    fn detach_mounts(&mut self) -> Result<(), CleanupError> {
        let text = fs::read_to_string("/proc/self/mountinfo").map_err(|source| CleanupError::Look { what: "mounts", source })?;
        let ours = [self.run_dir.clone(), self.data_dir.join("agent/kubelet"), self.data_dir.join("agent/containerd")];
        let points = text.lines().filter_map(|line| line.split(' ').nth(4)).map(|point| PathBuf::from(unescape(point)));
        let points: BTreeSet<PathBuf> = points.filter(|point| ours.iter().any(|dir| point.starts_with(dir) && point != dir)).collect();
        for point in points.into_iter().rev() {
            self.step(&format!("unmount {}", point.display()), || umount2(&point, MntFlags::MNT_DETACH).map_err(|err| err.to_string()));
        }
        Ok(())
    }

    fn remove_network(&mut self) {
        for (family, name) in TABLES {
            if succeeds("nft", &["list", "table", family, name]) {
                self.step(&format!("remove nft table {family} {name}"), || run("nft", &["delete", "table", family, name]));
            }
        }
        if Path::new("/sys/class/net").join(LINK).exists() {
            self.step(&format!("remove link {LINK}"), || run("ip", &["link", "delete", LINK]));
        }
    }
}

/// SIGTERM, then SIGKILL for one that does not listen.
fn end(pid: i32) -> Result<(), String> {
    let target = Pid::from_raw(pid);
    if kill(target, Signal::SIGTERM).is_err() || wait_gone(pid) {
        return Ok(());
    }
    kill(target, Signal::SIGKILL).map_err(|err| err.to_string())?;
    if wait_gone(pid) { Ok(()) } else { Err("it does not end".to_owned()) }
}

fn descendants(pid: i32) -> Vec<i32> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    let children: Vec<i32> = children.split_whitespace().filter_map(|child| child.parse().ok()).collect();
    children.iter().flat_map(|child| descendants(*child).into_iter().chain([*child])).collect()
}

/// `\040` and the like, as proc(5) writes blanks in paths.
fn unescape(text: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")].iter().fold(text.to_owned(), |text, (code, is)| text.replace(code, is))
}

fn succeeds(program: &str, args: &[&str]) -> bool {
    Command::new(program).args(args).output().is_ok_and(|output| output.status.success())
}

fn run(program: &str, args: &[&str]) -> Result<(), String> {
    let output = Command::new(program).args(args).output().map_err(|err| format!("{program}: {err}"))?;
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()) }
}
