//! A real server in a folder of its own, a real kubectl that talks to it, and waiting for things with a limit and a
//! name.

use std::fs;
use std::io::Write as _;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// A server answers /readyz within this, on a machine that is busy with other tests.
pub(crate) const START_LIMIT: Duration = Duration::from_secs(60);
/// A server ends this long after SIGTERM.
pub(crate) const STOP_LIMIT: Duration = Duration::from_secs(30);
/// A server that cannot start says so within this.
pub(crate) const REFUSE_LIMIT: Duration = Duration::from_secs(30);
/// Controllers do their part within this.
pub(crate) const SETTLE_LIMIT: Duration = Duration::from_secs(30);
/// Between two looks at a condition.
const LOOK: Duration = Duration::from_millis(50);

/// Waits until `look` finds something. Fails after `limit`, naming what was waited for and what `look` said last.
pub(crate) fn wait_for<T>(what: &str, limit: Duration, mut look: impl FnMut() -> Result<T, String>) -> T {
    let began = Instant::now();
    loop {
        match look() {
            Ok(found) => return found,
            Err(last) if began.elapsed() > limit => panic!("waited {limit:?} for {what}; at last: {last}"),
            Err(_) => std::thread::sleep(LOOK),
        }
    }
}

/// The output of a program, and how it ended.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl From<Output> for Said {
    fn from(output: Output) -> Said {
        Said {
            code: output.status.code().unwrap_or(-1),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

/// Runs a program to its end, with `input` on its standard input.
pub(crate) fn run_with(command: &mut Command, input: &str) -> Said {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_owned();
    // A thread: a program that writes much before it reads would wait for us for ever.
    let writer = std::thread::spawn(move || {
        // A program that ends early leaves a broken pipe; its words on stderr are the better message.
        let _broken_pipe = stdin.write_all(input.as_bytes());
    });
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    output.into()
}

/// A process that does not outlive the test.
pub(crate) struct Running(pub(crate) Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _gone = self.0.kill();
        let _reaped = self.0.wait();
    }
}

impl Running {
    /// Waits for the process's end. Fails, with its name, after `limit`.
    pub(crate) fn ended(&mut self, what: &str, limit: Duration) -> i32 {
        wait_for(what, limit, || match self.0.try_wait().unwrap() {
            Some(status) => Ok(status.code().unwrap_or(-1)),
            None => Err("still running".to_owned()),
        })
    }
}

/// A port that nobody listens on.
pub(crate) fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Where a server keeps its things, and with which flags it is started. Outlives the server, so that it can be started
/// again.
pub(crate) struct Place {
    pub(crate) dir: TempDir,
    pub(crate) port: u16,
    pub(crate) flags: Vec<String>,
    program: PathBuf,
}

impl Place {
    /// A place for `kedge server` without a node.
    pub(crate) fn new(flags: &[&str]) -> Place {
        // Pods reach no loopback address, so it cannot be an endpoint; a documentation address (RFC 5737) stands in.
        let addresses = ["--bind-address=127.0.0.1", "--node-ip=127.0.0.1", "--advertise-address=192.0.2.1"];
        let mut all: Vec<String> =
            ["--disable-agent", "--node-name=test"].into_iter().chain(addresses).map(str::to_owned).collect();
        all.extend(flags.iter().map(|flag| (*flag).to_owned()));
        Place {
            dir: tempfile::Builder::new().prefix("kedge-it-").tempdir().unwrap(),
            port: free_port(),
            flags: all,
            program: env!("CARGO_BIN_EXE_kedge").into(),
        }
    }

    #[allow(dead_code, reason = "tests/node uses it")]
    /// A place for a whole node, run by another build of the program.
    pub(crate) fn of_program(program: &Path, flags: &[String]) -> Place {
        let dir = tempfile::Builder::new().prefix("kedge-node-").tempdir().unwrap();
        link_programs(&dir.path().join("bin"));
        Place { dir, port: free_port(), flags: flags.to_vec(), program: program.to_owned() }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn data_dir(&self) -> PathBuf {
        self.path("data")
    }

    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.path("kubeconfig")
    }

    /// The command that starts a server here.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command
            .arg("server")
            .arg(format!("--data-dir={}", self.data_dir().display()))
            .arg(format!("--https-listen-port={}", self.port))
            .arg(format!("--write-kubeconfig={}", self.kubeconfig().display()))
            .args(&self.flags);
        // The configuration of whoever runs the tests is not ours.
        command.env_remove("KUBECONFIG").env("KEDGE_CONFIG_FILE", self.empty_config());
        if self.path("bin").exists() {
            command.env("PATH", self.path("bin"));
        }
        command
    }

    fn empty_config(&self) -> PathBuf {
        let path = self.path("config.yaml");
        if !path.exists() {
            fs::write(&path, "").unwrap();
        }
        path
    }

    /// Runs a server that is expected to refuse, to its end.
    pub(crate) fn refused(&self) -> Said {
        let (out, err) = (self.path("refused.out"), self.path("refused.err"));
        let mut command = self.command();
        command.stdin(Stdio::null()).stdout(fs::File::create(&out).unwrap()).stderr(fs::File::create(&err).unwrap());
        let code = Running(command.spawn().unwrap()).ended("the server to refuse", REFUSE_LIMIT);
        let said = Said { code, out: fs::read_to_string(out).unwrap(), err: fs::read_to_string(err).unwrap() };
        assert_eq!(said.code, 1, "expected a refusal: {said:?}");
        said
    }

    /// kubectl as the cluster's admin.
    pub(crate) fn kubectl(&self, args: &[&str]) -> Command {
        let mut command = Command::new("kubectl");
        command
            .args(args)
            .env("KUBECONFIG", self.kubeconfig())
            .env("KUBECACHEDIR", self.path("kube-cache"))
            .env("HOME", self.dir.path());
        command.stdin(Stdio::null());
        command
    }
}

/// Programs that a node does not need: what they could do it does by netlink.
const NEEDLESS: [&str; 7] = ["nft", "ip", "conntrack", "iptables", "ip6tables", "modprobe", "bridge"];

/// Links to the programs on PATH but for the needless ones.
fn link_programs(bin: &Path) {
    fs::create_dir(bin).unwrap();
    let path = std::env::var_os("PATH").unwrap_or_default();
    for entry in std::env::split_paths(&path).filter_map(|dir| fs::read_dir(dir).ok()).flatten().flatten() {
        let name = entry.file_name();
        if !NEEDLESS.iter().any(|needless| name == *needless) {
            // The first on PATH is the one that is found.
            let _second = std::os::unix::fs::symlink(entry.path(), bin.join(name));
        }
    }
}

/// Prints the end of the server's log when the test fails.
struct TellOnPanic(PathBuf);

impl Drop for TellOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the server's log ends with:\n{}", tail_of(&self.0));
        }
    }
}

/// A server that runs. Ended with SIGKILL when dropped.
pub(crate) struct Server {
    // First: it is dropped, and tells, before the place goes.
    _tells: TellOnPanic,
    pub(crate) place: Place,
    process: Running,
    announced: Vec<&'static str>,
}

impl Server {
    /// Starts one in a fresh place and waits until it is ready. DNS is left out: no node could run it.
    pub(crate) fn start() -> Server {
        Server::start_in(Place::new(&["--disable=coredns"]))
    }

    /// Starts one in a place and waits until it is ready.
    pub(crate) fn start_in(place: Place) -> Server {
        let mut server = Server::launch(place);
        server.wait_ready();
        server
    }

    /// Starts one without waiting.
    pub(crate) fn launch(place: Place) -> Server {
        // A kubeconfig of an earlier run must not be taken for this one's.
        let _absent = fs::remove_file(place.kubeconfig());
        let log = fs::File::options().create(true).append(true).open(place.path("log")).unwrap();
        let process =
            place.command().stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap();
        Server { _tells: TellOnPanic(place.path("log")), place, process: Running(process), announced: Vec::new() }
    }

    pub(crate) fn wait_ready(&mut self) {
        let place = &self.place;
        let process = &mut self.process;
        wait_for("the server to be ready", START_LIMIT, || {
            if let Some(status) = process.0.try_wait().unwrap() {
                panic!("the server ended with {status}:\n{}", log_tail(place));
            }
            if !place.kubeconfig().exists() {
                return Err(format!("no kubeconfig; log:\n{}", log_tail(place)));
            }
            let said: Said = place.kubectl(&["get", "--raw", "/readyz"]).output().unwrap().into();
            if said.code == 0 { Ok(()) } else { Err(format!("{}\n{}", said.err, log_tail(place))) }
        });
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.0.id()
    }

    /// Lets the log hold warnings and errors with this text.
    pub(crate) fn announce(&mut self, text: &'static str) {
        self.announced.push(text);
    }

    #[allow(dead_code, reason = "tests/node uses the other half")]
    /// Whether it has ended by itself.
    pub(crate) fn ended(&mut self) -> bool {
        self.process.0.try_wait().unwrap().is_some()
    }

    #[allow(dead_code, reason = "tests/node uses the other half")]
    /// Waits for the end of a server that fails. The place stays.
    pub(crate) fn end_badly(mut self) -> Place {
        let code = self.process.ended("the server to fail", STOP_LIMIT);
        assert_ne!(code, 0, "a server that failed:\n{}", log_tail(&self.place));
        self.place
    }

    /// SIGKILL. The place stays.
    pub(crate) fn kill(self) -> Place {
        self.check_log();
        self.kill_only()
    }

    /// SIGKILL without a look at the log: a test that breaks things on purpose makes warnings.
    pub(crate) fn kill_only(mut self) -> Place {
        self.process.0.kill().unwrap();
        self.process.0.wait().unwrap();
        self.place
    }

    /// SIGTERM; the server has to end well and in time.
    pub(crate) fn stop(mut self) -> Place {
        signal(self.pid(), "TERM");
        let code = self.process.ended("the server to stop", STOP_LIMIT);
        assert_eq!(code, 0, "a server that was told to stop:\n{}", log_tail(&self.place));
        self.check_log();
        self.place
    }

    /// Nothing odd may have happened that the test did not announce.
    pub(crate) fn check_log(&self) {
        let log = fs::read_to_string(self.place.path("log")).unwrap();
        let odd = |line: &&str| line.contains(" WARN ") || line.contains(" ERROR ");
        let announced = |line: &str| self.announced.iter().any(|text| line.contains(text));
        let found: Vec<&str> = log.lines().filter(odd).filter(|line| !announced(line)).collect();
        assert!(found.is_empty(), "the log holds what the test did not announce:\n{}", found.join("\n"));
    }

    /// Runs kubectl to its end.
    pub(crate) fn said(&self, args: &[&str]) -> Said {
        self.place.kubectl(args).output().unwrap().into()
    }

    /// kubectl that must succeed; what it printed.
    pub(crate) fn ok(&self, args: &[&str]) -> String {
        let said = self.said(args);
        assert_eq!(said.code, 0, "kubectl {args:?}: {}{}", said.out, said.err);
        said.out
    }

    /// kubectl that must succeed, with a manifest on its standard input.
    pub(crate) fn ok_with(&self, args: &[&str], input: &str) -> String {
        let said = self.said_with(args, input);
        assert_eq!(said.code, 0, "kubectl {args:?}: {}{}", said.out, said.err);
        said.out
    }

    pub(crate) fn said_with(&self, args: &[&str], input: &str) -> Said {
        run_with(&mut self.place.kubectl(args), input)
    }

    /// kubectl that must be refused; what it printed on standard error.
    pub(crate) fn refused(&self, args: &[&str]) -> String {
        let said = self.said(args);
        assert_ne!(said.code, 0, "kubectl {args:?} was not refused: {}", said.out);
        said.err
    }

    pub(crate) fn refused_with(&self, args: &[&str], input: &str) -> String {
        let said = self.said_with(args, input);
        assert_ne!(said.code, 0, "kubectl {args:?} was not refused: {}", said.out);
        said.err
    }

    /// Waits until kubectl prints what `wanted` accepts.
    pub(crate) fn until(&self, args: &[&str], limit: Duration, wanted: impl Fn(&str) -> bool) -> String {
        wait_for(&format!("kubectl {args:?}"), limit, || {
            let said = self.said(args);
            if said.code == 0 && wanted(&said.out) { Ok(said.out) } else { Err(format!("{}{}", said.out, said.err)) }
        })
    }
}

/// The last lines of the server's log.
pub(crate) fn log_tail(place: &Place) -> String {
    tail_of(&place.path("log"))
}

fn tail_of(log: &Path) -> String {
    let log = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(40)..].join("\n")
}

/// Sends a signal by name.
pub(crate) fn signal(pid: u32, name: &str) {
    let sent = Command::new("kill").arg(format!("-{name}")).arg(pid.to_string()).status().unwrap();
    assert!(sent.success(), "kill -{name} {pid}");
}
