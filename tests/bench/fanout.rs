//! One change told to many: watchers that count lines, writers that change ConfigMaps.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use base::time::Stopwatch;
use http::Method;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use serde_json::json;
use tokio::task::JoinSet;

use crate::Bench;
use crate::api::Api;
use crate::limits;
use crate::node::Node;
use crate::objects::make_namespace;
use crate::process::cpu;
use crate::report::Row;

const WATCHERS: usize = 200;
const UPDATES: usize = 500;
const WRITERS: usize = 8;
const LIMIT: Duration = Duration::from_secs(60);
const PATH: &str = "/api/v1/namespaces/bench-watch/configmaps";
/// Upstream told 18,200 events a second on a machine like this; three times that is the budget.
const EVENTS_PER_SEC_MIN: f64 = 54_600.0;

/// Reads until `n` events came; gives their bytes.
async fn count(mut events: Incoming, n: usize) -> Result<usize> {
    let (mut n_seen, mut n_bytes) = (0, 0);
    while n_seen < n {
        let frame = events.frame().await.with_context(|| format!("a watch ended after {n_seen} of {n} events"))??;
        let chunk = frame.data_ref().context("a trailer")?;
        n_seen += memchr::memchr_iter(b'\n', chunk).count();
        n_bytes += chunk.len();
    }
    Ok(n_bytes)
}

async fn update(api: Api, writer: usize, next: Arc<AtomicUsize>) -> Result<()> {
    let mut connection = api.connect().await?;
    loop {
        let n = next.fetch_add(1, Ordering::Relaxed);
        if n >= UPDATES {
            return Ok(());
        }
        let patch = serde_json::to_vec(&json!({"data": {"n": n.to_string()}}))?;
        connection.call(Method::PATCH, &format!("{PATH}/cm-{writer}"), patch.into()).await?;
    }
}

/// Events a second and server CPU an event, beside a write(2) of as many bytes.
pub(crate) async fn measure(bench: &mut Bench, node: &mut Node) -> Result<()> {
    make_namespace(&node.api, "bench-watch").await?;
    let mut connection = node.api.connect().await?;
    for writer in 0..WRITERS {
        let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": format!("cm-{writer}")},
            "data": {"text": "x".repeat(700)}});
        connection.create(PATH, &object).await?;
    }
    let list = connection.get(&format!("{PATH}?limit=1")).await?;
    let from = list["metadata"]["resourceVersion"].as_str().context("a list without resourceVersion")?;
    let mut watchers = JoinSet::new();
    for _ in 0..WATCHERS {
        let mut watching = node.api.connect().await?;
        let events = watching.open(Method::GET, &format!("{PATH}?watch=1&resourceVersion={from}"), "".into()).await?;
        watchers.spawn(async move {
            let n_bytes = count(events.into_body(), UPDATES).await;
            drop(watching);
            n_bytes
        });
    }
    let (next, before, clock) = (Arc::<AtomicUsize>::default(), cpu(node.pid()), Stopwatch::start());
    let mut writers = JoinSet::new();
    for writer in 0..WRITERS {
        writers.spawn(update(node.api.clone(), writer, Arc::clone(&next)));
    }
    let all = async {
        while let Some(ended) = writers.join_next().await {
            ended??;
        }
        let written_in = clock.elapsed();
        let mut n_bytes = 0;
        while let Some(seen) = watchers.join_next().await {
            n_bytes += seen??;
        }
        anyhow::Ok((written_in, n_bytes))
    };
    let Ok(all) = tokio::time::timeout(LIMIT, all).await else {
        bail!("not all watchers saw all events within {} s", LIMIT.as_secs())
    };
    let (written_in, n_bytes) = all?;
    let (took, spent) = (clock.elapsed(), cpu(node.pid()) - before);
    node.check()?;
    let n_events = WATCHERS * UPDATES;
    let (rate, event_len) = (n_events as f64 / took.as_secs_f64(), n_bytes / n_events);
    let micros = spent.as_secs_f64() * 1e6 / n_events as f64;
    let write =
        tokio::task::spawn_blocking(move || limits::write_cpu(event_len, WATCHERS, 100)).await??.as_secs_f64() * 1e6;
    let name = format!("watch fan-out, {WATCHERS} watchers (a TLS connection each) × {UPDATES} updates");
    let updates = UPDATES as f64 / written_in.as_secs_f64();
    bench.report.add(
        Row::of(name, format!("{rate:.0} events/s ({updates:.0} updates/s by {WRITERS} writers)"))
            .budget("≥ 54,600/s", rate >= EVENTS_PER_SEC_MIN),
    );
    bench.report.add(
        Row::of("server CPU per watch event, the update's share in it", format!("{micros:.1} µs"))
            .beside(format!("one write(2) of {event_len} B to a loopback socket: {write:.1} µs"), micros / write)
            .aim("≈ a write(2), and TLS"),
    );
    Ok(())
}
