//! Pods that attack the network of the node: policies, ports, names.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::{SETTLE_LIMIT, Server, run_with, wait_for};
use crate::{BUSYBOX, Chapter, POD_LIMIT, namespaces, node};

pub(crate) const CHAPTERS: &[Chapter] = &[
    ("a pod cannot leave its network policies", a_pod_cannot_leave_its_network_policies),
    ("no address of the bridge goes around a policy", no_address_of_the_bridge_goes_around_a_policy),
    ("a pod sends under its own address and no other", a_pod_sends_under_its_own_address_and_no_other),
    ("a Service does not take the machine's ports", a_service_does_not_take_the_machines_ports),
    ("a Service does not take another node's ports, nor a pod this one's", a_service_does_not_take_another_nodes_ports),
    ("a pod does not reach the machine's loopback", a_pod_does_not_reach_the_machines_loopback),
    ("a flush of all rules is mended", a_flush_of_all_rules_is_mended),
    ("an uplink that carries less is heard of", an_uplink_that_carries_less_is_heard_of),
];

/// Rules that somebody flushed are there again within this, on a busy machine.
const MENDED_LIMIT: Duration = Duration::from_secs(20);

fn pod(ns: &str, name: &str, script: &str, more: &Value) -> Value {
    let mut pod = json!({ "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": name, "namespace": ns, "labels": { "app": name } },
        "spec": { "terminationGracePeriodSeconds": 0, "automountServiceAccountToken": false,
            "containers": [{ "name": "c", "image": BUSYBOX, "imagePullPolicy": "Never",
                "command": ["sh", "-c", script] }] } });
    pod["spec"].as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    pod
}

fn apply(server: &Server, items: &[Value]) {
    server.ok_with(&["apply", "-f", "-"], &json!({ "apiVersion": "v1", "kind": "List", "items": items }).to_string());
}

fn namespace(name: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } })
}

/// A running pod's address.
fn address(server: &Server, ns: &str, name: &str) -> String {
    server.ok(&["-n", ns, "wait", &format!("pod/{name}"), "--for=condition=Ready", "--timeout=90s"]);
    server.ok(&["-n", ns, "get", "pod", name, "-o", "jsonpath={.status.podIP}"])
}

const WEB: &str = "mkdir /www; echo page >/www/index.html; exec httpd -f -p 80 -h /www";

fn a_pod_cannot_leave_its_network_policies(server: &Server) {
    let deny = json!({ "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": { "name": "deny", "namespace": "walled" },
        "spec": { "podSelector": {}, "policyTypes": ["Ingress", "Egress"] } });
    apply(server, &[namespace("walled"), namespace("open"), deny, pod("open", "web", WEB, &json!({}))]);
    let web = address(server, "open", "web");
    let uid = server.ok(&["-n", "open", "get", "pod", "web", "-o", "jsonpath={.metadata.uid}"]);
    // It is told to end by its deadline, which is long enough for a busy machine to start it, and goes on for a while.
    let late = format!(
        "exec 2>/dev/null; trap '' TERM; n=0; while [ $n -lt 40 ]; do timeout -s KILL 1 wget -qO- http://{web}/ && \
         echo OUT || echo shut; n=$((n+1)); done; sleep 60"
    );
    let late =
        pod("walled", "late", &late, &json!({ "activeDeadlineSeconds": 25, "terminationGracePeriodSeconds": 90 }));
    apply(
        server,
        &[pod("walled", "p", "sleep 9999", &json!({})), pod("open", "friend", "sleep 9999", &json!({})), late],
    );
    address(server, "walled", "p");
    address(server, "open", "friend");
    let ask = |ns: &str, name: &str| {
        let script = format!("for i in 1 2 3; do timeout 1 wget -qO- http://{web}/ && break; done; echo asked");
        server.said(&["-n", ns, "exec", name, "--", "sh", "-c", &script]).out
    };
    assert_eq!(ask("open", "friend"), "page\nasked\n", "nothing keeps this one");
    assert_eq!(ask("walled", "p"), "asked\n");
    // Nobody's uid, then the one of a pod that no policy isolates. The API takes neither; what the rules make of one
    // that is there all the same is `network/policy/model.rs`'s to test.
    for hash in ["x", &uid] {
        let refused = server.refused(&[
            "-n",
            "walled",
            "annotate",
            "--overwrite",
            "pod",
            "p",
            &format!("kubernetes.io/config.hash={hash}"),
        ]);
        assert!(refused.contains("may not add annotations of a pod's source"), "{refused}");
        server.ok(&["-n", "walled", "label", "--overwrite", "pod", "p", &format!("told={}", hash.len())]);
        assert_eq!(ask("walled", "p"), "asked\n", "config.hash={hash}");
        assert_eq!(ask("open", "friend"), "page\nasked\n");
    }
    let told = wait_for("forty tries of a pod, the last of them past its deadline", POD_LIMIT, || {
        let told = server.said(&["-n", "walled", "logs", "late"]).out;
        if told.lines().count() >= 40 { Ok(told) } else { Err(told) }
    });
    assert!(!told.contains("OUT"), "{told}");
    // When nobody tries any more. security.md M17: without it the kernel shows nobody what passes between pods of one
    // node.
    let bridged = std::path::Path::new("/proc/sys/net/bridge/bridge-nf-call-iptables");
    if bridged.exists() {
        std::fs::write(bridged, "0").unwrap();
        apply(server, &[pod("walled", "next", "sleep 9999", &json!({}))]);
        address(server, "walled", "next");
        assert_eq!(std::fs::read_to_string(bridged).unwrap(), "1\n");
        assert_eq!(ask("walled", "next"), "asked\n");
    }
    server.ok(&["delete", "namespace", "walled", "open", "--wait=false"]);
}

/// Pods of one node share a link, on which they have addresses that no policy names: link-local ones and those of
/// groups.
fn no_address_of_the_bridge_goes_around_a_policy(server: &Server) {
    let web = WEB.replace("-p 80", "-p [::]:80");
    apply(
        server,
        &[namespace("link"), pod("link", "web", &web, &json!({})), pod("link", "thief", "sleep 9999", &json!({}))],
    );
    let ip = address(server, "link", "web");
    address(server, "link", "thief");
    let exec = |name: &str, script: &str| server.said(&["-n", "link", "exec", name, "--", "sh", "-c", script]).out;
    let own = exec("web", "ip -6 addr show dev eth0 scope link | sed -n 's,.*inet6 \\([^/]*\\)/.*,\\1,p'");
    let own = own.trim();
    assert!(own.starts_with("fe80::"), "a kernel without IPv6 has nothing to try here: {own:?}");
    let page = format!("timeout 2 wget -qO- 'http://[{own}%eth0]/'; echo asked");
    let group = "ping6 -c 2 -w 3 ff02::1%eth0";
    // Pods of earlier chapters may be isolated still, which closes these ways for all.
    wait_for("the page by a link-local address, while nobody is isolated", POD_LIMIT, || {
        let (page, group) = (exec("thief", &page), exec("thief", group));
        if page.starts_with("page\n") && group.contains(own) { Ok(()) } else { Err(format!("{page} {group}")) }
    });
    let deny = json!({ "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": { "name": "deny", "namespace": "link" },
        "spec": { "podSelector": { "matchLabels": { "app": "web" } }, "policyTypes": ["Ingress"] } });
    apply(server, &[deny]);
    let by_name = format!("timeout 2 wget -qO- http://{ip}/; echo asked");
    wait_for("the policy", POD_LIMIT, || match exec("thief", &by_name).as_str() {
        "asked\n" => Ok(()),
        other => Err(other.to_owned()),
    });
    assert_eq!(exec("thief", &page), "asked\n");
    let answers = exec("thief", group);
    assert!(answers.contains("PING ff02::1") && !answers.contains(own), "{answers}");
    server.ok(&["delete", "namespace", "link", "--wait=false"]);
}

/// review security-3 F12: a policy tells peers by their source address, and a pod that takes an address of another one
/// was let through where that one is.
fn a_pod_sends_under_its_own_address_and_no_other(server: &Server) {
    let allow = json!({ "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": { "name": "web", "namespace": "source" },
        "spec": { "podSelector": { "matchLabels": { "app": "web" } }, "policyTypes": ["Ingress"],
            "ingress": [{ "from": [{ "podSelector": { "matchLabels": { "app": "friend" } } }] }] } });
    let mut thief = pod("source", "thief", "sleep 9999", &json!({}));
    thief["spec"]["containers"][0]["securityContext"] = json!({ "capabilities": { "add": ["NET_ADMIN", "NET_RAW"] } });
    let others =
        ["web", "friend"].map(|name| pod("source", name, if name == "web" { WEB } else { "sleep 9999" }, &json!({})));
    apply(server, &[&[namespace("source"), allow, thief], &others[..]].concat());
    let (web, friend) = (address(server, "source", "web"), address(server, "source", "friend"));
    address(server, "source", "thief");
    let exec = |name: &str, script: &str| server.said(&["-n", "source", "exec", name, "--", "sh", "-c", script]).out;
    let ask = format!("timeout 1 wget -qO- http://{web}/; echo asked");
    let friend_reads = |when: &str| {
        wait_for(&format!("the page for the friend {when}"), MENDED_LIMIT, || match exec("friend", &ask).as_str() {
            "page\nasked\n" => Ok(()),
            other => Err(other.to_owned()),
        });
    };
    friend_reads("at first");
    assert_eq!(exec("thief", &ask), "asked\n", "the policy does not name it");
    let mac = exec("friend", "cat /sys/class/net/eth0/address");
    // The friend answers for the address, too: one try of many is enough for the thief.
    let tries = format!("for i in 1 2 3 4 5 6 7 8; do timeout 1 wget -qO- http://{web}/; done; echo asked");
    let take = format!("ip addr add {friend}/32 dev eth0 && ip route add {web}/32 dev eth0 src {friend} && {tries}");
    assert_eq!(exec("thief", &take), "asked\n", "as the friend by its address");
    let answer = format!("arping -c 3 -w 4 -U -I eth0 -s {friend} {friend} >/dev/null; echo said");
    assert_eq!(exec("thief", &answer), "said\n");
    friend_reads("that somebody else said to be");
    let disguise = format!(
        "ip link set eth0 down && ip link set eth0 address {} && ip link set eth0 up && ip route add {web}/32 dev \
         eth0 src {friend} && {tries}",
        mac.trim()
    );
    assert_eq!(exec("thief", &disguise), "asked\n", "as the friend by both its addresses");
    friend_reads("whose MAC somebody took");
    let said = run_with(Command::new("nft").args(["flush", "ruleset"]), "");
    assert_eq!(said.code, 0, "{said:?}");
    let table = || run_with(Command::new("nft").args(["list", "table", "bridge", "kedge-source"]), "").out;
    let holds = |ip: &str| table().contains(&format!("ip saddr {ip} accept"));
    wait_for("the addresses after a flush of all rules", MENDED_LIMIT, || {
        if holds(&friend) { Ok(()) } else { Err(table()) }
    });
    friend_reads("after a flush of all rules");
    assert_eq!(exec("thief", &tries), "asked\n", "after a flush of all rules");
    server.ok(&["-n", "source", "delete", "pod", "thief", "friend", "--wait=false"]);
    wait_for("nothing of pods that are gone", POD_LIMIT, || if holds(&friend) { Err(table()) } else { Ok(()) });
    server.ok(&["delete", "namespace", "source", "--wait=false"]);
}

/// A Service of the web pod with what `more` says.
fn service(ns: &str, name: &str, more: &Value) -> Value {
    let mut spec = json!({ "selector": { "app": "web" }, "ports": [{ "port": 80, "targetPort": 80 }] });
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": name, "namespace": ns }, "spec": spec })
}

/// Answers every caller with one word, as a program of the machine would. It ends with the test.
fn machines_own() -> SocketAddr {
    let listener = TcpListener::bind("0.0.0.0:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _request = stream.read(&mut [0; 1024]);
            let _gone = stream.write_all(b"HTTP/1.0 200 OK\r\n\r\nthe machine's\n");
        }
    });
    SocketAddr::new(namespaces::NODE_IP.parse().unwrap(), port)
}

fn a_service_does_not_take_the_machines_ports(server: &Server) {
    let own = machines_own();
    let stolen = |name: &str, port: u16| {
        service(
            "ports",
            name,
            &json!({ "externalIPs": [namespaces::NODE_IP], "ports": [{ "port": port, "targetPort": 80 }] }),
        )
    };
    let balanced = |name: &str, port: u16, protocol: &str| {
        service(
            "ports",
            name,
            &json!({ "type": "LoadBalancer", "ports": [{ "port": port, "protocol": protocol, "targetPort": 80 }] }),
        )
    };
    apply(server, &[namespace("ports"), pod("ports", "web", WEB, &json!({})), balanced("fine", 8086, "TCP")]);
    address(server, "ports", "web");
    let names =
        [("ssh", 22, "TCP"), ("overlay", 8472, "UDP"), ("kubelet", 10250, "TCP"), ("listener", own.port(), "TCP")];
    let mut all: Vec<Value> = names.iter().map(|(name, port, protocol)| balanced(name, *port, protocol)).collect();
    all.push(stolen("outside", own.port()));
    apply(server, &all);
    // The last Service is in force when its cluster address answers.
    apply(server, &[service("ports", "last", &json!({}))]);
    let ip = server.ok(&["-n", "ports", "get", "service", "last", "-o", "jsonpath={.spec.clusterIP}"]);
    wait_for("the last Service", POD_LIMIT, || node::page(format!("{ip}:80").parse().unwrap()));
    let fine = SocketAddr::new(own.ip(), 8086);
    wait_for("a port that nobody has", POD_LIMIT, || node::page(fine));
    assert_eq!(node::page(own).unwrap(), "the machine's\n");
    for name in ["ssh", "overlay", "kubelet"] {
        let path = "jsonpath={.status.loadBalancer.ingress}";
        assert_eq!(server.ok(&["-n", "ports", "get", "service", name, "-o", path]), "", "{name}");
        let events = [
            "-n",
            "ports",
            "get",
            "events",
            "--field-selector",
            &format!("involvedObject.name={name}"),
            "-o",
            "jsonpath={.items[*].message}",
        ];
        server.until(&events, SETTLE_LIMIT, |out| out.contains("is the node's own"));
    }
    server.ok(&["delete", "namespace", "ports", "--wait=false"]);
}

/// Agents reach their server, and whatever scrapes kubelets these, by the addresses of nodes: an external address that
/// names one would take them.
fn a_service_does_not_take_another_nodes_ports(server: &Server) {
    // A machine beyond the uplink, where nobody answers.
    let away = "192.0.2.77";
    apply(
        server,
        &[json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "away" },
                "spec": { "unschedulable": true } })],
    );
    let status = json!({ "status": { "addresses": [{ "type": "InternalIP", "address": away }] } }).to_string();
    server.ok(&["patch", "node", "away", "--subresource=status", "--type=merge", "-p", &status]);
    let port = |port: u16| json!({ "name": format!("p{port}"), "port": port, "targetPort": 80 });
    let ports: Vec<Value> = [6443, 10250, 80].map(port).into();
    let thief = service("away", "thief", &json!({ "externalIPs": [away], "ports": ports }));
    let mut ported = pod("away", "ported", WEB, &json!({}));
    ported["spec"]["containers"][0]["ports"] = json!([{ "containerPort": 80, "hostPort": 10250 }]);
    apply(server, &[namespace("away"), pod("away", "web", WEB, &json!({})), thief, ported]);
    address(server, "away", "web");
    let at = |port: u16| SocketAddr::new(away.parse().unwrap(), port);
    wait_for("a port of a node that is not the system's", POD_LIMIT, || node::page(at(80)));
    for port in [6443, 10250] {
        assert!(node::page(at(port)).is_err(), "{port} of another node is a pod's");
    }
    let events = [
        "-n",
        "away",
        "get",
        "events",
        "--field-selector",
        "involvedObject.name=ported",
        "-o",
        "jsonpath={.items[*].message}",
    ];
    server.until(&events, POD_LIMIT, |out| out.contains("host port 10250/tcp is the node's own: choose another one"));
    assert!(
        server.ok(&["-n", "away", "exec", "web", "--", "echo", "the kubelet answers"]).contains("the kubelet answers")
    );
    server.ok(&["delete", "node", "away"]);
    server.ok(&["delete", "namespace", "away", "--wait=false"]);
}

/// CVE-2020-8558: a host port makes loopback addresses routable, and a pod with a network of its own asks for one over
/// its cable.
fn a_pod_does_not_reach_the_machines_loopback(server: &Server) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _gone = stream.write_all(b"REACHED\n");
        }
    });
    let mut ported = pod("loop", "web", WEB, &json!({}));
    ported["spec"]["containers"][0]["ports"] = json!([{ "containerPort": 80, "hostPort": 8087 }]);
    let mut thief = pod("loop", "thief", "sleep 9999", &json!({}));
    thief["spec"]["containers"][0]["securityContext"] = json!({ "privileged": true });
    apply(server, &[namespace("loop"), ported, thief]);
    address(server, "loop", "web");
    address(server, "loop", "thief");
    let script = format!(
        "echo 1 >/proc/sys/net/ipv4/conf/all/route_localnet; ip route del local 127.0.0.0/8 dev lo table local; ip \
         route del local 127.0.0.1 dev lo table local; \
         ip addr del 127.0.0.1/8 dev lo; gw=$(ip route | sed -n 's/default via \\([^ ]*\\).*/\\1/p'); ip route add \
         127.0.0.1/32 via $gw dev eth0; ip route get 127.0.0.1; timeout 3 nc 127.0.0.1 {port}; echo asked"
    );
    let said = server.said(&["-n", "loop", "exec", "thief", "--", "sh", "-c", &script]);
    assert!(said.out.contains("dev eth0"), "the pod sends loopback's packets out: {said:?}");
    assert!(said.out.ends_with("asked\n") && !said.out.contains("REACHED"), "{said:?}");
    // The machine itself reaches the host port on its loopback, which is what the kernel's parameter is for.
    wait_for("the host port on localhost", POD_LIMIT, || node::page("127.0.0.1:8087".parse().unwrap()));
    server.ok(&["delete", "namespace", "loop", "--wait=false"]);
}

/// As `systemctl restart nftables` does.
fn a_flush_of_all_rules_is_mended(server: &Server) {
    let deny = json!({ "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": { "name": "deny", "namespace": "flush" },
        "spec": { "podSelector": { "matchLabels": { "app": "p" } }, "policyTypes": ["Egress"] } });
    let mut web = pod("flush", "web", WEB, &json!({}));
    web["spec"]["containers"][0]["ports"] = json!([{ "containerPort": 80, "hostPort": 8088 }]);
    let exposed = service(
        "flush",
        "web",
        &json!({ "type": "NodePort", "ports": [{ "port": 80, "targetPort": 80, "nodePort": 30088 }] }),
    );
    apply(server, &[namespace("flush"), deny, web, pod("flush", "p", "sleep 9999", &json!({})), exposed]);
    let ip = address(server, "flush", "web");
    address(server, "flush", "p");
    let port = |port: u16| SocketAddr::new(namespaces::NODE_IP.parse().unwrap(), port);
    wait_for("the node port", POD_LIMIT, || node::page(port(30088)));
    wait_for("the host port", POD_LIMIT, || node::page(port(8088)));
    for command in [
        &["flush", "ruleset"][..],
        &["delete", "table", "inet", "kedge-policy"],
        &["flush", "chain", "ip", "kedge-proxy", "services"],
    ] {
        let said = run_with(Command::new("nft").args(command), "");
        assert_eq!(said.code, 0, "{said:?}");
        wait_for(&format!("the node port after {command:?}"), MENDED_LIMIT, || node::page(port(30088)));
        wait_for(&format!("the host port after {command:?}"), MENDED_LIMIT, || node::page(port(8088)));
        wait_for(&format!("the policy after {command:?}"), MENDED_LIMIT, || {
            let script = format!("timeout 1 wget -qO- http://{ip}/; echo asked");
            let said = server.said(&["-n", "flush", "exec", "p", "--", "sh", "-c", &script]);
            if said.out == "asked\n" { Ok(()) } else { Err(format!("{said:?}")) }
        });
    }
    server.ok(&["delete", "namespace", "flush", "--wait=false"]);
}

// review node.md L10: a tunnel within a tunnel, or another provider: packets that do not fit are lost in silence.
fn an_uplink_that_carries_less_is_heard_of(server: &Server) {
    let set = |mtu: &str| {
        let said = run_with(Command::new("ip").args(["link", "set", "uplink", "mtu", mtu]), "");
        assert_eq!(said.code, 0, "{said:?}");
    };
    let until = |wanted: &str| {
        wait_for("the tunnel and the pods to be", SETTLE_LIMIT, || {
            let conf = server.place.data_dir().join("agent/etc/cni/net.d/10-kedge.conflist");
            let (tunnel, conf) = (
                std::fs::read_to_string("/sys/class/net/kedge.1/mtu").unwrap(),
                std::fs::read_to_string(conf).unwrap(),
            );
            let of_pods = serde_json::from_str::<Value>(&conf).unwrap()["plugins"][0]["mtu"].to_string();
            if tunnel.trim() == wanted && of_pods == wanted {
                Ok(())
            } else {
                Err(format!("{tunnel} {of_pods}, want {wanted}"))
            }
        });
    };
    until("1450");
    set("1400");
    until("1350");
    apply(server, &[namespace("narrow"), pod("narrow", "p", "sleep 9999", &json!({}))]);
    address(server, "narrow", "p");
    assert_eq!(server.ok(&["-n", "narrow", "exec", "p", "--", "cat", "/sys/class/net/eth0/mtu"]), "1350\n");
    set("1500");
    until("1450");
    server.ok(&["delete", "namespace", "narrow", "--wait=false"]);
}

/// The plugins run no program, and tell the kernel words of their own alone: what a pod's author writes arrives as
/// parsed addresses and numbers, or is refused.
#[test]
fn plugins_run_no_program_and_the_kernel_gets_no_words_of_a_pod() {
    if let Some(why) = lacks_namespaces() {
        println!("skipped: {why}");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let evil = "x } ; add table ip evil ; {";
    let call = |plugin: &str, runtime: &Value, prev_interface: &str| {
        let link = dir.path().join(plugin);
        if !link.exists() {
            std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_kedge"), &link).unwrap();
        }
        let config = json!({ "cniVersion": "1.0.0", "name": "kedge", "type": plugin, "runtimeConfig": runtime,
            "prevResult": { "cniVersion": "1.0.0",
                "interfaces": [{ "name": prev_interface }, { "name": "eth0", "sandbox": "/run/netns/x" }],
                "ips": [{ "interface": 1, "address": "10.42.0.5/24" }] } });
        // A network of its own, whose tables are told on stderr behind what the plugin says.
        let script = "env PATH=/nowhere \"$0\"; code=$?; nft list ruleset >&2; exit $code";
        let mut command = Command::new("unshare");
        command.args(["-n", "sh", "-c", script]).arg(&link);
        command.env("CNI_COMMAND", "ADD").env("CNI_CONTAINERID", "abc").env("CNI_NETNS", "/run/netns/x");
        command
            .env("CNI_IFNAME", "eth0")
            .env("CNI_ARGS", format!("K8S_POD_NAMESPACE=a;K8S_POD_NAME={}", evil.replace(';', "")));
        run_with(&mut command, &config.to_string())
    };
    let mapping = |port: &Value, protocol: &str, ip: &str| {
        json!({ "portMappings": [{ "hostPort": port, "containerPort": 80, "protocol": protocol,
            "hostIP": ip }] })
    };
    let refused = [
        ("portmap", mapping(&json!(8080), evil, "")),
        ("portmap", mapping(&json!(8080), "tcp", evil)),
        ("portmap", mapping(&json!(evil), "tcp", "")),
        ("portmap", mapping(&json!(80_000), "tcp", "")),
        ("bandwidth", json!({ "bandwidth": { "ingressRate": evil } })),
    ];
    for (plugin, runtime) in &refused {
        let said = call(plugin, runtime, "cni0");
        assert!(said.code == 1 && !said.err.contains("table"), "{plugin} {runtime}: {said:?}");
    }
    let mut told = String::new();
    for (plugin, runtime) in [
        ("portmap", mapping(&json!(8080), "UDP", "10.0.0.1")),
        ("bandwidth", json!({ "bandwidth": { "ingressRate": 8_000_000 } })),
    ] {
        // An interface's name is part of a path.
        let said = call(plugin, &runtime, "../../../../../../../tmp/evil");
        assert!(said.code == 0 && !said.err.contains("evil"), "{plugin}: {said:?}");
        told += &said.err;
    }
    assert!(told.contains("10.0.0.1 . udp . 8080 comment \"abc\" : 10.42.0.5 . 80"), "{told}");
    assert!(told.contains("limit rate over 1000000 bytes/second"), "{told}");
}

/// Why a plugin cannot be given a network of its own.
fn lacks_namespaces() -> Option<&'static str> {
    let said = run_with(Command::new("unshare").args(["-n", "nft", "list", "ruleset"]), "");
    (said.code != 0).then_some("it needs root, unshare and nft")
}
