//! SIGKILL at random moments, in turn of kedge and of containerd, while a client writes and another reads a page
//! through a Service.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use crate::harness::{Server, run_with, signal, wait_for};
use crate::node::{Load, containerd_socket, processes};
use crate::story::{HEAL_LIMIT, IDS, POD_LIMIT, cluster_ip};

/// How often each of the two dies; `KEDGE_KILLS` asks for more (20 is what a release has to stand).
const KILLS: u64 = 2;

/// No acknowledged write is lost, no container restarts, no request fails, and what is asked for afterwards is done.
pub(crate) fn at_random_moments(mut server: Server) -> Server {
    let kills = std::env::var("KEDGE_KILLS").map_or(KILLS, |text| text.parse().expect("KEDGE_KILLS is a number"));
    let mut seed = u64::try_from(SystemTime::UNIX_EPOCH.elapsed().unwrap().as_millis()).unwrap();
    println!("moments from seed {seed}");
    let before = server.ok(&["get", "pods", "-l", "app=web", "-o", IDS]);
    let load = Load::on(cluster_ip(&server));
    let writer = Writer::start(&server.place.kubeconfig());
    for _ in 0..kills {
        std::thread::sleep(moment(&mut seed));
        server = Server::start_in(server.kill_only());
        std::thread::sleep(moment(&mut seed));
        kill_containerd();
    }
    server.ok(&["wait", "node/n1", "--for=condition=Ready", "--timeout=60s"]);
    let written = writer.end();
    let found = server.ok(&["get", "configmaps", "-o", "name"]);
    let found: std::collections::BTreeSet<&str> = found.lines().collect();
    let lost: Vec<&String> = written.iter().filter(|name| !found.contains(name.as_str())).collect();
    assert!(lost.is_empty(), "lost {} of {} acknowledged writes: {lost:?}", lost.len(), written.len());
    assert!(written.len() > usize::try_from(kills).unwrap(), "too few writes to say anything: {}", written.len());
    assert_eq!(server.ok(&["get", "pods", "-l", "app=web", "-o", IDS]), before, "containers of the page");
    server.ok(&["scale", "deployment", "web", "--replicas=4"]);
    server.until(&["get", "deployment", "web", "-o", "jsonpath={.status.readyReplicas}"], POD_LIMIT, |out| out == "4");
    server.ok(&["scale", "deployment", "web", "--replicas=3"]);
    server.until(&["get", "pods", "-l", "app=web", "-o", "name"], POD_LIMIT, |out| out.lines().count() == 3);
    load.end("many crashes");
    println!("{kills} crashes of each; {} acknowledged writes are all there", written.len());
    server
}

/// On a busy machine shims do not answer for seconds: that is no reason for a new containerd to kill their containers.
pub(crate) fn shims_answer_late(server: &Server) {
    let before = server.ok(&["get", "pods", "-A", "-o", IDS]);
    let load = Load::on(cluster_ip(server));
    let shims = processes(&["containerd-shim-runc-v2"]);
    assert!(shims.len() > 3, "the pods' shims: {shims:?}");
    shims.iter().for_each(|pid| signal(*pid, "STOP"));
    signal(daemon_of_containerd(), "KILL");
    // Longer than the 5 s that containerd waits by itself.
    std::thread::sleep(Duration::from_secs(7));
    shims.iter().for_each(|pid| signal(*pid, "CONT"));
    await_containerd();
    server.ok(&["run", "later", "--image=kedge.local/busybox:1", "--restart=Never", "--command", "--", "true"]);
    server.until(&["get", "pod", "later", "-o", "jsonpath={.status.phase}"], POD_LIMIT, |out| out == "Succeeded");
    server.ok(&["delete", "pod", "later"]);
    load.end("shims that answered late");
    assert_eq!(server.ok(&["get", "pods", "-A", "-o", IDS]), before);
}

/// Up to two seconds (xorshift64*).
fn moment(seed: &mut u64) -> Duration {
    *seed ^= *seed >> 12;
    *seed ^= *seed << 25;
    *seed ^= *seed >> 27;
    Duration::from_millis(seed.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 53)
}

fn kill_containerd() {
    signal(daemon_of_containerd(), "KILL");
    await_containerd();
}

/// kedge may have been killed a moment ago: then its next containerd is only just coming.
fn daemon_of_containerd() -> u32 {
    let daemon =
        |pid: &u32| std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name == "containerd\n");
    wait_for("containerd's process", HEAL_LIMIT, || {
        processes(&["containerd"]).into_iter().find(daemon).ok_or_else(|| "none".to_owned())
    })
}

fn await_containerd() {
    let socket = containerd_socket().unwrap();
    wait_for("a new containerd", HEAL_LIMIT, || {
        let said = run_with(Command::new("ctr").arg("--address").arg(&socket).args(["--timeout", "2s", "version"]), "");
        if said.code == 0 { Ok(()) } else { Err(said.err) }
    });
}

/// Creates ConfigMaps one by one, whether the server is there or not.
struct Writer {
    stop: Arc<AtomicBool>,
    work: JoinHandle<Vec<String>>,
}

impl Writer {
    fn start(kubeconfig: &Path) -> Writer {
        let (stop, kubeconfig) = (Arc::new(AtomicBool::new(false)), kubeconfig.to_owned());
        let told = Arc::clone(&stop);
        let work = std::thread::spawn(move || {
            let mut acknowledged = Vec::new();
            let began = Instant::now();
            for n in 0u32.. {
                if told.load(Ordering::Relaxed) || began.elapsed() > Duration::from_secs(3600) {
                    break;
                }
                let mut command = Command::new("kubectl");
                command.arg("--kubeconfig").arg(&kubeconfig).args(["create", "configmap", &format!("crash-{n}")]);
                if command.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success()) {
                    acknowledged.push(format!("configmap/crash-{n}"));
                }
            }
            acknowledged
        });
        Writer { stop, work }
    }

    fn end(self) -> Vec<String> {
        self.stop.store(true, Ordering::Relaxed);
        self.work.join().unwrap()
    }
}
