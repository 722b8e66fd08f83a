//! Pods that attack the node through the folders they share with the kubelet.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{CWD, Mode, OFlags, mkdirat, openat};
use serde_json::{Value, json};

use crate::harness::{Server, run_with, wait_for};
use crate::{BUSYBOX, Chapter, POD_LIMIT};

pub(crate) const CHAPTERS: &[Chapter] = &[
    ("a config volume is read-only, and a planted link in it costs nothing of the host", planted_data_link),
    ("last words of a terabyte are cut", last_words),
    ("folders deeper than any stack are removed", deep_folders),
    ("what a pod mounts by subPath outlives it, and any user may write there", sub_paths),
    ("an NFS server that is an option is refused", nfs_option),
    ("a log turned into a link is not read", linked_log),
    ("the previous log is that of the last crash", previous_log),
    ("a variable from a file is read from its volume only", file_variables),
    ("uninstall lets foreign folders be", foreign_folders),
];

/// Makes a pod of busybox that runs a script; `more` is merged into its spec.
fn pod(server: &Server, name: &str, script: &str, more: &Value) {
    let mut spec = json!({"terminationGracePeriodSeconds": 0, "automountServiceAccountToken": false,
        "containers": [{"name": "c", "image": BUSYBOX, "command": ["sh", "-c", script]}]});
    for (key, value) in more.as_object().unwrap() {
        if key == "container" {
            let container = spec["containers"][0].as_object_mut().unwrap();
            container.extend(value.as_object().unwrap().clone());
        } else {
            spec[key] = value.clone();
        }
    }
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec});
    server.ok_with(&["apply", "-f", "-"], &pod.to_string());
}

fn runs(server: &Server, name: &str) {
    server.until(&["get", "pod", name, "-o", "jsonpath={.status.phase}"], POD_LIMIT, |out| out == "Running");
}

fn gone(server: &Server, name: &str) {
    server.ok(&["delete", "pod", name, "--timeout=120s"]);
}

/// A pod's folder on the node.
fn dir_of(server: &Server, name: &str) -> PathBuf {
    let uid = server.ok(&["get", "pod", name, "-o", "jsonpath={.metadata.uid}"]);
    server.place.data_dir().join("agent/kubelet/pods").join(uid)
}

/// A folder of the host with a file that must stay.
fn victim(server: &Server, name: &str) -> PathBuf {
    let dir = server.place.path(name);
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("precious"), "x").unwrap();
    dir
}

// security.md C1.
fn planted_data_link(server: &Server) {
    let victim = victim(server, "victim-of-link");
    server.ok(&["create", "configmap", "conf", "--from-literal=k=1"]);
    let more = json!({"securityContext": {"runAsNonRoot": true, "runAsUser": 1000,
        "seccompProfile": {"type": "RuntimeDefault"}},
        "volumes": [{"name": "v", "configMap": {"name": "conf"}}],
        "container": {"volumeMounts": [{"name": "v", "mountPath": "/cfg"}],
            "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}}}});
    pod(server, "config", "sleep 9999", &more);
    runs(server, "config");
    for attack in ["rm /cfg/..data", "touch /cfg/x", "mv /cfg/..data /cfg/y", "mkdir /cfg/..rev_7"] {
        server.refused(&["exec", "config", "--", "sh", "-c", attack]);
    }
    // What keeps an unprivileged user out are the folder's bits; root is kept out by the mount.
    let more = json!({"volumes": [{"name": "v", "configMap": {"name": "conf"}}],
        "container": {"volumeMounts": [{"name": "v", "mountPath": "/cfg"}]}});
    pod(server, "config-root", "sleep 9999", &more);
    runs(server, "config-root");
    for attack in ["rm /cfg/..data", "touch /cfg/x", "mkdir /cfg/..rev_7"] {
        let said = server.refused(&["exec", "config-root", "--", "sh", "-c", attack]);
        assert!(said.contains("Read-only file system"), "{attack}: {said}");
    }
    gone(server, "config-root");
    // As a container of an earlier version could leave it.
    let volume = dir_of(server, "config").join("volumes/kubernetes.io~configmap/v");
    assert_eq!(fs::metadata(&volume).unwrap().permissions().mode() & 0o7777, 0o755);
    fs::remove_file(volume.join("..data")).unwrap();
    symlink(&victim, volume.join("..data")).unwrap();
    symlink(&victim, volume.join("..rev_1")).unwrap();
    server.ok(&["patch", "configmap", "conf", "-p", r#"{"data":{"k":"2"}}"#]);
    server.until(&["exec", "config", "--", "cat", "/cfg/k"], POD_LIMIT, |out| out == "2");
    assert_eq!(fs::read_dir(&victim).unwrap().count(), 1, "the host's folder holds what it held");
    assert!(victim.join("precious").exists());
    gone(server, "config");
}

// node.md N1. On old code a terabyte cannot be allocated, so the message is empty; a size that can be would end the
// server.
fn last_words(server: &Server) {
    pod(
        server,
        "words",
        "yes words | head -c 9000 >/dev/termination-log; truncate -s 1024G /dev/termination-log; exit 3",
        &json!({"restartPolicy": "Never"}),
    );
    let message = ["get", "pod", "words", "-o", "jsonpath={.status.containerStatuses[0].state.terminated.exitCode}"];
    server.until(&message, POD_LIMIT, |out| out == "3");
    let told: Value = serde_json::from_str(&server.ok(&["get", "pod", "words", "-o", "json"])).unwrap();
    let message = told
        .pointer("/status/containerStatuses/0/state/terminated/message")
        .and_then(Value::as_str)
        .unwrap_or_default();
    assert_eq!(message.len(), 4096);
    gone(server, "words");
}

// node.md N2. Made from outside: a shell's own idea of where it is ends at PATH_MAX.
fn deep_folders(server: &Server) {
    let more = json!({"volumes": [{"name": "v", "emptyDir": {}}],
        "container": {"volumeMounts": [{"name": "v", "mountPath": "/v"}]}});
    pod(server, "deep", "sleep 9999", &more);
    runs(server, "deep");
    let dir = dir_of(server, "deep");
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let mut here = openat(CWD, dir.join("volumes/kubernetes.io~empty-dir/v"), flags, Mode::empty()).unwrap();
    for _ in 0..6000 {
        mkdirat(&here, "d", Mode::from_raw_mode(0o777)).unwrap();
        here = openat(&here, "d", flags, Mode::empty()).unwrap();
    }
    let before = server.pid();
    gone(server, "deep");
    wait_for("the pod's folder to go", POD_LIMIT, || if dir.exists() { Err("still there".to_owned()) } else { Ok(()) });
    assert!(Path::new(&format!("/proc/{before}/exe")).exists(), "the server lives");
}

// node.md N9 and security.md C4: what hangs in the pod's folder is data of the host.
fn sub_paths(server: &Server) {
    let host = victim(server, "host-folder");
    fs::create_dir(host.join("sub")).unwrap();
    fs::write(host.join("sub/precious"), "x").unwrap();
    let more = json!({"securityContext": {"runAsUser": 1000},
        "volumes": [{"name": "v", "emptyDir": {}}, {"name": "h", "hostPath": {"path": host}}],
        "container": {"volumeMounts": [
            {"name": "v", "mountPath": "/d", "subPath": "data/deep"},
            {"name": "h", "mountPath": "/h", "subPath": "sub"}]}});
    pod(server, "subs", "touch /d/mine && echo written; sleep 9999", &more);
    server.until(&["logs", "subs"], POD_LIMIT, |out| out == "written\n");
    let dir = dir_of(server, "subs");
    gone(server, "subs");
    wait_for("the pod's folder to go", POD_LIMIT, || if dir.exists() { Err("still there".to_owned()) } else { Ok(()) });
    assert!(host.join("sub/precious").exists() && host.join("precious").exists());
}

// security.md C3.
fn nfs_option(server: &Server) {
    for server_name in ["--fstab=/tmp/a", "-oremount", "a b", "x,y"] {
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "nfs"}, "spec": {
            "containers": [{"name": "c", "image": BUSYBOX}],
            "volumes": [{"name": "s", "nfs": {"server": server_name, "path": "/f"}}]}});
        let said = server.refused_with(&["apply", "-f", "-"], &pod.to_string());
        assert!(said.contains("nfs.server"), "{said}");
    }
}

// A pod that sees the folder of logs made the kubelet read a file of the host to whoever may read its log.
fn linked_log(server: &Server) {
    let secret = server.place.path("secret");
    fs::write(&secret, "2026-01-01T00:00:00.0Z stdout F a secret of the host\n").unwrap();
    pod(server, "linked", "echo mine; sleep 9999", &json!({}));
    server.until(&["logs", "linked"], POD_LIMIT, |out| out == "mine\n");
    let uid = server.ok(&["get", "pod", "linked", "-o", "jsonpath={.metadata.uid}"]);
    let log = server.place.data_dir().join(format!("agent/pod-logs/default_linked_{uid}/c/0.log"));
    fs::rename(&log, log.with_extension("kept")).unwrap();
    symlink(&secret, &log).unwrap();
    let said = server.said(&["logs", "linked"]);
    assert!(!said.out.contains("secret") && said.code != 0, "{said:?}");
    gone(server, "linked");
}

// node.md M5.
fn previous_log(server: &Server) {
    let more = json!({"volumes": [{"name": "v", "emptyDir": {}}],
        "container": {"volumeMounts": [{"name": "v", "mountPath": "/v"}]}});
    pod(server, "crash", "echo x >>/v/n; echo run $(wc -l </v/n); exit 1", &more);
    let waits = [
        "get",
        "pod",
        "crash",
        "-o",
        "jsonpath={.status.containerStatuses[0].restartCount} {.status.containerStatuses[0].state.waiting.reason}",
    ];
    server.until(&waits, POD_LIMIT, |out| out == "1 CrashLoopBackOff" || out == "2 CrashLoopBackOff");
    let restarts: u32 = server.ok(&waits).split(' ').next().unwrap().parse().unwrap();
    assert_eq!(server.ok(&["logs", "-p", "crash"]), format!("run {}\n", restarts + 1));
    gone(server, "crash");
}

/// A pod whose first container writes a file, from which its second takes a variable.
fn with_file(server: &Server, name: &str, writes: &str) {
    let mount = json!([{"name": "v", "mountPath": "/v"}]);
    let more = json!({"restartPolicy": "Never", "volumes": [{"name": "v", "emptyDir": {}}],
        "initContainers": [{"name": "i", "image": BUSYBOX, "command": ["sh", "-c", writes], "volumeMounts": mount}],
        "container": {"env": [{"name": "A", "valueFrom": {"fileKeyRef": {"volumeName": "v", "path": "config.env",
            "key": "A"}}}]}});
    pod(server, name, "echo $A", &more);
}

// KEP-3721; upstream's test/e2e/common/node/file_key.go (v1.36) has the friendly half.
fn file_variables(server: &Server) {
    with_file(server, "file-env", "echo \"# said\nA='two words'\" >/v/config.env");
    server.until(&["logs", "file-env"], POD_LIMIT, |out| out == "two words\n");
    let secret = server.place.path("secret.env");
    fs::write(&secret, "A='secret'\n").unwrap();
    for (name, writes) in [
        ("file-env-link", format!("ln -s {} /v/config.env", secret.display())),
        ("file-env-fifo", "mkfifo /v/config.env".to_owned()),
        ("file-env-huge", "truncate -s 1024G /v/config.env".to_owned()),
    ] {
        with_file(server, name, &writes);
        let reason = ["get", "pod", name, "-o", "jsonpath={.status.containerStatuses[0].state.waiting.reason}"];
        server.until(&reason, POD_LIMIT, |out| out == "CreateContainerConfigError");
        gone(server, name);
    }
    gone(server, "file-env");
}

// security.md H4. Only planned (`--dry-run`): on old code it would have been done.
fn foreign_folders(server: &Server) {
    let photos = victim(server, "photos");
    for dir in [photos.as_path(), Path::new("/var"), Path::new("/")] {
        let mut uninstall = Command::new(std::env::var_os("KEDGE_BIN").unwrap());
        let said = run_with(uninstall.args(["uninstall", "--dry-run", "--data-dir"]).arg(dir), "");
        assert!(said.code != 0 && !said.out.contains("remove "), "{said:?}");
        assert!(said.err.contains("is no folder of kedge's"), "{said:?}");
    }
    assert!(photos.join("precious").exists());
}
