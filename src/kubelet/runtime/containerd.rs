//! containerd as our child: found, configured, started, watched, adopted. It outlives us, and its containers outlive
//! it.

use std::ffi::OsStr;
use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use base::backoff::Backoff;
use base::chain::Chain;
use base::files::{FileError, create_private_dir, read_if_exists, write_atomic};
use base::task::Group;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use tokio::process::Command;
use tracing::{info, warn};

use super::attachments::{self, Places};
use super::cri::Cri;
use super::leftovers::{Containerd, Leftovers};
use super::version::{Version, version};
use super::{cni_results, drop_ins, settle};
use crate::config::Config;
use crate::error::Error;
use crate::machine::has_apparmor;
use crate::runtime::driver::CgroupDriver;
use crate::shelter;

/// containerd must answer by then: an old disk with many containers is slow.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// So many of them until a start is given up.
const START_TIMEOUTS_MAX: u32 = 15;
/// Between two looks whether the socket answers.
const START_POLL: Duration = Duration::from_millis(20);
/// A containerd told to end must be gone by then, or is killed.
const STOP_TIMEOUT: Duration = Duration::from_secs(20);

/// The choices of the operator.
#[derive(Clone, Copy, Debug)]
pub(super) struct Managed<'a> {
    pub(super) root: &'a Path,
    pub(super) state: &'a Path,
    pub(super) snapshotter: Option<&'a str>,
    pub(super) default_runtime: &'a str,
    pub(super) nonroot_devices: bool,
    /// Additions to the configuration, and folders that none may lie in.
    pub(super) drop_ins: &'a Path,
    pub(super) of_pods: &'a [PathBuf],
}

/// Settings that differ between machines and versions, and end up in config.toml.
#[derive(Debug)]
struct Settings<'a> {
    config: &'a Config,
    root: &'a Path,
    state: &'a Path,
    version: Version,
    systemd_cgroup: bool,
    restrict_oom_score_adj: bool,
    disable_apparmor: bool,
    snapshotter: &'a str,
    default_runtime: &'a str,
    /// Devices belong to the user that a pod runs as.
    nonroot_devices: bool,
    /// Runtimes beside runc that this machine has.
    extra: Vec<Extra>,
}

/// From here on containerd gives devices by their names in CDI files.
const WITH_CDI: Version = Version { major: 1, minor: 7 };

/// A runtime that a RuntimeClass may name: its handler, containerd's type, and the program for types that take one.
#[derive(Debug)]
struct Extra {
    handler: &'static str,
    kind: String,
    program: Option<PathBuf>,
}

/// Handlers and the programs that bring them; those of k3s, gVisor and Kata. A program that is a shim is its own type.
const EXTRAS: [(&str, &str); 14] = [
    ("crun", "crun"),
    ("nvidia", "nvidia-container-runtime"),
    ("nvidia-cdi", "nvidia-container-runtime.cdi"),
    ("nvidia-legacy", "nvidia-container-runtime.legacy"),
    ("runsc", "containerd-shim-runsc-v1"),
    ("kata", "containerd-shim-kata-v2"),
    ("lunatic", "containerd-shim-lunatic-v1"),
    ("slight", "containerd-shim-slight-v1"),
    ("spin", "containerd-shim-spin-v2"),
    ("wasmedge", "containerd-shim-wasmedge-v1"),
    ("wasmer", "containerd-shim-wasmer-v1"),
    ("wasmtime", "containerd-shim-wasmtime-v1"),
    ("wws", "containerd-shim-wws-v1"),
    ("youki", "youki"),
];

fn extras(search_path: &OsStr) -> Vec<Extra> {
    let found = |(handler, program): (&'static str, &'static str)| {
        let path = find(program, search_path).ok()?;
        // `containerd-shim-spin-v2` is the type `io.containerd.spin.v2`.
        Some(match program.strip_prefix("containerd-shim-") {
            Some(shim) => Extra { handler, kind: format!("io.containerd.{}", shim.replace('-', ".")), program: None },
            None => Extra { handler, kind: "io.containerd.runc.v2".to_owned(), program: Some(path) },
        })
    };
    EXTRAS.into_iter().filter_map(found).collect()
}

/// Whether containerd will know the handler.
fn has_handler(extra: &[Extra], name: &str) -> bool {
    name == "runc" || extra.iter().any(|extra| extra.handler == name)
}

/// Whether a disk can be a layer of overlayfs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Overlay {
    Works,
    Fails,
}

/// The snapshotter that was asked for, or the better one that works on this disk.
fn snapshotter<'a>(asked: Option<&'a str>, overlay: Overlay, root: &Path) -> Result<&'a str, Error> {
    match (asked, overlay) {
        (None, Overlay::Works) => Ok("overlayfs"),
        (None, Overlay::Fails) => Ok("native"),
        (Some("overlayfs"), Overlay::Fails) => Err(Error::NoOverlay { root: root.to_owned() }),
        (Some(asked), _) => Ok(asked),
    }
}

fn render_extras(settings: &Settings<'_>, plugin: &str) -> String {
    let one = |extra: &Extra| {
        let table = format!("[plugins.{plugin}.containerd.runtimes.{}", quoted(extra.handler));
        let mut text = format!("{table}]\n  runtime_type = {}\n\n", quoted(&extra.kind));
        if let Some(program) = &extra.program {
            text += &format!(
                "{table}.options]\n  BinaryName = {}\n  SystemdCgroup = {}\n\n",
                quoted(program),
                settings.systemd_cgroup
            );
        }
        text
    };
    settings.extra.iter().map(one).collect()
}

/// How long a containerd that starts again waits for a shim to answer. Its own 5 s (2 s for a task's state) are too few
/// on a small busy machine: it then takes the shim for dead and kills its healthy container.
const SHIM_ANSWER_SECS: u64 = 60;

struct Daemon {
    program: PathBuf,
    search_path: std::ffi::OsString,
    config_file: PathBuf,
    pid_file: PathBuf,
    log: PathBuf,
    socket: PathBuf,
}

/// Makes sure that containerd runs with our configuration and answers; returns its socket.
pub(super) async fn start(config: &Config, managed: &Managed<'_>, group: &Group) -> Result<PathBuf, Error> {
    let (root, state) = (managed.root, managed.state);
    let program = find("containerd", &config.search_path)?;
    find("runc", &config.search_path)?;
    create_private_dir(root)?;
    // runc's user namespaces and the shims' sockets need to pass through.
    fs::create_dir_all(state).map_err(FileError::at("cannot create directory", state))?;
    let daemon = Daemon {
        config_file: root.join("config.toml"),
        pid_file: state.join("containerd.pid"),
        log: log_file(root),
        socket: state.join("containerd.sock"),
        search_path: config.search_path.clone(),
        program,
    };
    let settings = Settings {
        config,
        root,
        state,
        version: version(&daemon.program).await?,
        systemd_cgroup: cgroup_driver() == CgroupDriver::Systemd,
        restrict_oom_score_adj: !shelter::may_lower_oom_score(),
        disable_apparmor: !has_apparmor(),
        snapshotter: snapshotter(managed.snapshotter, try_overlay(root), root)?,
        default_runtime: managed.default_runtime,
        nonroot_devices: managed.nonroot_devices,
        extra: extras(&config.search_path),
    };
    if !has_handler(&settings.extra, managed.default_runtime) {
        let found = settings.extra.iter().map(|extra| extra.handler.to_owned()).collect();
        return Err(Error::NoRuntime { name: managed.default_runtime.to_owned(), found });
    }
    let wanted = with_drop_ins(render(&settings), &daemon, managed, settings.version).await?;
    let changed = read_if_exists(&daemon.config_file)?.as_deref() != Some(wanted.as_bytes());
    write_atomic(&daemon.config_file, wanted.as_bytes(), 0o600)?;
    let mut adopted = daemon.running();
    if let (Some(pid), true) = (adopted, changed) {
        info!(pid = pid.as_raw_nonzero().get(), "restarting containerd for a changed configuration");
        end(pid).await;
        adopted = None;
    }
    if let Some(pid) = adopted {
        info!(pid = pid.as_raw_nonzero().get(), "adopting the running containerd");
        let adopted = pid.as_raw_nonzero().get().unsigned_abs();
        settle::shims(&daemon.socket).into_iter().chain([adopted]).for_each(shelter::bring_in);
    }
    if adopted.is_none() {
        cni_results::drop_torn(Path::new(attachments::RECORDS));
    }
    let socket = daemon.socket.clone();
    let log = daemon.log.clone();
    supervise(daemon, adopted, group)?;
    wait_until_it_answers(&socket, &log).await?;
    let containerd = if adopted.is_some() { Containerd::Adopted } else { Containerd::New };
    leftovers(config, &socket).watch(containerd, group).await;
    Ok(socket)
}

/// The configuration with all additions that can be used.
async fn with_drop_ins(
    base: String,
    daemon: &Daemon,
    managed: &Managed<'_>,
    version: Version,
) -> Result<String, Error> {
    let (dir, of_pods, program) = (managed.drop_ins.to_owned(), managed.of_pods.to_vec(), daemon.program.clone());
    let candidate = daemon.config_file.with_extension("toml.candidate");
    let of_files = if version.major >= 2 { 3 } else { 2 };
    let in_use = read_if_exists(&daemon.config_file)?;
    let work = move || {
        let source = drop_ins::Source { dir: &dir, of_pods: &of_pods, version: of_files };
        let merged = drop_ins::merge(base.clone(), source, |text| {
            // It runs, or ran, with this one.
            if in_use.as_deref() == Some(text.as_bytes()) {
                Ok(())
            } else {
                drop_ins::judge(&program, &candidate, text)
            }
        });
        let _none_was_judged = fs::remove_file(&candidate);
        merged.text
    };
    Group::blocking(work)
        .await
        .map_err(|err| Error::Spawn { program: daemon.program.clone(), source: io::Error::other(err) })
}

fn leftovers(config: &Config, socket: &Path) -> Leftovers {
    let (conf_dir, plugin_dir) = (config.cni_conf_dir.clone(), config.cni_bin_dir.clone());
    let places = Places { records: attachments::RECORDS.into(), conf_dir, plugin_dir };
    Leftovers { places, cri: Cri::connect(socket), root_dir: config.root_dir.clone() }
}

async fn wait_until_it_answers(socket: &Path, log: &Path) -> Result<(), Error> {
    let answers = || async {
        loop {
            if tokio::net::UnixStream::connect(socket).await.is_ok() && Cri::connect(socket).version().await.is_ok() {
                return;
            }
            tokio::time::sleep(START_POLL).await;
        }
    };
    let late = || warn!(secs = START_TIMEOUT.as_secs(), log = %log.display(), "containerd does not answer yet");
    if patiently(answers, START_TIMEOUT, late).await {
        return Ok(());
    }
    let secs = START_TIMEOUT.as_secs() * u64::from(START_TIMEOUTS_MAX);
    Err(Error::NotAnswering { socket: socket.to_owned(), secs, log: log.to_owned() })
}

/// Whether there is an answer in time. One that finds many shims on a slow machine takes several times what is usual,
/// and each is told: its failure would end the API server beside us, and begin anew.
async fn patiently<F: Future<Output = ()>>(answers: impl Fn() -> F, usual: Duration, late: impl Fn()) -> bool {
    for _ in 0..START_TIMEOUTS_MAX {
        if tokio::time::timeout(usual, answers()).await.is_ok() {
            return true;
        }
        late();
    }
    false
}

/// Starts the child now, so that a program that cannot be run is an error of ours, and watches it from then on.
fn supervise(daemon: Daemon, adopted: Option<Pid>, group: &Group) -> Result<(), Error> {
    let first = match adopted {
        Some(_) => None,
        None => Some(daemon.spawn()?),
    };
    let rng = group.rng().clone();
    group.spawn("containerd", async move {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(10));
        if let Some(pid) = adopted {
            wait_for_exit(pid).await;
            warn!("containerd ended");
        }
        let mut child = first;
        loop {
            let mut running = match child.take() {
                Some(running) => running,
                None => match daemon.spawn() {
                    Ok(running) => running,
                    Err(err) => {
                        warn!(err = %Chain(&err), "cannot start containerd");
                        tokio::time::sleep(backoff.next(&rng)).await;
                        continue;
                    }
                },
            };
            let (lived, running_pid) = (base::time::Stopwatch::start(), running.id());
            let ended = tokio::select! {
                ended = running.wait() => ended,
                never = settle::settle(running_pid, &daemon.socket) => match never {},
            };
            match ended {
                Ok(status) => warn!(status = %status, log = %daemon.log.display(), "containerd ended"),
                Err(err) => warn!(err = %Chain(&err), "cannot wait for containerd"),
            }
            if lived.elapsed() > START_TIMEOUT {
                backoff.reset();
            }
            tokio::time::sleep(backoff.next(&rng)).await;
        }
    });
    Ok(())
}

impl Daemon {
    /// In a process group of its own: a Ctrl-C for us is not for it.
    fn spawn(&self) -> Result<tokio::process::Child, Error> {
        let failed = |source| Error::Spawn { program: self.program.clone(), source };
        let log = OpenOptions::new().create(true).append(true).open(&self.log).map_err(failed)?;
        let child = Command::new(&self.program)
            .arg("--config")
            .arg(&self.config_file)
            .env("PATH", &self.search_path)
            // systemd listens to us alone.
            .env_remove("NOTIFY_SOCKET")
            .stdin(Stdio::null())
            .stdout(log.try_clone().map_err(failed)?)
            .stderr(log)
            .process_group(0)
            .kill_on_drop(false)
            .spawn()
            .map_err(failed)?;
        if let Some(pid) = child.id() {
            info!(pid, config = %self.config_file.display(), "started containerd");
            // Written for the next kedge; without it, it would find the socket in use.
            if let Err(err) = write_atomic(&self.pid_file, pid.to_string().as_bytes(), 0o600) {
                warn!(err = %Chain(&err), "cannot remember containerd's pid");
            }
        }
        Ok(child)
    }

    /// The containerd of an earlier kedge, told by its command line: pids are used again.
    fn running(&self) -> Option<Pid> {
        let text = fs::read_to_string(&self.pid_file).ok()?;
        let pid = Pid::from_raw(text.trim().parse().ok()?)?;
        let cmdline = fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero())).ok()?;
        let config = self.config_file.as_os_str().as_encoded_bytes();
        cmdline.split(|b| *b == 0).any(|arg| arg == config).then_some(pid)
    }
}

/// Where containerd's own words go.
pub(crate) fn log_file(root: &Path) -> PathBuf {
    root.join("containerd.log")
}

async fn wait_for_exit(pid: Pid) {
    let Ok(fd) = pidfd_open(pid, PidfdFlags::NONBLOCK) else { return };
    // A pidfd becomes readable when its process ends.
    if let Ok(fd) = base::sys::watched(fd) {
        let _ended = fd.readable().await;
    }
}

async fn end(pid: Pid) {
    let _gone_already = kill_process(pid, Signal::TERM);
    if tokio::time::timeout(STOP_TIMEOUT, wait_for_exit(pid)).await.is_err() {
        let _gone_already = kill_process(pid, Signal::KILL);
        wait_for_exit(pid).await;
    }
}

fn find(program: &'static str, search_path: &OsStr) -> Result<PathBuf, Error> {
    let executable =
        |path: &PathBuf| path.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0);
    std::env::split_paths(search_path)
        .chain(["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin"].map(PathBuf::from))
        .map(|dir| dir.join(program))
        .find(executable)
        .ok_or(Error::ProgramMissing { program })
}

/// systemd makes the cgroups where it is pid 1 on a unified hierarchy; else runc writes the folders.
pub(super) fn cgroup_driver() -> CgroupDriver {
    let unified = Path::new("/sys/fs/cgroup/cgroup.controllers").exists();
    let systemd = Path::new("/run/systemd/system").exists();
    if unified && systemd { CgroupDriver::Systemd } else { CgroupDriver::Cgroupfs }
}

/// Tries a real mount in `root`: some file systems (overlay itself, NFS) cannot be its upper layer.
fn try_overlay(root: &Path) -> Overlay {
    use nix::mount::{MsFlags, mount, umount};
    let probe = root.join(".overlay-probe");
    let dirs = ["lower", "upper", "work", "merged"].map(|name| probe.join(name));
    if dirs.iter().any(|dir| fs::create_dir_all(dir).is_err()) {
        return Overlay::Fails;
    }
    let [lower, upper, work, merged] = &dirs;
    let options = format!("lowerdir={},upperdir={},workdir={}", lower.display(), upper.display(), work.display());
    let works = mount(Some("overlay"), merged, Some("overlay"), MsFlags::empty(), Some(options.as_str())).is_ok();
    if works {
        let _next_start_removes_it = umount(merged);
    }
    let _next_start_removes_it = fs::remove_dir_all(&probe);
    if !works {
        warn!("overlayfs does not work here, images are kept as plain copies");
        return Overlay::Fails;
    }
    Overlay::Works
}

/// A TOML basic string.
fn quoted(text: impl AsRef<OsStr>) -> String {
    format!("{:?}", text.as_ref().to_string_lossy())
}

fn render(settings: &Settings<'_>) -> String {
    if settings.version.major >= 2 { render_v3(settings) } else { render_v2(settings) }
}

fn render_head(settings: &Settings<'_>, version: u32) -> String {
    format!(
        "# Written by kedge at each start; changes are lost.\nversion = {version}\nroot = {root}\nstate = {state}\n\n\
         [grpc]\n  address = {socket}\n\n[ttrpc]\n  address = {ttrpc}\n\n\
         [timeouts]\n  \"io.containerd.timeout.shim.load\" = \"{SHIM_ANSWER_SECS}s\"\n  \
         \"io.containerd.timeout.task.state\" = \"{SHIM_ANSWER_SECS}s\"\n\n",
        root = quoted(settings.root),
        state = quoted(settings.state),
        socket = quoted(settings.state.join("containerd.sock")),
        ttrpc = quoted(settings.state.join("containerd.sock.ttrpc")),
    )
}

fn render_registry(settings: &Settings<'_>, table: &str) -> String {
    match settings.config.registries.as_ref().map(|places| &places.certs_dir) {
        Some(dir) => format!("[plugins.{table}.registry]\n  config_path = {}\n", quoted(dir)),
        None => String::new(),
    }
}

/// How long a stream of exec, attach or port-forward may be silent. For ever is a year: containerd takes nothing for no
/// time at all.
fn stream_idle(limit: Duration) -> String {
    const EVER: Duration = Duration::from_secs(365 * 24 * 3600);
    format!("{}ms", if limit.is_zero() { EVER } else { limit }.as_millis().max(1))
}

/// Devices by their names in CDI files, in the usual folders. containerd 2.x does so by itself.
fn render_cdi(version: Version) -> &'static str {
    if version < WITH_CDI || version.major >= 2 {
        return "";
    }
    "  enable_cdi = true\n  cdi_spec_dirs = [\"/etc/cdi\", \"/var/run/cdi\"]\n"
}

/// containerd 1.6 and 1.7.
fn render_v2(settings: &Settings<'_>) -> String {
    let cri = "\"io.containerd.grpc.v1.cri\"";
    let mut text = render_head(settings, 2);
    text += &format!(
        "[plugins.\"io.containerd.internal.v1.opt\"]\n  path = {opt}\n\n\
         [plugins.{cri}]\n  sandbox_image = {pause}\n  stream_server_address = \"127.0.0.1\"\n  \
         stream_server_port = \"0\"\n  stream_idle_timeout = {idle}\n{cdi}  \
         enable_selinux = false\n  enable_unprivileged_ports = true\n  \
         enable_unprivileged_icmp = true\n  \
         restrict_oom_score_adj = {oom}\n  disable_apparmor = {apparmor}\n  \
         device_ownership_from_security_context = {devices}\n\n\
         [plugins.{cri}.containerd]\n  snapshotter = {snapshotter}\n  default_runtime_name = {default_runtime}\n  \
         disable_snapshot_annotations = true\n\n\
         [plugins.{cri}.containerd.runtimes.runc]\n  runtime_type = \"io.containerd.runc.v2\"\n\n\
         [plugins.{cri}.containerd.runtimes.runc.options]\n  SystemdCgroup = {systemd}\n\n\
         [plugins.{cri}.cni]\n  bin_dir = {bin}\n  conf_dir = {conf}\n\n",
        opt = quoted(settings.root.join("opt")),
        pause = quoted(&settings.config.pause_image),
        idle = quoted(stream_idle(settings.config.settings.stream_idle)),
        cdi = render_cdi(settings.version),
        oom = settings.restrict_oom_score_adj,
        apparmor = settings.disable_apparmor,
        devices = settings.nonroot_devices,
        snapshotter = quoted(settings.snapshotter),
        default_runtime = quoted(settings.default_runtime),
        systemd = settings.systemd_cgroup,
        bin = quoted(&settings.config.cni_bin_dir),
        conf = quoted(&settings.config.cni_conf_dir),
    );
    text + &render_extras(settings, cri) + &render_registry(settings, cri)
}

/// containerd 2.x, which split the CRI plugin in two.
fn render_v3(settings: &Settings<'_>) -> String {
    let (runtime, images) = ("\"io.containerd.cri.v1.runtime\"", "\"io.containerd.cri.v1.images\"");
    let mut text = render_head(settings, 3);
    text += &format!(
        "[plugins.\"io.containerd.internal.v1.opt\"]\n  path = {opt}\n\n\
         [plugins.\"io.containerd.grpc.v1.cri\"]\n  stream_server_address = \"127.0.0.1\"\n  \
         stream_server_port = \"0\"\n  stream_idle_timeout = {idle}\n\n\
         [plugins.{runtime}]\n{cdi}  enable_selinux = false\n  enable_unprivileged_ports = true\n  \
         enable_unprivileged_icmp = true\n  \
         restrict_oom_score_adj = {oom}\n  disable_apparmor = {apparmor}\n  \
         device_ownership_from_security_context = {devices}\n\n\
         [plugins.{runtime}.containerd]\n  default_runtime_name = {default_runtime}\n\n\
         [plugins.{runtime}.containerd.runtimes.runc]\n  runtime_type = \"io.containerd.runc.v2\"\n\n\
         [plugins.{runtime}.containerd.runtimes.runc.options]\n  SystemdCgroup = {systemd}\n\n\
         [plugins.{runtime}.cni]\n  bin_dir = {bin}\n  conf_dir = {conf}\n\n\
         [plugins.{images}]\n  snapshotter = {snapshotter}\n  disable_snapshot_annotations = true\n\n\
         [plugins.{images}.pinned_images]\n  sandbox = {pause}\n\n",
        opt = quoted(settings.root.join("opt")),
        pause = quoted(&settings.config.pause_image),
        idle = quoted(stream_idle(settings.config.settings.stream_idle)),
        cdi = render_cdi(settings.version),
        oom = settings.restrict_oom_score_adj,
        apparmor = settings.disable_apparmor,
        devices = settings.nonroot_devices,
        snapshotter = quoted(settings.snapshotter),
        default_runtime = quoted(settings.default_runtime),
        systemd = settings.systemd_cgroup,
        bin = quoted(&settings.config.cni_bin_dir),
        conf = quoted(&settings.config.cni_conf_dir),
    );
    text + &render_extras(settings, runtime) + &render_registry(settings, images)
}

#[cfg(test)]
mod tests {
    use super::*;

    // review node.md S6: one that needed more than a minute ended the server, API included, again and again
    #[tokio::test]
    async fn a_containerd_that_takes_its_time_is_waited_for() {
        let (asked, told) = (std::cell::Cell::new(0), std::cell::Cell::new(0));
        let at_last = || async {
            asked.set(asked.get() + 1);
            if asked.get() < 3 {
                std::future::pending::<()>().await;
            }
        };
        assert!(patiently(at_last, Duration::from_millis(1), || told.set(told.get() + 1)).await);
        assert_eq!(told.get(), 2);
        assert!(!patiently(std::future::pending::<()>, Duration::from_millis(1), || told.set(told.get() + 1)).await);
    }

    // The genuine program judges: what it takes here it takes at the start.
    #[test]
    fn containerd_judges_additions_before_they_are_used() {
        let Ok(program) = find("containerd", OsStr::new("")) else { return base::skips::say("there is no containerd") };
        let dir = tempfile::tempdir().unwrap();
        let candidate = dir.path().join("c.toml");
        let of = |text: &str| drop_ins::judge(&program, &candidate, text);
        let cri = "[plugins.\"io.containerd.grpc.v1.cri\"]\n";
        of(&format!("version = 2\n{cri}sandbox_image = \"x\"\n")).unwrap();
        for bad in [&format!("version = 2\n{cri}sandbox_image = 7\n"), "version = \"two\"\n", "version = 2\n["] {
            assert!(of(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn devices_have_cdi_names_from_the_version_on_that_knows_them() {
        let of = |major, minor| render_cdi(Version { major, minor }).contains("enable_cdi = true");
        assert_eq!((of(1, 6), of(1, 7), of(2, 1)), (false, true, false), "2.x does so by itself");
    }

    #[test]
    fn a_stream_may_be_silent_as_long_as_the_node_says() {
        let told = |secs| stream_idle(Duration::from_secs(secs));
        assert_eq!((told(300).as_str(), told(0).as_str()), ("300000ms", "31536000000ms"));
    }

    #[test]
    fn runtimes_on_the_path_become_handlers() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["containerd-shim-spin-v2", "nvidia-container-runtime"] {
            let path = dir.path().join(name);
            fs::write(&path, "").unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        let found = extras(dir.path().as_os_str());
        let of =
            |handler: &str| found.iter().find(|e| e.handler == handler).map(|e| (e.kind.as_str(), e.program.is_some()));
        assert_eq!(
            (of("spin"), of("nvidia")),
            (Some(("io.containerd.spin.v2", false)), Some(("io.containerd.runc.v2", true)))
        );
    }

    #[test]
    fn a_snapshotter_is_as_asked_for_but_never_one_that_cannot_work() {
        let root = Path::new("/data");
        assert_eq!(snapshotter(None, Overlay::Works, root).unwrap(), "overlayfs");
        assert_eq!(snapshotter(None, Overlay::Fails, root).unwrap(), "native");
        assert_eq!(snapshotter(Some("btrfs"), Overlay::Works, root).unwrap(), "btrfs");
        let refused = snapshotter(Some("overlayfs"), Overlay::Fails, root).unwrap_err().to_string();
        assert!(refused.contains("take another data folder or --snapshotter=native"), "{refused}");
    }

    #[test]
    fn a_default_runtime_must_be_on_this_machine() {
        let kata = Extra { handler: "kata", kind: "io.containerd.kata.v2".to_owned(), program: None };
        assert!(has_handler(&[], "runc") && has_handler(std::slice::from_ref(&kata), "kata"));
        assert!(!has_handler(&[kata], "crun"));
    }

    #[test]
    fn a_missing_program_names_its_package() {
        let err = find("no-such-program", OsStr::new("/nowhere")).unwrap_err();
        assert!(err.to_string().contains("install the package no-such-program"), "{err}");
    }
}
