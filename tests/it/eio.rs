//! A disk that fails under the real program: strace gives EIO to its writes and syncs. The process ends and says why,
//! lets no log go, and the next one has everything that was acknowledged.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::harness::{Place, Running, Said, Server, wait_for};

/// A process that is traced ends within this.
const END_LIMIT: Duration = Duration::from_secs(120);
/// Bytes of an object: a few of them fill a segment of the log, which is brought to the database then.
const OBJECT_BYTES: usize = 900_000;

/// Whether strace is there and may trace.
fn can_trace() -> bool {
    Command::new("strace")
        .args(["-qq", "-o", "/dev/null", "true"])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|s| s.success())
}

/// From now on `calls` on the files fail in the server. The tracer ends with it.
fn fail(server: &Server, calls: &str, files: &[PathBuf]) -> Running {
    let traced = server.place.path("traced");
    let mut strace = Command::new("strace");
    strace.args(["-f", "-qq", "-p", &server.pid().to_string(), "-o"]).arg(&traced);
    strace.args(["-e", &format!("trace={calls}"), "-e", &format!("inject={calls}:error=EIO")]);
    for file in files {
        strace.arg("-P").arg(file);
    }
    let tracer = Running(strace.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    wait_for("the server to be traced", END_LIMIT, || {
        let tasks = fs::read_dir(format!("/proc/{}/task", server.pid())).map_err(|err| err.to_string())?;
        let untraced: Vec<PathBuf> = tasks.map(|task| task.unwrap().path()).filter(|task| !is_traced(task)).collect();
        if untraced.is_empty() { Ok(()) } else { Err(format!("{untraced:?} are not")) }
    });
    tracer
}

fn is_traced(task: &Path) -> bool {
    // A thread that has ended since is as good.
    let status = fs::read_to_string(task.join("status")).unwrap_or_default();
    status.lines().find_map(|line| line.strip_prefix("TracerPid:")).is_none_or(|pid| pid.trim() != "0")
}

fn segments(place: &Place) -> BTreeSet<PathBuf> {
    fs::read_dir(place.data_dir().join("server/db/log")).unwrap().map(|file| file.unwrap().path()).collect()
}

/// Writes until the server ends. Answers with the objects that were acknowledged.
fn write_until_it_ends(server: &mut Server, prefix: &str) -> Vec<String> {
    let (value, mut kept) = (server.place.path("value"), Vec::new());
    fs::write(&value, "x".repeat(OBJECT_BYTES)).unwrap();
    wait_for("the server to end", END_LIMIT, || {
        if server.ended() {
            return Ok(());
        }
        let name = format!("{prefix}-{}", kept.len());
        let mut create = server.place.kubectl(&["create", "configmap", &name, "--request-timeout=20s"]);
        let said: Said = create.arg(format!("--from-file={}", value.display())).output().unwrap().into();
        if said.code == 0 {
            kept.push(format!("configmap/{name}"));
        }
        Err(said.err)
    });
    kept
}

fn story(calls: &str, files: impl Fn(&Place) -> Vec<PathBuf>, says: &[&str]) {
    if !can_trace() {
        base::skips::say("strace cannot trace here: no EIO for the real program");
        return;
    }
    let mut server = Server::start_in(Place::new(&["--disable=coredns"]));
    let mut kept: Vec<String> = (0..5).map(|n| format!("configmap/before-{n}")).collect();
    for name in &kept {
        server.ok(&["create", "configmap", name.trim_start_matches("configmap/")]);
    }
    let log_before = segments(&server.place);
    let tracer = fail(&server, calls, &files(&server.place));
    kept.extend(write_until_it_ends(&mut server, "during"));
    drop(tracer);
    let traced = fs::read_to_string(server.place.path("traced")).unwrap();
    assert!(traced.contains("(INJECTED)"), "nothing failed: {traced}");
    let log = fs::read_to_string(server.place.path("log")).unwrap();
    for text in [&["ERROR", "the disk failed the store", "kedge: ended because"], says].concat() {
        assert!(log.contains(text), "want {text:?} in: {log}");
    }
    let place = server.end_badly();
    assert!(log_before.is_subset(&segments(&place)), "a log was let go: {log_before:?}, {:?}", segments(&place));
    let server = Server::start_in(place);
    let now = server.ok(&["get", "configmaps", "-o", "name"]);
    assert!(kept.iter().all(|name| now.lines().any(|line| line == name)), "of {kept:?}: {now}");
    println!("{calls}: the server ended; {} acknowledged objects are there", kept.len());
}

#[test]
fn a_log_that_cannot_be_written_ends_the_server_and_costs_nothing_acknowledged() {
    story(
        "pwrite64,fdatasync,fsync",
        |place| segments(place).into_iter().collect(),
        &["cannot write the log", "os error 5"],
    );
}

#[test]
fn a_database_that_cannot_be_synced_ends_the_server_and_its_log_stays() {
    let database =
        |place: &Place| ["state.db", "state.db-wal"].map(|name| place.data_dir().join("server/db").join(name)).to_vec();
    story("fdatasync,fsync", database, &["disk I/O error"]);
}
