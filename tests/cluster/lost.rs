//! Servers that lose what they agree by: two of three for good, after which the last goes on alone by
//! `--cluster-reset`; and the leader among two servers over an etcd of somebody else's.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::hosts::{kill_hard, make_lan, run as run_command, wait_for};
use crate::servers::{LIMIT, Server};

/// Objects made before two servers are lost.
const OBJECTS: usize = 20;
/// Where the etcd of somebody else's is: on the bridge, which all machines reach.
const ETCD: &str = "http://10.210.0.1:23790";

fn token_of(server: &Server) -> String {
    std::fs::read_to_string(server.host.data_dir().join("server/token")).unwrap().trim().to_owned()
}

fn must(server: &Server, args: &[&str]) -> String {
    let said = server.kubectl(args);
    assert!(said.ok, "{} {args:?}: {}\n{}", server.host.name, said.text, server.log());
    said.text
}

pub(crate) fn reset(program: &Path) {
    let place = tempfile::Builder::new().prefix("kedge-lost-").tempdir().unwrap();
    make_lan();
    let mut servers: Vec<Server> = [("s1", 10), ("s2", 20), ("s3", 30)]
        .into_iter()
        .map(|(name, number)| Server::new(name, number, place.path(), program))
        .collect();
    servers[0].start(&[]);
    servers[0].serves(1);
    let (first, token) = (servers[0].url(), token_of(&servers[0]));
    for n in [1, 2] {
        servers[n].start(&["--server", &first, "--token", &token]);
        servers[n].serves(n + 1);
    }
    for n in 0..OBJECTS {
        must(&servers[n % 3], &["create", "configmap", &format!("kept-{n}"), "--from-literal=a=b"]);
    }
    // While it runs it is refused: two processes on one store would be the end of it.
    let refused = run_command(&mut servers[2].host.kedge("server", &["--cluster-reset"]));
    assert!(!refused.ok && refused.text.contains("in use by process"), "{}", refused.text);
    for server in &mut servers {
        kill_hard(server.role.take().unwrap());
    }
    // Two are gone for good. Without them the last has no majority; with the reset it is one.
    let reset = run_command(&mut servers[2].host.kedge("server", &["--cluster-reset"]));
    assert!(reset.ok && reset.text.contains("This server is the only member now"), "{}", reset.text);
    servers[2].start(&[]);
    servers[2].serves(1);
    let kept = must(&servers[2], &["get", "configmaps", "-o", "name"]);
    for n in 0..OBJECTS {
        assert!(kept.lines().any(|line| line == format!("configmap/kept-{n}")), "kept-{n} is lost: {kept}");
    }
    must(&servers[2], &["create", "configmap", "after"]);
    println!("the last of three goes on alone with all that was acknowledged");

    // One of the others comes back with its old store: it is of another cluster now, and moves nothing here.
    servers[1].start(&["--server", &first, "--token", &token]);
    wait_for("the member of the old cluster to call", LIMIT, || {
        let log = servers[2].log();
        if log.contains("a member of another cluster is turned away") {
            Ok(())
        } else {
            Err(format!("{log}\n{}", servers[1].log()))
        }
    });
    must(&servers[2], &["create", "configmap", "beside"]);
    servers[2].serves(1);
    kill_hard(servers[1].role.take().unwrap());
    // With an empty folder it joins anew, as the reset said.
    std::fs::remove_dir_all(servers[1].host.data_dir().join("server/db")).unwrap();
    let last = servers[2].url();
    servers[1].start(&["--server", &last, "--token", &token]);
    servers[1].serves(2);
    assert!(must(&servers[1], &["get", "configmap", "beside", "-o", "name"]).contains("beside"));
    println!("a server of the old cluster joins anew");
    for server in &mut servers {
        if let Some(role) = server.role.take() {
            kill_hard(role);
        }
    }
}

/// Ended with the story.
struct Etcd(Child);

impl Drop for Etcd {
    fn drop(&mut self) {
        let _gone = self.0.kill();
        let _reaped = self.0.wait();
    }
}

fn etcdctl(args: &[&str]) -> String {
    let said = run_command(Command::new("etcdctl").env("ETCDCTL_API", "3").args(["--endpoints", ETCD]).args(args));
    if said.ok { said.text } else { String::new() }
}

/// The one that leads, as the key in etcd says, and that it says so itself.
fn leads(servers: &[Server]) -> usize {
    wait_for("a leader", LIMIT, || {
        let holder = etcdctl(&["get", "/kedge/leader", "--print-value-only"]);
        let leading: Vec<usize> = (0..servers.len()).filter(|n| servers[*n].leads()).collect();
        match leading[..] {
            [one] if holder.trim() == servers[one].host.name => Ok(one),
            _ => Err(format!("{leading:?} lead, the key says '{}'", holder.trim())),
        }
    })
}

/// A Deployment becomes a ReplicaSet where controllers run: once in the cluster.
fn controllers_work(through: &Server, name: &str) {
    must(through, &["create", "deployment", name, "--image=kedge.local/none:1"]);
    wait_for("a ReplicaSet", LIMIT, || {
        let said = through.kubectl(&["get", "replicasets", "-l", &format!("app={name}"), "-o", "name"]);
        let n = said.text.lines().filter(|line| line.starts_with("replicaset")).count();
        if n == 1 { Ok(()) } else { Err(format!("{}\n{}", said.text, through.log())) }
    });
}

pub(crate) fn election(program: &Path) {
    let place = tempfile::Builder::new().prefix("kedge-external-").tempdir().unwrap();
    make_lan();
    let (data, peer) = (place.path().join("etcd"), "http://10.210.0.1:23800");
    let etcd = Command::new("etcd")
        .args(["--data-dir", data.to_str().unwrap(), "--listen-client-urls", ETCD, "--advertise-client-urls", ETCD])
        .args([
            "--listen-peer-urls",
            peer,
            "--initial-advertise-peer-urls",
            peer,
            "--initial-cluster",
            &format!("default={peer}"),
        ])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let Ok(etcd) = etcd else {
        base::skips::say("no etcd on PATH");
        return;
    };
    let _etcd = Etcd(etcd);
    let mut servers: Vec<Server> = [("s1", 10), ("s2", 20)]
        .into_iter()
        .map(|(name, number)| Server::new(name, number, place.path(), program))
        .collect();
    let store = format!("--datastore-endpoint={ETCD}");
    servers[0].start(&[&store]);
    servers[0].serves(1);
    let (first, token) = (servers[0].url(), token_of(&servers[0]));
    servers[1].start(&[&store, "--server", &first, "--token", &token]);
    servers[1].serves(2);
    let leader = leads(&servers);
    let other = 1 - leader;
    controllers_work(&servers[other], "both");

    // It is killed and says nothing: its lease has to end first.
    kill_hard(servers[leader].role.take().unwrap());
    assert_eq!(leads(&servers), other);
    controllers_work(&servers[other], "alone");
    println!("after a kill the other server leads over the external etcd");

    // It comes back, and takes nothing away from the one that leads.
    let more: &[&str] = if leader == 0 { &[&store] } else { &[&store, "--server", &first, "--token", &token] };
    servers[leader].start(more);
    servers[leader].serves(2);
    assert_eq!(leads(&servers), other);
    controllers_work(&servers[leader], "again");
    for server in &mut servers {
        if let Some(role) = server.role.take() {
            kill_hard(role);
        }
    }
}
