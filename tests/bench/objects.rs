//! Writing and reading objects through the API: one writer, sixteen, ten thousand pods listed, held and deleted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use base::time::Stopwatch;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::Bench;
use crate::api::Api;
use crate::limits;
use crate::node::Node;
use crate::process::{cpu, rss};
use crate::report::{Row, mib, ms, p50, percentile};

/// Rounds of creates beside appends, taken in turns, so that both meet the same machine.
const ROUNDS: usize = 4;
const CREATES_PER_ROUND: usize = 250;
const CREATE_LIMIT: Duration = Duration::from_secs(10);
const WRITERS: usize = 16;
const WRITE_FOR: Duration = Duration::from_secs(5);
const PODS: usize = 10_000;
const PODS_LIMIT: Duration = Duration::from_secs(90);
const LISTS: usize = 20;
const LISTERS: usize = 4;
const LIST_FOR: Duration = Duration::from_secs(5);
/// Until caches and allocators are done with what was asked of them.
const SETTLE: Duration = Duration::from_secs(5);

/// A namespace of a part's own.
pub(crate) async fn make_namespace(api: &Api, name: &str) -> Result<()> {
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
    api.connect().await?.create("/api/v1/namespaces", &namespace).await.map(drop)
}

/// A ConfigMap of about 1 KiB.
fn config_map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"text": "x".repeat(700)}})
}

/// ConfigMap creates by one client, beside one append and fdatasync of as many bytes in the store's folder.
pub(crate) async fn create_one(bench: &mut Bench, node: &Node) -> Result<()> {
    make_namespace(&node.api, "bench-one").await?;
    let path = "/api/v1/namespaces/bench-one/configmaps";
    let mut connection = node.api.connect().await?;
    let stored = connection.create(path, &config_map("first")).await?.len();
    // Beside the store's files, not among them.
    let dir = node.db_dir().parent().context("the store has no parent folder")?.to_owned();
    let (mut creates, mut appends) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let end = Stopwatch::start();
        for n in 0..CREATES_PER_ROUND {
            let object = config_map(&format!("cm-{round}-{n}"));
            let clock = Stopwatch::start();
            connection.create(path, &object).await?;
            creates.push(clock.elapsed());
            if end.elapsed() > CREATE_LIMIT {
                break;
            }
        }
        let dir = dir.clone();
        appends.extend(
            tokio::task::spawn_blocking(move || limits::append_and_sync(&dir, stored, CREATES_PER_ROUND)).await??,
        );
    }
    std::fs::remove_file(dir.join("append"))?;
    connection.delete(path).await?;
    let (ours, limit) = (p50(&creates), p50(&appends));
    let allowed = limit.mul_f64(1.3) + Duration::from_micros(400);
    bench.report.add(
        Row::of(
            format!("ConfigMap create, one client, p50 of {}", creates.len()),
            format!("{} (p99 {})", ms(ours), ms(percentile(&creates, 99))),
        )
        .beside(
            format!("append + fdatasync of {stored} B: {} (p99 {})", ms(limit), ms(percentile(&appends, 99))),
            ours.as_secs_f64() / limit.as_secs_f64(),
        )
        .budget(format!("≤ 1.3 × that + 0.4 ms = {}", ms(allowed)), ours <= allowed),
    );
    Ok(())
}

/// Creates by sixteen clients, a connection each.
pub(crate) async fn create_many(bench: &mut Bench, node: &Node) -> Result<()> {
    make_namespace(&node.api, "bench-many").await?;
    let done = Arc::<AtomicU64>::default();
    let mut writers = JoinSet::new();
    let before = cpu(node.pid());
    let clock = Stopwatch::start();
    for writer in 0..WRITERS {
        let (api, done) = (node.api.clone(), Arc::clone(&done));
        writers.spawn(async move {
            let mut connection = api.connect().await?;
            for n in 0.. {
                if clock.elapsed() > WRITE_FOR {
                    break;
                }
                connection
                    .create("/api/v1/namespaces/bench-many/configmaps", &config_map(&format!("cm-{writer}-{n}")))
                    .await?;
                done.fetch_add(1, Ordering::Relaxed);
            }
            anyhow::Ok(())
        });
    }
    while let Some(ended) = writers.join_next().await {
        ended??;
    }
    let n = done.load(Ordering::Relaxed) as f64;
    let rate = n / clock.elapsed().as_secs_f64();
    let micros = (cpu(node.pid()) - before).as_secs_f64() * 1e6 / n;
    bench.report.add(
        Row::of(format!("creates, {WRITERS} clients"), format!("{rate:.0}/s, {micros:.0} µs of server CPU each"))
            .budget("≥ 4,000/s", rate >= 4000.0),
    );
    node.api.connect().await?.delete("/api/v1/namespaces/bench-many/configmaps").await?;
    Ok(())
}

/// A pod of about 1.8 KB as it is stored, that no scheduler takes.
fn pod(n: usize) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": format!("pod-{n:05}"), "labels": {"app": "bench", "n": n.to_string()},
            "annotations": {"bench/text": "x".repeat(500)}},
        "spec": {"schedulerName": "nobody", "automountServiceAccountToken": false, "containers": [{
            "name": "c", "image": "kedge.local/none:1", "resources": {"requests": {"cpu": "10m", "memory": "10Mi"}}}]},
    })
}

async fn make_pods(api: &Api) -> Result<usize> {
    let next = Arc::<AtomicUsize>::default();
    let clock = Stopwatch::start();
    let mut writers = JoinSet::new();
    for _ in 0..WRITERS {
        let (api, next) = (api.clone(), Arc::clone(&next));
        writers.spawn(async move {
            let mut connection = api.connect().await?;
            while clock.elapsed() < PODS_LIMIT {
                let n = next.fetch_add(1, Ordering::Relaxed);
                if n >= PODS {
                    break;
                }
                connection.create("/api/v1/namespaces/bench-pods/pods", &pod(n)).await?;
            }
            anyhow::Ok(())
        });
    }
    while let Some(ended) = writers.join_next().await {
        ended??;
    }
    let made = next.load(Ordering::Relaxed).min(PODS);
    if made < PODS {
        bail!("only {made} of {PODS} pods were made within {} s", PODS_LIMIT.as_secs());
    }
    Ok(made)
}

/// LIST by one client and by four, memory that holds the pods, and their deletion.
pub(crate) async fn pods(bench: &mut Bench, node: &mut Node) -> Result<()> {
    make_namespace(&node.api, "bench-pods").await?;
    let before = rss(node.pid());
    make_pods(&node.api).await?;
    tokio::time::sleep(SETTLE).await;
    let held = rss(node.pid()).saturating_sub(before);
    let path = "/api/v1/namespaces/bench-pods/pods";
    let mut connection = node.api.connect().await?;
    let n_bytes = connection.drain(path).await?;
    let mut times = Vec::new();
    for _ in 0..LISTS {
        let clock = Stopwatch::start();
        connection.drain(path).await?;
        times.push(clock.elapsed());
    }
    let limit = p50(&tokio::task::spawn_blocking(move || limits::loopback(n_bytes, LISTS)).await??);
    let size = format!("{:.1} MB", n_bytes as f64 / 1e6);
    bench.report.add(
        Row::of(format!("LIST {PODS} pods ({size}), one client, p50"), ms(p50(&times)))
            .beside(
                format!("the bytes alone over loopback TCP: {}", ms(limit)),
                p50(&times).as_secs_f64() / limit.as_secs_f64(),
            )
            .budget("≤ 60 ms", p50(&times) <= Duration::from_millis(60)),
    );
    let rate = list_rate(&node.api, path).await?;
    let alone = 1.0 / limit.as_secs_f64();
    bench.report.add(
        Row::of(format!("LIST {PODS} pods, {LISTERS} clients"), format!("{rate:.1}/s"))
            .beside(format!("the bytes alone, one socket: {alone:.1}/s"), rate / alone)
            .budget("≥ 40/s", rate >= 40.0),
    );
    let ratio = held as f64 / n_bytes as f64;
    bench.report.add(
        Row::of("server memory (RSS) holding those pods", format!("+{}", mib(held)))
            .beside(format!("their JSON: {}", mib(n_bytes)), ratio)
            .budget("≤ 1.5 × their JSON", ratio <= 1.5),
    );
    let clock = Stopwatch::start();
    connection.delete(path).await?;
    let took = clock.elapsed();
    let left = connection.get(&format!("{path}?limit=1")).await?;
    let n_left = left["items"].as_array().map_or(0, Vec::len);
    let name = format!("deletecollection of {PODS} pods");
    bench.report.add(match n_left {
        0 => Row::of(name, format!("{:.2} s", took.as_secs_f64())).budget("≤ 3 s", took.as_secs_f64() <= 3.0),
        _ => Row::missing(name, "pods were left when it answered"),
    });
    node.check()
}

async fn list_rate(api: &Api, path: &'static str) -> Result<f64> {
    let clock = Stopwatch::start();
    let mut readers = JoinSet::new();
    for _ in 0..LISTERS {
        let api = api.clone();
        readers.spawn(async move {
            let mut connection = api.connect().await?;
            let mut n = 0_u32;
            while clock.elapsed() < LIST_FOR {
                connection.drain(path).await?;
                n += 1;
            }
            anyhow::Ok(n)
        });
    }
    let mut all = 0;
    while let Some(n) = readers.join_next().await {
        all += n??;
    }
    Ok(f64::from(all) / clock.elapsed().as_secs_f64())
}
