//! A quota of a namespace, asked through three servers at once: it lets in as many objects as it has places, and none
//! more.

use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::hosts::{kill_hard, kubectl, make_lan, wait_for};
use crate::servers::{LIMIT, Server};

/// Objects that the quota lets in, beside the one that every namespace has.
const PLACES: usize = 20;
/// Clients of each server, and the objects that each would like to make.
const CLIENTS: usize = 4;
const OBJECTS: usize = 10;

fn must(server: &Server, args: &[&str]) -> String {
    let said = server.kubectl(args);
    assert!(said.ok, "{} {args:?}: {}\n{}", server.host.name, said.text, server.log());
    said.text
}

/// A client that makes its objects one after the other, whatever becomes of each.
fn client(server: &Server, place: &Path, what: (&str, &str), number: usize) -> Command {
    let (kind, spec) = what;
    let mut objects = String::new();
    for n in 0..OBJECTS {
        let name = format!("{}-{number}-{n}", server.host.name);
        writeln!(objects, "---\napiVersion: v1\nkind: {kind}\nmetadata: {{name: {name}, namespace: team}}\n{spec}")
            .unwrap();
    }
    let path = place.join(format!("{}-{number}-{kind}.yaml", server.host.name));
    std::fs::write(&path, objects).unwrap();
    let mut command = server.host.command("timeout");
    command.arg("120").arg(kubectl()).arg("--kubeconfig").arg(server.host.dir.join("kubeconfig"));
    command.args(["create", "--validate=false", "-f"]).arg(path);
    command
}

/// All clients of all servers at once. Answers with how many objects the servers said they made, and with all that was
/// said.
fn at_once(servers: &[Server], place: &Path, what: (&str, &str)) -> (usize, String) {
    let clients: Vec<_> = servers
        .iter()
        .flat_map(|server| (0..CLIENTS).map(move |number| client(server, place, what, number)))
        .map(|mut client| client.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
        .collect();
    let said: Vec<_> = clients.into_iter().map(|client| client.wait_with_output().unwrap()).collect();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let all: String = said.iter().map(|one| text(&one.stdout) + &text(&one.stderr)).collect();
    (all.lines().filter(|line| line.ends_with(" created")).count(), all)
}

fn names(server: &Server, resource: &str) -> Vec<String> {
    let said = must(server, &["get", resource, "-n", "team", "-o", "name"]);
    said.lines().filter(|name| !name.ends_with("/kube-root-ca.crt")).map(str::to_owned).collect()
}

pub(crate) fn run(program: &Path) {
    let place = tempfile::Builder::new().prefix("kedge-quota-").tempdir().unwrap();
    make_lan();
    let mut servers: Vec<Server> = [("s1", 10), ("s2", 20), ("s3", 30)]
        .into_iter()
        .map(|(name, number)| Server::new(name, number, place.path(), program))
        .collect();
    servers[0].start(&[]);
    servers[0].serves(1);
    let (first, token) =
        (servers[0].url(), std::fs::read_to_string(servers[0].host.data_dir().join("server/token")).unwrap());
    for n in [1, 2] {
        servers[n].start(&["--server", &first, "--token", token.trim()]);
        servers[n].serves(n + 1);
    }
    must(&servers[0], &["create", "namespace", "team"]);
    let hard = format!("--hard=configmaps={},pods={PLACES},requests.cpu={}m", PLACES + 1, 10 * PLACES);
    must(&servers[0], &["create", "quota", "few", "-n", "team", &hard]);
    // A quota holds on a server from when that server has heard of it.
    for server in &servers {
        wait_for("the quota and what each namespace has", LIMIT, || {
            let said = server.kubectl(&[
                "get",
                "quota/few",
                "configmap/kube-root-ca.crt",
                "sa/default",
                "-n",
                "team",
                "-o",
                "name",
            ]);
            if said.ok { Ok(()) } else { Err(said.text) }
        });
    }
    let pod = "spec: {containers: [{name: c, image: kedge.local/none:1, resources: {requests: {cpu: 10m}}}]}";
    for what in [("ConfigMap", "data: {a: b}"), ("Pod", pod)] {
        let (n_made, said) = at_once(&servers, place.path(), what);
        let resource = format!("{}s", what.0.to_lowercase());
        let there = names(&servers[2], &resource);
        assert_eq!(there.len(), PLACES, "{resource}: {there:?}\n{said}");
        assert_eq!(n_made, PLACES, "{said}");
        assert_eq!(said.matches("exceeded quota: few").count(), 3 * CLIENTS * OBJECTS - PLACES, "{said}");
        // A place that is given up through one server is there for another.
        must(&servers[0], &["delete", "-n", "team", &there[0], "--grace-period=0", "--force"]);
        wait_for("the place that was given up", LIMIT, || {
            let more = client(&servers[1], place.path(), what, CLIENTS).output().unwrap();
            let n_made =
                String::from_utf8_lossy(&more.stdout).lines().filter(|line| line.ends_with(" created")).count();
            if n_made == 1 { Ok(()) } else { Err(String::from_utf8_lossy(&more.stderr).into_owned()) }
        });
        assert_eq!(names(&servers[0], &resource).len(), PLACES);
        println!("{} clients of three servers made {PLACES} {resource} under a quota of {PLACES}", 3 * CLIENTS);
    }
    for server in &mut servers {
        if let Some(role) = server.role.take() {
            kill_hard(role);
        }
    }
}
