//! Two machines with IPv6 alone, without a tunnel between them (host-gw): pods, Services, names and policies as with IPv4.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::dual::{answers, asking};
use crate::hosts::{Host, Said, kill_hard, kubectl, make_lan, run as run_command, wait_for};

/// For whatever takes long only on a machine that is busy with other tests.
const LIMIT: Duration = Duration::from_secs(180);
const FLAGS: [&str; 4] = ["--cluster-cidr=fd42::/56", "--service-cidr=fd43::/112", "--flannel-backend=host-gw", "--node-ip=fd77::50"];
const NODE_PORT: u16 = 30087;

struct Two {
    server: Host,
    agent: Host,
}

pub(crate) fn run(program: &Path) {
    if !Path::new("/proc/net/if_inet6").exists() {
        base::skips::say("this kernel has no IPv6");
        return;
    }
    let place = tempfile::Builder::new().prefix("kedge-six-").tempdir().unwrap();
    make_lan();
    let outside = run_command(
        Command::new("sh").arg("-c").arg("echo 0 > /proc/sys/net/ipv6/conf/all/disable_ipv6; ip address add fd77::1/64 dev lan nodad"),
    );
    assert!(outside.ok, "{}", outside.text);
    let two = Two { server: machine("s", 50, place.path(), program), agent: machine("a", 51, place.path(), program) };
    let began = Instant::now();
    let kubeconfig = format!("--write-kubeconfig={}", two.server.dir.join("kubeconfig").display());
    let serving = two.server.start("server", &[&[kubeconfig.as_str()], FLAGS.as_slice()].concat(), "log");
    let token_file = two.server.data_dir().join("server/node-token");
    let token = wait_for("the token", LIMIT, || std::fs::read_to_string(&token_file).map_err(|_| two.server.log("log")));
    let join = ["--server=https://[fd77::50]:6443", "--token", token.trim(), "--node-ip=fd77::51"];
    let working = two.agent.start("agent", &join, "log");
    two.ready();
    println!("two nodes of IPv6 alone: {:.1} s", began.elapsed().as_secs_f32());
    let began = Instant::now();
    two.served();
    println!("pods and Services answer across machines: {:.1} s", began.elapsed().as_secs_f32());
    let began = Instant::now();
    two.guarded();
    println!("policies hold across machines: {:.1} s", began.elapsed().as_secs_f32());
    two.routes_come_back();
    kill_hard(working);
    kill_hard(serving);
}

/// A machine without any address of IPv4 but its loopback's.
fn machine(name: &'static str, number: u8, place: &Path, program: &Path) -> Host {
    let host = Host::new(name, number, place, program);
    let script = format!(
        "echo 0 > /proc/sys/net/ipv6/conf/all/disable_ipv6; ip -4 address flush dev eth0; ip address add fd77::{number}/64 dev eth0 nodad; ip -6 route replace default via fd77::1"
    );
    host.must("sh", &["-c", &script]);
    host
}

fn pod(name: &str, node: &str) -> Value {
    let page = "mkdir /www; echo I am $(hostname) >/www/index.html; exec httpd -f -p 80 -h /www";
    json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "labels": { "app": "web", "who": name } },
        "spec": { "nodeName": node, "terminationGracePeriodSeconds": 0, "containers": [{ "name": "c", "image": "kedge.local/busybox:1",
            "imagePullPolicy": "Never", "command": ["sh", "-c", page],
            "readinessProbe": { "tcpSocket": { "port": 80 }, "periodSeconds": 1 } }] } })
}

impl Two {
    fn kubectl(&self, args: &[&str]) -> Said {
        let mut command = self.server.command("timeout");
        run_command(command.arg("60").arg(kubectl()).arg("--kubeconfig").arg(self.server.dir.join("kubeconfig")).args(args))
    }

    fn apply(&self, object: &Value) {
        let file = self.server.dir.join("apply.json");
        std::fs::write(&file, object.to_string()).unwrap();
        // The account of a namespace may still be on its way.
        wait_for("an object to be taken", LIMIT, || {
            let said = self.kubectl(&["apply", "-f", file.to_str().unwrap()]);
            if said.ok { Ok(()) } else { Err(said.text) }
        });
    }

    fn field_is(&self, what: &[&str], path: &str, right: &dyn Fn(&str) -> bool) -> String {
        wait_for(&format!("{path} of {what:?}"), LIMIT, || {
            let said = self.kubectl(&[&["get"], what, &["-o", &format!("jsonpath={path}")]].concat());
            if said.ok && right(&said.text) { Ok(said.text) } else { Err(format!("{}\n{}", said.text, self.server.log("log"))) }
        })
    }

    fn ready(&self) {
        wait_for("both nodes", LIMIT, || {
            let said = self.kubectl(&["get", "nodes", "--no-headers"]);
            let ready = said.text.lines().filter(|line| line.contains(" Ready")).count();
            if ready == 2 { Ok(()) } else { Err(format!("{}\n{}\n{}", said.text, self.server.log("log"), self.agent.log("log"))) }
        });
        let tar = self.server.dir.join("busybox.tar");
        let made = run_command(Command::new("sh").arg(concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/busybox-image.sh")).arg(&tar));
        assert!(made.ok, "{}", made.text);
        let import = "for socket in /run/kedge*/containerd/containerd.sock; do ctr --address $socket -n k8s.io images import \"$0\"; done";
        for host in [&self.server, &self.agent] {
            host.must("sh", &["-c", import, tar.to_str().unwrap()]);
        }
    }

    fn address(&self, pod: &str) -> String {
        self.field_is(&["pod", pod], "{.status.conditions[?(@.type==\"Ready\")].status}", &|ready| ready == "True");
        self.field_is(&["pod", pod], "{.status.podIPs[*].ip}", &|ip| ip.starts_with("fd42:") && !ip.contains(['.', ' ']))
    }

    /// What a pod gets from there.
    fn reaches(&self, from: &str, ip: &str, port: u16, wanted: bool) {
        let ask = asking(ip, port);
        answers(&format!("{from} to {ip} port {port}: {wanted}"), wanted, || self.kubectl(&["exec", from, "--", "sh", "-c", &ask]).text);
    }

    fn served(&self) {
        self.apply(&pod("on-s", "s"));
        self.apply(&pod("on-a", "a"));
        self.apply(&json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": "web" },
            "spec": { "type": "NodePort", "selector": { "who": "on-a" }, "ports": [{ "port": 80, "nodePort": NODE_PORT }] } }));
        let (on_s, on_a) = (self.address("on-s"), self.address("on-a"));
        self.reaches("on-s", &on_a, 80, true);
        self.reaches("on-a", &on_s, 80, true);
        let ip = self.field_is(&["service", "web"], "{.spec.clusterIP}", &|ip| ip.starts_with("fd43:"));
        for from in ["on-s", "on-a"] {
            self.reaches(from, &ip, 80, true);
        }
        for ip in ["fd77::50", "fd77::51"] {
            self.reaches("on-s", ip, NODE_PORT, true);
        }
        for from in ["on-s", "on-a"] {
            wait_for("the Service's name", LIMIT, || {
                let said = self.kubectl(&["exec", from, "--", "nslookup", "web.default.svc.cluster.local"]);
                if said.text.contains(&ip) { Ok(()) } else { Err(said.text) }
            });
        }
        let tunnel = self.server.said("ip", &["link", "show", "kedge.1"]);
        assert!(!tunnel.ok, "host-gw needs no tunnel: {}", tunnel.text);
    }

    fn guarded(&self) {
        let (on_s, on_a) = (self.address("on-s"), self.address("on-a"));
        let policy = |ingress: Value| {
            self.apply(&json!({ "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": { "name": "guard" },
                "spec": { "podSelector": { "matchLabels": { "who": "on-a" } }, "policyTypes": ["Ingress"], "ingress": ingress } }));
        };
        policy(json!([]));
        self.reaches("on-s", &on_a, 80, false);
        self.reaches("on-a", &on_s, 80, true);
        policy(json!([{ "from": [{ "podSelector": { "matchLabels": { "who": "on-s" } } }] }]));
        self.reaches("on-s", &on_a, 80, true);
    }

    /// Somebody flushes the routes of a machine.
    fn routes_come_back(&self) {
        let on_a = self.address("on-a");
        let route = || self.server.said("ip", &["-6", "route", "show", "proto", "107"]).text;
        assert!(route().contains("via fd77::51"), "{}", route());
        self.server.must("ip", &["-6", "route", "flush", "proto", "107"]);
        wait_for("the route to the other machine", Duration::from_secs(20), || {
            if route().contains("via fd77::51") { Ok(()) } else { Err(self.server.log("log")) }
        });
        self.reaches("on-s", &on_a, 80, true);
    }
}
