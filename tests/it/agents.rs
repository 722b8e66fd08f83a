//! Bad input to `kedge agent`: exit code 1, a text that names the flag, key or file, and nothing half-written; and what
//! a server tells a machine that only asks.

use std::fs;
use std::io::Write as _;
use std::net::TcpListener;
use std::process::Command;

use crate::harness::{Said, Server, free_port, run_with};

/// Nobody listens there.
fn nowhere() -> String {
    format!("https://127.0.0.1:{}", free_port())
}

fn is_root() -> bool {
    run_with(Command::new("id").arg("-u"), "").out == "0\n"
}

/// `kedge agent --check` in a folder of its own.
fn check(args: &[&str], config: &str) -> Said {
    let place = tempfile::tempdir().unwrap();
    let (file, data) = (place.path().join("config.yaml"), place.path().join("data"));
    fs::write(&file, config).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_kedge"));
    command
        .arg("agent")
        .arg("--check")
        .arg(format!("--data-dir={}", data.display()))
        .args(args)
        .env("KEDGE_CONFIG_FILE", &file);
    let said = run_with(&mut command, "");
    assert!(!data.join("agent/membership.json").exists(), "a check left a membership");
    said
}

fn refused(args: &[&str], config: &str, words: &[&str]) {
    if !is_root() {
        return base::skips::say("an agent needs root");
    }
    let said = check(args, config);
    assert_eq!(said.code, 1, "{args:?}: {said:?}");
    for word in words {
        assert!(said.err.contains(word), "{args:?}: no '{word}' in: {}", said.err);
    }
}

#[test]
fn an_agents_flags_are_judged_before_a_server_is_asked() {
    let url = nowhere();
    let with = |more: &[&str], words: &[&str]| {
        let args: Vec<&str> = ["--server", &url, "--token=x"].into_iter().chain(more.iter().copied()).collect();
        refused(&args, "", words);
    };
    with(&["--tokn=x"], &["--tokn", "--token"]);
    with(&["--node-label=a"], &["--node-label", "'a' is not KEY=VALUE"]);
    with(&["--node-taint=a=b:Never"], &["--node-taint", "a=b:Never"]);
    with(&["--node-ip=a"], &["--node-ip", "'a'"]);
    with(&["--node-name=Bad_Name"], &["Bad_Name", "--node-name"]);
    with(&["--kubelet-arg=no-such-flag=1"], &["--kubelet-arg", "no-such-flag"]);
    with(&["--lb-server-port=70000"], &["--lb-server-port", "70000"]);
    with(&["--config=/no/such/kedge.yaml"], &["/no/such/kedge.yaml"]);
    with(&["--token-file=/no/such/token"], &["--token-file", "--token"]);
    refused(&["--token=x"], "", &["--server"]);
    refused(&["--server=http://127.0.0.1:6443", "--token=x"], "", &["--server", "does not begin with https://"]);
    refused(&["--server=https://127.0.0.1:99999", "--token=x"], "", &["--server", "99999", "port"]);
    refused(&["--server", &url, "--token=K10zz::x"], "", &["--token", "64 hex digits"]);
    refused(&["--server", &url, "--token-file=/no/such/token"], "", &["/no/such/token"]);
}

#[test]
fn an_agents_configuration_is_judged_key_by_key() {
    let url = nowhere();
    refused(&[], &format!("server: {url}\ntoken: x\nnode-nam: a\n"), &["node-nam", "config.yaml"]);
    // A server's key is no agent's.
    refused(&[], &format!("server: {url}\ntoken: x\ncluster-cidr: 10.0.0.0/16\n"), &["cluster-cidr", "config.yaml"]);
    refused(&[], "server: [a\n", &["config.yaml"]);
    let dir = tempfile::tempdir().unwrap();
    refused(&[&format!("--config={}", dir.path().display())], "", &[&dir.path().display().to_string()]);
}

#[test]
fn an_agent_says_what_is_at_the_other_end() {
    let url = nowhere();
    refused(&["--server", &url, "--token=x"], "", &["cannot join", &url, "firewall"]);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    let answers = std::thread::spawn(move || {
        for stream in listener.incoming().take(1) {
            stream.unwrap().write_all(b"SSH-2.0-none\r\n").unwrap();
        }
    });
    refused(&["--server", &url, "--token=x"], "", &["cannot join", &url, "is not a kedge server"]);
    if is_root() {
        answers.join().unwrap();
    }
}

#[test]
fn a_server_tells_a_machine_that_only_asks() {
    if !is_root() {
        return base::skips::say("an agent needs root");
    }
    let server = Server::start();
    let url = format!("https://127.0.0.1:{}", server.place.port);
    let token = fs::read_to_string(server.place.data_dir().join("server/node-token")).unwrap();
    let (pin, _) = token.trim().split_once("::").unwrap();
    let ask = |token: &str, more: &[&str]| {
        let args: Vec<&str> = ["--server", &url, "--node-ip=192.0.2.9", "--node-name=edge"]
            .into_iter()
            .chain(more.iter().copied())
            .collect();
        check(&args, &format!("token: {token}\n"))
    };
    let fine = ask(token.trim(), &[]);
    assert!(fine.code == 0 && fine.out.contains("may join") && fine.out.contains("node edge"), "{fine:?}");
    assert!(server.refused(&["get", "node", "edge"]).contains("not found"));
    let wrong = |token: &str, words: &[&str]| {
        let said = ask(token, &[]);
        assert_eq!(said.code, 1, "{said:?}");
        words.iter().for_each(|word| assert!(said.err.contains(word), "no '{word}' in: {}", said.err));
        assert!(!said.err.contains("nope-secret"), "a token in the output: {}", said.err);
    };
    wrong(&format!("K10{}::node:nope-secret", "0".repeat(64)), &[&"0".repeat(64), pin.trim_start_matches("K10")]);
    wrong(&format!("{pin}::node:nope-secret"), &["does not accept this token's password"]);
    wrong("nope-secret", &["DOES NOT SAY WHICH CLUSTER", "does not accept"]);
    wrong(&format!("{pin}::abcdef.0123456789abcdef"), &["no bootstrap token abcdef", "kedge token create"]);
    wrong("''", &["token"]);
}
