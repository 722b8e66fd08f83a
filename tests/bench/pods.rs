//! From a Pod's creation to Running, beside the same container by containerd's own client.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use base::time::Stopwatch;
use http::Method;
use serde_json::{Value, json};

use crate::Bench;
use crate::node::{Node, containerd_socket};
use crate::process::{output, wait_for};
use crate::report::{Row, ms, p50, percentile};

/// Pods, and containers beside them.
const N: usize = 20;
const POD_LIMIT: Duration = Duration::from_secs(20);
const PODS: &str = "/api/v1/namespaces/default/pods";

fn pod(name: &str, image: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"terminationGracePeriodSeconds": 0, "containers": [{"name": "c", "image": image, "imagePullPolicy": "Never"}]},
    })
}

/// Creates one pod and waits on a watch until it runs.
async fn one_pod(node: &Node, name: &str, image: &str) -> Result<Duration> {
    let (mut control, mut watching) = (node.api.connect().await?, node.api.connect().await?);
    let path = format!("{PODS}?watch=1&fieldSelector=metadata.name%3D{name}");
    let mut events = watching.open(Method::GET, &path, "".into()).await?.into_body();
    let clock = Stopwatch::start();
    control.create(PODS, &pod(name, image)).await?;
    let mut text = Vec::new();
    let running = async {
        while let Some(frame) = http_body_util::BodyExt::frame(&mut events).await {
            text.extend_from_slice(frame?.data_ref().context("a trailer")?);
            while let Some(end) = memchr::memchr(b'\n', &text) {
                let event: Value = serde_json::from_slice(&text.drain(..=end).collect::<Vec<_>>())?;
                if event["object"]["status"]["phase"] == "Running" {
                    return Ok(clock.elapsed());
                }
            }
        }
        bail!("the watch ended")
    };
    let took = match tokio::time::timeout(POD_LIMIT, running).await {
        Ok(took) => took?,
        Err(_) => {
            let seen = control.get(&format!("{PODS}/{name}")).await?;
            bail!("pod {name} does not run within {} s: {}", POD_LIMIT.as_secs(), seen["status"]);
        }
    };
    control.delete(&format!("{PODS}/{name}")).await?;
    // The next pod starts on a quiet node.
    let gone = async || control.get(&format!("{PODS}/{name}")).await.err();
    wait_for("the pod's end", POD_LIMIT, Duration::from_millis(20), gone).await?;
    Ok(took)
}

/// Containers by `ctr run`, in a containerd namespace of their own that holds the same image.
fn by_ctr(bench: &Bench, socket: &str, image: &str) -> Result<Vec<Duration>> {
    let archive = bench.dir.join("pause.tar").display().to_string();
    let ctr = |args: &[&str]| output("ctr", &[&["--address", socket, "--namespace", "kedge-bench"], args].concat());
    output("ctr", &["--address", socket, "--namespace", "k8s.io", "images", "export", &archive, image])?;
    ctr(&["images", "import", &archive])?;
    let mut times = Vec::new();
    for n in 0..N {
        let name = format!("bench-{n}");
        let clock = Stopwatch::start();
        ctr(&["run", "--detach", image, &name])?;
        times.push(clock.elapsed());
        ctr(&["task", "kill", "--signal", "SIGKILL", &name])?;
        ctr(&["task", "rm", "--force", &name])?;
        ctr(&["container", "rm", &name])?;
    }
    ctr(&["images", "rm", image])?;
    Ok(times)
}

/// Pods one after another, then containers one after another.
pub(crate) async fn measure(bench: &mut Bench, node: &mut Node) -> Result<()> {
    let socket = containerd_socket()?.display().to_string();
    let images = output("ctr", &["--address", &socket, "--namespace", "k8s.io", "images", "ls", "-q"])?;
    let image = images.lines().find(|image| image.contains("/pause:")).context("kedge's pause image is not in containerd")?;
    let mut control = node.api.connect().await?;
    let account = "/api/v1/namespaces/default/serviceaccounts/default";
    wait_for("the default service account", POD_LIMIT, Duration::from_millis(20), async || control.get(account).await.ok()).await?;
    let mut times = Vec::new();
    for n in 0..N {
        times.push(one_pod(node, &format!("bench-{n}"), image).await?);
    }
    node.check()?;
    let row = Row::of(format!("pod create → Running, p50 of {N}"), format!("{} (p90 {})", ms(p50(&times)), ms(percentile(&times, 90))));
    bench.report.add(match by_ctr(bench, &socket, image) {
        Ok(containers) => {
            let ratio = p50(&times).as_secs_f64() / p50(&containers).as_secs_f64();
            row.beside(format!("`ctr run`, same image: {}", ms(p50(&containers))), ratio).budget("≤ 2.5 × ctr run", ratio <= 2.5)
        }
        Err(err) => row.beside(format!("not measured: {err:#}"), f64::NAN),
    });
    Ok(())
}
