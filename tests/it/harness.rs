//! A real server in a folder of its own, a real kubectl that talks to it, and waiting for things with a limit and a name.

use std::fs;
use std::io::Write as _;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// A server answers /readyz within this, on a machine that is busy with other tests.
pub const START_LIMIT: Duration = Duration::from_secs(60);
/// A server ends this long after SIGTERM.
pub const STOP_LIMIT: Duration = Duration::from_secs(30);
/// Controllers do their part within this.
pub const SETTLE_LIMIT: Duration = Duration::from_secs(30);
/// Between two looks at a condition.
const LOOK: Duration = Duration::from_millis(50);

/// Waits until `look` finds something. Fails after `limit`, naming what was waited for and what `look` said last.
pub fn wait_for<T>(what: &str, limit: Duration, mut look: impl FnMut() -> Result<T, String>) -> T {
    let began = Instant::now();
    loop {
        match look() {
            Ok(found) => return found,
            Err(last) if began.elapsed() > limit => panic!("waited {limit:?} for {what}; at last: {last}"),
            Err(_) => std::thread::sleep(LOOK),
        }
    }
}

/// What a program said, and how it ended.
#[derive(Debug)]
pub struct Said {
    pub code: i32,
    pub out: String,
    pub err: String,
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
pub fn run_with(command: &mut Command, input: &str) -> Said {
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
pub struct Running(pub Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _gone = self.0.kill();
        let _reaped = self.0.wait();
    }
}

impl Running {
    /// Waits for the process's end. Fails, with its name, after `limit`.
    pub fn ended(&mut self, what: &str, limit: Duration) -> i32 {
        wait_for(what, limit, || match self.0.try_wait().unwrap() {
            Some(status) => Ok(status.code().unwrap_or(-1)),
            None => Err("still running".to_owned()),
        })
    }
}

/// A port that nobody listens on.
pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Where a server keeps its things, and with which flags it is started. Outlives the server, so that it can be started again.
pub struct Place {
    pub dir: TempDir,
    pub port: u16,
    pub flags: Vec<String>,
    program: PathBuf,
}

impl Place {
    /// A place for `kedge server` without a node.
    pub fn new(flags: &[&str]) -> Place {
        let mut all: Vec<String> =
            ["--disable-agent", "--bind-address=127.0.0.1", "--node-ip=127.0.0.1", "--node-name=test"].map(str::to_owned).into();
        all.extend(flags.iter().map(|flag| (*flag).to_owned()));
        Place { dir: tempfile::Builder::new().prefix("kedge-it-").tempdir().unwrap(), port: free_port(), flags: all, program: env!("CARGO_BIN_EXE_kedge").into() }
    }

    /// A place for a whole node, run by another build of the program.
    #[allow(dead_code, reason = "tests/node uses it")]
    pub fn of_program(program: &Path, flags: &[String]) -> Place {
        let dir = tempfile::Builder::new().prefix("kedge-node-").tempdir().unwrap();
        Place { dir, port: free_port(), flags: flags.to_vec(), program: program.to_owned() }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn data_dir(&self) -> PathBuf {
        self.path("data")
    }

    pub fn kubeconfig(&self) -> PathBuf {
        self.path("kubeconfig")
    }

    /// The command that starts a server here.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command
            .arg("server")
            .arg(format!("--data-dir={}", self.data_dir().display()))
            .arg(format!("--https-listen-port={}", self.port))
            .arg(format!("--write-kubeconfig={}", self.kubeconfig().display()))
            .args(&self.flags);
        // The configuration of whoever runs the tests is not ours.
        command.env_remove("KUBECONFIG").env("KEDGE_CONFIG_FILE", self.empty_config());
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
    pub fn refused(&self) -> Said {
        let said = run_with(&mut self.command(), "");
        assert_eq!(said.code, 1, "expected a refusal: {said:?}");
        said
    }

    /// kubectl as the cluster's admin.
    pub fn kubectl(&self, args: &[&str]) -> Command {
        let mut command = Command::new("kubectl");
        command.args(args).env("KUBECONFIG", self.kubeconfig()).env("KUBECACHEDIR", self.path("kube-cache")).env("HOME", self.dir.path());
        command.stdin(Stdio::null());
        command
    }
}

/// A server that runs. Ended with SIGKILL when dropped.
pub struct Server {
    pub place: Place,
    process: Running,
    announced: Vec<&'static str>,
}

impl Server {
    /// Starts one in a fresh place and waits until it is ready. DNS is left out: no node could run it.
    pub fn start() -> Server {
        Server::start_in(Place::new(&["--disable=coredns"]))
    }

    /// Starts one in a place and waits until it is ready.
    pub fn start_in(place: Place) -> Server {
        let mut server = Server::launch(place);
        server.wait_ready();
        server
    }

    /// Starts one without waiting.
    pub fn launch(place: Place) -> Server {
        // A kubeconfig of an earlier run must not be taken for this one's.
        let _absent = fs::remove_file(place.kubeconfig());
        let log = fs::File::options().create(true).append(true).open(place.path("log")).unwrap();
        let process = place.command().stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap();
        Server { place, process: Running(process), announced: Vec::new() }
    }

    pub fn wait_ready(&mut self) {
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

    pub fn pid(&self) -> u32 {
        self.process.0.id()
    }

    /// Lets the log hold warnings and errors with this text.
    pub fn announce(&mut self, text: &'static str) {
        self.announced.push(text);
    }

    /// SIGKILL. The place stays.
    pub fn kill(mut self) -> Place {
        self.process.0.kill().unwrap();
        self.process.0.wait().unwrap();
        self.into_place()
    }

    /// SIGTERM; the server has to end well and in time.
    pub fn stop(mut self) -> Place {
        signal(self.pid(), "TERM");
        let code = self.process.ended("the server to stop", STOP_LIMIT);
        assert_eq!(code, 0, "a server that was told to stop:\n{}", log_tail(&self.place));
        self.into_place()
    }

    fn into_place(self) -> Place {
        self.check_log();
        self.place
    }

    /// Nothing odd may have happened that the test did not announce.
    pub fn check_log(&self) {
        let log = fs::read_to_string(self.place.path("log")).unwrap();
        let odd = |line: &&str| line.contains(" WARN ") || line.contains(" ERROR ");
        let announced = |line: &str| self.announced.iter().any(|text| line.contains(text));
        let found: Vec<&str> = log.lines().filter(odd).filter(|line| !announced(line)).collect();
        assert!(found.is_empty(), "the log holds what the test did not announce:\n{}", found.join("\n"));
    }

    /// Runs kubectl to its end.
    pub fn said(&self, args: &[&str]) -> Said {
        self.place.kubectl(args).output().unwrap().into()
    }

    /// kubectl that must succeed; what it printed.
    pub fn ok(&self, args: &[&str]) -> String {
        let said = self.said(args);
        assert_eq!(said.code, 0, "kubectl {args:?}: {}{}", said.out, said.err);
        said.out
    }

    /// kubectl that must succeed, with a manifest on its standard input.
    pub fn ok_with(&self, args: &[&str], input: &str) -> String {
        let said = self.said_with(args, input);
        assert_eq!(said.code, 0, "kubectl {args:?}: {}{}", said.out, said.err);
        said.out
    }

    pub fn said_with(&self, args: &[&str], input: &str) -> Said {
        run_with(&mut self.place.kubectl(args), input)
    }

    /// kubectl that must be refused; what it printed on standard error.
    pub fn refused(&self, args: &[&str]) -> String {
        let said = self.said(args);
        assert_ne!(said.code, 0, "kubectl {args:?} was not refused: {}", said.out);
        said.err
    }

    pub fn refused_with(&self, args: &[&str], input: &str) -> String {
        let said = self.said_with(args, input);
        assert_ne!(said.code, 0, "kubectl {args:?} was not refused: {}", said.out);
        said.err
    }

    /// Waits until kubectl prints what `wanted` accepts.
    pub fn until(&self, args: &[&str], limit: Duration, wanted: impl Fn(&str) -> bool) -> String {
        wait_for(&format!("kubectl {args:?}"), limit, || {
            let said = self.said(args);
            if said.code == 0 && wanted(&said.out) { Ok(said.out) } else { Err(format!("{}{}", said.out, said.err)) }
        })
    }
}

/// The last lines of the server's log.
pub fn log_tail(place: &Place) -> String {
    let log = fs::read_to_string(place.path("log")).unwrap_or_default();
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(30)..].join("\n")
}

/// Sends a signal by name.
pub fn signal(pid: u32, name: &str) {
    let sent = Command::new("kill").arg(format!("-{name}")).arg(pid.to_string()).status().unwrap();
    assert!(sent.success(), "kill -{name} {pid}");
}
