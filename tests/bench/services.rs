//! Ten thousand Services on one node: until the last one answers, until one change is in force, and a start with all of
//! them.

use std::io::Read as _;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use base::time::Stopwatch;
use http::Method;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::Bench;
use crate::api::{Api, Connection};
use crate::node::{NAME, Node};
use crate::objects::make_namespace;
use crate::process::wait_for;
use crate::report::{Row, ms, p50, percentile};

const SERVICES: usize = 10_000;
const WRITERS: usize = 16;
const LIMIT: Duration = Duration::from_secs(120);
const CHANGES: usize = 20;
const LOOK: Duration = Duration::from_millis(2);
const NS: &str = "/api/v1/namespaces/bench-services/services";
const SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/bench-services/endpointslices";

/// A server that greets with one letter and is an endpoint of all Services.
fn greeter(ip: IpAddr, letter: u8) -> Result<u16> {
    let listener = TcpListener::bind((ip, 0))?;
    let port = listener.local_addr()?.port();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            use std::io::Write as _;
            // Whoever went away early is no loss.
            let _greeted = (&stream).write_all(&[letter]);
        }
    });
    Ok(port)
}

fn greeted(addr: SocketAddr) -> Option<u8> {
    let mut stream = TcpStream::connect_timeout(&addr, Duration::from_millis(100)).ok()?;
    stream.set_read_timeout(Some(Duration::from_millis(100))).ok()?;
    let mut letter = [0];
    stream.read_exact(&mut letter).ok()?;
    Some(letter[0])
}

fn service(n: usize) -> Value {
    json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": format!("svc-{n:05}") },
        "spec": { "ports": [{ "port": 80, "name": "http" }] } })
}

fn slice(n: usize, ip: IpAddr, port: u16) -> Value {
    json!({ "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": { "name": format!("svc-{n:05}-x"),
            "labels": { "kubernetes.io/service-name": format!("svc-{n:05}") } },
        "endpoints": [{ "addresses": [ip.to_string()], "conditions": { "ready": true } }],
        "ports": [{ "name": "http", "port": port }] })
}

/// Makes one Service with its slice; gives where it answers.
async fn make(connection: &mut Connection, n: usize, ip: IpAddr, port: u16) -> Result<SocketAddr> {
    let made: Value = serde_json::from_slice(&connection.create(NS, &service(n)).await?)?;
    connection.create(SLICES, &slice(n, ip, port)).await?;
    let cluster_ip: IpAddr = made["spec"]["clusterIP"].as_str().context("no clusterIP")?.parse()?;
    Ok(SocketAddr::new(cluster_ip, 80))
}

async fn make_all(api: &Api, ip: IpAddr, port: u16) -> Result<()> {
    let next = Arc::<AtomicUsize>::default();
    let clock = Stopwatch::start();
    let mut writers = JoinSet::new();
    for _ in 0..WRITERS {
        let (api, next) = (api.clone(), Arc::clone(&next));
        writers.spawn(async move {
            let mut connection = api.connect().await?;
            loop {
                let n = next.fetch_add(1, Ordering::Relaxed);
                if n >= SERVICES - 1 {
                    return anyhow::Ok(());
                }
                if clock.elapsed() > LIMIT {
                    bail!("only {n} Services were made within {} s", LIMIT.as_secs());
                }
                make(&mut connection, n, ip, port).await?;
            }
        });
    }
    while let Some(ended) = writers.join_next().await {
        ended??;
    }
    Ok(())
}

async fn until(what: &str, addr: SocketAddr, letter: u8) -> Result<Duration> {
    let clock = Stopwatch::start();
    wait_for(what, LIMIT, LOOK, async || (greeted(addr) == Some(letter)).then(|| clock.elapsed())).await
}

/// Fills the node with Services; it is started anew in between.
pub(crate) async fn measure(bench: &mut Bench, node: Node) -> Result<Node> {
    make_namespace(&node.api, "bench-services").await?;
    let mut connection = node.api.connect().await?;
    let object = connection.get(&format!("/api/v1/nodes/{NAME}")).await?;
    let ip: IpAddr =
        object["status"]["addresses"][0]["address"].as_str().context("the node has no address")?.parse()?;
    let (one, two) = (greeter(ip, b'1')?, greeter(ip, b'2')?);
    let clock = Stopwatch::start();
    make_all(&node.api, ip, one).await?;
    let took = clock.elapsed();
    // The first one was idle for long, and the server may have let it go.
    connection = node.api.connect().await?;
    let last = make(&mut connection, SERVICES - 1, ip, one).await?;
    let behind = until("the last Service to answer", last, b'1').await?;
    bench.report.add(
        Row::of(
            format!(
                "{SERVICES} Services and slices made in {:.1} s: the last one answers after its create",
                took.as_secs_f64()
            ),
            ms(behind),
        )
        .budget("≤ 1 s", behind <= Duration::from_secs(1)),
    );
    let mut times = Vec::new();
    for n in 0..CHANGES {
        let (letter, port) = if n % 2 == 0 { (b'2', two) } else { (b'1', one) };
        let change = json!({ "ports": [{ "name": "http", "port": port, "protocol": "TCP" }] });
        let path = format!("{SLICES}/svc-{:05}-x", SERVICES - 1);
        connection.call(Method::PATCH, &path, serde_json::to_vec(&change)?.into()).await?;
        times.push(until("a changed endpoint", last, letter).await?);
    }
    bench.report.add(
        Row::of(
            format!("one endpoint changed beside {SERVICES} Services: in force, p50 of {CHANGES}"),
            format!("{} (p99 {})", ms(p50(&times)), ms(percentile(&times, 99))),
        )
        .budget("≤ 100 ms", p50(&times) <= Duration::from_millis(100)),
    );
    drop(connection);
    let (node, clock) = node.restart_without_rules(bench).await?;
    until("the last Service after the start", last, b'1').await?;
    let took = clock.elapsed();
    bench.report.add(
        Row::of(
            format!("start with {SERVICES} Services and no rules: all of them answer"),
            format!("{:.2} s", took.as_secs_f64()),
        )
        .budget("≤ 10 s", took <= Duration::from_secs(10)),
    );
    Ok(node)
}
