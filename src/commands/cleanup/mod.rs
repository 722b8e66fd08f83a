//! `kedge killall`: stops what kedge started on this machine and takes its mounts, links, routes and nft tables away.
//! State (database, images, volumes) stays. `kedge uninstall` (uninstall.rs) does this first and then removes files.
//!
//! It never removes anything through a mount: mounts are detached, folders are left.

mod attachments;
pub(crate) mod error;
mod owned;
mod uninstall;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use base::chain::Chain;
use base::layout::Layout;
use base::program;
use clap::Args;
use error::{CleanupError, StepError};
use kubelet::runtime::cri::Cri;
use network::leftovers::{self, Link, Machine, Route};
use nix::mount::{MntFlags, umount2};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::runtime::Runtime;

use crate::flags::shared::StateArgs;
use crate::process::work_dir;

/// A server has this long to stop by itself.
const STOP_TIMEOUT: Duration = Duration::from_secs(20);
/// A program of the machine does a step within this; a service may take its time to stop.
const PROGRAM_LIMIT: Duration = Duration::from_secs(180);
/// Between two looks whether a process is gone.
const LOOK: Duration = Duration::from_millis(50);
/// Devices of kedge: the pods' bridge and the overlay's tunnel.
const LINKS: [&str; 2] = [base::traces::BRIDGE, base::traces::TUNNEL];

/// Stops and removes, printing each step first; with `--dry-run` only prints.
pub(crate) fn killall(args: &KillallArgs) -> Result<(), CleanupError> {
    let mut cleaner = Cleaner::new(&args.state.layout, if args.dry_run { Mode::Print } else { Mode::Act })?;
    cleaner.stop_all()?;
    cleaner.outcome()
}

/// Removes kedge from this machine: prints the plan, then does it; with `--dry-run` only prints.
pub(crate) fn uninstall(args: &UninstallArgs) -> Result<(), CleanupError> {
    println!("# the plan; pods stop, and these are removed");
    uninstall::run(args, Cleaner::new(&args.state.layout, Mode::Print)?)?;
    if args.dry_run {
        return Ok(());
    }
    println!("# doing it");
    uninstall::run(args, Cleaner::new(&args.state.layout, Mode::Act)?)
}

/// Whether steps are done, or only printed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Print,
    Act,
}

struct Cleaner {
    mode: Mode,
    failed: usize,
    layout: Layout,
    runtime: Arc<Runtime>,
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
    stat.rsplit(')')
        .next()
        .and_then(|rest| rest.trim().chars().next())
        .is_some_and(|state| state != 'Z' && state != 'X')
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
    fn new(layout: &Layout, mode: Mode) -> Result<Cleaner, CleanupError> {
        if !nix::unistd::geteuid().is_root() {
            return Err(CleanupError::NotRoot);
        }
        if !owned::may_clean(layout)? {
            return Err(CleanupError::NotOurs { path: layout.data_dir().to_owned() });
        }
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(CleanupError::Runtime)?;
        Ok(Cleaner { mode, failed: 0, layout: layout.clone(), runtime: Arc::new(runtime) })
    }

    fn stop_all(&mut self) -> Result<(), CleanupError> {
        self.stop_services();
        self.stop_server()?;
        self.stop_pods()?;
        self.stop_processes()?;
        self.end_attachments();
        self.remove_runtime_rests();
        self.detach_mounts()?;
        self.remove_network();
        Ok(())
    }

    fn outcome(self) -> Result<(), CleanupError> {
        if self.failed == 0 { Ok(()) } else { Err(CleanupError::Steps { n: self.failed }) }
    }

    /// Stops services first: a supervisor would start again what is ended below.
    fn stop_services(&mut self) {
        for service in uninstall::installed(base::layout::INSTALLED, &self.layout) {
            let (name, file) = (service.name.as_str(), service.path.display().to_string());
            match service.kind.as_str() {
                "systemd" if may_run(&said("systemctl", &["show", "--property=ActiveState,Job", name])) => {
                    self.step(&format!("stop service {name}"), || run("systemctl", &["stop", name]));
                }
                "openrc" if succeeds("rc-service", &[name, "status"]) => {
                    self.step(&format!("stop service {name}"), || run("rc-service", &[name, "stop"]));
                }
                "sysv" if succeeds(&file, &["status"]) => {
                    self.step(&format!("stop service {name}"), || run(&file, &["stop"]))
                }
                _ => {}
            }
        }
    }

    /// Prints a step and does it.
    fn step(&mut self, what: &str, act: impl FnOnce() -> Result<(), StepError>) {
        println!("{what}");
        if self.mode == Mode::Print {
            return;
        }
        if let Err(err) = act() {
            eprintln!("  failed: {}", Chain(&err));
            self.failed += 1;
        }
    }

    fn stop_server(&mut self) -> Result<(), CleanupError> {
        let layout = self.layout.clone();
        let ours = |p: &Process| {
            let kedge = Path::new(&p.args[0]).file_name().is_some_and(|name| name == "kedge");
            let role = p.args.get(1).is_some_and(|role| role == "server" || role == "agent");
            kedge && role && u32::try_from(p.pid).is_ok_and(|pid| work_dir::works_in(&p.args, pid, &layout))
        };
        for process in processes()?.into_iter().filter(ours) {
            self.step(&format!("stop kedge {}, process {}", process.args[1], process.pid), || end(process.pid));
        }
        Ok(())
    }

    /// Asks containerd to stop pods, which runs CNI DEL and unmounts properly.
    fn stop_pods(&mut self) -> Result<(), CleanupError> {
        let socket = self.layout.run().containerd_socket();
        if !socket.exists() {
            return Ok(());
        }
        let runtime = Arc::clone(&self.runtime);
        let (cri, sandboxes) = runtime.block_on(async {
            let cri = Cri::connect(&socket);
            // A containerd that does not answer has its processes ended below.
            let sandboxes = cri.sandboxes(None).await.unwrap_or_default();
            (cri, sandboxes)
        });
        // A pod whose sandbox was made anew has the old one beside it.
        let mut pods: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for sandbox in sandboxes {
            let name = sandbox.metadata.map(|m| format!("{}/{}", m.namespace, m.name)).unwrap_or_default();
            pods.entry(name).or_default().push(sandbox.id);
        }
        for (name, sandboxes) in pods {
            self.step(&format!("stop pod {name}"), || {
                runtime.block_on(async {
                    for id in &sandboxes {
                        cri.stop_sandbox(id).await?;
                        cri.remove_sandbox(id).await?;
                    }
                    Ok(())
                })
            });
        }
        Ok(())
    }

    /// Ends containerd and what is left of its shims and containers, all of them recognised by our state folder.
    fn stop_processes(&mut self) -> Result<(), CleanupError> {
        let state = self.layout.run().containerd().display().to_string();
        let root = self.layout.agent().containerd().display().to_string();
        let ours = |p: &Process| {
            let program = Path::new(&p.args[0]).file_name().unwrap_or_default().to_string_lossy().into_owned();
            let runs_pods = program.starts_with("containerd") || program == "runc";
            let names_us = p.args.iter().any(|arg| arg.contains(&state) || arg.contains(&root));
            (runs_pods && names_us).then_some(program)
        };
        let is_daemon = |program: &str| program.starts_with("containerd") && !program.starts_with("containerd-shim");
        for process in processes()?.into_iter().filter(|p| ours(p).is_some_and(|program| is_daemon(&program))) {
            self.step(&format!("stop containerd, process {}", process.pid), || end(process.pid));
        }
        // Looked for when no containerd is left that starts another one. A runc is here whose shim has ended before it.
        for process in processes()? {
            let Some(program) = ours(&process).filter(|program| !is_daemon(program)) else { continue };
            self.step(&format!("stop {program}, process {}", process.pid), || {
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
        let text =
            fs::read_to_string(base::mounts::TABLE).map_err(|source| CleanupError::Look { what: "mounts", source })?;
        for point in owned::mounts(&text, &owned::folders_of_mounts(&self.layout)) {
            self.step(&format!("unmount {}", point.display()), || {
                Ok(umount2(&point, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW)?)
            });
        }
        Ok(())
    }

    fn remove_network(&mut self) {
        self.remove_cables();
        // A kernel without nftables has no table of ours.
        for (family, name) in leftovers::tables().unwrap_or_default() {
            self.step(&format!("remove nft table {family} {name}"), || Ok(leftovers::remove_table((family, name))?));
        }
        match self.runtime.block_on(async { Machine::here()?.links().await }) {
            Ok(links) => links.iter().filter(|link| LINKS.contains(&link.name.as_str())).for_each(|link| {
                self.remove_link(link);
            }),
            Err(err) => self.step("look for links", || Err(err.into())),
        }
        match self.runtime.block_on(async { Machine::here()?.our_routes().await }) {
            Ok(routes) => routes.iter().for_each(|route| self.remove_route(route)),
            Err(err) => self.step("look for routes", || Err(err.into())),
        }
    }

    fn remove_link(&mut self, link: &Link) {
        let runtime = Arc::clone(&self.runtime);
        self.step(&format!("remove link {}", link.name), || {
            Ok(runtime.block_on(async { Machine::here()?.remove_link(link).await })?)
        });
    }

    fn remove_route(&mut self, route: &Route) {
        let runtime = Arc::clone(&self.runtime);
        self.step(&format!("remove route {}", route.net), || {
            Ok(runtime.block_on(async { Machine::here()?.remove_route(route).await })?)
        });
    }
}

/// SIGTERM, then SIGKILL for one that does not listen.
fn end(pid: i32) -> Result<(), StepError> {
    let target = Pid::from_raw(pid);
    if kill(target, Signal::SIGTERM).is_err() || wait_gone(pid) {
        return Ok(());
    }
    kill(target, Signal::SIGKILL)?;
    if wait_gone(pid) { Ok(()) } else { Err(StepError::StillRuns) }
}

fn descendants(pid: i32) -> Vec<i32> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    let children: Vec<i32> = children.split_whitespace().filter_map(|child| child.parse().ok()).collect();
    children.iter().flat_map(|child| descendants(*child).into_iter().chain([*child])).collect()
}

fn succeeds(name: &str, args: &[&str]) -> bool {
    program::output(Command::new(name).args(args), b"", PROGRAM_LIMIT).is_ok_and(|output| output.status.success())
}

/// Output of a program, whatever its exit code; nothing if it does not run.
fn said(name: &str, args: &[&str]) -> String {
    let output = program::output(Command::new(name).args(args), b"", PROGRAM_LIMIT);
    output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default()
}

/// Whether a unit of systemd's has processes, or gets them by itself, by what `show` says: one that is starting, waits
/// for its next start, or is `inactive` while its start is queued behind another unit (the network, after boot), would
/// begin in the midst of a cleanup. One without a job that is at rest is left: to stop a unit that is not there any
/// more is an error. Spec: org.freedesktop.systemd1(5), "ActiveState", "Job".
fn may_run(shown: &str) -> bool {
    let value =
        |key: &str| shown.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('=')).unwrap_or_default();
    !["", "inactive", "failed"].contains(&value("ActiveState")) || !["", "0"].contains(&value("Job"))
}

fn run(name: &str, args: &[&str]) -> Result<(), StepError> {
    let output = program::output(Command::new(name).args(args), b"", PROGRAM_LIMIT);
    let output = output.map_err(|source| StepError::NotRun { name: name.to_owned(), source })?;
    let said = || String::from_utf8_lossy(&output.stderr).trim().to_owned();
    if output.status.success() { Ok(()) } else { Err(StepError::Program { said: said() }) }
}

/// Flags of `kedge killall`.
#[derive(Clone, Debug, Args)]
pub(crate) struct KillallArgs {
    #[command(flatten)]
    pub(crate) state: StateArgs,
    /// Print what would be done, and do nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// Flags of `kedge uninstall`.
#[derive(Clone, Debug, Args)]
pub(crate) struct UninstallArgs {
    #[command(flatten)]
    pub(crate) state: StateArgs,
    /// Remove volumes of the local-path StorageClass, too.
    #[arg(long)]
    pub(crate) delete_volumes: bool,
    /// Remove everything in /etc/kedge, too.
    #[arg(long)]
    pub(crate) delete_config: bool,
    /// Print the plan, and do nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    // Seen in the virtual machine: the unit was still starting, so it was not stopped, and systemd began it again in
    // the midst of the uninstall.
    #[test]
    fn a_service_that_is_starting_is_stopped_like_one_that_runs() {
        for state in ["active", "activating", "reloading", "deactivating", "maintenance"] {
            assert!(may_run(&format!("ActiveState={state}")), "{state}");
        }
        for shown in ["ActiveState=inactive", "ActiveState=failed\nJob=", "ActiveState=inactive\nJob=0", ""] {
            assert!(!may_run(shown), "{shown}");
        }
    }

    #[test]
    fn a_service_whose_start_is_queued_behind_the_network_is_stopped_though_it_is_inactive() {
        assert!(may_run("ActiveState=inactive\nJob=112"));
        assert!(may_run("Job=112\nActiveState=failed"));
    }
}
