//! Survival of every acknowledged write, over SIGKILL and over an ordered stop.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::Stdio;

use crate::harness::{Place, Running, Server, run_with};

/// Acknowledgements after which the server is killed: different moments of a batch.
const KILLS: [usize; 3] = [7, 61, 150];

/// Creates ConfigMaps until the server is gone. Returns the names that were acknowledged.
fn write_until_killed(server: Server, round: usize, after: usize) -> (Place, BTreeSet<String>) {
    let mut command = server.place.kubectl(&["create", "-f", "-", "--validate=false"]);
    let mut writer =
        Running(command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap());
    let mut stdin = writer.0.stdin.take().unwrap();
    let feeding = std::thread::spawn(move || {
        for n in 0..2000 {
            let object = format!(
                "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: r{round}-{n}}}\ndata: {{number: \"{n}\"}}\n---\n"
            );
            if stdin.write_all(object.as_bytes()).is_err() {
                return;
            }
        }
    });
    let mut acknowledged = BTreeSet::new();
    let mut lines = BufReader::new(writer.0.stdout.take().unwrap()).lines().map_while(Result::ok);
    let name_of = |line: String| {
        line.strip_prefix("configmap/").and_then(|rest| rest.strip_suffix(" created")).map(str::to_owned)
    };
    acknowledged.extend(lines.by_ref().take(after).filter_map(name_of));
    assert_eq!(acknowledged.len(), after, "kubectl ended early");
    let place = server.kill();
    acknowledged.extend(lines.filter_map(name_of));
    drop(writer);
    feeding.join().unwrap();
    (place, acknowledged)
}

#[test]
fn no_acknowledged_write_is_lost_to_a_kill() {
    let mut place = Server::start().stop();
    let mut acknowledged = BTreeSet::new();
    for (round, after) in KILLS.into_iter().enumerate() {
        let server = Server::start_in(place);
        let (left, more) = write_until_killed(server, round, after);
        acknowledged.extend(more);
        place = left;
    }
    let server = Server::start_in(place);
    let found: BTreeSet<String> = server
        .ok(&["get", "cm", "-o", "name"])
        .lines()
        .map(|line| line.trim_start_matches("configmap/").to_owned())
        .collect();
    let lost: Vec<&String> = acknowledged.difference(&found).collect();
    assert!(lost.is_empty(), "lost {} of {} acknowledged writes: {lost:?}", lost.len(), acknowledged.len());
    let whole = server.ok(&["get", "cm", "r0-0", "-o", "jsonpath={.data.number}"]);
    assert_eq!(whole, "0");
    let place = server.stop();
    let db = place.data_dir().join("server/db/state.db");
    let checked = run_with(std::process::Command::new("sqlite3").arg(&db).arg("PRAGMA integrity_check"), "");
    assert_eq!(checked.out, "ok\n", "{checked:?}");
}

#[test]
fn a_restart_changes_nothing_but_the_process() {
    let server = Server::start();
    server.ok(&["create", "cm", "kept", "--from-literal=a=b"]);
    let before = server.ok(&[
        "get",
        "cm,svc,ns,clusterroles",
        "-A",
        "-o",
        "jsonpath={range .items[*]}{.kind} {.metadata.name} {.metadata.uid} {.metadata.resourceVersion}{\"\\n\"}{end}",
    ]);
    let kubeconfig = std::fs::read_to_string(server.place.kubeconfig()).unwrap();
    let token = std::fs::read_to_string(server.place.data_dir().join("server/token")).unwrap();
    let server = Server::start_in(server.stop());
    let after = server.ok(&[
        "get",
        "cm,svc,ns,clusterroles",
        "-A",
        "-o",
        "jsonpath={range .items[*]}{.kind} {.metadata.name} {.metadata.uid} {.metadata.resourceVersion}{\"\\n\"}{end}",
    ]);
    assert_eq!(before, after);
    assert_eq!(kubeconfig, std::fs::read_to_string(server.place.kubeconfig()).unwrap());
    assert_eq!(token, std::fs::read_to_string(server.place.data_dir().join("server/token")).unwrap());
    server.stop();
}
