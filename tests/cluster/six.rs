//! Two machines with IPv6 alone, without a tunnel between them (host-gw): pods, Services, names and policies as with
//! IPv4.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::asked::{self, LIMIT, answers, asking};
use crate::hosts::{Host, kill_hard, run as run_command, wait_for};

const FLAGS: [&str; 4] =
    ["--cluster-cidr=fd42::/56", "--service-cidr=fd43::/112", "--flannel-backend=host-gw", "--node-ip=fd77::50"];
const NODE_PORT: u16 = 30087;

struct Two {
    server: Host,
    agent: Host,
}

pub(crate) fn run(program: &Path) {
    let Some(place) = asked::place("kedge-six-") else { return };
    let outside = run_command(
        Command::new("sh")
            .arg("-c")
            .arg("echo 0 > /proc/sys/net/ipv6/conf/all/disable_ipv6; ip address add fd77::1/64 dev lan nodad"),
    );
    assert!(outside.ok, "{}", outside.text);
    let two = Two { server: machine("s", 50, place.path(), program), agent: machine("a", 51, place.path(), program) };
    let began = Instant::now();
    let kubeconfig = format!("--write-kubeconfig={}", two.server.dir.join("kubeconfig").display());
    let serving = two.server.start("server", &[&[kubeconfig.as_str()], FLAGS.as_slice()].concat(), "log");
    let token_file = two.server.data_dir().join("server/node-token");
    let token =
        wait_for("the token", LIMIT, || std::fs::read_to_string(&token_file).map_err(|_| two.server.log("log")));
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
        "echo 0 > /proc/sys/net/ipv6/conf/all/disable_ipv6; ip -4 address flush dev eth0; ip address add \
         fd77::{number}/64 dev eth0 nodad; ip -6 route replace default via fd77::1"
    );
    host.must("sh", &["-c", &script]);
    host
}

fn pod(name: &str, node: &str) -> Value {
    let mut pod = asked::pod(name);
    pod["spec"]["nodeName"] = node.into();
    pod
}

impl Two {
    fn ready(&self) {
        wait_for("both nodes", LIMIT, || {
            let said = self.server.kubectl(&["get", "nodes", "--no-headers"]);
            let ready = said.text.lines().filter(|line| line.contains(" Ready")).count();
            if ready == 2 {
                Ok(())
            } else {
                Err(format!("{}\n{}\n{}", said.text, self.server.log("log"), self.agent.log("log")))
            }
        });
        self.server.import_busybox();
        self.agent.import_busybox();
    }

    fn address(&self, pod: &str) -> String {
        self.server
            .field_is(&["pod", pod], "{.status.conditions[?(@.type==\"Ready\")].status}", &|ready| ready == "True");
        self.server.field_is(&["pod", pod], "{.status.podIPs[*].ip}", &|ip| {
            ip.starts_with("fd42:") && !ip.contains(['.', ' '])
        })
    }

    /// The answer that a pod gets from there.
    fn reaches(&self, from: &str, ip: &str, port: u16, wanted: bool) {
        let ask = asking(ip, port);
        answers(&format!("{from} to {ip} port {port}: {wanted}"), wanted, || {
            self.server.kubectl(&["exec", from, "--", "sh", "-c", &ask]).text
        });
    }

    fn served(&self) {
        self.server.apply(&pod("on-s", "s"));
        self.server.apply(&pod("on-a", "a"));
        self.server.apply(&json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": "web" },
            "spec": { "type": "NodePort", "selector": { "who": "on-a" },
                "ports": [{ "port": 80, "nodePort": NODE_PORT }] } }));
        let (on_s, on_a) = (self.address("on-s"), self.address("on-a"));
        self.reaches("on-s", &on_a, 80, true);
        self.reaches("on-a", &on_s, 80, true);
        let ip = self.server.field_is(&["service", "web"], "{.spec.clusterIP}", &|ip| ip.starts_with("fd43:"));
        for from in ["on-s", "on-a"] {
            self.reaches(from, &ip, 80, true);
        }
        for ip in ["fd77::50", "fd77::51"] {
            self.reaches("on-s", ip, NODE_PORT, true);
        }
        for from in ["on-s", "on-a"] {
            wait_for("the Service's name", LIMIT, || {
                let said = self.server.kubectl(&["exec", from, "--", "nslookup", "web.default.svc.cluster.local"]);
                if said.text.contains(&ip) { Ok(()) } else { Err(said.text) }
            });
        }
        let tunnel = self.server.said("ip", &["link", "show", "kedge.1"]);
        assert!(!tunnel.ok, "host-gw needs no tunnel: {}", tunnel.text);
    }

    fn guarded(&self) {
        let (on_s, on_a) = (self.address("on-s"), self.address("on-a"));
        let policy = |ingress: Value| {
            self.server.apply(&json!({ "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
                "metadata": { "name": "guard" },
                "spec": { "podSelector": { "matchLabels": { "who": "on-a" } }, "policyTypes": ["Ingress"],
                    "ingress": ingress } }));
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
