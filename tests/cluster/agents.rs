//! Duties of one server and two agents whose inbound connections are dropped, and what every wrong way to join is
//! told.

use std::fs;
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use crate::hosts::{Host, Said, kill_hard, kubectl, make_lan, pid_of, run as run_command, wait_for};
use crate::{life, network};

const SERVER: &str = "https://10.210.0.10:6443";
/// Machines become nodes within this, on a machine that is busy with other tests.
pub(crate) const NODES_LIMIT: Duration = Duration::from_secs(180);
pub(crate) const PODS_LIMIT: Duration = Duration::from_secs(180);

/// Only what a machine asked for comes in, and the other nodes' overlay.
const CLOSED: &str = "table inet closed { chain in { type filter hook input priority 0; policy drop; iif lo accept; \
    udp dport 8472 accept; iifname cni0 accept; ct state established,related accept; } ; }";

pub(crate) struct Cluster {
    pub(crate) server: Host,
    pub(crate) agents: [Host; 2],
    token: String,
}

impl Cluster {
    pub(crate) fn kubectl(&self, args: &[&str]) -> Said {
        run_command(
            self.server
                .command("timeout")
                .arg("60")
                .arg(kubectl())
                .arg("--kubeconfig")
                .arg(self.server.dir.join("kubeconfig"))
                .args(args),
        )
    }

    /// `kedge agent --check` on the first agent's machine, from a folder that never joined.
    fn check(&self, server: &str, token: &str, name: &str) -> Said {
        let fresh = self.agents[0].dir.join("fresh");
        let mut command =
            self.agents[0].kedge("agent", &["--check", "--server", server, "--token", token, "--node-name", name]);
        run_command(command.arg("--data-dir").arg(fresh))
    }

    fn ready_nodes(&self, n: usize) {
        wait_for("nodes", NODES_LIMIT, || {
            let said = self.kubectl(&["get", "nodes", "--no-headers"]);
            let ready = said.text.lines().filter(|line| line.contains(" Ready")).count();
            if ready == n {
                Ok(())
            } else {
                Err(format!("{}\n{}\n{}", said.text, self.server.log("log"), self.agents[0].log("log")))
            }
        });
    }

    /// Applies an object.
    pub(crate) fn apply(&self, object: &serde_json::Value) {
        let file = self.server.dir.join("apply.json");
        fs::write(&file, object.to_string()).unwrap();
        let said = self.kubectl(&["apply", "-f", file.to_str().unwrap()]);
        assert!(said.ok, "{}", said.text);
    }

    pub(crate) fn exec(&self, pod: &str) -> Result<String, String> {
        let said = self.kubectl(&["exec", pod, "--", "hostname"]);
        if said.ok { Ok(said.text.trim().to_owned()) } else { Err(said.text) }
    }
}

pub(crate) fn run(program: &Path) {
    let place = tempfile::Builder::new().prefix("kedge-cluster-").tempdir().unwrap();
    make_lan();
    let server = Host::new("s", 10, place.path(), program);
    let kubeconfig = format!("--write-kubeconfig={}", server.dir.join("kubeconfig").display());
    let started = server.start("server", &[&kubeconfig], "log");
    let token_file = server.data_dir().join("server/node-token");
    let token = wait_for("the token", NODES_LIMIT, || {
        server
            .dir
            .join("kubeconfig")
            .exists()
            .then(|| std::fs::read_to_string(&token_file).ok())
            .flatten()
            .ok_or_else(|| server.log("log"))
    });
    let agents = [Host::new("a", 11, place.path(), program), Host::new("b", 12, place.path(), program)];
    let cluster = Cluster { server, agents, token: token.trim().to_owned() };
    let join = ["--server", SERVER, "--token", &cluster.token];
    let began = Instant::now();
    let mut roles: Vec<_> = cluster.agents.iter().map(|agent| agent.start("agent", &join, "log")).collect();
    cluster.ready_nodes(3);
    println!("both agents are Ready after {:.1} s; one holds {}", began.elapsed().as_secs_f32(), resident(&roles[0]));
    pods_behind_a_firewall(&cluster);
    life::drained(&cluster);
    let second = life::started_again(&cluster, roles.remove(1), &join);
    roles.insert(1, second);
    wrong_ways_to_join(&cluster);
    bootstrap_tokens(&cluster, &kubeconfig);
    network::tell(&cluster);
    kill_hard(started);
    kill_hard(roles.remove(0));
    a_start_without_a_server(&cluster, &join, &kubeconfig);
}

/// Memory of a role, as the kernel counts it.
fn resident(role: &Child) -> String {
    let status = fs::read_to_string(format!("/proc/{}/status", pid_of(role))).unwrap();
    status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default().trim().to_owned()
}

fn pods_behind_a_firewall(cluster: &Cluster) {
    let tar = cluster.server.dir.join("busybox.tar");
    let made =
        run_command(Command::new("sh").arg(concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/busybox-image.sh")).arg(&tar));
    assert!(made.ok, "{}", made.text);
    let import = "for socket in /run/kedge*/containerd/containerd.sock; do ctr --address $socket -n k8s.io images \
        import \"$0\"; done";
    cluster.server.must("sh", &["-c", import, tar.to_str().unwrap()]);
    for agent in &cluster.agents {
        agent.must("nft", &[CLOSED]);
        agent.must("sh", &["-c", import, tar.to_str().unwrap()]);
        let pod = serde_json::json!({"apiVersion": "v1", "spec": {"nodeName": agent.name}}).to_string();
        let image = ["run", agent.name, "--image=kedge.local/busybox:1", "--image-pull-policy=Never"];
        let made = cluster.kubectl(
            &[
                image.as_slice(),
                &["--overrides", &pod, "--command", "--", "sh", "-c", "echo I am $(hostname); sleep 1000"],
            ]
            .concat(),
        );
        assert!(made.ok, "{}", made.text);
    }
    for agent in &cluster.agents {
        let name = wait_for("exec through the tunnel", PODS_LIMIT, || cluster.exec(agent.name));
        assert_eq!(name, agent.name);
        assert_eq!(cluster.kubectl(&["logs", agent.name]).text.trim(), format!("I am {}", agent.name));
    }
    let inward =
        run_command(cluster.server.command("timeout").args(["2", "bash", "-c", "</dev/tcp/10.210.0.11/10250"]));
    assert!(!inward.ok, "the firewall is none");
    println!("logs and exec reach pods behind a firewall");
}

fn wrong_ways_to_join(cluster: &Cluster) {
    let token = &cluster.token;
    let (pin, _) = token.split_once("::").unwrap();
    let fine = cluster.check(SERVER, token, "new");
    assert!(fine.ok && fine.text.contains("may join"), "{}", fine.text);
    let foreign = format!("K10{}::server:x", "0".repeat(64));
    let wrong = |server: &str, token: &str, name: &str, wants: &[&str]| {
        let said = cluster.check(server, token, name);
        assert!(!said.ok, "{wants:?}: {}", said.text);
        wants.iter().for_each(|want| assert!(said.text.contains(want), "want {want:?} in: {}", said.text));
    };
    wrong(SERVER, &foreign, "new", &[&"0".repeat(64), pin.trim_start_matches("K10")]);
    wrong(SERVER, &format!("{pin}::server:nope"), "new", &["does not accept this token's password"]);
    wrong(SERVER, "nope", "new", &["DOES NOT SAY WHICH CLUSTER", "does not accept"]);
    wrong(
        SERVER,
        &format!("{pin}::abcdef.0123456789abcdef"),
        "new",
        &["no bootstrap token abcdef", "kedge token create"],
    );
    wrong(SERVER, token, "b", &["the node name b is taken", "10.210.0.12", "--with-node-id"]);
    wrong(SERVER, token, "s", &["the node name s is taken"]);
    wrong(SERVER, token, "Bad_Name", &["--node-name"]);
    wrong("https://10.210.0.10:6999", token, "new", &["cannot reach https://10.210.0.10:6999", "firewall"]);
    wrong("http://10.210.0.10:6443", token, "new", &["does not begin with https://"]);
    let server = cluster.agents[0].dir.join("server");
    let mut refused = cluster.agents[0].kedge("server", &["--disable-agent", "--token", token, "--data-dir"]);
    let said =
        run_command(refused.arg(&server).arg(format!("--write-kubeconfig={}", server.join("kubeconfig").display())));
    assert!(!said.ok && said.text.contains("this server has its own"), "{}", said.text);
    println!("wrong ways to join are told why");
}

fn bootstrap_tokens(cluster: &Cluster, kubeconfig: &str) {
    let config = kubeconfig.replace("--write-kubeconfig", "--kubeconfig");
    let token = |args: &[&str]| {
        run_command(cluster.server.command(std::env::var_os("KEDGE_BIN").unwrap()).arg("token").args(args).arg(&config))
    };
    let create = || {
        let made = token(&["create", "--ttl=1h", "--description=edge"]);
        assert!(made.ok, "{}", made.text);
        let text = made.text.trim().to_owned();
        assert!(cluster.check(SERVER, &text, "new").ok);
        let id = text.rsplit("::").next().unwrap().split('.').next().unwrap().to_owned();
        assert!(token(&["list"]).text.contains(&id));
        (text, id)
    };
    let (text, id) = create();
    assert!(token(&["delete", &id]).ok);
    assert!(cluster.check(SERVER, &text, "new").text.contains("no bootstrap token"));
    let (text, id) = create();
    let past = serde_json::json!({"stringData": {"expiration": "2026-01-01T00:00:00Z"}}).to_string();
    assert!(
        cluster.kubectl(&["-n", "kube-system", "patch", "secret", &format!("bootstrap-token-{id}"), "-p", &past]).ok
    );
    // A controller sweeps expired ones away at once: who asks before it is told the time.
    let late = cluster.check(SERVER, &text, "new");
    let told = late.text.contains("expired at 2026-01-01T00:00:00Z") || late.text.contains("no bootstrap token");
    assert!(!late.ok && told, "{}", late.text);
    println!("bootstrap tokens begin and end");
}

/// The server is dead: an agent starts all the same, its pod runs on, a static pod begins, and all is well when the
/// server is back.
fn a_start_without_a_server(cluster: &Cluster, join: &[&str], kubeconfig: &str) {
    let out = cluster.agents[0].dir.join("out");
    fs::create_dir(&out).unwrap();
    let fixed = serde_json::json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "fixed"}, "spec": {
        "containers": [{"name": "c", "image": "kedge.local/busybox:1", "imagePullPolicy": "Never",
            "command": ["sh", "-c", "ip -4 address show eth0 >/out/address; sleep 1000"],
            "volumeMounts": [{"name": "out", "mountPath": "/out"}]}],
        "volumes": [{"name": "out", "hostPath": {"path": out}}]}});
    fs::write(cluster.agents[0].data_dir().join("agent/pod-manifests/fixed.yaml"), fixed.to_string()).unwrap();
    let mut again = cluster.agents[0].start("agent", join, "again");
    wait_for("a start without a server", NODES_LIMIT, || {
        let log = cluster.agents[0].log("again");
        if log.contains("kedge agent is up") { Ok(()) } else { Err(log) }
    });
    assert!(cluster.agents[0].log("again").contains("credentials of last time"));
    // review node.md M17: its network waited for the server to tell of policies.
    wait_for("a static pod with a network of its own", PODS_LIMIT, || {
        let address = fs::read_to_string(out.join("address")).unwrap_or_default();
        if address.contains("inet 10.42.") { Ok(()) } else { Err(cluster.agents[0].log("again")) }
    });
    let mut server = cluster.server.start("server", &[kubeconfig], "again");
    let name = wait_for("exec after the server's return", NODES_LIMIT, || cluster.exec("a"));
    assert_eq!(name, "a");
    println!("an agent that started without a server is back");
    network::server_moves(cluster);
    // The machines' ends take them along; this only keeps nsenter from being left behind.
    let _gone = (again.kill(), server.kill(), again.wait(), server.wait());
}
