//! Duties of the network between machines: Services and names from everywhere, policies for every pair of pods, and
//! a machine that gets another address.

use std::fmt;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::agents::{Cluster, NODES_LIMIT, PODS_LIMIT};
use crate::hosts::{Host, wait_for};

/// Pods with two ports each: one a node, and one of another namespace beside the last.
const PODS: [Pod; 4] = [
    Pod { name: "on-s", ns: "default", node: "s" },
    Pod { name: "on-a", ns: "default", node: "a" },
    Pod { name: "on-b", ns: "default", node: "b" },
    Pod { name: "guest", ns: "other", node: "b" },
];
const PORTS: [u16; 2] = [80, 81];
const NODE_PORT: u16 = 30080;
const BALANCED: u16 = 8085;
/// Requests to a Service until each of its three pods must have answered (missed by chance once in a million runs).
const REQUESTS: usize = 40;

#[derive(Clone, Copy, PartialEq)]
struct Pod {
    name: &'static str,
    ns: &'static str,
    node: &'static str,
}

impl fmt::Display for Pod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.ns, self.name)
    }
}

pub(crate) fn tell(cluster: &Cluster) {
    let chapter = |name: &str, began: Instant| println!("{name}: {:.1} s", began.elapsed().as_secs_f32());
    let began = Instant::now();
    let network = Network::new(cluster);
    network.services();
    chapter("services and names answer from and on every node", began);
    let began = Instant::now();
    network.balancers();
    chapter("balancers are on the nodes that labels choose", began);
    let began = Instant::now();
    network.policies();
    chapter("policies hold for every pair of pods", began);
    let began = Instant::now();
    network.another_address();
    chapter("a machine's new address is followed", began);
}

/// Takes a machine's only address away and gives it another one, as a lease that ran out.
fn move_host(host: &Host, from: &str, to: &str) {
    host.must("ip", &["address", "del", &format!("{from}/24"), "dev", "eth0"]);
    std::thread::sleep(Duration::from_secs(2));
    host.must("ip", &["address", "add", &format!("{to}/24"), "dev", "eth0"]);
    host.must("ip", &["route", "replace", "default", "via", "10.210.0.1"]);
}

/// A certificate of this machine names its new address.
fn names_address(host: &Host, cert: &str, ip: &str, log: &str) {
    wait_for("a certificate for the new address", NODES_LIMIT, || {
        let said = host.said(
            "openssl",
            &["x509", "-noout", "-ext", "subjectAltName", "-in", host.data_dir().join(cert).to_str().unwrap()],
        );
        if said.text.contains(ip) { Ok(()) } else { Err(format!("{}\n{}", said.text, host.log(log))) }
    });
}

/// The server gets another address: its Node, the service `kubernetes` and its certificates follow. Its agents were
/// told the old one, so this is the end of the story.
pub(crate) fn server_moves(cluster: &Cluster) {
    let began = Instant::now();
    move_host(&cluster.server, "10.210.0.10", "10.210.0.30");
    let told = |what: &[&str], path: &str| {
        wait_for(&format!("the server's new address in {what:?}"), NODES_LIMIT, || {
            let said = cluster.kubectl(&[&["get"], what, &["-o", &format!("jsonpath={path}")]].concat());
            if said.text == "10.210.0.30" {
                Ok(())
            } else {
                Err(format!("{}\n{}", said.text, cluster.server.log("again")))
            }
        });
    };
    told(&["node", "s"], "{.status.addresses[?(@.type==\"InternalIP\")].address}");
    told(&["endpointslice", "kubernetes"], "{.endpoints[*].addresses[*]}");
    names_address(&cluster.server, "server/tls/serving-kube-apiserver.crt", "10.210.0.30", "again");
    println!("the server's new address is followed: {:.1} s", began.elapsed().as_secs_f32());
}

struct Network<'a> {
    cluster: &'a Cluster,
    ips: Vec<String>,
}

fn manifest(pod: &Pod) -> Value {
    let script = "mkdir /www; hostname >/www/index.html; httpd -p 81 -h /www; exec httpd -f -p 80 -h /www";
    json!({ "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": pod.name, "namespace": pod.ns, "labels": { "app": "web", "who": pod.name } },
        "spec": { "nodeName": pod.node, "terminationGracePeriodSeconds": 0,
            "containers": [{ "name": "c", "image": "kedge.local/busybox:1",
            "imagePullPolicy": "Never", "command": ["sh", "-c", script],
            "readinessProbe": { "tcpSocket": { "port": 80 }, "periodSeconds": 1 } }] } })
}

fn service(name: &str, kind: &str, port: u16, node_port: Option<u16>) -> Value {
    json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": name, "namespace": "default" },
        "spec": { "type": kind, "selector": { "app": "web" },
            "ports": [{ "port": port, "targetPort": 80, "nodePort": node_port }] } })
}

/// The page at an address, asked for from the machines' network.
fn page(addr: &str) -> Result<String, String> {
    let addr: SocketAddr = addr.parse().unwrap();
    let fetch = || {
        let mut stream = TcpStream::connect_timeout(&addr, Duration::from_secs(3))?;
        stream.set_read_timeout(Some(Duration::from_secs(3)))?;
        stream.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok(text)
    };
    match fetch() {
        Ok(text) if text.contains("200 OK") => Ok(text),
        Ok(text) => Err(format!("{addr}: {text}")),
        Err(err) => Err(format!("{addr}: {}", std::io::Error::to_string(&err))),
    }
}

impl<'a> Network<'a> {
    fn new(cluster: &'a Cluster) -> Network<'a> {
        let other = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "other" } });
        let services =
            [service("web", "NodePort", 80, Some(NODE_PORT)), service("balanced", "LoadBalancer", BALANCED, None)];
        let items: Vec<Value> = [other].into_iter().chain(PODS.iter().map(manifest)).chain(services).collect();
        cluster.apply(&json!({ "apiVersion": "v1", "kind": "List", "items": items }));
        let ips = PODS.map(|pod| {
            wait_for(&format!("{pod} to be ready"), PODS_LIMIT, || {
                let told = "jsonpath={.status.conditions[?(@.type==\"Ready\")].status} {.status.podIP}";
                let said = cluster.kubectl(&["-n", pod.ns, "get", "pod", pod.name, "-o", told]);
                said.text.strip_prefix("True ").map(str::to_owned).ok_or(said.text)
            })
        });
        Network { cluster, ips: ips.to_vec() }
    }

    fn exec(&self, pod: Pod, script: &str) -> String {
        let said = self.cluster.kubectl(&["-n", pod.ns, "exec", pod.name, "--", "sh", "-c", script]);
        if said.ok { said.text } else { format!("exec in {pod}: {}", said.text) }
    }

    fn field(&self, what: &[&str], path: &str) -> String {
        self.cluster.kubectl(&[&["get"], what, &["-o", &format!("jsonpath={path}")]].concat()).text
    }

    fn services(&self) {
        let ip = self.field(&["service", "web"], "{.spec.clusterIP}");
        for pod in PODS {
            let name = "web.default.svc.cluster.local";
            wait_for(&format!("DNS in {pod}"), PODS_LIMIT, || {
                let said = self.exec(pod, &format!("nslookup {name} 2>&1"));
                if said.contains(&ip) { Ok(()) } else { Err(said) }
            });
            let ask =
                format!("for i in $(seq {REQUESTS}); do printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc -w 3 {ip} 80; done");
            wait_for(&format!("all pods of the Service as seen by {pod}"), PODS_LIMIT, || {
                let said = self.exec(pod, &ask);
                let all = PODS[..3].iter().all(|server| said.contains(server.name));
                if all && said.matches("200 OK").count() == REQUESTS { Ok(()) } else { Err(said) }
            });
        }
        for node in ["10.210.0.10", "10.210.0.11", "10.210.0.12"] {
            wait_for("a node port", PODS_LIMIT, || page(&format!("{node}:{NODE_PORT}")));
        }
    }

    fn balancers(&self) {
        let on = |wanted: &str| {
            wait_for(&format!("the balancer on {wanted}"), PODS_LIMIT, || {
                let now = self.field(&["service", "balanced"], "{.status.loadBalancer.ingress[*].ip}");
                if now == wanted { Ok(()) } else { Err(now) }
            });
            for ip in wanted.split(' ') {
                wait_for("a balancer's address", PODS_LIMIT, || page(&format!("{ip}:{BALANCED}")));
            }
        };
        let label = |words: &[&str]| {
            let said = self.cluster.kubectl(&[&["label"], words].concat());
            assert!(said.ok, "{}", said.text);
        };
        on("10.210.0.10 10.210.0.11 10.210.0.12");
        label(&["node", "a", "b", "svccontroller.k3s.cattle.io/enablelb=true"]);
        on("10.210.0.11 10.210.0.12");
        label(&["node", "b", "svccontroller.k3s.cattle.io/lbpool=edge"]);
        label(&["service", "balanced", "svccontroller.k3s.cattle.io/lbpool=edge"]);
        on("10.210.0.12");
        label(&["service", "balanced", "svccontroller.k3s.cattle.io/lbpool-"]);
        label(&["node", "a", "b", "svccontroller.k3s.cattle.io/enablelb-", "svccontroller.k3s.cattle.io/lbpool-"]);
        on("10.210.0.10 10.210.0.11 10.210.0.12");
    }

    /// The pods that reach each other: every pair of pods on both ports, in one exec a pod.
    fn look(&self) -> Result<Vec<(Pod, Pod, u16, bool)>, String> {
        let ask = |from: Pod| {
            let others = PODS.iter().zip(&self.ips).filter(|(to, _)| **to != from);
            let targets: Vec<_> = others.flat_map(|(to, ip)| PORTS.map(|port| (*to, ip.clone(), port))).collect();
            let one = |(to, ip, port): &(Pod, String, u16)| {
                format!(
                    "(printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc -w 2 {ip} {port} | grep -q '200 OK' && echo '{to} \
                     {port} open') &"
                )
            };
            let script: String = targets.iter().map(one).collect::<Vec<_>>().join("\n") + "\nwait; echo asked";
            let said = self.exec(from, &script);
            if !said.contains("asked") {
                return Err(said);
            }
            Ok(targets
                .into_iter()
                .map(|(to, _, port)| (from, to, port, said.contains(&format!("{to} {port} open"))))
                .collect::<Vec<_>>())
        };
        let asked: Result<Vec<_>, String> = std::thread::scope(|scope| {
            let asked = PODS.map(|from| scope.spawn(move || ask(from)));
            asked.into_iter().map(|one| one.join().unwrap()).collect()
        });
        asked.map(|all| all.into_iter().flatten().collect())
    }

    /// Waits until exactly those pairs reach each other that should.
    fn expect(&self, what: &str, allowed: &dyn Fn(&str, &str, u16) -> bool) {
        wait_for(what, PODS_LIMIT, || {
            let wrong: Vec<String> = (self.look()?.into_iter())
                .filter(|(from, to, port, open)| *open != allowed(from.name, to.name, *port))
                .map(|(from, to, port, open)| {
                    format!("{from} to {to}:{port} is {}", if open { "open" } else { "shut" })
                })
                .collect();
            if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n")) }
        });
    }

    fn policies(&self) {
        let every = json!({});
        let who = |name: &str| json!({ "matchLabels": { "who": name } });
        let tcp = |port: u16| json!([{ "protocol": "TCP", "port": port }]);
        let (ip_a, ip_b) = (format!("{}/32", self.ips[1]), format!("{}/32", self.ips[2]));
        type Allowed<'f> = &'f dyn Fn(&str, &str, u16) -> bool;
        let inside = |to: &str| to != "guest";
        let table: [(&str, Value, Allowed<'_>); 9] = [
            ("nobody comes in", json!({ "podSelector": every, "policyTypes": ["Ingress"] }), &|_, to, _| !inside(to)),
            (
                "only on-a comes in",
                json!({ "podSelector": every, "ingress": [{ "from": [{ "podSelector": who("on-a") }] }] }),
                &|from, to, _| !inside(to) || from == "on-a",
            ),
            (
                "only the other namespace comes in",
                json!({ "podSelector": every, "ingress": [{ "from": [{
                    "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": "other" } } }] }] }),
                &|from, to, _| !inside(to) || from == "guest",
            ),
            (
                "on-b is left by one port",
                json!({ "podSelector": who("on-b"), "ingress": [{ "ports": tcp(80) }] }),
                &|_, to, port| to != "on-b" || port == 80,
            ),
            (
                "on-b is reached by its neighbour on one port, by on-s on all",
                json!({ "podSelector": who("on-b"), "ingress": [{ "from": [{ "namespaceSelector": every }],
                    "ports": [{ "port": 81, "endPort": 90 }] },
                    { "from": [{ "podSelector": who("on-s") }] }] }),
                &|from, to, port| to != "on-b" || from == "on-s" || port == 81,
            ),
            (
                "nothing goes out of on-b",
                json!({ "podSelector": who("on-b"), "policyTypes": ["Egress"] }),
                &|from, _, _| from != "on-b",
            ),
            (
                "on-s goes out to on-a alone",
                json!({ "podSelector": who("on-s"), "policyTypes": ["Egress"],
                    "egress": [{ "to": [{ "ipBlock": { "cidr": ip_a } }] }] }),
                &|from, to, _| from != "on-s" || to == "on-a",
            ),
            (
                "all addresses but one come in",
                json!({ "podSelector": who("on-s"), "ingress": [{ "from": [{ "ipBlock": { "cidr": "10.42.0.0/16",
                    "except": [ip_b] } }] }] }),
                &|from, to, _| to != "on-s" || from != "on-b",
            ),
            (
                "in by one, out by another",
                json!({ "podSelector": every, "policyTypes": ["Ingress", "Egress"],
                "ingress": [{ "ports": tcp(80) }], "egress": [{ "to": [{ "podSelector": who("on-a") }] }] }),
                &|from, to, port| (!inside(to) || port == 80) && (!inside(from) || to == "on-a"),
            ),
        ];
        self.expect("no policy: all pairs", &|_, _, _| true);
        for (what, spec, allowed) in table {
            let policy = json!({ "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
                "metadata": { "name": "truth", "namespace": "default" }, "spec": spec });
            // Replaced, not merged: fields of the one before must not stay.
            let _first_has_none = self.cluster.kubectl(&["delete", "networkpolicy", "truth", "--ignore-not-found"]);
            self.cluster.apply(&policy);
            self.expect(what, allowed);
        }
        assert!(self.cluster.kubectl(&["delete", "networkpolicy", "truth"]).ok);
        self.expect("the policy is gone: all pairs", &|_, _, _| true);
    }

    /// As a lease that ran out: the machine's only address goes, and another one comes.
    fn another_address(&self) {
        let containers = "{.status.containerStatuses[*].containerID} {.status.containerStatuses[*].restartCount}";
        let before = self.field(&["pod", "on-b"], containers);
        let host = &self.cluster.agents[1];
        move_host(host, "10.210.0.12", "10.210.0.22");
        wait_for("the Node's new address", NODES_LIMIT, || {
            let now = self.field(&["node", "b"], "{.status.addresses[?(@.type==\"InternalIP\")].address}");
            if now == "10.210.0.22" { Ok(()) } else { Err(format!("{now}\n{}", host.log("second"))) }
        });
        wait_for("exec after the change", NODES_LIMIT, || {
            let said = self.exec(PODS[2], "hostname");
            if said.trim() == "on-b" { Ok(()) } else { Err(format!("{said}\n{}", host.log("second"))) }
        });
        self.expect("all pairs after the change", &|_, _, _| true);
        wait_for("the node port on the new address", PODS_LIMIT, || page(&format!("10.210.0.22:{NODE_PORT}")));
        wait_for("the pod's host address", PODS_LIMIT, || {
            let now = self.field(&["pod", "on-b"], "{.status.hostIP}");
            if now == "10.210.0.22" { Ok(()) } else { Err(now) }
        });
        assert_eq!(self.field(&["pod", "on-b"], containers), before, "the pod was started again");
        wait_for("the server's tunnel to lead to the new address alone", PODS_LIMIT, || {
            let told = self.cluster.server.said("bridge", &["fdb", "show", "dev", "kedge.1"]).text;
            if told.contains("dst 10.210.0.22") && !told.contains("dst 10.210.0.12") { Ok(()) } else { Err(told) }
        });
        names_address(host, "agent/serving-kubelet.crt", "10.210.0.22", "second");
    }
}
