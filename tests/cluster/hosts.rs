//! A pretend machine: network, mounts, processes, /run and name of its own, on the bridge `lan` (10.210.0.0/24).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// kubectl as `scripts/clients.sh` fetched it, else the one on PATH, which may be a cloud's dispatcher that waits 5 s
/// for a name server at every call.
pub(crate) fn kubectl() -> PathBuf {
    let fetched = std::env::var_os("KEDGE_CLIENTS").map(|home| PathBuf::from(home).join("kubectl"));
    fetched.filter(|path| path.exists()).unwrap_or_else(|| "kubectl".into())
}

/// The work of the first process of a machine; then it waits for its end.
const INIT: &str = concat!(
    include_str!("../machine.sh"),
    r#"
hostname "$1"
echo ready >"$2"
while :; do sleep 1000 & wait $!; done
"#
);

/// Until a machine is made.
const MAKE_LIMIT: Duration = Duration::from_secs(90);

/// Both outputs of a command, and how it ended.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) ok: bool,
    pub(crate) text: String,
}

/// Waits until `look` finds something. Fails after `limit`, naming what was waited for and what `look` said last.
pub(crate) fn wait_for<T>(what: &str, limit: Duration, mut look: impl FnMut() -> Result<T, String>) -> T {
    let began = Instant::now();
    loop {
        match look() {
            Ok(found) => return found,
            Err(last) if began.elapsed() > limit => panic!("waited {limit:?} for {what}; at last: {last}"),
            Err(_) => std::thread::sleep(Duration::from_millis(200)),
        }
    }
}

/// Runs a program on this side to its end.
pub(crate) fn run(command: &mut Command) -> Said {
    let output = command.stdin(Stdio::null()).output().unwrap();
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    Said { ok: output.status.success(), text }
}

fn must(program: &str, args: &[&str]) {
    let said = run(Command::new(program).args(args));
    assert!(said.ok, "{program} {args:?}: {}", said.text);
}

/// Makes the bridge that the machines share; this side has the address 10.210.0.1.
pub(crate) fn make_lan() {
    must("ip", &["link", "add", "lan", "type", "bridge"]);
    must("ip", &["address", "add", "10.210.0.1/24", "dev", "lan"]);
    must("ip", &["link", "set", "lan", "up"]);
}

/// One machine. It ends with the test.
pub(crate) struct Host {
    pub(crate) name: &'static str,
    pub(crate) dir: PathBuf,
    init: Child,
    pid: u32,
    program: PathBuf,
}

impl Drop for Host {
    fn drop(&mut self) {
        // --kill-child ends everything inside with it.
        let _gone = self.init.kill();
        let _reaped = self.init.wait();
    }
}

impl Host {
    /// A machine with the address 10.210.0.`number`.
    pub(crate) fn new(name: &'static str, number: u8, place: &Path, program: &Path) -> Host {
        let dir = place.join(name);
        fs::create_dir_all(&dir).unwrap();
        let ready = dir.join("ready");
        let unshare = [
            "--mount",
            "--propagation=private",
            "--net",
            "--uts",
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
            "sh",
            "-c",
            INIT,
            "init",
        ];
        let log = fs::File::create(dir.join("init.log")).unwrap();
        let init = Command::new("unshare")
            .args(unshare)
            .arg(name)
            .arg(&ready)
            .env("MACHINE_ID", number.to_string())
            .stdin(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        let limit = MAKE_LIMIT;
        wait_for(&format!("machine {name}"), limit, || {
            ready.exists().then_some(()).ok_or_else(|| fs::read_to_string(dir.join("init.log")).unwrap())
        });
        let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", init.id())).unwrap();
        let pid = children.split_whitespace().next().unwrap().parse().unwrap();
        let (link, netns) = (format!("to-{name}"), format!("{pid}"));
        must("ip", &["link", "add", &link, "type", "veth", "peer", "name", "eth0", "netns", &netns]);
        must("ip", &["link", "set", &link, "master", "lan", "up"]);
        let host = Host { name, dir, init, pid, program: program.to_owned() };
        host.must("ip", &["address", "add", &format!("10.210.0.{number}/24"), "dev", "eth0"]);
        host.must("ip", &["link", "set", "eth0", "up"]);
        host.must("ip", &["route", "add", "default", "via", "10.210.0.1"]);
        host
    }

    /// A command inside of the machine.
    pub(crate) fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["-t", &self.pid.to_string(), "-m", "-n", "-u", "-p"]).arg(program.as_ref());
        command
    }

    /// The output of a program inside of the machine.
    pub(crate) fn said(&self, program: &str, args: &[&str]) -> Said {
        run(self.command(program).args(args))
    }

    pub(crate) fn must(&self, program: &str, args: &[&str]) {
        let said = self.said(program, args);
        assert!(said.ok, "{}: {program} {args:?}: {}", self.name, said.text);
    }

    pub(crate) fn program(&self) -> &Path {
        &self.program
    }

    pub(crate) fn data_dir(&self) -> PathBuf {
        self.dir.join("data")
    }

    /// `kedge ROLE` with this machine's folders.
    pub(crate) fn kedge(&self, role: &str, args: &[&str]) -> Command {
        let mut command = self.command(&self.program);
        command.arg(role).arg(format!("--data-dir={}", self.data_dir().display())).args(args);
        command
    }

    /// Starts a role in the background, its log in `log`.
    pub(crate) fn start(&self, role: &str, args: &[&str], log: &str) -> Child {
        let log = fs::File::create(self.dir.join(log)).unwrap();
        self.kedge(role, args).stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap()
    }

    pub(crate) fn log(&self, log: &str) -> String {
        fs::read_to_string(self.dir.join(log)).unwrap_or_default()
    }
}

/// The role's own process: nsenter's child.
pub(crate) fn pid_of(role: &Child) -> String {
    let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", role.id())).unwrap_or_default();
    children.split_whitespace().next().unwrap().to_owned()
}

/// Has nsenter go on, which stops itself when its child is stopped: else it would never tell the child's end.
pub(crate) fn wake(role: &Child) {
    must("kill", &["-CONT", &role.id().to_string()]);
}

/// Ends a role hard: nsenter's child gets the signal, for nsenter itself only waits.
pub(crate) fn kill_hard(mut role: Child) {
    let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", role.id())).unwrap_or_default();
    for pid in children.split_whitespace() {
        must("kill", &["-9", pid]);
    }
    let _reaped = role.wait();
}
