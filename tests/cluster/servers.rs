//! Three servers and an agent: joining, wrong ways to join, the first server gone for good, leaders killed, paused and
//! cut off while clients write through all of them, and the way back to one.

use std::path::Path;
use std::process::Child;
use std::time::{Duration, Instant};

use crate::history::Clients;
use crate::hosts::{Host, Said, kill_hard, kubectl, make_lan, pid_of, run as run_command, wait_for, wake};

/// The time in which things must happen, on a machine that is busy with other tests.
pub(crate) const LIMIT: Duration = Duration::from_secs(180);
/// How often a leader is killed, paused or cut off, where KEDGE_KILLS does not say.
const KILLS: usize = 3;
/// A leader that is paused or cut off stays so for longer than an election.
const AWAY: Duration = Duration::from_secs(5);

pub(crate) struct Server {
    pub(crate) host: Host,
    ip: String,
    pub(crate) role: Option<Child>,
    starts: usize,
}

impl Server {
    pub(crate) fn new(name: &'static str, number: u8, place: &Path, program: &Path) -> Server {
        Server {
            host: Host::new(name, number, place, program),
            ip: format!("10.210.0.{number}"),
            role: None,
            starts: 0,
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("https://{}:6443", self.ip)
    }

    fn args(&self, more: &[&str]) -> Vec<String> {
        let kubeconfig = format!("--write-kubeconfig={}", self.host.dir.join("kubeconfig").display());
        let own = ["--disable-agent", "--disable=coredns", &kubeconfig];
        own.iter().chain(more).map(|arg| (*arg).to_owned()).collect()
    }

    pub(crate) fn start(&mut self, more: &[&str]) {
        self.starts += 1;
        let args = self.args(more);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        self.role = Some(self.host.start("server", &args, &format!("log{}", self.starts)));
    }

    pub(crate) fn log(&self) -> String {
        self.host.log(&format!("log{}", self.starts))
    }

    pub(crate) fn leads(&self) -> bool {
        let log = self.log();
        self.role.is_some()
            && log.matches("this server leads:").count() > log.matches("this server leads no more").count()
    }

    pub(crate) fn kubectl(&self, args: &[&str]) -> Said {
        let kubeconfig = self.host.dir.join("kubeconfig");
        run_command(
            self.host.command("timeout").arg("60").arg(kubectl()).arg("--kubeconfig").arg(kubeconfig).args(args),
        )
    }

    /// Waits until this server answers and all of `n` servers are endpoints.
    pub(crate) fn serves(&self, n: usize) {
        wait_for(&format!("{} to serve beside {n}", self.host.name), LIMIT, || {
            let said =
                self.kubectl(&["get", "endpointslice", "kubernetes", "-o", "jsonpath={.endpoints[*].addresses[0]}"]);
            let right = said.ok && said.text.split_whitespace().count() == n;
            if right { Ok(()) } else { Err(format!("{}\n{}", said.text, self.log())) }
        });
    }
}

fn leader(servers: &[Server]) -> usize {
    let logs = || {
        servers.iter().map(|server| format!("{}: {}", server.host.name, server.log())).collect::<Vec<_>>().join("\n")
    };
    wait_for("a leader", LIMIT, || servers.iter().position(Server::leads).ok_or_else(logs))
}

pub(crate) fn run(program: &Path) {
    let place = tempfile::Builder::new().prefix("kedge-servers-").tempdir().unwrap();
    make_lan();
    let mut servers: Vec<Server> = [("s1", 10), ("s2", 20), ("s3", 30)]
        .into_iter()
        .map(|(name, number)| Server::new(name, number, place.path(), program))
        .collect();
    servers[0].start(&[]);
    servers[0].serves(1);
    let token = std::fs::read_to_string(servers[0].host.data_dir().join("server/token")).unwrap().trim().to_owned();
    wrong_ways_to_join(&servers, &token);
    let first = servers[0].url();
    for n in [1, 2] {
        let began = Instant::now();
        servers[n].start(&["--server", &first, "--token", &token]);
        servers[n].serves(n + 1);
        println!("server {} serves after {:.1?}", n + 1, began.elapsed());
    }
    let agent = Host::new("a", 40, place.path(), program);
    let mut role = agent.start("agent", &["--server", &first, "--token", &token], "log");
    a_pod(&servers, &agent);
    keys_change_on_all(&servers);
    let token = another_token(&servers, &agent, &token);
    five_and_three(&mut servers, place.path(), program, &token);
    disturbed(&mut servers);
    the_first_is_gone(&mut servers, &agent);
    back_to_one(&mut servers);
    let _gone = (role.kill(), role.wait());
}

/// The keys of encryption change while three servers run; each reads what was sealed before, and what the others seal
/// now.
fn keys_change_on_all(servers: &[Server]) {
    let made = |server: &Server, name: &str| {
        let said = server.kubectl(&["create", "secret", "generic", name, "--from-literal=a=b"]);
        assert!(said.ok, "{}", said.text);
    };
    made(&servers[0], "before");
    for (server, what) in
        [(&servers[1], "rotate-keys"), (&servers[2], "prepare"), (&servers[0], "rotate"), (&servers[1], "reencrypt")]
    {
        let said = run_command(&mut server.host.kedge("secrets-encrypt", &[what]));
        assert!(said.ok && said.text.contains("All hashes match"), "{what}: {}", said.text);
    }
    for (n, server) in servers.iter().enumerate() {
        made(server, &format!("after{n}"));
    }
    for server in servers {
        let names = ["before", "after0", "after1", "after2"];
        let said = server.kubectl(&[&["get", "secrets", "-o", "jsonpath={.items[*].data.a}"][..], &names].concat());
        assert_eq!(said.text.trim(), ["Yg=="; 4].join(" "), "{}", server.log());
    }
    println!("the keys of encryption changed on three servers");
}

/// The join token is another one from now on: the old one is refused, with a reason.
fn another_token(servers: &[Server], agent: &Host, old: &str) -> String {
    let kubeconfig = servers[1].host.dir.join("kubeconfig");
    let data = servers[1].host.data_dir();
    let rotate =
        ["token", "rotate", "--kubeconfig", kubeconfig.to_str().unwrap(), "--data-dir", data.to_str().unwrap()];
    let said = run_command(servers[1].host.command(program_of(&servers[1])).args(rotate));
    assert!(said.ok, "{}", said.text);
    let new = said.text.trim().to_owned();
    for server in servers {
        let url = server.url();
        let asked = |token: &str| {
            run_command(
                &mut agent.kedge("agent", &["--check", "--node-name=stranger", "--server", &url, "--token", token]),
            )
        };
        wait_for("the old token to be refused", LIMIT, || match asked(old) {
            said if !said.ok && said.text.contains("does not accept this token's password") => Ok(()),
            said => Err(said.text),
        });
        let said = asked(&new);
        assert!(said.ok && said.text.contains("may join"), "{}", said.text);
    }
    println!("all servers have another join token");
    new
}

/// Two more join through a server that is not the first, serve, and are let go again.
fn five_and_three(servers: &mut Vec<Server>, place: &Path, program: &Path, token: &str) {
    let through = servers[1].url();
    for (name, number) in [("s4", 50), ("s5", 60)] {
        let began = Instant::now();
        let mut server = Server::new(name, number, place, program);
        server.start(&["--server", &through, "--token", token]);
        servers.push(server);
        servers.last().unwrap().serves(servers.len());
        println!("server {} serves after {:.1?}", servers.len(), began.elapsed());
    }
    let_go(servers, 3, 0);
    let_go(servers, 4, 1);
    servers.truncate(3);
    for server in &*servers {
        server.serves(3);
    }
    println!("five servers were three again");
}

fn wrong_ways_to_join(servers: &[Server], token: &str) {
    let (pin, _) = token.split_once("::").unwrap();
    let first = servers[0].url();
    let wrong = |token: &str, more: &[&str], wants: &[&str]| {
        let args = servers[1].args(&[&["--server", first.as_str(), "--token", token], more].concat());
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let mut command = servers[1].host.command("timeout");
        let fresh = format!("--data-dir={}", servers[1].host.dir.join("fresh").display());
        let said = run_command(command.arg("90").arg(program_of(&servers[1])).arg("server").arg(&fresh).args(args));
        assert!(!said.ok, "{wants:?}: {}", said.text);
        wants.iter().for_each(|want| assert!(said.text.contains(want), "want {want:?} in: {}", said.text));
    };
    wrong(&format!("K10{}::server:x", "0".repeat(64)), &[], &[&"0".repeat(64), pin.trim_start_matches("K10")]);
    wrong(&format!("{pin}::server:nope"), &[], &["does not accept this token's password"]);
    wrong(token, &["--cluster-cidr=10.99.0.0/16"], &["--cluster-cidr is '10.42.0.0/16' there and '10.99.0.0/16' here"]);
    wrong(token, &["--cluster-domain=other"], &["--cluster-domain is 'cluster.local' there and 'other' here"]);
    println!("wrong ways to join are told why");
}

fn program_of(server: &Server) -> std::ffi::OsString {
    server.host.program().into()
}

fn a_pod(servers: &[Server], agent: &Host) {
    wait_for("the agent's node", LIMIT, || {
        let said = servers[2].kubectl(&["get", "node", "a", "--no-headers"]);
        if said.text.contains(" Ready") { Ok(()) } else { Err(format!("{}\n{}", said.text, agent.log("log"))) }
    });
    let tar = agent.dir.join("busybox.tar");
    let made = run_command(
        std::process::Command::new("sh")
            .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/busybox-image.sh"))
            .arg(&tar),
    );
    assert!(made.ok, "{}", made.text);
    let import = "for socket in /run/kedge*/containerd/containerd.sock; do ctr --address $socket -n k8s.io images \
        import \"$0\"; done";
    agent.must("sh", &["-c", import, tar.to_str().unwrap()]);
    let made = servers[1].kubectl(&[
        "run",
        "web",
        "--image=kedge.local/busybox:1",
        "--image-pull-policy=Never",
        "--command",
        "--",
        "sleep",
        "1000",
    ]);
    assert!(made.ok, "{}", made.text);
    for server in servers {
        reaches_the_pod(server, agent);
    }
    println!("a pod is reached through every server");
}

fn reaches_the_pod(server: &Server, agent: &Host) {
    wait_for(&format!("exec through {}", server.host.name), LIMIT, || {
        let said = server.kubectl(&["exec", "web", "--", "hostname"]);
        if said.ok && said.text.trim() == "web" {
            Ok(())
        } else {
            Err(format!("{}\n{}\n{}", said.text, server.log(), agent.log("log")))
        }
    });
}

/// Leaders are killed, paused and cut off in turn. After each, all servers must take writes again.
fn disturbed(servers: &mut [Server]) {
    let kills = std::env::var("KEDGE_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(KILLS);
    let urls: Vec<String> = servers.iter().map(Server::url).collect();
    let kubeconfig = servers[0].host.dir.join("kubeconfig");
    let clients = Clients::start(&kubeconfig, &urls);
    let mut slowest = Duration::ZERO;
    for n in 0..kills {
        everybody_works(&clients, servers, "before a disturbance");
        let victim = leader(servers);
        let others: Vec<String> = servers.iter().filter(|s| s.ip != servers[victim].ip).map(|s| s.ip.clone()).collect();
        let before = clients.counts();
        let began = Instant::now();
        let others_work = |clients: &Clients| {
            wait_for("work to go on without the leader", LIMIT, || {
                let now = clients.counts();
                let goes_on = (0..now.len()).filter(|idx| *idx != victim).all(|idx| now[idx] > before[idx] + 4);
                if goes_on { Ok(()) } else { Err(format!("{before:?} {now:?}")) }
            });
            began.elapsed()
        };
        let server = &mut servers[victim];
        let took = match n % 3 {
            0 => {
                kill_hard(server.role.take().unwrap());
                let took = others_work(&clients);
                server.start(&[]);
                took
            }
            1 => {
                let pid = pid_of(server.role.as_ref().unwrap());
                server.host.must("kill", &["-STOP", &pid_inside(&pid)]);
                let took = others_work(&clients);
                std::thread::sleep(AWAY.saturating_sub(took));
                server.host.must("kill", &["-CONT", &pid_inside(&pid)]);
                wake(server.role.as_ref().unwrap());
                took
            }
            _ => {
                let table = format!(
                    "table inet cut {{ chain in {{ type filter hook input priority 0; ip saddr {{ {0} }} drop; }}; \
                     chain out {{ type filter hook output priority 0; ip daddr {{ {0} }} drop; }}; }}",
                    others.join(", ")
                );
                server.host.must("nft", &[&table]);
                let took = others_work(&clients);
                std::thread::sleep(AWAY.saturating_sub(took));
                server.host.must("nft", &["delete table inet cut"]);
                took
            }
        };
        slowest = slowest.max(took);
    }
    everybody_works(&clients, servers, "after the last disturbance");
    let n = clients.judge(&kubeconfig, &urls[0]);
    println!("{kills} leaders lost, the others went on after {slowest:.1?} at most; {n} operations are one order");
}

/// nsenter's child as the machine itself counts it.
fn pid_inside(pid: &str) -> String {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("NSpid:")).unwrap();
    line.split_whitespace().last().unwrap().to_owned()
}

fn everybody_works(clients: &Clients, servers: &[Server], when: &str) {
    let before = clients.counts();
    wait_for(&format!("writes through all servers {when}"), LIMIT, || {
        let now = clients.counts();
        let logs = || {
            servers
                .iter()
                .map(|server| format!("{}: {}", server.host.name, server.log()))
                .collect::<Vec<_>>()
                .join("\n")
        };
        if now.iter().zip(&before).all(|(now, before)| *now > before + 4) {
            Ok(())
        } else {
            Err(format!("{before:?} {now:?}\n{}", logs()))
        }
    });
}

fn the_first_is_gone(servers: &mut [Server], agent: &Host) {
    kill_hard(servers[0].role.take().unwrap());
    let began = Instant::now();
    for server in &servers[1..] {
        reaches_the_pod(server, agent);
    }
    println!("without the first server its pod is reached after {:.1?}", began.elapsed());
    let made = wait_for("a write without the first server", LIMIT, || {
        let said = servers[1].kubectl(&[
            "create",
            "deployment",
            "late",
            "--image=kedge.local/busybox:1",
            "--replicas=1",
            "--",
            "sleep",
            "1000",
        ]);
        if said.ok || said.text.contains("already exists") { Ok(said.text) } else { Err(said.text) }
    });
    println!("{}", made.trim());
    wait_for("controllers and scheduler on another server", LIMIT, || {
        let said = servers[2].kubectl(&["get", "pods", "-l", "app=late", "-o", "jsonpath={.items[*].spec.nodeName}"]);
        if said.text.trim() == "a" { Ok(()) } else { Err(format!("{}\n{}", said.text, servers[1].log())) }
    });
}

/// Deleting a server's Node takes it out of the store. These servers run no pods, so their Nodes are made first.
fn let_go(servers: &mut [Server], idx: usize, by: usize) {
    let (name, asked) = (servers[idx].host.name, &servers[by]);
    let node = format!(r#"{{"apiVersion":"v1","kind":"Node","metadata":{{"name":"{name}"}}}}"#);
    let file = asked.host.dir.join("node.json");
    std::fs::write(&file, node).unwrap();
    wait_for("a node to delete", LIMIT, || {
        let said = asked.kubectl(&["apply", "-f", file.to_str().unwrap()]);
        if said.ok { Ok(()) } else { Err(said.text) }
    });
    wait_for("the node's deletion", LIMIT, || {
        let said = asked.kubectl(&["delete", "node", name, "--ignore-not-found"]);
        if said.ok { Ok(()) } else { Err(said.text) }
    });
    // Whichever of the others was first says so.
    wait_for("the member to go", LIMIT, || {
        let logs: String = servers.iter().map(Server::log).collect();
        let gone = |line: &str| line.contains("its server is a member of the store no more") && line.contains(name);
        if logs.lines().any(gone) { Ok(()) } else { Err(logs) }
    });
    if let Some(mut role) = servers[idx].role.take() {
        wait_for("the removed server to end", LIMIT, || match role.try_wait() {
            Ok(Some(_)) => Ok(()),
            _ => Err(servers
                .iter()
                .map(|server| format!("{}: {}", server.host.name, server.log()))
                .collect::<Vec<_>>()
                .join("\n")),
        });
        assert!(servers[idx].log().contains("removed from the cluster"), "{}", servers[idx].log());
    }
}

fn back_to_one(servers: &mut [Server]) {
    for idx in [0, 1] {
        let_go(servers, idx, 2);
    }
    let last = &servers[2];
    last.serves(1);
    let alone = last.kubectl(&["create", "configmap", "alone"]);
    assert!(alone.ok, "{}", alone.text);
    println!("one server is left, and it works");
}
