//! The program's word about itself is true: `kedge status`, `/version`, `kedge snapshot ls`, and flags that name what
//! there is not.

use std::fs;
use std::process::Command;

use serde_json::Value;

use crate::harness::{Place, Said, Server, run_with};

fn kedge(args: &[&str], place: &Place) -> Said {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kedge"));
    command
        .args(args)
        .arg(format!("--data-dir={}", place.data_dir().display()))
        .env("KEDGE_CONFIG_FILE", place.path("config.yaml"));
    run_with(&mut command, "")
}

fn bytes_below(dir: &std::path::Path) -> u64 {
    fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).sum()
}

#[test]
fn status_tells_of_the_server_whose_folder_was_named() {
    // Another server of the same machine is not this one.
    let (other, server) = (Server::start(), Server::start());
    let said = |server: &Server| {
        let kubeconfig = format!("--kubeconfig={}", server.place.kubeconfig().display());
        let said = kedge(&["status", "-o", "json", &kubeconfig], &server.place);
        serde_json::from_str::<Value>(&said.out).unwrap_or_else(|_| panic!("{said:?}"))
    };
    for server in [&server, &other] {
        let told = said(server);
        assert_eq!(told["version"]["pid"], server.pid(), "{told}");
        let log = bytes_below(&server.place.data_dir().join("server/db/log"));
        assert!(log > 0 && told["store"]["logBytes"] == log, "{log}: {told}");
        assert!(told["store"]["slowestWriteSeconds"].as_f64().is_some_and(|secs| secs > 0.0), "{told}");
    }
    // The API, and every node, say one version; where it comes from is no secret.
    let version: Value = serde_json::from_str(&server.ok(&["get", "--raw", "/version"])).unwrap();
    assert_eq!(version["gitVersion"], base::version::GIT_VERSION);
    let commit = version["gitCommit"].as_str().unwrap();
    assert!(commit == "unknown" || (commit.len() == 40 && version["buildDate"] != "1970-01-01T00:00:00Z"), "{version}");
    // A snapshot that is damaged is named, and does not pass for one that is not there.
    let saved = kedge(&["snapshot", "save"], &server.place);
    assert_eq!(saved.code, 0, "{saved:?}");
    let dir = server.place.data_dir().join("server/db/snapshots");
    let whole = fs::read_dir(&dir).unwrap().next().unwrap().unwrap().path();
    fs::write(dir.join("broken-x-1.tar.zst"), &fs::read(&whole).unwrap()[..60]).unwrap();
    let listed = kedge(&["snapshot", "ls"], &server.place);
    assert!(listed.err.contains("broken-x-1.tar.zst") && listed.err.contains("is damaged"), "{listed:?}");
    assert!(listed.out.contains(whole.file_name().unwrap().to_str().unwrap()), "{listed:?}");
    server.check_log();
}

#[test]
fn a_component_that_there_is_not_cannot_be_disabled() {
    let place = Place::new(&["--disable=corends"]);
    let said = place.refused();
    assert!(said.err.contains("--disable") && said.err.contains("corends") && said.err.contains("coredns"), "{said:?}");
    // A file of the operator's own is a component, too.
    let place = Place::new(&["--disable=coredns", "--disable=mine"]);
    fs::create_dir_all(place.data_dir().join("server/manifests")).unwrap();
    fs::write(place.data_dir().join("server/manifests/mine.yaml"), "").unwrap();
    Server::start_in(place).stop();
}
