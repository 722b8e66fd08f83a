//! `kedge check-config`: whether this machine has what kedge needs, and what is missing in words that help.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use base::chain::Chain;
use network::NetworkError;
use network::leftovers::{self, Kind, Machine};

/// A program that does not end within this counts as one that does not work: `modprobe` of a kernel that hangs never
/// does.
const LIMIT: Duration = Duration::from_secs(20);

/// How a look went.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Verdict {
    Fine(String),
    /// Kedge runs, something of it does not.
    Lacks(String),
    /// Kedge does not run.
    Fails(String),
}

use Verdict::{Fails, Fine, Lacks};

/// Looks at everything and prints it. Returns whether kedge can run here.
pub(crate) fn is_fit() -> bool {
    let all = [
        ("root", root()),
        ("kernel", kernel(&fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default())),
        ("cgroups", cgroups(Path::new("/sys/fs/cgroup"))),
        ("overlayfs", overlayfs(&fs::read_to_string("/proc/filesystems").unwrap_or_default())),
        ("nftables", nftables()),
        ("bridge", link(Kind::Bridge, "bridge")),
        ("veth", link(Kind::Veth, "veth")),
        ("vxlan", vxlan()),
        ("br_netfilter", bridge_filter()),
        ("ip_forward", forward()),
        (
            "conntrack",
            table(
                Path::new("/proc/sys/net/netfilter/nf_conntrack_max"),
                "connections are not tracked: services need the module nf_conntrack",
            ),
        ),
        (
            "seccomp",
            table(
                Path::new("/proc/sys/kernel/seccomp/actions_avail"),
                "no seccomp: pods that ask for a profile do not start",
            ),
        ),
        ("containerd", containerd()),
        ("runc", program(RUNC)),
        ("ctr", program(CTR)),
        ("clock", clock()),
        ("swap", swap(&fs::read_to_string("/proc/swaps").unwrap_or_default())),
    ];
    let mut failed = 0;
    for (name, verdict) in &all {
        let (word, text) = match verdict {
            Fine(text) => ("ok", text),
            Lacks(text) => ("missing", text),
            Fails(text) => {
                failed += 1;
                ("FAIL", text)
            }
        };
        println!("{name:<14}{word:<9}{text}");
    }
    match failed {
        0 => println!("\nThis machine can run kedge."),
        n => println!("\nThis machine cannot run kedge yet: {n} thing(s) to mend above."),
    }
    failed == 0
}

fn root() -> Verdict {
    if nix::unistd::geteuid().is_root() {
        Fine("running as root".to_owned())
    } else {
        Fails("not root: run it with sudo".to_owned())
    }
}

fn kernel(release: &str) -> Verdict {
    let mut numbers = release.split(['.', '-']).filter_map(|n| n.trim().parse::<u32>().ok());
    match (numbers.next(), numbers.next()) {
        (Some(major), Some(minor)) if (major, minor) >= (5, 4) => Fine(release.trim().to_owned()),
        (Some(major), Some(minor)) if (major, minor) >= (4, 19) => {
            Lacks(format!("{}: older than 5.4, some nftables sets are slow or missing", release.trim()))
        }
        _ => Fails(format!("{}: want 4.19 or newer", release.trim())),
    }
}

/// Controllers of either hierarchy.
fn cgroups(root: &Path) -> Verdict {
    let wanted = ["cpu", "cpuset", "memory", "pids"];
    let (version, have): (u32, Vec<String>) = match fs::read_to_string(root.join("cgroup.controllers")) {
        Ok(text) => (2, text.split_whitespace().map(str::to_owned).collect()),
        Err(_) => (1, wanted.iter().filter(|name| root.join(name).is_dir()).map(|&name| name.to_owned()).collect()),
    };
    let missing: Vec<&str> = wanted.into_iter().filter(|name| !have.iter().any(|h| h == name)).collect();
    match missing.as_slice() {
        [] => Fine(format!("version {version}, {}", wanted.join(" "))),
        missing if missing.contains(&"memory") => Fails(format!(
            "version {version} without {}: on a Raspberry Pi add 'cgroup_memory=1 cgroup_enable=memory' to \
             /boot/firmware/cmdline.txt and reboot",
            missing.join(" ")
        )),
        missing => Fails(format!("version {version} without {}", missing.join(" "))),
    }
}

/// Judges the kernel's list of filesystems.
fn overlayfs(list: &str) -> Verdict {
    let known = list.lines().any(|line| line.split_whitespace().last() == Some("overlay"));
    if known || modprobe("overlay") {
        Fine("there".to_owned())
    } else {
        Lacks("no overlay: images are kept as plain copies, which takes space".to_owned())
    }
}

fn modprobe(module: &str) -> bool {
    said("modprobe", ["-q", module]).is_ok_and(|output| output.status.success())
}

/// Output of a program, or that it does not run.
fn said<A: AsRef<OsStr>>(program: &str, args: impl IntoIterator<Item = A>) -> io::Result<Output> {
    base::program::output(
        Command::new(program).args(args).env("PATH", crate::flags::environment::search_path()),
        b"",
        LIMIT,
    )
}

/// Has the kernel look at tables as kedge makes them, by netlink as kedge does. Nothing is changed.
fn nftables() -> Verdict {
    match leftovers::try_tables() {
        Ok(()) => Fine("there".to_owned()),
        Err(err) => Fails(format!("{} (modules nf_tables, nft_fib_inet, nft_numgen, nft_limit, nft_nat)", Chain(&err))),
    }
}

/// A program that kedge runs, and how to get it.
#[derive(Clone, Copy)]
struct Needed {
    name: &'static str,
    remedy: &'static str,
}

const CONTAINERD: Needed = Needed { name: "containerd", remedy: "install the package containerd" };
const RUNC: Needed = Needed { name: "runc", remedy: "install the package runc" };
const CTR: Needed =
    Needed { name: "ctr", remedy: "install the package containerd: images are imported with its client" };

impl Needed {
    /// Why the program gave no answer.
    fn unanswered(self, err: &io::Error) -> String {
        let Needed { name, remedy } = self;
        match err.kind() {
            io::ErrorKind::NotFound => format!("{name} was not found: {remedy}"),
            _ => format!("{name} does not work: {err}"),
        }
    }
}

fn first_line(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).lines().next().unwrap_or_default().trim().to_owned()
}

/// Whether a kind of link can be made, by making one. The kernel loads the module, if there is one.
fn try_link(kind: Kind) -> Result<(), NetworkError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|source| NetworkError::Io { doing: "cannot start the async runtime", source })?;
    runtime.block_on(async { Machine::here()?.try_link(kind).await })
}

fn link(kind: Kind, module: &str) -> Verdict {
    match try_link(kind) {
        Ok(()) => Fine("there".to_owned()),
        Err(err) => Fails(format!("no links of the kind {module}: {}; load the module {module}", Chain(&err))),
    }
}

fn vxlan() -> Verdict {
    match try_link(Kind::Vxlan) {
        Ok(()) => Fine("there".to_owned()),
        Err(err) => Lacks(format!(
            "no vxlan: {}; pods of other machines cannot be reached over the tunnel; install linux-modules-extra, or \
             use --flannel-backend=host-gw",
            Chain(&err)
        )),
    }
}

fn bridge_filter() -> Verdict {
    let there = Path::new("/proc/sys/net/bridge").exists() || modprobe("br_netfilter");
    if there {
        Fine("there".to_owned())
    } else {
        Lacks(
            "no br_netfilter: a service that answers on the caller's own node may not be reached, and pods under a \
             network policy do not start"
                .to_owned(),
        )
    }
}

fn forward() -> Verdict {
    let path = "/proc/sys/net/ipv4/ip_forward";
    match fs::read_to_string(path).map(|text| text.trim() == "1") {
        Ok(true) => Fine("on".to_owned()),
        Ok(false) => Fine("off; kedge turns it on".to_owned()),
        Err(err) => Fails(format!("{path}: {err}")),
    }
}

/// Whether a file of the kernel is there; `without` says what is lost otherwise.
fn table(path: &Path, without: &str) -> Verdict {
    match fs::read_to_string(path) {
        Ok(text) => Fine(text.trim().to_owned()),
        Err(_) => Lacks(without.to_owned()),
    }
}

fn containerd() -> Verdict {
    match program(CONTAINERD) {
        Fine(text) => {
            let version = text.split_whitespace().nth(2).unwrap_or_default().trim_start_matches('v').to_owned();
            let mut numbers = version.split(['.', '~', '-']).filter_map(|n| n.parse::<u32>().ok());
            match (numbers.next(), numbers.next()) {
                (Some(major), Some(minor)) if (major, minor) >= (1, 6) => Fine(version),
                _ => Fails(format!("{text}: want 1.6 or newer")),
            }
        }
        other => other,
    }
}

fn program(needed: Needed) -> Verdict {
    match said(needed.name, ["--version"]) {
        Ok(output) => Fine(first_line(&output.stdout)),
        Err(err) => Fails(needed.unanswered(&err)),
    }
}

fn clock() -> Verdict {
    let now = base::time::Clock::system().now();
    if now.as_second() > 1_767_225_600 {
        return Fine(base::time::rfc3339_secs(now));
    }
    Lacks(format!(
        "{}: the clock is behind; certificates hold, but joining waits until it is set (NTP)",
        base::time::rfc3339_secs(now)
    ))
}

fn swap(list: &str) -> Verdict {
    match list.lines().count() {
        0 | 1 => Fine("off".to_owned()),
        _ => Lacks("on: the kernel may swap pods out, and then they are slow; 'swapoff -a' ends it".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_kernels_and_missing_controllers_are_named() {
        assert!(matches!(kernel("6.1.0-18-amd64\n"), Fine(_)));
        assert!(matches!(kernel("4.19.0\n"), Lacks(_)));
        assert!(matches!(kernel("3.10.0-1160.el7"), Fails(_)));
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("cgroup.controllers"), "cpuset cpu io pids\n").unwrap();
        assert!(matches!(cgroups(dir.path()), Fails(text) if text.contains("cgroup_enable=memory")));
        fs::write(dir.path().join("cgroup.controllers"), "cpuset cpu io memory pids\n").unwrap();
        assert!(matches!(cgroups(dir.path()), Fine(text) if text.starts_with("version 2")));
    }

    #[test]
    fn a_program_that_does_not_end_is_told() {
        let (late, away) = (
            io::Error::new(io::ErrorKind::TimedOut, "runc took longer than 20 s"),
            io::Error::from(io::ErrorKind::NotFound),
        );
        assert_eq!(RUNC.unanswered(&late), "runc does not work: runc took longer than 20 s");
        assert_eq!(RUNC.unanswered(&away), "runc was not found: install the package runc");
    }

    #[test]
    fn swap_that_pods_may_use_is_told() {
        assert!(matches!(swap("Filename Type\n"), Fine(_)));
        assert!(matches!(swap("Filename Type\n/swap file\n"), Lacks(text) if text.contains("may swap pods out")));
    }

    #[test]
    fn a_filesystem_of_the_kernel_is_found_in_its_list() {
        assert!(matches!(overlayfs("nodev\tsysfs\nnodev\toverlay\n"), Fine(_)));
    }
}
