//! The story of a node: from an empty folder to a page on the network, through updates and crashes, to nothing left.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::clients::{clients, helm, kubectl};
use crate::harness::{Place, Running, Server, run_with, signal, wait_for};
use crate::kills;
use crate::namespaces::NODE_IP;
use crate::node::{Load, containerd_socket, import_busybox, page, processes};
use crate::plugins;

/// Containers start, probes pass, rollouts end within this on a busy machine.
pub(crate) const POD_LIMIT: Duration = Duration::from_secs(90);
/// Supervised processes come back within this.
pub(crate) const HEAL_LIMIT: Duration = Duration::from_secs(60);
const PAGE: &str = "Hello from kedge";
pub(crate) const IDS: &str = "jsonpath={range .items[*]}{.metadata.name} {.status.containerStatuses[*].containerID} \
    {.status.containerStatuses[*].restartCount}{\"\\n\"}{end}";

/// Tells the whole story with one program.
pub(crate) fn run(program: &Path) {
    let flags = [format!("--node-ip={NODE_IP}"), "--node-name=n1".to_owned()];
    let server = Server::start_in(Place::of_program(program, &flags));
    let chapter = |name: &str, began: Instant| println!("-- {name}: {:.1} s", began.elapsed().as_secs_f32());
    let chapters: &[(&str, fn(&Server))] = &[
        ("the node becomes ready", ready),
        ("DNS answers", dns),
        ("a page on every road", roads),
        ("a policy lets one client in and keeps another out", policies),
        ("a balancer's address at once", balancer),
        ("exec tells input, output and exit code", exec),
        ("logs", logs),
        ("port-forward and cp", forward_and_copy),
        ("programs' clients", clients),
        ("Helm", helm),
        ("every command of kubectl", kubectl),
        ("a running pod is looked into", debug),
        ("a container is resized and runs on", resize),
        ("an update and a rollback lose no request", rollout),
        ("a driver's volume goes from pod to pod", plugins::volumes),
        ("a plugin's devices", plugins::devices),
        ("containerd dies and pods do not", containerd_dies),
        ("containerd dies and its shims answer late", kills::shims_answer_late),
        ("a deleted pod leaves nothing", deletion),
    ];
    // A chapter that fails does not hide the next ones.
    let mut failed = Vec::new();
    for &(name, tell) in chapters {
        let began = Instant::now();
        if std::panic::catch_unwind(AssertUnwindSafe(|| tell(&server))).is_err() {
            failed.push(name);
        }
        chapter(name, began);
    }
    let began = Instant::now();
    let server = kedge_dies(server);
    chapter("kedge dies and pods do not", began);
    let began = Instant::now();
    let server = kills::at_random_moments(server);
    chapter("both die again and again", began);
    let began = Instant::now();
    killall(program, server);
    chapter("killall leaves nothing", began);
    assert!(failed.is_empty(), "failed chapters: {failed:?}");
}

fn ready(server: &Server) {
    server.until(&["get", "nodes", "-o", "name"], HEAL_LIMIT, |out| out == "node/n1\n");
    server.ok(&["wait", "node/n1", "--for=condition=Ready", "--timeout=90s"]);
    import_busybox(&server.place);
}

fn dns(server: &Server) {
    server.ok(&["-n", "kube-system", "rollout", "status", "deployment/coredns", "--timeout=90s"]);
}

/// The page from the node over ClusterIP and NodePort, and from another pod by name.
fn roads(server: &Server) {
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/manifests/examples/web.yaml");
    server.ok(&["apply", "-f", manifest]);
    server.ok(&["rollout", "status", "deployment/web", "--timeout=90s"]);
    let addr = cluster_ip(server);
    wait_for("the page on the ClusterIP", POD_LIMIT, || page(addr).and_then(expect_page));
    server.ok(&["patch", "service", "web", "-p", r#"{"spec":{"type":"NodePort"}}"#]);
    let port: u16 = server.ok(&["get", "service", "web", "-o", "jsonpath={.spec.ports[0].nodePort}"]).parse().unwrap();
    let node_port: SocketAddr = format!("{NODE_IP}:{port}").parse().unwrap();
    wait_for("the page on the NodePort", POD_LIMIT, || page(node_port).and_then(expect_page));

    server.ok(&[
        "run",
        "client",
        "--image=kedge.local/busybox:1",
        "--restart=Never",
        "--command",
        "--",
        "sleep",
        "3600",
    ]);
    server.ok(&["wait", "pod/client", "--for=condition=Ready", "--timeout=60s"]);
    // Names by nslookup, which asks the server itself: Debian's static busybox cannot resolve in its other applets
    // (glibc's NSS is not there).
    let ip = addr.ip().to_string();
    server.until(&["exec", "client", "--", "nslookup", "web.default.svc.cluster.local"], POD_LIMIT, |out| {
        out.contains(&ip)
    });
    let said = server.ok_with(&["exec", "-i", "client", "--", "nc", &ip, "80"], "GET / HTTP/1.0\r\n\r\n");
    assert!(said.contains(PAGE), "{said}");
    let resolv = server.ok(&["exec", "client", "--", "cat", "/etc/resolv.conf"]);
    assert!(
        resolv.contains("search default.svc.cluster.local svc.cluster.local cluster.local")
            && resolv.contains("nameserver 10.43.0.10"),
        "{resolv}"
    );
    let api = server.ok(&["exec", "client", "--", "nslookup", "kubernetes.default.svc.cluster.local"]);
    assert!(api.contains("10.43.0.1"), "{api}");
}

/// Each try is a pod of its own, so that its very first packet counts.
fn policies(server: &Server) {
    let policy = "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: web}\nspec:\n  \
        podSelector: {matchLabels: {app: web}}\n  ingress: [{from: [{podSelector: {matchLabels: {let: in}}}]}]\n";
    server.ok_with(&["apply", "-f", "-"], policy);
    let ip = cluster_ip(server).ip().to_string();
    let ends = |name: &str, label: &str, phase: &str| {
        let reach = format!("nc -w 3 {ip} 80 </dev/null");
        server.ok(&[
            "run",
            name,
            "--image=kedge.local/busybox:1",
            "--restart=Never",
            label,
            "--command",
            "--",
            "sh",
            "-c",
            &reach,
        ]);
        server.until(&["get", "pod", name, "-o", "jsonpath={.status.phase}"], POD_LIMIT, |out| out == phase);
        server.ok(&["delete", "pod", name, "--timeout=60s"]);
    };
    ends("guest", "--labels=let=in", "Succeeded");
    ends("stranger", "--labels=let=not", "Failed");
    // The node itself, and with it every probe, always gets through.
    wait_for("the page from the node", POD_LIMIT, || page(cluster_ip(server)).and_then(expect_page));
    server.ok(&["delete", "networkpolicy", "web"]);
    ends("stranger", "--labels=let=not", "Succeeded");
}

fn balancer(server: &Server) {
    server.ok(&[
        "expose",
        "deployment",
        "web",
        "--name=balanced",
        "--type=LoadBalancer",
        "--port=8085",
        "--target-port=http",
    ]);
    server.until(
        &["get", "service", "balanced", "-o", "jsonpath={.status.loadBalancer.ingress[*].ip}"],
        POD_LIMIT,
        |out| out == NODE_IP,
    );
    let addr: SocketAddr = format!("{NODE_IP}:8085").parse().unwrap();
    wait_for("the page on the balancer's address", POD_LIMIT, || page(addr).and_then(expect_page));
    server.ok(&["delete", "service", "balanced"]);
}

fn expect_page(body: String) -> Result<(), String> {
    if body.contains(PAGE) { Ok(()) } else { Err(body) }
}

pub(crate) fn cluster_ip(server: &Server) -> SocketAddr {
    let ip = server.ok(&["get", "service", "web", "-o", "jsonpath={.spec.clusterIP}"]);
    format!("{ip}:80").parse().unwrap()
}

fn exec(server: &Server) {
    assert_eq!(server.ok_with(&["exec", "-i", "client", "--", "cat"], "one\ntwo\n"), "one\ntwo\n");
    let said = server.said(&["exec", "client", "--", "sh", "-c", "echo out; echo err >&2; exit 7"]);
    assert_eq!((said.code, said.out.as_str()), (7, "out\n"), "{said:?}");
    assert!(said.err.starts_with("err\n"), "{said:?}");
    let long = server.ok(&["exec", "client", "--", "sh", "-c", "seq 1 20000"]);
    assert_eq!(long.lines().count(), 20000);
    let absent = server.said(&["exec", "client", "--", "no-such-program"]);
    assert!(absent.code != 0 && absent.err.contains("no-such-program"), "{absent:?}");
    let mut tty = Command::new("script");
    let kubectl = format!("kubectl --kubeconfig={} exec -it client -- tty", server.place.kubeconfig().display());
    let said = run_with(tty.args(["-qec", &kubectl, "/dev/null"]), "");
    assert!(said.out.contains("/dev/pts/"), "{said:?}");
}

fn logs(server: &Server) {
    let talker = "apiVersion: v1\nkind: Pod\nmetadata: {name: talker}\nspec:\n  containers:\n  - name: c\n    \
        image: kedge.local/busybox:1\n    command: [sh, -c, 'for i in 1 2 3; do echo line $i; done; exit 3']\n";
    server.ok_with(&["apply", "-f", "-"], talker);
    server.until(
        &["get", "pod", "talker", "-o", "jsonpath={.status.containerStatuses[0].restartCount}"],
        POD_LIMIT,
        |out| out.parse().unwrap_or(0) >= 1,
    );
    assert_eq!(server.ok(&["logs", "talker", "--previous"]), "line 1\nline 2\nline 3\n");
    assert_eq!(server.ok(&["logs", "talker", "--tail=1"]), "line 3\n");
    let stamped = server.ok(&["logs", "talker", "--timestamps", "--tail=1"]);
    assert!(stamped.starts_with("20") && stamped.ends_with("Z line 3\n"), "{stamped}");
    let state = server.ok(&[
        "get",
        "pod",
        "talker",
        "-o",
        "jsonpath={.status.containerStatuses[0].lastState.terminated.exitCode}",
    ]);
    assert_eq!(state, "3");
    server.until(&["get", "pod", "talker", "--no-headers"], POD_LIMIT, |out| out.contains("CrashLoopBackOff"));
    server.ok(&["delete", "pod", "talker", "--timeout=60s"]);

    let mut follow = server.place.kubectl(&["logs", "-f", "counter"]);
    server.ok(&[
        "run",
        "counter",
        "--image=kedge.local/busybox:1",
        "--restart=Never",
        "--command",
        "--",
        "sh",
        "-c",
        "for i in 1 2 3; do echo $i; sleep 1; done",
    ]);
    server.until(&["get", "pod", "counter", "-o", "jsonpath={.status.phase}"], POD_LIMIT, |out| {
        out == "Running" || out == "Succeeded"
    });
    let followed = follow.output().unwrap();
    assert_eq!(String::from_utf8_lossy(&followed.stdout), "1\n2\n3\n");
    server.until(&["get", "pod", "counter", "-o", "jsonpath={.status.phase}"], POD_LIMIT, |out| out == "Succeeded");
}

fn forward_and_copy(server: &Server) {
    let mut forward =
        server.place.kubectl(&["port-forward", "service/web", ":80"]).stdout(Stdio::piped()).spawn().unwrap();
    // Kept open to the end: kubectl writes a line a connection, and dies of a pipe that nobody reads.
    let mut out = BufReader::new(forward.stdout.take().unwrap()).lines();
    let forward = Running(forward);
    let line = out.next().unwrap().unwrap();
    let port = line
        .strip_prefix("Forwarding from 127.0.0.1:")
        .and_then(|rest| rest.split(' ').next())
        .unwrap_or_else(|| panic!("{line}"));
    let addr: SocketAddr = format!("127.0.0.1:{port}").parse().unwrap();
    for _ in 0..3 {
        expect_page(page(addr).unwrap()).unwrap();
    }
    drop(forward);

    let (there, back) = (server.place.path("there"), server.place.path("back"));
    let bytes: Vec<u8> = (0..300_000_u32).flat_map(u32::to_le_bytes).collect();
    std::fs::write(&there, &bytes).unwrap();
    server.ok(&["cp", there.to_str().unwrap(), "client:/tmp/file"]);
    server.ok(&["cp", "client:/tmp/file", back.to_str().unwrap()]);
    assert!(std::fs::read(&back).unwrap() == bytes, "a file came back changed");
}

/// An ephemeral container sees the processes of the one it was sent to.
fn debug(server: &Server) {
    let look = ["--target=client", "-c", "look", "--profile=general", "--", "sh", "-c", "ps; sleep 1"];
    server.ok(&[&["debug", "client", "--image=kedge.local/busybox:1"][..], &look].concat());
    server.until(&["logs", "client", "-c", "look"], POD_LIMIT, |out| out.contains("sleep 3600"));
    let code = "jsonpath={.status.ephemeralContainerStatuses[0].state.terminated.exitCode}";
    server.until(&["get", "pod", "client", "-o", code], POD_LIMIT, |out| out == "0");
}

/// A new CPU limit reaches the running container.
fn resize(server: &Server) {
    let spec = r#"{"spec":{"containers":[{"name":"sized","image":"kedge.local/busybox:1","command":["sleep","3600"],
        "resources":{"requests":{"cpu":"10m"},"limits":{"cpu":"100m"}}}]}}"#;
    server.ok(&["run", "sized", "--image=kedge.local/busybox:1", "--restart=Never", "--overrides", spec]);
    server.ok(&["wait", "pod/sized", "--for=condition=Ready", "--timeout=60s"]);
    let wish = r#"{"spec":{"containers":[{"name":"sized","resources":{"limits":{"cpu":"200m"}}}]}}"#;
    server.ok(&["patch", "pod", "sized", "--subresource=resize", "-p", wish]);
    let told =
        "jsonpath={.status.containerStatuses[0].resources.limits.cpu} {.status.containerStatuses[0].restartCount}";
    server.until(&["get", "pod", "sized", "-o", told], POD_LIMIT, |out| out == "200m 0");
    server.ok(&["delete", "pod", "sized", "--now"]);
}

fn rollout(server: &Server) {
    let load = Load::on(cluster_ip(server));
    server.ok(&["set", "env", "deployment/web", "ROUND=2"]);
    server.ok(&["rollout", "status", "deployment/web", "--timeout=120s"]);
    server.ok(&["rollout", "undo", "deployment/web"]);
    server.ok(&["rollout", "status", "deployment/web", "--timeout=120s"]);
    let answered = load.end("a rolling update and a rollback");
    assert!(answered > 100, "only {answered} requests");
    println!("   {answered} requests");
    server.until(&["get", "pods", "-l", "app=web", "-o", "name"], POD_LIMIT, |out| out.lines().count() == 3);
}

fn containerd_dies(server: &Server) {
    let before = server.ok(&["get", "pods", "-l", "app=web", "-o", IDS]);
    let socket = containerd_socket().unwrap();
    let daemon =
        |pid: &u32| std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name == "containerd\n");
    let daemons: Vec<u32> = processes(&["containerd"]).into_iter().filter(daemon).collect();
    assert_eq!(daemons.len(), 1, "{daemons:?}");
    let load = Load::on(cluster_ip(server));
    signal(daemons[0], "KILL");
    wait_for("a new containerd", HEAL_LIMIT, || {
        let said = run_with(Command::new("ctr").arg("--address").arg(&socket).args(["--timeout", "2s", "version"]), "");
        if said.code == 0 { Ok(()) } else { Err(said.err) }
    });
    wait_for("exec after containerd came back", HEAL_LIMIT, || {
        let said = server.said(&["exec", "client", "--", "echo", "again"]);
        if said.out == "again\n" { Ok(()) } else { Err(said.err) }
    });
    server.ok(&["run", "late", "--image=kedge.local/busybox:1", "--restart=Never", "--command", "--", "true"]);
    server.until(&["get", "pod", "late", "-o", "jsonpath={.status.phase}"], POD_LIMIT, |out| out == "Succeeded");
    load.end("a crash of containerd");
    assert_eq!(server.ok(&["get", "pods", "-l", "app=web", "-o", IDS]), before);
}

fn deletion(server: &Server) {
    let uid = server.ok(&["get", "pod", "client", "-o", "jsonpath={.metadata.uid}"]);
    server.ok(&["delete", "pod", "client", "counter", "late", "--grace-period=1", "--timeout=60s"]);
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(&uid), "mounts of a deleted pod");
    assert!(!server.place.data_dir().join(format!("agent/kubelet/pods/{uid}")).exists(), "the folder of a deleted pod");
}

fn kedge_dies(server: Server) -> Server {
    let before = server.ok(&["get", "pods", "-A", "-o", IDS]);
    let addr = cluster_ip(&server);
    let load = Load::on(addr);
    let place = server.kill_only();
    let server = Server::start_in(place);
    server.ok(&["wait", "node/n1", "--for=condition=Ready", "--timeout=60s"]);
    server.ok(&["rollout", "status", "deployment/web", "--timeout=60s"]);
    server.ok(&["scale", "deployment", "web", "--replicas=4"]);
    server.ok(&["rollout", "status", "deployment/web", "--timeout=90s"]);
    server.ok(&["scale", "deployment", "web", "--replicas=3"]);
    server.until(&["get", "pods", "-l", "app=web", "-o", "name"], POD_LIMIT, |out| out.lines().count() == 3);
    load.end("a crash of kedge");
    let after = server.ok(&["get", "pods", "-A", "-o", IDS]);
    let kept = before.lines().filter(|line| after.contains(*line)).count();
    assert!(kept + 1 >= before.lines().count(), "containers were not adopted:\n{before}\nnow:\n{after}");
    server
}

fn killall(program: &Path, server: Server) {
    let place = server.kill_only();
    let data = place.data_dir().display().to_string();
    let said = run_with(Command::new(program).args(["killall", "--data-dir", &data]), "");
    assert_eq!(said.code, 0, "{}{}", said.out, said.err);
    assert_eq!(processes(&["containerd"]), Vec::<u32>::new(), "processes");
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let left: Vec<&str> = mounts
        .lines()
        .filter(|line| line.contains(&data) || line.contains("/run/kedge") || line.contains("/cni-"))
        .collect();
    assert!(left.is_empty(), "mounts:\n{}", left.join("\n"));
    let links = run_with(Command::new("ip").args(["-o", "link"]), "").out;
    assert!(!links.contains("cni0") && !links.contains("veth"), "links:\n{links}");
    let tables = run_with(Command::new("nft").args(["list", "tables"]), "").out;
    assert!(!tables.contains("kedge"), "tables:\n{tables}");
    assert!(place.data_dir().join("server/db/state.db").exists(), "data is kept");
    let again = run_with(Command::new(program).args(["killall", "--data-dir", &data]), "");
    assert_eq!(again.code, 0, "a second time: {}{}", again.out, again.err);
}
