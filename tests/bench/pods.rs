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
        "spec": {"terminationGracePeriodSeconds": 0,
            "containers": [{"name": "c", "image": image, "imagePullPolicy": "Never"}]},
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

/// The prefix of the names of containers: runc keeps those of a bench that was cut short.
fn prefix(bench: &Bench) -> String {
    bench.dir.file_name().map_or_else(|| "bench".to_owned(), |name| name.to_string_lossy().into_owned())
}

/// Containers by `ctr run`, in a containerd namespace of their own that holds the same image.
fn by_ctr(bench: &Bench, socket: &str, image: &str) -> Result<Vec<Duration>> {
    let archive = bench.dir.join("pause.tar").display().to_string();
    let ctr = |args: &[&str]| output("ctr", &[&["--address", socket, "--namespace", "kedge-bench"], args].concat());
    output("ctr", &["--address", socket, "--namespace", "k8s.io", "images", "export", &archive, image])?;
    ctr(&["images", "import", &archive])?;
    let mut times = Vec::new();
    for n in 0..N {
        let name = format!("{}-{n}", prefix(bench));
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

/// Pods at once, and containers beside them: a pod is two.
const BURST: usize = 90;
const BURST_LIMIT: Duration = Duration::from_secs(150);
/// `ctr run` at a time: enough that no core waits.
const CTR_AT_ONCE: usize = 4;

/// The image that pods and containers run: it starts in no time.
fn pause_image(socket: &str) -> Result<String> {
    let images = output("ctr", &["--address", socket, "--namespace", "k8s.io", "images", "ls", "-q"])?;
    let image =
        images.lines().find(|image| image.contains("/pause:")).context("kedge's pause image is not in containerd")?;
    Ok(image.to_owned())
}

/// Until all pods of a label run.
async fn all_run(node: &Node, clock: Stopwatch) -> Result<Duration> {
    let mut control = node.api.connect().await?;
    let path = format!("{PODS}?labelSelector=burst&limit=500");
    let took = tokio::time::timeout(BURST_LIMIT, async {
        loop {
            let list = control.get(&path).await?;
            let pods = list["items"].as_array().cloned().unwrap_or_default();
            let n = pods.iter().filter(|pod| pod["status"]["phase"] == "Running").count();
            if n == BURST {
                return anyhow::Ok(clock.elapsed());
            }
            // A look is about a millisecond of the server's time.
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    });
    took.await.with_context(|| format!("{BURST} pods do not run within {} s", BURST_LIMIT.as_secs()))?
}

/// As many containers as the pods are, by `ctr run`, in a containerd namespace of their own.
fn containers_at_once(bench: &Bench, socket: &str, image: &str) -> Result<Duration> {
    let archive = bench.dir.join("pause.tar").display().to_string();
    output("ctr", &["--address", socket, "--namespace", "k8s.io", "images", "export", &archive, image])?;
    let ctr = |args: &[&str]| output("ctr", &[&["--address", socket, "--namespace", "kedge-bench"], args].concat());
    ctr(&["images", "import", &archive])?;
    let (prefix, clock) = (&prefix(bench), Stopwatch::start());
    std::thread::scope(|scope| -> Result<()> {
        let lane = |lane: usize| {
            (lane..2 * BURST)
                .step_by(CTR_AT_ONCE)
                .try_for_each(|n| ctr(&["run", "--detach", image, &format!("{prefix}-burst-{n}")]).map(drop))
        };
        let lanes: Vec<_> = (0..CTR_AT_ONCE).map(|n| scope.spawn(move || lane(n))).collect();
        lanes.into_iter().try_for_each(|lane| lane.join().map_err(|_| anyhow::anyhow!("a thread panicked"))?)
    })?;
    let took = clock.elapsed();
    for n in 0..2 * BURST {
        let name = format!("{prefix}-burst-{n}");
        ctr(&["task", "kill", "--signal", "SIGKILL", &name])?;
        ctr(&["task", "rm", "--force", &name])?;
        ctr(&["container", "rm", &name])?;
    }
    ctr(&["images", "rm", image])?;
    Ok(took)
}

/// Many pods at once.
pub(crate) async fn burst(bench: &mut Bench, node: &mut Node) -> Result<()> {
    let socket = containerd_socket()?.display().to_string();
    let image = pause_image(&socket)?;
    let mut control = node.api.connect().await?;
    let clock = Stopwatch::start();
    for n in 0..BURST {
        let mut pod = pod(&format!("burst-{n}"), &image);
        pod["metadata"]["labels"] = json!({"burst": "yes"});
        control.create(PODS, &pod).await?;
    }
    let took = all_run(node, clock).await?;
    node.check()?;
    control.delete(&format!("{PODS}?labelSelector=burst")).await?;
    let left = async || {
        let list = control.get(&format!("{PODS}?labelSelector=burst&limit=1")).await.ok()?;
        list["items"].as_array().is_some_and(Vec::is_empty).then_some(())
    };
    wait_for("the end of the pods", BURST_LIMIT, Duration::from_millis(200), left).await?;
    let row = Row::of(format!("{BURST} pods at once, all Running"), format!("{:.1} s", took.as_secs_f64()));
    bench.report.add(match containers_at_once(bench, &socket, &image) {
        Ok(peer) => {
            let ratio = took.as_secs_f64() / peer.as_secs_f64();
            let peer = format!("{} × `ctr run`, {CTR_AT_ONCE} at a time: {:.1} s", 2 * BURST, peer.as_secs_f64());
            row.beside(peer, ratio).budget("≤ 1.3 × that", ratio <= 1.3)
        }
        Err(err) => row.beside(format!("not measured: {err:#}"), f64::NAN),
    });
    Ok(())
}

/// Pods one after another, then containers one after another.
pub(crate) async fn measure(bench: &mut Bench, node: &mut Node) -> Result<()> {
    let socket = containerd_socket()?.display().to_string();
    let image = &pause_image(&socket)?;
    let mut control = node.api.connect().await?;
    let account = "/api/v1/namespaces/default/serviceaccounts/default";
    wait_for("the default service account", POD_LIMIT, Duration::from_millis(20), async || {
        control.get(account).await.ok()
    })
    .await?;
    let mut times = Vec::new();
    for n in 0..N {
        times.push(one_pod(node, &format!("bench-{n}"), image).await?);
    }
    node.check()?;
    let row = Row::of(
        format!("pod create → Running, p50 of {N}"),
        format!("{} (p90 {})", ms(p50(&times)), ms(percentile(&times, 90))),
    );
    bench.report.add(match by_ctr(bench, &socket, image) {
        Ok(containers) => {
            let ratio = p50(&times).as_secs_f64() / p50(&containers).as_secs_f64();
            row.beside(format!("`ctr run`, same image: {}", ms(p50(&containers))), ratio)
                .budget("≤ 2.5 × ctr run", ratio <= 2.5)
        }
        Err(err) => row.beside(format!("not measured: {err:#}"), f64::NAN),
    });
    Ok(())
}
