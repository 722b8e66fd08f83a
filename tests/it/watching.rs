//! Watches: every change once, in order, and nothing that was not asked for.

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;
use std::sync::mpsc;
use std::time::Duration;

use crate::harness::{Running, Server, wait_for};

/// A change reaches a watcher within this.
const EVENT_LIMIT: Duration = Duration::from_secs(20);

/// Lines of a kubectl that keeps running.
struct Lines {
    _process: Running,
    lines: mpsc::Receiver<String>,
}

impl Lines {
    fn of(server: &Server, args: &[&str]) -> Lines {
        let mut child = server.place.kubectl(args).stdout(Stdio::piped()).spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let (tx, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                if tx.send(line).is_err() {
                    return;
                }
            }
        });
        Lines { _process: Running(child), lines }
    }

    fn next(&self) -> String {
        self.lines.recv_timeout(EVENT_LIMIT).unwrap_or_else(|_| panic!("no line within {EVENT_LIMIT:?}"))
    }
}

#[test]
fn a_watch_tells_each_change_once_and_in_order() {
    let server = Server::start();
    server.ok(&["create", "cm", "a", "--from-literal=v=0"]);
    let args = [
        "get",
        "cm",
        "-l",
        "seen=yes",
        "-w",
        "--output-watch-events",
        "-o",
        "jsonpath={.type} {.object.metadata.name} {.object.data.v}{\"\\n\"}",
    ];
    server.ok(&["label", "cm", "a", "seen=yes"]);
    let events = Lines::of(&server, &args);
    assert_eq!(events.next(), "ADDED a 0");
    for v in 1..=5 {
        server.ok(&["patch", "cm", "a", "--type=merge", "-p", &format!(r#"{{"data":{{"v":"{v}"}}}}"#)]);
    }
    for v in 1..=5 {
        assert_eq!(events.next(), format!("MODIFIED a {v}"));
    }
    server.ok(&["create", "cm", "unseen"]);
    // Leaving the selector is a deletion for this watcher, coming back an addition.
    server.ok(&["label", "cm", "a", "seen-"]);
    assert_eq!(events.next(), "DELETED a 5");
    server.ok(&["label", "cm", "a", "seen=yes"]);
    assert_eq!(events.next(), "ADDED a 5");
    server.ok(&["delete", "cm", "a"]);
    assert_eq!(events.next(), "DELETED a 5");
    drop(events);
    server.stop();
}

#[test]
fn a_watch_resumes_where_it_was_told_to() {
    let server = Server::start();
    server.ok(&["create", "cm", "a"]);
    let rv = server.ok(&["get", "cm", "a", "-o", "jsonpath={.metadata.resourceVersion}"]);
    server.ok(&["label", "cm", "a", "step=1"]);
    server.ok(&["delete", "cm", "a"]);
    let path = format!(
        "/api/v1/namespaces/default/configmaps?watch=true&fieldSelector=metadata.name%3Da&resourceVersion={rv}&timeoutSeconds=1"
    );
    let text = server.ok(&["get", "--raw", &path]);
    let kinds: Vec<String> = text
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["type"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(kinds, ["MODIFIED", "DELETED"]);
    server.stop();
}

#[test]
fn kubectl_wait_sees_conditions_and_deletions() {
    let server = Server::start();
    server.ok(&["create", "cm", "a"]);
    let waiting = server
        .place
        .kubectl(&["wait", "cm/a", "--for=delete", "--timeout=20s"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut waiting = Running(waiting);
    let value = server
        .place
        .kubectl(&["wait", "cm/a", "--for=jsonpath={.data.k}=v", "--timeout=20s"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut value = Running(value);
    server.ok(&["patch", "cm", "a", "-p", r#"{"data":{"k":"v"}}"#]);
    assert_eq!(value.ended("kubectl wait for a value", EVENT_LIMIT), 0);
    server.ok(&["delete", "cm", "a"]);
    assert_eq!(waiting.ended("kubectl wait for a deletion", EVENT_LIMIT), 0);
    server.stop();
}

#[test]
fn a_watch_ends_when_the_server_stops() {
    let server = Server::start();
    let mut watch =
        Running(server.place.kubectl(&["get", "cm", "-w", "-o", "name"]).stdout(Stdio::piped()).spawn().unwrap());
    let mut first = String::new();
    BufReader::new(watch.0.stdout.take().unwrap()).read_line(&mut first).unwrap();
    assert!(first.starts_with("configmap/"), "{first}");
    server.stop();
    wait_for("the watch to end", EVENT_LIMIT, || {
        watch.0.try_wait().unwrap().ok_or_else(|| "still watching".to_owned())
    });
}
