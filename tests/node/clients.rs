//! Clients that people program with, each doing the same: create a pod, list, watch it run, exec. And kubectl of the
//! newest minor.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use futures_util::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, AttachParams, DeleteParams, ListParams, PostParams, WatchEvent, WatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use tokio::io::AsyncReadExt as _;

use crate::harness::{Server, run_with};

const IMAGE: &str = "kedge.local/busybox:1";
const PATIENCE: Duration = Duration::from_secs(90);

/// Python's client and client-node, where `scripts/clients.sh` has put them (KEDGE_CLIENTS), and kube-rs.
pub(crate) fn clients(server: &Server) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(PATIENCE, kube_rs(&server.place.kubeconfig())).await.unwrap() });
    let Some(home) = std::env::var_os("KEDGE_CLIENTS").map(PathBuf::from) else {
        base::skips::say("the Python and Node clients (KEDGE_CLIENTS names no folder; make test sets it)");
        return;
    };
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients");
    let python = home.join("python/bin/python3");
    run(server, &home, &python, &python, &scripts.join("client.py"));
    run(
        server,
        &home,
        Path::new("node"),
        &home.join("node_modules/@kubernetes/client-node"),
        &scripts.join("client.mjs"),
    );
}

/// Every command of kubectl: of the one on PATH, and of the newest and an old minor where `scripts/clients.sh` has put
/// them.
pub(crate) fn kubectl(server: &Server) {
    let home = std::env::var_os("KEDGE_CLIENTS").map(PathBuf::from);
    let fetched =
        ["kubectl", "kubectl31"].map(|name| home.as_ref().map(|home| home.join(name)).filter(|path| path.exists()));
    if fetched.contains(&None) {
        base::skips::say("kubectl 1.36 or 1.31 (KEDGE_CLIENTS names no folder with both; make test sets it)");
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients/kubectl.sh");
    for program in [Some(PathBuf::from("kubectl"))].into_iter().chain(fetched).flatten() {
        let mut command = Command::new("sh");
        command.arg(script).arg(program).env("KUBECONFIG", server.place.kubeconfig()).env("IMAGE", IMAGE);
        let said = run_with(&mut command, "");
        print!("{}", said.out);
        assert_eq!(said.code, 0, "{said:?}");
    }
}

/// Helm 3 and 4: a chart with a definition and hooks, where `scripts/clients.sh` has put them.
pub(crate) fn helm(server: &Server) {
    let home = std::env::var_os("KEDGE_CLIENTS").map(PathBuf::from).unwrap_or_default();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients/helm.sh");
    for program in ["helm3", "helm4"].map(|name| home.join(name)) {
        if !program.exists() {
            base::skips::say(&format!("Helm (no {}; make test fetches it)", program.display()));
            continue;
        }
        let mut command = Command::new("sh");
        command.arg(script).arg(&program).env("KUBECONFIG", server.place.kubeconfig()).env("IMAGE", IMAGE);
        let said = run_with(&mut command, "");
        print!("{}", said.out);
        assert_eq!(said.code, 0, "{said:?}");
    }
}

fn run(server: &Server, home: &Path, program: &Path, needs: &Path, script: &Path) {
    if !needs.exists() {
        base::skips::say(&format!("{} (no {})", script.display(), needs.display()));
        return;
    }
    let mut command = Command::new(program);
    command.arg(script).current_dir(home).env("KUBECONFIG", server.place.kubeconfig()).env("IMAGE", IMAGE);
    let said = run_with(&mut command, "");
    assert_eq!(said.code, 0, "{said:?}");
    print!("{}", said.out);
}

async fn kube_rs(kubeconfig: &Path) {
    let file = Kubeconfig::read_from(kubeconfig).unwrap();
    let config = kube::Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await.unwrap();
    let pods: Api<Pod> = Api::namespaced(kube::Client::try_from(config).unwrap(), "default");
    let pod = serde_json::json!({
        "metadata": {"name": "from-kube-rs", "labels": {"client": "kube-rs"}},
        "spec": {"terminationGracePeriodSeconds": 0,
            "containers": [{"name": "main", "image": IMAGE, "command": ["sleep", "600"]}]},
    });
    pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
    let ours = "client=kube-rs";
    let mut events = pods.watch(&WatchParams::default().labels(ours), "0").await.unwrap().boxed();
    let running = |pod: &Pod| pod.status.as_ref().is_some_and(|status| status.phase.as_deref() == Some("Running"));
    loop {
        match events.try_next().await.unwrap().expect("the watch outlives the start of a pod") {
            WatchEvent::Added(pod) | WatchEvent::Modified(pod) if running(&pod) => break,
            WatchEvent::Deleted(_) | WatchEvent::Error(_) => panic!("the pod never ran"),
            _ => {}
        }
    }
    let listed = pods.list(&ListParams::default().labels(ours)).await.unwrap();
    assert_eq!(listed.items.len(), 1);
    let mut exec =
        pods.exec("from-kube-rs", ["echo", "hello from a pod"], &AttachParams::default().stderr(false)).await.unwrap();
    let mut said = String::new();
    exec.stdout().unwrap().read_to_string(&mut said).await.unwrap();
    exec.join().await.unwrap();
    assert_eq!(said, "hello from a pod\n");
    pods.delete("from-kube-rs", &DeleteParams::default()).await.unwrap();
    println!("kube-rs: create, list, watch, exec");
}
