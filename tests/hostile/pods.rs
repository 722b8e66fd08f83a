//! Pods that outlive, outgrow or outwit the kubelet.

use base::sync::Mutex;
use std::collections::BTreeMap;
use std::fs;
use std::io::Read as _;
use std::net::TcpListener;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::{Server, run_with, wait_for};
use crate::{BUSYBOX, Chapter, POD_LIMIT, node};

pub(crate) const CHAPTERS: &[Chapter] = &[
    ("a pod ends for others only when it has ended", a_pod_ends_for_others_only_when_it_has_ended),
    ("pods that take turns are not refused", pods_that_take_turns_are_not_refused),
    ("a pod cannot become nobody's", a_pod_cannot_become_nobodys),
    ("no grace period is too long for the node", no_grace_period_is_too_long_for_the_node),
    ("a sidecar may say farewell", a_sidecar_may_say_farewell),
    ("a pod that is busy is unready at once", a_pod_that_is_busy_is_unready_at_once),
    ("what ended well does not run again", what_ended_well_does_not_run_again),
    ("a registry that is silent holds no pod up that is to end", a_registry_that_is_silent_holds_no_pod_up),
    ("a pod that is being ended is asked no more whether it lives", a_pod_that_is_being_ended_is_not_asked),
];

/// A pod of one container that runs `script`, with `more` in its spec.
fn pod(name: &str, script: &str, more: &Value) -> Value {
    let container =
        json!({ "name": "c", "image": BUSYBOX, "imagePullPolicy": "Never", "command": ["sh", "-c", script] });
    let mut pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name },
        "spec": { "terminationGracePeriodSeconds": 0, "automountServiceAccountToken": false,
            "containers": [container] } });
    pod["spec"].as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    pod
}

fn apply(server: &Server, pod: &Value) {
    server.ok_with(&["apply", "-f", "-"], &pod.to_string());
}

fn running(server: &Server, name: &str) {
    server.until(&["get", "pod", name, "-o", "jsonpath={.status.phase}"], POD_LIMIT, |phase| phase == "Running");
}

/// Waits until no process has the words in its command line.
fn gone(words: &[&str]) {
    wait_for("the processes to end", POD_LIMIT, || match node::processes(words) {
        left if left.is_empty() => Ok(()),
        left => Err(format!("{left:?} run still")),
    });
}

// review node.md N3
fn a_pod_ends_for_others_only_when_it_has_ended(server: &Server) {
    let script = "trap '' TERM; i=0; while [ $i -lt 99999 ]; do sleep 1; i=$((i+1)); done # outliver";
    apply(
        server,
        &pod("outliver", script, &json!({ "activeDeadlineSeconds": 15, "terminationGracePeriodSeconds": 12 })),
    );
    running(server, "outliver");
    let over = |text: &str| text.starts_with("Failed");
    server.until(&["get", "events", "--field-selector=reason=DeadlineExceeded", "-o", "name"], POD_LIMIT, |out| {
        !out.is_empty()
    });
    let mut looks = 0;
    wait_for("the pod to fail", POD_LIMIT, || {
        // The phase first: a process that ends between the two looks is no lie.
        let status = server.ok(&["get", "pod", "outliver", "-o", "jsonpath={.status.phase} {.status.reason}"]);
        let alive = !node::processes(&["outliver"]).is_empty();
        assert!(!(over(&status) && alive), "{status} while it runs");
        looks += i32::from(alive);
        if over(&status) { Ok(()) } else { Err(status) }
    });
    assert!(looks > 0, "it did live on after its deadline");
    server.ok(&["delete", "pod", "outliver"]);
}

/// The scheduler gives a pod's share to the next as soon as it reads that the pod has ended: by then the kubelet must
/// have let go of it, however much there is to tidy (upstream's e2e spec "validates basic preemption works").
fn pods_that_take_turns_are_not_refused(server: &Server) {
    let capacity = r#"[{"op":"add","path":"/status/capacity/example.com~1turn","value":"2"}]"#;
    let node = server.ok(&["get", "nodes", "-o", "jsonpath={.items[0].metadata.name}"]);
    server.ok(&["patch", "node", &node, "--subresource=status", "--type=json", "-p", capacity]);
    let volumes = [
        json!({ "name": "a", "emptyDir": { "medium": "Memory" } }),
        json!({ "name": "b", "emptyDir": { "medium": "Memory" } }),
    ];
    for n in 0..12 {
        let mut pod = pod(&format!("turn-{n}"), "true", &json!({ "restartPolicy": "Never", "volumes": volumes }));
        pod["metadata"]["labels"] = json!({ "takes": "turns" });
        let container = &mut pod["spec"]["containers"][0];
        container["resources"] = json!({ "limits": { "example.com/turn": "1" } });
        container["volumeMounts"] = json!([{ "name": "a", "mountPath": "/a" }, { "name": "b", "mountPath": "/b" }]);
        apply(server, &pod);
    }
    let look =
        ["get", "pods", "-l", "takes=turns", "-o", "jsonpath={range .items[*]}{.status.phase}/{.status.reason} {end}"];
    // Six turns, one after the other.
    let said =
        server.until(&look, POD_LIMIT * 3, |said| said.contains("OutOf") || said.matches("Succeeded/").count() == 12);
    assert!(!said.contains("OutOf"), "{said}");
    server.ok(&["delete", "pods", "-l", "takes=turns", "--wait=false"]);
}

// review security-2.md F2
fn a_pod_cannot_become_nobodys(server: &Server) {
    apply(server, &pod("ghost", "sleep 7777", &json!({})));
    running(server, "ghost");
    // The API may refuse it; if it does not, the kubelet ends the pod, and takes nothing for static that no file is.
    for (note, value) in [("kubernetes.io/config.source", "file"), ("kubernetes.io/config.mirror", "x")] {
        let _refused_is_fine = server.said(&["annotate", "--overwrite", "pod", "ghost", &format!("{note}={value}")]);
    }
    let object = || server.said(&["get", "pod", "ghost", "-o", "name"]).code == 0;
    wait_for("the pod to be there, or gone altogether", POD_LIMIT, || {
        match (object(), node::processes(&["sleep", "7777"]).is_empty()) {
            (true, false) | (false, true) => Ok(()),
            other => Err(format!("object, no process: {other:?}")),
        }
    });
    server.said(&["delete", "pod", "ghost", "--wait=true"]);
    gone(&["sleep", "7777"]);
}

// review node.md N15
fn no_grace_period_is_too_long_for_the_node(server: &Server) {
    apply(server, &pod("patient", "exec sleep 8888", &json!({ "terminationGracePeriodSeconds": 400_000_000_000_i64 })));
    running(server, "patient");
    // It is asked to end, and its task lives: when the deletion becomes shorter it obeys.
    server.ok(&["delete", "pod", "patient", "--wait=false"]);
    server.ok(&["delete", "pod", "patient", "--grace-period=1", "--wait=true", "--timeout=60s"]);
    gone(&["sleep", "8888"]);
}

// review node.md N13
fn a_sidecar_may_say_farewell(server: &Server) {
    let dir = server.place.path("farewell");
    fs::create_dir_all(&dir).unwrap();
    let sidecar = json!({ "name": "s", "image": BUSYBOX, "imagePullPolicy": "Never", "restartPolicy": "Always",
        "command": ["sh", "-c", "trap 'echo bye >/h/bye; exit' TERM; sleep 5555 & wait"],
        "volumeMounts": [{ "name": "h", "mountPath": "/h" }] });
    let more = json!({ "terminationGracePeriodSeconds": 3, "initContainers": [sidecar],
        "volumes": [{ "name": "h", "hostPath": { "path": dir } }] });
    apply(server, &pod("pair", "trap '' TERM; sleep 5554; sleep 5554", &more));
    running(server, "pair");
    server.ok(&["wait", "pod/pair", "--for=condition=Ready", "--timeout=90s"]);
    server.ok(&["delete", "pod", "pair", "--wait=true", "--timeout=60s"]);
    assert_eq!(fs::read_to_string(dir.join("bye")).unwrap_or_default(), "bye\n");
}

// review node.md N14
fn a_pod_that_is_busy_is_unready_at_once(server: &Server) {
    let of = |name: &str, script: &str, more: &Value| {
        let mut container =
            json!({ "name": name, "image": BUSYBOX, "imagePullPolicy": "Never", "command": ["sh", "-c", script] });
        container.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        container
    };
    let probe = json!({ "readinessProbe": { "exec": { "command": ["test", "-f", "/tmp/ok"] }, "periodSeconds": 1,
        "failureThreshold": 1 } });
    let hook = json!({ "lifecycle": { "postStart": { "exec": { "command": ["sleep", "120"] } } } });
    let more = json!({ "containers": [of("a", "touch /tmp/ok; sleep 4444", &probe), of("b", "sleep 4443", &hook)] });
    apply(server, &pod("busy", "", &more));
    let ready = ["get", "pod", "busy", "-o", "jsonpath={.status.containerStatuses[?(@.name=='a')].ready}"];
    server.until(&ready, POD_LIMIT, |ready| ready == "true");
    server.ok(&["exec", "busy", "-c", "a", "--", "rm", "/tmp/ok"]);
    // Well before the hook of the other container has ended.
    server.until(&ready, Duration::from_secs(30), |ready| ready == "false");
    server.ok(&["delete", "pod", "busy", "--wait=false"]);
}

/// node.md, N16 and N8.
fn what_ended_well_does_not_run_again(server: &Server) {
    let dir = server.place.path("once");
    fs::create_dir_all(&dir).unwrap();
    let of = |name: &str, script: &str| {
        json!({ "name": name, "image": BUSYBOX, "imagePullPolicy": "Never", "command": ["sh", "-c", script],
            "volumeMounts": [{ "name": "h", "mountPath": "/h" }] })
    };
    let more = json!({ "restartPolicy": "OnFailure", "volumes": [{ "name": "h", "hostPath": { "path": dir } }],
        "containers": [of("migrate", "echo ran >>/h/migrate"), of("load", "echo ran >>/h/load; sleep 6666")] });
    apply(server, &pod("job", "", &more));
    let lines = |name: &str| fs::read_to_string(dir.join(name)).unwrap_or_default().lines().count();
    let until = |name: &str, n: usize| {
        wait_for(name, POD_LIMIT, || match lines(name) {
            now if now >= n => Ok(()),
            now => Err(format!("{now} of {n}")),
        });
    };
    until("migrate", 1);
    until("load", 1);
    let ended = "jsonpath={.status.containerStatuses[?(@.name=='migrate')].state.terminated.exitCode}";
    server.until(&["get", "pod", "job", "-o", ended], POD_LIMIT, |code| code == "0");
    // The sandbox is lost, as in a power cut.
    let uid = server.ok(&["get", "pod", "job", "-o", "jsonpath={.metadata.uid}"]);
    let ctr = |args: &[&str]| {
        let socket = node::containerd_socket().unwrap();
        let said = run_with(Command::new("ctr").arg("--address").arg(socket).args(["-n", "k8s.io"]).args(args), "");
        assert_eq!(said.code, 0, "{said:?}");
        said.out
    };
    let of_pod = format!("labels.\"io.kubernetes.pod.uid\"=={uid},labels.\"io.cri-containerd.kind\"==sandbox");
    let sandbox = ctr(&["containers", "ls", "-q", &of_pod]);
    ctr(&["tasks", "kill", "-s", "SIGKILL", sandbox.trim()]);
    until("load", 2);
    assert_eq!(lines("migrate"), 1, "it had ended well");
    let ips = server.ok(&["get", "pod", "job", "-o", "jsonpath={.status.podIPs[*].ip}"]);
    let family = |v6: bool| ips.split(' ').filter(|ip| ip.contains(':') == v6).count();
    assert!(family(false) <= 1 && family(true) <= 1, "node.md N8: an address that it lost is kept: {ips}");
    server.ok(&["delete", "pod", "job"]);
}

/// Takes every question and never answers. Counts the images that are asked for at one time.
fn silent_registry() -> (u16, Arc<Mutex<BTreeMap<String, usize>>>, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (open, most) = (Arc::new(Mutex::new(BTreeMap::<String, usize>::new())), Arc::new(AtomicUsize::new(0)));
    let (shared, peak) = (Arc::clone(&open), Arc::clone(&most));
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let (open, peak) = (Arc::clone(&shared), Arc::clone(&peak));
            std::thread::spawn(move || {
                let mut head = [0; 4096];
                let n = stream.read(&mut head).unwrap_or(0);
                let text = String::from_utf8_lossy(&head[..n]).into_owned();
                let Some(image) = text.split("/v2/").nth(1).and_then(|rest| rest.split('/').next()).map(str::to_owned)
                else {
                    return;
                };
                {
                    let mut open = open.lock();
                    *open.entry(image.clone()).or_default() += 1;
                    peak.fetch_max(open.len(), Ordering::Relaxed);
                }
                // Until it hangs up.
                while stream.read(&mut head).is_ok_and(|n| n > 0) {}
                let mut open = open.lock();
                let left = open.get_mut(&image).unwrap();
                *left -= 1;
                if *left == 0 {
                    open.remove(&image);
                }
            });
        }
    });
    (port, open, most)
}

// review node.md M3 and E3: a pod past its deadline pulled on, and twenty pulls began at a time
fn a_registry_that_is_silent_holds_no_pod_up(server: &Server) {
    let (port, open, most) = silent_registry();
    let names: Vec<String> = (0..5).map(|n| format!("pulls{n}")).collect();
    for name in &names {
        let image =
            json!([{ "name": "c", "image": format!("localhost:{port}/{name}:1"), "imagePullPolicy": "Always" }]);
        apply(server, &pod(name, "", &json!({ "activeDeadlineSeconds": 20, "containers": image })));
    }
    wait_for("as many pulls as there may be", POD_LIMIT, || match open.lock().len() {
        3 => Ok(()),
        n => Err(format!("{n} pulls")),
    });
    for name in &names {
        let status = ["get", "pod", name, "-o", "jsonpath={.status.phase} {.status.reason}"];
        server.until(&status, POD_LIMIT, |status| status == "Failed DeadlineExceeded");
    }
    assert_eq!(most.load(Ordering::Relaxed), 3, "images that were asked for at one time");
    wait_for("the pulls to end", POD_LIMIT, || match open.lock().len() {
        0 => Ok(()),
        n => Err(format!("{n} pulls go on")),
    });
    for name in &names {
        server.ok(&["delete", "pod", name, "--wait=false"]);
    }
}

// review node.md M18: a probe of a dying pod killed it before its grace was over, and told of it each period
fn a_pod_that_is_being_ended_is_not_asked(server: &Server) {
    let dir = server.place.path("dying");
    fs::create_dir_all(&dir).unwrap();
    let script = "trap 'touch /h/ending' TERM; while :; do sleep 1; done";
    let asked = "[ ! -e /h/ending ] || echo asked >>/h/asked; echo alive >>/h/alive; [ ! -e /h/ending ]";
    let container = json!([{ "name": "c", "image": BUSYBOX, "imagePullPolicy": "Never", "command": ["sh", "-c", script],
        "volumeMounts": [{ "name": "h", "mountPath": "/h" }],
        "livenessProbe": { "exec": { "command": ["sh", "-c", asked] }, "periodSeconds": 1, "failureThreshold": 2 } }]);
    let more = json!({ "terminationGracePeriodSeconds": 8, "containers": container,
        "volumes": [{ "name": "h", "hostPath": { "path": dir } }] });
    apply(server, &pod("dying", "", &more));
    let lines = |name: &str| fs::read_to_string(dir.join(name)).unwrap_or_default().lines().count();
    wait_for("a first probe", POD_LIMIT, || if lines("alive") > 0 { Ok(()) } else { Err("none".to_owned()) });
    server.ok(&["delete", "pod", "dying", "--timeout=120s"]);
    assert!(dir.join("ending").exists(), "it was told to end");
    // One may have been on its way.
    assert!(lines("asked") <= 1, "asked {} times", lines("asked"));
}
